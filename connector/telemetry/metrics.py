"""Every metric of a run, declared in one table: the annotations of `Metrics`.

The prometheus objects and docs/reference/metrics.md both come from that table. Any thread may update a metric and the
admin thread may scrape meanwhile; an update takes at most one lock of the client library, for a few instructions. The
engine updates once for a poll, a chunk or a batch, never for a record.
"""

# Annotations are read at run time here, so they are not postponed.
from collections.abc import Iterable
from typing import Annotated, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from connector import __version__
from connector.telemetry.series import (
    Declared,
    Labels,
    MeasuredGauge,
    MeasuredSummary,
    TopicCounter,
    TopicHistogram,
    TopicNames,
    make,
)
from connector.telemetry.status import LaneState, RunState
from connector.telemetry.stopwatch import SecondsCounter

PARTITION_LIMIT = 500
TOPIC_LIMIT = 100

_TOPIC: Labels = {"topic": ()}
_PARTITION: Labels = {"topic": (), "partition": ()}
_BROKER: Labels = {"broker": ()}
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
_FIRST_RECORD = "until the first such record"
_NO_LANE = "the process holds no lane of the topic"
_PARTITION_LEFT = "the partition left, or is beyond `CONNECTOR_METRICS_PARTITIONS`"
_NO_STATISTICS = "until the client's first statistics, a second after it has connected"
_DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
_AGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0)


