"""Which lanes get no records although the log has some: a stuck leader, a lost fetch. Pure; the controller calls it.

A lane that is paused, by its full buffer or by an operator, has not stalled; it waits from the end of its pause on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from connector.api.types import LaneId
    from connector.lane.lane import Lane


class StallWatch:
    """Tells of each stall once. `timeout` is `CONNECTOR_LANE_IDLE_TIMEOUT`, in seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._paused: dict[LaneId, float] = {}  # when it was last seen paused, time.monotonic()
        self._stalled: set[LaneId] = set()

    def find(self, lanes: Collection[Lane], now: float) -> list[Lane]:
        """Return the lanes that have stalled since the last look."""
        held = {lane.id for lane in lanes}
        self._paused = {lane: at for lane, at in self._paused.items() if lane in held}
        self._paused.update((lane.id, now) for lane in lanes if lane.is_paused or lane.is_held_back)
        stalled = [
            lane
            for lane in lanes
            if lane.is_stalled(now, self._timeout) and now - self._paused.get(lane.id, 0.0) > self._timeout
        ]
        before, self._stalled = self._stalled, {lane.id for lane in stalled}
        return [lane for lane in stalled if lane.id not in before]
