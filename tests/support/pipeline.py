"""One pipeline thread without a source or a controller: a test gives it lanes and reads its reports."""

from __future__ import annotations

import contextlib
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from connector import LaneId, Offset, PartitionId
from connector.api.barrier import DrainBarrier
from connector.api.event import CloseReason, Stop, StopCause
from connector.api.types import Epoch
from connector.dlq.flood import FloodLimit
from connector.dlq.writer import DeadLetterWriter
from connector.lane.lane import Chunk, Lane, size_bytes
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.messages import Acked, AddLanes, DropLanes, Finish, Finished, StopLanes
from connector.pipeline.rejects import OnPoison, Rejects
from connector.pipeline.worker import Pipeline, PipelineSettings, Plugins
from connector.sink.retry import Backoff
from connector.telemetry.metrics import Metrics
from connector.testing.client import records
from tests.support.engine import WAIT_SECONDS, Destination, eventually, make_rejects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from confluent_kafka import Message

    from connector.api.event import Event
    from connector.api.transform import Transform
    from connector.dlq.letter import Letter
    from connector.pipeline.messages import Report

R = TypeVar("R")

QUICK = PipelineSettings(limits=BatchLimits(linger_seconds=0.0), backoff=Backoff(initial=0.01, maximum=0.02))


class FakeLetters(DeadLetterWriter):
    """Confirms dead letters, unless `errors` has something to raise instead; `before` is called first each time."""

    def __init__(self) -> None:
        self.confirmed: list[Letter] = []
        self.errors: list[Exception] = []
        self.before: Callable[[], None] = lambda: None

    def check(self) -> None:
        """The topic is there."""

    def write(self, letters: list[Letter]) -> None:
        if letters:
            self.before()
            if self.errors:
                raise self.errors.pop(0)
            self.confirmed += letters
            letters.clear()

    def close(self) -> None:
        """Nothing to close."""

    def rejects(self, metrics: Metrics) -> Rejects:
        """Return what ends poison records here, without a limit."""
        flood = FloodLimit(max_ratio=1, window=1000, max_consecutive=0)
        return Rejects(OnPoison.DLQ, "group", metrics, flood, self)


class OnePipeline:
    """`with OnePipeline(settings).running() as bench`; `destination` says how its sink behaves."""

    def __init__(
        self,
        settings: PipelineSettings = QUICK,
        on_poison: OnPoison = OnPoison.FAIL,
        *,
        destination: Destination | None = None,
        transforms: Sequence[tuple[str, Callable[[], Transform[Any]]]] = (),
        rejects: Callable[[Metrics], Rejects] | None = None,
        notices: Sequence[Event] = (),
    ) -> None:
        self.destination = destination or Destination()
        self.metrics = Metrics()
        self.reports: list[Report] = []
        self.pipeline = Pipeline(
            number=0,
            plugins=Plugins(lambda: self.destination.make(0), transforms),
            rejects=rejects(self.metrics) if rejects else make_rejects(self.metrics, on_poison),
            settings=settings,
            metrics=self.metrics,
            report=self.reports.append,
            notices=notices,
        )
        self._ids = count(1)
        self._added = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Start the thread, and end it in time."""
        self.pipeline.start()
        try:
            yield self
        finally:
            self.destination.gate.set()
            self.pipeline.put(Finish(StopCause.MANUAL))
            self.until(lambda: bool(self.find(Finished)))

    def lane(
        self,
        partition: int = 0,
        *,
        start: int = 0,
        high_bytes: int = 2**24,
        awaits_sink: bool = False,
        committed: int | None = None,
    ) -> Lane:
        """Give the pipeline a new lane that begins here."""
        number = next(self._ids)
        lane = Lane(LaneId(number), PartitionId(number), "t", partition, high_bytes=high_bytes, awaits_sink=awaits_sink)
        lane.committed = None if committed is None else Offset(committed)
        if not awaits_sink:
            lane.put(Chunk([], Offset(start)))
        self.pipeline.put(AddLanes((lane,), Epoch(1)))
        return lane

    def put(self, lane: Lane, offsets: Sequence[int], value: bytes = b"value") -> bool:
        """Put records into a lane."""
        return self.put_messages(lane, records(lane.topic, lane.partition, offsets, value))

    @staticmethod
    def put_messages(lane: Lane, messages: Sequence[Message], *, is_last: bool = False) -> bool:
        """Put records into a lane, of which it is told that they are its last."""
        end = Offset((messages[-1].offset() or 0) + 1)
        return lane.put(Chunk(messages, end, size_bytes(messages), is_last))

    def stop(self, *lanes: Lane, timeout: float = WAIT_SECONDS) -> DrainBarrier:
        """Tell the pipeline to drain lanes; the barrier has no party besides its owners."""
        for lane in lanes:
            lane.close()
        barrier = DrainBarrier(len(lanes))
        self.pipeline.put(StopLanes(tuple(lane.id for lane in lanes), barrier, time.monotonic() + timeout))
        return barrier

    def drop(self, lane: Lane, reason: CloseReason = CloseReason.LOST) -> None:
        """Tell the pipeline to forget a lane."""
        lane.fence()
        self.pipeline.put(DropLanes((lane.id,), reason))

    def find(self, kind: type[R]) -> list[R]:
        """Return the reports of one kind, in order."""
        return [report for report in list(self.reports) if isinstance(report, kind)]

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait until this holds."""
        try:
            eventually(condition, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.reports[-5:]}, written {self.destination.written[-10:]}") from None

    def until_written(self, lane: Lane, offsets: Sequence[int]) -> None:
        """Wait until exactly these are written of a lane's partition."""
        key = (lane.topic, lane.partition)
        self.until(lambda: self.destination.offsets(key) == list(offsets), f"{key} holds {list(offsets)[-10:]}")

    def told(self, *kinds: type[Event]) -> list[Event]:
        """Return the events that the sink was given, of some kinds or all, in order."""
        return [event for _, event in list(self.destination.events) if isinstance(event, kinds or object)]

    def retrying(self, lane: Lane, failures: int = 1) -> None:
        """Wait until a lane is in backoff after so many failures."""
        self.until(lambda: (retry := self.pipeline.retries.get(lane.id)) is not None and retry.failures >= failures)

    def acked(self, lane: Lane) -> list[int]:
        """Return the numbers of a lane's batches that are done, in the order of their acknowledgements."""
        return [report.sequence for report in self.find(Acked) if report.lane == lane.id]

    def sizes(self) -> list[int]:
        """Return how many records each durable batch has."""
        return [len(batch) for batch in list(self.destination.batches)]

    def is_stopped(self) -> bool:
        """Whether the sink has been told of the end."""
        return any(isinstance(event, Stop) for _, event in list(self.destination.events))
