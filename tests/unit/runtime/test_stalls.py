"""A lane has stalled when the log has records and none come; idle without lag, or paused, it is healthy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from connector import LaneId, Offset, PartitionId
from connector.api.event import CloseReason, Input, InputClosed, InputRecovered
from connector.api.intents import EVERYTHING, Intents
from connector.lane.lane import Chunk, Lane
from connector.runtime.stalls import StallWatch
from tests.support.engine import Destination, Engine, MemoryDriver

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT = 10.0


def _lane(*, end: int | None, position: int = 5, number: int = 1) -> Lane:
    lane = Lane(LaneId(number), PartitionId(number), "t", 0)
    lane.put(Chunk([], Offset(position)))
    lane.end_offset = None if end is None else Offset(end)
    return lane


def _find(watch: StallWatch, lanes: Sequence[Lane], seconds: float) -> list[Lane]:
    """Look, so many seconds after now."""
    return watch.find(lanes, time.monotonic() + seconds)


def test_a_lane_with_lag_and_no_records_has_stalled_after_the_timeout_and_is_told_once() -> None:
    watch, lane = StallWatch(TIMEOUT), _lane(end=6)
    assert _find(watch, [lane], 9) == []
    assert _find(watch, [lane], 11) == [lane]
    assert _find(watch, [lane], 12) == []
    assert _find(watch, [lane], 100) == []


@pytest.mark.parametrize("end", [5, 4, None])
def test_an_idle_lane_without_lag_has_not_stalled(end: int | None) -> None:
    assert _find(StallWatch(TIMEOUT), [_lane(end=end)], 1000) == []


def test_a_closed_lane_has_not_stalled() -> None:
    lane = _lane(end=6)
    lane.close()
    assert _find(StallWatch(TIMEOUT), [lane], 1000) == []


@pytest.mark.parametrize("by", ["operator", "buffer"])
def test_a_paused_lane_has_not_stalled_and_waits_anew_from_the_end_of_its_pause(by: str) -> None:
    watch, lane = StallWatch(TIMEOUT), _lane(end=6)
    lane.is_paused, lane.is_held_back = by == "buffer", by == "operator"
    for seconds in (0, 11, 1000):
        assert _find(watch, [lane], seconds) == []
    lane.is_paused = lane.is_held_back = False
    assert _find(watch, [lane], 1009) == []
    assert _find(watch, [lane], 1011) == [lane]


def test_a_lane_that_recovers_can_stall_again() -> None:
    watch, lane = StallWatch(0.0), _lane(end=6)
    assert _find(watch, [lane], 1) == [lane]
    lane.put(Chunk([], Offset(6)))
    assert _find(watch, [lane], 1) == []
    lane.end_offset = Offset(7)
    assert _find(watch, [lane], 1) == [lane]


def test_the_other_lanes_are_told_of_for_themselves() -> None:
    watch, first, second = StallWatch(TIMEOUT), _lane(end=6), _lane(end=6, number=2)
    assert _find(watch, [first], 11) == [first]
    assert _find(watch, [first, second], 11) == [second]


def test_the_sink_of_a_stalled_lane_is_told_and_told_again_when_it_recovers() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.assign(("t", 0), ("t", 1))
    with Engine(driver, destination, lane_idle_timeout=0.05) as engine:
        engine.until(lambda: len(engine.controller.fleet.lanes) == 2)
        stalled, idle = engine.controller.fleet.lanes.values()
        idle.end_offset = Offset(0)
        stalled.end_offset = Offset(3)
        closed = InputClosed(stalled.id, CloseReason.STALLED)
        engine.until(lambda: (0, closed) in destination.events)
        driver.append(("t", 0), range(3))
        engine.until_written(("t", 0), range(3))
        kinds = [type(event) for _, event in destination.events]
        assert kinds[:3] == [InputClosed, InputRecovered, Input]
        assert engine.controller.fleet.lanes.keys() == {stalled.id, idle.id}, "it keeps its lanes"


def test_nobody_stalls_while_an_operator_has_paused_the_run() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.assign(("t", 0))
    with Engine(driver, destination, lane_idle_timeout=0.05) as engine:
        engine.until(lambda: len(engine.controller.fleet.lanes) == 1)
        intents = Intents().want(EVERYTHING, is_held_back=True)
        engine.controller.request(lambda: engine.controller.hold_back(intents))
        (lane,) = engine.controller.fleet.lanes.values()
        engine.until(lambda: lane.is_held_back)
        lane.end_offset = Offset(3)
        publish = engine.controller._next_publish
        engine.until(lambda: engine.controller._next_publish > publish + 0.5, "it has looked twice")
        assert destination.events == []
