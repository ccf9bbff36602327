"""The sink `kafka` keeps the contract that a plugin's sink is held to, on a real Kafka."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from connector import CloseReason, GroupCommit, Sink, SinkContext
from connector.source.client import generation, generation_of
from connector.testing import SinkContract
from sinks.kafka import KafkaSettings, KafkaSink
from tests.support.kafka_topics import read_topic
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connector import LaneId
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

LIMIT_BYTES = 100_000
READ = "contract"  # the topic that the kit's records come from


class TestKafka(SinkContract[KafkaSettings]):
    """Plain: an idempotent producer, each record confirmed."""

    sink_type = KafkaSink
    bad_value = random.Random(1).randbytes(2 * LIMIT_BYTES)  # over the topic's limit, and does not compress

    @pytest.fixture(autouse=True)
    def _cluster(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.topic = kafka.create_topic(config={"max.message.bytes": str(LIMIT_BYTES)})

    def make_settings(self, tmp_path: Path) -> KafkaSettings:
        return KafkaSettings(topic=self.topic, origin_headers=True)

    def make_sink(self, settings: KafkaSettings, context: SinkContext) -> Sink[KafkaSettings]:
        connection = {"bootstrap.servers": self.kafka.bootstrap_servers}
        return KafkaSink(settings, replace(context, connection=connection))

    def read_back(self, settings: KafkaSettings) -> list[tuple[Any, ...]]:
        return [record.origin_row() for record in read_topic(self.kafka, self.topic)]


class TestKafkaTransactional(TestKafka):
    """A transaction for each batch, with the position of its lane, as a member of a real group."""

    @pytest.fixture(autouse=True)
    def _member(self, kafka: Kafka, _cluster: None) -> Iterator[None]:
        if not kafka.partitions(READ):
            kafka.create_topic(READ, partitions=len(CloseReason))
        self.group = f"contract-{self.topic}"
        member = Consumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": self.group, "enable.auto.commit": False}
        )
        member.subscribe([READ])

        def has_joined() -> bool:
            member.poll(0.05)
            return generation(member) > 0

        wait_until(has_joined, timeout=30, what="the member has a generation")
        self.member = member.consumer_group_metadata()
        yield
        member.close()

    def make_settings(self, tmp_path: Path) -> KafkaSettings:
        return KafkaSettings(topic=self.topic, origin_headers=True, transactional=True)

    def group_commit(self, lane: LaneId) -> GroupCommit:
        return GroupCommit(self.member, "")

    def former_group_commit(self, lane: LaneId) -> GroupCommit:
        magic, now = self.member[:7], generation_of(self.member)
        return GroupCommit(magic + (now - 1).to_bytes(4, sys.byteorder, signed=True) + self.member[11:], "")

    def committed(self, settings: KafkaSettings) -> dict[tuple[str, int], int]:
        found = self.kafka.committed(self.group, READ)
        return {(READ, partition): position for partition, position in found.items() if position is not None}
