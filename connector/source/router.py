"""Routes records into lanes, a list at a time: no Python call for each record.

Belongs to the consumer thread. Records go to the lane that is live when `consume` returns, since one call may hold a
revocation, an assignment and records of the new one; only records below the lane's next are dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import groupby
from typing import TYPE_CHECKING

from confluent_kafka import Message, TopicPartition

from connector.api.types import Offset
from connector.lane.lane import Chunk, Lane, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from connector.source.assignment import Assignment, Held
    from connector.source.client import KafkaClient
    from connector.telemetry.metrics import Metrics


class Router:
    """Puts records into the lanes of an assignment, and pauses a partition whose lane is full."""

    def __init__(self, assignment: Assignment, metrics: Metrics, ask_resume: Callable[[Lane], None]) -> None:
        self._assignment = assignment
        self._metrics = metrics
        self._ask_resume = ask_resume

    def route(self, client: KafkaClient, messages: Sequence[Message]) -> None:
        """Put consumed records, without errors among them, into their lanes."""
        for run in self._runs(messages):
            held = self._assignment.get(run[0].topic() or "", _number(run[0].partition()))
            if held is not None and held.next_offset is not None and not held.is_ended:
                self._put(client, held, run, held.next_offset)

    def _runs(self, messages: Sequence[Message]) -> Iterator[list[Message]]:
        """Split a list into runs of one partition. Runs are found by partition, never by offset arithmetic: offsets
        have gaps."""
        for _, same_number in groupby(messages, Message.partition):
            if len(self._assignment.topics) == 1:
                yield list(same_number)
            else:
                for _, run in groupby(same_number, Message.topic):
                    yield list(run)

    def _put(self, client: KafkaClient, held: Held, run: list[Message], expected: Offset) -> None:
        if _number(run[0].offset()) < expected:
            run = run[_position(run, expected) :]
        if run and held.end is not None and _number(run[-1].offset()) >= held.end:
            run = run[: _position(run, held.end)]
            held.is_ended = True
        if run and not held.is_ended:
            held.next_offset = Offset(_number(run[-1].offset()) + 1)
            held.is_ended = held.end is not None and held.next_offset >= held.end
        elif held.is_ended:
            held.next_offset = held.end
        else:
            return
        chunk = Chunk(run, held.next_offset or expected, size_bytes(run), held.is_ended)
        self._metrics.consumed_records.labels(held.key[0]).inc(len(run))
        self._metrics.consumed_bytes.labels(held.key[0]).inc(chunk.size_bytes)
        is_full = held.lane.put(chunk)
        if held.is_ended:  # it stays assigned: un-assigned, its later revocation would fail in the client
            client.pause([TopicPartition(*held.key)])
        elif is_full and not held.is_paused and held.lane.call_when_low(self._ask_resume):
            held.is_paused = held.lane.is_paused = True
            client.pause([TopicPartition(*held.key)])


def _position(run: Sequence[Message], offset: int) -> int:
    return bisect_left(run, offset, key=lambda message: _number(message.offset()))


def _number(value: int | None) -> int:
    """A consumed message has a partition and an offset; the client's types allow for one that was only made."""
    return -1 if value is None else value
