"""What rebalances cost, as metrics: how long each callback holds the consumer thread, and what the last one moved.

Belongs to the consumer thread.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.api.types import LaneId
    from connector.source.assignment import Assignment
    from connector.telemetry.metrics import Metrics
    from connector.telemetry.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class _Taken:
    seconds: float = 0.0
    revoked: int = 0
    lost: int = 0


class RebalanceCost:
    """Measures rebalance callbacks by the lanes that are held before and after each of them."""

    def __init__(self, assignment: Assignment, metrics: Metrics, watch: Stopwatch) -> None:
        self._assignment = assignment
        self._metrics = metrics
        self._watch = watch
        self._taken = _Taken()  # by the callbacks of an eager rebalance that has brought nothing yet

    @contextmanager
    def callback(self, leaving: Literal["revoked", "lost"], *, is_eager: bool) -> Iterator[None]:
        """Measure the callback that is the block; lanes that it drops are `leaving`.

        A callback that moves no lane changes nothing of the last rebalance. An eager group takes all lanes in one
        callback and brings the new set in another: both are one rebalance.
        """
        before, started = self._held(), time.monotonic()
        with self._watch.during("rebalance"):
            yield
        seconds, after = time.monotonic() - started, self._held()
        self._metrics.rebalance_seconds.observe(seconds)
        gained, gone, kept = len(after - before), len(before - after), len(before & after)
        if not gained and not gone:
            return
        taken = _Taken(
            self._taken.seconds + seconds,
            self._taken.revoked + (gone if leaving == "revoked" else 0),
            self._taken.lost + (gone if leaving == "lost" else 0),
        )
        self._metrics.last_rebalance_timestamp.set(time.time())
        self._metrics.last_rebalance_seconds.set(taken.seconds)
        changes = {"gained": gained, "revoked": taken.revoked, "lost": taken.lost, "kept": kept}
        self._metrics.last_rebalance_lanes.show({(change,): lanes for change, lanes in changes.items()})
        self._taken = taken if is_eager and not gained else _Taken()

    def _held(self) -> frozenset[LaneId]:
        return frozenset(held.lane.id for held in self._assignment)
