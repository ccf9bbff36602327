"""`Pipeline`: one thread that takes its lanes' records, batches them, and writes them through its own sink.

The thread sleeps in its mailbox only. A retry is a timer, not a sleep, so commands are heard whatever the sink does,
save inside a plugin's own code. Whoever puts a command in never waits for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, assert_never

from connector.api.batch import Batch, BatchMetadata
from connector.api.errors import ConnectorError, FatalError, InvariantError, RefusedError, TransientError
from connector.api.event import CloseReason, Error, InputClosed, InputRecovered, Reload
from connector.api.sink import LaneInfo, Sink
from connector.lane.lane import Lane
from connector.pipeline.batcher import Batcher, BatchLimits
from connector.pipeline.decode import PendingError
from connector.pipeline.delivery import Delivery
from connector.pipeline.messages import (
    Acked,
    AddLanes,
    Claimed,
    Command,
    Delivered,
    DropLanes,
    Failed,
    Finish,
    Finished,
    Notice,
    Opened,
    Refused,
    Replace,
    Report,
    Retry,
    RetryStage,
    Settled,
    StallLane,
    StopLanes,
)
from connector.pipeline.recovery import Recovery
from connector.pipeline.screen import TOMBSTONE_STAGE, Screen
from connector.pipeline.transform import TransformRunner
from connector.pipeline.work import Flight, Part, Work, produced_at
from connector.sink.plugin import CrashError, call_plugin
from connector.sink.retry import Backoff
from connector.sink.runner import SinkRunner
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from connector.api.event import Event
    from connector.api.transform import Transform
    from connector.api.types import Epoch, LaneId
    from connector.pipeline.rejects import Rejects
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)

_PENDING_SECONDS = 0.1  # between two looks at whether a schema has come

SINK = "sink"  # operator id of a pipeline's sink; transforms go by their names


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """How a pipeline batches, decodes and retries."""

    limits: BatchLimits = field(default_factory=BatchLimits)
    backoff: Backoff = field(default_factory=Backoff)
    screen: Screen = field(default_factory=Screen)


@dataclass(frozen=True, slots=True)
class Plugins:
    """Makes a pipeline's own instances; called on its thread, so that slow imports and checks stall nobody else."""

    make_sink: Callable[[], Sink[Any]]
    make_transforms: Sequence[tuple[str, Callable[[], Transform[Any]]]] = ()


