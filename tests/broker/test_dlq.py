"""Dead letters on a real Kafka: byte for byte into their topic and back, and a replay that is killed goes on."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from connector.api.errors import PoisonFatalError
from connector.dlq.letter import REPLAYS, read_letter
from connector.dlq.writer import DeadLetterWriter, OnTooLarge, WriterSettings
from connector.source.client_config import ClientSettings, client_properties
from connector.telemetry.metrics import Metrics
from tests.client.member import Member, run_until
from tests.support.process import end_process, start_process
from tests.unit.dlq.dead_messages import DeadMessage, dead

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from confluent_kafka import Message

    from connector.dlq.letter import Letter
    from tests.support.kafka import Kafka

pytestmark = pytest.mark.kafka

SHAPES: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"key", b"value", [("trace", b"1"), ("trace", b"1")]),
    (None, b"", [("empty", b""), ("null", None)]),
    (b"", None, []),
    (b"\x00\xff", os.urandom(3000), [("binary", b"\xfe\x00"), ("ä", "ö".encode())]),
]


def write(kafka: Kafka, topic: str, letters: list[Letter], **settings: Any) -> None:
    writer = DeadLetterWriter(
        WriterSettings(topic, timeout_seconds=20, **settings), {"bootstrap.servers": kafka.bootstrap_servers}, Metrics()
    )
    writer.check()
    writer.write(letters)
    assert letters == []
    writer.close()


def records(kafka: Kafka, topic: str, partition: int = 0) -> list[Message[Any, Any]]:
    """Everything in a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Message[Any, Any]] = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "the end of the partition is not reached"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            consumer.close()
            return found
        found.append(message)


