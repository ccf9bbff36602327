"""The servers of the fixtures do what other tests rely on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.client.member import Member, run_until
from tests.support.jvm import start_jvm_broker
from tests.support.kafka import Kafka
from tests.support.process import wait_until

if TYPE_CHECKING:
    from tests.support.postgres import Postgres


@pytest.mark.kafka
def test_records_are_spread_in_turn_and_delivered_before_produce_returns(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=3)
    assert kafka.produce(topic, 10_000) == 10_000
    assert kafka.end_offsets(topic) == {0: 3334, 1: 3333, 2: 3333}
    assert kafka.produce(topic, [b"value", None], partition=2, keys=[b"key", b"key"]) == 2
    assert kafka.end_offsets(topic)[2] == 3335


@pytest.mark.kafka
def test_a_topic_can_grow_and_go(kafka: Kafka) -> None:
    topic = kafka.create_topic(config={"cleanup.policy": "compact"})
    kafka.add_partitions(topic, 3)
    assert kafka.committed("nobody", topic) == {0: None, 1: None, 2: None}
    kafka.delete_topic(topic)
    assert kafka.end_offsets(topic) == {}


@pytest.mark.kafka
def test_a_record_that_is_not_delivered_is_an_error(kafka: Kafka) -> None:
    topic = kafka.create_topic(config={"max.message.bytes": "1000"})
    with pytest.raises(KafkaException) as refused:
        kafka.produce(topic, [b"short", os.urandom(10_000), b"short"])
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.kafka
def test_a_broker_without_the_consumer_protocol_is_named_by_a_fatal_error() -> None:
    with start_jvm_broker({"group.coordinator.rebalance.protocols": "classic"}) as broker:
        topic = Kafka(broker.bootstrap_servers).create_topic()
        with Member(broker.bootstrap_servers, topic, "consumer") as member:
            run_until(lambda: bool(member.errors), member)
            error = member.errors[0].error()
            assert error is not None
            assert (error.code(), error.fatal()) == (KafkaError._FATAL, False)
            assert "ConsumerGroupHeartbeat" in error.str()


@pytest.mark.kafka
def test_a_broker_of_its_own_asks_clients_for_a_password_and_keeps_its_topics_over_a_restart() -> None:
    users = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_connector="right";'
    properties = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": users,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:connector",
    }
    with start_jvm_broker(properties) as broker:
        topic = Kafka(broker.internal_servers).create_topic(partitions=2)
        Kafka(broker.internal_servers).produce(topic, 10)
        broker.stop()
        broker.start()
        assert Kafka(broker.internal_servers).end_offsets(topic) == {0: 5, 1: 5}
        refused: list[KafkaError] = []
        client = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "connector",
            "log_level": 0,
            "error_cb": refused.append,
        }
        assert topic in Producer({**client, "sasl.password": "right"}).list_topics(timeout=10).topics
        stranger = Producer({**client, "sasl.password": "wrong"})
        wait_until(lambda: stranger.poll(0.05) >= 0 and bool(refused), timeout=10, what="the broker refuses it")
        assert refused[0].code() == KafkaError._AUTHENTICATION


@pytest.mark.postgres
def test_every_database_is_empty_and_gone_afterwards(postgres: Postgres) -> None:
    with postgres.database() as dsn:
        still_open = psycopg.connect(dsn)
        still_open.execute("CREATE TABLE found (id int)")
        still_open.commit()
    with postgres.database() as other, psycopg.connect(other) as connection:
        row = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    still_open.close()
    assert row == (0,)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)
