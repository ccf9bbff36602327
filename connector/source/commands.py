"""What other threads ask of the consumer thread. One-way: what became of it comes back as events and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connector.api.intents import Intents
    from connector.api.sink import StoredPosition
    from connector.api.types import LaneId, Offset, PartitionId


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit these positions asynchronously."""

    positions: Mapping[PartitionId, Offset]


@dataclass(frozen=True, slots=True)
class StartLane:
    """The sink holds this position for a lane that waits for it."""

    lane: LaneId
    stored: StoredPosition | None


@dataclass(frozen=True, slots=True)
class Restart:
    """Bring these lanes' partitions back as new lanes, at these positions."""

    positions: Mapping[LaneId, Offset | None]


@dataclass(frozen=True, slots=True)
class Resume:
    """A paused lane is low again. Sent by its pipeline's thread."""

    lane: LaneId


@dataclass(frozen=True, slots=True)
class HoldBack:
    """What an operator wants held back from now on."""

    intents: Intents


@dataclass(frozen=True, slots=True)
class Close:
    """Leave the group."""


Command: TypeAlias = Commit | StartLane | Restart | Resume | HoldBack | Close
