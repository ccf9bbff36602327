"""A consumer group member that writes down what happens to it: how the tests of this folder look at the client."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

from tests.support.kafka import protocol_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    from confluent_kafka import Message

    Hook = Callable[["Member", list[TopicPartition]], None]


class Member:
    """One member, subscribed to one topic.

    `calls` has each rebalance callback with its partitions; `records` and `errors` are what `consume` returned. A hook
    runs inside the callback; where it does not assign, the client does. It must not raise: out of `close` that would
    end the test run.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        group_protocol: str,
        *,
        group: str | None = None,
        on_assign: Hook | None = None,
        on_revoke: Hook | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = topic
        self.group = group or f"group-{uuid.uuid4().hex[:12]}"
        self.calls: list[tuple[str, list[int]]] = []
        self.records: list[Message[bytes, bytes]] = []
        self.errors: list[Message[bytes, bytes]] = []
        self._is_eager = group_protocol == "range"
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 2,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
                **protocol_properties(group_protocol),
                **({} if group_protocol == "consumer" else {"heartbeat.interval.ms": 500}),
                **(properties or {}),
            }
        )
        self.consumer.subscribe(
            [topic],
            on_assign=self._callback("assign", on_assign),
            on_revoke=self._callback("revoke", on_revoke),
            on_lost=self._callback("lost", None),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    @property
    def offsets(self) -> list[int]:
        """Offsets of the records, in the order of their arrival."""
        return [record.offset() or 0 for record in self.records]

    def step(self, timeout: float = 0.05, count: int = 500) -> list[Message[bytes, bytes]]:
        """Call `consume` once and return the records of this call."""
        messages = self.consumer.consume(count, timeout)
        records = [message for message in messages if not message.error()]
        self.records += records
        self.errors += [message for message in messages if message.error()]
        return records

    def assign(self, positions: Iterable[tuple[int, int]]) -> None:
        """Assign (partition, offset) pairs, as the group protocol wants it."""
        partitions = [TopicPartition(self.topic, partition, offset) for partition, offset in positions]
        if self._is_eager:
            self.consumer.assign(partitions)
        else:
            self.consumer.incremental_assign(partitions)

    def reassign(self, partition: int, offset: int) -> None:
        """Assign a partition again that is assigned already, at another offset; the only one, if the group is eager."""
        if not self._is_eager:
            self.consumer.incremental_unassign([TopicPartition(self.topic, partition)])
        self.assign([(partition, offset)])

    def _callback(self, name: str, hook: Hook | None) -> Callable[[Consumer, list[TopicPartition]], None]:
        def record(_: Consumer, partitions: list[TopicPartition]) -> None:
            self.calls.append((name, sorted(partition.partition for partition in partitions)))
            if hook:
                hook(self, partitions)

        return record


def run_until(condition: Callable[[], bool], *members: Member, timeout: float = 30) -> None:
    """Let every member consume in turn until the condition holds; a `TimeoutError` shows what had happened."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            state = [(member.calls, len(member.records), [str(e.error()) for e in member.errors]) for member in members]
            raise TimeoutError(f"not within {timeout}s; calls, records, errors of each member: {state}")
        for member in members:
            member.step()


def run_for(seconds: float, *members: Member) -> None:
    """Let every member consume in turn for a while, for what must not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for member in members:
            member.step()
