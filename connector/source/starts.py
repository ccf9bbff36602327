"""Reads from the cluster what `position.start_cause` decides on, and turns a policy into an offset.

Called by the consumer thread, inside a rebalance callback or between polls. Every read is bounded, and one that fails
raises: the lane then waits and the read is made again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from connector.api.types import Offset
from connector.source.cluster import matches
from connector.source.position import (
    Cause,
    Committed,
    StartPolicies,
    StartPolicy,
    TopicFacts,
    decode_metadata,
    refuse_start,
    start_cause,
)
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from connector.api.sink import StoredPosition
    from connector.source.assignment import Key
    from connector.source.client import KafkaClient
    from connector.source.cluster import Cluster
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)

_READ_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """Where a lane starts, and its topic. `committed` is the position that the group has, None if a policy decides."""

    start: Offset
    cause: Cause
    committed: Offset | None
    facts: TopicFacts


class Starts:
    """Finds starts for one subscription. Remembers topic ids, so that a topic that was made again is noticed."""

    def __init__(
        self, cluster: Cluster, subscription: Sequence[str], policies: StartPolicies, metrics: Metrics
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._policies = policies
        self._metrics = metrics
        self._seen_ids: dict[str, str] = {}
        self._topics_at_start: frozenset[str] | None = None

    def remember(self, topics: Iterable[str]) -> None:
        """Take the topics that exist before the group is joined; others are new, and nothing of them is skipped."""
        self._topics_at_start = frozenset(topics)

    def known_facts(self, topic: str, partition: int) -> TopicFacts:
        """Return what is known of a topic without asking."""
        view = self._cluster.view
        known = view.topics.get(topic) if view else None
        return known if known and known.partitions > partition else TopicFacts(partition + 1)

    def find(self, client: KafkaClient, keys: Sequence[Key], stored: Mapping[Key, StoredPosition]) -> dict[Key, Found]:
        """Return where these partitions start; one whose topic does not exist is left out.

        Raises:
            KafkaException: A read failed; nothing is known.
            ConfigError: The policy of a cause is `error`.
        """
        deadline = time.monotonic() + _READ_SECONDS
        facts = self._cluster.facts(sorted({topic for topic, _ in keys}), _READ_SECONDS)
        for topic, partition in keys:
            if topic in facts and facts[topic].partitions <= partition:  # the partition is newer than the answer
                facts[topic] = TopicFacts(partition + 1, facts[topic].topic_id)
        committed = self._committed(client, facts, deadline)
        found: dict[Key, Found] = {}
        for key in keys:
            topic, partition = key
            if topic not in facts:
                continue
            own = committed.get(key)
            cause = start_cause(
                partition,
                topic=facts[topic],
                stored=stored.get(key),
                committed=own,
                siblings=[position for (name, _), position in committed.items() if name == topic],
                seen_topic_id=self._seen_ids.get(topic),
                is_new_topic=self._is_new(topic),
            )
            if cause is Cause.NEW_GROUP and self._group_is_at_work(client, topic, deadline):
                cause = Cause.NEW_PARTITION
            position = own.position if own else None
            if cause is Cause.SINK:
                start = stored[key].next_offset
            elif cause is Cause.COMMITTED and position is not None:
                start = position
            else:
                start = self.resolve(client, key, cause, wanted=None, deadline=deadline)
            # Where a policy decides, an old position says nothing: it may be of another log, and above this one.
            is_known = cause in (Cause.SINK, Cause.COMMITTED)
            found[key] = Found(start, cause, position if is_known else None, facts[topic])
        for topic, fact in facts.items():
            if fact.topic_id is not None:
                self._seen_ids[topic] = fact.topic_id
        return found

    def resolve(
        self, client: KafkaClient, key: Key, cause: Cause, *, wanted: Offset | None, deadline: float | None = None
    ) -> Offset:
        """Return the offset that the policy of a cause gives, and log and count it.

        Args:
            client: The consumer.
            key: Topic and partition.
            cause: Why a policy is asked.
            wanted: The position that should have been read, where one is known (out of range).
            deadline: For the read, time.monotonic().

        Raises:
            KafkaException: A read failed.
            ConfigError: The policy is `error`.
        """
        topic, partition = key
        policy = self._policies.of(cause)
        if policy is StartPolicy.ERROR:
            raise refuse_start(cause, topic, partition)
        left = max(0.5, (deadline or time.monotonic() + _READ_SECONDS) - time.monotonic())
        low, high = log_ends(client, key, left)
        if policy is StartPolicy.EARLIEST:
            start = low
        elif policy is StartPolicy.LATEST:
            start = high
        else:
            at = offsets_at(client, [key], policy, left)[key]
            start = high if at is None else at
        base = low if wanted is None else wanted
        self._metrics.start_offsets_skipped.labels(cause.value).inc(max(0, start - base))
        self._metrics.start_offsets_repeated.labels(cause.value).inc(max(0, base - start))
        log.info(
            "start_policy_applied",
            topic=topic,
            partition=partition,
            cause=cause.value,
            policy=policy.value if isinstance(policy, StartPolicy) else policy.isoformat(),
            position=start,
            skipped_offsets=max(0, start - base),
            repeated_offsets=max(0, base - start),
        )
        return Offset(start)

    def _committed(self, client: KafkaClient, facts: Mapping[str, TopicFacts], deadline: float) -> dict[Key, Committed]:
        asked = [TopicPartition(topic, index) for topic, fact in facts.items() for index in range(fact.partitions)]
        return committed_positions(client, asked, max(0.5, deadline - time.monotonic()))

    def _is_new(self, topic: str) -> bool:
        return self._topics_at_start is not None and topic not in self._topics_at_start

    def _group_is_at_work(self, client: KafkaClient, topic: str, deadline: float) -> bool:
        """Whether a topic that only a pattern names has come to a group that has committed in others already."""
        view = self._cluster.view
        if view is None or topic in self._subscription:
            return False
        patterns = [entry for entry in self._subscription if entry.startswith("^")]
        others = {name: fact for name, fact in view.topics.items() if name != topic and matches(patterns, name)}
        return bool(others and self._committed(client, others, deadline))


def log_ends(client: KafkaClient, key: Key, timeout: float) -> tuple[Offset, Offset]:
    """Return the first offset of a partition's log and its last stable offset.

    Raises:
        KafkaException: The leader did not answer.
    """
    answer = client.get_watermark_offsets(TopicPartition(*key), timeout=timeout)
    if answer is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no log ends of {key[0]}[{key[1]}]"))
    return Offset(answer[0]), Offset(answer[1])


def committed_positions(
    client: KafkaClient, partitions: Sequence[TopicPartition], timeout: float
) -> dict[Key, Committed]:
    """Return the group's committed positions; partitions without one are left out.

    Raises:
        KafkaException: The coordinator did not answer, or not for every partition. That is never "none".
    """
    found: dict[Key, Committed] = {}
    if not partitions:
        return found
    for answer in client.committed(list(partitions), timeout=timeout):
        if answer.error is not None:
            raise KafkaException(answer.error)
        if answer.offset != OFFSET_INVALID:
            key = (answer.topic, answer.partition)
            found[key] = Committed(Offset(answer.offset), decode_metadata(answer.metadata))
    return found


def offsets_at(client: KafkaClient, keys: Sequence[Key], time_: datetime, timeout: float) -> dict[Key, Offset | None]:
    """Return the first offset at or after a time, for each partition; None: there is none.

    Raises:
        KafkaException: A read failed.
    """
    milliseconds = int(time_.timestamp() * 1000)
    asked = [TopicPartition(topic, partition, milliseconds) for topic, partition in keys]
    found: dict[Key, Offset | None] = {}
    for answer in client.offsets_for_times(asked, timeout=timeout):
        if answer.error is not None:
            raise KafkaException(answer.error)
        found[answer.topic, answer.partition] = Offset(answer.offset) if answer.offset >= 0 else None
    return found
