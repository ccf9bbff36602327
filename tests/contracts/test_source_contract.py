"""What every source owes the runtime, shown on each: run under the real controller, pipelines and a recording sink."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, get_args

import pytest

from connector import ExitCode, LaneId
from connector.api.barrier import DrainBarrier
from connector.api.event import CloseReason, Input, InputClosed, Stop, StopCause
from connector.api.source_event import (
    CommitReady,
    Drained,
    Idle,
    LanesAdded,
    LanesAssigned,
    LanesRetired,
    LanesRevoked,
    RevokeReason,
    SourceEvent,
)
from connector.runtime.controller import ExitState
from tests.support.engine import PROTOCOLS, WAIT_SECONDS, Destination, Engine, MemoryDriver, make_driver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connector.lane.lane import Lane

A, B, C = ("t", 0), ("t", 1), ("t", 2)
SOURCES = ("memory", *PROTOCOLS)
ADDING = ("memory", "cooperative-sticky", "consumer")  # an eager group gives the whole set anew
every_source = pytest.mark.parametrize("name", SOURCES)
every_adding_source = pytest.mark.parametrize("name", ADDING)


def _ids(lanes: Iterable[Lane]) -> list[LaneId]:
    return [lane.id for lane in lanes]


def test_the_control_plane_has_exactly_the_specified_variants_and_fields() -> None:
    variants = {getattr(each, "__origin__", each) for each in get_args(SourceEvent)}
    fields = {variant.__name__: [field.name for field in dataclasses.fields(variant)] for variant in variants}
    assert fields == {
        "LanesAssigned": ["lanes"],
        "LanesAdded": ["lanes"],
        "LanesRevoked": ["lanes", "barrier", "reason"],
        "LanesRetired": ["lanes"],
        "Idle": [],
        "CommitReady": ["partitions"],
        "Drained": [],
    }
    assert LanesRevoked((), DrainBarrier(0)).reason is RevokeReason.REVOKED
    assert all(variant.__dataclass_params__.frozen for variant in variants)


@every_source
def test_ids_only_grow_and_are_never_used_again(name: str) -> None:
    driver = make_driver(name)
    for _ in range(3):
        driver.assign(A, B)
        driver.revoke()
    with Engine(driver) as engine:
        engine.until(lambda: len(engine.events(LanesRevoked)) == 3)
        begun = [event for event in engine.controller.obeyed if isinstance(event, (LanesAssigned, LanesAdded))]
        lanes = [lane for event in begun for lane in event.lanes]
        assert len(lanes) == 6
        assert _ids(lanes) == sorted(set(_ids(lanes)))
        assert [lane.partition_id for lane in lanes] == sorted({lane.partition_id for lane in lanes})


@every_source
def test_an_assignment_bumps_the_epoch_before_any_lane_reaches_a_pipeline(name: str) -> None:
    driver = make_driver(name)
    driver.append(A, [0, 1])
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_written(A, [0, 1])
        driver.revoke(A)
        driver.append(A, [2])
        driver.assign(A)
        engine.until_written(A, [0, 1, 2])
        epochs = [event.metadata.epoch for _, event in engine.destination.events if isinstance(event, Input)]
        full_sets = len(engine.events(LanesAssigned))
        assert (set(epochs[:-1]), epochs[-1]) == ({1}, full_sets)
        assert engine.controller.checkpointer.epoch == full_sets


@every_adding_source
def test_more_lanes_leave_the_flowing_ones_untouched(name: str) -> None:
    driver, destination = make_driver(name), Destination()
    driver.append(A, [0])
    driver.append(B, [0])
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_written(A, [0])
        driver.add(B)
        engine.until_written(B, [0])
        driver.append(A, [1])
        engine.until_written(A, [0, 1])
        inputs = [
            event for _, event in destination.events if isinstance(event, Input) and event.metadata.partition == 0
        ]
        assert len({event.id for event in inputs}) == 1
        assert {event.metadata.epoch for event in inputs} == {1}
        assert [len(event.lanes) for event in engine.events(LanesAdded)] == [1]
        assert not [event for _, event in destination.events if isinstance(event, InputClosed)]
        assert engine.controller.checkpointer.epoch == 1


@every_source
@pytest.mark.invariant(5)
def test_a_revocation_waits_for_the_sink_and_commits_exactly_what_is_durable(name: str) -> None:
    driver, destination = make_driver(name), Destination()
    driver.append(A, range(5))
    driver.append(B, range(3))
    destination.hang()
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2, commit_interval=60) as engine:
        destination.wait_hanging()
        destination.wait_hanging()
        driver.revoke()
        engine.until(lambda: len(engine.events(LanesRevoked)) == 1)
        barrier = engine.events(LanesRevoked)[0].barrier
        before = len([1 for is_synchronous, _ in driver.commits() if is_synchronous])
        assert (barrier.remaining, before) == (3, 0), "it waits for two owners and the controller"
        destination.gate.set()
        engine.until(lambda: barrier.is_settled)
        assert barrier.remaining == 0
        assert [positions for is_synchronous, positions in driver.commits() if is_synchronous] == [{A: 5, B: 3}]
        assert (driver.committed(A), driver.committed(B)) == (5, 3)
        assert (destination.offsets(A), destination.offsets(B)) == ([*range(5)], [*range(3)])


@every_source
@pytest.mark.invariant(5)
def test_a_revocation_that_is_not_drained_in_time_commits_what_was_durable_and_the_next_owner_reads_the_rest(
    name: str,
) -> None:
    driver, destination = make_driver(name, drain_timeout=0.1), Destination()
    driver.append(A, range(5))
    driver.append(B, range(3))
    destination.hang()
    destination.behave = lambda _: None
    driver.assign(A)
    with Engine(driver, destination, commit_interval=60, drain_timeout=0.1) as engine:
        destination.wait_hanging()
        driver.revoke()
        engine.until(lambda: any(event.barrier.is_settled for event in engine.events(LanesRevoked)))
        assert (driver.committed(A) or 0) == 0
        driver.assign(A)
        destination.gate.set()
        engine.until_written(A, [*range(5), *range(5)])
        engine.until(lambda: engine.controller.checkpointer.late_acks >= 1, "the old batch is a late one")
        assert engine.stop().code is ExitCode.COMPLETED
    assert driver.committed(A) == 5


@every_source
@pytest.mark.invariant(6)
def test_lost_lanes_are_fenced_at_once_and_nothing_of_them_is_committed(name: str) -> None:
    driver, destination = make_driver(name), Destination()
    driver.append(A, range(5))
    driver.assign(A)
    destination.hang()
    with Engine(driver, destination, commit_interval=60) as engine:
        engine.until_committed(A, 0)  # the start, at once
        destination.gate.set()
        engine.until_written(A, range(5))
        before = driver.commits()
        driver.lose()
        engine.until(lambda: not engine.controller.fleet.lanes and bool(engine.events(LanesRevoked)))
        event = engine.events(LanesRevoked)[0]
        assert (event.reason, event.barrier.remaining, event.barrier.is_settled) == (RevokeReason.LOST, 0, True)
        assert (driver.commits(), driver.committed(A)) == (before, 0)
        engine.until(lambda: (0, InputClosed(event.lanes[0], CloseReason.LOST)) in destination.events)


@every_source
@pytest.mark.invariant(7)
def test_an_ack_after_the_loss_only_counts(name: str) -> None:
    driver, destination = make_driver(name), Destination()
    driver.append(A, range(5))
    driver.assign(A)
    destination.hang()
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        driver.lose()
        engine.until(lambda: bool(engine.events(LanesRevoked)))
        destination.gate.set()
        engine.until(lambda: engine.controller.checkpointer.late_acks == 1)
        assert max(positions.get(A, 0) for _, positions in driver.commits() or [(False, {A: 0})]) == 0


@every_source
def test_an_asynchronous_commit_that_failed_for_now_is_made_again(name: str) -> None:
    driver = make_driver(name)
    driver.append(A, range(3))
    driver.fail_commits("COORDINATOR_NOT_AVAILABLE")
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_committed(A, 3)
        assert engine.stop().state is ExitState.STOPPED


@every_source
def test_a_bounded_run_retires_lanes_without_a_barrier_and_ends_completed(name: str) -> None:
    driver, destination = make_driver(name, ends={A: range(5), B: range(2), C: []}), Destination()
    driver.assign(A, B, C)
    with Engine(driver, destination, pipelines=2, commit_interval=60) as engine:
        report = engine.join()
        assert (report.state, report.code, report.uncommitted) == (ExitState.COMPLETED, ExitCode.COMPLETED, 0)
        retired = [lane for event in engine.events(LanesRetired) for lane in event.lanes]
        assert sorted(retired) == _ids(engine.events(LanesAssigned)[0].lanes)
        assert not engine.events(LanesRevoked)
        assert engine.events(Drained)
    assert {key: driver.committed(key) for key in (A, B, C)} == {A: 5, B: 2, C: 0}
    ends = [event for _, event in destination.events if isinstance(event, InputClosed)]
    assert {(event.id, event.reason) for event in ends} == {(lane, CloseReason.END) for lane in retired}
    assert [event for _, event in destination.events if isinstance(event, Stop)] == [
        Stop(StopCause.ALL_INPUTS_CLOSED)
    ] * 2


@every_source
def test_lanes_retire_only_after_their_end_is_committed_and_that_comes_after_commit_ready(name: str) -> None:
    driver, destination = make_driver(name, ends={A: range(5)}), Destination()
    destination.hang()
    driver.assign(A)
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        engine.until(lambda: bool(engine.events(CommitReady)))
        assert not engine.events(LanesRetired)
        driver.fail_commits("COORDINATOR_NOT_AVAILABLE")
        destination.gate.set()
        engine.join()
        kinds = [type(event) for event in engine.controller.obeyed]
        assert kinds[: kinds.index(Drained) + 1] == [LanesAssigned, CommitReady, LanesRetired, Drained]


@every_source
def test_a_partition_that_is_done_early_stalls_no_other(name: str) -> None:
    driver, destination = make_driver(name, ends={A: range(5), B: range(2)}), Destination()
    release = threading.Event()
    destination.behave = lambda batch: None if batch.metadata.partition else _wait(release)
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2) as engine:
        engine.until(lambda: len(engine.events(LanesRetired)) == 1)
        assert (driver.committed(B), destination.offsets(A)) == (2, [])
        assert not engine.events(Drained)
        release.set()
        assert engine.join().state is ExitState.COMPLETED
    assert destination.offsets(A) == [*range(5)]


def _wait(release: threading.Event) -> None:
    assert release.wait(WAIT_SECONDS)


@every_source
def test_commit_ready_leads_to_a_prompt_commit_of_just_those_partitions(name: str) -> None:
    driver, destination = make_driver(name, ends={A: range(5), B: range(2)}), Destination()
    destination.behave = lambda batch: None if batch.metadata.partition else _wait(release)
    release = threading.Event()
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2, commit_interval=60) as engine:
        engine.until_committed(B, 2)  # long before the interval is over
        release.set()
        assert engine.join().state is ExitState.COMPLETED


@every_source
def test_drained_is_said_again_and_again_and_ends_the_run_once(name: str) -> None:
    driver = make_driver(name, ends={A: range(3)})
    driver.assign(A)
    with Engine(driver) as engine:
        assert engine.join().state is ExitState.COMPLETED
        assert len(engine.events(Drained)) >= 1
    assert driver.source.poll_events(0) == Drained()
    assert driver.source.poll_events(0) == Drained()


@every_source
def test_nothing_to_tell_is_idle(name: str) -> None:
    assert make_driver(name).source.poll_events(0) == Idle()


def test_an_assignment_over_live_lanes_drains_and_commits_them_first() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.append(A, range(4))
    driver.append(B, range(2))
    driver.assign(A)
    destination.hang()
    with Engine(driver, destination, commit_interval=60) as engine:
        destination.wait_hanging()
        driver.assign(B)
        engine.until(lambda: len(engine.events(LanesAssigned)) == 2)
        assert engine.controller.checkpointer.epoch == 1, "the new epoch waits for the old lanes"
        destination.gate.set()
        engine.until_written(B, range(2))
        engine.until_committed(A, 4)
        order = [event.id for _, event in destination.events if isinstance(event, (Input, InputClosed))]
        assert order == sorted(order), "the old lane is closed before the new one begins"
        assert engine.controller.checkpointer.epoch == 2
        assert engine.stop().code is ExitCode.COMPLETED


@every_adding_source
def test_restarted_lanes_come_back_as_new_ones_at_the_given_position(name: str) -> None:
    driver, destination = make_driver(name), Destination()
    driver.append(A, range(4))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_committed(A, 4)
        (lane,) = engine.events(LanesAssigned)[0].lanes
        driver.source.restart_lanes({lane.id: None})
        driver.append(A, [4])
        engine.until_written(A, range(5))
        engine.until_committed(A, 5)
        event = engine.events(LanesRevoked)[0]
        assert (event.lanes, event.reason) == ((lane.id,), RevokeReason.LOST)
        assert [len(added.lanes) for added in engine.events(LanesAdded)] == [1]
        assert engine.events(LanesAdded)[0].lanes[0].id > lane.id
        assert lane.is_fenced


@every_source
def test_a_source_that_is_closed_says_so_and_sends_no_more(name: str) -> None:
    driver = make_driver(name)
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until(lambda: bool(engine.events(LanesAssigned)))
        assert engine.stop().code is ExitCode.COMPLETED
        assert driver.source.is_closed
        assert driver.source.poll_events(0) == Idle()
