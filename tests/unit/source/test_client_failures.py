"""What the client and the cluster report: which of it ends the process, with which code, and what is waited out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException

from connector import AuthenticationError, ConfigError, ExitCode, FatalError, FencedError, Offset, UnreachableError
from connector.api.source_event import Idle, LanesAssigned, LanesRevoked
from connector.runtime.controller import ExitState
from connector.source.client_errors import fatal_error, lacks_consumer_protocol
from connector.source.cluster import ClusterView
from connector.source.position import TopicFacts
from connector.testing.client import FakeClient, records
from tests.support.engine import PROTOCOLS, WAIT_SECONDS, Destination, Engine, KafkaDriver, eventually

if TYPE_CHECKING:
    from typing import Any

A, B = ("t", 0), ("t", 1)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
NO_KIP_848 = f"ConsumerGroupHeartbeat fatal error: {KafkaError(KafkaError._UNSUPPORTED_FEATURE).str()}"


def _failure(driver: KafkaDriver) -> FatalError:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            driver.kafka_source.poll_events(0.05)
        except FatalError as error:
            return error
    raise TimeoutError("the source does not fail")


@every_protocol
def test_a_fatal_client_error_comes_once_and_is_fenced_though_it_is_not_marked_fatal(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))
    driver.assign(A)
    with driver.running():
        driver.next_event(LanesAssigned)
        driver.fake.error("_FATAL", "the instance id was taken over")
        error = _failure(driver)
        assert isinstance(error, FencedError)
        assert "CONNECTOR_KAFKA_GROUP_INSTANCE_ID" in str(error)
        assert isinstance(driver.kafka_source.poll_events(0.01), Idle), "it is told once"


@pytest.mark.parametrize(
    ("code", "text", "exit_code"),
    [
        ("_AUTHENTICATION", "bad password", ExitCode.AUTHENTICATION),
        ("SASL_AUTHENTICATION_FAILED", "bad password", ExitCode.AUTHENTICATION),
        ("TOPIC_AUTHORIZATION_FAILED", "no ACL", ExitCode.AUTHENTICATION),
        ("GROUP_AUTHORIZATION_FAILED", "no ACL", ExitCode.AUTHENTICATION),
        ("_FATAL", "ConsumerGroupHeartbeat fatal error: Broker: Group authorization failed", ExitCode.AUTHENTICATION),
        ("_FATAL", "Static consumer fenced", ExitCode.FENCED),
        ("FENCED_INSTANCE_ID", "", ExitCode.FENCED),
        ("UNRELEASED_INSTANCE_ID", "", ExitCode.FENCED),
        ("INCONSISTENT_GROUP_PROTOCOL", "", ExitCode.CONFIGURATION),
        ("GROUP_MAX_SIZE_REACHED", "", ExitCode.CONFIGURATION),
    ],
)
def test_an_error_that_no_waiting_cures_has_its_exit_code_and_a_way_out(code: str, text: str, exit_code: int) -> None:
    error = fatal_error(code, text)
    assert error is not None
    assert error.exit_code == exit_code
    assert code in str(error)


@pytest.mark.parametrize(
    "code", ["_ALL_BROKERS_DOWN", "_TRANSPORT", "_RESOLVE", "_MAX_POLL_EXCEEDED", "_PARTITION_EOF"]
)
def test_an_error_that_the_client_cures_is_counted_and_the_records_go_on(code: str) -> None:
    assert fatal_error(code, "") is None
    driver = KafkaDriver()
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_written(A, range(3))
        driver.fake.error(code)
        driver.fake.client_error(code)
        driver.append(A, [3])
        engine.until_written(A, range(4))
        assert driver.metrics.client_errors.labels(code)._value.get() == 2


def test_an_error_between_records_of_one_consume_takes_none_of_them_away() -> None:
    driver = KafkaDriver()
    driver.append(A, range(3))
    driver.assign(A)
    driver.fake.error("_ALL_BROKERS_DOWN")
    driver.append(A, range(3, 6))
    with Engine(driver) as engine:
        engine.until_written(A, range(6))


@every_protocol
def test_credentials_that_are_refused_while_running_end_with_3(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.assign(A)
    with Engine(driver) as engine:
        driver.fake.client_error("_AUTHENTICATION", "the password has changed")
        assert engine.join().code is ExitCode.AUTHENTICATION


def test_credentials_that_are_refused_at_start_end_with_3_at_once() -> None:
    driver = KafkaDriver()
    driver.cluster.view = None
    driver.cluster.failure = AuthenticationError("refused")
    with Engine(driver) as engine:
        assert engine.join().code is ExitCode.AUTHENTICATION


def test_a_topic_that_may_not_be_described_ends_with_3() -> None:
    driver = KafkaDriver()
    driver.cluster.view = ClusterView({}, (), ("t",), 1)
    driver.assign(A)
    with Engine(driver) as engine:
        report = engine.join()
        assert report.code is ExitCode.AUTHENTICATION
        assert "the right to read the topic" in str(report.error)


def test_a_client_that_raises_is_a_client_that_has_failed() -> None:
    driver = KafkaDriver()
    driver.fake.fail_next("subscribe", "_INVALID_ARG")
    with Engine(driver) as engine:
        assert engine.join().code is ExitCode.FENCED


def test_a_client_that_refuses_its_properties_is_a_matter_of_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: dict[str, Any]) -> FakeClient:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "No such configuration property"))

    driver = KafkaDriver()
    monkeypatch.setattr(driver.kafka_source, "_client_factory", refuse)
    with Engine(driver) as engine:
        report = engine.join()
        assert report.code is ExitCode.CONFIGURATION
        assert "No such configuration property" in str(report.error)


# The cluster at start.


def test_no_cluster_within_the_start_up_time_ends_with_8() -> None:
    driver = KafkaDriver(startup_timeout=0.05)
    driver.cluster.view = None
    driver.cluster.last_error = "_TRANSPORT: connection refused"
    with driver.running():
        error = _failure(driver)
        assert isinstance(error, UnreachableError)
        assert "CONNECTOR_STARTUP_TIMEOUT=50ms" in str(error)
        assert "connection refused" in str(error)


def test_a_source_can_be_closed_while_it_waits_for_the_cluster() -> None:
    driver = KafkaDriver(startup_timeout=60)
    driver.cluster.view = None
    with Engine(driver) as engine:
        assert engine.stop().code is ExitCode.COMPLETED
    assert driver.clients == []


def test_a_cluster_that_comes_late_is_waited_for() -> None:
    driver = KafkaDriver()
    view, driver.cluster.view = driver.cluster.view, None
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver) as engine:
        driver.cluster.view = view
        engine.until_written(A, range(3))


def test_ends_of_a_bounded_run_that_cannot_be_read_are_read_again_and_then_end_with_8() -> None:
    driver = KafkaDriver(ends={A: 2}, topics={"t": 1})
    driver.fake.fail_next("get_watermark_offsets", "_TIMED_OUT", times=3)
    with Engine(driver) as engine:
        assert driver.fake.wait_until(lambda: "subscribe" in [call.name for call in driver.fake.calls])
        driver.append(A, range(2))
        driver.assign(A)
        assert engine.join().code is ExitCode.COMPLETED
    driver = KafkaDriver(ends={A: 2}, topics={"t": 1}, startup_timeout=0.05)
    driver.fake.fail_next("get_watermark_offsets", "_TIMED_OUT", times=10_000)
    with Engine(driver) as engine:
        assert engine.join().code is ExitCode.UNREACHABLE


def test_a_missing_topic_is_waited_for_and_shown() -> None:
    driver = KafkaDriver(topics={}, subscription=["t"])
    with Engine(driver) as engine:
        engine.until(lambda: driver.source.missing_topics == ("t",))
        engine.until(lambda: driver.metrics.registry.get_sample_value("connector_missing_topics") == 1)
        driver.cluster.topics["t"] = TopicFacts(1, "id of t")
        driver.cluster.look()
        driver.append(A, range(3))
        driver.assign(A)
        engine.until_written(A, range(3))
        engine.until(lambda: driver.metrics.registry.get_sample_value("connector_missing_topics") == 0)


def test_a_missing_topic_ends_with_2_where_the_settings_say_so() -> None:
    driver = KafkaDriver(topics={}, subscription=["t"], fails_on_missing_topic=True)
    with driver.running():
        error = _failure(driver)
        assert isinstance(error, ConfigError)
        assert "t" in str(error)
        assert "CONNECTOR_MISSING_TOPIC=wait" in str(error)


# The group protocol.


@pytest.mark.parametrize("classic", ["range", "cooperative-sticky"])
def test_an_older_broker_gets_a_member_of_the_classic_protocol(classic: str) -> None:
    driver = KafkaDriver(protocols=("consumer", classic))
    with Engine(driver) as engine:
        engine.until(lambda: len(driver.clients) == 1)
        old, new = driver.fake, driver.next_client
        assert driver.source.protocol == "consumer"
        old.error("_FATAL", NO_KIP_848)
        new.messages(records(*A, range(3)))
        new.assign_partitions(A)
        engine.until_written(A, range(3))
        new.revoke_partitions(A)
        engine.until(lambda: len(engine.events(LanesRevoked)) == 1)
        engine.until_committed(A, 3)
        assert (driver.source.protocol, driver.fake is new, old.is_closed) == ("classic", True, True)
        new.assign_partitions(B)
        engine.until(lambda: len(engine.events(LanesAssigned)) == (2 if classic == "range" else 1))


def test_the_protocol_is_not_changed_after_the_first_assignment() -> None:
    driver = KafkaDriver(protocols=("consumer", "cooperative-sticky"))
    driver.assign()
    with Engine(driver) as engine:
        engine.until(lambda: engine.controller.has_joined)
        driver.fake.error("_FATAL", NO_KIP_848)
        assert engine.join().state is ExitState.FAILED
    assert len(driver.clients) == 1


def test_a_protocol_that_was_chosen_is_not_changed() -> None:
    driver = KafkaDriver("consumer")
    with Engine(driver) as engine:
        driver.fake.error("_FATAL", NO_KIP_848)
        assert engine.join().state is ExitState.FAILED
    assert len(driver.clients) == 1


def test_only_a_heartbeat_that_the_broker_does_not_know_means_an_older_broker() -> None:
    assert lacks_consumer_protocol("_FATAL", NO_KIP_848)
    assert not lacks_consumer_protocol("_FATAL", "fenced")
    assert not lacks_consumer_protocol("_TRANSPORT", NO_KIP_848)


# What becomes of commits.


@every_protocol
@pytest.mark.parametrize(
    ("code", "calls", "position"),
    [("REBALANCE_IN_PROGRESS", 3, 3), ("ILLEGAL_GENERATION", 1, 0), ("_WAIT_COORD", 3, 3)],
)
def test_a_revocations_commit_is_tried_again_only_where_that_can_help(
    protocol: str, code: str, calls: int, position: int
) -> None:
    driver = KafkaDriver(protocol)
    driver.assign(A)
    with Engine(driver, commit_interval=60) as engine:
        engine.until_committed(A, 0)
        driver.append(A, range(3))
        engine.until_written(A, range(3))
        driver.fake.fail_commit(code, times=2)
        driver.revoke(A)
        engine.until(lambda: any(event.barrier.is_settled for event in engine.events(LanesRevoked)))
        assert [is_synchronous for is_synchronous, _ in driver.commits()].count(True) == calls
        assert driver.committed(A) == position


@every_protocol
def test_a_revocations_commit_that_never_succeeds_is_given_up_and_the_rebalance_goes_on(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.assign(A, B)
    with Engine(driver, commit_interval=60) as engine:
        engine.until_committed(B, 0)
        driver.append(A, range(3))
        driver.append(B, range(3))
        engine.until_written(A, range(3))
        engine.until_written(B, range(3))
        driver.fake.fail_commit("NOT_COORDINATOR", times=3, only=A)
        driver.revoke(A, B)
        engine.until(lambda: any(event.barrier.is_settled for event in engine.events(LanesRevoked)))
        assert (driver.committed(A), driver.committed(B)) == (0, 3), "what can be committed is"


@every_protocol
def test_a_member_that_is_out_does_not_commit_again_and_again(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.assign(A)
    with Engine(driver, commit_interval=0.01) as engine:
        engine.until_committed(A, 0)
        driver.fake.fail_commit("UNKNOWN_MEMBER_ID", times=10_000)
        for offset in range(20):
            driver.append(A, [offset])
            engine.until_written(A, range(offset + 1))
        assert len(driver.commits()) <= 3
        assert engine.controller.error is None
        driver.lose()
        engine.until(lambda: not engine.controller.fleet.lanes)
    assert driver.committed(A) == 0


@every_protocol
def test_a_commit_that_the_client_refuses_outright_is_an_answer_like_any_other(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.fake.fail_next("commit_async", "_STATE")
    driver.fake.fail_next("commit_async", "_WAIT_COORD")
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until(lambda: driver.metrics.commits.labels("wait", "_STATE")._value.get() == 1)
        assert engine.controller.error is None


@every_protocol
def test_a_fenced_commit_ends_with_4(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))
    driver.fake.fail_commit("FENCED_INSTANCE_ID", times=10_000)
    driver.assign(A)
    with Engine(driver, shutdown_timeout=60) as engine:
        assert engine.join().code is ExitCode.FENCED


@every_protocol
def test_only_positions_of_held_lanes_are_committed_with_the_facts_of_their_topic(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol), Destination()
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_committed(A, 3)
        lane = next(iter(engine.controller.fleet.lanes.values()))
        driver.source.commit({type(lane.partition_id)(99): Offset(1)})
        driver.revoke(A)
        engine.until(lambda: not engine.controller.fleet.lanes)
        driver.source.commit({lane.partition_id: Offset(2)})
        driver.assign(B)
        engine.until_committed(B, 0)
    assert driver.committed(A) == 3
    assert '"partitions":4' in (driver.fake.stored[A].metadata or "")
    eventually(lambda: driver.source.is_closed, "closed")
