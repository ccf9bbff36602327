"""Where the sink commits the group's positions, the source commits none, and everything else goes on as ever."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from connector import RefusedError, StopCause
from connector.api.event import Stop
from connector.api.source_event import LanesRevoked
from connector.runtime.controller import ExitState
from connector.testing import FakeClient
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver, together

if TYPE_CHECKING:
    from connector import Batch

A, B = ("t", 0), ("t", 1)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


class Member(FakeClient):
    """A client whose generation a test sets."""

    generation = 1

    def consumer_group_metadata(self) -> bytes:
        return b"CGMDv2:" + self.generation.to_bytes(4, sys.byteorder, signed=True) + b"group"


class Transactional(Destination):
    """Commits the position of each batch with the records, as a member who has the lane."""

    def __init__(self, driver: KafkaDriver) -> None:
        super().__init__()
        self.commits_positions = True
        self.refused: list[tuple[str, int]] = []
        self.members: list[bytes] = []  # as whom each batch was committed
        self._driver = driver
        self.behave = self.commit

    def commit(self, batch: Batch) -> None:
        metadata = batch.metadata
        key = metadata.topic, metadata.partition
        try:
            commit = self._driver.membership.group_commit(metadata.lane)
        except RefusedError:
            self.refused.append(key)
            raise
        self.members.append(commit.member)
        self._driver.fake.stored[key] = TopicPartition(*key, metadata.next_offset, commit.metadata)


@every_protocol
def test_the_client_commits_nothing_and_every_position_counts_as_committed(protocol: str) -> None:
    driver = KafkaDriver(protocol, sink_commits=True)
    destination = Transactional(driver)
    driver.append(A, range(3))
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        engine.until_committed(A, 3)
        engine.until_committed(B, 0)  # a start that was chosen stands, without a record
        lanes = {(lane.topic, lane.partition): lane for lane in engine.controller.fleet.lanes.values()}
        engine.until(lambda: lanes[A].committed == 3 and lanes[B].committed == 0, "the lanes know it")
        report = engine.stop()
    assert report.state is ExitState.STOPPED
    assert driver.commits() == []
    assert destination.refused == []  # the lanes were published before anybody heard of them


@every_protocol
def test_a_drain_ends_with_what_leaves_committed(protocol: str) -> None:
    driver = KafkaDriver(protocol, sink_commits=True)
    destination = Transactional(driver)
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_committed(A, 3)
        destination.hang()
        driver.append(A, range(3, 6))
        destination.wait_hanging()
        driver.revoke()
        engine.until(lambda: bool(engine.events(LanesRevoked)), "the revocation has begun")
        destination.gate.set()
        engine.until(lambda: not engine.controller.fleet.lanes, "the lane has left")
        assert driver.committed(A) == 6
    assert driver.commits() == []
    assert destination.refused == []


@pytest.mark.invariant(6)
@every_protocol
def test_a_lane_that_was_lost_cannot_be_committed(protocol: str) -> None:
    driver = KafkaDriver(protocol, sink_commits=True)
    destination = Transactional(driver)
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_committed(A, 3)
        destination.hang()
        driver.append(A, range(3, 6))
        destination.wait_hanging()
        driver.lose()
        engine.until(lambda: not engine.controller.fleet.lanes, "the lane is lost")
        destination.gate.set()
        engine.until(lambda: destination.refused == [A], "its write is refused")
    assert driver.committed(A) == 3
    assert destination.offsets(A) == [0, 1, 2]


def test_a_drain_commits_in_the_generation_that_the_revocation_belongs_to() -> None:
    driver = KafkaDriver("cooperative-sticky", sink_commits=True)
    driver.next_client = client = Member()
    destination = Transactional(driver)
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_committed(A, 3)
        destination.hang()
        driver.append(A, range(3, 6))
        destination.wait_hanging()
        with together(client):  # a cooperative group has rejoined by then, and nothing was polled in between
            client._push(lambda: setattr(client, "generation", 2))
            driver.revoke()
        engine.until(lambda: bool(engine.events(LanesRevoked)), "the revocation has begun")
        destination.gate.set()
        engine.until_committed(A, 6)
    assert int.from_bytes(destination.members[-1][7:11], sys.byteorder) == 2


def test_a_lane_begins_again_at_the_groups_position_after_a_crash() -> None:
    driver = KafkaDriver("consumer", sink_commits=True)
    destination = Transactional(driver)
    crashes = [RuntimeError("a bug, after the commit")]

    def commit_and_crash(batch: Batch) -> None:
        destination.commit(batch)
        if batch and crashes:
            destination.written.extend(batch.rows("topic", "partition", "offset"))
            raise crashes.pop()

    destination.behave = commit_and_crash
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until(lambda: not crashes, "the crash")
        engine.until_committed(A, 3)
        driver.append(A, range(3, 5))
        engine.until_committed(A, 5)
        engine.until_written(A, range(5))
    assert driver.commits() == []


def test_a_lane_begins_again_at_the_groups_position_when_nobody_knew() -> None:
    driver = KafkaDriver("consumer", sink_commits=True)
    destination = Transactional(driver)
    is_first = True

    def commit_without_an_answer(batch: Batch) -> None:
        nonlocal is_first
        destination.commit(batch)
        if is_first and batch:
            is_first = False
            destination.written.extend(batch.rows("topic", "partition", "offset"))
            raise RefusedError("committed, and the answer got lost")

    destination.behave = commit_without_an_answer
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_committed(A, 3)
        driver.append(A, range(3, 5))
        engine.until_committed(A, 5)
        engine.until_written(A, range(5))
    assert driver.commits() == []


@every_protocol
def test_a_bounded_run_ends_by_the_sinks_commits(protocol: str) -> None:
    driver = KafkaDriver(protocol, topics={"t": 2}, ends={A: 3, B: 0}, sink_commits=True)
    destination = Transactional(driver)
    driver.append(A, range(3))
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        report = engine.join()
    assert report.state is ExitState.COMPLETED
    assert (driver.committed(A), driver.committed(B)) == (3, 0)
    assert driver.commits() == []
    assert destination.events[-1][1] == Stop(StopCause.ALL_INPUTS_CLOSED)
