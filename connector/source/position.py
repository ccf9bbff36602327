"""Where a lane starts, and why: the decision table of `CONNECTOR_START*`, and what a commit says about its topic.

`auto.offset.reset=error` is forced, so nothing but this module ever chooses an offset: a failure to read a position is
never taken for "there is none" (KAFKA-20765 shows what comes of it). Pure: no client, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING

import orjson

from connector.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connector.api.sink import StoredPosition
    from connector.api.types import Offset


class Cause(Enum):
    """Why a lane starts where it starts. The value is the metric label."""

    COMMITTED = "committed"  # the group's committed position
    SINK = "sink"  # the position that the sink holds
    RESTARTED = "restarted"  # a lane that comes back after its sink refused or failed
    NEW_GROUP = "new_group"  # CONNECTOR_START
    NEW_PARTITION = "new_partition"  # CONNECTOR_START_NEW_PARTITION
    EXPIRED = "expired"  # CONNECTOR_START_ON_EXPIRED
    OUT_OF_RANGE = "out_of_range"  # CONNECTOR_START_ON_OUT_OF_RANGE
    RECREATED = "recreated"  # CONNECTOR_START_ON_RECREATED


SETTING_OF_CAUSE = {
    Cause.NEW_GROUP: "CONNECTOR_START",
    Cause.NEW_PARTITION: "CONNECTOR_START_NEW_PARTITION",
    Cause.EXPIRED: "CONNECTOR_START_ON_EXPIRED",
    Cause.OUT_OF_RANGE: "CONNECTOR_START_ON_OUT_OF_RANGE",
    Cause.RECREATED: "CONNECTOR_START_ON_RECREATED",
}


class StartPolicy(Enum):
    """What a `CONNECTOR_START*` setting says, save a time, which is a datetime."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"


Start = StartPolicy | datetime


@dataclass(frozen=True, slots=True)
class StartPolicies:
    """One choice for each cause. `earliest` never skips a record."""

    new_group: Start = StartPolicy.EARLIEST
    new_partition: Start = StartPolicy.EARLIEST
    on_expired: Start = StartPolicy.EARLIEST
    on_out_of_range: Start = StartPolicy.EARLIEST
    on_recreated: Start = StartPolicy.EARLIEST

    def of(self, cause: Cause) -> Start:
        """Return the choice for a cause that has one."""
        return {
            Cause.NEW_GROUP: self.new_group,
            Cause.NEW_PARTITION: self.new_partition,
            Cause.EXPIRED: self.on_expired,
            Cause.OUT_OF_RANGE: self.on_out_of_range,
            Cause.RECREATED: self.on_recreated,
        }[cause]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the cluster says of a topic. `topic_id` is None where the broker has no topic ids (before KIP-516)."""

    partitions: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed position, with the facts of its topic when it was committed; None: another program committed it."""

    position: Offset
    facts: TopicFacts | None = None


def encode_metadata(facts: TopicFacts) -> str:
    """Write the facts into a commit's metadata string, which the group coordinator keeps with the position."""
    return orjson.dumps({"sluiceway": 1, "partitions": facts.partitions, "topic_id": facts.topic_id}).decode()


def decode_metadata(metadata: str | None) -> TopicFacts | None:
    """Read what `encode_metadata` wrote; None for any other text."""
    try:
        found = orjson.loads(metadata or "null")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict) or found.get("sluiceway") != 1 or not isinstance(found.get("partitions"), int):
        return None
    return TopicFacts(found["partitions"], found.get("topic_id"))


def start_cause(
    partition: int,
    *,
    topic: TopicFacts,
    stored: StoredPosition | None,
    committed: Committed | None,
    siblings: Iterable[Committed],
    seen_topic_id: str | None,
    is_new_topic: bool,
) -> Cause:
    """Return why this partition starts where it will.

    Args:
        partition: Its index in the topic.
        topic: What the cluster says of the topic now.
        stored: The position that the sink holds, which wins over Kafka's.
        committed: The group's committed position of this partition.
        siblings: Committed positions of the topic's other partitions.
        seen_topic_id: The topic's id when this process last held the partition.
        is_new_topic: The topic appeared while the group was at work, so that nothing of it may be skipped.
    """
    if stored is not None:
        return Cause.RECREATED if _differ(stored.topic_id, topic.topic_id) else Cause.SINK
    if committed is not None:
        then = committed.facts.topic_id if committed.facts else None
        return Cause.RECREATED if _differ(then, topic.topic_id) else Cause.COMMITTED
    if _differ(seen_topic_id, topic.topic_id):
        return Cause.RECREATED
    known = [sibling.facts.partitions if sibling.facts else 0 for sibling in siblings]
    if known:
        return Cause.EXPIRED if max(known) > partition else Cause.NEW_PARTITION
    return Cause.NEW_PARTITION if is_new_topic else Cause.NEW_GROUP


def _differ(then: str | None, now: str | None) -> bool:
    return then is not None and now is not None and then != now


def parse_start(text: str) -> Start:
    """Read `earliest`, `latest`, `error` or an ISO 8601 time; a time without a zone is UTC.

    Raises:
        ValueError: It is none of these.
    """
    try:
        return StartPolicy(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not earliest, latest, error or an ISO time such as 2026-01-31T00:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def refuse_start(cause: Cause, topic: str, partition: int) -> ConfigError:
    """Return the error of a policy `error`: what was found, and how to go on."""
    found = {
        Cause.NEW_GROUP: "the group has no committed position",
        Cause.NEW_PARTITION: "the partition is new",
        Cause.EXPIRED: "the group's committed position has expired",
        Cause.OUT_OF_RANGE: "the position to read from is not in the log any more",
        Cause.RECREATED: "the topic was deleted and made again",
    }[cause]
    return ConfigError(
        f"{topic}[{partition}] cannot start: {found}, and {SETTING_OF_CAUSE[cause]}=error. Set the group's positions "
        f"by `connector offsets reset`, or set {SETTING_OF_CAUSE[cause]} to earliest, latest or a time."
    )
