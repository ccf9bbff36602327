"""What a pipeline has under way: a lane's work, its batches at the sink, and the pieces of a batch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

if TYPE_CHECKING:
    from connector.api.batch import Batch
    from connector.api.record import Message
    from connector.api.types import Epoch, Offset
    from connector.dlq.letter import Letter
    from connector.lane.lane import Lane
    from connector.pipeline.batcher import Batcher
    from connector.pipeline.messages import Retry, StopLanes


@dataclass(slots=True, eq=False)
class Part:
    """A batch, or a piece of one around a bad record, and the stage it stands before: a transform, then the sink.

    An empty one ends a flight for a sink that holds positions, and moves its position past what was left out before.
    """

    batch: Batch
    stage: int = 0


@dataclass(slots=True, eq=False)
class Flight:
    """One batch of a lane between its delivery and its acknowledgement."""

    sequence: int
    size_bytes: int
    since: float | None = None  # when its first record came into the lane, time.monotonic(); None: it has no records
    produced_at: float | None = None  # its first record, as `produced_at` says
    raw: Batch | None = None  # until its records are decoded
    parts: deque[Part] = field(default_factory=deque)
    at_sink: dict[int, Part] = field(default_factory=dict)  # submitted to an asynchronous sink, by ticket
    letters: list[Letter] = field(default_factory=list)  # dead letters that are not confirmed yet
    failures: int = 0  # transient ones, in a row
    reached: Offset | None = None  # where the last write has brought a sink that holds positions

    @property
    def attempts(self) -> int:
        """How often what is left of it was tried, with the try that is made now."""
        return self.failures + 1

    @property
    def is_ready(self) -> bool:
        """Whether there is something to do for it here: to decode, transform or write, or letters to confirm."""
        return self.raw is not None or bool(self.parts or self.letters)

    @property
    def is_done(self) -> bool:
        """Whether every record of it has ended in a counted outcome."""
        return not (self.raw is not None or self.parts or self.at_sink or self.letters)


@dataclass(slots=True, eq=False)
class Work:
    """One lane and what is under way for it."""

    lane: Lane
    epoch: Epoch
    batcher: Batcher
    sequence: int = 0  # of the next batch
    flights: dict[int, Flight] = field(default_factory=dict)  # by sequence, in order
    needs_claim: bool = False
    is_stalled: bool = False  # the sink was told that it gets no records
    retry: Retry | None = None
    stop: StopLanes | None = None  # it leaves, and waits for an asynchronous sink
    is_ended: bool = False  # the last record of a bounded run was taken
    is_flushed: bool = False  # an asynchronous sink was asked to finish what it has of it

    @property
    def is_blocked(self) -> bool:
        """Whether nothing may be taken from the lane: a batch has failed, its position is not known, or it leaves."""
        return self.retry is not None or self.needs_claim or self.stop is not None

    @property
    def has_parts(self) -> bool:
        """Whether something is to be transformed or written."""
        return any(flight.parts for flight in self.flights.values())

    @property
    def is_at_sink(self) -> bool:
        """Whether an asynchronous sink has something of it."""
        return any(flight.at_sink for flight in self.flights.values())

    @property
    def is_under_way(self) -> bool:
        """Whether an asynchronous sink has something of it, or will as soon as it has room."""
        return self.is_at_sink or (self.retry is None and self.has_parts)

    @property
    def awaits_release(self) -> bool:
        """Whether nothing more comes before the sink is done with something: all there is, it has."""
        return not self.lane.has_chunks and self.batcher.next_offset is None and self.lane.awaits_release

    @property
    def is_drained(self) -> bool:
        """Whether everything that was taken is done."""
        return not self.flights and self.batcher.next_offset is None


def produced_at(message: Message) -> float | None:
    """Return the timestamp that a record has in Kafka, in Unix seconds; None: it has none."""
    kind, milliseconds = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE or milliseconds < 0 else milliseconds / 1000
