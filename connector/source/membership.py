"""`Membership`: who this member is in its group, for sinks that commit positions in their own transactions.

The consumer thread publishes one immutable value: the client's group metadata together with the lanes that are held at
that moment. Pipelines read it, without a lock and without waiting for anybody. So whoever commits with a generation has
been told by the same value which lanes are its own in it: a lane that has left cannot be committed with the generation
that came after (KIP-447 asks the coordinator for the generation only, not for the partition). What was published before
carries the old generation, and the coordinator refuses that (INV-7).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from connector.api.errors import RefusedError, TransientError
from connector.api.sink import GroupCommit
from connector.source.client import generation_of
from connector.source.position import encode_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from connector.api.types import LaneId
    from connector.source.assignment import Held
    from connector.source.client import KafkaClient
    from connector.source.position import TopicFacts


@dataclass(frozen=True, slots=True)
class _Published:
    member: bytes = b""
    is_member: bool = False  # it has a generation
    lanes: Mapping[LaneId, TopicFacts] = field(default_factory=dict)


class Membership:
    """One slot. The consumer thread writes it, any thread reads it."""

    def __init__(self) -> None:
        self._published = _Published()

    def publish(self, client: KafkaClient, lanes: Iterable[Held]) -> None:
        """Let these lanes, and no others, be committed from now on: before lanes come, while they leave, and after."""
        self._set(client, {held.lane.id: held.facts for held in lanes})

    def refresh(self, client: KafkaClient) -> None:
        """Take a new generation, with the same lanes: the client changes it without a callback (20 microseconds)."""
        self._set(client, self._published.lanes)

    def group_commit(self, lane: LaneId) -> GroupCommit:
        """Return what to commit a lane's position with now; see `SinkContext`.

        Raises:
            RefusedError: The lane has left.
            TransientError: The member has no generation; without one the coordinator would not tell it from a stranger.
        """
        published = self._published
        facts = published.lanes.get(lane)
        if facts is None:
            raise RefusedError("the partition is not this member's any more, or has come back as another lane")
        if not published.is_member:
            raise TransientError("this member has no generation of its group at the moment")
        return GroupCommit(published.member, encode_metadata(facts))

    def _set(self, client: KafkaClient, lanes: Mapping[LaneId, TopicFacts]) -> None:
        member = client.consumer_group_metadata()
        if member == self._published.member:
            self._published = replace(self._published, lanes=lanes)
        else:
            self._published = _Published(member, generation_of(member) > 0, lanes)
