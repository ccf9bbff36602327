"""What an operator holds back stays so, whatever the group, a full lane or a crash does meanwhile; the rest flows."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import ExitCode
from connector.api.event import CloseReason, InputClosed
from connector.api.intents import EVERYTHING, Intent, Intents, Scope
from connector.api.source_event import LanesRetired
from connector.runtime.controller import ExitState
from connector.runtime.snapshot import StatusBoard
from connector.telemetry.status import LaneState
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver, MemoryDriver, eventually, make_driver

if TYPE_CHECKING:
    from connector import Batch
    from connector.lane.lane import Lane
    from tests.support.engine import Driver

A, B, C = ("t", 0), ("t", 1), ("t", 2)
every_source = pytest.mark.parametrize("source", ["memory", *PROTOCOLS])
every_scope = pytest.mark.parametrize("scope", [EVERYTHING, Scope("t"), Scope(*A)], ids=str)


def _want(engine: Engine, scope: Scope, *, is_held_back: bool) -> None:
    """Ask for it as the verbs do, and wait until the main thread and the source's have it."""
    intents = engine.controller.intents.want(scope, is_held_back=is_held_back)
    engine.controller.request(lambda: engine.controller.hold_back(intents))
    engine.until(lambda: engine.controller.intents == intents == _intents_of(engine.driver))
    engine.until(lambda: all(lane.is_held_back is intents.holds(lane.topic, lane.partition) for lane in _lanes(engine)))


def _intents_of(driver: Driver) -> Intents:
    if isinstance(driver, KafkaDriver):
        return driver.kafka_source._assignment.intents
    assert isinstance(driver, MemoryDriver)
    return driver.memory._intents


def _hold(engine: Engine, scope: Scope = EVERYTHING) -> None:
    _want(engine, scope, is_held_back=True)


def _release(engine: Engine, scope: Scope = EVERYTHING) -> None:
    _want(engine, scope, is_held_back=False)


def _lanes(engine: Engine) -> list[Lane]:
    return list(engine.controller.fleet.lanes.values())


def _lane(engine: Engine, key: tuple[str, int]) -> Lane:
    [lane] = [lane for lane in _lanes(engine) if (lane.topic, lane.partition) == key]
    return lane


def _holds(engine: Engine, *keys: tuple[str, int]) -> None:
    """Wait until exactly these partitions are held."""
    engine.until(lambda: {(lane.topic, lane.partition) for lane in _lanes(engine)} == set(keys), f"holds {keys}")


def _gone(engine: Engine) -> None:
    engine.until(lambda: not engine.controller.fleet.lanes)


def _stays(engine: Engine, key: tuple[str, int], seconds: float = 0.1) -> None:
    """Let some turns pass and see that nothing more of a partition is taken or written."""
    deadline = time.monotonic() + seconds
    before = engine.destination.offsets(key), _lane(engine, key).held_bytes
    eventually(lambda: time.monotonic() > deadline)
    assert (engine.destination.offsets(key), _lane(engine, key).held_bytes) == before


def _away_and_back(driver: Driver, engine: Engine, key: tuple[str, int], source: str) -> None:
    """Let a partition be revoked and return, then be lost and return; eager groups move all of them."""
    for leave in (driver.revoke, driver.lose):
        old = _lane(engine, key)
        if source == "range":
            leave(A, B)
            _gone(engine)
            driver.assign(A, B)
        else:
            leave(key)
            _holds(engine, A if key == B else B)
            driver.add(key)
        _holds(engine, A, B)
        assert _lane(engine, key).id > old.id


@every_source
@every_scope
def test_what_was_taken_before_a_pause_is_written_and_committed_and_nothing_more_is_taken(
    source: str, scope: Scope
) -> None:
    driver, destination = make_driver(source), Destination()
    driver.assign(A)
    with Engine(driver, destination) as engine:
        driver.append(A, range(3))
        engine.until_written(A, range(3))
        destination.hang()
        driver.append(A, range(3, 6))
        destination.wait_hanging()
        _hold(engine, scope)
        destination.gate.set()
        engine.until_committed(A, 6)
        driver.append(A, range(6, 9))
        _stays(engine, A)
        assert destination.offsets(A) == list(range(6))
        _release(engine, scope)
        engine.until_written(A, range(9))
        engine.until_committed(A, 9)


@every_source
def test_a_partition_that_is_held_back_stays_so_through_rebalances_and_the_other_flows(source: str) -> None:
    driver, destination = make_driver(source), Destination()
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        engine.until(lambda: driver.committed(A) is not None and driver.committed(B) is not None)
        _hold(engine, Scope(*A))
        driver.append(A, range(3))
        for turn in range(2):
            _away_and_back(driver, engine, A, source)
            driver.append(B, [turn])
            engine.until_written(B, range(turn + 1))
            _stays(engine, A)
        assert destination.offsets(A) == []
        _release(engine, Scope(*A))
        engine.until_written(A, range(3))
        driver.append(B, [2])
        engine.until_written(B, range(3))


