"""Every metric of a run, declared in one table: the annotations of `Metrics`.

The prometheus objects and docs/reference/metrics.md both come from that table. Any thread may update a metric and the
admin thread may scrape meanwhile; each update takes one lock of the client library for a few instructions. The engine
updates once for a chunk or a batch, never for a record, and keeps the children that it updates often:

    written = metrics.written_records.labels(topic)  # once for a lane
    written.inc(len(batch))
"""

# Annotations are read at run time here, so they are not postponed.
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from connector import __version__
from connector.telemetry.status import RunState

_PREFIX = "connector_"

Labels = Mapping[str, tuple[str, ...]]
"""Name of each label with its values, where they are a closed set; without values it is open."""

_TOPIC: Labels = {"topic": ()}
_PARTITION: Labels = {"topic": (), "partition": ()}
_CAUSE: Labels = {
    "cause": (
        "committed",
        "sink",
        "restarted",
        "new_group",
        "new_partition",
        "expired",
        "out_of_range",
        "recreated",
    )
}


@dataclass(frozen=True, slots=True)
class Declared:
    """One row of the table: what a metric is called, what one unit of it is, and what it means.

    `name` stands without the prefix and, for a counter, without `_total`.
    """

    name: str
    unit: str
    meaning: str
    labels: Labels = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    def closed_values(self) -> Iterable[tuple[str, ...]]:
        """Return every combination of label values; none when a label is open."""
        return product(*self.labels.values()) if self.labels else ()


@dataclass(frozen=True, slots=True)
class PartitionValue:
    """One series of a `PartitionGauge`; it comes into being with the first `set`."""

    gauge: "PartitionGauge"
    series: tuple[str, str]

    def set(self, value: float) -> None:
        """Replace the value."""
        self.gauge.set(self.series, value)


