"""Prometheus' own opinion of the metrics: names, types, units and help texts as its conventions want them."""

from __future__ import annotations

import pytest
from prometheus_client import Counter, Gauge, Histogram, Info

from connector.telemetry.metrics import Metrics, table
from connector.telemetry.series import (
    Distribution,
    MeasuredGauge,
    MeasuredSummary,
    TopicCounter,
    TopicHistogram,
)
from connector.telemetry.stopwatch import SecondsCounter
from tests.support.promtool import check_metrics


def count_everything(metrics: Metrics) -> None:
    """Give every metric a series, with the last of its values where a label is a closed set."""
    for attribute, (_, declared) in table().items():
        values = tuple(known[-1] if known else f"some-{label}" for label, known in declared.labels.items())
        metric = getattr(metrics, attribute)
        match metric:
            case TopicCounter():
                metric.labels(*values).inc()
            case TopicHistogram():
                metric.labels(*values).observe(0.3)
            case Counter():
                (metric.labels(*values) if values else metric).inc()
            case Gauge():
                if attribute != "topic_series_omitted":  # computed
                    (metric.labels(*values) if values else metric).set(1)
            case Histogram():
                (metric.labels(*values) if values else metric).observe(0.3)
            case MeasuredGauge():
                metric.show({values: 1.0})
            case MeasuredSummary():
                metric.show({values: Distribution({0.5: 0.1, 0.99: 0.2}, 3.0, 10)})
            case SecondsCounter():
                metric.start(*values[:-1]).switch(values[-1])
            case Info():
                pass
            case _:
                pytest.fail(f"{attribute} is a {type(metric).__name__}")


@pytest.mark.promtool
def test_promtool_has_nothing_against_a_scrape_in_which_everything_was_counted_once(promtool: str) -> None:
    metrics = Metrics()
    count_everything(metrics)
    scrape = metrics.render("")[0]
    for _, declared in table().values():
        assert f"\nconnector_{declared.name}".encode() in scrape
    assert check_metrics(promtool, scrape) == ""


@pytest.mark.promtool
def test_promtool_would_object(promtool: str) -> None:
    assert "counter" in check_metrics(promtool, b"# HELP wrong Wrong.\n# TYPE wrong counter\nwrong 1\n")
