"""Where lanes start, by cause, on a real Kafka: what is read, what is skipped, and what the metrics and the log say."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from connector.source.position import TopicFacts
from tests.support.jvm import java, kafka_jars
from tests.support.oracle import wait_until_committed, written_to_files
from tests.support.process import wait_until
from tests.support.scenario import Scenario, commit, metric, topic_facts, wait_until_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


def _produce_around_a_time(kafka: Kafka, topic: str, partition: int, before: int, after: int) -> str:
    """Produce older and newer records, and return the time between them."""
    kafka.produce(topic, before, partition=partition)
    between = datetime.fromtimestamp(int(time.time()) + 1, UTC)
    wait_until(lambda: datetime.now(UTC) > between, timeout=10, what="the time between has passed")
    kafka.produce(topic, after, partition=partition)
    return between.isoformat()


def _assert_starts(
    kafka: Kafka,
    group_protocol: str,
    directory: Path,
    topic: str,
    *,
    setting: str,
    cause: str,
    starts: Mapping[str, int],
    base: int,
    partition: int = 0,
    prepare: Callable[[str], None] = lambda _: None,
) -> None:
    """Start one group for each policy, all at once, and one with the policy `error`.

    Args:
        kafka: The cluster.
        group_protocol: The protocol of all groups.
        directory: For files and logs.
        topic: What they read.
        setting: The setting of the cause.
        cause: The label of the cause.
        starts: Where the partition starts, by policy.
        base: Where it would have started: skipped and repeated offsets are counted from here.
        partition: The one that the policy decides about.
        prepare: Brings a group, whose name it gets, into its state.
    """
    end = kafka.end_offsets(topic)[partition]
    with ExitStack() as stack:
        running = {}
        for policy in (*starts, "error"):
            scenario = Scenario(kafka, group_protocol, [topic], directory, {setting: policy})
            prepare(scenario.group)
            running[policy] = (scenario, stack.enter_context(scenario.copy()))
        for policy, start in starts.items():
            scenario, copy = running[policy]
            wait_until_copy(
                copy,
                f"the end is committed under {policy}",
                lambda group=scenario.group: kafka.committed(group, topic)[partition] == end,  # type: ignore[misc]
            )
            written = {at: n for (_, where, at), n in written_to_files(scenario.files).items() if where == partition}
            assert written == dict.fromkeys(range(start, end), 1), policy
            skipped, repeated = max(0, start - base), max(0, base - start)
            assert metric(copy, "connector_start_offsets_skipped_total", cause=cause) == skipped, policy
            assert metric(copy, "connector_start_offsets_repeated_total", cause=cause) == repeated, policy
            assert metric(copy, "connector_starts_total", cause=cause) == 1, policy
            [said] = [entry for entry in copy.events("start_policy_applied") if entry["partition"] == partition]
            assert (said["cause"], said["position"], said["skipped_offsets"], said["repeated_offsets"]) == (
                cause,
                start,
                skipped,
                repeated,
            )
            assert copy.terminate() == 0
        _, refused = running["error"]
        assert refused.wait() == 2
        [said] = refused.events("run_ended")
        assert f"{setting}=error" in said["reason"]
        assert f"{topic}[{partition}]" in said["reason"]


def test_a_new_group_starts_by_its_policy(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    between = _produce_around_a_time(kafka, topic, 0, 12, 8)
    _assert_starts(
        kafka,
        group_protocol,
        tmp_path,
        topic,
        setting="CONNECTOR_START",
        cause="new_group",
        starts={"earliest": 0, "latest": 20, between: 12},
        base=0,
    )


def test_a_new_partition_starts_by_its_policy(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=2)
    between = _produce_around_a_time(kafka, topic, 1, 12, 8)
    facts = topic_facts(kafka, topic)
    _assert_starts(
        kafka,
        group_protocol,
        tmp_path,
        topic,
        setting="CONNECTOR_START_NEW_PARTITION",
        cause="new_partition",
        starts={"earliest": 0, "latest": 20, between: 12},
        base=0,
        partition=1,
        prepare=lambda group: commit(kafka, group, topic, {0: 0}, TopicFacts(1, facts.topic_id)),
    )


def test_an_expired_position_starts_by_its_policy(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=2)
    between = _produce_around_a_time(kafka, topic, 1, 12, 8)
    facts = topic_facts(kafka, topic)
    _assert_starts(
        kafka,
        group_protocol,
        tmp_path,
        topic,
        setting="CONNECTOR_START_ON_EXPIRED",
        cause="expired",
        starts={"earliest": 0, "latest": 20, between: 12},
        base=0,
        partition=1,
        prepare=lambda group: commit(kafka, group, topic, {0: 0}, facts),
    )


def test_a_position_that_the_broker_has_forgotten_is_expired_whatever_a_new_group_would_do(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    with scenario.copy() as copy:
        wait_until_committed(kafka, scenario.group, [topic])
        assert copy.terminate() == 0
    subprocess.run(
        [
            *(java(), "-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"),
            *("--bootstrap-server", kafka.bootstrap_servers, "--group", scenario.group),
            *("--delete-offsets", "--topic", f"{topic}:1"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert kafka.committed(scenario.group, topic) == {0: 10, 1: None}
    with scenario.copy(settings={"CONNECTOR_START": "latest"}) as copy:
        wait_until_committed(kafka, scenario.group, [topic])
        assert metric(copy, "connector_starts_total", cause="expired") == 1
        assert copy.terminate() == 0
    written = written_to_files(scenario.files)
    assert {place: count for place, count in written.items() if place[1] == 0} == {(topic, 0, n): 1 for n in range(10)}
    assert {place: count for place, count in written.items() if place[1] == 1} == {(topic, 1, n): 2 for n in range(10)}


def test_a_position_below_the_log_starts_by_its_policy_and_the_hole_is_counted(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    between = _produce_around_a_time(kafka, topic, 0, 15, 5)
    kafka.delete_records(topic, {0: 12})
    facts = topic_facts(kafka, topic)
    _assert_starts(
        kafka,
        group_protocol,
        tmp_path,
        topic,
        setting="CONNECTOR_START_ON_OUT_OF_RANGE",
        cause="out_of_range",
        starts={"earliest": 12, "latest": 20, between: 15},
        base=5,
        prepare=lambda group: commit(kafka, group, topic, {0: 5}, facts),
    )


def test_a_position_above_the_log_goes_back_by_its_policy(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    between = _produce_around_a_time(kafka, topic, 0, 15, 5)
    facts = topic_facts(kafka, topic)
    _assert_starts(
        kafka,
        group_protocol,
        tmp_path,
        topic,
        setting="CONNECTOR_START_ON_OUT_OF_RANGE",
        cause="out_of_range",
        starts={"earliest": 0, "latest": 20, between: 15},
        base=100,
        prepare=lambda group: commit(kafka, group, topic, {0: 100}, facts),
    )


def test_records_deleted_while_it_runs_leave_a_hole_that_is_counted(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    with scenario.copy() as copy:
        wait_until_committed(kafka, scenario.group, [topic])
        copy.send(signal.SIGSTOP)
        for _ in range(100):  # one by one: the fetch that is under way returns with the first
            kafka.produce(topic, 1, partition=0)
        kafka.delete_records(topic, {0: 60})
        kafka.produce(topic, 10, partition=1)
        copy.send(signal.SIGCONT)
        wait_until_committed(kafka, scenario.group, [topic])
        skipped = metric(copy, "connector_start_offsets_skipped_total", cause="out_of_range")
        assert copy.terminate() == 0
    written = written_to_files(scenario.files)
    assert set(written.values()) == {1}
    holes = {(topic, 0, offset) for offset in range(110)} - written.keys()
    assert holes == {(topic, 0, offset) for offset in range(60 - len(holes), 60)}
    assert skipped == len(holes) > 0
    assert {place for place in written if place[1] == 1} == {(topic, 1, offset) for offset in range(20)}


def test_a_topic_with_another_id_than_the_position_starts_by_its_policy(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    between = _produce_around_a_time(kafka, topic, 0, 12, 8)
    before = TopicFacts(1, "AAAAAAAAAAAAAAAAAAAAAQ")
    _assert_starts(
        kafka,
        group_protocol,
        tmp_path,
        topic,
        setting="CONNECTOR_START_ON_RECREATED",
        cause="recreated",
        starts={"earliest": 0, "latest": 20, between: 12},
        base=0,
        prepare=lambda group: commit(kafka, group, topic, {0: 7}, before),
    )


def test_a_topic_made_again_while_it_was_stopped_is_read_from_its_start(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 20)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    with scenario.copy() as copy:
        wait_until_committed(kafka, scenario.group, [topic])
        assert copy.terminate() == 0
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
        kafka.produce(topic, 10)
        copy.start()
        wait_until_committed(kafka, scenario.group, [topic])
        assert copy.terminate() == 0
    expected = {(topic, 0, offset): 1 + (offset < 10) for offset in range(20)}
    assert dict(written_to_files(scenario.files)) == expected


def test_a_topic_made_again_while_it_runs_is_read_from_its_start(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic, other = kafka.create_topic(), kafka.create_topic()
    kafka.produce(topic, 20)
    scenario = Scenario(kafka, group_protocol, [topic, other], tmp_path)
    with scenario.copy() as copy:
        wait_until_committed(kafka, scenario.group, [topic])
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
        kafka.produce(topic, 10)
        wait_until_copy(
            copy,
            "the new topic is read",
            lambda: metric(copy, "connector_starts_total", cause="recreated") == 1,
        )
        wait_until_committed(kafka, scenario.group, [topic])
        kafka.produce(other, 5)
        wait_until_committed(kafka, scenario.group, [other])
        assert copy.terminate() == 0
    written = written_to_files(scenario.files)
    assert {place: count for place, count in written.items() if place[0] == topic} == {
        (topic, 0, offset): 1 + (offset < 10) for offset in range(20)
    }
    assert {place for place in written if place[0] == other} == {(other, 0, offset) for offset in range(5)}
