"""The lanes that this member holds: the consumer thread's own record, which no other thread touches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING

from connector.api.intents import Intents
from connector.api.types import LaneId, PartitionId
from connector.lane.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.api.sink import StoredPosition
    from connector.api.types import Offset
    from connector.source.position import TopicFacts
    from connector.source.starts import Found

Key = tuple[str, int]  # topic and partition


class Wait(Enum):
    """What a lane waits for before it can flow."""

    SINK = "sink"  # its pipeline asks the sink for the position it holds
    POSITION = "position"  # the group's position could not be read; it is read again
    RANGE = "range"  # its position is not in the log; the log's ends are being read


@dataclass(slots=True)
class Held:
    """One live lane and where it stands in its partition."""

    lane: Lane
    facts: TopicFacts
    wait: Wait | None = None
    retry_at: float = 0.0  # when POSITION and RANGE are tried again, time.monotonic()
    stored: StoredPosition | None = None  # what the sink holds, once it was asked
    decided: Found | None = None  # where it starts, whatever the sink or the group say
    next_offset: Offset | None = None  # of the next record to give to the lane; None while it waits for its start
    end: Offset | None = None  # a bounded run stops here
    is_paused: bool = False  # by the lane's high mark
    is_ended: bool = False  # everything up to `end` is in the lane
    is_announced: bool = False  # the controller knows that it has ended
    is_retired: bool = False  # and committed there

    @property
    def key(self) -> Key:
        return self.lane.topic, self.lane.partition

    @property
    def is_flowing(self) -> bool:
        """Whether the client should fetch it: the one place where the reasons to pause are read together."""
        return self.wait is None and not self.is_paused and not self.lane.is_held_back and not self.is_ended


class Assignment:
    """Every held lane, by key and by id, and the source of new ids."""

    def __init__(self) -> None:
        self.lanes_bytes = 128 * 2**20  # what the lanes share
        self.intents = Intents()  # what an operator holds back, also of lanes that are still to come
        self._held: dict[Key, Held] = {}
        self._by_id: dict[LaneId, Held] = {}
        self._ids = count(1)
        self.topics: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def get(self, topic: str, partition: int) -> Held | None:
        """Return the lane that is live for a partition now."""
        return self._held.get((topic, partition))

    def by_lane(self, lane: LaneId) -> Held | None:
        """Return a lane by its id, if it is still held."""
        return self._by_id.get(lane)

    def by_partition(self, partition: PartitionId) -> Held | None:
        """Return a lane by the key of its checkpoint, which is minted with the same number."""
        return self._by_id.get(LaneId(partition))

    def mint(self, key: Key, facts: TopicFacts, *, awaits_sink: bool) -> Held:
        """Make a lane with an id above every one before it, and hold it."""
        number = next(self._ids)
        lane = Lane(
            LaneId(number), PartitionId(number), key[0], key[1], topic_id=facts.topic_id, awaits_sink=awaits_sink
        )
        lane.is_held_back = self.intents.holds(*key)
        held = Held(lane, facts)
        self._held[key] = held
        self._by_id[lane.id] = held
        self._changed()
        return held

    def drop(self, held: Held) -> None:
        """Hold it no longer."""
        del self._held[held.key]
        del self._by_id[held.lane.id]
        self._changed()

    def _changed(self) -> None:
        self.topics = frozenset(topic for topic, _ in self._held)
        share = self.lanes_bytes // max(1, len(self._held))
        for held in self._held.values():
            held.lane.high_bytes = share
