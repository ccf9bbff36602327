"""A pipeline that crashes is replaced; its lanes replay from the watermark, and no other lane notices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from connector import ExitCode, FatalError, Offset, StoredPosition, TransientError
from connector.api.event import Input, InputClosed, NodeFailed, NodeRestarted, Stop
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.worker import PipelineSettings
from connector.runtime.controller import ExitState
from connector.runtime.supervisor import Supervisor
from connector.sink.retry import Backoff
from connector.telemetry.status import RunState
from tests.support.engine import (
    PROTOCOLS,
    Destination,
    Engine,
    FunctionTransform,
    KafkaDriver,
    MemoryDriver,
    make_driver,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector import Batch
    from connector.api.event import Event
    from tests.support.engine import Driver

A, B = ("t", 0), ("t", 1)
SMALL = PipelineSettings(limits=BatchLimits(rows=2, linger_seconds=0.005), backoff=Backoff(initial=0.02, maximum=0.05))


def _crashes(times: int, partition: int = 0, error: Exception | None = None, at: int = 0) -> Callable[[Batch], None]:
    """Return what crashes so often on batches of a partition with an offset from `at` on."""
    left = [times]

    def behave(batch: Batch) -> None:
        if left[0] and batch.metadata.partition == partition and batch.column("offset")[-1] >= at:
            left[0] -= 1
            raise error or ValueError("a bug")

    return behave


def _of(destination: Destination, pipeline: int) -> list[Event]:
    return [event for number, event in list(destination.events) if number == pipeline]


def _sequences(destination: Destination, pipeline: int) -> list[int]:
    return [event.metadata.sequence for event in _of(destination, pipeline) if isinstance(event, Input)]


def _restarts(driver: Driver) -> Any:
    return driver.metrics.pipeline_restarts._value.get()


def _ready(engine: Engine, *keys: tuple[str, int]) -> None:
    engine.until(lambda: all(engine.driver.committed(key) is not None for key in keys))


@pytest.mark.invariant(1)
@pytest.mark.parametrize("source", ["memory", *PROTOCOLS])
def test_a_sink_that_crashes_is_restarted_and_its_lane_replays_from_the_watermark(source: str) -> None:
    driver, destination = make_driver(source), Destination()
    destination.behave = _crashes(2, at=6)
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2, settings=SMALL) as engine:
        for start in range(0, 10, 2):
            driver.append(A, range(start, start + 2))
            driver.append(B, range(start, start + 2))
            if start == 4:
                engine.until_written(A, range(6))
        engine.until_written(A, range(10))
        engine.until_written(B, range(10))
        engine.until_committed(A, 10)
        engine.until_committed(B, 10)
        assert _restarts(driver) == 2
        assert engine.controller.error is None
        other = _of(destination, 1)
        assert [type(event) for event in other] == [Input] * len(other), "pipeline 1 hears nothing of it"
        assert _sequences(destination, 1) == [*range(1, len(other) + 1)], "its lane is the same, without a gap"


def test_the_replacement_hears_of_the_failure_first_and_of_the_restart_before_its_lanes() -> None:
    driver, destination = MemoryDriver(), Destination()
    destination.behave = _crashes(1)
    driver.assign(A)
    with Engine(driver, destination) as engine:
        _ready(engine, A)
        (old,) = engine.controller.fleet.lanes
        driver.append(A, range(3))
        engine.until_written(A, range(3))
        events = _of(destination, 0)
        assert [type(event) for event in events] == [Input, NodeFailed, NodeRestarted, Input]
        failed, restarted = events[1], events[2]
        assert isinstance(failed, NodeFailed)
        assert (failed.affected_input_ids, failed.source_node_id) == ((old,), "pipeline-0")
        assert "ValueError: a bug" in failed.error
        assert restarted == NodeRestarted("pipeline-0")
        assert isinstance(events[3], Input)
        assert events[3].id > old, "the old lane is fenced and comes back as a new one"


def test_a_transform_that_crashes_is_named_and_its_pipeline_starts_anew() -> None:
    left = [1]

    def apply(batch: Batch) -> Batch:
        if left[0]:
            left[0] -= 1
            raise KeyError("x")
        return batch

    driver, destination = MemoryDriver(), Destination()
    driver.assign(A)
    driver.append(A, range(3))
    with Engine(driver, destination, transforms=[("strict", lambda: FunctionTransform(apply))]) as engine:
        engine.until_written(A, range(3))
        assert [event.source_node_id for event in _of(destination, 0) if isinstance(event, NodeFailed)] == ["strict"]
        assert [event for event in _of(destination, 0) if isinstance(event, NodeRestarted)] == [NodeRestarted("strict")]


def test_a_crash_while_opening_is_cured_by_a_restart_and_no_news_of_a_failure_is_lost() -> None:
    driver, destination = MemoryDriver(), Destination()
    destination.behave = _crashes(1)
    driver.assign(A)
    with Engine(driver, destination) as engine:
        _ready(engine, A)
        destination.open_errors = [ValueError("second"), KeyError("third")]
        driver.append(A, range(3))
        engine.until_written(A, range(3))
        failures = [event.error for event in _of(destination, 0) if isinstance(event, NodeFailed)]
        assert [word for word, error in zip(("a bug", "second", "third"), failures, strict=True) if word in error] == [
            "a bug",
            "second",
            "third",
        ]
        assert _restarts(driver) == 3
        assert [event for event in _of(destination, 0) if isinstance(event, NodeRestarted)] == [
            NodeRestarted("pipeline-0")
        ]


def test_a_first_open_that_crashes_is_cured_too() -> None:
    driver, destination = MemoryDriver(), Destination()
    destination.open_errors = [ValueError("a bug")]
    driver.assign(A)
    driver.append(A, range(3))
    with Engine(driver, destination) as engine:
        engine.until_written(A, range(3))
        engine.until_committed(A, 3)


def test_too_many_crashes_end_the_run_with_7_and_the_reason() -> None:
    driver, destination = MemoryDriver(), Destination()
    destination.behave = _crashes(1000)
    driver.assign(A, B)
    driver.append(A, range(3))
    with Engine(driver, destination, pipelines=2) as engine:
        report = engine.join()
        assert (report.state, report.code) == (ExitState.FAILED, ExitCode.SINK)
        assert "ValueError: a bug" in str(report.error)
        assert _restarts(driver) == 3
        assert driver.committed(A) in (None, 0)
        told = [event for event in _of(destination, 1) if isinstance(event, NodeFailed | Stop)]
        assert [type(event) for event in told] == [NodeFailed, Stop], "the others hear why they stop"


@pytest.mark.parametrize("error", [FatalError("no table"), None])
def test_a_declared_fatal_error_is_not_cured_by_a_restart(error: FatalError | None) -> None:
    driver, destination = MemoryDriver(), Destination()
    if error is None:
        destination.open_errors = [FatalError("no table")]
    destination.behave = _crashes(1, error=error)
    driver.assign(A)
    driver.append(A, range(3))
    with Engine(driver, destination) as engine:
        report = engine.join()
        assert (report.code, str(report.error)) == (ExitCode.SINK, "no table")
        assert _restarts(driver) == 0


@pytest.mark.invariant(5)
@pytest.mark.parametrize("source", ["memory", *PROTOCOLS])
def test_a_revocation_while_a_pipeline_is_down_is_answered_at_once(source: str) -> None:
    driver, destination = make_driver(source, drain_timeout=60), Destination()
    destination.behave = _crashes(1)
    driver.assign(A)
    with Engine(driver, destination, drain_timeout=60) as engine:
        _ready(engine, A)
        engine.controller._supervisor = Supervisor(Backoff(initial=60, maximum=60))
        driver.append(A, range(3))
        engine.until(lambda: _restarts(driver) == 1)
        driver.revoke(A)
        engine.until(lambda: not engine.controller.fleet.lanes, "the lane has left")
        assert driver.committed(A) == 0
        driver.assign(A)
        engine.until(lambda: len(engine.controller.fleet.lanes) == 1, "it comes back to the pipeline that is down")
        assert engine.stop().state is ExitState.STOPPED


def test_lanes_that_come_while_a_pipeline_is_down_flow_when_it_is_back() -> None:
    driver, destination = MemoryDriver(), Destination()
    destination.behave = _crashes(1)
    driver.assign(A)
    driver.append(B, range(3))
    with Engine(driver, destination) as engine:
        _ready(engine, A)
        engine.controller._supervisor = Supervisor(Backoff(initial=0.3, maximum=0.3))
        driver.append(A, range(3))
        engine.until(lambda: _restarts(driver) == 1)
        driver.add(B)
        engine.until_written(A, range(3))
        engine.until_written(B, range(3))


@pytest.mark.parametrize("kind", ["memory", "kafka"])
def test_a_sink_that_holds_positions_restarts_from_its_own_and_claims_its_lane_again(kind: str) -> None:
    driver: Driver = MemoryDriver(asks_sink=True) if kind == "memory" else KafkaDriver(asks_sink=True)
    destination = Destination()
    stored: dict[tuple[str, int], StoredPosition | None] = {}
    destination.stored = stored
    crash = _crashes(1, at=2)

    def behave(batch: Batch) -> None:
        crash(batch)
        stored[A] = StoredPosition(batch.metadata.next_offset, batch.metadata.topic_id)

    destination.behave = behave
    driver.assign(A)
    with Engine(driver, destination, settings=SMALL) as engine:
        driver.append(A, range(2))
        engine.until_written(A, range(2))
        driver.append(A, range(2, 6))
        engine.until_written(A, range(6))
        assert len(destination.claims) == 2
        assert destination.claims[1].id > destination.claims[0].id
        assert stored[A] is not None
        assert stored[A].next_offset == Offset(6)  # type: ignore[union-attr]


@pytest.mark.invariant(5)
def test_a_crash_in_the_drain_of_a_revocation_is_answered_once_and_cured() -> None:
    driver, destination = MemoryDriver(), Destination()
    lingering = PipelineSettings(limits=BatchLimits(linger_seconds=60), backoff=SMALL.backoff)
    destination.behave = _crashes(1)
    driver.assign(A, B)
    with Engine(driver, destination, settings=lingering) as engine:
        _ready(engine, A, B)
        driver.append(A, range(3))
        engine.until(lambda: _is_taken(engine))
        driver.revoke(A)
        engine.until(lambda: (0, NodeRestarted("pipeline-0")) in destination.events)
        driver.add(A)
        assert driver.committed(A) == 0, "the batch was not written"
        engine.until(lambda: _is_taken(engine))
        assert engine.stop().code is ExitCode.COMPLETED
    assert destination.offsets(A) == [0, 1, 2]


def _is_taken(engine: Engine) -> bool:
    """Whether a pipeline holds all records of a lane that flows."""
    lanes = list(engine.controller.fleet.lanes.values())
    return any(lane.held_bytes and not lane.has_chunks and not lane.is_closed for lane in lanes)


def test_a_crash_during_the_shutdown_ends_as_failed_and_is_not_cured() -> None:
    driver, destination = MemoryDriver(), Destination()
    lingering = PipelineSettings(limits=BatchLimits(linger_seconds=60), backoff=SMALL.backoff)
    destination.behave = _crashes(1)
    driver.assign(A)
    with Engine(driver, destination, settings=lingering) as engine:
        _ready(engine, A)
        driver.append(A, range(3))
        engine.until(lambda: _is_taken(engine))
        report = engine.stop()
        assert (report.state, report.code) == (ExitState.FAILED, ExitCode.SINK)
        assert _restarts(driver) == 0
        assert driver.committed(A) == 0


def test_a_replacement_that_opens_during_the_shutdown_hides_nothing_that_is_undone() -> None:
    driver, destination = MemoryDriver(), Destination()
    destination.behave = _crashes(1)
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2) as engine:
        _ready(engine, A, B)
        destination.hang(partition=1)
        driver.append(B, range(3))
        destination.wait_hanging()
        destination.open_errors = [TransientError("slow")] * 10_000
        driver.append(A, range(3))
        engine.until(lambda: engine.pipelines[0].open_retry is not None)
        engine.controller.request_stop()
        engine.until(lambda: engine.controller.state is RunState.DRAINING)
        destination.open_errors.clear()
        engine.until(lambda: not engine.controller.fleet._replacements, "the replacement is open")
        destination.gate.set()
        report = engine.join()
        assert (report.code, report.uncommitted) == (ExitCode.DEADLINE, 1)
        assert (driver.committed(A), driver.committed(B)) == (0, 3)


@pytest.mark.parametrize("source", ["memory", *PROTOCOLS])
def test_what_is_durable_but_not_committed_is_not_written_again(source: str) -> None:
    driver, destination = make_driver(source), Destination()
    destination.behave = _crashes(1, at=6)
    driver.assign(A)
    with Engine(driver, destination, settings=SMALL, commit_interval=60) as engine:
        _ready(engine, A)
        driver.append(A, range(6))
        engine.until_written(A, range(6))
        assert driver.committed(A) == 0, "the watermark is ahead of the group"
        driver.append(A, range(6, 10))
        engine.until_written(A, range(10))
        assert _restarts(driver) == 1


def test_a_crash_on_a_lane_that_was_lost_meanwhile_brings_nothing_of_it_back() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.assign(A)
    with Engine(driver, destination) as engine:
        destination.hang()
        driver.append(A, range(3))
        destination.wait_hanging()
        driver.lose(A)
        destination.behave = _crashes(1)
        destination.gate.set()
        engine.until(lambda: _restarts(driver) == 1)
        driver.add(A)
        engine.until_written(A, range(3))
        assert not [event for event in _of(destination, 0) if isinstance(event, InputClosed)]


def test_crashes_are_counted_for_each_pipeline_within_the_window() -> None:
    supervisor = Supervisor(Backoff(initial=1, maximum=8), limit=2, window=100)
    first = supervisor.restart_at(0, 0.0)
    second = supervisor.restart_at(0, 1.0)
    assert first is not None
    assert second is not None
    assert 0.8 <= first <= 1.0
    assert 1.6 <= second - 1.0 <= 2.0
    assert supervisor.restart_at(1, 2.0) is not None, "another pipeline"
    assert supervisor.restart_at(0, 3.0) is None
    assert supervisor.restart_at(0, 102.5) is not None, "old crashes are forgotten"
