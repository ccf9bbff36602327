"""`Pipeline`: one thread that takes its lanes' records, batches them, and writes them through its own sink.

The thread sleeps in its mailbox only. A retry is a timer, not a sleep, so commands are heard whatever the sink does,
save inside a plugin's own `write`. Whoever puts a command in never waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from connector.api.batch import Batch, BatchMetadata
from connector.api.errors import (
    FatalError,
    InvariantError,
    PoisonError,
    PoisonFatalError,
    RefusedError,
    TransientError,
)
from connector.api.event import CloseReason
from connector.api.sink import LaneInfo
from connector.lane.lane import Lane
from connector.pipeline.batcher import Batcher, BatchLimits
from connector.pipeline.decode import Format, decode
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
    Refused,
    Report,
    Retry,
    StopLanes,
)
from connector.sink.retry import Backoff
from connector.sink.runner import SinkRunner
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from connector.api.record import Message
    from connector.api.sink import Sink
    from connector.api.types import Epoch, LaneId
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """How a pipeline batches, decodes, retries, and what it does with poison."""

    limits: BatchLimits = field(default_factory=BatchLimits)
    backoff: Backoff = field(default_factory=Backoff)
    key_format: Format = Format.BYTES
    value_format: Format = Format.BYTES
    skips_poison: bool = False


@dataclass(slots=True, eq=False)
class _Work:
    """One lane and what is under way for it."""

    lane: Lane
    epoch: Epoch
    batcher: Batcher
    sequence: int = 0  # of the next batch
    parts: deque[Batch] = field(default_factory=deque)  # of the batch at the sink: one, or pieces around a bad record
    size_bytes: int = 0  # of the batch at the sink
    needs_claim: bool = False
    retry: Retry | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether nothing may be taken from the lane: a batch of it has failed, or its position is not known."""
        return self.retry is not None or self.needs_claim


