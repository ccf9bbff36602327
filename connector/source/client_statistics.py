"""What the Kafka client's statistics say of its queue and of the brokers, as metrics.

The client gives them each second (`statistics.interval.ms`), to `stats_cb` on the consumer thread; librdkafka's
STATISTICS.md has the fields. What they say of ends of partitions is `Lookout`'s.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from connector.telemetry.series import Distribution

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from connector.telemetry.metrics import Metrics

_MICROSECONDS = 1e6
_MILLISECONDS = 1e3
_QUANTILES = {0.5: "p50", 0.99: "p99"}


class ClientStatistics:
    """Shows statistics, and adds up the round trips of each broker, which the client counts for one interval only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._round_trips: dict[str, Distribution] = {}
        self._up: Mapping[tuple[str, ...], bool] = {}

    def show(self, statistics: Mapping[str, Any]) -> None:
        """Show what one set of statistics says. A broker that has left the cluster is not shown any more."""
        brokers = dict(_brokers(statistics))
        self._round_trips = {
            broker: _added(self._round_trips.get(broker), facts["rtt"]) for broker, facts in brokers.items()
        }
        # A client connects to a broker when it has something to ask it; before that it is neither up nor down.
        wanted = {(broker,): facts for broker, facts in brokers.items() if facts["state"] != "INIT"}
        up: dict[tuple[str, ...], bool] = {series: facts["state"] == "UP" for series, facts in wanted.items()}
        # A client that has lost them all forgets them and begins anew at its bootstrap servers (librdkafka:
        # `metadata.recovery.strategy=rebootstrap`).
        self._up = up if brokers else dict.fromkeys(self._up, False)
        metrics = self._metrics
        metrics.client_broker_up.show(self._up)
        metrics.client_broker_throttle.show(
            {series: facts["throttle"]["max"] / _MILLISECONDS for series, facts in wanted.items()}
        )
        metrics.client_broker_round_trip.show(
            {(broker,): trips for broker, trips in self._round_trips.items() if trips.count}
        )
        records, size_bytes = _fetch_queue(statistics)
        metrics.client_fetch_queue_records.set(records)
        metrics.client_fetch_queue_bytes.set(size_bytes)
        metrics.memory_bytes.labels("client_queue").set(size_bytes)
        metrics.client_statistics_timestamp.set(time.time())


def _brokers(statistics: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each broker of the cluster by its id; not the addresses of before the ids were known, nor the coordinator,
    which is one of the brokers under another name."""
    for facts in statistics.get("brokers", {}).values():
        if facts["nodeid"] >= 0 and facts["source"] != "logical":
            yield str(facts["nodeid"]), facts


def _added(before: Distribution | None, window: Mapping[str, Any]) -> Distribution:
    total, count = (before.sum, before.count) if before is not None else (0.0, 0)
    quantiles = {quantile: window[field] / _MICROSECONDS for quantile, field in _QUANTILES.items()}
    return Distribution(
        quantiles if window["cnt"] else {}, total + window["sum"] / _MICROSECONDS, count + window["cnt"]
    )


def _fetch_queue(statistics: Mapping[str, Any]) -> tuple[int, int]:
    """Return records and bytes that wait in the client. Every partition's queue is forwarded to one, and each reports
    the whole of it: the largest is the sum."""
    partitions = [
        facts for topic in statistics.get("topics", {}).values() for facts in topic.get("partitions", {}).values()
    ]
    return (
        max((facts.get("fetchq_cnt", 0) for facts in partitions), default=0),
        max((facts.get("fetchq_size", 0) for facts in partitions), default=0),
    )
