"""The buffer between the consumer thread and one pipeline."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message

from connector import LaneId, Offset, PartitionId
from connector.lane.lane import RECORD_OVERHEAD_BYTES, Chunk, Lane, size_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


def _lane(high_bytes: int = 10_000) -> Lane:
    return Lane(LaneId(1), PartitionId(2), "orders", 3, high_bytes=high_bytes)


def _messages(*offsets: int) -> Sequence[Message]:
    return [Message(topic="orders", partition=3, offset=offset, value=b"x" * 100) for offset in offsets]


def _chunk(*offsets: int) -> Chunk:
    messages = _messages(*offsets)
    return Chunk(messages, Offset(offsets[-1] + 1), size_bytes(messages))


def test_bytes_are_the_values_and_a_constant_for_each_record() -> None:
    assert size_bytes(_messages(1, 2)) == 200 + 2 * RECORD_OVERHEAD_BYTES
    assert size_bytes([Message(topic="orders", partition=3, offset=1)]) == RECORD_OVERHEAD_BYTES
    assert size_bytes([]) == 0


def test_chunks_come_out_in_order() -> None:
    lane = _lane()
    first, second = _chunk(1, 2), _chunk(5)
    assert lane.take(10) is None
    lane.put(first)
    lane.put(second)
    assert lane.has_chunks
    assert lane.take(10) is first
    assert lane.take(10) is second
    assert not lane.has_chunks


def test_a_chunk_is_split_at_the_next_record_whatever_the_gap_and_no_byte_is_lost() -> None:
    lane = _lane()
    chunk = _chunk(1, 2, 50, 51)
    chunk.is_last = True
    lane.put(chunk)
    head, tail = lane.take(2), lane.take(2)
    assert head is not None
    assert tail is not None
    assert [message.offset() for message in head.messages] == [1, 2]
    assert (head.next_offset, head.is_last) == (50, False)
    assert [message.offset() for message in tail.messages] == [50, 51]
    assert (tail.next_offset, tail.is_last) == (52, True)
    assert head.size_bytes + tail.size_bytes == chunk.size_bytes == lane.held_bytes


def test_a_chunk_without_records_only_moves_the_position() -> None:
    lane = _lane()
    assert not lane.put(Chunk([], Offset(28)))
    taken = lane.take(1)
    assert taken is not None
    assert (taken.next_offset, len(taken.messages), lane.held_bytes) == (28, 0, 0)


def test_a_lane_is_full_at_the_high_mark_and_stays_so_until_taken_records_are_released() -> None:
    lane = _lane(high_bytes=1000)
    assert not lane.put(_chunk(1))
    assert lane.put(_chunk(2))
    assert lane.is_full
    lane.take(10)
    lane.take(10)
    assert lane.is_full
    lane.release(500)
    assert not lane.is_full


def test_the_resume_is_asked_for_once_at_the_low_mark() -> None:
    lane = _lane(high_bytes=1000)
    resumed: list[Lane] = []
    for offset in (1, 2, 3):
        lane.put(_chunk(offset))
    assert lane.call_when_low(resumed.append)
    lane.release(500)
    assert resumed == []
    lane.release(500)
    assert resumed == [lane]
    lane.release(500)
    assert resumed == [lane]


def test_nothing_is_called_when_the_lane_is_low_already() -> None:
    resumed: list[Lane] = []
    assert not _lane().call_when_low(resumed.append)
    assert resumed == []


def test_a_closed_lane_takes_nothing_gives_nothing_and_asks_for_nothing() -> None:
    lane = _lane(high_bytes=1000)
    resumed: list[Lane] = []
    lane.put(_chunk(1))
    lane.put(_chunk(2))
    lane.call_when_low(resumed.append)
    lane.close()
    assert lane.is_closed
    assert not lane.is_fenced
    assert not lane.put(_chunk(3))
    assert lane.take(10) is None
    lane.release(1000)
    assert resumed == []


def test_a_fenced_lane_is_closed_too() -> None:
    lane = _lane()
    lane.fence()
    assert lane.is_fenced
    assert lane.is_closed


def test_the_owner_is_told_when_an_empty_lane_gets_something_and_at_once_of_what_waits() -> None:
    lane = _lane()
    told: list[Lane] = []
    lane.put(_chunk(1))
    lane.attach(told.append)
    assert told == [lane]
    lane.put(_chunk(2))
    assert told == [lane]
    lane.take(10)
    lane.take(10)
    lane.put(_chunk(3))
    assert told == [lane, lane]


@pytest.mark.parametrize("wakes", ["put", "close"])
def test_a_waiting_take_is_woken(wakes: str) -> None:
    lane = _lane()
    taken: list[Chunk | None] = []
    taker = threading.Thread(target=lambda: taken.append(lane.take(10, timeout=30.0)))
    taker.start()
    chunk = _chunk(1)
    if wakes == "put":
        lane.put(chunk)
    else:
        lane.close()
    taker.join(timeout=10.0)
    assert not taker.is_alive()
    assert taken == ([chunk] if wakes == "put" else [None])


def test_callbacks_may_use_the_lane() -> None:
    lane = _lane(high_bytes=1000)
    seen: list[int] = []
    lane.attach(lambda ready: seen.append(ready.held_bytes))
    lane.put(_chunk(1, 2))
    lane.call_when_low(lambda low: seen.append(low.held_bytes))
    lane.release(1000)
    assert seen == [1000, 0]
    assert repr(lane) == "Lane(1, orders[3])"
