"""`GroupClient`: reads a group's positions from the cluster and sets them, from outside the group. For `offsets`.

It is no member. One thread makes all calls; every one is bounded, and raises what `_failure` makes of the client's
error. Positions are read through a consumer that never subscribes: the admin client's own call for that
(`list_consumer_group_offsets`) has ended the process when the group's coordinator was not ready.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # the library does not say that it exports it

from connector.api.errors import AuthenticationError, ConfigError, FatalError, UnreachableError
from connector.api.types import Offset
from connector.offsets.state import GroupState, LogRange, Member, PartitionState, Reading, with_starts
from connector.source.client_errors import fatal_error
from connector.source.cluster import Cluster, take_answer
from connector.source.position import encode_metadata
from connector.source.starts import committed_positions, offsets_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from connector.api.sink import StoredPosition
    from connector.offsets.state import Key
    from connector.source.cluster import ClusterView
    from connector.source.position import Committed, StartPolicies

T = TypeVar("T")

_NAP_SECONDS = 0.05
_LATER = frozenset(  # a coordinator or leader that was found just now, or is on its way elsewhere
    {
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "FENCED_LEADER_EPOCH",
        "UNSTABLE_OFFSET_COMMIT",
    }
)


class GroupClient:
    """One group, for one command.

    Args:
        properties: How to connect: `connector.source.client_config.admin_properties`.
        group_id: The group.
        subscription: `CONNECTOR_TOPICS`.
        ignored: Patterns of topics that no pattern of it means.
        policies: `CONNECTOR_START*`: where a lane starts that has no position.
        timeout: Seconds for each question.

    Raises:
        ConfigError: The client refuses the properties.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        group_id: str,
        subscription: Sequence[str],
        *,
        ignored: Sequence[str],
        policies: StartPolicies,
        timeout: float,
    ) -> None:
        self._timeout = timeout
        self._group_id = group_id
        self._policies = policies
        try:
            self._cluster = Cluster(properties, subscription, ignored)
            self._admin = AdminClient({**properties})
            self._consumer = Consumer({**properties, "group.id": group_id, "enable.auto.commit": False})
        except KafkaException as error:
            raise ConfigError(f"CONNECTOR_KAFKA_*: the Kafka client refuses these: {error.args[0].str()}") from error
        self._cluster.start()

    def close(self) -> None:
        """Let the clients go."""
        self._cluster.stop()
        self._consumer.close()

    def read(self, stored: Mapping[Key, StoredPosition], topics: Iterable[str] = ()) -> Reading:
        """Return what is known of the subscribed topics, of those in which the group or the sink has a position, and
        of others that are named.

        Raises:
            FatalError: The cluster does not answer, or not for us. That is never "none".
        """
        view = self._wait_for_cluster()
        group = self.describe()
        committed = self._committed_anywhere()
        held = committed.keys() | stored.keys()
        names = sorted({*view.topics, *topics, *(topic for topic, _ in held)})
        facts = self._ask(lambda: self._cluster.facts(names, self._timeout))
        view = self._cluster.view or view  # the first one may not know yet which topics are denied
        keys = {(topic, index) for topic, fact in facts.items() for index in range(fact.partitions)}
        logs = self._logs(keys)
        states = [
            PartitionState(key[0], key[1], facts.get(key[0]), logs.get(key), committed.get(key), stored.get(key))
            for key in sorted(keys | held)
        ]
        return Reading(
            self._group_id,
            group,
            with_starts(states, self._policies),
            frozenset(view.topics),
            view.missing,
            view.denied,
        )

    def describe(self) -> GroupState:
        """Return the group's state and members."""

        def ask() -> GroupState:
            answers = self._admin.describe_consumer_groups([self._group_id], request_timeout=self._timeout)
            found = take_answer(answers[self._group_id], self._timeout)
            members = (
                Member(
                    member.client_id,
                    member.host,
                    member.member_id,
                    member.group_instance_id,
                    tuple(sorted((where.topic, where.partition) for where in member.assignment.topic_partitions)),
                )
                for member in found.members
            )
            return GroupState(found.state.name.lower(), found.type.name.lower(), tuple(members))

        return self._ask(ask)

    def committed(self, keys: Collection[Key]) -> dict[Key, Committed]:
        """Return the committed positions of these partitions; those without one are left out."""
        asked = [TopicPartition(*key) for key in sorted(keys)]
        return self._ask(lambda: committed_positions(self._consumer, asked, self._timeout))

    def offsets_at(self, keys: Collection[Key], instant: datetime) -> dict[Key, Offset | None]:
        """Return the first offset at or after a time in each of these partitions; None: there is none."""
        return self._ask(lambda: offsets_at(self._consumer, sorted(keys), instant, self._timeout))

    def commit(self, positions: Mapping[Key, Committed]) -> dict[Key, str]:
        """Commit positions, with the facts of their topics, and return why a partition was refused.

        The broker itself refuses all of them while the group has members, under both protocols: `UNKNOWN_MEMBER_ID`.
        """
        offsets = [
            TopicPartition(*key, committed.position, encode_metadata(committed.facts) if committed.facts else "")
            for key, committed in sorted(positions.items())
        ]

        def ask() -> dict[Key, str]:
            request = [ConsumerGroupTopicPartitions(self._group_id, offsets)]
            answers = self._admin.alter_consumer_group_offsets(request, request_timeout=self._timeout)
            parts = take_answer(answers[self._group_id], self._timeout).topic_partitions
            refused = [each for each in parts if each.error is not None]
            for each in refused:
                if each.error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise KafkaException(each.error)
            return {(each.topic, each.partition): each.error.name() for each in refused}

        return self._ask(ask)

    def _wait_for_cluster(self) -> ClusterView:
        deadline = time.monotonic() + self._timeout
        while self._cluster.view is None:
            if self._cluster.failure is not None:
                raise self._cluster.failure
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"No Kafka cluster within {self._timeout:g}s (last error: {self._cluster.last_error}). Check "
                    "CONNECTOR_BOOTSTRAP_SERVERS, the network, and the security settings."
                )
            time.sleep(_NAP_SECONDS)
        return self._cluster.view

    def _committed_anywhere(self) -> dict[Key, Committed]:
        listed = self._ask(lambda: self._consumer.list_topics(timeout=self._timeout)).topics
        return self.committed([(name, index) for name, topic in listed.items() for index in topic.partitions])

    def _logs(self, keys: Collection[Key]) -> dict[Key, LogRange]:
        """Return the logs of these partitions; one without a leader is left out."""
        starts, ends = (self._edges(keys, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))  # type: ignore[no-untyped-call]
        return {key: LogRange(starts[key], ends[key]) for key in starts.keys() & ends.keys()}

    def _edges(self, keys: Collection[Key], spec: OffsetSpec) -> dict[Key, Offset]:
        if not keys:
            return {}
        asked = {TopicPartition(*key): spec for key in keys}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._timeout
        )
        found: dict[Key, Offset] = {}
        for where, answer in answers.items():
            try:
                found[where.topic, where.partition] = Offset(take_answer(answer, self._timeout).offset)
            except KafkaException as error:
                failure = fatal_error(error.args[0].name(), error.args[0].str())
                if failure is not None:
                    raise failure from error
        return found

    def _ask(self, call: Callable[[], T]) -> T:
        """Call until the coordinator or leader is there."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return call()
            except KafkaException as error:
                code = error.args[0].name()
                if code not in _LATER or time.monotonic() > deadline:
                    raise self._failure(error.args[0]) from error
            time.sleep(_NAP_SECONDS)

    def _failure(self, error: KafkaError) -> FatalError:
        if self._cluster.failure is not None:
            return self._cluster.failure
        failure = fatal_error(error.name(), error.str())
        if isinstance(failure, AuthenticationError):
            return failure
        return UnreachableError(
            f"The positions of the group {self._group_id} cannot be read or set ({error.name()}: {error.str()}). Check "
            "CONNECTOR_BOOTSTRAP_SERVERS and the cluster, and call it again."
        )
