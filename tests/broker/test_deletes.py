"""A topic of changes, with tombstones, becomes a table: each key with its last value, and none that was deleted."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.connector import ConnectorProcess
from tests.support.group import group_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(120)]

PARTITIONS = 2
RECORDS = 3000  # of each partition


def test_a_table_is_the_compacted_topic_also_when_the_topic_is_read_again(
    kafka: Kafka, group_protocol: str, postgres_dsn: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    chance = random.Random(1)
    expected: dict[int, str] = {}
    for partition in range(PARTITIONS):
        ids = [chance.randrange(partition, 400, PARTITIONS) for _ in range(RECORDS)]
        names = [None if chance.random() < 0.4 else f"{number}" for number in range(RECORDS)]
        expected |= {key: name for key, name in dict(zip(ids, names, strict=True)).items() if name is not None}
        kafka.produce(
            topic,
            [None if name is None else b'{"after": {"name": "%s"}}' % name.encode() for name in names],
            partition=partition,
            keys=[b'{"id": %d}' % key for key in ids],
        )
    with psycopg.connect(postgres_dsn, autocommit=True) as database:
        database.execute("CREATE TABLE people (id bigint PRIMARY KEY, name text NOT NULL)")
        for group in ("first", "again"):
            settings = {
                **group_settings(kafka, group_protocol, f"{group}-{topic}", [topic]),
                "CONNECTOR_STOP": "end",
                "CONNECTOR_BATCH_ROWS": "700",
                "CONNECTOR_KEY_FORMAT": "json",
                "CONNECTOR_TOMBSTONES": "delete",
                "CONNECTOR_SINK": "postgres",
                "CONNECTOR_SINK_DSN": postgres_dsn,
                "CONNECTOR_SINK_TABLE": "people",
                "CONNECTOR_SINK_COLUMNS": "id:@key.id,name:after.name",
                "CONNECTOR_SINK_KEY_COLUMNS": "id",
                "CONNECTOR_SINK_MODE": "upsert",
                "CONNECTOR_SINK_POSITIONS": "true",
            }
            with ConnectorProcess(group, tmp_path, settings) as copy:
                assert copy.wait() == 0
            assert dict(database.execute("SELECT id, name FROM people").fetchall()) == expected
    assert 0 < len(expected) < 400
