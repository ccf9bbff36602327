"""INV-5: a revocation is close, drain, commit, fence, drop, finish, in this order."""

from __future__ import annotations

import pytest

from connector import Offset
from connector.api.source_event import LanesAssigned, LanesRevoked
from connector.lane.lane import Chunk
from connector.testing.client import records
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver

A, B = ("t", 0), ("t", 1)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.mark.invariant(5)
@every_protocol
def test_the_steps_of_a_revocation_come_in_order(protocol: str) -> None:
    """The test is the controller here, and owner of the one lane."""
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))
    driver.assign(A)
    with driver.running():
        (lane,) = driver.next_event(LanesAssigned).lanes
        assert driver.fake.wait_until(lambda: lane.held_bytes > 0)
        driver.revoke(A)
        event = driver.next_event(LanesRevoked)
        assert (lane.is_closed, lane.is_fenced, lane.take(10)) == (True, False, None), "closed, and not fenced"
        assert not lane.put(Chunk(records(*A, [3]), Offset(4), 500))
        event.barrier.arrive()
        assert "commit_sync" not in driver.fake.names(), "the controller comes last"
        event.barrier.attach({lane.partition_id: Offset(2)})
        event.barrier.arrive()
        assert driver.fake.wait_until(lambda: driver.fake.calls[-1].name == "on_revoke_done")
        assert event.barrier.is_settled
        assert lane.is_fenced
        assert driver.committed(A) == 2
    steps = driver.fake.names("on_revoke", "commit_sync", "on_revoke_done")
    assert steps[:3] == ["on_revoke", "commit_sync", "on_revoke_done"], "it commits while it still owns the lane"


@pytest.mark.invariant(5)
@every_protocol
def test_what_was_attached_by_the_deadline_is_committed_and_nothing_that_came_later(protocol: str) -> None:
    driver = KafkaDriver(protocol, drain_timeout=0.05)
    driver.append(A, range(3))
    driver.assign(A)
    with driver.running():
        (lane,) = driver.next_event(LanesAssigned).lanes
        driver.revoke(A)
        event = driver.next_event(LanesRevoked)
        assert event.barrier.attach({lane.partition_id: Offset(1)})
        assert driver.fake.wait_until(lambda: "on_revoke_done" in driver.fake.names())
        assert not event.barrier.attach({lane.partition_id: Offset(3)}), "too late"
        assert driver.committed(A) == 1
        assert driver.metrics.drains.labels("timed_out")._value.get() == 1


@pytest.mark.invariant(5)
@every_protocol
def test_the_commit_of_a_revocation_never_goes_back_and_holds_only_what_leaves(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(9))
    driver.assign(A, B)
    with driver.running():
        lanes = driver.next_event(LanesAssigned).lanes
        driver.source.commit({lanes[0].partition_id: Offset(5)})
        assert driver.fake.wait_until(lambda: driver.committed(A) == 5)
        assert driver.fake.wait_until(lambda: lanes[0].committed == 5 or "on_commit_done" in driver.fake.names())
        driver.revoke()
        event = driver.next_event(LanesRevoked)
        event.barrier.attach({lanes[0].partition_id: Offset(4), lanes[1].partition_id: Offset(0)})
        event.barrier.arrive(3)
        assert driver.fake.wait_until(lambda: "on_revoke_done" in driver.fake.names())
        assert (driver.committed(A), driver.committed(B)) == (5, 0)


@pytest.mark.invariant(1)
@pytest.mark.invariant(5)
@every_protocol
def test_a_record_that_was_polled_and_not_begun_is_not_committed(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol), Destination()
    driver.append(A, [0])
    driver.assign(A)
    destination.hang()
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        driver.append(A, [1, 2])  # in the lane, behind the batch that hangs
        (lane,) = engine.controller.fleet.lanes.values()
        engine.until(lambda: lane.has_chunks)
        driver.revoke(A)
        engine.until(lambda: lane.is_closed)
        destination.gate.set()
        engine.until_committed(A, 1)
        assert destination.offsets(A) == [0]
        driver.assign(A)
        engine.until_written(A, [0, 1, 2])
