"""When which position is committed.

A position is committed on the periodic tick if it has moved; at once if its partition has no committed position at all,
so that a start chosen by policy stands; at a tight cadence while a bounded run waits for its last acknowledgements; and
unmoved on a slow timer, so that it does not expire. Within an assignment commits only go forward (INV-4).

One commit is outstanding at a time. One that is never answered is given up after a deadline.

Pure: no threads, clock or Kafka. The controller owns the schedule and calls it from the main thread; all times are
monotonic seconds that the caller passes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.api.errors import InvariantError
from connector.commit.outcome import Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from connector.api.types import Offset, PartitionId

RECOMMIT_SECONDS = 6 * 3600.0
"""Brokers before 2.1 expire a position by its own age (KIP-211), before 2.0 after one day: a quarter of that."""

_ANSWER_SECONDS = 60.0  # the client gives a commit up after 45 s without a coordinator
_RETRY_INITIAL_SECONDS = 0.5
_RETRY_MAX_SECONDS = 30.0
_WAIT_SECONDS = 60.0  # for the next assignment; then it is tried all the same
_FINAL_RETRY_SECONDS = 0.5  # at shutdown nothing else will come, so a failed partition is tried again soon


@dataclass(slots=True)
class _Partition:
    committed: Offset | None
    sent: Offset | None = None  # the highest of this assignment
    stands_since: float | None = None  # when the committed position was last written; None: not known yet
    failures: int = 0  # in a row
    failed_at: float = 0.0
    retry_at: float = 0.0
    waits: bool = False  # for the next assignment
    chased_until: float | None = None  # end of the tight cadence; None: periodic

    def is_behind(self, position: Offset) -> bool:
        """Whether this position is above what the group holds, as far as we know."""
        return self.committed is None or position > self.committed


@dataclass(slots=True)
class _Outstanding:
    awaited: set[PartitionId]
    deadline: float
    assignment: int  # number of the assignment that it was sent in


class CommitSchedule:
    """Decides on commits; the caller sends them and reports what became of them.

    Args:
        interval: Seconds between periodic commits (`CONNECTOR_COMMIT_INTERVAL`).
        recommit_interval: Seconds after which an unmoved position is written again.
        tight_interval: Seconds between commits of chased partitions.
    """

    def __init__(
        self, interval: float, recommit_interval: float = RECOMMIT_SECONDS, tight_interval: float = 0.05
    ) -> None:
        self._interval = interval
        self._recommit_interval = recommit_interval
        self._tight_interval = tight_interval
        self._partitions: dict[PartitionId, _Partition] = {}
        self._outstanding: _Outstanding | None = None
        self._assignment = 0
        self._tick_at = float("-inf")
        self._sent_at = float("-inf")

    def admit(self, partition: PartitionId, committed: Offset | None) -> None:
        """Start anew with this partition.

        Args:
            partition: From a lane that has just been assigned; what was known of it is forgotten.
            committed: The position that the group holds for it and that the lane starts from; None if there is none,
                or if the lane starts elsewhere by policy, which may be below the old position.
        """
        self.forget((partition,))
        self._partitions[partition] = _Partition(committed)

    def forget(self, partitions: Iterable[PartitionId]) -> None:
        """Let partitions go: they are not committed any more, and a commit of theirs is not waited for."""
        for partition in partitions:
            self._partitions.pop(partition, None)
            self._stop_awaiting(partition)

    def assigned(self) -> None:
        """An assignment has come, perhaps an empty one: the member has a new generation.

        Kept lanes that were refused under the old one may commit again, and so may those whose commit is still on its
        way: its refusal says nothing about the new generation.
        """
        self._assignment += 1
        for state in self._partitions.values():
            if state.waits:
                state.waits, state.retry_at = False, 0.0

    def chase(self, partitions: Iterable[PartitionId], now: float) -> None:
        """Commit these as soon as they move: at the tight cadence for one interval, then at every `due`.

        A hint, for partitions that have decided their end (`CommitReady`). Those that are gone are passed over.
        """
        for partition in partitions:
            if state := self._partitions.get(partition):
                state.chased_until = now + self._interval

    def due(self, now: float, watermarks: Mapping[PartitionId, Offset]) -> dict[PartitionId, Offset]:
        """Return what to commit now, nothing while a commit is outstanding. Call `sent` with what is really sent."""
        if self._is_waiting(now):
            return {}
        is_tick = now >= self._tick_at
        positions = {
            partition: position
            for partition, position in watermarks.items()
            if (state := self._partitions.get(partition)) and self._is_due(state, position, now, is_tick=is_tick)
        }
        if is_tick and not positions:
            self._tick_at = now + self._interval
        return positions

    def flush(self, now: float, watermarks: Mapping[PartitionId, Offset]) -> dict[PartitionId, Offset]:
        """Return everything that is not committed, whatever the interval: for the last commits before the end.

        Nothing while a commit is outstanding, and a partition that has just failed waits for half a second.
        """
        if self._is_waiting(now):
            return {}
        return {
            partition: position
            for partition, position in watermarks.items()
            if (state := self._partitions.get(partition))
            and state.is_behind(position)
            and (not state.failures or now >= min(state.retry_at, state.failed_at + _FINAL_RETRY_SECONDS))
        }

    def sent(self, now: float, positions: Mapping[PartitionId, Offset]) -> None:
        """Note that a commit of these positions is on its way.

        Raises:
            InvariantError: Another one is outstanding, a partition is unknown, or a position is below one that was
                committed or sent before (INV-4).
        """
        if self._is_waiting(now):
            raise InvariantError(
                "INV-4: a commit was sent while another is outstanding. This is a bug in Sluiceway; please report it."
            )
        for partition, position in positions.items():
            state = self._partitions.get(partition)
            floor = None if state is None else _highest(state.committed, state.sent)
            if state is None or (floor is not None and position < floor):
                raise InvariantError(
                    f"INV-4: position {position} of partition {partition} was sent, which "
                    f"{'is not assigned' if state is None else f'stands at {floor}'}. "
                    "This is a bug in Sluiceway; please report it."
                )
            state.sent = position
        self._outstanding = _Outstanding(set(positions), now + _ANSWER_SECONDS, self._assignment)
        self._sent_at = now
        if now >= self._tick_at:
            self._tick_at = now + self._interval

    def settle(self, now: float, committed: Mapping[PartitionId, Offset], failed: Mapping[PartitionId, str]) -> None:
        """Note what became of a commit, the outstanding one, an older one, or a synchronous one of the source.

        A retryable failure is tried again after a backoff from half a second to 30 seconds. Any other waits for the
        next assignment, a minute at most, unless one has come since it was sent. Partitions that are gone change
        nothing (INV-7).

        Args:
            now: Monotonic seconds.
            committed: Where the group stands now, by partition.
            failed: Name of the error code, by partition. `error_for` tells which of them end the process.
        """
        sent_in = self._outstanding.assignment if self._outstanding is not None else self._assignment
        for partition, position in committed.items():
            self._stop_awaiting(partition)
            if state := self._partitions.get(partition):
                state.committed = _highest(state.committed, position)
                state.sent = _highest(state.sent, position)
                state.stands_since = now
                state.failures = 0
                state.waits = False
        for partition, code in failed.items():
            self._stop_awaiting(partition)
            if state := self._partitions.get(partition):
                outcome = outcome_of(code)
                is_outdated = outcome is Outcome.WAIT and sent_in != self._assignment
                self._fail(state, now, Outcome.RETRY if is_outdated else outcome)

    def next_due(self, now: float) -> float:
        """Return when time alone can make something due, not before `now`: call `due` then, and whenever acks came.

        Meant to be asked after `due`, which takes what is due already.
        """
        if self._outstanding is not None:
            return max(now, self._outstanding.deadline)
        times = [self._tick_at]
        for state in self._partitions.values():
            if state.failures:
                times.append(state.retry_at)
            elif state.chased_until is not None and now < state.chased_until:
                times.append(now + self._tight_interval)
            if state.stands_since is not None:
                times.append(state.stands_since + self._recommit_interval)
        return min((time for time in times if time > now), default=now)

    def committed(self, partition: PartitionId) -> Offset | None:
        """Return where the group stands, as far as this assignment knows."""
        state = self._partitions.get(partition)
        return None if state is None else state.committed

    def is_settled(self, watermarks: Mapping[PartitionId, Offset]) -> bool:
        """Whether all these positions, so far as their partitions are still ours, are committed."""
        return not any(
            state.is_behind(position)
            for partition, position in watermarks.items()
            if (state := self._partitions.get(partition))
        )

    def _is_due(self, state: _Partition, position: Offset, now: float, *, is_tick: bool) -> bool:
        if state.failures and now < state.retry_at:
            return False
        if state.stands_since is None:
            state.stands_since = now  # assigned just now, so the timer of its position starts here
        if state.is_behind(position):
            return (
                is_tick
                or state.committed is None
                or state.failures > 0
                or (state.chased_until is not None and self._is_chase_due(state.chased_until, now))
            )
        # Not `<=`: a watermark below the committed position is a lane on its way back up to it (INV-4).
        return position == state.committed and now >= state.stands_since + self._recommit_interval

    def _is_chase_due(self, until: float, now: float) -> bool:
        return now >= until or now >= self._sent_at + self._tight_interval

    def _is_waiting(self, now: float) -> bool:
        if self._outstanding is not None and now >= self._outstanding.deadline:
            for partition in self._outstanding.awaited:
                self._fail(self._partitions[partition], now, Outcome.RETRY)
            self._outstanding = None
        return self._outstanding is not None

    def _fail(self, state: _Partition, now: float, outcome: Outcome) -> None:
        state.failures += 1
        state.failed_at = now
        if outcome is Outcome.RETRY:
            backoff = min(_RETRY_MAX_SECONDS, _RETRY_INITIAL_SECONDS * 2 ** min(state.failures - 1, 16))
            state.retry_at = now + backoff
        else:
            state.waits = True
            state.retry_at = now + _WAIT_SECONDS

    def _stop_awaiting(self, partition: PartitionId) -> None:
        if self._outstanding is not None:
            self._outstanding.awaited.discard(partition)
            if not self._outstanding.awaited:
                self._outstanding = None


def _highest(one: Offset | None, other: Offset | None) -> Offset | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
