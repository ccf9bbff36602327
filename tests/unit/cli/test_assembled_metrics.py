"""What the metrics of a run know from its settings and its container before anything starts."""

from __future__ import annotations

from unittest import mock

import pytest

from connector.cli.run import assemble
from connector.config.load import load


@pytest.mark.parametrize("limit", [300 * 2**20, None])
def test_limits_of_series_and_of_memory_are_those_of_the_settings_and_of_the_container(limit: int | None) -> None:
    environ = {
        "CONNECTOR_BOOTSTRAP_SERVERS": "127.0.0.1:9",
        "CONNECTOR_GROUP_ID": "g",
        "CONNECTOR_TOPICS": "t",
        "CONNECTOR_MEMORY_BUDGET": "64MiB",
        "CONNECTOR_METRICS_PARTITIONS": "7",
        "CONNECTOR_METRICS_TOPICS": "1",
    }
    with mock.patch("connector.cli.run.container_limit_bytes", return_value=limit):
        metrics = assemble(load(environ)).metrics
    assert metrics.partition_limit == 7
    assert [metrics.topics.label(topic) for topic in ("a", "b")] == ["a", "_other"]
    shown = metrics.registry.get_sample_value
    assert shown("connector_memory_budget_bytes") == 64 * 2**20
    assert shown("connector_memory_limit_bytes") == limit
