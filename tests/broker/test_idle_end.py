"""At the idle end of a transactional log nothing is left over: the committed position is the end, and the lag is 0."""

from __future__ import annotations

from contextlib import closing
from sqlite3 import connect
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.oracle import wait_until_committed, written_to_files
from tests.support.scenario import Scenario, commit, metric, send, wait_until_copy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.connector import ConnectorProcess
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

LAG = "connector_consumer_lag_records"


def _lane(copy: ConnectorProcess, partition: int) -> dict[str, Any]:
    [lane] = [lane for lane in copy.status()["lanes"] if lane["partition"] == partition]
    return dict(lane)


@pytest.mark.invariant(3)
def test_the_committed_position_reaches_the_end_behind_markers_and_aborted_records(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=3)  # mixed, only aborted, empty
    producer = kafka.transactional_producer()
    for partition, count, commits in (
        (0, 10, True),
        (0, 10, False),
        (0, 1, True),
        (0, 3, False),
        (1, 5, False),
    ):
        send(producer, topic, partition, count, commits=commits)
    assert kafka.end_offsets(topic) == {0: 28, 1: 6, 2: 0}
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    with scenario.copy() as copy:
        wait_until_committed(kafka, scenario.group, [topic], timeout=30)
        for partition, end in ((0, 28), (1, 6)):
            wait_until_copy(
                copy,
                f"the lag of partition {partition} is 0",
                lambda at=partition: metric(copy, LAG, topic=topic, partition=at) == 0,  # type: ignore[misc]
                timeout=15,
            )
            wait_until_copy(
                copy,
                f"the status of partition {partition} shows it",
                lambda at=partition: _lane(copy, at)["lag"] == 0,  # type: ignore[misc]
                timeout=15,
            )
            lane = _lane(copy, partition)
            assert (lane["committed"], lane["end_offset"], lane["watermark"]) == (end, end, end)
            assert metric(copy, "connector_committed_position", topic=topic, partition=partition) == end
        send(producer, topic, 0, 4, commits=False)  # the end moves on while it runs, with nothing to write
        assert kafka.end_offsets(topic)[0] == 33
        wait_until_committed(kafka, scenario.group, [topic], timeout=30)
        assert copy.terminate() == 0
    expected = [*range(10), 22]
    assert dict(written_to_files(scenario.files)) == {(topic, 0, offset): 1 for offset in expected}
    assert kafka.committed(scenario.group, topic) == {0: 33, 1: 6, 2: 0}


def test_the_lag_is_measured_to_the_last_stable_offset_and_absent_before(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 50)
    producer = kafka.transactional_producer()
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    database = tmp_path / "records.db"
    settings = {"CONNECTOR_SINK": "sqlite", "CONNECTOR_SINK_PATH": str(database)}
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    commit(kafka, scenario.group, topic, {0: 20})
    with closing(connect(database, isolation_level=None)) as lock, scenario.copy(settings=settings) as copy:
        lock.execute("BEGIN EXCLUSIVE")  # the sink waits, so nothing is committed
        copy.wait_for_event("admin_started")
        assert metric(copy, LAG, topic=topic, partition=0) in (None, 30)
        wait_until_copy(
            copy, "the lag is measured", lambda: metric(copy, LAG, topic=topic, partition=0) == 30, timeout=30
        )
        wait_until_copy(copy, "the status shows it", lambda: _lane(copy, 0)["lag"] == 30, timeout=15)
        lock.execute("ROLLBACK")
        wait_until_copy(copy, "the lag is 0", lambda: metric(copy, LAG, topic=topic, partition=0) == 0, timeout=30)
        assert kafka.committed(scenario.group, topic) == {0: 50}
        assert copy.terminate() == 0
    producer.abort_transaction(30)


def test_a_partition_that_left_has_no_lag(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    first, second = scenario.copy("first"), scenario.copy("second")

    def measured(copy: ConnectorProcess) -> set[int]:
        return {at for at in (0, 1) if metric(copy, LAG, topic=topic, partition=at) == 0}

    with first:
        wait_until_copy(first, "both are measured", lambda: measured(first) == {0, 1})
        with second:
            wait_until_copy(second, "it measures one", lambda: len(measured(second)) == 1)
            wait_until_copy(first, "it shows the other", lambda: measured(first) == {0, 1} - measured(second))
            for at in measured(second):
                assert metric(first, LAG, topic=topic, partition=at) is None
                assert metric(first, "connector_committed_position", topic=topic, partition=at) is None
            assert second.terminate() == 0
        wait_until_copy(first, "both are measured again", lambda: measured(first) == {0, 1})
        assert first.terminate() == 0
