"""Circuit breaker of one sink: after failures in a row nothing is tried for a while, then one probe decides.

Pure; belongs to one pipeline thread, which passes the time in (time.monotonic(), seconds).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.sink.retry import Backoff


class Breaker:
    """Closed, open, or half open: open until `retry_at`, then the next try is the probe.

    Args:
        backoff: How long it stays open; longer after each probe that fails.
        threshold: Transient failures in a row, of whatever lanes, that open it.
    """

    def __init__(self, backoff: Backoff, threshold: int = 5) -> None:
        self._backoff = backoff
        self._threshold = threshold
        self._failures = 0
        self._opened = 0  # times in a row
        self.retry_at: float | None = None  # None: closed

    @property
    def is_open(self) -> bool:
        """Whether it is open or half open."""
        return self.retry_at is not None

    def allows(self, now: float) -> bool:
        """Whether something may be tried: it is closed, or this is the probe."""
        return self.retry_at is None or now >= self.retry_at

    def begin_probe(self, now: float) -> None:
        """Let one try through: whoever comes next waits for its answer, and no longer than once more the open time."""
        self.retry_at = now + self._backoff.delay(max(1, self._opened))

    def succeeded(self) -> bool:
        """Note a success; true if that has closed it."""
        was_open = self.is_open
        self._failures = self._opened = 0
        self.retry_at = None
        return was_open

    def failed(self, now: float, retry_after: float | None = None) -> bool:
        """Note a transient failure; true if that has opened it, or opened it again.

        A destination that asks to be left alone for `retry_after` seconds has that from every lane, so at once.
        """
        self._failures += 1
        if self._failures < self._threshold and not self.is_open and not retry_after:
            return False
        self._opened += 1
        self.retry_at = now + self._backoff.delay(self._opened, retry_after)
        return True
