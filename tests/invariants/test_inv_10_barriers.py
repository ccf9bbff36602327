"""INV-10: control events are barriers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import Input, InputClosed, LaneId, Stop
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.worker import PipelineSettings
from tests.support.engine import Destination, Engine, MemoryDriver

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
            lanes = [lane for lane in list(engine.controller.lanes.values()) if (lane.topic, lane.partition) in held]
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
        engine.until(lambda: {(lane.topic, lane.partition) for lane in list(engine.controller.lanes.values())} == held)
        engine.stop()
    for pipeline in range(2):
        events = [event for number, event in destination.events if number == pipeline]
        assert [isinstance(event, Stop) for event in events] == [False] * (len(events) - 1) + [True]
        closed: set[LaneId] = set()
        for event in events[:-1]:
            assert isinstance(event, Input | InputClosed)
            assert event.id not in closed
            if isinstance(event, InputClosed):
                closed.add(event.id)
        assert {event.id for event in events if isinstance(event, Input)} <= closed
