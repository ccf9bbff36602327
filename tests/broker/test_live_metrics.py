"""The metrics of runs on a real Kafka: they add up and tell what happened, and promtool has nothing against them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.promtool import check_metrics
from tests.support.scenario import Scenario, Traffic, metric, wait_until_copy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.connector import ConnectorProcess
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.promtool, pytest.mark.timeout(180)]

_ROUND_TRIP = "connector_client_broker_round_trip_seconds"


@dataclass(frozen=True, slots=True)
class Lives:
    """How long the consumer thread and the pipeline have lived by their activities, at one scrape and its time."""

    source: float
    pipeline: float
    asked: float
    answered: float

    @classmethod
    def of(cls, copy: ConnectorProcess) -> Lives:
        asked = time.monotonic()
        text = copy.get("/metrics").text
        answered = time.monotonic()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            sums[family.name] = sum(sample.value for sample in family.samples)
        return cls(sums["connector_source_seconds"], sums["connector_pipeline_seconds"], asked, answered)


def test_the_metrics_of_a_run_add_up_and_tell_what_a_rebalance_moved(
    kafka: Kafka, group_protocol: str, tmp_path: Path, promtool: str
) -> None:
    topic = kafka.create_topic(partitions=4)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    first, second = scenario.copy("first"), scenario.copy("second")

    def is_measured() -> bool:
        names = ("connector_client_fetch_queue_records", "connector_topic_lag_records", "connector_memory_bytes")
        labels: tuple[dict[str, str], ...] = ({}, {"topic": topic}, {"part": "client_queue"})
        return all(metric(first, name, **each) is not None for name, each in zip(names, labels, strict=True))

    with Traffic(kafka, [topic]), first:
        wait_until_copy(first, "it is measured", is_measured)
        before = Lives.of(first)
        with second:
            wait_until_copy(
                second,
                "it has got its lanes",
                lambda: metric(second, "connector_last_rebalance_lanes", change="gained") == 2,
            )
            wait_until_copy(first, "it has given lanes up", lambda: metric(first, "connector_assigned_lanes") == 2)
            is_eager = group_protocol == "range"
            moved = {"gained": 2 if is_eager else 0, "revoked": 4 if is_eager else 2, "lost": 0}
            for change, lanes in moved.items():
                assert metric(first, "connector_last_rebalance_lanes", change=change) == lanes
            assert metric(first, "connector_lanes", state="flowing") == 2
            assert second.terminate() == 0
        wait_until_copy(first, "it has them back", lambda: metric(first, "connector_assigned_lanes") == 4)
        after = Lives.of(first)
        for spent in (after.source - before.source, after.pipeline - before.pipeline):
            assert after.asked - before.answered - 0.01 <= spent <= after.answered - before.asked + 0.01
        assert (metric(first, f"{_ROUND_TRIP}_count", broker=1) or 0) > 0
        assert metric(first, "connector_client_broker_up", broker=1) == 1
        assert metric(first, "connector_oldest_unacknowledged_seconds", topic=topic) is not None
        batches = metric(first, "connector_sink_write_seconds_count", outcome="ok") or 0
        latencies = metric(first, "connector_end_to_end_latency_seconds_count", topic=topic) or 0
        assert 0 < batches <= latencies
        oldest = metric(first, "connector_end_to_end_latency_seconds_sum", topic=topic) or 0
        assert 0 < oldest / latencies < 10
        assert check_metrics(promtool, first.get("/metrics").content) == ""
        assert first.terminate() == 0
