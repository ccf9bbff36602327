"""Assigning at an offset, pausing and positions: what starting, pausing and ending a lane is built on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.client.member import Member, run_for, run_until

if TYPE_CHECKING:
    from tests.support.kafka import Kafka

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("pauses_first", [True, False])
def test_a_pause_holds_only_after_the_explicit_assign(kafka: Kafka, group_protocol: str, pauses_first: bool) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 10)

    def assign_paused(member: Member, partitions: list[TopicPartition]) -> None:
        if pauses_first:
            member.consumer.pause(partitions)
        member.assign((where.partition, 0) for where in partitions)
        if not pauses_first:
            member.consumer.pause(partitions)

    with Member(kafka.bootstrap_servers, topic, group_protocol, on_assign=assign_paused) as member:
        run_until(lambda: ("assign", [0]) in member.calls, member)
        if pauses_first:
            run_until(lambda: len(member.records) == 10, member)
        else:
            run_for(0.5, member)
            assert member.records == []


def test_a_lane_paused_at_a_placeholder_is_silent_and_then_starts_exactly_where_it_is_assigned(
    kafka: Kafka, group_protocol: str
) -> None:
    """With OFFSET_END as the placeholder a late answer to its look-up can move the lane on to the end."""
    topic = kafka.create_topic()
    kafka.produce(topic, 1000)
    where = [TopicPartition(topic, 0)]

    def assign_at_placeholder(member: Member, partitions: list[TopicPartition]) -> None:
        member.assign((where.partition, 0) for where in partitions)
        member.consumer.pause(partitions)

    with Member(kafka.bootstrap_servers, topic, group_protocol, on_assign=assign_at_placeholder) as member:
        run_until(lambda: ("assign", [0]) in member.calls, member)
        run_for(0.3, member)
        assert member.records == []
        for start in range(100, 900, 20):
            member.reassign(0, 0)
            member.consumer.pause(where)
            assert member.step(0.001 * (start // 20 % 3)) == []
            member.records.clear()
            member.consumer.resume(where)
            member.reassign(0, start)
            run_until(lambda: bool(member.records), member)
            assert member.offsets[0] == start


def test_a_paused_lane_goes_on_at_once_and_without_a_gap_when_it_is_assigned_again(
    kafka: Kafka, group_protocol: str
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 3000)
    where = [TopicPartition(topic, 0)]
    waits: list[float] = []
    with Member(kafka.bootstrap_servers, topic, group_protocol) as member:
        for target in (500, 1000, 1500):
            run_until(lambda least=target: len(member.records) >= least, member)  # type: ignore[misc]
            member.consumer.pause(where)
            run_for(0.1, member)
            taken = len(member.records)
            started = time.monotonic()
            member.consumer.resume(where)
            member.reassign(0, taken)
            run_until(lambda least=taken: len(member.records) > least, member)  # type: ignore[misc]
            waits.append(time.monotonic() - started)
        run_until(lambda: len(member.records) >= 3000, member)
    assert member.offsets == list(range(3000))
    assert min(waits) < 0.5, f"a plain resume costs up to 1 s, and this is to avoid it: {waits}"


def test_without_a_position_a_partition_reports_it_and_an_assign_with_an_offset_cures_it(
    kafka: Kafka, group_protocol: str
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 10)
    with Member(kafka.bootstrap_servers, topic, group_protocol, properties={"auto.offset.reset": "error"}) as member:
        run_until(lambda: bool(member.errors), member)
        [message] = member.errors
        error = message.error()
        assert error is not None
        assert (error.code(), message.topic(), message.partition()) == (KafkaError._AUTO_OFFSET_RESET, topic, 0)
        assert "no previously committed offset available" in error.str()
        with pytest.raises(KafkaException) as refused:
            member.consumer.seek(TopicPartition(topic, 0, 2))
        assert refused.value.args[0].code() == KafkaError._STATE
        member.reassign(0, 2)
        run_until(lambda: len(member.records) == 8, member)
    assert member.offsets == list(range(2, 10))


def test_out_of_range_is_told_from_no_position_by_the_text(kafka: Kafka, group_protocol: str) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 10)
    kafka.delete_records(topic, {0: 6})

    def assign_at_start(member: Member, partitions: list[TopicPartition]) -> None:
        member.assign((where.partition, 0) for where in partitions)

    with Member(
        kafka.bootstrap_servers,
        topic,
        group_protocol,
        on_assign=assign_at_start,
        properties={"auto.offset.reset": "error"},
    ) as member:
        run_until(lambda: bool(member.errors), member)
        error = member.errors[0].error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
        assert "out of range" in error.str().lower()


def test_one_consume_can_hold_a_revoke_an_assign_and_records_of_the_new_assignment(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20)
    stop = threading.Event()

    with Member(kafka.bootstrap_servers, topic, "range") as first:
        run_until(lambda: len(first.records) == 20, first)
        before = len(first.calls)
        second = Member(kafka.bootstrap_servers, topic, "range", group=first.group)

        def consume_until_stopped() -> None:
            while not stop.is_set():
                second.step()

        thread = threading.Thread(target=consume_until_stopped, name="second-member")
        thread.start()
        try:
            records = first.step(timeout=4, count=1_000_000)
        finally:
            stop.set()
            thread.join(timeout=30)
            second.consumer.close()
        calls = first.calls[before:]
    assert [name for name, _ in calls[:2]] == ["revoke", "assign"]
    assert len(calls[1][1]) == 1
    assert {record.partition() for record in records} == set(calls[1][1])  # nothing was committed: it starts again


def test_the_position_at_the_idle_end_of_a_transactional_log_is_the_end(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    producer = kafka.transactional_producer()
    for count, commits in ((10, True), (10, False), (1, True), (3, False)):
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, str(number).encode())
        producer.flush(10)  # an abort would drop what has not been sent
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "enable.auto.commit": False}
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        offsets: list[int | None] = []
        deadline = time.monotonic() + 20
        while consumer.position([TopicPartition(topic, 0)])[0].offset != 28 and time.monotonic() < deadline:
            offsets += [message.offset() for message in consumer.consume(100, 0.1) if not message.error()]
        assert consumer.position([TopicPartition(topic, 0)])[0].offset == 28
    assert kafka.end_offsets(topic) == {0: 28}
    assert offsets == [*range(10), 22]
