"""What a topic holds, for a reader who sees only what is committed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from tests.support.kafka import Kafka

ORIGIN = ("connector.origin.topic", "connector.origin.partition", "connector.origin.offset")


@dataclass(frozen=True, slots=True)
class Written:
    """One record as a reader gets it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: tuple[int, int]  # type and milliseconds

    def origin_row(self) -> tuple[Any, ...]:
        """Return where it comes from, by its origin headers, then value, key and its other headers."""
        topic, partition, offset = (dict(self.headers)[name] or b"" for name in ORIGIN)
        own = [(name, content) for name, content in self.headers if name not in ORIGIN]
        return topic.decode(), int(partition), int(offset), self.value, self.key, own


def read_topic(kafka: Kafka, topic: str, *, isolation: str = "read_committed", timeout: float = 60) -> list[Written]:
    """Return every record below the end of each partition, partition by partition.

    Raises:
        TimeoutError: Not all could be read in time; so a transaction that stays open is found.
    """
    ends = {partition: end for partition, end in kafka.end_offsets(topic).items() if end}
    found: list[Written] = []
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"reader-{time.time_ns()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "log_level": 2,
        }
    )
    deadline = time.monotonic() + timeout
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        while any(at.offset < ends[at.partition] for at in consumer.position([TopicPartition(topic, p) for p in ends])):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} was not read to its ends {ends} within {timeout:g}s")
            for message in consumer.consume(5000, 0.1):
                assert message.error() is None, message.error()
                found.append(
                    Written(
                        message.partition() or 0,
                        message.offset() or 0,
                        message.key(),
                        message.value(),
                        [*(message.headers() or [])],
                        message.timestamp(),
                    )
                )
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))
