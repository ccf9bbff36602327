"""The main thread: takes what the source reports, places lanes, decides on commits, and ends the run.

It never touches a record, does no I/O and waits for nobody, save in `poll_events` for its timeout; so a source that
waits at a barrier, inside a rebalance callback, always finds it listening. Shutdown is the same loop with a goal.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, assert_never

from connector.api.barrier import DrainBarrier
from connector.api.errors import ExitCode, FatalError
from connector.api.event import CloseReason, NodeFailed, StopCause
from connector.api.intents import Intents
from connector.api.source_event import (
    CommitReady,
    CommitResult,
    Drained,
    Idle,
    LanesAdded,
    LanesAssigned,
    LanesRetired,
    LanesRevoked,
    RevokeReason,
    Source,
    SourceEvent,
)
from connector.checkpoint.checkpointer import Checkpointer
from connector.commit.outcome import error_for, outcome_of
from connector.pipeline.messages import Acked, Claimed, Delivered, Failed, Finished, Opened, Refused, Report
from connector.runtime.drains import Drain
from connector.runtime.stalls import StallWatch
from connector.telemetry.logs import get_logger
from connector.telemetry.partition_list import partition_list
from connector.telemetry.status import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from connector.api.types import LaneId, Offset, PartitionId
    from connector.commit.schedule import CommitSchedule
    from connector.lane.lane import Lane
    from connector.runtime.fleet import Fleet
    from connector.runtime.supervisor import Supervisor
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)

_POLL_SECONDS = 0.05
_BUSY_POLL_SECONDS = 0.002  # while a revocation waits for the next step of its drain
_PUBLISH_SECONDS = 0.25
_COMMIT_SHARE = 0.2  # of the shutdown time is kept for the final commit and for leaving


SOURCE_NODE = "source"  # what events call the source


class ExitState(Enum):
    """How a run ended."""

    COMPLETED = "completed"  # a bounded run read everything
    STOPPED = "stopped"  # asked to, and everything taken is delivered and committed
    INCOMPLETE = "incomplete"  # asked to, but work was left uncommitted at the deadline
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ExitReport:
    """What the process ends with. `uncommitted` counts partitions whose taken records are not all committed."""

    state: ExitState
    code: ExitCode
    error: FatalError | None = None
    uncommitted: int = 0


class _Stage(Enum):
    RUNNING = "running"
    DRAINING = "draining"  # pipelines flush
    COMMITTING = "committing"  # the last commit is on its way
    LEAVING = "leaving"  # sinks close, the source leaves the group
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times, in seconds."""

    drain_timeout: float = 20.0
    shutdown_timeout: float = 25.0
    lane_idle_timeout: float = 300.0


