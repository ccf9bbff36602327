"""What rebalances did and what they cost: measured around each callback, shown as metrics, told as one log line each.

Belongs to the consumer thread.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from connector.source.client import generation
from connector.source.story import Callback, Rebalanced, RebalanceStory, Release
from connector.telemetry.logs import get_logger
from connector.telemetry.partition_list import partition_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from connector.api.types import LaneId
    from connector.source.assignment import Assignment, Key
    from connector.source.client import KafkaClient
    from connector.telemetry.metrics import Metrics
    from connector.telemetry.stopwatch import Stopwatch

log = get_logger(__name__)


@dataclass(slots=True)
class Measured:
    """A callback that goes on; `release` is how it gave up lanes that were ours."""

    release: Release | None = None


class RebalanceReport:
    """Measures rebalance callbacks by the lanes that are held before and after each of them."""

    def __init__(self, assignment: Assignment, metrics: Metrics, watch: Stopwatch) -> None:
        self._assignment = assignment
        self._metrics = metrics
        self._watch = watch
        self._story = RebalanceStory()

    @contextmanager
    def callback(
        self, kind: Literal["assigned", "revoked", "lost"], client: KafkaClient, protocol: str
    ) -> Iterator[Measured]:
        """Measure the callback that is the block, also one that fails. What an assignment drops is lost."""
        before, started, measured = self._held(), time.monotonic(), Measured()
        try:
            with self._watch.during("rebalance"):
                yield measured
        finally:
            ended, after = time.monotonic(), self._held()
            gone = _keys(before, leave_out=after)
            told = self._story.add(
                Callback(
                    started=started,
                    ended=ended,
                    protocol=protocol,
                    generation=generation(client),
                    is_assignment=kind == "assigned",
                    kept=tuple(key for lane, key in after.items() if lane in before),
                    gained=_keys(after, leave_out=before),
                    revoked=gone if kind == "revoked" else (),
                    lost=() if kind == "revoked" else gone,
                    release=measured.release,
                )
            )
            if gone:  # here, since lanes that we bring back by ourselves leave too, and are no callback
                self._metrics.rebalances.labels("revoked" if kind == "revoked" else "lost").inc()
            self._metrics.rebalance_seconds.observe(ended - started)
            self._measure()
            _tell(told)

    def tell_overdue(self) -> None:
        """Tell of a revocation that no assignment has answered in time."""
        _tell(self._story.overdue(time.monotonic()))

    def finish(self) -> None:
        """Tell what is still untold: the member leaves."""
        _tell(self._story.finish())

    def _held(self) -> Mapping[LaneId, Key]:
        return {held.lane.id: held.key for held in self._assignment}

    def _measure(self) -> None:
        story = self._story.latest
        if story is None or not story.moves_lanes:
            return
        self._metrics.last_rebalance_timestamp.set(time.time())
        self._metrics.last_rebalance_seconds.set(story.callback_seconds)
        changes = {"gained": story.gained, "revoked": story.revoked, "lost": story.lost, "kept": story.kept}
        self._metrics.last_rebalance_lanes.show({(change,): len(lanes) for change, lanes in changes.items()})


def _keys(lanes: Mapping[LaneId, Key], *, leave_out: Mapping[LaneId, Key]) -> tuple[Key, ...]:
    return tuple(key for lane, key in lanes.items() if lane not in leave_out)


def _tell(stories: Sequence[Rebalanced]) -> None:
    for story in stories:
        release = story.release or Release()
        log.log(
            logging.WARNING if story.costs else logging.INFO,
            "rebalanced",
            number=story.number,
            group_protocol=story.protocol,
            generation=story.generation,
            lanes=len(story.gained) + len(story.kept),
            gained=partition_list(story.gained),
            gained_lanes=len(story.gained),
            revoked=partition_list(story.revoked),
            revoked_lanes=len(story.revoked),
            lost=partition_list(story.lost),
            lost_lanes=len(story.lost),
            kept=partition_list(story.kept),
            kept_lanes=len(story.kept),
            drained=release.drained,
            not_drained=release.not_drained,
            timed_out=release.timed_out,
            drain_seconds=round(release.drain_seconds, 3),
            committed_positions=release.committed,
            commit_result=",".join(release.codes) or ("ok" if release.committed else "none"),
            callback_seconds=round(story.callback_seconds, 3),
            total_seconds=round(story.total_seconds, 3),
        )
