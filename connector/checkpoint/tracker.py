"""Which position of a lane is safe to commit.

A `LaneTracker` hears of every batch twice: when it goes to the sink, in delivery order, and when the sink reports it
durable, in any order. Its watermark is the end of the longest finished prefix in delivery order, so the gaps that
compaction and transaction markers leave need no special case (INV-1, INV-3).

Pure: no threads, clock or Kafka. The checkpointer owns every tracker and calls it from the main thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from connector.api.errors import InvariantError

if TYPE_CHECKING:
    from connector.api.types import Offset


class LaneTracker:
    """The batches of one lane between delivery and acknowledgement.

    A batch that failed is never finished and holds the watermark for good. The first batch of a lane is an empty one
    whose end is the lane's start position; until it is finished there is no watermark.
    """

    def __init__(self) -> None:
        self._oldest = 0  # sequence of _batches[0]
        self._batches: deque[tuple[Offset, float]] = deque()  # (end, delivered at); the first one is never finished
        self._finished: set[int] = set()  # beyond the first one
        self._watermark: Offset | None = None
        self._end: Offset | None = None

    def deliver(self, sequence: int, next_position: Offset, now: float) -> None:
        """Note that a batch goes to the sink.

        Args:
            sequence: 0, 1, 2, … without gaps.
            next_position: The next position to read after this batch; the same again for a batch without records.
            now: Monotonic seconds.

        Raises:
            InvariantError: A gap in the sequence, or a position below the one before (INV-3).
        """
        expected = self._oldest + len(self._batches)
        if sequence != expected:
            raise InvariantError(
                f"INV-3: batch {sequence} was delivered where batch {expected} was due. "
                "This is a bug in Sluiceway; please report it."
            )
        if self._end is not None and next_position < self._end:
            raise InvariantError(
                f"INV-3: batch {sequence} ends at {next_position}, before the end {self._end} of the one before. "
                "This is a bug in Sluiceway; please report it."
            )
        self._batches.append((next_position, now))
        self._end = next_position

    def finish(self, sequence: int) -> None:
        """Note that a batch is durable, or done in another counted way.

        Raises:
            InvariantError: The batch was never delivered, so that the watermark would pass what the sink has not seen,
                or was finished before, so that somebody counts acknowledgements wrong (INV-1).
        """
        if sequence >= self._oldest + len(self._batches):
            raise InvariantError(
                f"INV-1: batch {sequence} was acknowledged and never delivered. "
                "This is a bug in Sluiceway; please report it."
            )
        if sequence < self._oldest or sequence in self._finished:
            raise InvariantError(
                f"INV-1: batch {sequence} was acknowledged twice. This is a bug in Sluiceway; please report it."
            )
        self._finished.add(sequence)
        while self._oldest in self._finished:
            self._finished.remove(self._oldest)
            self._watermark, _ = self._batches.popleft()
            self._oldest += 1

    @property
    def watermark(self) -> Offset | None:
        """The position that is safe to commit, None before the first batch is finished."""
        return self._watermark

    @property
    def pending(self) -> int:
        """How many batches are delivered and not finished."""
        return len(self._batches) - len(self._finished)

    @property
    def oldest_pending_since(self) -> float | None:
        """When the batch that holds the watermark was delivered, None when everything is finished."""
        return self._batches[0][1] if self._batches else None