class Controller:
    """One run, from start to exit report. Everything here belongs to the main thread, save `request_stop`."""

    def __init__(
        self,
        *,
        source: Source[Lane],
        fleet: Fleet,
        supervisor: Supervisor,
        reports: SimpleQueue[Report],
        schedule: CommitSchedule,
        metrics: Metrics,
        settings: ControllerSettings,
        publish: Callable[[Controller], None],
    ) -> None:
        self.source = source
        self.fleet = fleet
        self.checkpointer = Checkpointer()
        self.schedule = schedule
        self.has_joined = False
        self.intents = Intents()  # what an operator holds back
        self.error: FatalError | None = None
        self._supervisor = supervisor
        self._requests: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._reports = reports
        self._metrics = metrics
        self._settings = settings
        self._publish = publish
        self._next_publish = 0.0
        self._stalls = StallWatch(settings.lane_idle_timeout)
        self._drains: list[Drain] = []
        self._backlog: deque[SourceEvent[Lane]] = deque()  # events that wait until a full lane set can be taken
        self._admitted: set[PartitionId] = set()  # the schedule knows them: their start is known
        self._commit_ready: set[PartitionId] = set()  # to be chased as soon as the schedule knows them
        self._stage = _Stage.RUNNING
        self._stop_requested = False
        self._cause = StopCause.MANUAL
        self._deadline = 0.0
        self._finished_pipelines: set[int] = set()
        self._was_drained = True
        self._refused: set[PartitionId] = set()  # their commits will never succeed
        self._uncommitted = 0

    @property
    def state(self) -> RunState:
        """Where the run stands, for the status."""
        if self.error is not None:
            return RunState.FAILED
        if self._stage is _Stage.RUNNING:
            return RunState.RUNNING if self.has_joined else RunState.STARTING
        return RunState.STOPPED if self._stage is _Stage.DONE else RunState.DRAINING

    @property
    def is_stopping(self) -> bool:
        """Whether the end has begun, or was asked for. Any thread."""
        return self._stop_requested or self._stage is not _Stage.RUNNING

    def request_stop(self) -> None:
        """Ask for a graceful end. Called from a signal handler or another thread; only sets a flag."""
        self._stop_requested = True

    def hold_back(self, intents: Intents) -> None:
        """Let the source hold back what an operator wants held back from now on; on the main thread."""
        self.intents = intents
        self.source.hold_back(intents)

    def request(self, action: Callable[[], None]) -> None:
        """Let the main thread do something at its next turn. Called from any thread; never blocks."""
        self._requests.put(action)

    def run(self) -> ExitReport:
        """Run until a stop is asked for, a bounded run is over, or something fails for good; then drain and leave."""
        self.fleet.start()
        self.source.start()
        while self._stage is not _Stage.DONE:
            self._turn()
        self._publish(self)
        return self._report_exit()

    def _turn(self) -> None:
        try:
            event = self.source.poll_events(self._poll_seconds())
        except FatalError as error:
            self.fleet.tell(NodeFailed(tuple(self.fleet.lanes), str(error), SOURCE_NODE))
            self._fail(error)
        else:
            self._backlog.append(event)
        now = time.monotonic()
        self._serve_requests()
        self._fold_reports()
        # Before the event: a source settles a revocation and reports the next assignment at once, and those lanes must
        # be gone by then.
        self._advance_drains(now)
        while self._backlog and not self._is_held_back():
            self._handle(self._backlog.popleft(), now)
        self._settle_commits(now)
        self._commit(now)
        if self._stage is _Stage.RUNNING:
            self.fleet.start_replacements(now)
        if self._stop_requested and self._stage is _Stage.RUNNING:
            log.info("stop_requested")
            self._begin_shutdown(StopCause.MANUAL)
        self._advance_shutdown(now)
        if now >= self._next_publish:
            self._next_publish = now + _PUBLISH_SECONDS
            self._look_for_stalls(now)
            self._publish(self)

    def _serve_requests(self) -> None:
        while True:
            try:
                action = self._requests.get_nowait()
            except Empty:
                return
            action()

    def _look_for_stalls(self, now: float) -> None:
        """Tell the sinks of lanes that get no records although the log has some."""
        for lane in self._stalls.find(self.fleet.lanes.values(), now):
            idle_seconds = self._settings.lane_idle_timeout
            log.warning("lane_stalled", topic=lane.topic, partition=lane.partition, idle_seconds=idle_seconds)
            self.fleet.stall(lane.id)

    def _is_held_back(self) -> bool:
        """Whether a full lane set waits until the lanes of before are drained, and all that follows waits behind it.

        Not while we leave: nothing new is begun then, and a revocation must not wait for lanes that it does not name.
        """
        return self._stage is _Stage.RUNNING and any(drain.is_own for drain in self._drains)

    def _poll_seconds(self) -> float:
        now = time.monotonic()
        due = self.schedule.next_due(now) - now
        return _BUSY_POLL_SECONDS if self._drains else max(_BUSY_POLL_SECONDS, min(_POLL_SECONDS, due))

    # What the source reports.

    def _handle(self, event: SourceEvent[Lane], now: float) -> None:
        match event:
            case LanesAssigned(lanes):
                self._assign(event, lanes, now)
            case LanesAdded(lanes):
                self.has_joined = True
                self.schedule.assigned()
                self.checkpointer.add((lane.id, lane.partition_id) for lane in lanes)
                self._place(lanes)
            case LanesRevoked(lanes, barrier, reason):
                self._revoke(lanes, barrier, reason, now)
            case LanesRetired(lanes):
                retired = set(lanes)
                log.info("lanes_retired", partitions=self._named(lambda lane: lane.id in retired), lanes=len(lanes))
                self.fleet.drop_lanes(lanes, CloseReason.END)
                self._drop(lanes)
            case Idle():
                pass
            case CommitReady(partitions):
                ended = set(partitions)
                names = self._named(lambda lane: lane.partition_id in ended)
                log.debug("lanes_ended", partitions=names, lanes=len(partitions))
                self._commit_ready.update(partitions)
            case Drained():
                if self._stage is _Stage.RUNNING:
                    log.info("run_completed")
                    self._begin_shutdown(StopCause.ALL_INPUTS_CLOSED)
            case _:
                assert_never(event)

    def _named(self, is_meant: Callable[[Lane], bool]) -> list[str]:
        return partition_list((lane.topic, lane.partition) for lane in self.fleet.lanes.values() if is_meant(lane))

    def _assign(self, event: LanesAssigned[Lane], lanes: tuple[Lane, ...], now: float) -> None:
        if self._stage is not _Stage.RUNNING:  # we are leaving: nothing new is begun
            return
        if self.fleet.lanes:  # the full set replaces lanes that nobody revoked: drain and commit them first
            log.warning("assignment_overlapped", lanes=len(self.fleet.lanes))
            self._stop_lanes(tuple(self.fleet.lanes), now + self._settings.drain_timeout)
            self._backlog.appendleft(event)
            return
        self.has_joined = True
        self.schedule.assigned()
        # Trackers are made before any lane reaches a pipeline.
        self.checkpointer.begin_epoch((lane.id, lane.partition_id) for lane in lanes)
        self._place(lanes)

    def _place(self, lanes: Sequence[Lane]) -> None:
        if self._stage is not _Stage.RUNNING:  # we are leaving: nothing new is begun
            self.checkpointer.drop(lane.id for lane in lanes)
            return
        self.fleet.place(lanes, self.checkpointer.epoch)

    def _revoke(self, lanes: tuple[LaneId, ...], barrier: DrainBarrier, reason: RevokeReason, now: float) -> None:
        if reason is RevokeReason.LOST:
            self.checkpointer.fence(lanes)
            self.fleet.drop_lanes(lanes, CloseReason.LOST)
            self._drop(lanes)
            return
        deadline = now + self._settings.drain_timeout
        self.fleet.stop_lanes(lanes, barrier, deadline)
        self._drains.append(Drain(lanes, barrier, deadline))

    def _stop_lanes(self, lanes: tuple[LaneId, ...], deadline: float) -> None:
        """Drain lanes by our own decision; nobody waits at this barrier but the next step."""
        barrier = DrainBarrier(len(lanes) + 1)
        self.fleet.stop_lanes(lanes, barrier, deadline)
        self._drains.append(Drain(lanes, barrier, deadline, is_own=True))

    def _drop(self, lanes: tuple[LaneId, ...]) -> None:
        for lane_id in lanes:
            lane = self.fleet.forget(lane_id)
            if lane is not None:
                self.schedule.forget([lane.partition_id])
                self._admitted.discard(lane.partition_id)
                self._commit_ready.discard(lane.partition_id)
        self.checkpointer.fence(lanes)
        self.checkpointer.drop(lanes)

    # What the pipelines report.

    def _fold_reports(self) -> None:
        while True:
            try:
                report = self._reports.get_nowait()
            except Empty:
                return
            self._fold(report)

    def _fold(self, report: Report) -> None:
        match report:
            case Delivered(lane, sequence, next_offset):
                self.checkpointer.deliver(lane, sequence, next_offset, time.monotonic())
            case Acked(lane, sequence):
                held = self.fleet.lanes.get(lane)
                if held is not None and held.is_fenced:
                    self.checkpointer.fence([lane])
                if not self.checkpointer.finish(lane, sequence):
                    self._metrics.late_acks.inc()
            case Claimed(lane, stored):
                self.source.start_lane(lane, stored)
            case Refused(lane):
                self.source.restart_lanes({lane: None})
            case Opened(number):
                lanes = self.fleet.opened(number)
                if self._stage is _Stage.RUNNING:  # else they stay, so that what they leave undone is counted
                    self._bring_back(lanes)
            case Failed():
                self._pipeline_failed(report)
            case Finished(number, incarnation):
                if incarnation == self.fleet.pipelines[number].incarnation:  # not one that was replaced before
                    self._finished_pipelines.add(number)
            case _:
                assert_never(report)

    def _pipeline_failed(self, failed: Failed) -> None:
        """A crash is cured by a new pipeline, which begins where the sink's durable prefix ends; up to a limit."""
        log.error("pipeline_failed", pipeline=failed.pipeline, node=failed.node, error=str(failed.error))
        now = time.monotonic()
        at = self._supervisor.restart_at(failed.pipeline, now) if failed.is_crash else None
        if self._stage is not _Stage.RUNNING or at is None:
            self.fleet.tell(NodeFailed(tuple(self.fleet.lanes), str(failed.error), failed.node))
            self._fail(failed.error)
            return
        self._metrics.pipeline_restarts.inc()
        self.fleet.schedule_replacement(failed, at)
        log.warning("pipeline_restart_scheduled", pipeline=failed.pipeline, delay_seconds=round(at - now, 3))

    def _bring_back(self, lanes: tuple[LaneId, ...]) -> None:
        """The replacement of a pipeline runs: its lanes come back as new ones, at their watermarks."""
        if lanes:
            watermarks = self.checkpointer.watermarks(lanes)
            self.source.restart_lanes({lane: watermarks.get(self.fleet.lanes[lane].partition_id) for lane in lanes})

    def _advance_drains(self, now: float) -> None:
        over = [drain for drain in self._drains if drain.advance(self.checkpointer, self._fold_reports, now)]
        for drain in over:
            self._drains.remove(drain)
            if self._stage is _Stage.RUNNING or not drain.is_own:
                if drain.is_own:
                    self.source.commit(self.checkpointer.watermarks(drain.lanes))
                self._count_left(drain.lanes)
                self._drop(drain.lanes)
            elif not drain.has_arrived:
                self._was_drained = False

    def _count_left(self, lanes: Iterable[LaneId]) -> None:
        """Note what a lane that leaves during the shutdown leaves undone: then the end is not a clean one."""
        if self._stage is not _Stage.RUNNING and any(not self.checkpointer.is_settled(lane) for lane in lanes):
            self._was_drained = False

    # Commits.

    def _settle_commits(self, now: float) -> None:
        for result in self.source.poll_results():
            self._count_commit(result)
            self.schedule.settle(now, result.committed, result.failed)

    def _count_commit(self, result: CommitResult) -> None:
        if result.committed:
            self._metrics.commits.labels("ok", "NO_ERROR").inc(len(result.committed))
        self._refused.update(partition for partition, code in result.failed.items() if error_for(code) is not None)
        for code in sorted(set(result.failed.values())):
            outcome, count = outcome_of(code), sum(failed == code for failed in result.failed.values())
            self._metrics.commits.labels(outcome.value, code).inc(count)
            log.warning("commit_failed", code=code, outcome=outcome.value, positions=count)
            if (error := error_for(code)) is not None:
                self._fail(error)

    def _commit(self, now: float) -> None:
        watermarks = self._admit(self.checkpointer.watermarks())
        # A short partition has ended before the first acknowledgement of its lane.
        chased = self._commit_ready & self._admitted
        self._commit_ready -= chased
        self.schedule.chase(chased, now)
        if self._stage in (_Stage.RUNNING, _Stage.DRAINING):
            due = self.schedule.due(now, watermarks)
        else:
            due = self.schedule.flush(now, watermarks)
        if due:
            self.schedule.sent(now, due)
            self.source.commit(due)

    def _admit(self, watermarks: Mapping[PartitionId, Offset]) -> Mapping[PartitionId, Offset]:
        """Let the schedule know of partitions whose start is known now."""
        for lane in self.fleet.lanes.values():
            if lane.partition_id in watermarks and lane.partition_id not in self._admitted:
                self._admitted.add(lane.partition_id)
                self.schedule.admit(lane.partition_id, lane.committed)
        return watermarks

    # The end.

    def _fail(self, error: FatalError) -> None:
        if self.error is None:
            self.error = error
            log.error("run_failed", error_class=type(error).__name__, error=str(error))
        if self._stage is _Stage.RUNNING:
            self._begin_shutdown(StopCause.MANUAL)

    def _begin_shutdown(self, cause: StopCause) -> None:
        now = time.monotonic()
        self._cause = cause
        self._stage = _Stage.DRAINING
        self._deadline = now + self._settings.shutdown_timeout
        if self.fleet.lanes:
            reserve = self._settings.shutdown_timeout * _COMMIT_SHARE
            self._stop_lanes(tuple(self.fleet.lanes), self._deadline - reserve)

    def _advance_shutdown(self, now: float) -> None:
        match self._stage:
            case _Stage.RUNNING | _Stage.DONE:
                return
            case _Stage.DRAINING:
                if not any(drain.is_own for drain in self._drains):
                    self._stage = _Stage.COMMITTING
            case _Stage.COMMITTING:
                watermarks = {p: w for p, w in self.checkpointer.watermarks().items() if p not in self._refused}
                is_late = now >= self._deadline - self._settings.shutdown_timeout * _COMMIT_SHARE / 2
                if self._drains and not is_late:
                    return
                if self.schedule.is_settled(watermarks) or is_late:
                    self._leave()
            case _Stage.LEAVING:
                if self.source.is_closed and len(self._finished_pipelines) == len(self.fleet.pipelines):
                    self._stage = _Stage.DONE
            case _:
                assert_never(self._stage)
        if now >= self._deadline and self._stage is not _Stage.DONE:
            log.error(
                "shutdown_timed_out", shutdown_stage=self._stage.value, timeout_seconds=self._settings.shutdown_timeout
            )
            if self._stage is not _Stage.LEAVING:
                self._leave()
            self._was_drained = False
            self._stage = _Stage.DONE

    def _leave(self) -> None:
        watermarks = self.checkpointer.watermarks()
        self._uncommitted = sum(
            1
            for lane in self.fleet.lanes.values()
            if not self.checkpointer.is_settled(lane.id)
            or not self.schedule.is_settled({p: w for p, w in watermarks.items() if p == lane.partition_id})
        )
        # A revocation that comes before the source has left is answered here alone.
        self.fleet.finish(self._cause)
        self.source.close()
        self._stage = _Stage.LEAVING

    def _report_exit(self) -> ExitReport:
        if self.error is not None:
            return ExitReport(ExitState.FAILED, self.error.exit_code, self.error, self._uncommitted)
        if self._uncommitted or not self._was_drained:
            return ExitReport(ExitState.INCOMPLETE, ExitCode.DEADLINE, None, self._uncommitted)
        is_complete = self._cause is StopCause.ALL_INPUTS_CLOSED
        return ExitReport(ExitState.COMPLETED if is_complete else ExitState.STOPPED, ExitCode.COMPLETED)
