"""Writes docs/reference/metrics.md from the table of metrics."""

from __future__ import annotations

from connector.telemetry.metrics import table
from connector.telemetry.series import PREFIX, TYPES, Declared

_HEAD = """\
# Metrics

Served at `/metrics` of the admin address (`CONNECTOR_ADMIN_ADDRESS`), as OpenMetrics or Prometheus text. This page is
generated from the table in `connector/telemetry/metrics.py`.

Three things that a query should not mix up:

- **Zero** was counted or measured: nothing is there. A series that is never absent shows it from the start.
- **Absent** was never counted or measured, or what it speaks of is gone: a partition that leaves and a broker that is
  no longer in the cluster take their series with them. `or vector(0)` hides that.
- **Stale** was measured and is not renewed. Lag has `connector_consumer_lag_updated_timestamp_seconds`, what the Kafka
  client tells has `connector_client_statistics_timestamp_seconds`. All other gauges are renewed four times a second
  by the main thread; `/livez` fails when that stands still.

The number of series is bounded. The first `CONNECTOR_METRICS_PARTITIONS` partitions, of those that the process holds,
have series of their own; when one leaves, the next takes its room. The first `CONNECTOR_METRICS_TOPICS` topics that
are counted have theirs for as long as the process lives; all further ones are the topic `_other`. Two series tell how
many have none: `connector_partition_series_omitted` and `connector_topic_series_omitted`. The sums over topics stay
complete.

Seconds by activity are wall time of a thread, also while it waits for a processor or for the interpreter's lock; the
activities of a thread add up to its life. What goes on counts while it goes on, not when it ends.

Besides these there are the usual `process_…` metrics.

| metric | type | unit | labels | meaning | absent |
|---|---|---|---|---|---|
"""


def reference() -> str:
    """Return docs/reference/metrics.md."""
    return _HEAD + "".join(_row(kind, declared) for kind, declared in table().values())


def _row(kind: type, declared: Declared) -> str:
    suffix = "_total" if TYPES[kind] == "counter" else ""
    labels = "; ".join(
        f"`{label}`: {', '.join(f'`{value}`' for value in values)}" if values else f"`{label}`"
        for label, values in declared.labels.items()
    )
    name = f"`{PREFIX}{declared.name}{suffix}`"
    cells = (name, TYPES[kind], declared.unit, labels or "-", declared.meaning, declared.absent or "never")
    return f"| {' | '.join(cells)} |\n"
