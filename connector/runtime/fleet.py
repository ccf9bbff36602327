"""The pipelines, and which of them has which lane. The controller owns it and calls it from the main thread.

A pipeline that crashed is replaced by a new one with the same number. Its lanes stay with the number until the source
brings their partitions back as new lanes, so a revocation meanwhile is answered by whoever has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from connector.api.event import CloseReason, NodeFailed, NodeRestarted, StopCause
from connector.lane.placement import place
from connector.pipeline.messages import AddLanes, DropLanes, Finish, Notice, StallLane, StopLanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from connector.api.barrier import DrainBarrier
    from connector.api.event import Event
    from connector.api.types import Epoch, LaneId
    from connector.lane.lane import Lane
    from connector.pipeline.messages import Command, Failed
    from connector.pipeline.worker import Pipeline


@dataclass(frozen=True, slots=True)
class Replacement:
    """A crashed pipeline's successor: when it is started, and which lanes it brings back.

    `failures` has what came since a pipeline with this number was open last, the newest at the end.
    """

    failures: tuple[Failed, ...]
    at: float  # time.monotonic()
    lanes: tuple[LaneId, ...] = ()
    is_started: bool = False


class Fleet:
    """Every pipeline, by number.

    Args:
        make: Makes a pipeline, given its number, how often it was made before, and events for its sink to begin with.
        count: How many there are.
    """

    def __init__(self, make: Callable[[int, int, Sequence[Event]], Pipeline], count: int) -> None:
        self._make = make
        self.pipelines = [make(number, 0, ()) for number in range(count)]
        self.lanes: dict[LaneId, Lane] = {}
        self.owners: dict[LaneId, int] = {}
        self._replacements: dict[int, Replacement] = {}

    def start(self) -> None:
        """Start every pipeline."""
        for pipeline in self.pipelines:
            pipeline.start()

    # Lanes.

    def place(self, lanes: Sequence[Lane], epoch: Epoch) -> None:
        """Give each lane to the pipeline that has the fewest."""
        loads = [0] * len(self.pipelines)
        for owner in self.owners.values():
            loads[owner] += 1
        grouped: dict[int, list[Lane]] = {}
        for lane, number in zip(lanes, place(lanes, loads), strict=True):
            self.lanes[lane.id] = lane
            self.owners[lane.id] = number
            grouped.setdefault(number, []).append(lane)
        for number, placed in grouped.items():
            self.pipelines[number].put(AddLanes(tuple(placed), epoch))

    def stop_lanes(self, lanes: Sequence[LaneId], barrier: DrainBarrier, deadline: float) -> None:
        """Let the owners drain lanes; for those that nobody has, the barrier is counted down here."""
        owned = self._by_owner(lanes)
        for number, ids in owned.items():
            self.pipelines[number].put(StopLanes(tuple(ids), barrier, deadline))
        strangers = len(lanes) - sum(map(len, owned.values()))
        if strangers:
            barrier.arrive(strangers)

    def drop_lanes(self, lanes: Sequence[LaneId], reason: CloseReason) -> None:
        """Let the owners forget lanes."""
        for number, ids in self._by_owner(lanes).items():
            self.pipelines[number].put(DropLanes(tuple(ids), reason))

    def forget(self, lane: LaneId) -> Lane | None:
        """Hold a lane no longer; returns it if it was held."""
        self.owners.pop(lane, None)
        return self.lanes.pop(lane, None)

    def stall(self, lane: LaneId) -> None:
        """Let the owner tell its sink that a lane gets no records."""
        self.pipelines[self.owners[lane]].put(StallLane(lane))

    # Pipelines.

    def tell(self, event: Event) -> None:
        """Give every sink an event."""
        self.command(Notice(event))

    def command(self, command: Command) -> None:
        """Give every pipeline a command."""
        for pipeline in self.pipelines:
            pipeline.put(command)

    def schedule_replacement(self, failed: Failed, at: float) -> None:
        """Note that a pipeline has crashed and is replaced at a time."""
        before = self._replacements.get(failed.pipeline)
        failures = (*before.failures, failed) if before is not None else (failed,)
        self._replacements[failed.pipeline] = Replacement(failures, at)

    def start_replacements(self, now: float) -> None:
        """Start what is due. The new sink hears why before its first batch."""
        for number, replacement in list(self._replacements.items()):
            if replacement.is_started or now < replacement.at:
                continue
            lanes = tuple(lane for lane, owner in self.owners.items() if owner == number)
            notices = [NodeFailed(lanes, str(failed.error), failed.node) for failed in replacement.failures]
            old = self.pipelines[number]
            old.put(Finish(StopCause.MANUAL))
            self.pipelines[number] = self._make(number, old.incarnation + 1, notices)
            self.pipelines[number].start()
            self._replacements[number] = replace(replacement, lanes=lanes, is_started=True)

    def opened(self, number: int) -> tuple[LaneId, ...]:
        """A pipeline's sink is open; returns the lanes that it has to bring back, if it replaces another."""
        replacement = self._replacements.get(number)
        if replacement is None or not replacement.is_started:
            return ()
        del self._replacements[number]
        for node in dict.fromkeys(failed.node for failed in replacement.failures):
            self.pipelines[number].put(Notice(NodeRestarted(node)))
        return tuple(lane for lane in replacement.lanes if lane in self.owners)

    def finish(self, cause: StopCause) -> None:
        """End every pipeline. They answer no more: no lane has an owner from now on."""
        self.command(Finish(cause))
        self.lanes.clear()
        self.owners.clear()

    def _by_owner(self, lanes: Iterable[LaneId]) -> dict[int, list[LaneId]]:
        grouped: dict[int, list[LaneId]] = {}
        for lane in lanes:
            if lane in self.owners:
                grouped.setdefault(self.owners[lane], []).append(lane)
        return grouped
