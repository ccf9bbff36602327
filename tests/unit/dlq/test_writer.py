"""A letter counts when the cluster has confirmed it, and what it does not confirm is named by what helps."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from connector.api.errors import AuthenticationError, ConfigError, PoisonFatalError, TransientError
from connector.dlq.letter import read_letter
from connector.dlq.writer import DeadLetterWriter, OnTooLarge, WriterSettings
from connector.telemetry.metrics import Metrics
from tests.support.process import wait_until
from tests.unit.dlq.dead_messages import DeadMessage, dead

if TYPE_CHECKING:
    from connector.dlq.letter import Letter
    from connector.testing.embedded import EmbeddedBroker

_PRODUCE = 0  # Kafka's API keys
_INIT_PRODUCER_ID = 22


def writer_of(
    broker: EmbeddedBroker,
    metrics: Metrics | None = None,
    on_too_large: OnTooLarge = OnTooLarge.FAIL,
    timeout_seconds: float = 10.0,
) -> DeadLetterWriter:
    settings = WriterSettings("orders.dlq", on_too_large, timeout_seconds)
    return DeadLetterWriter(
        settings, {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}, metrics or Metrics()
    )


def letters_of(count: int, **changes: Any) -> list[Letter]:
    return [dead(DeadMessage(at=offset, **changes)) for offset in range(count)]


def stored(broker: EmbeddedBroker, topic: str = "orders.dlq") -> list[Letter | None]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Letter | None] = []
    while True:
        message = consumer.poll(10)
        assert message is not None, "the end of the topic is not reached"
        if message.error() is not None:
            consumer.close()
            return found
        found.append(read_letter(message))


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"connector_{name}_total", {"topic": "orders", **labels}) or 0.0


@pytest.fixture
def broker(embedded: EmbeddedBroker) -> EmbeddedBroker:
    embedded.create_topic("orders.dlq", 1)
    return embedded


@pytest.mark.embedded
def test_a_topic_that_is_not_there_is_refused_with_the_way_out_and_not_created(embedded: EmbeddedBroker) -> None:
    embedded.create_topic("orders", 1)
    with pytest.raises(ConfigError, match=r"orders\.dlq does not exist.*kafka-topics\.sh --create") as refused:
        writer_of(embedded).check()
    assert refused.value.exit_code == 2
    asking = Producer({"bootstrap.servers": embedded.bootstrap_servers, "log_level": 0})
    assert set(asking.list_topics(timeout=5).topics) == {"orders"}


@pytest.mark.embedded
def test_a_cluster_that_is_down_at_the_check_is_transient_and_the_next_check_passes(broker: EmbeddedBroker) -> None:
    writer = writer_of(broker)
    broker.go_down()
    with pytest.raises(TransientError):
        writer.check()
    broker.come_up()
    writer.check()


@pytest.mark.embedded
def test_letters_are_in_the_topic_when_write_returns_and_counted_by_stage_and_class(broker: EmbeddedBroker) -> None:
    metrics = Metrics()
    writer = writer_of(broker, metrics)
    letters = [
        dead(DeadMessage(None, b"", [("a", None), ("a", b""), ("a", b"\xff")])),
        dead(DeadMessage(b"", None, None)),
        *letters_of(500),
    ]
    expected = list(letters)
    writer.write(letters)
    assert letters == []
    assert stored(broker) == expected
    assert counted(metrics, "dead_letters", stage="write", error="PoisonError") == 502


@pytest.mark.embedded
def test_writing_nothing_asks_nobody(embedded: EmbeddedBroker) -> None:
    embedded.go_down()
    writer_of(embedded).write([])


@pytest.mark.embedded
def test_what_a_cluster_that_is_down_did_not_confirm_is_left_and_a_retry_writes_it(broker: EmbeddedBroker) -> None:
    metrics = Metrics()
    writer = writer_of(broker, metrics, timeout_seconds=1.0)
    writer.check()
    letters = letters_of(3)
    expected = list(letters)
    broker.go_down()
    with pytest.raises(TransientError, match="did not confirm"):
        writer.write(letters)
    assert letters == expected
    assert counted(metrics, "dead_letters", stage="write", error="PoisonError") == 0
    broker.come_up()

    def is_written() -> bool:
        with contextlib.suppress(TransientError):
            writer.write(letters)
        return not letters

    wait_until(is_written, timeout=30, what="the cluster takes them")
    found = stored(broker)
    assert [letter for letter in expected if letter not in found] == []
    assert counted(metrics, "dead_letters", stage="write", error="PoisonError") == 3


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AuthenticationError, "Grant the ACL Write and Describe on the topic"),
        (KafkaError.INVALID_RECORD, ConfigError, "cleanup.policy=delete"),
        (KafkaError.KAFKA_STORAGE_ERROR, TransientError, "did not confirm"),
    ],
)
def test_a_refused_delivery_is_named_by_what_helps(
    broker: EmbeddedBroker, code: int, error: type[Exception], words: str
) -> None:
    writer = writer_of(broker, timeout_seconds=1.0)
    broker.push_errors(_PRODUCE, *[code] * 200)
    letters = letters_of(1)
    with pytest.raises(error, match=words):
        writer.write(letters)
    assert len(letters) == 1


@pytest.mark.embedded
def test_a_producer_that_has_failed_for_good_is_made_anew(broker: EmbeddedBroker) -> None:
    writer = writer_of(broker)
    writer.write(letters_of(1))
    broker.push_errors(_PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    letters = letters_of(2)
    with pytest.raises(TransientError):
        writer.write(letters)
    broker.clear_errors(_PRODUCE)
    writer.write(letters)
    assert letters == []


@pytest.mark.embedded
def test_a_producer_that_may_not_be_idempotent_says_which_right_is_missing(broker: EmbeddedBroker) -> None:
    writer = writer_of(broker)
    broker.push_errors(_INIT_PRODUCER_ID, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(AuthenticationError, match="IdempotentWrite on the cluster"):
        writer.write(letters_of(1))


# Too large: the broker's answer to a batch, then to each of its letters alone.

TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.embedded
def test_letters_that_were_refused_as_one_large_batch_are_written_one_by_one(broker: EmbeddedBroker) -> None:
    writer = writer_of(broker)
    writer.check()
    broker.push_errors(_PRODUCE, TOO_LARGE)
    letters = letters_of(3)
    expected = list(letters)
    writer.write(letters)
    assert stored(broker) == expected


@pytest.mark.embedded
def test_a_letter_that_is_too_large_ends_the_process_under_fail_and_is_not_settled(broker: EmbeddedBroker) -> None:
    writer = writer_of(broker)
    broker.push_errors(_PRODUCE, TOO_LARGE)
    letters = letters_of(1, raw_value=b"v" * 5000)
    with pytest.raises(PoisonFatalError, match=r"orders\[3\]@0 .*5000 bytes.*CONNECTOR_DLQ_ON_TOO_LARGE") as refused:
        writer.write(letters)
    assert refused.value.exit_code == 5
    assert len(letters) == 1


@pytest.mark.embedded
def test_a_letter_that_is_too_large_is_counted_and_passed_over_under_skip(broker: EmbeddedBroker) -> None:
    metrics = Metrics()
    writer = writer_of(broker, metrics, OnTooLarge.SKIP)
    broker.push_errors(_PRODUCE, TOO_LARGE)
    letters = letters_of(1)
    writer.write(letters)
    assert letters == []
    assert stored(broker) == []
    assert counted(metrics, "skipped_records", stage="dlq", error="TooLargeForDeadLetterTopic") == 1
    assert counted(metrics, "dead_letters", stage="write", error="PoisonError") == 0


@pytest.mark.embedded
def test_a_letter_that_is_too_large_keeps_its_beginning_under_truncate(broker: EmbeddedBroker) -> None:
    metrics = Metrics()
    writer = writer_of(broker, metrics, OnTooLarge.TRUNCATE)
    broker.push_errors(_PRODUCE, TOO_LARGE)
    value = os.urandom(5000)
    writer.write(letters_of(1, raw_value=value))
    [letter] = stored(broker)
    assert letter is not None
    assert (letter.value, letter.origin.truncated_bytes) == (value[:1024], 5000)
    assert counted(metrics, "dead_letters_truncated") == 1
    assert counted(metrics, "dead_letters", stage="write", error="PoisonError") == 1


@pytest.mark.embedded
def test_a_letter_that_is_too_large_even_when_it_is_truncated_ends_the_process(broker: EmbeddedBroker) -> None:
    writer = writer_of(broker, on_too_large=OnTooLarge.TRUNCATE)
    broker.push_errors(_PRODUCE, TOO_LARGE, TOO_LARGE)
    with pytest.raises(PoisonFatalError):
        writer.write(letters_of(1))


# The guard against circles.


@pytest.mark.embedded
def test_a_record_of_the_dead_letter_topic_is_never_written_to_it(broker: EmbeddedBroker) -> None:
    with pytest.raises(ConfigError, match="round in a circle"):
        writer_of(broker).write(letters_of(1, of_topic="orders.dlq"))
    assert stored(broker) == []


class SlowRefusal:
    """A producer of a topic that takes nothing, and says so slowly."""

    def __init__(self, _properties: dict[str, Any]) -> None:
        self._waiting: list[Any] = []

    def produce(self, *arguments: Any, **_: Any) -> None:
        self._waiting.append(arguments[4])

    def flush(self, _timeout: float) -> int:
        threading.Event().wait(0.06)
        for report in self._waiting:
            report(KafkaError(TOO_LARGE), None)
        self._waiting.clear()
        return 0


def test_many_letters_that_are_too_large_block_for_a_bounded_time_and_each_call_gets_on() -> None:
    metrics = Metrics()
    settings = WriterSettings("orders.dlq", OnTooLarge.SKIP, timeout_seconds=0.1)
    writer = DeadLetterWriter(settings, {}, metrics, SlowRefusal)  # type: ignore[arg-type]  # what is used of it
    letters = letters_of(50)
    with pytest.raises(TransientError):
        writer.write(letters)
    assert 0 < len(letters) < 50
    assert counted(metrics, "skipped_records", stage="dlq", error="TooLargeForDeadLetterTopic") == 50 - len(letters)
