"""The sink `kafka` keeps the contract that a plugin's sink is held to, on a real Kafka."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from connector import Sink, SinkContext
from connector.testing import SinkContract
from sinks.kafka import KafkaSettings, KafkaSink
from tests.support.kafka_topics import read_topic

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

LIMIT_BYTES = 100_000


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
        return KafkaSink(settings, SinkContext(group_id=context.group_id, connection=connection))

    def read_back(self, settings: KafkaSettings) -> list[tuple[Any, ...]]:
        return [record.origin_row() for record in read_topic(self.kafka, self.topic)]