class Pipeline:
    """A pipeline thread. `put` is called by the controller and, with a lane, by the consumer thread; the attributes
    that the status reads are replaced as a whole; everything else belongs to the thread."""

    def __init__(
        self,
        number: int,
        make_sink: Callable[[], Sink[Any]],
        settings: PipelineSettings,
        metrics: Metrics,
        report: Callable[[Report], None],
    ) -> None:
        self.number = number
        self.is_open = False
        self.open_retry: Retry | None = None
        self.retries: Mapping[LaneId, Retry] = {}
        self._make_sink = make_sink
        self._runner: SinkRunner | None = None
        self._settings = settings
        self._metrics = metrics
        self._report = report
        self._mailbox: SimpleQueue[Command | Lane] = SimpleQueue()
        self._works: dict[LaneId, _Work] = {}
        self._timers: list[tuple[float, int, LaneId | None]] = []  # None: the sink's open
        self._order = count()
        self._is_dead = False
        self._is_finished = False
        self._thread = Thread(target=self._run, name=f"pipeline-{number}", daemon=True)

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
                if not self._is_dead:
                    self._guard(self._take, item.id)
            elif item is not None:
                self._obey(item)
            self._guard(self._fire_timers)
        self._report(Finished(self.number))

    def _guard(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step; an error that it lets out ends this pipeline's work, not its thread: barriers wait for it."""
        if self._is_dead:
            return
        try:
            step(*arguments)
        except FatalError as error:
            self._die(error)
        except Exception as error:  # whatever it is, the controller must hear of it
            log.exception("pipeline_bug", pipeline=self.number)
            bug = InvariantError(
                f"pipeline {self.number}: {type(error).__name__}: {error}. This is a bug in Sluiceway."
            )
            bug.__cause__ = error
            self._die(bug)

    def _die(self, error: FatalError) -> None:
        self._is_dead = True
        self._report(Failed(self.number, error))

    def _next(self) -> Command | Lane | None:
        timeout = None
        if self._timers and not self._is_dead:
            timeout = max(0.0, self._timers[0][0] - time.monotonic())
        try:
            return self._mailbox.get(timeout=timeout)
        except Empty:
            return None

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
            case Finish(cause):
                self._is_finished = True
                if self._runner is not None:
                    self._runner.stop(cause)

    # The sink's start.

    def _open(self) -> None:
        if self._runner is None:
            self._runner = SinkRunner(self._make_sink(), self._metrics)
        try:
            self._runner.open()
        except TransientError as error:
            self.open_retry = self._failed(self.open_retry, error, "opening the sink")
            self._set_timer(self.open_retry.at, None)
            return
        self.open_retry = None
        self.is_open = True
        log.info("sink_open", pipeline=self.number)
        for work in list(self._works.values()):
            self._begin(work)

    def _add(self, lane: Lane, epoch: Epoch) -> None:
        work = _Work(lane, epoch, Batcher(self._settings.limits), needs_claim=lane.awaits_sink)
        self._works[lane.id] = work
        lane.attach(self._mailbox.put)
        if self.is_open:
            self._begin(work)

    def _begin(self, work: _Work) -> None:
        if work.needs_claim:
            self._claim(work)
        else:
            self._take(work.lane.id)

    def _claim(self, work: _Work) -> None:
        lane = work.lane
        try:
            stored = self._get_runner().claim(LaneInfo(lane.id, lane.topic, lane.partition, lane.topic_id))
        except TransientError as error:
            self._retry_later(work, error)
            return
        work.needs_claim = False
        self._set_retry(work, None)
        self._report(Claimed(lane.id, stored))

    # From lane to sink.

    def _take(self, lane_id: LaneId) -> None:
        """Take what a lane has until a batch is written, and come back later for the rest: lanes take turns."""
        work = self._works.get(lane_id)
        if work is None or work.is_blocked or not self.is_open:
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

    def _flush(self, work: _Work, reason: str) -> None:
        """Make a batch of what is collected and hand it to the sink."""
        messages, size_bytes, next_offset = work.batcher.clear()
        sequence = work.sequence
        work.sequence += 1
        self._report(Delivered(work.lane.id, sequence, next_offset))
        work.size_bytes = size_bytes
        if messages:
            self._metrics.batches.labels(reason).inc()
            metadata = BatchMetadata(
                lane=work.lane.id,
                epoch=work.epoch,
                sequence=sequence,
                topic=work.lane.topic,
                partition=work.lane.partition,
                first_offset=messages[0].offset(),  # type: ignore[arg-type]  # a consumed message has an offset
                next_offset=next_offset,
                topic_id=work.lane.topic_id,
            )
            batch = self._decoded(Batch(metadata, messages, size_bytes))
            if batch.messages:
                work.parts.append(batch)
        self._attempt(work)

    def _attempt(self, work: _Work) -> None:
        """Write what is left of the lane's batch. A bad record is found by halving, and the rest is written."""
        while work.parts:
            if work.lane.is_fenced:  # lost while it waited: somebody else writes it now
                return
            part = work.parts[0]
            try:
                self._get_runner().write(part)
            except TransientError as error:
                self._retry_later(work, error)
                return
            except RefusedError as error:
                log.warning("write_refused", topic=work.lane.topic, partition=work.lane.partition, error=str(error))
                self._forget(work.lane.id, CloseReason.LOST)
                self._report(Refused(work.lane.id))
                return
            except PoisonError as error:
                work.parts.popleft()
                if len(part) == 1:
                    self._reject(part.messages[0], "write", str(error), error)
                else:
                    middle = len(part) // 2
                    work.parts.extendleft((part.slice(middle, len(part)), part.slice(0, middle)))
                continue
            work.parts.popleft()
            self._metrics.written_records.labels(part.metadata.topic).inc(len(part))
            self._metrics.written_bytes.labels(part.metadata.topic).inc(part.size_bytes)
        self._set_retry(work, None)
        self._report(Acked(work.lane.id, work.sequence - 1))
        work.lane.release(work.size_bytes)
        work.size_bytes = 0

    def _decoded(self, batch: Batch) -> Batch:
        """Replace the columns that have a format; records that cannot be decoded are poison."""
        formats = {"key": self._settings.key_format, "value": self._settings.value_format}
        decoded: dict[str, Any] = {}
        problems: dict[int, str] = {}
        for name, format_ in formats.items():
            if format_ is not Format.BYTES:
                decoded[name], wrong = decode(batch.column(name), format_)
                problems |= {index: f"{name} is {problem}" for index, problem in wrong.items()}
        batch.decoded = decoded
        if not problems:
            return batch
        for index, problem in problems.items():
            self._reject(batch.messages[index], "decode", problem, None)
        kept = [index for index in range(len(batch)) if index not in problems]
        messages = [batch.messages[index] for index in kept]
        columns = {name: [column[index] for index in kept] for name, column in decoded.items()}
        return Batch(batch.metadata, messages, batch.size_bytes * len(kept) // len(batch), columns)

    def _reject(self, message: Message, stage: str, text: str, cause: PoisonError | None) -> None:
        """End a poison record by `CONNECTOR_ON_POISON`; it is counted either way (INV-8)."""
        where = f"{message.topic()}[{message.partition()}]@{message.offset()}"
        if not self._settings.skips_poison:
            raise PoisonFatalError(
                f"Poison record {where} ({stage}: {text}). Correct the destination or the format settings, or set "
                "CONNECTOR_ON_POISON=skip to count such records and go on."
            ) from cause
        error_class = type(cause).__name__ if cause else "UndecodableRecord"
        self._metrics.skipped_records.labels(message.topic(), stage, error_class).inc()
        log.warning("record_skipped", record=where, stage=stage, error_class=error_class, error=text)

    # Retries and timers.

    def _failed(self, before: Retry | None, error: TransientError, doing: str) -> Retry:
        failures = (before.failures if before else 0) + 1
        backoff = self._settings.backoff
        if backoff.is_exhausted(failures):
            raise FatalError(
                f"{doing} failed {failures} times (last error: {error}): CONNECTOR_RETRY_LIMIT is used up. Raise it or "
                "leave it unset to go on trying."
            ) from error
        delay = backoff.delay(failures)
        self._metrics.sink_retries.inc()
        log.warning("sink_retry", doing=doing, failures=failures, error=str(error), next_try_seconds=round(delay, 3))
        return Retry(failures, str(error), time.monotonic() + delay)

    def _retry_later(self, work: _Work, error: TransientError) -> None:
        retry = self._failed(work.retry, error, f"writing {work.lane.topic}[{work.lane.partition}]")
        self._set_retry(work, retry)
        self._set_timer(retry.at, work.lane.id)

    def _set_retry(self, work: _Work, retry: Retry | None) -> None:
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

    def _fire(self, work: _Work) -> None:
        """A linger or a retry is over; a timer whose reason is gone finds nothing due."""
        now = time.monotonic()
        if work.retry is not None:
            if now >= work.retry.at:
                self._try_again(work)
        elif not work.needs_claim and (reason := work.batcher.reason(now)) is not None:
            self._flush(work, reason)

    def _try_again(self, work: _Work) -> None:
        if work.needs_claim:
            self._claim(work)
        else:
            self._attempt(work)
        if work.retry is None and work.lane.has_chunks:
            self._mailbox.put(work.lane)

    # Lanes that leave.

    def _stop_lanes(self, stop: StopLanes) -> None:
        for lane_id in stop.lanes:
            work = self._works.get(lane_id)
            try:
                if work is not None:
                    self._guard(self._drain, work, stop.deadline)
            finally:
                self._forget(lane_id, CloseReason.REVOKED)
                stop.barrier.arrive()

    def _drain(self, work: _Work, deadline: float) -> None:
        """Write what was taken, with one attempt: a rebalance during an outage must not cost a drain timeout."""
        if not self.is_open or work.needs_claim:
            return
        if work.retry is not None and time.monotonic() < deadline:
            self._attempt(work)
        if work.retry is None and work.batcher.next_offset is not None and time.monotonic() < deadline:
            self._flush(work, "drain")
        is_drained = not work.parts and work.batcher.next_offset is None
        self._metrics.drains.labels("drained" if is_drained else "not_drained").inc()
        if not is_drained:
            log.warning("lane_not_drained", topic=work.lane.topic, partition=work.lane.partition)

    def _forget(self, lane_id: LaneId, reason: CloseReason) -> None:
        work = self._works.pop(lane_id, None)
        if work is None:
            return
        self._set_retry(work, None)
        if self.is_open and not self._is_dead:
            self._get_runner().close_lane(lane_id, reason)

    def _get_runner(self) -> SinkRunner:
        if self._runner is None:
            raise InvariantError("a pipeline writes before its sink was made. This is a bug in Sluiceway.")
        return self._runner
