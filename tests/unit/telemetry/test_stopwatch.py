from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from connector.telemetry.stopwatch import SecondsCounter, Stopwatch
from connector.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

ACTIVITIES = ("wait", "sink", "other")
SWITCHES = st.lists(st.tuples(st.sampled_from(ACTIVITIES), st.integers(0, 1000)), max_size=30)


def counter(clock: VirtualClock) -> tuple[SecondsCounter, CollectorRegistry]:
    registry = CollectorRegistry()
    labels = ("pipeline", "activity")
    return SecondsCounter("pipeline_seconds", "Seconds.", labels, ACTIVITIES, registry, clock=clock), registry


def shown(registry: CollectorRegistry, pipeline: str, activity: str) -> float | None:
    return registry.get_sample_value("pipeline_seconds_total", {"pipeline": pipeline, "activity": activity})


@given(SWITCHES)
def test_the_activities_of_a_thread_add_up_to_its_life_at_every_moment(switches: list[tuple[str, int]]) -> None:
    clock = VirtualClock()
    watch = counter(clock)[0].start("0")
    expected = dict.fromkeys(ACTIVITIES, 0)
    activity = "other"
    for following, seconds in switches:
        expected[activity] += seconds
        clock.advance(seconds)
        assert watch.seconds() == expected
        assert watch.switch(following) == activity
        activity = following
    assert sum(watch.seconds().values()) == sum(expected.values())


def test_an_activity_under_way_counts_before_it_ends() -> None:
    clock = VirtualClock()
    seconds, registry = counter(clock)
    seconds.start("0").switch("sink")
    clock.advance(30)
    assert shown(registry, "0", "sink") == 30
    assert shown(registry, "0", "wait") == 0


def test_a_block_gives_back_to_the_activity_of_before_whatever_comes_out_of_it() -> None:
    clock = VirtualClock()
    watch = counter(clock)[0].start("0")

    def write() -> None:
        with watch.during("sink"):
            clock.advance(2)
            with watch.during("wait"):
                clock.advance(3)
            clock.advance(4)
            raise LookupError

    with pytest.raises(LookupError):
        write()
    clock.advance(5)
    assert watch.seconds() == {"sink": 6, "wait": 3, "other": 5}


def test_a_thread_that_has_ended_costs_no_more_time_and_its_successor_goes_on_from_there() -> None:
    clock = VirtualClock()
    seconds, registry = counter(clock)
    first = seconds.start("0")
    clock.advance(1)
    second = seconds.start("0")  # the first still hangs somewhere: both count
    clock.advance(1)
    assert shown(registry, "0", "other") == 3
    first.stop()
    second.stop()
    clock.advance(10)
    assert shown(registry, "0", "other") == 3
    seconds.start("0").switch("sink")
    clock.advance(2)
    assert shown(registry, "0", "other") == 3
    assert shown(registry, "0", "sink") == 2
    assert shown(registry, "1", "other") is None


def test_what_a_reader_gets_adds_up_and_never_goes_back_wherever_it_reads_in_a_switch() -> None:
    clock = VirtualClock()
    watch = counter(clock)[0].start("0")
    read: list[Mapping[str, float]] = []

    def at_each_line(_frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            read.append(watch.seconds())
            assert sum(read[-1].values()) == clock.now
        return at_each_line

    tracer = sys.gettrace()
    for activity in (*ACTIVITIES, *reversed(ACTIVITIES)):
        clock.advance(7)
        sys.settrace(lambda frame, *_: at_each_line if frame.f_code is Stopwatch.switch.__code__ else None)
        try:
            watch.switch(activity)
        finally:
            sys.settrace(tracer)
    assert len(read) > 2 * len(ACTIVITIES)
    for activity in ACTIVITIES:
        series = [each[activity] for each in read]
        assert series == sorted(series)
