"""`VirtualClock`: time that passes when a test says so. Give it to whatever takes a clock, a `Callable[[], float]`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class VirtualClock:
    """A clock; calling it returns the time in seconds. It stands still until `advance`. One thread at a time."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass; it never goes back.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot be advanced by {seconds} s")
        self.now += seconds
