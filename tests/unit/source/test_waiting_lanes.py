"""Lanes that cannot flow yet: an unread position, a sink that holds it, a position that is not in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from connector import ExitCode, Offset, RefusedError, StoredPosition, TransientError
from connector.api.event import CloseReason, InputClosed
from connector.api.source_event import LanesAdded, LanesAssigned, LanesRevoked, RevokeReason
from connector.source.position import Cause, StartPolicies, StartPolicy, TopicFacts, decode_metadata, encode_metadata
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver

if TYPE_CHECKING:
    from connector import Batch

A, B = ("t", 0), ("t", 1)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
ALL_LATEST = StartPolicies(*[StartPolicy.LATEST] * 5)
ALL_ERROR = StartPolicies(*[StartPolicy.ERROR] * 5)


def _commit(driver: KafkaDriver, position: int, topic_id: str = "id of t") -> None:
    driver.fake.stored[A] = TopicPartition(*A, position, encode_metadata(TopicFacts(4, topic_id)))


def _given(driver: KafkaDriver) -> list[int]:
    """Return the offsets at which partition A was assigned."""
    return [
        offset
        for call in list(driver.fake.calls)
        if call.name in ("assign", "incremental_assign")
        for topic, partition, offset in call.partitions
        if (topic, partition) == A
    ]


# A position that cannot be read.


@every_protocol
@pytest.mark.parametrize("policies", [ALL_LATEST, ALL_ERROR])
def test_a_lane_whose_position_cannot_be_read_waits_and_then_starts_there(
    protocol: str, policies: StartPolicies
) -> None:
    driver = KafkaDriver(protocol, policies=policies)
    _commit(driver, 2)
    driver.append(A, range(4))
    driver.fake.fail_next("committed", "_TIMED_OUT", times=3)
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_written(A, [2, 3])
        assert _given(driver) == [0, 2]
        assert engine.destination.offsets(A) == [2, 3]
        assert len(driver.fake.names("committed")) == 4


@every_protocol
def test_a_lane_that_waits_for_its_position_can_be_revoked_and_nothing_is_committed_for_it(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.fake.fail_next("committed", "_TIMED_OUT", times=10_000)
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until(lambda: bool(engine.events(LanesAssigned)))
        driver.revoke(A)
        engine.until(lambda: any(event.barrier.is_settled for event in engine.events(LanesRevoked)))
        assert driver.commits() == []
        assert engine.stop().code is ExitCode.COMPLETED


@every_protocol
def test_the_other_lanes_flow_while_one_waits(protocol: str) -> None:
    driver = KafkaDriver(protocol, topics={"t": 1, "u": 1})
    driver.append(("t", 0), range(3))
    driver.append(("u", 0), range(3))
    del driver.cluster.topics["u"]  # not known to the cluster yet
    driver.assign(("t", 0), ("u", 0))
    with Engine(driver) as engine:
        engine.until_written(("t", 0), range(3))
        driver.append(("t", 0), [3])
        engine.until_written(("t", 0), range(4))
        driver.cluster.topics["u"] = TopicFacts(1, "id of u")
        engine.until_written(("u", 0), range(3))
        engine.until_written(("t", 0), range(4))  # a new assignment of all repeats nothing of the others


# A sink that holds positions.


@every_protocol
def test_a_lane_waits_for_the_position_of_its_sink_and_starts_there(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, asks_sink=True, policies=ALL_ERROR), Destination()
    destination.stored = {A: StoredPosition(Offset(2), "id of t")}
    destination.claim_errors = [TransientError("down"), TransientError("down")]
    _commit(driver, 1)
    driver.append(A, range(4))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_written(A, [2, 3])
        assert _given(driver) == [0, 2]
        assert len(destination.claims) == 3
        engine.until_committed(A, 4)


@every_protocol
def test_a_sink_without_a_position_leaves_the_start_to_the_group(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, asks_sink=True, policies=ALL_ERROR), Destination()
    destination.stored = {}
    _commit(driver, 1)
    driver.append(A, range(4))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_written(A, [1, 2, 3])


@every_protocol
def test_the_sinks_position_is_not_forgotten_when_what_the_group_says_cannot_be_read(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, asks_sink=True, policies=ALL_LATEST), Destination()
    destination.stored = {A: StoredPosition(Offset(2), "id of t")}
    driver.fake.fail_next("committed", "_TIMED_OUT", times=2)
    driver.append(A, range(4))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until(lambda: len(driver.fake.names("committed")) == 3)
        engine.until_written(A, [2, 3])
        assert driver.metrics.starts.labels("sink")._value.get() == 1


@every_protocol
def test_a_sinks_position_of_a_topic_that_was_made_again_goes_by_the_policy(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, asks_sink=True), Destination()
    destination.stored = {A: StoredPosition(Offset(2), "id of before")}
    driver.append(A, range(4))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_written(A, range(4))
        assert driver.metrics.starts.labels("recreated")._value.get() == 1


@every_protocol
def test_a_refused_lane_comes_back_as_a_new_one_at_the_position_that_the_sink_holds_now(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, asks_sink=True), Destination()
    destination.stored = {A: StoredPosition(Offset(0), "id of t")}

    def refuse(_: Batch) -> None:
        destination.behave = lambda _: None
        destination.stored = {A: StoredPosition(Offset(2), "id of t")}  # written by the other owner meanwhile
        raise RefusedError("claimed by another")

    destination.behave = refuse
    driver.append(A, range(4))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_written(A, [2, 3])
        lost = engine.events(LanesRevoked)[0]
        assert lost.reason is RevokeReason.LOST
        assert engine.events(LanesAdded)[0].lanes[0].id > lost.lanes[0]
        assert [event.reason for _, event in destination.events if isinstance(event, InputClosed)] == [CloseReason.LOST]
        engine.until_committed(A, 4)


# A position that is not in the log.


@every_protocol
def test_a_position_that_retention_has_passed_goes_on_behind_the_hole(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    _commit(driver, 2)
    driver.fake.watermarks[A] = (5, 8)
    driver.assign(A)
    driver.fake.error("_AUTO_OFFSET_RESET", "Offset out of range", A)
    with Engine(driver) as engine:
        engine.until(lambda: _given(driver) == [2, 5])
        driver.append(A, [5, 6, 7])
        engine.until_written(A, [5, 6, 7])
        engine.until_committed(A, 8)
        assert not engine.events(LanesRevoked), "the lane goes on"
        assert driver.metrics.start_offsets_skipped.labels(Cause.OUT_OF_RANGE.value)._value.get() == 3


@every_protocol
def test_a_position_beyond_the_log_goes_back_as_a_new_lane_and_is_committed_there(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    _commit(driver, 100)
    driver.fake.watermarks[A] = (0, 3)
    driver.append(B, range(2))
    driver.assign(A, B)
    driver.fake.error("_AUTO_OFFSET_RESET", "Offset out of range", A)
    with Engine(driver) as engine:
        engine.until(lambda: 0 in _given(driver))
        driver.append(A, range(3))
        engine.until_written(A, range(3))
        engine.until_committed(A, 3)
        engine.until_written(B, range(2))
        assert [len(event.lanes) for event in engine.events(LanesRevoked)] == [1]
        assert len(engine.events(LanesAdded)) == 1
        assert driver.metrics.start_offsets_repeated.labels(Cause.OUT_OF_RANGE.value)._value.get() == 100


@every_protocol
def test_latest_goes_to_the_end_and_error_ends_the_run(protocol: str) -> None:
    driver = KafkaDriver(protocol, policies=StartPolicies(on_out_of_range=StartPolicy.LATEST))
    _commit(driver, 2)
    driver.fake.watermarks[A] = (5, 8)
    driver.assign(A)
    driver.fake.error("_AUTO_OFFSET_RESET", "Offset out of range", A)
    with Engine(driver) as engine:
        engine.until_committed(A, 8)
    driver = KafkaDriver(protocol, policies=StartPolicies(on_out_of_range=StartPolicy.ERROR))
    _commit(driver, 2)
    driver.assign(A)
    driver.fake.error("_AUTO_OFFSET_RESET", "Offset out of range", A)
    with Engine(driver) as engine:
        report = engine.join()
        assert report.code is ExitCode.CONFIGURATION
        assert "CONNECTOR_START_ON_OUT_OF_RANGE=error" in str(report.error)
    assert driver.committed(A) == 2


@every_protocol
@pytest.mark.parametrize("policies", [ALL_LATEST, ALL_ERROR, StartPolicies()])
def test_a_report_of_a_position_that_is_in_the_log_moves_nothing(protocol: str, policies: StartPolicies) -> None:
    driver = KafkaDriver(protocol, policies=policies)
    _commit(driver, 6)
    driver.fake.watermarks[A] = (5, 8)
    driver.assign(A)
    driver.fake.error("_AUTO_OFFSET_RESET", "Offset out of range", A)  # of a fetch before, at a placeholder
    with Engine(driver) as engine:
        engine.until(lambda: _given(driver) == [6, 6])
        driver.append(A, [6, 7])
        engine.until_written(A, [6, 7])
        engine.until_committed(A, 8)
        assert not engine.events(LanesRevoked), "the lane goes on"


@every_protocol
def test_the_ends_of_the_log_are_read_again_until_the_leader_answers(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    _commit(driver, 2)
    driver.fake.watermarks[A] = (5, 8)
    driver.fake.fail_next("get_watermark_offsets", "_TIMED_OUT", times=2)
    driver.assign(A)
    driver.fake.error("_AUTO_OFFSET_RESET", "Offset out of range", A)
    with Engine(driver) as engine:
        engine.until(lambda: _given(driver) == [2, 5])
        assert len(driver.fake.names("get_watermark_offsets")) == 4  # in vain twice, to look, and to decide


# A topic that was deleted and made again while it is read.


@every_protocol
def test_a_topic_made_again_while_running_is_read_by_the_policy_as_new_lanes(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.fake.watermarks[A] = (0, 3)
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_committed(A, 3)
        driver.cluster.topics["t"] = TopicFacts(4, "id of after")
        driver.cluster.look()
        engine.until(lambda: len(engine.events(LanesAdded)) == 1)
        engine.until_written(A, [0, 1, 2, 0, 1, 2])
        engine.until(lambda: decode_metadata(driver.fake.stored[A].metadata) == TopicFacts(4, "id of after"))
        engine.until_committed(A, 3)
        assert [event.reason for event in engine.events(LanesRevoked)] == [RevokeReason.REVOKED]


@every_protocol
def test_a_commit_of_a_topic_of_before_does_not_keep_the_new_one_from_being_committed(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    _commit(driver, 500, "id of before")
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_written(A, range(3))
        engine.until_committed(A, 3)


def test_a_commit_of_a_topic_of_before_does_not_end_a_bounded_run() -> None:
    driver, destination = KafkaDriver(ends={A: 3}, topics={"t": 1}), Destination()
    _commit(driver, 500, "id of before")
    driver.append(A, range(3))
    destination.hang()
    driver.assign(A)
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        assert engine.controller.fleet.lanes, "the lane is not retired"
        destination.gate.set()
        assert engine.join().code is ExitCode.COMPLETED
    assert (destination.offsets(A), driver.committed(A)) == ([0, 1, 2], 3)
