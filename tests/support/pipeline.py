"""One pipeline thread without a source or a controller: a test gives it lanes and reads its reports."""

from __future__ import annotations

import contextlib
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from connector import LaneId, Offset, PartitionId
from connector.api.barrier import DrainBarrier
from connector.api.event import CloseReason, Stop, StopCause
from connector.api.types import Epoch
from connector.lane.lane import Chunk, Lane, size_bytes
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.messages import AddLanes, DropLanes, Finish, Finished, StopLanes
from connector.pipeline.rejects import OnPoison
from connector.pipeline.worker import Pipeline, PipelineSettings, Plugins
from connector.sink.retry import Backoff
from connector.telemetry.metrics import Metrics
from connector.testing.client import records
from tests.support.engine import WAIT_SECONDS, Destination, eventually, make_rejects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from confluent_kafka import Message

    from connector.pipeline.messages import Report

R = TypeVar("R")

QUICK = PipelineSettings(limits=BatchLimits(linger_seconds=0.0), backoff=Backoff(initial=0.01, maximum=0.02))


class OnePipeline:
    """`with OnePipeline(settings).running() as bench`; `destination` says how its sink behaves."""

    def __init__(self, settings: PipelineSettings = QUICK, on_poison: OnPoison = OnPoison.FAIL) -> None:
        self.destination = Destination()
        self.metrics = Metrics()
        self.reports: list[Report] = []
        self.pipeline = Pipeline(
            number=0,
            plugins=Plugins(lambda: self.destination.make(0)),
            rejects=make_rejects(self.metrics, on_poison),
            settings=settings,
            metrics=self.metrics,
            report=self.reports.append,
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

    def lane(self, partition: int = 0, *, start: int = 0, high_bytes: int = 2**24, awaits_sink: bool = False) -> Lane:
        """Give the pipeline a new lane that begins here."""
        number = next(self._ids)
        lane = Lane(LaneId(number), PartitionId(number), "t", partition, high_bytes=high_bytes, awaits_sink=awaits_sink)
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

    def sizes(self) -> list[int]:
        """Return how many records each durable batch has."""
        return [len(batch) for batch in list(self.destination.batches)]

    def is_stopped(self) -> bool:
        """Whether the sink has been told of the end."""
        return any(isinstance(event, Stop) for _, event in list(self.destination.events))
