"""One bad row in a batch: every other one is written, and the bad one ends as `CONNECTOR_ON_POISON` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from tests.support.connector import ConnectorProcess
from tests.support.group import group_settings
from tests.support.oracle import wait_until_committed
from tests.support.scenario import metric

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(120)]

COUNT = 500
BAD = 250
BAD_KEY = b"\xffkey"
BAD_VALUE = b'{"id": 250, "name": "a NUL: \\u0000"}'  # valid JSON, which no text of PostgreSQL can hold
OWN_HEADERS: list[tuple[str, str | bytes | None]] = [
    ("trace", b"\x00\xff"),
    ("trace", b""),
    ("trace", None),
    ("connector.dlqueue", b"not ours"),
]
OLD_HEADERS: list[tuple[str, str | bytes | None]] = [
    ("connector.dlq.topic", b"of an earlier death"),
    ("connector.dlq.replays", b"2"),
]
NAMES = ("topic", "partition", "offset", "timestamp", "stage", "error_class", "message", "attempts", "group", "replays")


def _produce(kafka: Kafka) -> str:
    """Return a topic with one bad row in the middle."""
    topic = kafka.create_topic()
    kafka.produce(topic, [b'{"id": %d, "name": "n"}' % number for number in range(BAD)])
    kafka.produce(topic, [BAD_VALUE], keys=[BAD_KEY], headers=[*OWN_HEADERS, *OLD_HEADERS])
    kafka.produce(topic, [b'{"id": %d, "name": "n"}' % number for number in range(BAD + 1, COUNT)])
    return topic


def _settings(kafka: Kafka, group_protocol: str, topic: str, dsn: str) -> dict[str, str]:
    with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as connection:
        connection.execute("CREATE TABLE people (id bigint, name text)")  # without a key: a repeat is a row more
    return {
        **group_settings(kafka, group_protocol, f"poison-{topic}", [topic]),
        "CONNECTOR_SINK": "postgres",
        "CONNECTOR_SINK_DSN": dsn,
        "CONNECTOR_SINK_TABLE": "people",
        "CONNECTOR_SINK_COLUMNS": "id:id,name:name",
        "CONNECTOR_SINK_MODE": "insert",
        "CONNECTOR_SINK_PRIMARY_KEY": "false",
        "CONNECTOR_BATCH_ROWS": str(COUNT),
        "CONNECTOR_BATCH_LINGER": "10s",  # until all of them have come
    }


def _ids(dsn: str) -> list[int]:
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM people ORDER BY id").fetchall()]


def _messages(kafka: Kafka, topic: str) -> list[Message[Any, Any]]:
    count = kafka.end_offsets(topic)[0]
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"reader-{topic}", "log_level": 2})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = consumer.consume(count, 20)
    finally:
        consumer.close()
    assert len(found) == count
    return found


def _without_bad() -> list[int]:
    return [number for number in range(COUNT) if number != BAD]


def test_of_a_batch_with_one_bad_row_all_others_are_written_once_and_it_is_kept_byte_for_byte(
    kafka: Kafka, group_protocol: str, postgres_dsn: str, tmp_path: Path
) -> None:
    topic, dlq = _produce(kafka), kafka.create_topic()
    settings = _settings(kafka, group_protocol, topic, postgres_dsn)
    more = {"CONNECTOR_ON_POISON": "dlq", "CONNECTOR_DLQ_TOPIC": dlq}
    with ConnectorProcess("copy", tmp_path, {**settings, **more}) as copy:
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        assert metric(copy, "connector_batches_total", reason="rows") == 1
        assert metric(copy, "connector_written_records_total", topic=topic) == COUNT - 1
        assert metric(copy, "connector_dead_letters_total", topic=topic, stage="write", error="PoisonError") == 1
        assert copy.terminate() == 0
    assert _ids(postgres_dsn) == _without_bad()
    [letter] = _messages(kafka, dlq)
    assert (letter.key(), letter.value()) == (BAD_KEY, BAD_VALUE)
    headers: list[Any] = [*(letter.headers() or ())]
    assert headers[: len(OWN_HEADERS)] == OWN_HEADERS
    ours = dict(headers[len(OWN_HEADERS) :])
    assert len(headers) == len(OWN_HEADERS) + len(ours)
    assert sorted(ours) == sorted(f"connector.dlq.{name}" for name in NAMES)
    assert sum(len(name) + len(value or b"") for name, value in ours.items()) < 4096
    assert (ours["connector.dlq.topic"], ours["connector.dlq.partition"], ours["connector.dlq.offset"]) == (
        topic.encode(),
        b"0",
        str(BAD).encode(),
    )
    assert ours["connector.dlq.replays"] == b"2"


def test_under_skip_a_bad_row_is_counted_and_all_others_are_written_once(
    kafka: Kafka, group_protocol: str, postgres_dsn: str, tmp_path: Path
) -> None:
    topic = _produce(kafka)
    settings = _settings(kafka, group_protocol, topic, postgres_dsn)
    with ConnectorProcess("copy", tmp_path, {**settings, "CONNECTOR_ON_POISON": "skip"}) as copy:
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        assert metric(copy, "connector_skipped_records_total", topic=topic, stage="write", error="PoisonError") == 1
        assert metric(copy, "connector_written_records_total", topic=topic) == COUNT - 1
        assert copy.terminate() == 0
    assert _ids(postgres_dsn) == _without_bad()
    [skipped] = copy.events("record_skipped")
    assert (skipped["topic"], skipped["partition"], skipped["offset"]) == (topic, 0, BAD)


def test_under_fail_a_bad_row_ends_it_with_5_is_named_and_is_not_committed(
    kafka: Kafka, group_protocol: str, postgres_dsn: str, tmp_path: Path
) -> None:
    topic = _produce(kafka)
    settings = _settings(kafka, group_protocol, topic, postgres_dsn)
    with ConnectorProcess("copy", tmp_path, {**settings, "CONNECTOR_ON_POISON": "fail"}) as copy:
        assert copy.wait(40) == 5
    [last] = copy.events("run_ended")
    assert f"{topic}[0]@{BAD}" in last["reason"]
    assert (kafka.committed(settings["CONNECTOR_GROUP_ID"], topic)[0] or 0) <= BAD
    assert set(_ids(postgres_dsn)) <= set(range(BAD))


def test_a_dead_letter_topic_that_is_missing_ends_it_with_2_before_any_record(
    kafka: Kafka, postgres_dsn: str, tmp_path: Path
) -> None:
    topic = _produce(kafka)
    settings = _settings(kafka, "consumer", topic, postgres_dsn)
    more = {"CONNECTOR_ON_POISON": "dlq", "CONNECTOR_DLQ_TOPIC": f"{topic}.missing"}
    with ConnectorProcess("copy", tmp_path, {**settings, **more}) as copy:
        assert copy.wait(40) == 2
    [last] = copy.events("run_ended")
    assert f"CONNECTOR_DLQ_TOPIC={topic}.missing" in last["reason"]
    assert _ids(postgres_dsn) == []
    assert len(kafka.partitions(f"{topic}.missing")) == 0


def test_a_bad_row_at_the_end_dies_once_and_not_at_each_restart_where_the_sink_holds_positions(
    kafka: Kafka, group_protocol: str, postgres_dsn: str, tmp_path: Path
) -> None:
    topic, dlq = kafka.create_topic(), kafka.create_topic()
    kafka.produce(topic, [b'{"id": 0, "name": "n"}', BAD_VALUE])
    settings = _settings(kafka, group_protocol, topic, postgres_dsn)
    more = {"CONNECTOR_ON_POISON": "dlq", "CONNECTOR_DLQ_TOPIC": dlq, "CONNECTOR_SINK_POSITIONS": "true"}
    quick = {"CONNECTOR_BATCH_LINGER": "500ms"}
    copy = ConnectorProcess("copy", tmp_path, {**settings, **more, **quick})
    with copy:
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        assert copy.terminate() == 0
    with copy:
        kafka.produce(topic, [b'{"id": 2, "name": "n"}'])
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        assert copy.terminate() == 0
    assert _ids(postgres_dsn) == [0, 2]
    assert len(_messages(kafka, dlq)) == 1
