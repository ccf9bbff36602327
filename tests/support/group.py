"""A group of connector copies: what they have in common, and where the group stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.connector import protocol_settings
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.kafka import Kafka

Partition = tuple[str, int]


def group_settings(kafka: Kafka, group_protocol: str, group: str, topics: Sequence[str]) -> dict[str, str]:
    """Return the settings that all copies of a group share; sessions last 6 s under every protocol."""
    if group_protocol == "consumer":  # whose sessions belong to the broker (KIP-848)
        kafka.group_config(group, {"consumer.session.timeout.ms": "6000"})
    return {
        **protocol_settings(group_protocol),
        "CONNECTOR_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "CONNECTOR_GROUP_ID": group,
        "CONNECTOR_TOPICS": ",".join(topics),
    }


def committed_positions(kafka: Kafka, group: str, topics: Sequence[str]) -> dict[Partition, int]:
    """Return where the group would go on in each partition; 0 where nothing is committed."""
    return {
        (topic, partition): position or 0
        for topic in topics
        for partition, position in kafka.committed(group, topic).items()
    }


def end_positions(kafka: Kafka, topics: Sequence[str]) -> dict[Partition, int]:
    """Return the end of each partition."""
    return {(topic, partition): end for topic in topics for partition, end in kafka.end_offsets(topic).items()}


def wait_until_committed_beyond(kafka: Kafka, group: str, marks: dict[Partition, int], *, timeout: float = 60) -> None:
    """Wait until the group has committed a position above the mark in each of these partitions."""
    topics = sorted({topic for topic, _ in marks})

    def is_done() -> bool:
        committed = committed_positions(kafka, group, topics)
        return all(committed[place] > mark for place, mark in marks.items())

    wait_until(is_done, timeout=timeout, what=f"{group} has committed beyond {marks}")
