"""Commits around a revocation: what makes "drain and commit inside the callback" right (INV-5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.client.member import Member, run_until

if TYPE_CHECKING:
    from tests.support.kafka import Kafka

pytestmark = pytest.mark.kafka


def test_a_synchronous_commit_inside_on_revoke_stands_over_an_outstanding_asynchronous_one(
    kafka: Kafka, group_protocol: str
) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20)
    order: list[str] = []

    def commit_twice(member: Member, partitions: list[TopicPartition]) -> None:
        if order:
            return  # inside close()
        early = [TopicPartition(topic, where.partition, 3) for where in partitions]
        late = [TopicPartition(topic, where.partition, 7) for where in partitions]
        member.consumer.commit(offsets=early, asynchronous=True)
        results = member.consumer.commit(offsets=late, asynchronous=False)
        order.append(f"synchronous commit returned: {[done.error for done in results]}")

    def on_commit(error: KafkaError | None, _: list[TopicPartition]) -> None:
        order.append(f"asynchronous commit settled: {error}")

    properties = {"on_commit": on_commit}
    with Member(kafka.bootstrap_servers, topic, group_protocol, on_revoke=commit_twice, properties=properties) as first:
        run_until(lambda: len(first.records) == 20, first)
        with Member(kafka.bootstrap_servers, topic, group_protocol, group=first.group) as second:
            run_until(lambda: "revoke" in [name for name, _ in first.calls], first, second)
            revoked = next(partitions for name, partitions in first.calls if name == "revoke")
            run_until(lambda: len(order) > 1, first, second)
            committed = kafka.committed(first.group, topic)
    assert {committed[partition] for partition in revoked} == {7}
    assert order == [
        f"synchronous commit returned: {[None for _ in revoked]}",
        "asynchronous commit settled: None",
    ]


def test_close_runs_on_revoke_which_can_commit(kafka: Kafka, group_protocol: str) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20)

    def commit(member: Member, partitions: list[TopicPartition]) -> None:
        member.consumer.commit(offsets=member.consumer.position(partitions), asynchronous=False)

    with Member(kafka.bootstrap_servers, topic, group_protocol, on_revoke=commit) as member:
        run_until(lambda: len(member.records) == 20, member)
        before = list(member.calls)
    assert member.calls == [*before, ("revoke", [0, 1])]
    assert kafka.committed(member.group, topic) == {0: 10, 1: 10}


def test_commit_metadata_comes_back_with_the_position(kafka: Kafka, group_protocol: str) -> None:
    topic = kafka.create_topic(partitions=1)
    metadata = '{"topic_id":"AbC-_123","partitions":1}'
    with Member(kafka.bootstrap_servers, topic, group_protocol) as member:
        run_until(lambda: ("assign", [0]) in member.calls, member)
        member.consumer.commit(offsets=[TopicPartition(topic, 0, 5, metadata)], asynchronous=False)
        [found] = member.consumer.committed([TopicPartition(topic, 0)], timeout=10)
    assert (found.offset, found.metadata) == (5, metadata)
