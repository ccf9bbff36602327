"""How a run ends: drained, committed, left, and with the exit code that says the truth."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from connector import (
    AuthenticationError,
    ExitCode,
    FatalError,
    FencedError,
    PoisonError,
    TransientError,
)
from connector.api.event import InputClosed, Stop, StopCause
from connector.api.source_event import LanesAdded, LanesAssigned, LanesRevoked
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.worker import PipelineSettings
from connector.runtime.controller import ExitState
from connector.sink.retry import Backoff
from connector.telemetry.status import RunState
from tests.support.engine import Destination, Engine, KafkaDriver, MemoryDriver

if TYPE_CHECKING:
    from connector import Batch
    from connector.lane.lane import Lane

A, B, C = ("t", 0), ("t", 1), ("t", 2)
SLOW_LINGER = PipelineSettings(limits=BatchLimits(linger_seconds=60))


def test_a_stop_writes_what_was_taken_commits_it_and_leaves() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2, settings=SLOW_LINGER, commit_interval=60) as engine:
        engine.until(lambda: driver.committed(A) == 0 == driver.committed(B))
        driver.append(A, range(5))
        driver.append(B, range(3))
        engine.until(lambda: sum(lane.held_bytes > 0 for lane in engine.controller.fleet.lanes.values()) == 2)
        engine.until(lambda: not any(lane.has_chunks for lane in engine.controller.fleet.lanes.values()))
        assert destination.written == [], "the batch lingers"
        report = engine.stop()
        assert (report.state, report.code, report.uncommitted) == (ExitState.STOPPED, ExitCode.COMPLETED, 0)
        assert engine.controller.state is RunState.STOPPED
    assert (driver.committed(A), driver.committed(B)) == (5, 3)
    assert [event for _, event in destination.events if isinstance(event, Stop)] == [Stop(StopCause.MANUAL)] * 2
    assert driver.source.is_closed


def test_a_stop_before_the_first_assignment_ends_at_once() -> None:
    with Engine(MemoryDriver()) as engine:
        engine.until(lambda: engine.controller.state is RunState.STARTING)
        assert engine.stop().code is ExitCode.COMPLETED


def test_a_second_stop_changes_nothing() -> None:
    driver = MemoryDriver()
    driver.append(A, range(5))
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_written(A, range(5))
        engine.controller.request_stop()
        assert engine.stop().state is ExitState.STOPPED
    assert driver.committed(A) == 5


def test_a_hanging_sink_ends_at_the_deadline_with_6_and_only_durable_work_is_committed() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.append(A, range(5))
    driver.append(B, range(3))
    driver.assign(A, B)
    destination.hang(partition=0)
    with Engine(driver, destination, pipelines=2, shutdown_timeout=0.5, commit_interval=60) as engine:
        destination.wait_hanging()
        engine.until_written(B, range(3))
        started = time.monotonic()
        report = engine.stop()
        assert 0.4 <= time.monotonic() - started < 1.5
        assert (report.state, report.code, report.uncommitted) == (ExitState.INCOMPLETE, ExitCode.DEADLINE, 1)
        assert (driver.committed(A), driver.committed(B)) == (0, 3)
        destination.gate.set()


def test_a_source_that_does_not_close_ends_at_the_deadline_with_6() -> None:
    driver = MemoryDriver()
    driver.append(A, range(5))
    driver.assign(A)
    close, driver.memory.close = driver.memory.close, lambda: None  # type: ignore[method-assign]
    with Engine(driver, shutdown_timeout=0.3) as engine:
        engine.until_written(A, range(5))
        report = engine.stop()
        assert (report.state, report.code, report.uncommitted) == (ExitState.INCOMPLETE, ExitCode.DEADLINE, 0)
        assert driver.committed(A) == 5
    close()


def test_a_sink_in_retry_makes_one_attempt_and_its_work_left_means_6_long_before_the_deadline() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.append(A, range(5))
    driver.assign(A)

    def fail(_: Batch) -> None:
        attempts.append(time.monotonic())
        raise TransientError("down")

    attempts: list[float] = []
    destination.behave = fail
    settings = PipelineSettings(limits=BatchLimits(linger_seconds=0.005), backoff=Backoff(initial=60, maximum=60))
    with Engine(driver, destination, settings=settings, shutdown_timeout=30) as engine:
        engine.until(lambda: len(attempts) == 1)
        report = engine.stop()
        assert (report.state, report.code, report.uncommitted) == (ExitState.INCOMPLETE, ExitCode.DEADLINE, 1)
    assert len(attempts) == 2
    assert driver.committed(A) == 0


def test_a_last_commit_that_never_succeeds_means_6() -> None:
    driver = MemoryDriver()
    driver.assign(A)
    with Engine(driver, shutdown_timeout=0.4, commit_interval=60) as engine:
        engine.until_committed(A, 0)
        driver.append(A, range(5))
        engine.until_written(A, range(5))
        driver.fail_commits("COORDINATOR_NOT_AVAILABLE", times=10_000)
        report = engine.stop()
        assert (report.state, report.code, report.uncommitted) == (ExitState.INCOMPLETE, ExitCode.DEADLINE, 1)
    assert driver.committed(A) == 0


@pytest.mark.parametrize(("fails", "code"), [(0, ExitCode.COMPLETED), (10_000, ExitCode.DEADLINE)])
def test_a_run_that_has_left_by_the_deadline_is_judged_by_what_it_left_undone(fails: int, code: ExitCode) -> None:
    driver = MemoryDriver()
    driver.assign(A)
    close = driver.memory.close

    def close_and_stall() -> None:
        close()
        time.sleep(0.4)  # the main thread's next turn comes after the deadline

    driver.memory.close = close_and_stall  # type: ignore[method-assign]
    with Engine(driver, shutdown_timeout=0.3, commit_interval=60) as engine:
        engine.until_committed(A, 0)
        driver.append(A, range(5))
        engine.until_written(A, range(5))
        driver.fail_commits("COORDINATOR_NOT_AVAILABLE", times=fails)
        report = engine.stop()
        assert (report.code, report.uncommitted) == (code, 1 if fails else 0)


def test_a_last_commit_that_fails_for_now_is_made_again() -> None:
    driver = MemoryDriver()
    driver.assign(A)
    with Engine(driver, commit_interval=60) as engine:
        engine.until_committed(A, 0)
        driver.append(A, range(5))
        engine.until_written(A, range(5))
        driver.fail_commits("REBALANCE_IN_PROGRESS", times=2)
        assert engine.stop().code is ExitCode.COMPLETED
    assert driver.committed(A) == 5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FencedError("fenced"), ExitCode.FENCED),
        (AuthenticationError("refused"), ExitCode.AUTHENTICATION),
    ],
)
def test_a_fatal_error_of_the_source_ends_with_its_code_after_committing_what_is_durable(
    error: FatalError, code: ExitCode
) -> None:
    driver = MemoryDriver()
    driver.assign(A)
    with Engine(driver, commit_interval=60) as engine:
        engine.until_committed(A, 0)
        driver.append(A, range(5))
        engine.until_written(A, range(5))
        driver.memory.fail(error)
        report = engine.join()
        assert (report.state, report.code, report.error) == (ExitState.FAILED, code, error)
        assert engine.controller.state is RunState.FAILED
    assert driver.committed(A) == 5


@pytest.mark.parametrize(
    ("error", "code"),
    [(FatalError("full"), ExitCode.SINK), (PoisonError("bad"), ExitCode.POISON), (ValueError("bug"), ExitCode.SINK)],
)
def test_a_fatal_error_of_one_sink_ends_with_its_code_after_the_other_lanes_are_committed(
    error: Exception, code: ExitCode
) -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.append(A, range(5))
    driver.append(B, range(3))

    def behave(batch: Batch) -> None:
        if batch.metadata.partition == 0:
            raise error

    destination.behave = behave
    driver.assign(B, A)
    with Engine(driver, destination, pipelines=2, settings=SLOW_LINGER) as engine:
        engine.until_committed(A, 0)
        driver.append(A, range(5, 6000))  # by rows, at once
        report = engine.join()
        assert (report.state, report.code) == (ExitState.FAILED, code)
    assert (driver.committed(A), driver.committed(B)) == (0, 3)


def test_the_first_error_is_the_one_that_is_reported() -> None:
    driver = MemoryDriver()
    driver.assign(A)
    first = FencedError("first")
    with Engine(driver) as engine:
        driver.memory.fail(first)
        driver.memory.fail(AuthenticationError("second"))
        assert engine.join().error is first


def test_a_client_that_is_dead_is_not_asked_for_a_last_commit_until_the_deadline() -> None:
    driver = KafkaDriver()
    driver.assign(A)
    with Engine(driver, shutdown_timeout=30, commit_interval=60) as engine:
        engine.until_committed(A, 0)
        driver.append(A, range(5))
        engine.until_written(A, range(5))
        driver.fake.error("_FATAL", "fenced by another member")
        report = engine.join()  # long before the deadline
        assert (report.code, report.uncommitted) == (ExitCode.FENCED, 1)


@pytest.mark.parametrize("code", ["GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"])
def test_a_commit_that_is_refused_for_good_ends_the_run_before_the_deadline(code: str) -> None:
    driver = MemoryDriver()
    driver.append(A, range(5))
    driver.fail_commits(code, times=10_000)
    driver.assign(A)
    with Engine(driver, shutdown_timeout=30) as engine:
        assert engine.join().code is ExitCode.AUTHENTICATION


def test_a_rebalance_during_the_shutdown_commits_what_is_durable_though_another_sink_hangs() -> None:
    driver, destination = MemoryDriver(drain_timeout=0.2), Destination()
    driver.assign(A, B)
    destination.hang(partition=0)
    with Engine(driver, destination, pipelines=2, commit_interval=60, shutdown_timeout=5) as engine:
        engine.until_committed(A, 0)
        engine.until_committed(B, 0)
        driver.append(A, range(5))
        driver.append(B, range(3))
        destination.wait_hanging()
        engine.until_written(B, range(3))
        engine.controller.request_stop()
        engine.until(lambda: engine.controller.state is RunState.DRAINING)
        driver.revoke(B)
        engine.until_committed(B, 3)
        assert (True, {B: 3}) in driver.commits(), "synchronously, in the revocation"
        destination.gate.set()
        assert engine.join().code is ExitCode.COMPLETED
    assert driver.committed(A) == 5


def test_a_rebalance_during_the_shutdown_that_is_not_drained_means_6() -> None:
    driver, destination = MemoryDriver(drain_timeout=0.05), Destination()
    driver.append(A, range(5))
    driver.assign(A)
    destination.hang()
    with Engine(driver, destination, shutdown_timeout=5) as engine:
        destination.wait_hanging()
        engine.controller.request_stop()
        engine.until(lambda: engine.controller.state is RunState.DRAINING)
        driver.revoke(A)
        engine.until(lambda: any(event.barrier.is_settled for event in engine.events(LanesRevoked)))
        engine.until(lambda: not engine.controller.fleet.lanes)
        destination.gate.set()
        assert engine.join().code is ExitCode.DEADLINE
    assert (driver.committed(A) or 0) == 0


def test_lanes_that_are_lost_during_the_shutdown_are_not_waited_for() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.append(A, range(5))
    driver.append(B, range(3))
    driver.assign(A, B)
    destination.hang(partition=0)
    with Engine(driver, destination, pipelines=2, commit_interval=60) as engine:
        destination.wait_hanging()
        engine.until_written(B, range(3))
        engine.controller.request_stop()
        engine.until(lambda: engine.controller.state is RunState.DRAINING)
        driver.lose(A)
        engine.until(lambda: len(engine.controller.fleet.lanes) == 1)
        destination.gate.set()
        engine.join()
    assert (driver.committed(A), driver.committed(B)) == (0, 3)


@pytest.mark.parametrize("kind", [LanesAssigned, LanesAdded])
def test_lanes_that_come_during_the_shutdown_are_not_begun(kind: type[LanesAssigned[Lane] | LanesAdded[Lane]]) -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.append(A, range(5))
    driver.append(B, range(3))
    driver.assign(A)
    destination.hang()
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        engine.controller.request_stop()
        engine.until(lambda: engine.controller.state is RunState.DRAINING)
        (driver.assign if kind is LanesAssigned else driver.add)(B)
        engine.until(
            lambda: any(len(event.lanes) == 1 and event.lanes[0].partition == 1 for event in engine.events(kind))
        )
        driver.revoke(B)  # is answered all the same
        engine.until(lambda: any(event.barrier.is_settled for event in engine.events(LanesRevoked)))
        destination.gate.set()
        assert engine.join().code is ExitCode.COMPLETED
    assert destination.offsets(B) == []
    assert (driver.committed(A), driver.committed(B)) == (5, None)


def test_a_rebalance_that_takes_everything_leaves_a_run_that_can_end() -> None:
    driver = MemoryDriver()
    driver.append(A, range(5))
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_written(A, range(5))
        driver.revoke()
        engine.until_committed(A, 5)
        driver.assign()
        engine.until(lambda: len(engine.events(LanesAssigned)) == 2)
        assert engine.controller.state is RunState.RUNNING
        assert engine.stop().state is ExitState.STOPPED


def test_sinks_hear_of_the_end_after_their_last_lane_is_closed() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.append(A, range(5))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_written(A, range(5))
        engine.stop()
    kinds = [type(event) for _, event in destination.events]
    assert kinds[-2:] == [InputClosed, Stop]
