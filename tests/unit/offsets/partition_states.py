"""States of partitions for tests: topic `orders`, id `id-1`, four partitions, a log from 100 to 200."""

from __future__ import annotations

from typing import Any

from connector.api.sink import StoredPosition
from connector.api.types import Offset
from connector.offsets.state import GroupState, LogRange, PartitionState, Reading, with_starts
from connector.source.position import Committed, StartPolicies, TopicFacts

FACTS = TopicFacts(4, "id-1")
LOG = LogRange(Offset(100), Offset(200))
EMPTY_GROUP = GroupState("empty", "consumer", ())


def committed(position: int, facts: TopicFacts | None = FACTS) -> Committed:
    return Committed(Offset(position), facts)


def stored(position: int, topic_id: str | None = "id-1") -> StoredPosition:
    return StoredPosition(Offset(position), topic_id)


def partition(
    number: int = 0, *, topic: str = "orders", facts: TopicFacts | None = FACTS, log: LogRange | None = LOG, **held: Any
) -> PartitionState:
    """A partition as it is read, without where a lane would start."""
    return PartitionState(topic, number, facts, log, **held)


def started(*states: PartitionState, **policies: Any) -> tuple[PartitionState, ...]:
    return with_starts(states, StartPolicies(**policies))


def reading(*states: PartitionState, group: GroupState = EMPTY_GROUP) -> Reading:
    return Reading("group", group, started(*states), frozenset(state.topic for state in states))
