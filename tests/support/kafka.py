"""A real Apache Kafka for tests: the fixture `kafka` yields a `Kafka`, whatever it runs on.

`running_kafka` takes the first that serves: the cluster of `CONNECTOR_TEST_BOOTSTRAP_SERVERS`, Docker, a JVM of this
machine. Every call here is bounded in time and raises when its deadline passes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # typed, but without an __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.containers import KAFKA_IMAGE, KafkaContainer
from tests.support.docker import why_docker_cannot_run
from tests.support.jvm import KAFKA_VERSION, start_jvm_broker
from tests.support.process import ServerUnavailableError, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

GROUP_PROTOCOLS: Final = ("range", "cooperative-sticky", "consumer")

_QUEUE_RECORDS: Final = 400_000
_TIMEOUT: Final = 30.0  # seconds for any one call; the first use of a coordinator takes a few
_STARTS: Final = frozenset(  # a coordinator or a leader that was made just now
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)


def protocol_properties(group_protocol: str) -> dict[str, Any]:
    """Return the client properties that choose a group protocol by the name in `GROUP_PROTOCOLS`."""
    if group_protocol == "consumer":
        return {"group.protocol": "consumer"}
    return {"group.protocol": "classic", "partition.assignment.strategy": group_protocol}


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group, as the coordinator sees it."""

    member_id: str
    client_id: str
    partitions: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A consumer group, as the coordinator sees it; `state` is Kafka's word, such as STABLE, EMPTY or DEAD."""

    state: str
    members: tuple[GroupMember, ...]


