"""The embedded broker does what the demo and the fast tests use it for, and how the client reports a fatal error."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from connector import FatalError
from connector.testing.embedded import EmbeddedBroker
from tests.client.member import Member, run_for, run_until

pytestmark = pytest.mark.embedded

_OFFSET_COMMIT = 8  # Kafka's API keys
_CONSUMER_GROUP_HEARTBEAT = 68


def produce(broker: EmbeddedBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % 2)
    assert producer.flush(10) == 0


def test_two_members_of_the_embedded_broker_share_a_topic(embedded: EmbeddedBroker) -> None:
    embedded.create_topic("records", 2)
    produce(embedded, "records", 100)
    with Member(embedded.bootstrap_servers, "records", "consumer") as first:
        run_until(lambda: len(first.records) == 100, first)
        with Member(embedded.bootstrap_servers, "records", "consumer", group=first.group) as second:
            run_until(lambda: any(call == "assign" and found for call, found in second.calls), first, second)
            assert len(first.consumer.assignment()) == len(second.consumer.assignment()) == 1


def test_an_error_pushed_to_the_embedded_broker_answers_one_request(embedded: EmbeddedBroker) -> None:
    embedded.create_topic("records", 1)
    with Member(embedded.bootstrap_servers, "records", "consumer") as member:
        run_until(lambda: bool(member.calls), member)
        position = [TopicPartition("records", 0, 1)]
        embedded.push_errors(_OFFSET_COMMIT, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(KafkaException) as refused:
            member.consumer.commit(offsets=position, asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        member.consumer.commit(offsets=position, asynchronous=False)


def test_the_embedded_broker_keeps_its_records_while_it_is_down(embedded: EmbeddedBroker) -> None:
    embedded.create_topic("records", 2)
    produce(embedded, "records", 10)
    embedded.go_down()
    with Member(embedded.bootstrap_servers, "records", "consumer") as member:
        run_for(0.3, member)
        assert member.records == []
        embedded.come_up()
        run_until(lambda: len(member.records) == 10, member)


def test_a_closed_embedded_broker_says_so() -> None:
    broker = EmbeddedBroker()
    broker.close()
    broker.close()
    with pytest.raises(FatalError, match="closed"):
        broker.create_topic("records", 1)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(KafkaError.UNSUPPORTED_VERSION, id="unsupported-version"),
        pytest.param(KafkaError.GROUP_AUTHORIZATION_FAILED, id="group-authorisation"),
        pytest.param(KafkaError.UNRELEASED_INSTANCE_ID, id="unreleased-instance-id"),
    ],
)
def test_a_fatal_error_comes_once_with_the_code_and_not_the_flag(embedded: EmbeddedBroker, code: int) -> None:
    embedded.create_topic("records", 1)
    embedded.push_errors(_CONSUMER_GROUP_HEARTBEAT, code)
    reported: list[KafkaError] = []
    with Member(embedded.bootstrap_servers, "records", "consumer", properties={"error_cb": reported.append}) as member:
        run_until(lambda: bool(member.errors), member, timeout=10)
        run_for(0.5, member)
        [message] = member.errors
        error = message.error()
        assert error is not None
        assert (error.code(), error.fatal()) == (KafkaError._FATAL, False)
        assert "ConsumerGroupHeartbeat" in error.str()
        assert not any(found.fatal() for found in reported)
        with pytest.raises(KafkaException) as refused:
            member.consumer.commit(offsets=[TopicPartition("records", 0, 1)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError._FATAL
        started = time.monotonic()
    assert time.monotonic() - started < 5, "close() waits for nothing after a fatal error"
