"""What is known of a group's positions: each partition as the cluster, the group and the sink have it. Pure.

A value that is absent is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from connector.source.position import SETTING_OF_CAUSE, Cause, StartPolicy, start_cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from connector.api.sink import StoredPosition
    from connector.api.types import Offset
    from connector.source.position import Committed, Start, StartPolicies, TopicFacts

Key: TypeAlias = "tuple[str, int]"
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """The first offset of a partition's log, and its last stable offset: positions from the one to the other exist."""

    start: Offset
    end: Offset

    def __contains__(self, position: Offset) -> bool:
        return self.start <= position <= self.end


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition. `facts` None: its topic does not exist; `log` None: it has no such partition, or no leader.

    `cause` is why a lane would start where it would, were one to start now, and `start` is where that is; None: at a
    time, or the policy is not to start.
    """

    topic: str
    partition: int
    facts: TopicFacts | None = None
    log: LogRange | None = None
    committed: Committed | None = None
    stored: StoredPosition | None = None
    cause: Cause | None = None
    start: Offset | None = None

    @property
    def key(self) -> Key:
        return (self.topic, self.partition)

    @property
    def held(self) -> Offset | None:
        """The position that counts, wherever it leads: the sink's, else the group's."""
        if self.stored is not None:
            return self.stored.next_offset
        return self.committed.position if self.committed is not None else None

    @property
    def position(self) -> Offset | None:
        """Where a lane would go on; None where a start policy decides, which takes no notice of an old position."""
        return self.held if self.cause in (Cause.SINK, Cause.COMMITTED) else None

    @property
    def lag(self) -> int | None:
        """The last stable offset minus the position."""
        return None if self.position is None or self.log is None else max(0, self.log.end - self.position)

    @property
    def note(self) -> str:
        """What is out of the ordinary, in words; nothing if nothing is."""
        if self.facts is None:
            return "the topic does not exist"
        if self.log is None:
            return "no such partition, or it has no leader"
        if self.cause is None or self.cause in (Cause.SINK, Cause.COMMITTED):
            return ""
        found = {
            Cause.RECREATED: "the topic was made again since",
            Cause.OUT_OF_RANGE: "the position is not in the log",
            Cause.EXPIRED: "the position has expired",
            Cause.NEW_PARTITION: "a new partition",
        }.get(self.cause, "no position")
        return f"{found}: {SETTING_OF_CAUSE[self.cause]} decides"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the group, as its coordinator knows it. `instance_id`: a static member (KIP-345)."""

    client_id: str
    host: str
    member_id: str
    instance_id: str | None
    partitions: tuple[Key, ...]

    def __str__(self) -> str:
        static = f", instance {self.instance_id}" if self.instance_id else ""
        return f"{self.client_id} at {self.host.lstrip('/')} ({self.member_id}{static})"


@dataclass(frozen=True, slots=True)
class GroupState:
    """The group, as its coordinator knows it: Kafka's word for its state (`dead`: there is none), and who is in it."""

    state: str
    protocol: str
    members: tuple[Member, ...]

    @property
    def is_empty(self) -> bool:
        """Whether positions may be set from outside."""
        return not self.members and self.state in ("empty", "dead")


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that was read. `missing` and `denied` are subscribed topics that do not exist, or may not be read."""

    group_id: str
    group: GroupState
    partitions: tuple[PartitionState, ...]
    subscribed: frozenset[str]
    missing: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


def with_starts(states: Sequence[PartitionState], policies: StartPolicies) -> tuple[PartitionState, ...]:
    """Return the states of all partitions of some topics with where a lane would start, and why."""
    siblings: dict[str, list[Committed]] = {}
    for state in states:
        if state.committed is not None:
            siblings.setdefault(state.topic, []).append(state.committed)
    return tuple(_with_start(state, siblings.get(state.topic, ()), policies) for state in states)


def _with_start(state: PartitionState, siblings: Iterable[Committed], policies: StartPolicies) -> PartitionState:
    if state.facts is None or state.log is None:
        return state
    cause = start_cause(
        state.partition,
        topic=state.facts,
        stored=state.stored,
        committed=state.committed,
        siblings=siblings,
        seen_topic_id=None,
        is_new_topic=False,
    )
    if cause in (Cause.SINK, Cause.COMMITTED):
        if state.held is not None and state.held in state.log:
            return replace(state, cause=cause, start=state.held)
        cause = Cause.OUT_OF_RANGE
    known: dict[Start, Offset] = {StartPolicy.EARLIEST: state.log.start, StartPolicy.LATEST: state.log.end}
    return replace(state, cause=cause, start=known.get(policies.of(cause)))
