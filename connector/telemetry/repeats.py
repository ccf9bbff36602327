"""What is said again and again is said once in a while, with a count.

The first of a kind passes at once and opens a window. The others within it are left out; when it ends, the newest of
them passes, with the number of those before it, and opens the next. So what passed and what it stands for are always
all that came: nothing is left out silently.

Pure: no threads, no clock. Times are seconds of any monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")

WINDOW_SECONDS = 30.0
_MOST_KINDS = 1000  # remembered at a time


@dataclass(slots=True)
class _Window(Generic[T]):
    ends: float
    left_out: int = 0
    newest: T | None = None  # of those left out


class Repeats(Generic[T]):
    """Lets each kind through once in a window. What passes comes with the number of those that it stands for besides
    itself."""

    def __init__(self) -> None:
        self._windows: dict[Hashable, _Window[T]] = {}  # in the order in which they end

    @property
    def next_end(self) -> float | None:
        """When the next window ends; None when there is none."""
        window = next(iter(self._windows.values()), None)
        return None if window is None else window.ends

    def admit(self, kind: Hashable, item: T, now: float) -> list[tuple[T, int]]:
        """Take an item; returns what passes now, which may be older ones too."""
        passing = self.pass_overdue(now)
        window = self._windows.get(kind)
        if window is not None:
            window.left_out += 1
            window.newest = item
            return passing
        if len(self._windows) == _MOST_KINDS:
            passing += _leftover(self._windows.pop(next(iter(self._windows))))
        self._windows[kind] = _Window(now + WINDOW_SECONDS)
        return [*passing, (item, 0)]

    def pass_overdue(self, now: float) -> list[tuple[T, int]]:
        """Return what passes because a window has ended."""
        passing: list[tuple[T, int]] = []
        while self.next_end is not None and self.next_end <= now:
            kind = next(iter(self._windows))
            leftover = _leftover(self._windows.pop(kind))
            if leftover:
                passing += leftover
                self._windows[kind] = _Window(now + WINDOW_SECONDS)
        return passing

    def finish(self) -> list[tuple[T, int]]:
        """Return everything that was left out and not yet counted, and forget all."""
        windows = list(self._windows.values())
        self._windows.clear()
        return [passing for window in windows for passing in _leftover(window)]


def _leftover(window: _Window[T]) -> list[tuple[T, int]]:
    return [] if window.newest is None else [(window.newest, window.left_out - 1)]
