"""Whether too many records die: a destination that refuses everything must not be emptied into the dead letter topic.

Two limits: dead letters in a row, and their part of the last records, judged once so many were seen. Pure; one for each
pipeline, called on its thread.
"""

from __future__ import annotations

from collections import deque


class FloodLimit:
    """Counts records in the order in which they end."""

    def __init__(self, *, max_ratio: float, window: int, max_consecutive: int) -> None:
        """Begin with nothing seen.

        Args:
            max_ratio: Dead letters among the last `window` records, from 0 to 1; 1 is no limit.
            window: How many records the ratio is of.
            max_consecutive: Dead letters in a row; 0 is no limit.
        """
        self._max_ratio = max_ratio
        self._window = window
        self._max_consecutive = max_consecutive
        self._runs: deque[tuple[int, bool]] = deque()  # so many records, dead or not; together at most the window
        self._seen = 0
        self._dead = 0
        self._consecutive = 0

    def note_written(self, count: int) -> None:
        """So many records are durable in the sink."""
        if count > 0:
            self._consecutive = 0
            self._note(count, is_dead=False)

    def note_dead(self, count: int) -> None:
        """So many records become dead letters."""
        if count > 0:
            self._consecutive += count
            self._note(count, is_dead=True)

    @property
    def limit(self) -> str | None:
        """Which limit is exceeded, as a metric label: `consecutive`, `ratio`, or None."""
        if self._max_consecutive and self._consecutive > self._max_consecutive:
            return "consecutive"
        if self._seen >= self._window and self._dead > self._max_ratio * self._seen:
            return "ratio"
        return None

    def is_flooded(self) -> str | None:
        """Return what has happened and the way out, for the error that ends the process, or None."""
        match self.limit:
            case "consecutive":
                what = f"{self._consecutive} in a row, more than CONNECTOR_DLQ_MAX_CONSECUTIVE={self._max_consecutive}"
            case "ratio":
                what = f"{self._dead} of the last {self._seen}, more than CONNECTOR_DLQ_MAX_RATIO={self._max_ratio:g}"
            case _:
                return None
        return f"{what}: correct the cause, or raise that limit"

    def _note(self, count: int, *, is_dead: bool) -> None:
        count = min(count, self._window)
        if self._runs and self._runs[-1][1] is is_dead:
            self._runs[-1] = (self._runs[-1][0] + count, is_dead)
        else:
            self._runs.append((count, is_dead))
        self._seen += count
        self._dead += count if is_dead else 0
        while self._seen > self._window:
            length, oldest_is_dead = self._runs.popleft()
            gone = min(length, self._seen - self._window)
            if gone < length:
                self._runs.appendleft((length - gone, oldest_is_dead))
            self._seen -= gone
            self._dead -= gone if oldest_is_dead else 0
