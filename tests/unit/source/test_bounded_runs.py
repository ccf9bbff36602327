"""Where a bounded run ends, and positions that pass what is never delivered: markers, aborted and compacted records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message, TopicPartition

from connector import ExitCode, Offset
from connector.api.source_event import CommitReady, Drained, LanesRetired, LanesRevoked
from connector.runtime.snapshot import StatusBoard
from connector.source.bounded import read_ends
from connector.testing.client import FakeClient, records
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver

if TYPE_CHECKING:
    from connector.testing.client import Key

A, B, C = ("t", 0), ("t", 1), ("t", 2)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def _committed(driver: KafkaDriver, key: Key, position: int) -> None:
    driver.fake.stored[key] = TopicPartition(*key, position)


@every_protocol
def test_a_member_with_nothing_left_to_do_stands_by_until_the_whole_group_has_committed_its_ends(protocol: str) -> None:
    driver = KafkaDriver(protocol, ends={A: 2, B: 2}, topics={"t": 2})
    driver.append(A, range(2))
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until(lambda: len(engine.events(LanesRetired)) == 1)
        asked = len(driver.fake.names("committed"))
        engine.until(lambda: len(driver.fake.names("committed")) > asked + 2, "it goes on asking")
        assert not engine.events(Drained)
        _committed(driver, B, 1)
        assert not engine.events(Drained)
        _committed(driver, B, 2)  # by the member that has it
        assert engine.join().code is ExitCode.COMPLETED


@every_protocol
def test_a_member_without_partitions_takes_over_what_another_one_leaves(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, ends={A: 2}, topics={"t": 1}), Destination()
    driver.assign()
    with Engine(driver, destination) as engine:
        engine.until(lambda: engine.controller.has_joined)
        driver.append(A, range(2))
        driver.assign(A)
        assert engine.join().code is ExitCode.COMPLETED
    assert destination.offsets(A) == [0, 1]


@every_protocol
def test_what_comes_after_the_end_is_not_read_and_a_lane_that_is_there_already_commits_and_retires(
    protocol: str,
) -> None:
    driver, destination = KafkaDriver(protocol, ends={A: 3, B: 3, C: 0}, topics={"t": 3}), Destination()
    _committed(driver, B, 3)
    for key in (A, B, C):
        driver.append(key, range(9))
    driver.assign(A, B, C)
    with Engine(driver, destination, commit_interval=60) as engine:
        report = engine.join()
        assert (report.code, report.uncommitted) == (ExitCode.COMPLETED, 0)
        assert sorted(lane for event in engine.events(LanesRetired) for lane in event.lanes) == [1, 2, 3]
        assert engine.events(CommitReady)
    assert [destination.offsets(key) for key in (A, B, C)] == [[0, 1, 2], [], []]
    assert [driver.committed(key) for key in (A, B, C)] == [3, 3, 0]


@every_protocol
def test_a_partition_that_was_created_after_the_start_ends_at_0(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, ends={A: 1}, topics={"t": 1}), Destination()
    driver.append(A, [0])
    driver.append(B, range(5))
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        assert engine.join().code is ExitCode.COMPLETED
    assert destination.offsets(B) == []


@every_protocol
def test_markers_and_aborted_records_at_the_tail_are_passed(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, ends={A: 28, B: 9}, topics={"t": 2}), Destination()
    driver.append(A, [*range(10), 21])
    driver.fake.skip_to(A, 28)
    driver.fake.skip_to(B, 9)  # only aborted records
    driver.assign(A, B)
    with Engine(driver, destination) as engine:
        assert engine.join().code is ExitCode.COMPLETED
    assert destination.offsets(A) == [*range(10), 21]
    assert (driver.committed(A), driver.committed(B)) == (28, 9)


@every_protocol
def test_a_finished_lane_stays_assigned_and_paused_and_its_revocation_is_answered(protocol: str) -> None:
    driver = KafkaDriver(protocol, ends={A: 2, B: 2}, topics={"t": 2})
    driver.append(A, range(2))
    driver.assign(A, B)
    with Engine(driver) as engine:
        engine.until(lambda: len(engine.events(LanesRetired)) == 1)
        assert set(driver.fake.assigned) == {A, B}
        engine.until(lambda: A in driver.fake.paused)
        driver.revoke(A, B)
        engine.until(lambda: any(event.barrier.is_settled for event in engine.events(LanesRevoked)))
        assert driver.fake.wait_served()
        driver.append(B, range(2))
        driver.assign(B)
        assert engine.join().code is ExitCode.COMPLETED


def test_the_end_of_a_run_to_a_time_is_the_first_record_at_or_after_it_and_never_beyond_the_log() -> None:
    client = FakeClient()
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    at = int(noon.timestamp() * 1000)
    client._extend([Message(topic="t", partition=0, offset=n, timestamp=(1, at - 2000 + n * 1000)) for n in range(5)])
    client._extend(records(*B, range(3)))  # without a timestamp after it
    assert read_ends(client, [A, B], noon) == {A: 2, B: 3}
    assert read_ends(client, [A, B, C], None) == {A: 5, B: 3, C: 0}


# Runs without an end.


@every_protocol
def test_at_the_idle_end_of_a_log_with_markers_the_committed_position_reaches_the_end(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, [*range(10), 21])
    driver.fake.skip_to(A, 28)
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_committed(A, 28)
        driver.append(A, [28, 29])
        driver.fake.skip_to(A, 35)
        engine.until_committed(A, 35)
        engine.until_written(A, [*range(10), 21, 28, 29])


@every_protocol
def test_a_hole_of_any_size_is_no_unfinished_work(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    _committed(driver, A, 50)  # in the hole
    driver.fake.watermarks[A] = (0, 200_003)
    driver.append(A, [100, 200_000, 200_002])
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_committed(A, 200_003)
        engine.until_written(A, [100, 200_000, 200_002])


def test_statistics_give_the_end_and_the_lag_of_lanes_that_are_fetched_and_stale_is_not_zero() -> None:
    driver = KafkaDriver()
    driver.append(A, range(3))
    driver.assign(A, B)
    board = StatusBoard("g", driver.metrics)
    with Engine(driver, publish=board.publish) as engine:
        engine.until_committed(A, 3)
        lanes = {lane.partition: lane for lane in engine.controller.fleet.lanes.values()}
        driver.fake.statistics('{"topics": {"t": {"partitions": {"0": {"ls_offset": 10}, "1": {"ls_offset": -1}}}}}')
        engine.until(lambda: lanes[0].end_offset == Offset(10))
        value = driver.metrics.registry.get_sample_value
        engine.until(lambda: value("connector_consumer_lag_records", {"topic": "t", "partition": "0"}) == 7)
        assert lanes[1].end_offset is None
        assert value("connector_consumer_lag_records", {"topic": "t", "partition": "1"}) is None
        driver.revoke(A)
        engine.until(lambda: value("connector_consumer_lag_records", {"topic": "t", "partition": "0"}) is None)