class Pipeline:
    """A pipeline thread. `put` is called by the controller, with a lane by the consumer thread, and with what became of
    a batch by an asynchronous sink; the attributes that the status reads are replaced as a whole; everything else
    belongs to the thread.

    Args:
        number: Its place, from 0; `pipeline-N` is its node id.
        incarnation: How often it was made before.
        plugins: Makes its sink and transforms.
        rejects: Ends poison records.
        settings: How it works.
        metrics: Where it counts.
        report: Takes what the controller has to know.
        notices: Events for the sink before its first batch: stored parameters, and why it replaces another.
    """

    def __init__(
        self,
        *,
        number: int,
        incarnation: int = 0,
        plugins: Plugins,
        rejects: Rejects,
        settings: PipelineSettings,
        metrics: Metrics,
        report: Callable[[Report], None],
        notices: Sequence[Event] = (),
    ) -> None:
        self.number = number
        self.incarnation = incarnation
        self.is_open = False
        self.open_retry: Retry | None = None
        self.retries: Mapping[LaneId, Retry] = {}
        self._plugins = plugins
        self._rejects = rejects
        self._settings = settings
        self._metrics = metrics
        self._report = report
        self._notices = list(notices)
        self._watch = metrics.pipeline_seconds.start(str(number))
        self._recovery = Recovery(settings.backoff, metrics, number)
        self._delivery: Delivery | None = None
        self._mailbox: SimpleQueue[Command | Lane] = SimpleQueue()
        self._works: dict[LaneId, Work] = {}
        self._timers: list[tuple[float, int, LaneId | None]] = []  # None: the sink's open
        self._order = count()
        self._waiting: list[Replace] = []  # until the sink has nothing in flight
        self._is_dead = False
        self._is_finished = False
        self._thread = Thread(target=self._run, name=f"pipeline-{number}", daemon=True)

    @property
    def breaker_opens_until(self) -> float | None:
        """Until when the circuit breaker is open, time.monotonic(); None: it is closed. For the status."""
        return self._recovery.opens_until

    @property
    def node_id(self) -> str:
        """What events call it."""
        return f"pipeline-{self.number}"

    def start(self) -> None:
        """Start the thread, which opens its sink first."""
        self._thread.start()

    def put(self, item: Command | Lane) -> None:
        """Hand in a command, or a lane that has something to take. Never blocks."""
        self._mailbox.put(item)

    # The pipeline thread.

    def _run(self) -> None:
        self._guard(self._open)
        while not self._is_finished:
            item = self._next()
            if isinstance(item, Lane):
                self._guard(self._take, item.id)
            elif item is not None:
                self._obey(item)
            self._guard(self._fire_timers)
        self._watch.stop()
        self._report(Finished(self.number, self.incarnation))

    def _guard(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step; an error that it lets out ends this pipeline's work, not its thread: barriers wait for it."""
        if self._is_dead:
            return
        try:
            step(*arguments)
        except FatalError as error:
            self._die(error, is_crash=isinstance(error, CrashError))
        except Exception as error:  # whatever it is, the controller must hear of it
            log.exception("pipeline_crashed", pipeline=self.number)
            bug = InvariantError(f"{self.node_id}: {type(error).__name__}: {error}. This is a bug in Sluiceway.")
            bug.__cause__ = error
            self._die(bug, is_crash=True)

    def _die(self, error: FatalError, *, is_crash: bool) -> None:
        self._is_dead = True
        self.is_open = False
        for work in list(self._works.values()):
            if work.stop is not None:  # it will never be drained now
                self._leave(work)
        node = error.node if isinstance(error, CrashError) else None
        self._report(Failed(self.number, error, node or self.node_id, is_crash))

    def _next(self) -> Command | Lane | None:
        timeout = None
        if self._timers and not self._is_dead:
            timeout = max(0.0, self._timers[0][0] - time.monotonic())
        with self._watch.during("blocked" if self._is_blocked() else "wait"):
            try:
                return self._mailbox.get(timeout=timeout)
            except Empty:
                return None

    def _is_blocked(self) -> bool:
        """Whether something holds what there is to do: a retry, the breaker, a sink that is not open or is full."""
        if self.retries:
            return True
        if not self.is_open:
            return bool(self._works)
        has_room = self._get_delivery().runner.has_room
        return not has_room and any(work.lane.has_chunks or work.has_parts for work in self._works.values())

    def _obey(self, command: Command) -> None:
        match command:
            case AddLanes(lanes, epoch):
                for lane in lanes:
                    self._guard(self._add, lane, epoch)
            case StopLanes():
                self._stop_lanes(command)
            case DropLanes(lanes, reason):
                for lane_id in lanes:
                    self._forget(lane_id, reason)
            case StallLane(lane_id):
                self._guard(self._stall, lane_id)
            case Notice(event):
                self._notify(event)
            case Replace():
                self._guard(self._replace, command)
            case Settled():
                self._guard(self._settle, command)
            case Finish(cause):
                self._finish()
                if self._delivery is not None and self._is_dead:
                    self._delivery.runner.close()
                elif self._delivery is not None:
                    for event in self._notices:
                        self._delivery.runner.tell(event)
                    self._delivery.runner.stop(cause)
            case _:
                assert_never(command)

    def _finish(self) -> None:
        self._is_finished = True
        self._rejects.close()
        if self._delivery is not None:
            for transform in self._delivery.transforms:
                transform.close()

    # The plugins' start, notices, and replacement.

    def _open(self) -> None:
        if self.is_open:  # a reload was quicker than the timer
            return
        delivery = self._delivery = self._delivery or self._make_delivery()
        try:
            self._rejects.open()
            for transform in delivery.transforms:
                transform.open()
            delivery.runner.open()
        except TransientError as error:
            failures = self.open_retry.failures if self.open_retry else 0
            self.open_retry = self._recovery.failed(failures, error, "opening the sink")
            self._set_timer(self.open_retry.at, None)
            return
        self.open_retry = None
        self.is_open = True
        notices, self._notices = self._notices, []
        for event in notices:
            delivery.runner.tell(event)
        log.info("sink_opened", pipeline=self.number)
        self._report(Opened(self.number))
        for work in list(self._works.values()):
            self._begin(work)

    def _make_delivery(self) -> Delivery:
        metrics = self._metrics
        sink = call_plugin(metrics, "The sink's constructor", None, self._plugins.make_sink)
        transforms = [
            TransformRunner(name, call_plugin(metrics, f"The constructor of {name}", name, make), metrics, self._watch)
            for name, make in self._plugins.make_transforms
        ]
        return Delivery(
            SinkRunner(sink, metrics, self._watch),
            transforms,
            self._rejects,
            metrics,
            self._watch,
            tombstones=self._settings.screen.tombstones,
            settled=self._mailbox.put,
            answered=self._answered,
        )

    def _notify(self, event: Event) -> None:
        if self.is_open:
            self._get_delivery().runner.tell(event)
        else:
            self._notices.append(event)

    def _replace(self, replace: Replace) -> None:
        """Put a new plugin in place, between batches; one that cannot be made or opened leaves the old one running."""
        delivery = self._get_delivery()
        if replace.operator_id == SINK and delivery.runner.in_flight:
            delivery.runner.is_leaving = True
            self._waiting.append(replace)
            for work in self._works.values():
                self._press(work)
            return
        try:
            plugin = replace.make()
            if isinstance(plugin, Sink):
                self._replace_sink(delivery, plugin, replace.notices)
            else:
                self._replace_transform(delivery, replace.operator_id, plugin)
        except Exception as error:  # noqa: BLE001 - whatever a new version raises, the old one goes on
            reason = f"{type(error).__name__}: {error}"
            pipeline = self.number
            log.error("plugin_reload_failed", operator=replace.operator_id, pipeline=pipeline, error=reason)  # noqa: TRY400
            delivery.runner.is_leaving = False
            self._notify(Error(f"{replace.operator_id} is not reloaded, the old version goes on: {reason}"))
            return
        replace.adopted()
        log.info("plugin_reloaded", operator=replace.operator_id, pipeline=self.number)
        if not self.is_open:
            self._open()

    def _replace_sink(self, delivery: Delivery, sink: Sink[Any], notices: Callable[[], Sequence[Event]]) -> None:
        runner = SinkRunner(sink, self._metrics, self._watch)
        if self.is_open:
            try:
                runner.open()
                if runner.holds_positions:
                    for work in self._works.values():
                        if not work.needs_claim:
                            runner.claim(_info(work.lane))
            except ConnectorError:
                runner.close()
                raise
            delivery.runner.tell(Reload(SINK))
        old, delivery.runner = delivery.runner, runner
        for event in notices():
            self._notify(event)
        old.close()

    def _replace_transform(self, delivery: Delivery, name: str, transform: Transform[Any]) -> None:
        runner = TransformRunner(name, transform, self._metrics, self._watch)
        if self.is_open:
            try:
                runner.open()
            except ConnectorError:
                runner.close()
                raise
            delivery.runner.tell(Reload(name))
        for index, old in enumerate(delivery.transforms):
            if old.name == name:
                delivery.transforms[index] = runner
                old.close()

    # Lanes that come.

    def _add(self, lane: Lane, epoch: Epoch) -> None:
        work = Work(lane, epoch, Batcher(self._settings.limits), needs_claim=lane.awaits_sink)
        self._works[lane.id] = work
        lane.attach(self._mailbox.put)
        if self.is_open:
            self._begin(work)

    def _begin(self, work: Work) -> None:
        if work.needs_claim:
            self._claim(work)
        else:
            self._take(work.lane.id)

    def _claim(self, work: Work) -> None:
        try:
            stored = self._get_delivery().runner.claim(_info(work.lane))
        except TransientError as error:
            self._retry_later(work, error)
            return
        work.needs_claim = False
        self._set_retry(work, None)
        self._report(Claimed(work.lane.id, stored))

    def _stall(self, lane_id: LaneId) -> None:
        work = self._works.get(lane_id)
        if work is not None and not work.is_stalled:
            work.is_stalled = True
            self._notify(InputClosed(lane_id, CloseReason.STALLED))

    # From lane to sink.

    def _take(self, lane_id: LaneId) -> None:
        """Take what a lane has until a batch is written, and come back later for the rest: lanes take turns."""
        work = self._works.get(lane_id)
        if work is None or work.is_blocked or not self.is_open or not self._get_delivery().runner.has_room:
            return
        batcher = work.batcher
        while (chunk := work.lane.take(batcher.room)) is not None:
            was_empty = batcher.next_offset is None
            batcher.add(chunk, time.monotonic())
            reason = batcher.reason(time.monotonic())
            if reason is None and work.lane.is_full:  # nothing more would come before the linger is over
                reason = "bytes"
            if reason is not None:
                self._flush(work, reason)
                if work.lane.has_chunks and not work.is_blocked:
                    self._mailbox.put(work.lane)
                return
            if was_empty:
                self._set_timer(batcher.opened + self._settings.limits.linger_seconds, lane_id)
        self._press(work)

    def _flush(self, work: Work, reason: str, *, is_forced: bool = False) -> None:
        """Make a batch of what is collected and send it on its way; `is_forced` as for `_advance`."""
        messages, size_bytes, next_offset, since = work.batcher.clear()
        flight = Flight(work.sequence, size_bytes, since, produced_at(messages[0]) if messages else None)
        work.lane.sink_bytes += size_bytes
        work.flights[flight.sequence] = flight
        work.sequence += 1
        work.is_ended = work.is_ended or reason == "end"
        self._report(Delivered(work.lane.id, flight.sequence, next_offset))
        metadata = BatchMetadata(
            lane=work.lane.id,
            epoch=work.epoch,
            sequence=flight.sequence,
            topic=work.lane.topic,
            partition=work.lane.partition,
            first_offset=messages[0].offset() if messages else next_offset,  # type: ignore[arg-type]  # consumed: it has one
            next_offset=next_offset,
            topic_id=work.lane.topic_id,
        )
        batch = Batch(metadata, messages, size_bytes)
        if messages:
            self._metrics.batches.labels(reason).inc()
            flight.raw = batch
        elif next_offset != work.lane.committed:  # it is where the lane starts, if it starts from a committed position
            self._get_delivery().launch_position(flight, batch)
        self._advance(work, is_forced=is_forced)

    def _advance(self, work: Work, *, is_forced: bool = False) -> None:
        """Move the lane's batches on, in order, as far as they go.

        Args:
            work: The lane's work.
            is_forced: Try also when the breaker is open: the one attempt before a lane is given up.
        """
        if work.lane.is_fenced:  # lost while it waited: somebody else writes it now
            return
        is_trial = False
        for flight in list(work.flights.values()):
            if not flight.is_ready and not flight.is_done:  # the sink has it; there may be thousands of these
                continue
            if flight.raw is not None and not self._screen(work, flight, flight.raw):
                break
            if flight.parts and not is_forced and not self._may_try(work):
                break
            is_trial = is_trial or flight.failures > 0 or self.breaker_opens_until is not None
            in_flight = self._get_delivery().runner.in_flight
            try:
                self._get_delivery().advance(flight)
            except TransientError as error:
                self._retry_later(work, error, flight)
                break
            except RefusedError as error:
                self._refused(work, error)
                return
            if flight.is_done:
                self._acknowledge(work, flight)
            elif self._get_delivery().runner.in_flight > in_flight:
                work.is_flushed = False
        else:
            self._set_retry(work, None)
        self._press(work, is_trial=is_trial)

    def _press(self, work: Work, *, is_trial: bool = False) -> None:
        """Ask an asynchronous sink to finish what it has of a lane, where others wait for that.

        Args:
            work: The lane's work.
            is_trial: What it has just got tells whether it works again.
        """
        if work.is_flushed or not work.is_at_sink:
            return
        runner = self._get_delivery().runner
        if work.stop is not None:
            reason = "drain"
        elif runner.is_leaving:
            reason = "reload"
        elif work.is_ended:
            reason = "end"
        elif is_trial:
            reason = "retry"
        elif work.awaits_release:
            reason = "memory"
        else:
            return
        work.is_flushed = True
        self._metrics.sink_flushes.labels(reason).inc()
        runner.flush(work.lane.id)

    def _acknowledge(self, work: Work, flight: Flight) -> None:
        del work.flights[flight.sequence]
        self._report(Acked(work.lane.id, flight.sequence))
        oldest = next((other.since for other in work.flights.values() if other.since is not None), work.batcher.since)
        work.lane.sink_bytes -= flight.size_bytes
        work.lane.release(flight.size_bytes, oldest)
        if flight.produced_at is not None:
            age = max(0.0, time.time() - flight.produced_at)
            self._metrics.end_to_end_latency_seconds.labels(work.lane.topic).observe(age)

    def _settle(self, settled: Settled) -> None:
        """Take what an asynchronous sink says; a lane that has left by now has nothing to be told."""
        delivery = self._get_delivery()
        had_room = delivery.runner.has_room
        work = self._works.get(settled.lane)
        flight = work.flights.get(settled.sequence) if work is not None else None
        if work is None or flight is None or settled.ticket not in flight.at_sink:
            delivery.runner.settled(settled.error)
        else:
            try:
                delivery.settle(flight, settled.ticket, settled.error)
            except TransientError as error:
                self._retry_later(work, error, flight)
            except RefusedError as error:
                self._refused(work, error)
            else:
                if flight.is_done:
                    self._acknowledge(work, flight)
                elif flight.is_ready and work.retry is None:  # else what has failed waits for its time
                    self._advance(work)
            self._leave_if_over(work)
        if self._waiting and not delivery.runner.in_flight:
            waiting, self._waiting = self._waiting, []
            for replace in waiting:
                self._replace(replace)
        if not had_room:
            self._wake_lanes()

    def _refused(self, work: Work, error: RefusedError) -> None:
        log.warning("write_refused", topic=work.lane.topic, partition=work.lane.partition, error=str(error))
        self._forget(work.lane.id, CloseReason.LOST)
        self._report(Refused(work.lane.id))

    def _screen(self, work: Work, flight: Flight, batch: Batch) -> bool:
        """Decode a batch and let go on what does not end here: undecodable records, unwanted tombstones.

        Returns false when that has to wait: a schema cannot be had now. The breaker is the sink's and has no say.
        """
        try:
            with self._watch.during("decode"):
                screened = self._settings.screen.look(batch)
        except PendingError as error:
            last = work.retry.error if work.retry is not None and flight.failures else str(error)
            self._try_at(work, Retry(flight.failures, last, time.monotonic() + _PENDING_SECONDS, "decode"))
            return False
        except TransientError as error:
            self._retry_later(work, error, flight, "decode")
            return False
        delivery = self._get_delivery()
        flight.raw = None
        flight.failures = 0
        self._set_retry(work, None)
        if screened.ignored:
            self._metrics.filtered_records.labels(batch.metadata.topic, TOMBSTONE_STAGE).inc(len(screened.ignored))
        for index, (stage, poison) in screened.poison.items():
            delivery.reject(flight, Part(batch), index, stage, poison)
        rest = screened.rest()
        delivery.launch(flight, rest)
        if work.is_stalled and rest.messages:
            work.is_stalled = False
            delivery.runner.tell(InputRecovered(work.lane.id))
        return True

    # Failures, the breaker, retries and timers.

    def _may_try(self, work: Work) -> bool:
        """Whether the breaker lets the lane's batch through."""
        obstacle = self._recovery.obstacle(work.retry, self._get_delivery().runner.probe)
        if obstacle is not None:
            self._try_at(work, obstacle)
        return obstacle is None

    def _answered(self, error: TransientError | None) -> None:
        """The destination has answered, or has failed to; an answer that closes the breaker wakes every lane."""
        if error is not None:
            self._recovery.note_failure(error)
            return
        if not self._recovery.note_success():
            return
        now = time.monotonic()
        for work in self._works.values():
            if work.retry is not None and work.retry.stage == "sink":
                self._try_at(work, Retry(work.retry.failures, work.retry.error, now))

    def _retry_later(
        self, work: Work, error: TransientError, flight: Flight | None = None, stage: RetryStage = "sink"
    ) -> None:
        """Try a lane again with backoff: for one of its batches, which counts its own failures, or for its claim."""
        before = flight.failures if flight else work.retry.failures if work.retry else 0
        doing = f"{'decoding' if stage == 'decode' else 'writing'} {work.lane.topic}[{work.lane.partition}]"
        retry = self._recovery.failed(before, error, doing, stage)
        if flight is not None:
            flight.failures = retry.failures
        self._try_at(work, retry)

    def _try_at(self, work: Work, retry: Retry) -> None:
        self._set_retry(work, retry)
        self._set_timer(retry.at, work.lane.id)

    def _set_retry(self, work: Work, retry: Retry | None) -> None:
        if work.retry is retry:
            return
        work.retry = retry
        self.retries = {lane_id: w.retry for lane_id, w in self._works.items() if w.retry is not None}

    def _set_timer(self, at: float, lane_id: LaneId | None) -> None:
        heappush(self._timers, (at, next(self._order), lane_id))

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            lane_id = heappop(self._timers)[2]
            if lane_id is None:
                self._open()
            elif (work := self._works.get(lane_id)) is not None:
                self._fire(work)

    def _fire(self, work: Work) -> None:
        """A linger, a retry or a drain's deadline is over; a timer whose reason is gone finds nothing due."""
        now = time.monotonic()
        if work.stop is not None:
            if now >= work.stop.deadline:
                self._leave(work)
        elif work.retry is not None:
            if now >= work.retry.at:
                self._try_again(work)
        elif not work.needs_claim and (reason := work.batcher.reason(now)) is not None:
            self._flush(work, reason)

    def _try_again(self, work: Work) -> None:
        if work.needs_claim:
            self._claim(work)
        else:
            self._advance(work)
        if work.retry is None and work.lane.has_chunks:
            self._mailbox.put(work.lane)

    def _wake_lanes(self) -> None:
        """An asynchronous sink has room again: batches that wait for it, and lanes that were not taken from, go on."""
        for work in list(self._works.values()):
            if not self._get_delivery().runner.has_room:
                return
            if work.retry is None and work.has_parts:
                self._advance(work)
                self._leave_if_over(work)
            if work.lane.has_chunks and not work.is_blocked:
                self._mailbox.put(work.lane)

    # Lanes that leave.

    def _stop_lanes(self, stop: StopLanes) -> None:
        """Write what was taken. When the sink fails, the one attempt stands for all lanes: a rebalance during an outage
        must not cost a drain timeout. A schema that cannot be had costs each lane a tenth of a second at most."""
        is_failing = False
        for lane_id in stop.lanes:
            work = self._works.get(lane_id)
            if work is None:
                stop.barrier.arrive()
                continue
            work.stop = stop
            if not is_failing:
                self._guard(self._drain, work)
                is_failing = work.retry is not None and work.retry.stage == "sink"
            self._guard(self._press, work)
            self._leave_if_over(work)
            if work.stop is not None:
                self._set_timer(stop.deadline, lane_id)

    def _drain(self, work: Work) -> None:
        if not self.is_open or work.needs_claim or work.stop is None:
            return
        if work.retry is not None and time.monotonic() < work.stop.deadline:
            self._advance(work, is_forced=True)
        if work.retry is None and work.batcher.next_offset is not None and time.monotonic() < work.stop.deadline:
            self._flush(work, "drain", is_forced=True)

    def _leave_if_over(self, work: Work) -> None:
        """Let a lane that was stopped go, unless an asynchronous sink has, or will have, something of it."""
        is_over = self._is_dead or work.lane.id not in self._works or not work.is_under_way
        if work.stop is not None and is_over:
            self._leave(work)

    def _leave(self, work: Work) -> None:
        """A lane that was stopped goes, drained or not, and its barrier hears of it."""
        stop, work.stop = work.stop, None
        self._metrics.drains.labels("drained" if work.is_drained else "not_drained").inc()
        if not work.is_drained:
            log.warning("lane_not_drained", topic=work.lane.topic, partition=work.lane.partition)
        self._forget(work.lane.id, CloseReason.REVOKED)
        if stop is not None:
            stop.barrier.arrive(is_drained=work.is_drained)

    def _forget(self, lane_id: LaneId, reason: CloseReason) -> None:
        work = self._works.pop(lane_id, None)
        if work is None:
            return
        self._set_retry(work, None)
        if self.is_open and not self._is_dead:
            self._get_delivery().runner.close_lane(lane_id, reason)

    def _get_delivery(self) -> Delivery:
        if self._delivery is None:
            raise InvariantError("a pipeline writes before its sink was made. This is a bug in Sluiceway.")
        return self._delivery


def _info(lane: Lane) -> LaneInfo:
    return LaneInfo(lane.id, lane.topic, lane.partition, lane.topic_id)