@every_source
@pytest.mark.parametrize("scope", [EVERYTHING, Scope("t"), Scope(*B)], ids=str)
def test_a_partition_that_comes_later_is_held_back_from_its_first_record(source: str, scope: Scope) -> None:
    driver, destination = make_driver(source), Destination()
    driver.append(A, range(3))
    driver.append(B, range(3))
    with Engine(driver, destination) as engine:
        _hold(engine, scope)
        driver.assign(A, B)
        _holds(engine, A, B)
        if scope == Scope(*B):
            engine.until_written(A, range(3))
        engine.until(lambda: driver.committed(B) == 0, "its start is committed, though it is held back")
        _stays(engine, B)
        assert destination.offsets(B) == []
        _release(engine, scope)
        engine.until_written(A, range(3))
        engine.until_written(B, range(3))


@every_source
def test_the_narrower_intent_counts_until_a_wider_one_takes_its_place(source: str) -> None:
    driver, destination = make_driver(source), Destination()
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        _holds(engine, A, B)
        _hold(engine)
        _release(engine, Scope(*B))
        driver.append(A, range(2))
        driver.append(B, range(2))
        engine.until_written(B, range(2))
        _stays(engine, A)
        _hold(engine, Scope("t"))
        driver.append(B, [2])
        _stays(engine, B)
        _release(engine)
        engine.until_written(A, range(2))
        engine.until_written(B, range(3))


@every_source
def test_a_lane_that_the_supervisor_restarts_is_still_held_back(source: str) -> None:
    driver, destination = make_driver(source), Destination()
    crashes = [1]

    def behave(_: Batch) -> None:
        if crashes and driver.committed(A) == 3:
            crashes.pop()
            raise ValueError("a bug")

    destination.behave = behave
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        driver.append(A, range(3))
        engine.until_committed(A, 3)
        old = _lane(engine, A)
        _hold(engine, Scope(*A))
        driver.append(A, range(3, 6))
        _stays(engine, A)
        driver.append(B, range(3))  # crashes the pipeline that has both
        engine.until_written(B, range(3))
        engine.until(lambda: old.id not in engine.controller.fleet.lanes)
        _holds(engine, A, B)
        _stays(engine, A)
        assert destination.offsets(A) == [0, 1, 2]
        _release(engine, Scope(*A))
        engine.until_written(A, range(6))


@pytest.mark.parametrize("source", PROTOCOLS)
def test_a_full_lane_and_an_operator_hold_a_partition_back_each_for_itself(source: str) -> None:
    driver, destination = KafkaDriver(source, lanes_bytes=20_000), Destination()
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        _holds(engine, A, B)
        destination.hang(partition=0)
        driver.append(A, range(10), b"v" * 2000)
        engine.until(lambda: _lane(engine, A).is_paused, "the lane is full")
        driver.append(A, range(10, 30), b"v" * 2000)
        taken = _lane(engine, A).held_bytes

        _hold(engine, Scope(*A))
        _release(engine, Scope(*A))
        driver.append(B, [0])
        engine.until(lambda: A in driver.fake.paused, "a full lane is not resumed by an operator")
        assert _lane(engine, A).held_bytes == taken

        _hold(engine, Scope(*A))
        destination.gate.set()
        engine.until(lambda: _lane(engine, A).held_bytes == 0 and not _lane(engine, A).is_paused, "it is low again")
        _stays(engine, A)
        assert destination.offsets(A) == list(range(10))
        assert A in driver.fake.paused, "a partition that is held back is not resumed by a lane that is low"
        _release(engine, Scope(*A))
        engine.until_written(A, range(30))


@every_source
def test_in_a_bounded_run_others_retire_and_the_run_ends_when_the_partition_is_let_go(source: str) -> None:
    driver, destination = make_driver(source, ends={A: range(3), B: range(3), C: []}), Destination()
    with Engine(driver, destination) as engine:
        _hold(engine, Scope(*A))
        _hold(engine, Scope(*C))
        driver.assign(A, B, C)
        engine.until(lambda: sum(len(event.lanes) for event in engine.events(LanesRetired)) == 2, "an end is an end")
        _holds(engine, A)
        _stays(engine, A)
        _release(engine, Scope(*A))
        assert engine.join().state is ExitState.COMPLETED
    assert (destination.offsets(A), destination.offsets(B)) == ([0, 1, 2], [0, 1, 2])


@every_source
def test_a_stop_drains_and_commits_what_a_lane_took_before_it_was_held_back(source: str) -> None:
    driver, destination = make_driver(source), Destination()
    driver.assign(A)
    with Engine(driver, destination, commit_interval=60) as engine:
        _holds(engine, A)
        destination.hang()
        driver.append(A, range(3))
        destination.wait_hanging()
        _hold(engine)
        engine.controller.request_stop()
        destination.gate.set()
        assert engine.join().code is ExitCode.COMPLETED
    assert (destination.offsets(A), driver.committed(A)) == ([0, 1, 2], 3)


