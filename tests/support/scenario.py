"""What scenarios on a real Kafka have in common: settings of copies, traffic, metrics, and what there is to read."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import httpx
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from connector.source.position import TopicFacts, encode_metadata
from tests.support.connector import ConnectorProcess, protocol_settings
from tests.support.process import tail, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from confluent_kafka import Producer

    from tests.support.kafka import Kafka
    from tests.support.oracle import Place

TOKEN = "0pen-sesame-0pen-sesame"
_PORTIONS = 600  # bounds the traffic, whatever the test does


class Scenario:
    """One group on one cluster, its copies, and the folder with a file of the sink and a log for each of them."""

    def __init__(
        self,
        kafka: Kafka,
        group_protocol: str,
        topics: Sequence[str],
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        group: str | None = None,
    ) -> None:
        self.kafka = kafka
        self.topics = topics
        self.group = group or f"group-{directory.name}-{time.time_ns()}"
        self._directory = directory
        self._settings = {
            **protocol_settings(group_protocol),
            "CONNECTOR_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "CONNECTOR_GROUP_ID": self.group,
            "CONNECTOR_TOPICS": ",".join(topics),
            "CONNECTOR_SINK": "file",
            "CONNECTOR_KAFKA_TOPIC_METADATA_REFRESH_INTERVAL_MS": "1000",
            **(settings or {}),
        }

    def copy(self, name: str = "copy", settings: Mapping[str, str] | None = None) -> ConnectorProcess:
        """Return a copy, not started yet."""
        path = {"CONNECTOR_SINK_PATH": str(self._directory / f"{self.group}-{name}.jsonl")}
        return ConnectorProcess(f"{self.group}-{name}", self._directory, {**self._settings, **path, **(settings or {})})

    @property
    def files(self) -> list[Path]:
        """What the sinks of all copies have written so far."""
        return sorted(self._directory.glob(f"{self.group}-*.jsonl"))


class Traffic:
    """Produces to topics in small portions from a thread of its own, until `stop`."""

    def __init__(
        self,
        kafka: Kafka,
        topics: Sequence[str],
        *,
        portion: int = 1000,
        pause: float = 0.1,
        value: bytes = b"x" * 100,
    ) -> None:
        self._kafka = kafka
        self._topics = topics
        self._portion = portion
        self._pause = pause
        self._value = value
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic")
        self.produced = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Produce no more; returns when the last record is delivered."""
        self._is_over.set()
        self._thread.join(60)

    def _run(self) -> None:
        for _ in range(_PORTIONS):
            for topic in self._topics:
                self.produced += self._kafka.produce(topic, itertools.repeat(self._value, self._portion))
            if self._is_over.wait(self._pause):
                return


def metric(copy: ConnectorProcess, name: str, **labels: str | int) -> float | None:
    """Return one series of `/metrics`, None where it is absent."""
    wanted = {label: str(value) for label, value in labels.items()}
    for family in text_string_to_metric_families(copy.get("/metrics").text):
        for sample in family.samples:
            if sample.name == name and sample.labels == wanted:
                return float(sample.value)
    return None


def ask(
    copy: ConnectorProcess, method: str, path: str, body: Any = None, *, token: str | None = TOKEN
) -> httpx.Response:
    """Send a request that changes something, without a body where that is None."""
    port = copy.wait_for_event("admin_started")[-1]["port"]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, json=body, timeout=20)


def held(copy: ConnectorProcess) -> set[tuple[str, int]]:
    """Return the partitions that a copy holds."""
    return {(lane["topic"], lane["partition"]) for lane in copy.status()["lanes"]}


def wait_until_copy(
    copy: ConnectorProcess, condition: str, is_true: Callable[[], object], *, timeout: float = 60
) -> None:
    """Wait for a condition on a running copy; the error ends with its log.

    Raises:
        TimeoutError: Not in time.
        AssertionError: The copy has ended.
    """

    def is_done() -> bool:
        assert copy.is_running, f"{copy.name} ended before: {condition}\n{tail(copy.log)}"
        return bool(is_true())

    try:
        wait_until(is_done, timeout=timeout, what=f"{copy.name}: {condition}")
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{tail(copy.log)}") from None


def wait_until_ready(copy: ConnectorProcess, *, timeout: float = 60) -> str:
    """Wait until `/readyz` says so, and return the reason it gives."""
    wait_until_copy(copy, "it is ready", lambda: copy.get("/readyz").status_code == 200, timeout=timeout)
    return copy.get("/readyz").text


def commit(kafka: Kafka, group: str, topic: str, positions: Mapping[int, int], facts: TopicFacts | None = None) -> None:
    """Commit positions for a group that has no members, with metadata of the connector's if facts are given."""
    metadata = encode_metadata(facts) if facts else ""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 2})
    try:
        consumer.commit(
            offsets=[TopicPartition(topic, partition, at, metadata) for partition, at in positions.items()],
            asynchronous=False,
        )
    finally:
        consumer.close()


def send(producer: Producer, topic: str, partition: int, count: int, *, commits: bool) -> None:
    """Send one transaction through a producer of `Kafka.transactional_producer`."""
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=partition)
    producer.flush(30)  # an abort would drop what has not been sent
    if commits:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def readable(kafka: Kafka, topics: Iterable[str], *, timeout: float = 60) -> set[Place]:
    """Return every record that a plain client reads from the topics with `read_committed`: the independent count."""
    ends = {(topic, partition): end for topic in topics for partition, end in kafka.end_offsets(topic).items() if end}
    found: set[Place] = set()
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"reader-{time.time_ns()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 2,
        }
    )
    deadline = time.monotonic() + timeout
    try:
        consumer.assign([TopicPartition(*key, 0) for key in ends])
        while any(
            where.offset < ends[where.topic, where.partition]
            for where in consumer.position([TopicPartition(*key) for key in ends])
        ):
            assert time.monotonic() < deadline, f"not read within {timeout:g}s: {ends}"
            for message in consumer.consume(5000, 0.1):
                assert message.error() is None, message.error()
                found.add((message.topic() or "", message.partition() or 0, message.offset() or 0))
    finally:
        consumer.close()
    return found


def topic_facts(kafka: Kafka, topic: str) -> TopicFacts:
    """Return the id and the number of partitions of a topic."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 2})
    described = admin.describe_topics(TopicCollection([topic]), request_timeout=30)[topic].result(30)
    return TopicFacts(len(described.partitions), str(described.topic_id))
