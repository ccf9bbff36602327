"""Runs with an end: they write exactly what is there, commit every end, and say how they came to it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.support.oracle import written_to_files
from tests.support.process import wait_until
from tests.support.scenario import Scenario, held, readable, send, wait_until_copy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.support.connector import ConnectorProcess
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

END = {"CONNECTOR_STOP": "end"}
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}


def _transactions(kafka: Kafka) -> str:
    """Return a topic of 5 partitions: full, empty, aborted at the tail, only aborted, and one that ends committed."""
    topic = kafka.create_topic(partitions=5)
    kafka.produce(topic, 3000, partition=0)
    producer = kafka.transactional_producer()
    for partition, count, commits in ((2, 10, True), (2, 5, False), (3, 7, False), (4, 4, False), (4, 6, True)):
        send(producer, topic, partition, count, commits=commits)
    return topic


@pytest.fixture(scope="module")
def compacted(kafka: Kafka) -> str:
    """A topic of 2 partitions with holes: the first ends with a record, the second with tombstones."""
    topic = kafka.create_topic(partitions=2, config=_COMPACTED)
    keys = [b"%d" % (number % 5) for number in range(200)]
    for partition in (0, 1):
        kafka.produce(topic, 200, partition=partition, keys=keys)

    def has_holes() -> bool:
        # The cleaner leaves the last segment alone; a record in a later one gives it the others.
        for partition in (0, 1):
            kafka.produce(topic, [b"tick"], partition=partition, keys=[b"tick"])
        return len(readable(kafka, [topic])) < sum(kafka.end_offsets(topic).values()) - 300

    wait_until(has_holes, timeout=90, what=f"{topic} is compacted")
    kafka.topic_config(topic, {"cleanup.policy": "delete"})  # from now on it stays as it is
    kafka.produce(topic, [None] * 5, partition=1, keys=[b"%d" % number for number in range(5)])
    return topic


def _assert_committed_to_the_ends(kafka: Kafka, group: str, topics: Iterable[str]) -> None:
    for topic in topics:
        committed = kafka.committed(group, topic)
        for partition, end in kafka.end_offsets(topic).items():
            assert committed[partition] == end or (end == 0 and committed[partition] is None), (topic, partition)


def _retired(copies: Sequence[ConnectorProcess]) -> int:
    return sum(entry["lanes"] for copy in copies for entry in copy.events("lanes_retired"))


def test_a_run_to_the_end_writes_exactly_what_is_there_and_commits_every_end(
    kafka: Kafka, compacted: str, group_protocol: str, tmp_path: Path
) -> None:
    topics = [_transactions(kafka), compacted, kafka.create_topic(partitions=2)]
    expected = readable(kafka, topics)
    scenario = Scenario(kafka, group_protocol, topics, tmp_path, END)
    copies = [scenario.copy(f"{n}") for n in range(2)]
    with ExitStack() as stack:
        for copy in copies:
            stack.enter_context(copy)
        assert [copy.wait() for copy in copies] == [0, 0]
    assert dict(written_to_files(scenario.files)) == dict.fromkeys(expected, 1)
    assert len(expected) < sum(sum(kafka.end_offsets(topic).values()) for topic in topics) - 300
    _assert_committed_to_the_ends(kafka, scenario.group, topics)
    for copy in copies:
        assert copy.events("run_completed"), copy.name
        assert [entry["exit_code"] for entry in copy.events("run_ended")] == [0]
    assert _retired(copies) >= 9, "each partition of the three topics has ended as a lane"
    assert any(copy.events("lanes_ended") for copy in copies)

    again = scenario.copy("again")
    with again:
        assert again.wait(20) == 0
    assert dict(written_to_files(scenario.files)) == dict.fromkeys(expected, 1)
    assert (len(again.events("run_completed")), _retired([again])) == (1, 9)


def test_what_is_produced_after_the_start_is_not_written(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 2000)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, END)
    with scenario.copy() as copy:
        copy.wait_for_event("lanes_assigned")
        kafka.produce(topic, 500)
        assert copy.wait() == 0
    assert dict(written_to_files(scenario.files)) == {
        (topic, partition, offset): 1 for partition in (0, 1) for offset in range(1000)
    }
    assert kafka.committed(scenario.group, topic) == {0: 1000, 1: 1000}


def test_a_run_ends_before_a_transaction_that_is_open(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 10)
    producer = kafka.transactional_producer()
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, END)
    with scenario.copy() as copy:
        code = copy.wait()
    producer.abort_transaction(30)
    assert code == 0
    assert len(written_to_files(scenario.files)) == 10
    assert kafka.committed(scenario.group, topic) == {0: 10}


def test_a_run_to_a_time_writes_what_is_older(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=3)
    kafka.produce(topic, 50, partition=0)
    kafka.produce(topic, 20, partition=1)
    stop = datetime.fromtimestamp(int(time.time()) + 1, UTC)
    wait_until(lambda: datetime.now(UTC) > stop, timeout=10, what="the time to stop at has passed")
    kafka.produce(topic, 50, partition=0)
    kafka.produce(topic, 5, partition=2)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, {"CONNECTOR_STOP": stop.isoformat()})
    with scenario.copy() as copy:
        assert copy.wait() == 0
    expected = {(topic, 0, offset) for offset in range(50)} | {(topic, 1, offset) for offset in range(20)}
    assert dict(written_to_files(scenario.files)) == dict.fromkeys(expected, 1)
    committed = kafka.committed(scenario.group, topic)
    assert (committed[0], committed[1]) == (50, 20)
    assert committed[2] in (0, None)


def test_a_partition_that_is_done_early_stalls_no_other(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20_000, partition=0)
    kafka.produce(topic, 10, partition=1)
    # A file is made durable once for each batch, so the long one takes its time.
    settings = {**END, "CONNECTOR_LOG_LEVEL": "debug", "CONNECTOR_BATCH_ROWS": "10"}
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, settings)
    with scenario.copy() as copy:
        assert copy.wait() == 0
    retired = [entry["partitions"] for entry in copy.events("lanes_retired")]
    assert retired == [[f"{topic}[1]"], [f"{topic}[0]"]], "the short one goes by itself"
    assert len(written_to_files(scenario.files)) == 20_010
    _assert_committed_to_the_ends(kafka, scenario.group, [topic])


def test_a_member_without_a_partition_stands_by_until_the_group_is_done(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 1000)
    database = tmp_path / "records.db"
    settings = {**END, "CONNECTOR_SINK": "sqlite", "CONNECTOR_SINK_PATH": str(database)}
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    copies = [scenario.copy(f"{n}", settings) for n in range(2)]
    with ExitStack() as stack:
        lock = stack.enter_context(closing(sqlite3.connect(database, isolation_level=None)))
        lock.execute("BEGIN EXCLUSIVE")  # the sink waits
        for copy in copies:
            stack.enter_context(copy)
            wait_until_copy(copy, "it is a member", lambda copy=copy: copy.status()["state"] == "running")  # type: ignore[misc]
        wait_until(lambda: sorted(len(held(copy)) for copy in copies) == [0, 1], timeout=60, what="one stands by")
        assert not any(copy.events("run_completed") for copy in copies)
        lock.execute("ROLLBACK")
        assert [copy.wait() for copy in copies] == [0, 0]
        [(count,)] = lock.execute("SELECT count(*) FROM records").fetchall()
    assert count == 1000
    assert kafka.committed(scenario.group, topic) == {0: 1000}
    assert all(copy.events("run_completed") for copy in copies)
