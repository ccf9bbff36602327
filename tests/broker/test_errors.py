"""What cannot be cured ends the process with one clear line and the documented exit code; what can be is waited for."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.command import connector_command
from tests.support.jvm import start_jvm_broker
from tests.support.kafka import Kafka
from tests.support.oracle import wait_until_committed, written_to_files
from tests.support.process import free_ports, wait_until
from tests.support.protected import PASSWORD, allow, as_user, protected_broker
from tests.support.scenario import Scenario, held, metric, wait_until_copy, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.connector import ConnectorProcess
    from tests.support.jvm import JvmBroker

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

WRONG_PASSWORD = "battery-staple"


@pytest.fixture(scope="module")
def protected() -> Iterator[JvmBroker]:
    """A broker with users that lack one right or another."""
    rights = [
        allow("stranger", "read", "group"),
        allow("groupless", "read", "topic"),
        allow("reader", "read", "group"),
        allow("reader", "read", "topic"),
    ]
    with protected_broker(("stranger", "groupless", "reader"), rights) as broker:
        yield broker


def _as_user(broker: JvmBroker, name: str, password: str = PASSWORD) -> dict[str, str]:
    return {**as_user(broker, name, password), "CONNECTOR_LOG_LEVEL": "debug"}


def _reason(copy: ConnectorProcess) -> str:
    """Return what the last line says, after one line that says that it failed; no line has a secret."""
    assert len(copy.events("run_failed")) == 1
    [last] = copy.events("run_ended")
    assert copy.events()[-1] == last
    text = copy.log.read_text()
    assert PASSWORD not in text
    assert WRONG_PASSWORD not in text
    assert "Traceback" not in text
    reason: str = last["reason"]
    assert "\n" not in reason
    return reason


def test_a_wrong_password_ends_it_with_3(protected: JvmBroker, tmp_path: Path) -> None:
    topic = Kafka(protected.internal_servers).create_topic()
    settings = _as_user(protected, "reader", WRONG_PASSWORD)
    scenario = Scenario(Kafka(protected.internal_servers), "consumer", [topic], tmp_path, settings)
    with scenario.copy() as copy:
        assert copy.wait(30) == 3
    assert "CONNECTOR_KAFKA_SASL_PASSWORD" in _reason(copy)


@pytest.mark.parametrize(("user", "missing"), [("stranger", "topic"), ("groupless", "group")])
def test_a_missing_right_ends_it_with_3(
    protected: JvmBroker, group_protocol: str, tmp_path: Path, user: str, missing: str
) -> None:
    kafka = Kafka(protected.internal_servers)
    topic = kafka.create_topic()
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, _as_user(protected, user))
    with scenario.copy() as copy:
        assert copy.wait(30) == 3
    assert f"the right to {'read the topic' if missing == 'topic' else 'use the group'}" in _reason(copy)


def test_the_rights_that_the_messages_name_are_enough_and_no_secret_is_shown(
    protected: JvmBroker, group_protocol: str, tmp_path: Path
) -> None:
    kafka = Kafka(protected.internal_servers)
    topic = kafka.create_topic()
    kafka.produce(topic, 10)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, _as_user(protected, "reader"))
    with scenario.copy() as copy:
        wait_until_committed(kafka, scenario.group, [topic])
        pages = [copy.get(path).text for path in ("/config", "/status", "/metrics", "/readyz", "/")]
        assert copy.terminate() == 0
    assert "CONNECTOR_KAFKA_SASL_PASSWORD" in pages[0]
    for text in (*pages, copy.log.read_text()):
        assert PASSWORD not in text


def test_a_missing_topic_is_waited_for(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = f"missing-{tmp_path.name}-{free_ports(1)[0]}"
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    with scenario.copy() as copy:
        wait_until_copy(copy, "it counts it", lambda: metric(copy, "connector_missing_topics") == 1)
        # The status is made anew a few times a second.
        wait_until_copy(copy, "it says so", lambda: topic in copy.get("/readyz").text)
        assert copy.get("/readyz").status_code == 503
        assert copy.get("/livez").status_code == 200
        kafka.create_topic(topic)
        kafka.produce(topic, 10)
        wait_until_committed(kafka, scenario.group, [topic])
        wait_until_ready(copy)
        assert copy.terminate() == 0
    assert len(written_to_files(scenario.files)) == 10


def test_a_missing_topic_ends_it_with_2_where_that_is_asked_for(kafka: Kafka, tmp_path: Path) -> None:
    topics = [kafka.create_topic(), "missing-for-ever"]
    scenario = Scenario(kafka, "consumer", topics, tmp_path, {"CONNECTOR_MISSING_TOPIC": "fail"})
    with scenario.copy() as copy:
        assert copy.wait(30) == 2
    reason = _reason(copy)
    assert "missing-for-ever" in reason
    assert topics[0] not in reason


def test_a_cluster_that_cannot_be_reached_ends_it_with_8_within_the_startup_timeout(
    kafka: Kafka, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    settings = {"CONNECTOR_BOOTSTRAP_SERVERS": address, "CONNECTOR_STARTUP_TIMEOUT": "3s"}
    scenario = Scenario(kafka, "consumer", ["any"], tmp_path, settings)
    with scenario.copy() as copy:
        assert copy.wait(30) == 8
    assert "CONNECTOR_STARTUP_TIMEOUT=3s" in _reason(copy)
    assert "CONNECTOR_BOOTSTRAP_SERVERS" in _reason(copy)


def test_of_two_copies_with_one_instance_id_the_fenced_one_ends_with_4_and_the_other_works(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=2)
    settings = {"CONNECTOR_KAFKA_GROUP_INSTANCE_ID": "the-one"}
    if group_protocol == "consumer":  # in classic the second would take over from the first: `auto` must not fall back
        settings["CONNECTOR_GROUP_PROTOCOL"] = "auto"
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, settings)
    copies = [scenario.copy(f"{n}") for n in range(2)]
    with ExitStack() as stack:
        stack.enter_context(copies[0])
        wait_until_copy(copies[0], "it holds all", lambda: len(held(copies[0])) == 2)
        stack.enter_context(copies[1])
        wait_until(lambda: not all(copy.is_running for copy in copies), timeout=60, what="one of them ends")
        [fenced] = [copy for copy in copies if not copy.is_running]
        [other] = [copy for copy in copies if copy is not fenced]
        assert fenced.wait() == 4
        assert "CONNECTOR_KAFKA_GROUP_INSTANCE_ID" in _reason(fenced)
        wait_until_copy(other, "it holds all", lambda: len(held(other)) == 2)
        kafka.produce(topic, 100)
        wait_until_committed(kafka, scenario.group, [topic])
        assert other.terminate() == 0
    assert dict(written_to_files(scenario.files)) == {
        (topic, partition, offset): 1 for partition in (0, 1) for offset in range(50)
    }


def test_members_with_strategies_that_do_not_agree_end_with_2_and_the_way_out(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    scenario = Scenario(kafka, "range", [topic], tmp_path)
    with scenario.copy("first") as first:
        wait_until_copy(first, "it holds all", lambda: len(held(first)) == 1)
        with scenario.copy("second", {"CONNECTOR_ASSIGNMENT_STRATEGY": "cooperative-sticky"}) as second:
            assert second.wait(30) == 2
        reason = _reason(second)
        assert "CONNECTOR_ASSIGNMENT_STRATEGY" in reason
        assert "CONNECTOR_GROUP_ID" in reason
        kafka.produce(topic, 10)
        wait_until_committed(kafka, scenario.group, [topic])
        assert first.terminate() == 0


def test_auto_falls_back_to_classic_on_a_broker_without_the_consumer_protocol(tmp_path: Path) -> None:
    with start_jvm_broker({"group.coordinator.rebalance.protocols": "classic"}) as broker:
        kafka = Kafka(broker.bootstrap_servers)
        topic = kafka.create_topic(partitions=2)
        kafka.produce(topic, 100)
        scenario = Scenario(kafka, "consumer", [topic], tmp_path)
        with scenario.copy("auto", {"CONNECTOR_GROUP_PROTOCOL": "auto"}) as copy:
            wait_until_committed(kafka, scenario.group, [topic])
            assert copy.status()["group_protocol"] == "classic"
            wait_until_ready(copy)
            assert copy.terminate() == 0
        assert len(copy.events("group_protocol_fell_back")) == 1
        with scenario.copy("forced") as forced:
            assert forced.wait(30) == 2
        assert "CONNECTOR_GROUP_PROTOCOL=classic" in _reason(forced)
    assert len(written_to_files(scenario.files)) == 100


def test_a_wrong_password_ends_a_command_with_3_too(protected: JvmBroker) -> None:
    topic = Kafka(protected.internal_servers).create_topic()
    settings = {
        **_as_user(protected, "reader", WRONG_PASSWORD),
        "CONNECTOR_GROUP_ID": f"offsets-{topic}",
        "CONNECTOR_TOPICS": topic,
    }
    for command in (["show"], ["reset", "--to", "latest", "--execute"]):
        done = connector_command(settings, "offsets", *command)
        assert done.returncode == 3
        assert "CONNECTOR_KAFKA_SASL_PASSWORD" in done.stderr
        assert WRONG_PASSWORD not in done.stdout + done.stderr
