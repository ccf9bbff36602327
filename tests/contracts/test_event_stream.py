"""The event stream of a sink is the specified one, and every event is really sent, in the situation that it is for.

The table below is the specification of the stream; two fields are ours: `InputClosed.reason`, after the specified one
and with a default, and nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, get_args

import pytest

from connector.api import event as stream
from connector.api.errors import FencedError
from connector.api.event import (
    CloseReason,
    Error,
    Event,
    Input,
    InputClosed,
    InputRecovered,
    NodeFailed,
    NodeRestarted,
    ParamDeleted,
    ParamUpdate,
    Reload,
    Stop,
    StopCause,
)
from connector.api.settings import Settings
from connector.api.sink import Sink, SinkContext
from connector.api.types import Offset
from connector.pipeline.messages import Replace
from connector.pipeline.worker import SINK
from tests.support.engine import PROTOCOLS, Destination, Engine, FunctionTransform, MemoryDriver, make_driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector import Batch
    from tests.support.engine import Driver

A, B = ("t", 0), ("t", 1)

SPECIFIED: dict[str, list[str]] = {
    "Input": ["id", "metadata", "data"],
    "InputClosed": ["id"],
    "InputRecovered": ["id"],
    "NodeRestarted": ["id"],
    "Stop": ["cause"],  # unnamed in the specification, as is that of Error
    "Reload": ["operator_id"],
    "ParamUpdate": ["key", "value"],
    "ParamDeleted": ["key"],
    "NodeFailed": ["affected_input_ids", "error", "source_node_id"],
    "Error": ["message"],
}
OURS = {"InputClosed": ["reason"]}


def test_the_stream_has_exactly_the_specified_events() -> None:
    assert sorted(kind.__name__ for kind in get_args(Event)) == sorted(SPECIFIED)


@pytest.mark.parametrize("name", SPECIFIED)
def test_an_event_has_the_specified_fields_in_order_and_is_frozen(name: str) -> None:
    kind = getattr(stream, name)
    fields = dataclasses.fields(kind)
    assert [field.name for field in fields] == SPECIFIED[name] + OURS.get(name, [])
    assert all(field.default is not dataclasses.MISSING for field in fields[len(SPECIFIED[name]) :])
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)


def test_the_stream_stops_for_the_two_specified_causes_and_a_lane_closes_for_four_reasons() -> None:
    assert [cause.name for cause in StopCause] == ["MANUAL", "ALL_INPUTS_CLOSED"]
    assert {reason.name for reason in CloseReason} == {"REVOKED", "LOST", "END", "STALLED"}
    assert InputClosed(1).reason is CloseReason.REVOKED  # type: ignore[arg-type]


def test_a_sink_that_knows_none_of_them_ignores_them_all() -> None:
    class Plain(Sink[Settings]):
        def write(self, batch: Batch) -> None:
            raise AssertionError("nothing is written")

    sink = Plain(Settings(), SinkContext(group_id="g"))
    lane: Any = 1
    for event in (
        InputClosed(lane),
        InputRecovered(lane),
        NodeFailed((lane,), "oops", "source"),
        NodeRestarted("source"),
        ParamUpdate("rate", 5),
        ParamDeleted("rate"),
        Reload("sink"),
        Reload(None),
        Error("hello"),
        Stop(StopCause.MANUAL),
    ):
        sink.on_event(event)


# Each is sent.


def _told(destination: Destination, *kinds: type[Event]) -> list[Event]:
    return [event for _, event in list(destination.events) if isinstance(event, kinds)]


def _begin(driver: Driver, engine: Engine) -> Any:
    """Assign a lane and let it write three records; returns its id."""
    driver.assign(A)
    driver.append(A, range(3))
    engine.until_written(A, range(3))
    engine.until_committed(A, 3)
    (lane,) = engine.controller.fleet.lanes
    return lane


@pytest.mark.parametrize("source", ["memory", *PROTOCOLS])
def test_input_carries_the_lane_its_position_and_the_records(source: str) -> None:
    driver, destination = make_driver(source), Destination()
    with Engine(driver, destination) as engine:
        lane = _begin(driver, engine)
        first = _told(destination, Input)[0]
        assert isinstance(first, Input)
        assert (first.id, first.metadata.lane, first.metadata.epoch) == (lane, lane, 1)
        assert (first.metadata.first_offset, first.metadata.sequence) == (0, 1)
        assert list(first.data.column("value"))[:1] == [b"value"]


@pytest.mark.invariant(10)
@pytest.mark.parametrize("source", ["memory", *PROTOCOLS])
@pytest.mark.parametrize("reason", [CloseReason.REVOKED, CloseReason.LOST])
def test_input_closed_says_that_a_lane_was_revoked_or_lost_after_its_last_input(
    source: str, reason: CloseReason
) -> None:
    driver, destination = make_driver(source), Destination()
    with Engine(driver, destination) as engine:
        lane = _begin(driver, engine)
        (driver.revoke if reason is CloseReason.REVOKED else driver.lose)(A)
        engine.until(lambda: destination.events[-1] == (0, InputClosed(lane, reason)))


@pytest.mark.parametrize("source", ["memory", "cooperative-sticky", "consumer"])
def test_a_bounded_run_closes_each_lane_at_its_end_and_stops_as_all_are_closed(source: str) -> None:
    destination = Destination()
    driver = make_driver(source, ends={A: range(3), B: range(2)})
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        engine.join()
    closed = _told(destination, InputClosed)
    assert [getattr(event, "reason") for event in closed] == [CloseReason.END] * 2  # noqa: B009 - an InputClosed
    assert destination.events[-1] == (0, Stop(StopCause.ALL_INPUTS_CLOSED))


def test_a_stalled_input_is_closed_and_recovers_before_its_next_input() -> None:
    driver, destination = MemoryDriver(), Destination()
    with Engine(driver, destination, lane_idle_timeout=0.05) as engine:
        lane = _begin(driver, engine)
        engine.controller.fleet.lanes[lane].end_offset = Offset(4)
        engine.until(lambda: destination.events[-1] == (0, InputClosed(lane, CloseReason.STALLED)))
        driver.append(A, [3])
        engine.until_written(A, range(4))
        assert [type(event) for _, event in destination.events[-2:]] == [InputRecovered, Input]
        assert destination.events[-2] == (0, InputRecovered(lane))


def test_node_failed_tells_every_sink_of_the_source_before_stop() -> None:
    driver, destination = MemoryDriver(), Destination()
    with Engine(driver, destination, pipelines=2) as engine:
        lane = _begin(driver, engine)
        driver.memory.fail(FencedError("fenced by another"))
        engine.join()
    failed = NodeFailed((lane,), "fenced by another", "source")
    for pipeline in (0, 1):
        events = [event for number, event in destination.events if number == pipeline]
        assert events.count(failed) == 1
        assert events.index(failed) < events.index(Stop(StopCause.MANUAL))
        assert events[-1] == Stop(StopCause.MANUAL)


@pytest.mark.parametrize("node", ["pipeline-0", "strict"])
def test_node_failed_and_node_restarted_tell_the_replacement_what_failed_and_that_it_runs(node: str) -> None:
    left = [1]

    def crash(batch: Batch) -> Batch:
        if batch.column("offset")[-1] >= 3 and left[0]:
            left[0] -= 1
            raise ValueError("a bug")
        return batch

    driver, destination = MemoryDriver(), Destination()
    transforms: list[tuple[str, Callable[[], FunctionTransform]]] = []
    if node == "strict":
        transforms.append(("strict", lambda: FunctionTransform(crash)))
    else:
        destination.behave = lambda batch: (crash(batch), None)[1]
    with Engine(driver, destination, transforms=transforms) as engine:
        lane = _begin(driver, engine)
        seen = len(destination.events) + (0 if transforms else 1)  # the crashed Input
        driver.append(A, [3])
        engine.until_written(A, range(4))
        events = [event for _, event in destination.events[seen:]]
        assert [type(event) for event in events] == [NodeFailed, NodeRestarted, Input]
        failed = events[0]
        assert isinstance(failed, NodeFailed)
        assert (failed.affected_input_ids, failed.source_node_id) == ((lane,), node)
        assert events[1] == NodeRestarted(node)


def test_parameters_are_told_to_every_sink() -> None:
    driver, destination = MemoryDriver(), Destination()
    with Engine(driver, destination, pipelines=2) as engine:
        for event in (ParamUpdate("rate", [1, None, {"a": "b"}]), ParamDeleted("rate")):
            engine.controller.request(lambda event=event: engine.controller.fleet.tell(event))  # type: ignore[misc]
        engine.until(lambda: len(destination.events) == 4)
        told = _told(destination, ParamUpdate, ParamDeleted)
        assert told.count(ParamUpdate("rate", [1, None, {"a": "b"}])) == told.count(ParamDeleted("rate")) == 2


def test_reload_is_the_last_event_of_what_is_replaced_and_error_tells_of_one_that_failed() -> None:
    def broken() -> Sink[Settings]:
        raise ImportError("no module")

    driver, destination, new = MemoryDriver(), Destination(), Destination()
    with Engine(driver, destination) as engine:
        _begin(driver, engine)
        engine.pipelines[0].put(Replace(SINK, broken))
        engine.until(lambda: isinstance(destination.events[-1][1], Error))
        engine.pipelines[0].put(Replace(SINK, lambda: new.make(0)))
        engine.until(lambda: destination.events[-1] == (0, Reload(SINK)))
        driver.append(A, [3])
        engine.until(lambda: new.offsets(A) == [3])
    assert destination.events[-1] == (0, Reload(SINK))
    assert new.events[-1] == (0, Stop(StopCause.MANUAL))


@pytest.mark.invariant(10)
@pytest.mark.parametrize("source", ["memory", *PROTOCOLS])
def test_stop_is_the_last_event_of_every_sink(source: str) -> None:
    driver, destination = make_driver(source), Destination()
    with Engine(driver, destination, pipelines=2) as engine:
        _begin(driver, engine)
        engine.stop()
    for pipeline in (0, 1):
        events = [event for number, event in destination.events if number == pipeline]
        assert [event for event in events if isinstance(event, Stop)] == [Stop(StopCause.MANUAL)]
        assert isinstance(events[-1], Stop)
