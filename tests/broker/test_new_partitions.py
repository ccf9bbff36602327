"""Partitions and topics that come while the group is at work, or between two of its runs: nothing is skipped."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.oracle import written_to_files
from tests.support.scenario import Scenario, metric, wait_until_copy

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.connector import ConnectorProcess
    from tests.support.kafka import Kafka
    from tests.support.oracle import Place

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

LATEST = {"CONNECTOR_START": "latest"}


def _records(topic: str, partition: int, offsets: Iterable[int]) -> dict[Place, int]:
    """What is written when each of these records is, once."""
    return {(topic, partition, offset): 1 for offset in offsets}


def _wait_until_written(scenario: Scenario, copy: ConnectorProcess, expected: dict[Place, int]) -> None:
    def is_written() -> bool:
        return expected.keys() <= written_to_files(scenario.files).keys()

    wait_until_copy(copy, f"{len(expected)} records are written", is_written)
    assert dict(written_to_files(scenario.files)) == expected


def _wait_until_committed(scenario: Scenario, copy: ConnectorProcess, topic: str, positions: dict[int, int]) -> None:
    wait_until_copy(
        copy, f"{positions} is committed", lambda: scenario.kafka.committed(scenario.group, topic) == positions
    )


def test_a_latest_start_is_pinned_before_the_first_record_comes(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 10)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, LATEST)
    copy = scenario.copy()
    with copy:
        _wait_until_committed(scenario, copy, topic, {0: 10})
        assert copy.terminate() == 0
        kafka.produce(topic, 5)
        copy.start()
        _wait_until_written(scenario, copy, _records(topic, 0, range(10, 15)))
        assert metric(copy, "connector_starts_total", cause="committed") == 1
        assert copy.terminate() == 0


def test_nothing_of_a_new_partition_is_skipped_under_latest(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 10)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, LATEST)
    copy = scenario.copy()
    with copy:
        _wait_until_committed(scenario, copy, topic, {0: 10})
        kafka.add_partitions(topic, 2)
        kafka.produce(topic, 50, partition=1)
        _wait_until_written(scenario, copy, while_running := _records(topic, 1, range(50)))
        assert metric(copy, "connector_starts_total", cause="new_partition") == 1
        assert metric(copy, "connector_start_offsets_skipped_total", cause="new_partition") == 0
        _wait_until_committed(scenario, copy, topic, {0: 10, 1: 50})
        assert copy.terminate() == 0
        kafka.add_partitions(topic, 3)
        kafka.produce(topic, 20, partition=2)
        copy.start()
        _wait_until_written(scenario, copy, while_running | _records(topic, 2, range(20)))
        assert copy.terminate() == 0


def test_nothing_of_a_new_topic_is_skipped_under_latest(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    prefix = f"pattern-{uuid.uuid4().hex[:8]}"
    first = kafka.create_topic(f"{prefix}-first")
    kafka.produce(first, 10)
    scenario = Scenario(kafka, group_protocol, [f"^{prefix}-.*"], tmp_path, LATEST)
    copy = scenario.copy()
    with copy:
        _wait_until_committed(scenario, copy, first, {0: 10})
        second = kafka.create_topic(f"{prefix}-second", partitions=2)
        kafka.produce(second, 50)
        expected = _records(second, 0, range(25)) | _records(second, 1, range(25))
        _wait_until_written(scenario, copy, expected)
        assert metric(copy, "connector_starts_total", cause="new_partition") == 2
        _wait_until_committed(scenario, copy, second, {0: 25, 1: 25})
        assert copy.terminate() == 0
        third = kafka.create_topic(f"{prefix}-third")
        kafka.produce(third, 20)
        copy.start()
        _wait_until_written(scenario, copy, expected | _records(third, 0, range(20)))
        assert copy.terminate() == 0


def test_nothing_of_the_first_topic_of_a_pattern_is_skipped_under_latest(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    prefix = f"pattern-{uuid.uuid4().hex[:8]}"
    scenario = Scenario(kafka, group_protocol, [f"^{prefix}-.*"], tmp_path, LATEST)
    copy = scenario.copy()
    with copy:
        wait_until_copy(copy, "it has seen the cluster", lambda: metric(copy, "connector_missing_topics") is not None)
        wait_until_copy(copy, "it has chosen a protocol", lambda: copy.status()["group_protocol"])
        topic = kafka.create_topic(f"{prefix}-first")
        kafka.produce(topic, 10)
        _wait_until_written(scenario, copy, _records(topic, 0, range(10)))
        assert copy.terminate() == 0


def test_a_pattern_and_a_blacklist_mean_the_same_under_every_protocol(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    prefix = uuid.uuid4().hex[:8]
    names = [f"{prefix}-a", f"{prefix}-ab", f"x{prefix}-a", f"x{prefix}-b", f"{prefix}-out", f"{prefix}-ignored"]
    for name in names:
        kafka.create_topic(name)
        kafka.produce(name, 1)
    expected = {
        f"^{prefix}-": {names[0], names[1]},
        f"^{prefix}-a$": {names[0]},
        f"^{prefix}-ab|{prefix}-b": {names[1], names[3]},
        f"^{prefix}-a$,{names[2]}": {names[0], names[2]},
    }
    settings = {"CONNECTOR_STOP": "end", "CONNECTOR_KAFKA_TOPIC_BLACKLIST": f"{prefix}-out,^{prefix}-ign"}
    scenarios = {
        pattern: Scenario(kafka, group_protocol, [pattern], tmp_path, settings, group=f"{prefix}-{n}")
        for n, pattern in enumerate(expected)
    }
    with ExitStack() as stack:
        copies = [stack.enter_context(scenario.copy()) for scenario in scenarios.values()]
        assert [copy.wait() for copy in copies] == [0, 0, 0, 0]
    found = {
        pattern: {topic for topic, _, _ in written_to_files(scenario.files)} for pattern, scenario in scenarios.items()
    }
    assert found == expected
