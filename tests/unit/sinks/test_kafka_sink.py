"""The sink `kafka` without a broker: its settings, what it makes of errors, and where it refuses to write."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import ValidationError

from connector import (
    AuthenticationError,
    ConfigError,
    PoisonError,
    RecordErrors,
    Secret,
    SinkContext,
    TransientError,
)
from connector.testing import Record, make_batch
from sinks.kafka import KafkaSettings, KafkaSink
from sinks.kafka import producer as producer_module
from sinks.kafka.outcome import delivery_error
from sinks.kafka.settings import parse_properties, producer_properties


class FakeProducer:
    """Keeps what is produced; `answers` says what becomes of the next records, None: they arrive."""

    made: list[FakeProducer]
    answers: list[KafkaError | Exception | None]

    def __init__(self, properties: dict[str, Any]) -> None:
        self.properties = properties
        self.produced: list[tuple[Any, ...]] = []
        self.reports: list[Any] = []
        self.flush_error: Exception | None = None
        self.made.append(self)

    def produce(self, topic: str, value: Any, key: Any, partition: int, failed: Any, **rest: Any) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        self.produced.append((topic, value, key, partition, rest["timestamp"], rest["headers"]))
        if answer is not None:
            self.reports.append(lambda: failed(answer, None))

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        reports, self.reports = self.reports, []
        for report in reports:
            report()
        return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeProducer]:
    kind = type("OneFakeProducer", (FakeProducer,), {"made": [], "answers": []})
    monkeypatch.setattr(producer_module, "Producer", kind)
    return kind


def sink_of(context: SinkContext | None = None, **fields: Any) -> KafkaSink:
    context = context or SinkContext("group", connection={"bootstrap.servers": "source:9092", "sasl.password": "s"})
    return KafkaSink(KafkaSettings(topic="copies", **fields), context)


def error_of(code: int) -> KafkaError:
    return KafkaError(code, "said the broker")


# Settings.


@pytest.mark.parametrize("text", ["compression.type=zstd,linger.ms=5", "compression.type=zstd\n linger.ms = 5\n"])
def test_properties_are_written_on_one_line_or_one_a_line(text: str) -> None:
    assert parse_properties(text) == {"compression.type": "zstd", "linger.ms": "5"}


def test_a_value_may_have_commas_and_equals_signs_where_each_property_has_a_line() -> None:
    assert parse_properties("sasl.password=a,b=c\nlinger.ms=5") == {"sasl.password": "a,b=c", "linger.ms": "5"}


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("bootstrap.servers=x:1", "set CONNECTOR_SINK_BOOTSTRAP_SERVERS"),
        ("message.timeout.ms=1", "set CONNECTOR_SINK_TIMEOUT"),
        ("partitioner=random", "set CONNECTOR_SINK_PARTITION"),
        ("acks=1", "is fixed"),
        ("enable.idempotence=false", "is fixed"),
        ("plugin.library.paths=x", "remove it"),
        ("linger.ms", "name=value"),
    ],
)
def test_a_property_that_would_break_a_promise_is_refused_with_the_way_out(text: str, way_out: str) -> None:
    with pytest.raises(ValidationError, match=way_out):
        KafkaSettings(topic="t", properties=Secret(text))


def test_a_problem_with_the_properties_does_not_show_them() -> None:
    with pytest.raises(ValidationError) as caught:
        KafkaSettings(topic="t", properties=Secret("sasl.password=hidden\nacks=0"))
    assert "hidden" not in str(caught.value)


def test_nothing_of_the_source_cluster_goes_to_another_one() -> None:
    context = SinkContext("group", connection={"bootstrap.servers": "source:9092", "sasl.password": "s"})
    own = producer_properties(KafkaSettings(topic="t"), context)
    other = producer_properties(KafkaSettings(topic="t", bootstrap_servers="other:9092"), context)
    assert (own["bootstrap.servers"], own["sasl.password"]) == ("source:9092", "s")
    assert other["bootstrap.servers"] == "other:9092"
    assert "sasl.password" not in other


def test_a_batch_is_never_done_before_all_replicas_in_sync_have_it() -> None:
    properties = producer_properties(KafkaSettings(topic="t"), SinkContext("group"))
    assert (properties["acks"], properties["enable.idempotence"]) == ("all", True)


def test_the_context_does_not_show_the_connection() -> None:
    assert "hidden" not in repr(SinkContext("group", connection={"sasl.password": "hidden"}))


# Records.


def test_a_record_is_produced_as_it_came(fake: type[FakeProducer]) -> None:
    headers = [("h", b"1"), ("h", None), ("h", b"")]
    sink_of().write(make_batch(Record(None, None, headers, None), Record(b"", b"", [], 17), partition=3))
    assert fake.made[0].produced == [
        ("copies", None, None, -1, -1, headers),
        ("copies", b"", b"", -1, 17, []),
    ]


def test_the_partition_may_be_that_of_the_source_and_the_origin_in_headers(fake: type[FakeProducer]) -> None:
    sink_of(partition="same", origin_headers=True).write(make_batch(b"1", topic="orders", partition=3, offset=42))
    [(_, _, _, partition, _, headers)] = fake.made[0].produced
    assert partition == 3
    assert headers == [
        ("connector.origin.topic", b"orders"),
        ("connector.origin.partition", b"3"),
        ("connector.origin.offset", b"42"),
    ]


def test_what_a_decoder_made_is_bytes_again(fake: type[FakeProducer]) -> None:
    decoded: dict[str, list[Any]] = {"value": [{"a": 1}, "text", None], "key": ["k", "k", "k"]}
    sink_of().write(make_batch(b"", b"", b"", decoded=decoded))
    assert [(value, key) for _, value, key, *_ in fake.made[0].produced] == [
        (b'{"a":1}', b"k"),
        (b"text", b"k"),
        (None, b"k"),
    ]


# Failures.


def test_only_the_records_that_failed_are_named_each_with_its_own_class(fake: type[FakeProducer]) -> None:
    fake.answers = [None, error_of(KafkaError.INVALID_RECORD), error_of(KafkaError._MSG_TIMED_OUT), None]
    with pytest.raises(RecordErrors) as caught:
        sink_of().write(make_batch(b"0", b"1", b"2", b"3"))
    assert {index: type(error) for index, error in caught.value.errors.items()} == {1: PoisonError, 2: TransientError}
    assert "orders[0]@1 to copies" in str(caught.value.errors[1])


def test_what_was_refused_for_its_size_is_sent_again_alone(fake: type[FakeProducer]) -> None:
    too_large = error_of(KafkaError.MSG_SIZE_TOO_LARGE)
    fake.answers = [too_large, too_large, None, None, too_large]
    with pytest.raises(RecordErrors) as caught:
        sink_of().write(make_batch(b"0", b"1", b"2"))
    assert [value for _, value, *_ in fake.made[0].produced] == [b"0", b"1", b"2", b"0", b"1"]
    assert {index: type(error) for index, error in caught.value.errors.items()} == {1: PoisonError}


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION]
)
def test_a_missing_right_ends_the_process(fake: type[FakeProducer], code: int) -> None:
    fake.answers = [error_of(code)]
    with pytest.raises(AuthenticationError):
        sink_of().write(make_batch(b"0"))


def test_wrong_credentials_are_told_although_the_records_only_time_out(fake: type[FakeProducer]) -> None:
    sink = sink_of()
    sink.write(make_batch(b"0"))
    fake.answers = [error_of(KafkaError._MSG_TIMED_OUT)]
    [producer] = fake.made
    flush = producer.flush

    def say_why(timeout: float) -> int:
        producer.properties["error_cb"](error_of(KafkaError._AUTHENTICATION))
        producer.properties["error_cb"](error_of(KafkaError._ALL_BROKERS_DOWN))
        return flush(timeout)

    producer.flush = say_why  # type: ignore[method-assign]
    with pytest.raises(AuthenticationError, match="CONNECTOR_SINK_PROPERTIES"):
        sink.write(make_batch(b"0"))


def test_a_producer_that_has_failed_for_good_is_made_anew(fake: type[FakeProducer]) -> None:
    sink = sink_of()
    fake.answers = [KafkaException(error_of(KafkaError._FATAL))]
    with pytest.raises(TransientError, match="made anew"):
        sink.write(make_batch(b"0"))
    sink.write(make_batch(b"0"))
    assert [len(producer.produced) for producer in fake.made] == [0, 1]


def test_a_missing_topic_or_partition_may_come(fake: type[FakeProducer]) -> None:
    for code, advice in (
        (KafkaError._UNKNOWN_TOPIC, "Create the topic"),
        (KafkaError._UNKNOWN_PARTITION, "CONNECTOR_SINK_PARTITION=key"),
    ):
        error = error_of(code)
        found = delivery_error("it", error.name(), error.str())
        assert isinstance(found, TransientError)
        assert advice in str(found)


# Loops.


@pytest.mark.parametrize("topic", ["orders", "copies"])
def test_a_topic_that_is_read_is_not_written_to(fake: type[FakeProducer], topic: str) -> None:
    context = SinkContext("group", subscribes=lambda name: name == topic)
    sink = KafkaSink(KafkaSettings(topic="{topic}" if topic == "orders" else "copies"), context)
    with pytest.raises(ConfigError, match="come back for ever"):
        sink.write(make_batch(b"1", topic="orders"))
    assert fake.made == []
