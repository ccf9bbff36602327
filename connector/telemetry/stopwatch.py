"""Where a thread's time goes: every moment of it belongs to one activity, so the activities add up to its life.

The thread that a stopwatch is of calls `switch` at each change, a few times for a poll or a batch, never for a record.
Whoever reads gets the activity under way too, up to now: a write that hangs is seen while it hangs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import CollectorRegistry

FIRST_ACTIVITY = "other"


class Stopwatch:
    """The seconds of one thread, by activity.

    Any thread reads them without a lock. What a reader gets never goes back, since that would look like a new process:
    the activity under way is read from `_state` alone, which is replaced as a whole and holds what was before it.
    """

    __slots__ = ("_clock", "_seconds", "_state")

    def __init__(self, seconds: Mapping[str, float], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = dict(seconds)  # of each activity until it ended last
        # The activity, since when, and its seconds before; no activity: it is stopped.
        self._state: tuple[str, float, float] = (FIRST_ACTIVITY, clock(), self._seconds[FIRST_ACTIVITY])

    @property
    def is_stopped(self) -> bool:
        """Whether it counts no more."""
        return not self._state[0]

    def switch(self, activity: str) -> str:
        """Let the time from now on belong to this activity; returns the one of before, to switch back to."""
        before, since, seconds = self._state
        if before != activity:
            now = self._clock()
            self._seconds[before] = seconds + now - since  # in this order: a reader of the new state finds it
            self._state = (activity, now, self._seconds[activity])
        return before

    def during(self, activity: str) -> During:
        """Let the time of a `with` block belong to this activity, and what follows to the one of before."""
        return During(self, activity)

    def stop(self) -> None:
        """Count no more: the thread ends, and nothing may be switched to any more."""
        before, since, seconds = self._state
        self._seconds[before] = seconds + self._clock() - since
        self._state = ("", 0.0, 0.0)

    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of each activity until now."""
        now = self._clock()  # before all else: what is switched meanwhile is not counted twice
        activity, since, before = self._state
        seconds = dict(self._seconds)
        if activity:
            seconds[activity] = before + max(0.0, now - since)
        return seconds


class During:
    """A `with` block of `Stopwatch.during`. Not a generator: there are some for each poll and each batch."""

    __slots__ = ("_activity", "_before", "_watch")

    def __init__(self, watch: Stopwatch, activity: str) -> None:
        self._watch = watch
        self._activity = activity
        self._before = ""

    def __enter__(self) -> None:
        self._before = self._watch.switch(self._activity)

    def __exit__(self, *_: object) -> None:
        self._watch.switch(self._before)


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
