"""All lanes of the process: epochs, fences, and which positions are safe to commit.

A lane lives from `begin_epoch` or `add` until it is fenced. The fence is per lane: an acknowledgement that comes after
it only counts (INV-7), whatever the other lanes do, so a rebalance that takes one lane costs the others nothing.

Pure: no threads, clock or Kafka. The controller owns the checkpointer and calls it from the main thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from connector.api.errors import InvariantError
from connector.api.types import Epoch
from connector.checkpoint.tracker import LaneTracker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connector.api.types import LaneId, Offset, PartitionId


@dataclass(slots=True)
class _Lane:
    partition: PartitionId
    tracker: LaneTracker = field(default_factory=LaneTracker)
    is_fenced: bool = False


class Checkpointer:
    """Trackers of all lanes by lane id. `late_acks` counts acknowledgements of lanes that were gone."""

    def __init__(self) -> None:
        self.epoch = Epoch(0)
        self.late_acks = 0
        self._lanes: dict[LaneId, _Lane] = {}
        self._highest: LaneId | None = None

    def begin_epoch(self, lanes: Iterable[tuple[LaneId, PartitionId]]) -> Epoch:
        """Start the next epoch with this full lane set and return its number.

        Raises:
            InvariantError: A lane of the epoch before is still live: drain, commit and fence it first (INV-5). Or as
                for `add`.
        """
        live = [lane for lane, state in self._lanes.items() if not state.is_fenced]
        if live:
            raise InvariantError(
                f"INV-5: a new epoch begins while lanes {live} are live. This is a bug in Sluiceway; please report it."
            )
        self.epoch = Epoch(self.epoch + 1)
        self.add(lanes)
        return self.epoch

    def add(self, lanes: Iterable[tuple[LaneId, PartitionId]]) -> None:
        """Let lanes join the current epoch.

        Raises:
            InvariantError: A lane id is not above every one before, or a partition id is that of a live lane: one
                lane would be taken for another (INV-7).
        """
        held = {state.partition for state in self._lanes.values() if not state.is_fenced}
        for lane, partition in sorted(lanes):
            if (self._highest is not None and lane <= self._highest) or partition in held:
                raise InvariantError(
                    f"INV-7: lane {lane} of partition {partition} is not new (highest lane so far: {self._highest}). "
                    "This is a bug in Sluiceway; please report it."
                )
            self._lanes[lane] = _Lane(partition)
            self._highest = lane
            held.add(partition)

    def deliver(self, lane: LaneId, sequence: int, next_position: Offset, now: float) -> bool:
        """Note that a batch goes to the sink; false, and nothing else, for a lane that is fenced or unknown.

        Raises:
            InvariantError: As `LaneTracker.deliver`.
        """
        state = self._live(lane)
        if state is None:
            return False
        state.tracker.deliver(sequence, next_position, now)
        return True

    def finish(self, lane: LaneId, sequence: int) -> bool:
        """Note that a batch is done; false, and counted as late, for a lane that is fenced or unknown.

        Raises:
            InvariantError: As `LaneTracker.finish`.
        """
        state = self._live(lane)
        if state is None:
            self.late_acks += 1
            return False
        state.tracker.finish(sequence)
        return True

    def fence(self, lanes: Iterable[LaneId]) -> None:
        """Let acknowledgements of these lanes only count from now on. Lanes that are gone already are passed over."""
        for lane in lanes:
            if lane in self._lanes:
                self._lanes[lane].is_fenced = True

    def drop(self, lanes: Iterable[LaneId]) -> None:
        """Forget these lanes. Lanes that are gone already are passed over.

        Raises:
            InvariantError: A lane is neither fenced nor settled, so work in flight would be forgotten (INV-5).
        """
        for lane in lanes:
            state = self._lanes.get(lane)
            if state is None:
                continue
            if not state.is_fenced and state.tracker.pending:
                raise InvariantError(
                    f"INV-5: lane {lane} is dropped with {state.tracker.pending} batch(es) in flight and no fence. "
                    "This is a bug in Sluiceway; please report it."
                )
            del self._lanes[lane]

    def watermarks(self, lanes: Iterable[LaneId] | None = None) -> dict[PartitionId, Offset]:
        """Return what is safe to commit of these lanes, or of all: live ones only, and only where there is one."""
        states = self._lanes.values() if lanes is None else [state for state in map(self._live, lanes) if state]
        return {
            state.partition: state.tracker.watermark
            for state in states
            if not state.is_fenced and state.tracker.watermark is not None
        }

    def pending(self, lanes: Iterable[LaneId]) -> int:
        """Return how many batches of these lanes, so far as they are live, are delivered and not finished."""
        return sum(state.tracker.pending for state in map(self._live, lanes) if state)

    def is_settled(self, lane: LaneId) -> bool:
        """Whether nothing that was delivered is unfinished; true for a lane that is gone."""
        state = self._live(lane)
        return state is None or not state.tracker.pending

    def watermark_age(self, lane: LaneId, now: float) -> float | None:
        """Return for how many seconds the oldest unfinished batch has been out; None when none is."""
        state = self._live(lane)
        since = state.tracker.oldest_pending_since if state else None
        return None if since is None else now - since

    def _live(self, lane: LaneId) -> _Lane | None:
        state = self._lanes.get(lane)
        return None if state is None or state.is_fenced else state