@pytest.fixture
def connector(kafka: Kafka, tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Start `connector dlq …`; its output goes to `tmp_path / "out"`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTOR_")}
    (tmp_path / "connection.env").write_text(f"CONNECTOR_BOOTSTRAP_SERVERS={kafka.bootstrap_servers}\n")

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return start_process(
            [sys.executable, "-m", "connector", "dlq", *arguments, "--env-file", str(tmp_path / "connection.env")],
            log=tmp_path / "out",
            environment=clean,
        )

    return start


@pytest.fixture
def run(connector: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run `connector dlq …` to its end; returns its exit code and what it printed."""

    def to_the_end(*arguments: str) -> tuple[int, str]:
        (tmp_path / "out").unlink(missing_ok=True)
        process = connector(*arguments)
        try:
            return process.wait(60), (tmp_path / "out").read_text()
        finally:
            end_process(process)

    return to_the_end


def test_twenty_letters_are_replayed_byte_for_byte_once_and_stay_where_they_are(
    kafka: Kafka, run: Callable[..., tuple[int, str]]
) -> None:
    orders, dlq = kafka.create_topic(partitions=4), kafka.create_topic(partitions=2)
    an_hour_ago = int(time.time() * 1000) - 3_600_000  # within the retention: the broker may look at any moment
    originals = [
        DeadMessage(*SHAPES[number % 4], orders, number % 4, number, (1, an_hour_ago + number)) for number in range(20)
    ]
    write(kafka, dlq, [dead(message) for message in originals])

    code, out = run("replay", "--topic", dlq, "--dry-run")
    assert (code, out) == (0, f"20 dead letters would be replayed.\n  20 to {orders}\n")
    assert sum(kafka.end_offsets(orders).values()) == 0

    code, out = run("replay", "--topic", dlq)
    assert (code, out) == (0, f"20 dead letters replayed.\n  20 to {orders}\n")
    replayed = [record for partition in range(4) for record in records(kafka, orders, partition)]
    expected = [original for partition in range(4) for original in originals if original.of_partition == partition]
    for record, original in zip(
        sorted(replayed, key=lambda each: each.timestamp()[1]),
        sorted(expected, key=lambda each: each.stamp),
        strict=True,
    ):
        assert (record.partition(), record.timestamp()) == (original.of_partition, original.stamp)
        assert (record.key(), record.value()) == (original.raw_key, original.raw_value)
        assert record.headers() == [*(original.raw_headers or []), (REPLAYS, b"1")]

    code, out = run("replay", "--topic", dlq)
    assert (code, out) == (0, "0 dead letters replayed.\n")
    assert sum(kafka.end_offsets(dlq).values()) == 20


def test_a_replay_that_is_killed_goes_on_and_loses_none(
    kafka: Kafka,
    connector: Callable[..., subprocess.Popen[bytes]],
    run: Callable[..., tuple[int, str]],
) -> None:
    orders, dlq = kafka.create_topic(), kafka.create_topic()
    count = 10_000
    letters = [dead(DeadMessage(str(number).encode(), b"v" * 300, [], orders, 0, number)) for number in range(count)]
    write(kafka, dlq, letters)
    with Member(kafka.bootstrap_servers, orders, "consumer") as downstream:
        run_until(lambda: bool(downstream.calls), downstream)
        process = connector("replay", "--topic", dlq)
        run_until(lambda: len(downstream.records) > 200, downstream)
        process.kill()
        process.wait(10)
    before = kafka.end_offsets(orders)[0]
    assert before < count, "it was killed too late to prove anything"
    code, out = run("replay", "--topic", dlq)
    assert code == 0, out
    assert int(out.split()[0]) < count, "it began anew"
    keys = [int(record.key() or b"") for record in records(kafka, orders)]
    assert set(keys) == set(range(count))
    assert len(keys) <= count + 100, "it repeats at most the last chunk"


def test_filters_limit_and_target_choose_what_goes_where(kafka: Kafka, run: Callable[..., tuple[int, str]]) -> None:
    orders, other, dlq = kafka.create_topic(), kafka.create_topic(), kafka.create_topic()
    kafka.produce(dlq, [b"no letter"])
    write(kafka, dlq, [dead(DeadMessage(of_topic=orders, at=number)) for number in range(5)])
    write(kafka, dlq, [dead(DeadMessage(of_topic="payments", at=9))])
    write(kafka, dlq, [dead(DeadMessage(of_topic=orders, at=77, raw_value=b"v" * 9999)).truncated()])
    code, out = run("replay", "--topic", dlq, "--origin", orders, "--to", other, "--limit", "3")
    assert (code, out.splitlines()[:2]) == (0, ["3 dead letters replayed.", f"  3 to {other}"])
    code, out = run("replay", "--topic", dlq, "--origin", orders, "--to", other)
    assert code == 0
    assert out.splitlines() == [
        "2 dead letters replayed.",
        f"  2 to {other}",
        "  1 passed over: left out by the filter",
        "  1 passed over: truncated, so that it is not the record",
        f"The group {dlq}.replay is behind those now; --from-beginning reaches them again.",
    ]
    code, out = run("replay", "--topic", dlq, "--from-beginning", "--origin", "payments")
    assert code == 2
    assert "would go to payments, which does not exist" in out
    assert kafka.end_offsets(orders) == {0: 0}
    code, out = run("replay", "--topic", dlq, "--to", dlq)
    assert code == 2
    assert "the dead letter topic itself" in out


def test_letters_are_shown_as_a_table_and_as_json_and_nothing_is_committed(
    kafka: Kafka, run: Callable[..., tuple[int, str]]
) -> None:
    dlq = kafka.create_topic()
    write(kafka, dlq, [dead(DeadMessage(b"k\x1b[31m", b"\xff", [("h", None)], "orders", 3, 42))])
    kafka.produce(dlq, [b"no letter"])
    code, out = run("show", "--topic", dlq)
    assert code == 0
    assert "orders[3]@42" in out
    assert "violates a constraint" in out
    assert "not a dead letter" in out
    assert "\x1b" not in out
    code, out = run("show", "--topic", dlq, "--json", "--error-class", "PoisonError", "--since", "1h")
    assert code == 0
    [shown] = [json.loads(line) for line in out.splitlines()]
    assert shown["record"]["value"] == {"base64": "/w=="}
    assert shown["record"]["headers"] == [["h", None]]
    code, out = run("show", "--topic", dlq, "--until", "1h", "--json")
    assert (code, out) == (0, "")
    assert kafka.committed(f"{dlq}.replay", dlq) == {0: None}


def test_a_topic_that_is_not_there_is_said_and_not_made(kafka: Kafka, run: Callable[..., tuple[int, str]]) -> None:
    for command in ("show", "replay"):
        code, out = run(command, "--topic", "there-is-no-such.dlq")
        assert code == 2
        assert "does not exist" in out
    assert len(kafka.partitions("there-is-no-such.dlq")) == 0


def test_a_cluster_that_is_not_there_is_exit_8(tmp_path: Path) -> None:
    process = start_process(
        [sys.executable, "-m", "connector", "dlq", "show", "--topic", "x"],
        log=tmp_path / "out",
        environment={**os.environ, "CONNECTOR_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
    )
    try:
        assert process.wait(30) == 8
    finally:
        end_process(process)


def test_a_letter_larger_than_the_topic_takes_goes_by_its_policy_and_the_others_are_written(kafka: Kafka) -> None:
    dlq = kafka.create_topic(config={"max.message.bytes": "20000"})
    large = dead(DeadMessage(raw_value=os.urandom(50_000), at=1))
    small = [dead(DeadMessage(raw_value=os.urandom(2_000), at=offset)) for offset in range(2, 30)]
    write(kafka, dlq, [small[0], large, *small[1:]], on_too_large=OnTooLarge.TRUNCATE)
    found = [read_letter(record) for record in records(kafka, dlq)]
    assert sorted(letter.origin.offset for letter in found if letter is not None) == list(range(1, 30))
    assert [letter.origin.truncated_bytes for letter in found if letter and letter.origin.offset == 1] == [50_000]
    with pytest.raises(PoisonFatalError, match="50000 bytes"):
        write(kafka, dlq, [large])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_pattern_does_not_subscribe_the_dead_letter_topic(kafka: Kafka, protocol: Any) -> None:
    orders = kafka.create_topic(partitions=2)
    dlq = kafka.create_topic(f"{orders}.dlq", partitions=2)
    kafka.produce(orders, 10)
    kafka.produce(dlq, 10)
    settings = ClientSettings(kafka.bootstrap_servers, "unused", dlq_topic=dlq)
    blacklist = client_properties(settings, protocol, queue_bytes=2**20, fetch_max_bytes=2**20)["topic.blacklist"]
    with Member(
        kafka.bootstrap_servers,
        f"^{orders}.*",
        "consumer" if protocol == "consumer" else "cooperative-sticky",
        properties={"topic.blacklist": blacklist},
    ) as member:
        run_until(lambda: len(member.records) == 10, member)
        assert {partition.topic for partition in member.consumer.assignment()} == {orders}
        assert {record.topic() for record in member.records} == {orders}
