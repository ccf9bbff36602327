"""When a pipeline that crashed is started anew, and when that is given up. Pure; the controller calls it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.sink.retry import Backoff


class Supervisor:
    """Restarts with backoff, up to a number of crashes within a window; each pipeline counts for itself.

    Args:
        backoff: Delay before each restart, by crashes in the window.
        limit: How many crashes within the window are cured by a restart.
        window: Seconds; older crashes are forgotten.
    """

    def __init__(self, backoff: Backoff, limit: int = 5, window: float = 600.0) -> None:
        self._backoff = backoff
        self._limit = limit
        self._window = window
        self._crashes: dict[int, deque[float]] = {}

    def restart_at(self, pipeline: int, now: float) -> float | None:
        """Note a crash; return when to start anew, time.monotonic(), or None: there were too many."""
        crashes = self._crashes.setdefault(pipeline, deque())
        crashes.append(now)
        while crashes and crashes[0] < now - self._window:
            crashes.popleft()
        if len(crashes) > self._limit:
            return None
        return now + self._backoff.delay(len(crashes))
