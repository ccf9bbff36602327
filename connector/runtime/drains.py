"""Drains under way: the controller's side of a barrier. It never waits; it looks at each turn.

Owners post their acks before they arrive, so when only the controller is missing, the acks are folded once more, the
positions are attached, and it arrives last. Meanwhile it attaches what is durable so far: at the deadline that stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.api.barrier import DrainBarrier
    from connector.api.types import LaneId
    from connector.checkpoint.checkpointer import Checkpointer


@dataclass(slots=True)
class Drain:
    """Lanes that are being drained. `is_own` marks one that the controller began itself: nobody settles it."""

    lanes: tuple[LaneId, ...]
    barrier: DrainBarrier
    deadline: float
    is_own: bool = False
    has_arrived: bool = False

    def advance(self, checkpointer: Checkpointer, fold: Callable[[], None], now: float) -> bool:
        """Take the next step; true when the drain is over and its lanes can be dropped."""
        if not self.has_arrived:
            owners_are_done = self.barrier.remaining == 1  # read before the acks are folded
            fold()
            self.barrier.attach(checkpointer.watermarks(self.lanes))
            if owners_are_done:
                self.barrier.arrive()
                self.has_arrived = True
        if self.is_own:
            return self.has_arrived or now >= self.deadline
        return self.barrier.is_settled