def test_the_status_tells_of_each_lane_and_of_the_intents_and_is_ready_unless_all_are_held_back() -> None:
    driver = MemoryDriver()
    board = StatusBoard("g", driver.metrics)
    with Engine(driver, publish=board.publish) as engine:
        _hold(engine, Scope("t"))
        engine.until(lambda: board.latest.intents == (Intent("t", None, True),), "named before it is assigned")
        driver.assign(A, B)
        engine.until(lambda: board.latest.reason == "paused by an operator")
        assert not board.latest.is_ready
        assert {lane.state for lane in board.latest.lanes} == {LaneState.HELD_BACK}
        _release(engine, Scope(*B))
        engine.until(lambda: board.latest.is_ready)
        assert board.latest.reason == "consuming; 1 of 2 lanes are paused by an operator"
        shown = {lane.partition: (lane.state, lane.reason) for lane in board.latest.lanes}
        assert shown == {0: (LaneState.HELD_BACK, "paused by an operator"), 1: (LaneState.FLOWING, None)}
        assert board.latest.intents == (Intent("t", None, True), Intent("t", 1, False))
        _release(engine)
        engine.until(lambda: board.latest.reason == "consuming" and not board.latest.intents)
        assert {lane.state for lane in board.latest.lanes} == {LaneState.FLOWING}


def test_a_lane_is_not_shown_as_held_back_while_records_can_still_come_into_it() -> None:
    driver, destination, gate = MemoryDriver(), Destination(), threading.Event()
    board = StatusBoard("g", driver.metrics)
    driver.assign(A)
    with Engine(driver, destination, publish=board.publish) as engine:
        _holds(engine, A)
        engine.until(lambda: board.latest.is_ready)
        driver.append(A, range(1))
        driver.memory._steps.put(lambda: eventually(gate.is_set, "the source goes on"))
        intents = Intents().want(EVERYTHING, is_held_back=True)
        engine.controller.request(lambda: engine.controller.hold_back(intents))
        engine.until(lambda: board.latest.intents != ())
        assert board.latest.is_ready
        assert [lane.state for lane in board.latest.lanes] == [LaneState.FLOWING]
        gate.set()
        engine.until(lambda: not board.latest.is_ready)
        assert [lane.state for lane in board.latest.lanes] == [LaneState.HELD_BACK]


def test_a_member_without_partitions_is_ready_unless_all_that_could_come_is_held_back() -> None:
    driver = MemoryDriver()
    board = StatusBoard("g", driver.metrics)
    driver.assign()
    with Engine(driver, publish=board.publish) as engine:
        _hold(engine, Scope("t"))
        engine.until(lambda: board.latest.reason.startswith("stands by") and board.latest.is_ready)
        _hold(engine)
        engine.until(lambda: board.latest.reason == "paused by an operator" and not board.latest.is_ready)
        _release(engine, Scope("t"))
        engine.until(lambda: board.latest.is_ready)


def test_a_lane_that_is_held_back_does_not_stall_and_the_other_does() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.assign(A, B)
    with Engine(driver, destination, lane_idle_timeout=0.05) as engine:
        _holds(engine, A, B)
        _hold(engine, Scope(*A))
        for lane in _lanes(engine):
            lane.end_offset = 3  # type: ignore[assignment]
        other = InputClosed(_lane(engine, B).id, CloseReason.STALLED)
        engine.until(lambda: (0, other) in destination.events)
        publish = engine.controller._next_publish
        engine.until(lambda: engine.controller._next_publish > publish + 0.5, "it has looked twice")
        assert destination.events == [(0, other)]


@every_source
@settings(max_examples=12, deadline=None)
@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.sampled_from([EVERYTHING, Scope("t"), Scope(*A), Scope(*B), Scope(*C)]), st.booleans()),
            st.just("away and back"),
            st.just("more records"),
        ),
        max_size=10,
    )
)
def test_whatever_is_held_back_and_released_among_rebalances_nothing_is_lost_or_out_of_order(
    source: str, moves: list[tuple[Scope, bool] | str]
) -> None:
    driver, destination, count = make_driver(source), Destination(), 0
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        _holds(engine, A, B)
        for move in moves:
            if move == "more records":
                driver.append(A, range(count, count + 5))
                driver.append(B, range(count, count + 5))
                count += 5
            elif move == "away and back":
                driver.revoke(A, B)
                _gone(engine)
                driver.assign(A, B)
                _holds(engine, A, B)
            else:
                assert isinstance(move, tuple)
                _want(engine, move[0], is_held_back=move[1])
        _release(engine)
        for key in (A, B):
            engine.until_written(key, range(count))
            engine.until_committed(key, count)
