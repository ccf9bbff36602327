"""Makes the status snapshot and the gauges from what the controller, the lanes and the pipelines show of themselves.

Called by the controller, a few times a second; the admin thread reads the result. The series of lanes and topics are
replaced as a whole each time, so those of a partition that left are gone with its lane.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from connector.telemetry.status import LaneState, LaneStatus, PipelineStatus, RunState, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connector.lane.lane import Lane
    from connector.pipeline.messages import Retry
    from connector.pipeline.worker import Pipeline
    from connector.runtime.controller import Controller
    from connector.telemetry.metrics import Metrics


_BY_OPERATOR = "paused by an operator"


class StatusBoard:
    """Holds the newest snapshot; `latest` is replaced as a whole."""

    def __init__(self, group_id: str, metrics: Metrics) -> None:
        self._group_id = group_id
        self._metrics = metrics
        self.latest = Status(
            RunState.STARTING, is_ready=False, reason="starting", group_id=group_id, group_protocol="", epoch=0
        )

    def publish(self, controller: Controller) -> None:
        """Take a new snapshot."""
        now = time.monotonic()
        lanes = tuple(_lane_status(controller, lane, now) for lane in controller.fleet.lanes.values())
        pipelines = tuple(_pipeline_status(controller, pipeline, now) for pipeline in controller.fleet.pipelines)
        state = controller.state
        is_ready, reason = _readiness(controller, state, lanes, pipelines)
        self.latest = Status(
            state=state,
            is_ready=is_ready,
            reason=reason,
            group_id=self._group_id,
            group_protocol=controller.source.protocol,
            epoch=controller.checkpointer.epoch,
            lanes=lanes,
            pipelines=pipelines,
            missing_topics=tuple(controller.source.missing_topics),
            intents=controller.intents.in_force,
            last_error=str(controller.error) if controller.error else None,
            controller_seen=now,
            source_seen=controller.source.seen,
        )
        self._metrics.set_state(state)
        self._metrics.ready.set(is_ready)
        self._measure_lanes(lanes)
        self._measure_topics(lanes)
        self._measure_partitions(lanes[: self._metrics.partition_limit])
        self._metrics.partition_series_omitted.set(max(0, len(lanes) - self._metrics.partition_limit))

    def _measure_lanes(self, lanes: tuple[LaneStatus, ...]) -> None:
        metrics = self._metrics
        metrics.assigned_lanes.set(len(lanes))
        states = Counter(lane.state for lane in lanes)
        for state in LaneState:
            metrics.lanes.labels(state.value).set(states[state])
        metrics.memory_bytes.labels("lanes").set(sum(lane.held_bytes - lane.sink_bytes for lane in lanes))
        metrics.memory_bytes.labels("sink").set(sum(lane.sink_bytes for lane in lanes))

    def _measure_topics(self, lanes: Iterable[LaneStatus]) -> None:
        lags: dict[tuple[str, ...], float] = {}
        ages: dict[tuple[str, ...], float] = {}
        for lane in lanes:
            topic = (self._metrics.topics.label(lane.topic),)
            ages[topic] = max(ages.get(topic, 0.0), lane.oldest_held_seconds or 0.0)
            if lane.lag is not None:
                lags[topic] = lags.get(topic, 0.0) + lane.lag
        self._metrics.topic_lag.show(lags)
        self._metrics.oldest_unacknowledged_seconds.show(ages)

    def _measure_partitions(self, lanes: Iterable[LaneStatus]) -> None:
        """Lanes are in the order in which they came: the series stay those of the same ones while others come."""
        wall = time.time()
        lag: dict[tuple[str, ...], float] = {}
        updated: dict[tuple[str, ...], float] = {}
        committed: dict[tuple[str, ...], float] = {}
        ages: dict[tuple[str, ...], float] = {}
        for lane in lanes:
            series = (lane.topic, str(lane.partition))
            ages[series] = lane.watermark_age_seconds or 0.0
            if lane.committed is not None:
                committed[series] = lane.committed
            if lane.lag is not None and lane.lag_age_seconds is not None:
                lag[series] = lane.lag
                updated[series] = wall - lane.lag_age_seconds
        self._metrics.lag.show(lag)
        self._metrics.lag_updated.show(updated)
        self._metrics.committed_position.show(committed)
        self._metrics.watermark_age_seconds.show(ages)


def _readiness(
    controller: Controller, state: RunState, lanes: tuple[LaneStatus, ...], pipelines: tuple[PipelineStatus, ...]
) -> tuple[bool, str]:
    """Ready means that it consumes, or would as soon as there is something: member of the group, every sink open."""
    if state is not RunState.RUNNING:
        waits = "waits for the group's first assignment" if state is RunState.STARTING else state.value
        missing = controller.source.missing_topics
        return False, f"{waits}; missing topics: {', '.join(missing)}" if missing else waits
    closed = [pipeline for pipeline in pipelines if not pipeline.is_open]
    if closed:
        return False, f"the sink of pipeline {closed[0].pipeline} is not open: {closed[0].last_error or 'opening'}"
    held_back = sum(lane.reason == _BY_OPERATOR for lane in lanes)
    if held_back == len(lanes) if lanes else controller.intents.holds_everything:
        return False, _BY_OPERATOR
    if held_back:
        return True, f"consuming; {held_back} of {len(lanes)} lanes are {_BY_OPERATOR}"
    return True, "consuming" if lanes else "stands by: the group has no partition for this member"


def _lane_status(controller: Controller, lane: Lane, now: float) -> LaneStatus:
    pipeline = controller.fleet.owners[lane.id]
    retry = controller.fleet.pipelines[pipeline].retries.get(lane.id)
    watermark = controller.checkpointer.watermarks([lane.id]).get(lane.partition_id)
    committed, end, end_seen, held_since = lane.committed, lane.end_offset, lane.end_seen, lane.held_since
    held_bytes, sink_bytes = lane.held_bytes, lane.sink_bytes
    return LaneStatus(
        lane=lane.id,
        topic=lane.topic,
        partition=lane.partition,
        pipeline=pipeline,
        state=_lane_state(lane, retry, has_started=watermark is not None),
        watermark=watermark,
        committed=committed,
        end_offset=end,
        lag=max(0, end - committed) if end is not None and committed is not None else None,
        lag_age_seconds=None if end_seen is None else now - end_seen,
        held_bytes=held_bytes,
        sink_bytes=min(sink_bytes, held_bytes),  # the lane goes on between the two readings
        oldest_held_seconds=None if held_since is None else max(0.0, now - held_since),
        watermark_age_seconds=controller.checkpointer.watermark_age(lane.id, now),
        attempts=retry.failures if retry else 0,
        last_error=retry.error if retry else None,
        next_try_seconds=max(0.0, retry.at - now) if retry else None,
        reason=_BY_OPERATOR if lane.is_held_back else None,
    )


def _lane_state(lane: Lane, retry: Retry | None, *, has_started: bool) -> LaneState:
    if lane.is_closed:
        return LaneState.DRAINING
    if retry is not None:
        return LaneState.AWAITING_SCHEMA if retry.stage == "decode" else LaneState.RETRYING
    if lane.is_held_back:
        return LaneState.HELD_BACK
    if not has_started:
        return LaneState.STARTING
    return LaneState.PAUSED if lane.is_paused else LaneState.FLOWING


def _pipeline_status(controller: Controller, pipeline: Pipeline, now: float) -> PipelineStatus:
    retry, opens_until = pipeline.open_retry, pipeline.breaker_opens_until
    return PipelineStatus(
        pipeline=pipeline.number,
        lanes=sum(owner == pipeline.number for owner in controller.fleet.owners.values()),
        is_open=pipeline.is_open,
        attempts=retry.failures if retry else 0,
        last_error=retry.error if retry else None,
        restarts=pipeline.incarnation,
        breaker_opens_seconds=None if opens_until is None else max(0.0, opens_until - now),
    )