class PartitionGauge(Collector):
    """A gauge with a series for each (topic, partition) that was measured.

    Unlike the library's gauge, naming a series does not make it: no scrape can see a zero that nobody measured.
    """

    def __init__(self, name: str, documentation: str, labels: Iterable[str], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._values: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()  # Guards _values; taken by whoever measures and by the admin thread; leaf lock.
        registry.register(self)

    def labels(self, topic: str, partition: int) -> PartitionValue:
        """Return the series of a partition, which is shown from its first `set` on."""
        return PartitionValue(self, (topic, str(partition)))

    def set(self, series: tuple[str, str], value: float) -> None:
        """Replace one value; called by `PartitionValue`."""
        with self._lock:
            self._values[series] = value

    def remove(self, topic: str, partition: int) -> None:
        """Show this series no more, if it was shown."""
        with self._lock:
            self._values.pop((topic, str(partition)), None)

    def describe(self) -> Iterable[Metric]:
        """Name the metric; called by the registry."""
        return [GaugeMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """Return what was measured; called by the registry at a scrape."""
        family = GaugeMetricFamily(self._name, self._documentation, labels=self._labels)
        with self._lock:
            values = dict(self._values)
        for series, value in values.items():
            family.add_metric(series, value)
        return [family]


class Metrics:
    """The metrics of one run, in a registry of their own."""

    consumed_records: Annotated[
        Counter, Declared("consumed_records", "records", "Records taken from Kafka into lanes.", _TOPIC)
    ]
    consumed_bytes: Annotated[
        Counter,
        Declared("consumed_bytes", "bytes", "What those records count in the memory budget.", _TOPIC),
    ]
    written_records: Annotated[
        Counter, Declared("written_records", "records", "Records that the sink holds durably.", _TOPIC)
    ]
    written_bytes: Annotated[
        Counter, Declared("written_bytes", "bytes", "What those records count in the memory budget.", _TOPIC)
    ]
    skipped_records: Annotated[
        Counter,
        Declared(
            "skipped_records",
            "records",
            "Poison records left out under CONNECTOR_ON_POISON, by where and by error class.",
            {"topic": (), "stage": (), "error": ()},
        ),
    ]
    filtered_records: Annotated[
        Counter,
        Declared(
            "filtered_records",
            "records",
            "Records left out on purpose, by the transform that did, or `tombstones` for CONNECTOR_TOMBSTONES=ignore.",
            {"topic": (), "transform": ()},
        ),
    ]
    dead_letters: Annotated[
        Counter,
        Declared(
            "dead_letters",
            "records",
            "Poison records confirmed in the dead letter topic, by where they failed and by error class.",
            {"topic": (), "stage": (), "error": ()},
        ),
    ]
    dead_letters_truncated: Annotated[
        Counter,
        Declared(
            "dead_letters_truncated",
            "records",
            "Those of them whose value was cut, since it was too large for the dead letter topic.",
            _TOPIC,
        ),
    ]
    dead_letter_floods: Annotated[
        Counter,
        Declared(
            "dead_letter_floods",
            "floods",
            "Times that too many records died and the process ended, by the limit: CONNECTOR_DLQ_MAX_CONSECUTIVE or"
            " CONNECTOR_DLQ_MAX_RATIO.",
            {"limit": ("consecutive", "ratio")},
        ),
    ]
    batches: Annotated[
        Counter,
        Declared(
            "batches",
            "batches",
            "Batches handed to the sink, by what ended them: row limit, byte limit, linger, a drain, end of the lane.",
            {"reason": ("rows", "bytes", "linger", "drain", "end")},
        ),
    ]
    sink_write_seconds: Annotated[
        Histogram,
        Declared(
            "sink_write_seconds",
            "seconds",
            "How long one attempt to write a batch took, by how it ended.",
            {"outcome": ("ok", "transient", "poison", "refused", "fatal")},
            (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
        ),
    ]
    sink_errors: Annotated[Counter, Declared("sink_errors", "errors", "Errors of the sink, by class.", {"error": ()})]
    sink_retries: Annotated[
        Counter, Declared("sink_retries", "attempts", "Attempts to write a batch again after a transient error.")
    ]
    breaker_opens: Annotated[
        Counter,
        Declared(
            "sink_breaker_opens", "times", "Times that the circuit breaker of a sink opened, failed probes included."
        ),
    ]
    pipeline_restarts: Annotated[
        Counter, Declared("pipeline_restarts", "times", "Pipelines that were started anew after a plugin crashed.")
    ]
    lag: Annotated[
        PartitionGauge,
        Declared(
            "consumer_lag_records",
            "records",
            "End offset minus committed position. Absent: never measured, or the partition left.",
            _PARTITION,
        ),
    ]
    lag_updated: Annotated[
        PartitionGauge,
        Declared(
            "consumer_lag_updated_timestamp_seconds",
            "unix seconds",
            "When that lag was measured; old means that it is stale.",
            _PARTITION,
        ),
    ]
    commits: Annotated[
        Counter,
        Declared(
            "commits",
            "positions",
            "Positions committed or refused, by what follows: nothing, a retry, waiting for the next assignment, the"
            " end of the process; and by Kafka's error code, NO_ERROR with ok.",
            {"outcome": ("ok", "retry", "wait", "fatal"), "code": ()},
        ),
    ]
    committed_position: Annotated[
        PartitionGauge,
        Declared("committed_position", "offset", "The next offset to read, as last committed.", _PARTITION),
    ]
    rebalances: Annotated[
        Counter,
        Declared(
            "rebalances",
            "rebalances",
            "Rebalance callbacks of the Kafka client.",
            {"event": ("assigned", "added", "revoked", "lost")},
        ),
    ]
    drain_seconds: Annotated[
        Histogram,
        Declared(
            "drain_seconds",
            "seconds",
            "How long lanes that leave took to be drained and committed.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0),
        ),
    ]
    drains: Annotated[
        Counter,
        Declared(
            "drains",
            "lanes",
            "Lanes drained before they left; not_drained: the sink was failing; timed_out: CONNECTOR_DRAIN_TIMEOUT.",
            {"outcome": ("drained", "not_drained", "timed_out")},
        ),
    ]
    late_acks: Annotated[
        Counter,
        Declared("late_acks", "batches", "Batches that became durable after their lane was fenced; never committed."),
    ]
    inflight_bytes: Annotated[
        Gauge, Declared("inflight_bytes", "bytes", "Bytes held in lanes and batches, not durable yet.")
    ]
    memory_budget_bytes: Annotated[
        Gauge, Declared("memory_budget_bytes", "bytes", "CONNECTOR_MEMORY_BUDGET as it is in effect.")
    ]
    watermark_age_seconds: Annotated[
        PartitionGauge,
        Declared(
            "watermark_age_seconds",
            "seconds",
            "For how long the oldest unfinished batch has been out; 0 when everything handed to the sink is done.",
            _PARTITION,
        ),
    ]
    paused_lanes: Annotated[
        Gauge, Declared("paused_lanes", "lanes", "Lanes that are paused, since their share of the budget is full.")
    ]
    assigned_lanes: Annotated[Gauge, Declared("assigned_lanes", "lanes", "Lanes that this process holds.")]
    starts: Annotated[
        Counter, Declared("starts", "lanes", "Lanes started, by why they start where they start.", _CAUSE)
    ]
    start_offsets_skipped: Annotated[
        Counter,
        Declared(
            "start_offsets_skipped", "offsets", "Offsets that a CONNECTOR_START policy passed over unread.", _CAUSE
        ),
    ]
    start_offsets_repeated: Annotated[
        Counter,
        Declared(
            "start_offsets_repeated",
            "offsets",
            "Offsets below a known committed position that a start policy reads again.",
            _CAUSE,
        ),
    ]
    missing_topics: Annotated[
        Gauge, Declared("missing_topics", "topics", "Subscribed topics, by name, that do not exist.")
    ]
    client_errors: Annotated[
        Counter, Declared("client_errors", "errors", "Errors reported by the Kafka client, by code.", {"code": ()})
    ]
    ready: Annotated[Gauge, Declared("ready", "0 or 1", "1 while the process consumes, as /readyz says.")]
    state: Annotated[
        Gauge,
        Declared(
            "state",
            "0 or 1",
            "1 for the state that the process is in.",
            {"state": tuple(state.value for state in RunState)},
        ),
    ]
    info: Annotated[Info, Declared("info", "1", "Version of the connector.", {"version": ()})]

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, CPU, open files: process_…
        for attribute, (kind, declared) in _table().items():
            setattr(self, attribute, _made(kind, declared, self.registry))
        self.commits.labels("ok", "NO_ERROR")
        self.info.info({"version": __version__})
        self.set_state(RunState.STARTING)

    def set_state(self, state: RunState) -> None:
        """Show this state as 1 and all others as 0."""
        for each in RunState:
            self.state.labels(each.value).set(each is state)

    def drop_partition(self, topic: str, partition: int) -> None:
        """Show no series of a partition that left.

        Only the thread that measures a partition drops it; a measurement of another one could bring it back.
        """
        for attribute, (kind, _) in _table().items():
            if kind is PartitionGauge:
                getattr(self, attribute).remove(topic, partition)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return a scrape and its content type: OpenMetrics or the Prometheus text form, whatever `accept` asks for."""
        encode, content_type = choose_encoder(accept)
        is_text = not content_type.startswith("application/openmetrics-text")
        return encode(_WithoutCreated(self.registry) if is_text else self.registry), content_type


class _WithoutCreated(Collector):
    """The metrics without their creation times, which the text form would show as a gauge for each counter."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if sample.name != f"{metric.name}_created"]
            yield metric


def _table() -> dict[str, tuple[type, Declared]]:
    """Return the kind and declaration of each attribute of `Metrics`, in the order of the table."""
    return {attribute: get_args(annotation) for attribute, annotation in Metrics.__annotations__.items()}


def _made(kind: type, declared: Declared, registry: CollectorRegistry) -> Collector:
    """Make the prometheus object; closed label sets show 0 from the start, so that a first increment is seen."""
    name = _PREFIX + declared.name
    if kind is PartitionGauge:
        return PartitionGauge(name, declared.meaning, declared.labels, registry)
    if kind is Info:  # its labels are values, and the library appends `_info`
        return Info(name.removesuffix("_info"), declared.meaning, registry=registry)
    made: Counter | Gauge | Histogram
    if kind is Histogram:
        made = Histogram(name, declared.meaning, tuple(declared.labels), registry=registry, buckets=declared.buckets)
    else:
        made = (Counter if kind is Counter else Gauge)(
            name, declared.meaning, tuple(declared.labels), registry=registry
        )
    for values in declared.closed_values():
        made.labels(*values)
    return made


def reference() -> str:
    """Return docs/reference/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Served at `/metrics` of the admin address (`CONNECTOR_ADMIN_ADDRESS`), as OpenMetrics or Prometheus text.",
        "This page is generated from the table in `connector/telemetry/metrics.py`.",
        "",
        "A counter whose labels are all closed sets shows 0 from the start; any other series is absent until it is",
        "first counted or measured. A partition that leaves takes its series with it: absent is not zero, and a lag",
        "whose `connector_consumer_lag_updated_timestamp_seconds` is old is stale. Besides these there are the usual",
        "`process_…` metrics.",
        "",
        "| metric | type | unit | labels | meaning |",
        "|---|---|---|---|---|",
    ]
    for kind, declared in _table().values():
        suffix = "_total" if kind is Counter else ""
        labels = "; ".join(
            f"`{label}`: {', '.join(f'`{value}`' for value in values)}" if values else f"`{label}`"
            for label, values in declared.labels.items()
        )
        kind_name = "gauge" if kind is PartitionGauge else kind.__name__.lower()
        name = f"`{_PREFIX}{declared.name}{suffix}`"
        lines.append(f"| {name} | {kind_name} | {declared.unit} | {labels or '-'} | {declared.meaning} |")
    return "\n".join(lines) + "\n"
