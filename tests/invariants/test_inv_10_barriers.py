"""INV-10: control events are barriers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import CloseReason, Input, InputClosed, Stop, StopCause, TransientError
from connector.api.source_event import LanesRevoked
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.messages import Finish
from connector.pipeline.worker import PipelineSettings
from tests.support.engine import PROTOCOLS, Destination, Engine, MemoryDriver, make_driver
from tests.support.pipeline import OnePipeline

A, B = ("t", 0), ("t", 1)
KEYS = [("t", number) for number in range(3)]
steps = st.lists(st.tuples(st.sampled_from(["revoke", "lose", "add"]), st.sampled_from(KEYS)), max_size=8)


@pytest.mark.invariant(10)
@settings(max_examples=20, deadline=None)
@given(steps=steps)
def test_a_lane_is_closed_after_its_last_batch_and_stop_is_the_end(steps: list[tuple[str, tuple[str, int]]]) -> None:
    driver, destination, held = MemoryDriver(), Destination(), set(KEYS)
    driver.assign(*KEYS)
    offsets = dict.fromkeys(KEYS, 0)
    # What is taken lies in a batch that waits, so that each revocation has something to write.
    rules = PipelineSettings(limits=BatchLimits(linger_seconds=60))
    with Engine(driver, destination, pipelines=2, settings=rules) as engine:

        def is_taken() -> bool:
            lanes = [
                lane for lane in list(engine.controller.fleet.lanes.values()) if (lane.topic, lane.partition) in held
            ]
            return len(lanes) == len(held) and all(lane.held_bytes and not lane.has_chunks for lane in lanes)

        for step, key in steps:
            for each in held:
                driver.append(each, range(offsets[each], offsets[each] + 5))
                offsets[each] += 5
            engine.until(is_taken)
            if step == "add" and key not in held:
                driver.add(key)
                held.add(key)
            elif step != "add" and key in held:
                getattr(driver, step)(key)
                held.remove(key)
        engine.until(
            lambda: {(lane.topic, lane.partition) for lane in list(engine.controller.fleet.lanes.values())} == held
        )
        engine.stop()
    _check(destination)


def _check(destination: Destination) -> None:
    for pipeline in {number for number, _ in destination.events}:
        events = [event for number, event in destination.events if number == pipeline]
        closed: set[int] = set()
        for event in events:
            if isinstance(event, (Input, InputClosed)):
                assert event.id not in closed, "something after the end of a lane"
            if isinstance(event, InputClosed):
                closed.add(event.id)
        assert [type(event) for event in events].count(Stop) == 1
        assert isinstance(events[-1], Stop)
        assert {event.id for event in events if isinstance(event, Input)} <= closed


@pytest.mark.invariant(10)
@pytest.mark.parametrize("name", ["memory", *PROTOCOLS])
def test_lanes_close_after_their_last_batch_and_the_stream_stops_last(name: str) -> None:
    driver, destination = make_driver(name), Destination()
    failures = iter(range(10))

    def behave(_: object) -> None:
        if next(failures, 10) % 3 == 1:
            raise TransientError("down")

    destination.behave = behave
    driver.append(A, range(500))
    driver.append(B, range(500))
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2) as engine:
        driver.revoke()
        driver.assign(A, B)
        engine.until(lambda: len(engine.events(LanesRevoked)) == 1)
        driver.lose()
        driver.assign(B)
        engine.until_committed(B, 500)
        engine.stop()
    _check(destination)


@pytest.mark.invariant(10)
def test_the_batch_that_lingers_comes_before_the_close_and_the_close_before_the_stop() -> None:
    with OnePipeline(PipelineSettings(limits=BatchLimits(linger_seconds=60))).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until(lambda: not lane.has_chunks)
        assert bench.stop(lane).wait(5)
        bench.pipeline.put(Finish(StopCause.ALL_INPUTS_CLOSED))
        bench.until(bench.is_stopped)
        assert [type(event) for _, event in bench.destination.events] == [Input, InputClosed, Stop]
        assert bench.destination.events[1][1] == InputClosed(lane.id, CloseReason.REVOKED)
        assert bench.destination.events[2][1] == Stop(StopCause.ALL_INPUTS_CLOSED)


@pytest.mark.invariant(10)
def test_a_sink_that_fails_at_a_notice_harms_nothing() -> None:
    bench = OnePipeline()
    bench.destination.events = _Refusing()
    with bench.running():
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until_written(lane, range(3))
        assert bench.stop(lane).wait(5)


class _Refusing(list):  # type: ignore[type-arg]  # stands in for the list of events
    def append(self, event: object) -> None:
        if isinstance(event, tuple) and isinstance(event[1], (InputClosed, Stop)):
            raise RuntimeError("a bug in the sink")  # noqa: TRY004 - whatever a sink raises
        super().append(event)
