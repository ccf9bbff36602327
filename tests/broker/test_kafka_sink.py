"""The sink `kafka` against a real Kafka: bytes, partitions, missing topics, and kills."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from connector import RecordErrors, Secret, SinkContext, TransientError
from connector.testing import Record, make_batch
from sinks.kafka import KafkaSettings, KafkaSink
from tests.support.kafka_topics import read_topic
from tests.support.process import wait_until

if TYPE_CHECKING:
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

FOOBAR = -790332482  # murmur2 of b"foobar", from the tests of Kafka's Java client


def sink_to(kafka: Kafka, topic: str, **fields: Any) -> KafkaSink:
    context = SinkContext("group", connection={"bootstrap.servers": kafka.bootstrap_servers})
    sink = KafkaSink(KafkaSettings(topic=topic, **fields), context)
    sink.open()
    return sink


@pytest.mark.invariant(12)
def test_a_record_arrives_byte_for_byte(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    headers = [("a", b"1"), ("a", None), ("a", b""), ("", b"\xff\x00"), ("a", b"1")]
    records = [
        Record(None, None, headers, None),
        Record(b"", b"", [], 1),
        Record(b"\xff\xfe\x00", b"\x80", headers, 1_767_225_599_123),
        Record(b"value", None, [("h", b"x")], 5),
        Record(None, b"key", [], 6),
    ]
    sink = sink_to(kafka, topic)
    sink.write(make_batch(*records))
    found = read_topic(kafka, topic)
    assert [(each.key, each.value, each.headers) for each in found] == [
        (record.key, record.value, list(record.headers)) for record in records
    ]
    assert [each.timestamp[1] for each in found] == [-1, 1, 1_767_225_599_123, 5, 6]


def test_the_partition_is_that_of_javas_clients_or_of_the_source(kafka: Kafka) -> None:
    by_key, same = kafka.create_topic(partitions=7), kafka.create_topic(partitions=7)
    batch = make_batch(Record(b"1", b"foobar"), partition=5)
    sink_to(kafka, by_key).write(batch)
    sink_to(kafka, same, partition="same").write(batch)
    assert [each.partition for each in read_topic(kafka, by_key)] == [(FOOBAR & 0x7FFFFFFF) % 7]
    assert [each.partition for each in read_topic(kafka, same)] == [5]


def test_records_that_are_too_large_are_the_only_ones_left_out(kafka: Kafka) -> None:
    topic = kafka.create_topic(config={"max.message.bytes": "20000"})
    noise = random.Random(7)
    values = [noise.randbytes(30_000 if number in (3, 7) else 8_000) for number in range(10)]
    with pytest.raises(RecordErrors) as caught:
        sink_to(kafka, topic).write(make_batch(*values))
    assert sorted(caught.value.errors) == [3, 7]
    assert sorted(each.value or b"" for each in read_topic(kafka, topic)) == sorted(
        value for number, value in enumerate(values) if number not in (3, 7)
    )


def test_a_missing_partition_or_topic_is_waited_for(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=1)
    properties = Secret("topic.metadata.refresh.interval.ms=1000")
    sink = sink_to(kafka, topic, partition="same", timeout=2, properties=properties)
    batch = make_batch(b"1", partition=1)
    with pytest.raises(RecordErrors, match="CONNECTOR_SINK_PARTITION=key") as caught:
        sink.write(batch)
    assert isinstance(caught.value.errors[0], TransientError)
    kafka.add_partitions(topic, 2)

    def arrives() -> bool:
        try:
            sink.write(batch)
        except RecordErrors:
            return False
        return True

    wait_until(arrives, timeout=60, what="the new partition takes the record")
    assert [(each.partition, each.value) for each in read_topic(kafka, topic)] == [(1, b"1")]
    missing = sink_to(kafka, f"{topic}-missing")
    with pytest.raises(RecordErrors, match="Create the topic") as caught:
        missing.write(batch)
    assert isinstance(caught.value.errors[0], TransientError)
