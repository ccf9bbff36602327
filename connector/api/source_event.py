"""The control plane between a source and the runtime: what `Source.poll_events` returns, and the `Source` itself.

The seven variants are a specification: a source may send no other, and the controller's `match` over them ends in
`assert_never`. `KafkaSource` and `MemorySource` implement it and pass one suite (tests/contracts).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from connector.api.barrier import DrainBarrier
    from connector.api.intents import Intents
    from connector.api.sink import StoredPosition
    from connector.api.types import LaneId, Offset, PartitionId

L = TypeVar("L")


class RevokeReason(Enum):
    """Why lanes leave: with time to drain and commit, or already owned by somebody else."""

    REVOKED = "revoked"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LanesAssigned(Generic[L]):
    """The full new lane set. The epoch goes up first; lanes still live are drained and revoked before."""

    lanes: tuple[L, ...]


@dataclass(frozen=True, slots=True)
class LanesAdded(Generic[L]):
    """More lanes join the current epoch; flowing lanes are untouched. Ids are above every one before them."""

    lanes: tuple[L, ...]


@dataclass(frozen=True, slots=True)
class LanesRevoked:
    """Owners stop these lanes, flush, wait until the sink holds it durably, and arrive; then the source commits.

    With `RevokeReason.LOST` the barrier has no parties: nothing is drained or committed, the lanes are already fenced.
    """

    lanes: tuple[LaneId, ...]
    barrier: DrainBarrier
    reason: RevokeReason = RevokeReason.REVOKED


@dataclass(frozen=True, slots=True)
class LanesRetired:
    """Lanes of a bounded run that are delivered, acknowledged and committed to their end: removed without a barrier."""

    lanes: tuple[LaneId, ...]


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing within the timeout."""


@dataclass(frozen=True, slots=True)
class CommitReady:
    """A hint: these partitions have decided their end and wait only for their last acks to be committed."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class Drained:
    """A bounded run is over: every lane gave its last record and the group has committed every end. Idempotent."""


SourceEvent: TypeAlias = LanesAssigned[L] | LanesAdded[L] | LanesRevoked | LanesRetired | Idle | CommitReady | Drained


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of one commit: partitions that stand at their new position, and the error code name of the others.

    `synchronous` tells a revocation's own commit from a periodic one.
    """

    committed: Mapping[PartitionId, Offset]
    failed: Mapping[PartitionId, str]
    synchronous: bool = False


class Source(Protocol[L]):
    """Where lanes come from. Every method but `start` is called from the controller's thread and none of them blocks,
    save `poll_events` for its timeout. Commands are one-way; what became of them comes back as events and results.
    """

    def start(self) -> None:
        """Begin; assignments follow as events."""

    def poll_events(self, timeout: float) -> SourceEvent[L]:
        """Return the next event, or `Idle` after `timeout` seconds.

        Raises:
            FatalError: The source has failed for good; it may still be drained and closed.
        """

    def commit(self, positions: Mapping[PartitionId, Offset]) -> None:
        """Ask for an asynchronous commit of exactly these positions; lanes no longer held are left out."""

    def poll_results(self) -> Sequence[CommitResult]:
        """Return what became of commits since the last call."""

    def start_lane(self, lane: LaneId, stored: StoredPosition | None) -> None:
        """Give the position that the sink holds for a lane that `awaits_sink`; None: the sink has none."""

    def restart_lanes(self, positions: Mapping[LaneId, Offset | None]) -> None:
        """Fence these lanes, if still held, and bring their partitions back as new lanes at these positions.

        They come back as `LanesRevoked(LOST)` followed by `LanesAdded`. None: as after an assignment, which asks the
        sink, where it holds positions, or the group.
        """

    def hold_back(self, intents: Intents) -> None:
        """Give no more records to the lanes that these intents hold back, also to those that come, and give them to all
        others. They take the place of the intents before. Commits and drains go on."""

    def close(self) -> None:
        """Leave; `is_closed` tells when. Drain and commit first: lanes that are still held are dropped."""

    @property
    def is_closed(self) -> bool:
        """Whether the source has left and will send no more events."""

    @property
    def protocol(self) -> str:
        """The group protocol in use, for the status; empty before it is known."""

    @property
    def seen(self) -> float:
        """When the source's thread last took a turn, time.monotonic(); 0 before it starts."""

    @property
    def missing_topics(self) -> Sequence[str]:
        """Subscribed topics that do not exist."""
