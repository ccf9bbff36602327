"""INV-6: lost means fenced at once: no drain, no commit, no wait."""

from __future__ import annotations

import pytest

from connector import TransientError
from connector.api.source_event import LanesAssigned, LanesRevoked, RevokeReason
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver

A, B = ("t", 0), ("t", 1)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.mark.invariant(6)
@every_protocol
def test_a_lost_lane_is_fenced_before_anybody_is_told_and_the_callback_waits_for_nobody(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))
    driver.assign(A)
    with driver.running():
        (lane,) = driver.next_event(LanesAssigned).lanes
        driver.lose(A)
        event = driver.next_event(LanesRevoked)
        assert (event.lanes, event.reason, event.barrier.remaining) == ((lane.id,), RevokeReason.LOST, 0)
        assert event.barrier.wait(0)
        assert lane.is_fenced
        assert driver.fake.wait_until(lambda: "on_lost_done" in driver.fake.names())
        assert not [name for name in driver.fake.names() if name.startswith("commit_")]


@pytest.mark.invariant(6)
@every_protocol
def test_what_was_not_written_when_the_lane_was_lost_is_not_written_by_it(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol), Destination()

    def fail(_: object) -> None:
        raise TransientError("down")

    destination.behave = fail
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until(lambda: bool(engine.pipelines[0].retries))
        driver.lose()
        engine.until(lambda: not engine.controller.fleet.lanes)
        engine.until(lambda: not engine.pipelines[0].retries)
        destination.behave = lambda _: None
        driver.append(B, [0])
        driver.assign(B)
        engine.until_written(B, [0])
        assert destination.offsets(A) == []


@pytest.mark.invariant(6)
@every_protocol
def test_a_commit_that_was_asked_for_is_not_sent_after_the_loss(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.fake.hold_answers()
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_written(A, range(3))
        engine.until(lambda: bool(driver.commits()))
        before = driver.commits()
        driver.append(A, range(3, 9))
        engine.until_written(A, range(9))
        driver.lose()  # one commit is outstanding, the next is wanted
        engine.until(lambda: not engine.controller.fleet.lanes)
        driver.fake.release_answers()
        driver.assign(B)
        engine.until_committed(B, 0)
        assert [positions for _, positions in driver.commits() if A in positions] == [
            positions for _, positions in before if A in positions
        ]
