"""Where a thread's time goes: every moment of it belongs to one activity, so the activities add up to its life.

The thread that a stopwatch is of calls `switch` at each change, a few times for a poll or a batch, never for a record.
Whoever reads gets the activity under way too, up to now: a write that hangs is seen while it hangs.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import CollectorRegistry

FIRST_ACTIVITY = "other"


class Stopwatch:
    """The seconds of one thread, by activity.

    Its state is one tuple that is replaced as a whole, so that a reader, on any thread and without a lock, never sees
    a moment twice or not at all: a counter that goes back would look like a new process.
    """

    __slots__ = ("_clock", "_state")

    def __init__(self, seconds: Mapping[str, float], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._state: tuple[str | None, float, Mapping[str, float]] = (FIRST_ACTIVITY, clock(), seconds)

    @property
    def is_stopped(self) -> bool:
        """Whether it counts no more."""
        return self._state[0] is None

    def switch(self, activity: str) -> str:
        """Let the time from now on belong to this activity; returns the one of before, to switch back to."""
        before = self._state[0]
        if before != activity:
            now = self._clock()
            self._state = (activity, now, self._until(now))
        return before or activity

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Let the time of a block belong to this activity, and what follows to the one of before."""
        before = self.switch(activity)
        try:
            yield
        finally:
            self.switch(before)

    def stop(self) -> None:
        """Count no more: the thread ends."""
        now = self._clock()
        self._state = (None, now, self._until(now))

    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of each activity until now."""
        return self._until(self._clock())

    def _until(self, now: float) -> Mapping[str, float]:
        activity, since, seconds = self._state
        return seconds if activity is None else {**seconds, activity: seconds[activity] + max(0.0, now - since)}


class SecondsCounter(Collector):
    """A counter of seconds by activity, made from the stopwatches of the threads that it is about.

    Args:
        labels: Its labels, the last of which is the activity.
        activities: Every activity there is.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        activities: Sequence[str],
        registry: CollectorRegistry,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._activities = tuple(activities)
        self._clock = clock
        self._watches: Mapping[tuple[str, ...], tuple[Stopwatch, ...]] = {}  # replaced as a whole by the main thread
        registry.register(self)

    def start(self, *labels: str) -> Stopwatch:
        """Return the stopwatch of a thread that begins now. Called by the main thread.

        With the same labels as one that has ended, it goes on from there.
        """
        watches = self._watches.get(labels, ())
        ended = [watch for watch in watches if watch.is_stopped]
        watch = Stopwatch(self._sum(ended), self._clock)
        running = (each for each in watches if each not in ended)
        self._watches = {**self._watches, labels: (*running, watch)}
        return watch

    def describe(self) -> Iterable[Metric]:
        """Name the metric; called by the registry."""
        return [CounterMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """Return the seconds until now; called by the registry at a scrape."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, watches in self._watches.items():
            for activity, seconds in self._sum(watches).items():
                family.add_metric((*labels, activity), seconds)
        return [family]

    def _sum(self, watches: Iterable[Stopwatch]) -> Mapping[str, float]:
        read = [watch.seconds() for watch in watches]
        return {activity: sum(seconds[activity] for seconds in read) for activity in self._activities}