class Kafka:
    """A cluster and what tests do with it. Any thread may call any method."""

    def __init__(self, bootstrap_servers: str, description: str = "") -> None:
        self.bootstrap_servers = bootstrap_servers
        self.description = f"{description} at {bootstrap_servers}"
        self._producer = self._new_producer({"linger.ms": 5, "queue.buffering.max.messages": _QUEUE_RECORDS})

    # Topics

    def create_topic(
        self, name: str | None = None, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, under a random name if none is given, and return its name once every client sees it."""
        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        new = NewTopic(name, partitions, 1, config=dict(config or {}))
        self._ask(lambda admin: admin.create_topics([new], operation_timeout=_TIMEOUT))
        self._wait_for_partitions(name, partitions)
        return name

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self._ask(lambda admin: admin.delete_topics([topic], operation_timeout=_TIMEOUT))
        self._wait_for_partitions(topic, 0)

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise a topic's number of partitions to `total`."""
        new = NewPartitions(topic, total)
        self._ask(lambda admin: admin.create_partitions([new], operation_timeout=_TIMEOUT))
        self._wait_for_partitions(topic, total)

    def topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Set properties of a topic, such as `cleanup.policy`."""
        self._set(ResourceType.TOPIC, topic, config)

    def partitions(self, topic: str) -> range:
        """Return the partitions of a topic; none if it does not exist."""
        metadata = self._producer.list_topics(topic, timeout=_TIMEOUT).topics.get(topic)
        return range(len(metadata.partitions) if metadata and metadata.error is None else 0)

    # Records

    def produce(
        self,
        topic: str,
        values: int | Iterable[bytes | None],
        *,
        partition: int | None = None,
        keys: Iterable[bytes | None] | None = None,
        headers: list[tuple[str, str | bytes | None]] | None = None,
        timeout: float = 60,
    ) -> int:
        """Produce records and return their number once all are delivered, each exactly once.

        Args:
            values: a number n stands for the values b"0" to b"n-1".
            partition: where all go; None: by key if there are keys, else to each partition in turn.
            timeout: seconds for all of them.

        Raises:
            TimeoutError: some were not delivered in time.
            KafkaException: some were refused.
        """
        if isinstance(values, int):
            values = (str(number).encode() for number in range(values))
        if partition is not None:
            partitions: Iterable[int] = itertools.repeat(partition)
        elif keys is not None:
            partitions = itertools.repeat(-1)
        else:
            partitions = itertools.cycle(self.partitions(topic))
        deadline = time.monotonic() + timeout
        failures: list[KafkaError] = []

        def settle(error: KafkaError | None, _: Message[Any, Any]) -> None:
            if error:
                failures.append(error)

        count = 0
        for value, key, target in zip(values, keys or itertools.repeat(None), partitions, strict=False):
            try:
                self._producer.produce(topic, value, key, target, settle, headers=headers)
            except BufferError:
                self._wait_for_room(deadline)
                self._producer.produce(topic, value, key, target, settle, headers=headers)
            count += 1
        left = self._producer.flush(max(0.0, deadline - time.monotonic()))
        if failures:
            raise KafkaException(failures[0])
        if left:
            raise TimeoutError(f"{left} of {count} records for {topic} were not delivered within {timeout:g}s")
        return count

    def transactional_producer(self, transactional_id: str | None = None) -> Producer:
        """Return a producer that is ready for `begin_transaction`; give it no less than 5 s for each of its calls."""
        producer = self._new_producer({"transactional.id": transactional_id or uuid.uuid4().hex})
        producer.init_transactions(_TIMEOUT)
        return producer

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records of each partition that lie before the given offset, as retention would."""
        positions = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        self._ask(lambda admin: admin.delete_records(positions, operation_timeout=_TIMEOUT))

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offset (high watermark) of each partition."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        specs = {TopicPartition(topic, partition): latest for partition in self.partitions(topic)}

        def list_offsets(admin: AdminClient) -> dict[Any, Future[Any]]:
            return admin.list_offsets(specs, request_timeout=_TIMEOUT)

        found = _retried(lambda: self._ask(list_offsets)) if specs else {}
        return {where.partition: end.offset for where, end in found.items()}

    # Groups

    def committed(self, group: str, topic: str) -> dict[int, int | None]:
        """Return the committed position of each partition, None where there is none.

        A consumer that never subscribes asks for it: `AdminClient.list_consumer_group_offsets` of confluent-kafka
        2.16.1 can end the process while the coordinator starts.
        """
        wanted = [TopicPartition(topic, partition) for partition in self.partitions(topic)]
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": group, "log_level": 2})
        try:
            found = _retried(lambda: consumer.committed(wanted, timeout=_TIMEOUT))
        finally:
            consumer.close()
        for position in found:
            if position.error:
                raise KafkaException(position.error)
        return {found.partition: None if found.offset == OFFSET_INVALID else found.offset for found in found}

    def group_config(self, group: str, config: Mapping[str, str]) -> None:
        """Set properties of a KIP-848 group, such as `consumer.session.timeout.ms`."""
        self._set(ResourceType.GROUP, group, config)

    def describe_group(self, group: str) -> GroupState:
        """Return what the coordinator knows of a group; one that does not exist is DEAD."""

        def describe(admin: AdminClient) -> dict[str, Future[Any]]:
            return admin.describe_consumer_groups([group], request_timeout=_TIMEOUT)

        found = _retried(lambda: self._ask(describe))[group]
        members = (
            GroupMember(
                member.member_id,
                member.client_id,
                frozenset((where.topic, where.partition) for where in member.assignment.topic_partitions),
            )
            for member in found.members
        )
        return GroupState(found.state.name, tuple(members))

    def _set(self, kind: ResourceType, name: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        self._ask(lambda admin: admin.incremental_alter_configs([resource], request_timeout=_TIMEOUT))

    def _ask(self, request: Callable[[AdminClient], dict[Any, Future[Any]]]) -> dict[Any, Any]:
        """Make one request and wait for each of its answers."""
        # A new client each time (20 ms): after a restart of the broker an old one can stay on FENCED_LEADER_EPOCH.
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})
        return {what: future.result(_TIMEOUT) for what, future in request(admin).items()}

    def _new_producer(self, properties: Mapping[str, Any]) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "compression.type": "lz4",
                "enable.idempotence": True,
                "log_level": 2,
                **properties,
            }
        )

    def _wait_for_room(self, deadline: float) -> None:
        def has_room() -> bool:
            self._producer.poll(0)
            return len(self._producer) < _QUEUE_RECORDS * 3 // 4

        wait_until(has_room, timeout=deadline - time.monotonic(), what="the producer's queue has room")

    def _wait_for_partitions(self, topic: str, count: int) -> None:
        wait_until(lambda: len(self.partitions(topic)) == count, timeout=_TIMEOUT, what=f"{topic} has its partitions")


@contextlib.contextmanager
def running_kafka() -> Iterator[Kafka]:
    """Yield the first real Kafka that this machine can have, and end it afterwards.

    Raises:
        ServerUnavailableError: there is none; the text says what to set or install.
        ServerFailedError: a broker does not start.
    """
    servers = os.environ.get("CONNECTOR_TEST_BOOTSTRAP_SERVERS")
    if servers:
        yield Kafka(servers, "the cluster of CONNECTOR_TEST_BOOTSTRAP_SERVERS")
        return
    why_no_docker = why_docker_cannot_run(KAFKA_IMAGE)
    if why_no_docker is None:
        with KafkaContainer() as container:
            yield Kafka(container.bootstrap_servers, f"{KAFKA_IMAGE} in Docker")
        return
    try:
        broker = start_jvm_broker()
    except ServerUnavailableError as error:
        raise ServerUnavailableError(
            f"this test needs a real Apache Kafka: set CONNECTOR_TEST_BOOTSTRAP_SERVERS ({error}; {why_no_docker}), "
            f"or start Docker, or install Java 17 and Maven (Debian: apt-get install default-jre-headless maven)"
        ) from error
    with broker:
        yield Kafka(broker.bootstrap_servers, f"Apache Kafka {KAFKA_VERSION} on a JVM")


def _retried(call: Callable[[], Any]) -> Any:
    """Call until the group coordinator is there, which makes its topic at the first use, and the partition's leader."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            return call()
        except KafkaException as error:
            if error.args[0].code() not in _STARTS or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
