"""What metrics are made of: declarations, label values that stay bounded, and series that are replaced as a whole.

`connector.telemetry.metrics` has the table. Any thread may update a metric and the admin thread may scrape meanwhile.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import Counter, Gauge, Histogram, Info
from prometheus_client.metrics_core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from connector.telemetry.stopwatch import SecondsCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client import CollectorRegistry

PREFIX = "connector_"
OTHER_TOPICS = "_other"

Labels: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Name of each label with its values, where they are a closed set; without values it is open."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One row of the table: what a metric is called, what one unit of it is, what it means, when it is not there.

    `name` stands without the prefix and, for a counter, without `_total`. `absent` says when there is no series; where
    it is empty, there is one from the start, which shows 0 before anything was counted.
    """

    name: str
    unit: str
    meaning: str
    labels: Labels = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    absent: str = ""

    def closed_values(self) -> Iterable[tuple[str, ...]]:
        """Return every combination of label values; none when a label is open."""
        return product(*self.labels.values()) if self.labels else ()


class TopicNames:
    """Topic names as label values, so that a pattern that matches thousands of topics stays bounded.

    The first `limit` names that a metric asks for stand for themselves as long as the process lives; all others are
    `_other`. Any thread may call it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._labels: dict[str, str] = {}
        self._lock = threading.Lock()  # Guards additions to _labels; taken once for each name; leaf lock.

    def label(self, topic: str) -> str:
        """Return the label value of a topic."""
        label = self._labels.get(topic)
        if label is None:
            with self._lock:
                label = self._labels.setdefault(topic, topic if len(self._labels) < self._limit else OTHER_TOPICS)
        return label

    @property
    def omitted(self) -> int:
        """How many topics have no label of their own."""
        return max(0, len(self._labels) - self._limit)


class TopicCounter:
    """A counter whose first label is a topic. Keeps its series, since the library takes long to find one."""

    def __init__(self, made: Counter, topics: TopicNames) -> None:
        self._made = made
        self._topics = topics
        self._series: dict[tuple[str, ...], Counter] = {}

    def labels(self, topic: str, *others: str) -> Counter:
        """Return the series of a topic, which it may share with others."""
        series = self._series.get((topic, *others))
        if series is None:
            series = self._series[topic, *others] = self._made.labels(self._topics.label(topic), *others)
        return series


class TopicHistogram:
    """A histogram whose label is a topic; keeps its series likewise."""

    def __init__(self, made: Histogram, topics: TopicNames) -> None:
        self._made = made
        self._topics = topics
        self._series: dict[str, Histogram] = {}

    def labels(self, topic: str) -> Histogram:
        """Return the series of a topic, which it may share with others."""
        series = self._series.get(topic)
        if series is None:
            series = self._series[topic] = self._made.labels(self._topics.label(topic))
        return series


class MeasuredGauge(Collector):
    """A gauge that shows what was measured last and nothing else: all its series are replaced as a whole.

    So no scrape sees a zero that nobody measured, or the series of something that is gone, and nobody takes a lock.
    Belongs to the one thread that measures.
    """

    def __init__(self, name: str, documentation: str, labels: Iterable[str], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._values: Mapping[tuple[str, ...], float] = {}
        registry.register(self)

    def show(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Show these series, by label values, from now on."""
        self._values = values

    def set(self, value: float) -> None:
        """Show this value of a gauge without labels."""
        self._values = {(): value}

    def describe(self) -> Iterable[Metric]:
        """Name the metric; called by the registry."""
        return [GaugeMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """Return what was measured; called by the registry at a scrape."""
        family = GaugeMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return [family]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A summary's value: `quantiles` of a short time, by quantile; sum and count since the start."""

    quantiles: Mapping[float, float]
    sum: float
    count: int


class MeasuredSummary(Collector):
    """A summary whose quantiles somebody else has measured; its series are replaced as those of a `MeasuredGauge`."""

    def __init__(self, name: str, documentation: str, labels: Iterable[str], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._values: Mapping[tuple[str, ...], Distribution] = {}
        registry.register(self)

    def show(self, values: Mapping[tuple[str, ...], Distribution]) -> None:
        """Show these series, by label values, from now on."""
        self._values = values

    def describe(self) -> Iterable[Metric]:
        """Name the metric; called by the registry."""
        return [SummaryMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """Return what was measured; called by the registry at a scrape."""
        family = SummaryMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in self._values.items():
            names = dict(zip(self._labels, labels, strict=True))
            for quantile, seconds in value.quantiles.items():
                family.add_sample(self._name, {**names, "quantile": str(quantile)}, seconds)
            family.add_metric(labels, value.count, value.sum)
        return [family]


TYPES: Mapping[type, str] = {
    Counter: "counter",
    Gauge: "gauge",
    Histogram: "histogram",
    Info: "info",
    TopicCounter: "counter",
    TopicHistogram: "histogram",
    MeasuredGauge: "gauge",
    MeasuredSummary: "summary",
    SecondsCounter: "counter",
}
"""Prometheus' type of each kind of attribute that the table may have."""


def make(kind: type, declared: Declared, registry: CollectorRegistry, topics: TopicNames) -> object:
    """Return the attribute of a row of the table; what is never absent shows 0 from the start, so that a first
    increment is seen."""
    name, meaning, labels = PREFIX + declared.name, declared.meaning, tuple(declared.labels)
    if kind is SecondsCounter:
        return SecondsCounter(name, meaning, labels, declared.labels[labels[-1]], registry)
    if kind in (MeasuredGauge, MeasuredSummary):
        return kind(name, meaning, labels, registry)
    if kind is Info:  # its labels are values, and the library appends `_info`
        return Info(name.removesuffix("_info"), meaning, registry=registry)
    if kind is TopicCounter:
        return TopicCounter(Counter(name, meaning, labels, registry=registry), topics)
    if kind is TopicHistogram:
        return TopicHistogram(Histogram(name, meaning, labels, registry=registry, buckets=declared.buckets), topics)
    made: Counter | Gauge | Histogram
    if kind is Histogram:
        made = Histogram(name, meaning, labels, registry=registry, buckets=declared.buckets)
    else:
        made = (Gauge if kind is Gauge else Counter)(name, meaning, labels, registry=registry)
    if not declared.absent:
        for values in declared.closed_values():
            made.labels(*values)
    return made
