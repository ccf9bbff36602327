"""Since when a lane holds the oldest record that is not durable."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from connector import LaneId, Offset, PartitionId
from connector.lane.lane import Chunk, Lane, size_bytes
from connector.testing.client import records
from connector.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    clock = VirtualClock(100.0)
    with mock.patch("connector.lane.lane.time.monotonic", clock):
        yield clock


def lane() -> Lane:
    return Lane(LaneId(1), PartitionId(1), "t", 0)


def since(held: Lane) -> float | None:
    return held.held_since


def chunk(*offsets: int) -> Chunk:
    messages = records("t", 0, offsets)
    return Chunk(messages, Offset(offsets[-1] + 1), size_bytes(messages))


def test_a_position_without_records_is_no_record_that_is_held(clock: VirtualClock) -> None:
    held = lane()
    held.put(Chunk([], Offset(3)))
    assert since(held) is None
    clock.advance(1)
    held.put(chunk(3, 4))
    assert since(held) == 101
    held.take(10)
    assert since(held) == 101


def test_time_in_the_buffer_counts_and_what_was_taken_is_older_than_what_was_not(clock: VirtualClock) -> None:
    held = lane()
    first = chunk(1, 2)
    held.put(first)
    clock.advance(5)
    held.put(chunk(3))
    held.take(1)  # a part of the first chunk: the rest came when it did
    assert since(held) == 100
    taken = held.take(10)
    assert taken is not None
    assert taken.taken == 100
    held.release(taken.size_bytes, out_since=100)  # the part that was taken before is still out
    assert since(held) == 100
    held.release(first.size_bytes - taken.size_bytes)
    assert since(held) == 105
    last = held.take(10)
    assert last is not None
    held.release(last.size_bytes)
    assert since(held) is None


def test_a_closed_lane_holds_what_is_out_and_not_what_nobody_takes_any_more(clock: VirtualClock) -> None:
    held = lane()
    held.put(chunk(1))
    clock.advance(1)
    held.put(chunk(2))
    taken = held.take(10)
    assert taken is not None
    held.close()
    assert since(held) == 100
    held.release(taken.size_bytes)
    assert since(held) is None
