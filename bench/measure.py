"""What a run measures: the time between its first and its last record, and how old records are when they arrive."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import quantiles
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector import Message


class Report(TypedDict):
    """One run, as its process prints it."""

    records: int
    seconds: float
    cpu_seconds: float
    p50_ms: float | None
    p99_ms: float | None


@dataclass(slots=True)
class Measured:
    """Counts records; the clock starts with the first list and ends with the last, so start-up does not count."""

    records: int = 0
    first: float = 0.0
    last: float = 0.0
    first_count: int = 0
    cpu_first: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)

    def take(self, messages: Sequence[Message], now_ns: int | None) -> None:
        """Note a list of records; with `now_ns`, each value holds the time it was produced, in nanoseconds."""
        self.last = time.perf_counter()
        if not self.records:
            self.first, self.first_count, self.cpu_first = self.last, len(messages), time.process_time()
        self.records += len(messages)
        if now_ns is not None:
            self.latencies_ms += [(now_ns - int(message.value() or b"0")) / 1e6 for message in messages]

    def report(self) -> Report:
        """Return the figures. The first list is left out of the count, since the clock starts when it is there."""
        cuts = quantiles(self.latencies_ms, n=100) if len(self.latencies_ms) > 1 else None
        return {
            "records": self.records - self.first_count,
            "seconds": self.last - self.first,
            "cpu_seconds": time.process_time() - self.cpu_first,
            "p50_ms": cuts[49] if cuts else None,
            "p99_ms": cuts[98] if cuts else None,
        }