class Metrics:
    """The metrics of one run, in a registry of their own.

    Args:
        partition_limit: How many partitions have series of their own.
        topic_limit: How many topics have; the others share theirs.
    """

    # What became of the records.
    consumed_records: Annotated[
        TopicCounter,
        Declared("consumed_records", "records", "Records taken from Kafka into lanes.", _TOPIC, absent=_FIRST_RECORD),
    ]
    consumed_bytes: Annotated[
        TopicCounter,
        Declared(
            "consumed_bytes",
            "bytes",
            "What those records count in the memory budget.",
            _TOPIC,
            absent=_FIRST_RECORD,
        ),
    ]
    written_records: Annotated[
        TopicCounter,
        Declared("written_records", "records", "Records that the sink holds durably.", _TOPIC, absent=_FIRST_RECORD),
    ]
    written_bytes: Annotated[
        TopicCounter,
        Declared(
            "written_bytes", "bytes", "What those records count in the memory budget.", _TOPIC, absent=_FIRST_RECORD
        ),
    ]
    skipped_records: Annotated[
        TopicCounter,
        Declared(
            "skipped_records",
            "records",
            "Poison records left out under CONNECTOR_ON_POISON, by where and by error class.",
            {"topic": (), "stage": (), "error": ()},
            absent=_FIRST_RECORD,
        ),
    ]
    filtered_records: Annotated[
        TopicCounter,
        Declared(
            "filtered_records",
            "records",
            "Records left out on purpose, by the transform that did, or `tombstones` for CONNECTOR_TOMBSTONES=ignore.",
            {"topic": (), "transform": ()},
            absent=_FIRST_RECORD,
        ),
    ]
    dead_letters: Annotated[
        TopicCounter,
        Declared(
            "dead_letters",
            "records",
            "Poison records confirmed in the dead letter topic, by where they failed and by error class.",
            {"topic": (), "stage": (), "error": ()},
            absent=_FIRST_RECORD,
        ),
    ]
    dead_letters_truncated: Annotated[
        TopicCounter,
        Declared(
            "dead_letters_truncated",
            "records",
            "Those of them whose value was cut, since it was too large for the dead letter topic.",
            _TOPIC,
            absent=_FIRST_RECORD,
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

    # How far behind, how old.
    lag: Annotated[
        MeasuredGauge,
        Declared(
            "consumer_lag_records",
            "records",
            "End offset minus committed position.",
            _PARTITION,
            absent=f"either is not known yet; {_PARTITION_LEFT}",
        ),
    ]
    lag_updated: Annotated[
        MeasuredGauge,
        Declared(
            "consumer_lag_updated_timestamp_seconds",
            "unix seconds",
            "When the end offset of that lag was read; when that is long ago, the lag is stale.",
            _PARTITION,
            absent="as that lag",
        ),
    ]
    topic_lag: Annotated[
        MeasuredGauge,
        Declared(
            "topic_lag_records",
            "records",
            "Sum of the lags of this process's lanes that are known, whatever CONNECTOR_METRICS_PARTITIONS is.",
            _TOPIC,
            absent=f"no lag of a lane of the topic is known; {_NO_LANE}",
        ),
    ]
    committed_position: Annotated[
        MeasuredGauge,
        Declared(
            "committed_position",
            "offset",
            "The next offset to read, as last committed.",
            _PARTITION,
            absent=f"nothing was ever committed; {_PARTITION_LEFT}",
        ),
    ]
    watermark_age_seconds: Annotated[
        MeasuredGauge,
        Declared(
            "watermark_age_seconds",
            "seconds",
            "For how long the oldest unfinished batch has been out; 0 when everything handed to the sink is done.",
            _PARTITION,
            absent=_PARTITION_LEFT,
        ),
    ]
    oldest_unacknowledged_seconds: Annotated[
        MeasuredGauge,
        Declared(
            "oldest_unacknowledged_seconds",
            "seconds",
            "For how long the oldest record that is not durable yet has been held, since it was taken from Kafka; time"
            " in the lane counts. 0 when nothing is held.",
            _TOPIC,
            absent=_NO_LANE,
        ),
    ]
    end_to_end_latency_seconds: Annotated[
        TopicHistogram,
        Declared(
            "end_to_end_latency_seconds",
            "seconds",
            "How old the first record of a batch was by its timestamp in Kafka, the oldest of it as a rule, when the"
            " batch was durable. One observation for each batch; records without a timestamp are not observed, and one"
            " from the future counts as 0.",
            _TOPIC,
            _AGES,
            absent="until the first batch of the topic is durable",
        ),
    ]

    # Where the time goes.
    source_seconds: Annotated[
        SecondsCounter,
        Declared(
            "source_seconds",
            "seconds",
            "Where the consumer thread's time goes. poll: in the Kafka client, waiting for records or taking them;"
            " route: into lanes; commit: in calls that commit; rebalance: in rebalance callbacks and in drains.",
            {"activity": ("poll", "route", "commit", "rebalance", "other")},
            absent="a source without a consumer thread",
        ),
    ]
    pipeline_seconds: Annotated[
        SecondsCounter,
        Declared(
            "pipeline_seconds",
            "seconds",
            "Where a pipeline thread's time goes. wait: nothing to do, or a batch lingers; decode: formats and"
            " tombstones; transform, sink: in these plugins; dead_letters: until they are confirmed; blocked: a retry,"
            " an open breaker, a sink that is not open or is full of batches holds what there is to do.",
            {
                "pipeline": (),
                "activity": ("wait", "decode", "transform", "sink", "dead_letters", "blocked", "other"),
            },
            absent="there is no pipeline with this number",
        ),
    ]
    sink_write_seconds: Annotated[
        Histogram,
        Declared(
            "sink_write_seconds",
            "seconds",
            "How long one attempt to write a batch took, by how it ended.",
            {"outcome": ("ok", "transient", "poison", "refused", "fatal")},
            _DURATIONS,
        ),
    ]
    commit_seconds: Annotated[
        Histogram,
        Declared(
            "commit_seconds",
            "seconds",
            "From asking the Kafka client for a commit to its result.",
            buckets=_DURATIONS,
        ),
    ]

    # The sink.
    batches: Annotated[
        Counter,
        Declared(
            "batches",
            "batches",
            "Batches handed to the sink, by what ended them: row limit, byte limit, linger, a drain, end of the lane.",
            {"reason": ("rows", "bytes", "linger", "drain", "end")},
        ),
    ]
    sink_flushes: Annotated[
        Counter,
        Declared(
            "sink_flushes",
            "times",
            "Times that a sink which holds batches back was asked to finish those of a lane: the lane drains, a bounded"
            " run has read it to its end, the plugin is reloaded, the memory budget is used up, the destination is"
            " tried again.",
            {"reason": ("drain", "end", "reload", "memory", "retry")},
        ),
    ]
    sink_errors: Annotated[
        Counter,
        Declared(
            "sink_errors",
            "errors",
            "Errors of the sink and of transforms, by class.",
            {"error": ()},
            absent="until the first error of the class",
        ),
    ]
    sink_retries: Annotated[
        Counter, Declared("sink_retries", "attempts", "Attempts to write a batch again after a transient error.")
    ]
    decode_retries: Annotated[
        Counter,
        Declared(
            "decode_retries",
            "attempts",
            "Attempts to decode a batch again, because the schema registry did not give a schema.",
        ),
    ]
    registry_errors: Annotated[
        Counter,
        Declared(
            "registry_errors",
            "requests",
            "Requests to the schema registry without a schema as answer, by what came instead: nothing (unreachable,"
            " slow), a status (as http_503), garbage, or that there is no such schema (unknown_schema).",
            {"reason": ()},
            absent="until the first such answer",
        ),
    ]
    breaker_opens: Annotated[
        Counter,
        Declared(
            "sink_breaker_opens",
            "times",
            "Times that the circuit breaker of a sink opened. Failed probes and destinations that ask for time count.",
        ),
    ]
    pipeline_restarts: Annotated[
        Counter, Declared("pipeline_restarts", "times", "Pipelines that were started anew after a plugin crashed.")
    ]

    # Commits, rebalances, starts.
    commits: Annotated[
        Counter,
        Declared(
            "commits",
            "positions",
            "Positions committed or refused, by what follows: nothing, a retry, waiting for the next assignment, the"
            " end of the process; and by Kafka's error code, NO_ERROR with ok.",
            {"outcome": ("ok", "retry", "wait", "fatal"), "code": ()},
            absent="until the first such answer; ok shows 0 from the start",
        ),
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
    rebalance_seconds: Annotated[
        Histogram,
        Declared(
            "rebalance_seconds",
            "seconds",
            "How long one rebalance callback held the consumer thread, drain and commit included; nothing is polled"
            " meanwhile, and lanes that stay live off their buffers.",
            buckets=_WAITS,
        ),
    ]
    last_rebalance_timestamp: Annotated[
        MeasuredGauge,
        Declared(
            "last_rebalance_timestamp_seconds",
            "unix seconds",
            "When the last rebalance that moved lanes was over.",
            absent="until the first one",
        ),
    ]
    last_rebalance_seconds: Annotated[
        MeasuredGauge,
        Declared(
            "last_rebalance_seconds",
            "seconds",
            "How long the callbacks of that rebalance held the consumer thread.",
            absent="until the first one",
        ),
    ]
    last_rebalance_lanes: Annotated[
        MeasuredGauge,
        Declared(
            "last_rebalance_lanes",
            "lanes",
            "Lanes that it brought, that it took while they were ours, that were lost, and that stayed. An eager group"
            " takes all and brings them anew.",
            {"change": ("gained", "revoked", "lost", "kept")},
            absent="until the first one",
        ),
    ]
    drain_seconds: Annotated[
        Histogram,
        Declared(
            "drain_seconds",
            "seconds",
            "How long lanes that leave took to be drained.",
            buckets=_WAITS,
        ),
    ]
    drains: Annotated[
        Counter,
        Declared(
            "drains",
            "lanes",
            "Lanes drained before they left; not_drained: the sink was failing or too slow; timed_out counts, besides,"
            " revocations that CONNECTOR_DRAIN_TIMEOUT has ended.",
            {"outcome": ("drained", "not_drained", "timed_out")},
        ),
    ]
    late_acks: Annotated[
        Counter,
        Declared("late_acks", "batches", "Batches that became durable after their lane was fenced; never committed."),
    ]
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

    # What is held now.
    assigned_lanes: Annotated[Gauge, Declared("assigned_lanes", "lanes", "Lanes that this process holds.")]
    lanes: Annotated[
        Gauge,
        Declared(
            "lanes",
            "lanes",
            "Lanes by what they do now. starting: the position is not known or not taken up yet; paused: their share of"
            " the budget is full; held_back: paused by an operator; retrying: after an error of the sink;"
            " awaiting_schema: the schema registry does not give a schema.",
            {"state": tuple(state.value for state in LaneState)},
        ),
    ]
    memory_bytes: Annotated[
        Gauge,
        Declared(
            "memory_bytes",
            "bytes",
            "What records occupy, by part. client_queue: keys and values prefetched by the Kafka client, whose own"
            " overhead nobody tells; lanes: buffered, and batches that are being made; sink: batches that are under way"
            " and not durable.",
            {"part": ("client_queue", "lanes", "sink")},
            absent=f"client_queue: {_NO_STATISTICS}",
        ),
    ]
    memory_budget_bytes: Annotated[
        Gauge, Declared("memory_budget_bytes", "bytes", "CONNECTOR_MEMORY_BUDGET as it is in effect.")
    ]
    memory_limit_bytes: Annotated[
        MeasuredGauge,
        Declared("memory_limit_bytes", "bytes", "The container's memory limit.", absent="the container has none"),
    ]

    # The Kafka client and the cluster.
    client_fetch_queue_records: Annotated[
        MeasuredGauge,
        Declared(
            "client_fetch_queue_records",
            "records",
            "Records that the Kafka client has prefetched.",
            absent=_NO_STATISTICS,
        ),
    ]
    client_fetch_queue_bytes: Annotated[
        MeasuredGauge,
        Declared("client_fetch_queue_bytes", "bytes", "Bytes of those records.", absent=_NO_STATISTICS),
    ]
    client_broker_round_trip: Annotated[
        MeasuredSummary,
        Declared(
            "client_broker_round_trip_seconds",
            "seconds",
            "From a request to its response, by the id of the broker; the quantiles, 0.5 and 0.99, are of the second"
            " before the statistics. A fetch waits at the broker for records, up to `fetch.wait.max.ms`.",
            _BROKER,
            absent="it has never answered; quantiles: not in that second; the broker is not in the cluster",
        ),
    ]
    client_broker_throttle: Annotated[
        MeasuredGauge,
        Declared(
            "client_broker_throttle_seconds",
            "seconds",
            "Longest time in the second before the statistics that a quota let the broker hold a response back.",
            _BROKER,
            absent="as connector_client_broker_up; while no broker can be reached",
        ),
    ]
    client_broker_up: Annotated[
        MeasuredGauge,
        Declared(
            "client_broker_up",
            "0 or 1",
            "1 while the client is connected to the broker with this id; 0 for all that were known while none can be"
            " reached.",
            _BROKER,
            absent="the client needs no connection to it; it is not in the cluster",
        ),
    ]
    client_statistics_timestamp: Annotated[
        MeasuredGauge,
        Declared(
            "client_statistics_timestamp_seconds",
            "unix seconds",
            "When the client gave the statistics of `connector_client_…` and of the prefetched bytes; when that is long"
            " ago, they are stale.",
            absent=_NO_STATISTICS,
        ),
    ]
    client_errors: Annotated[
        Counter,
        Declared(
            "client_errors",
            "errors",
            "Errors reported by the Kafka client, by code.",
            {"code": ()},
            absent="until the first error with the code",
        ),
    ]
    missing_topics: Annotated[
        MeasuredGauge,
        Declared(
            "missing_topics",
            "topics",
            "Subscribed topics, by name, that do not exist.",
            absent="until the cluster was asked",
        ),
    ]

    # The process.
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
    partition_series_omitted: Annotated[
        Gauge,
        Declared(
            "partition_series_omitted",
            "partitions",
            "Partitions held without series of their own, since there are more than CONNECTOR_METRICS_PARTITIONS.",
        ),
    ]
    topic_series_omitted: Annotated[
        Gauge,
        Declared(
            "topic_series_omitted",
            "topics",
            "Topics that are counted as topic `_other`, since there are more than CONNECTOR_METRICS_TOPICS.",
        ),
    ]

    def __init__(self, *, partition_limit: int = PARTITION_LIMIT, topic_limit: int = TOPIC_LIMIT) -> None:
        self.registry = CollectorRegistry()
        self.partition_limit = partition_limit
        self.topics = TopicNames(topic_limit)
        ProcessCollector(registry=self.registry)  # memory, CPU, open files: process_…
        for attribute, (kind, declared) in table().items():
            setattr(self, attribute, make(kind, declared, self.registry, self.topics))
        self.topic_series_omitted.set_function(lambda: self.topics.omitted)
        self.commits.labels("ok", "NO_ERROR")
        self.info.info({"version": __version__})
        self.set_state(RunState.STARTING)

    def set_state(self, state: RunState) -> None:
        """Show this state as 1 and all others as 0."""
        for each in RunState:
            self.state.labels(each.value).set(each is state)

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


def table() -> dict[str, tuple[type, Declared]]:
    """Return the kind and declaration of each attribute of `Metrics`, in the order of the table."""
    return {attribute: get_args(annotation) for attribute, annotation in Metrics.__annotations__.items()}
