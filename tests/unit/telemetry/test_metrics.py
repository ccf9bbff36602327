from __future__ import annotations

import re
import threading

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from connector.source.position import Cause
from connector.telemetry.metrics import Metrics
from connector.telemetry.status import RunState

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_lag_that_was_never_measured_is_absent_and_a_measured_zero_is_shown(metrics: Metrics) -> None:
    series = metrics.lag.labels("orders", 0)
    assert value(metrics, "connector_consumer_lag_records", topic="orders", partition="0") is None
    series.set(0)
    assert value(metrics, "connector_consumer_lag_records", topic="orders", partition="0") == 0


def test_a_stale_lag_is_told_by_the_time_of_its_measurement(metrics: Metrics) -> None:
    metrics.lag.labels("orders", 0).set(7)
    metrics.lag_updated.labels("orders", 0).set(1_700_000_000)
    labels = {"topic": "orders", "partition": "0"}
    assert value(metrics, "connector_consumer_lag_updated_timestamp_seconds", **labels) == 1_700_000_000


def test_a_partition_that_left_has_no_series_and_others_keep_theirs(metrics: Metrics) -> None:
    for partition in (0, 1):
        for gauge in (metrics.lag, metrics.lag_updated, metrics.committed_position, metrics.watermark_age_seconds):
            gauge.labels("orders", partition).set(5)
    metrics.drop_partition("orders", 1)
    text = metrics.render("")[0].decode()
    assert 'partition="1"' not in text
    assert text.count('{partition="0",topic="orders"} 5.0') == 4


def test_dropping_a_partition_that_was_never_measured_is_no_error(metrics: Metrics) -> None:
    metrics.drop_partition("orders", 9)


def test_counters_of_closed_label_sets_show_zero_before_anything_happened(metrics: Metrics) -> None:
    text = metrics.render("")[0].decode()
    for series in (
        'connector_batches_total{reason="linger"} 0.0',
        'connector_rebalances_total{event="lost"} 0.0',
        'connector_drains_total{outcome="timed_out"} 0.0',
        'connector_sink_write_seconds_count{outcome="fatal"} 0.0',
        'connector_commits_total{code="NO_ERROR",outcome="ok"} 0.0',
        "connector_late_acks_total 0.0",
        "connector_ready 0.0",
    ):
        assert f"\n{series}\n" in text


def test_every_cause_of_a_start_is_a_label_value(metrics: Metrics) -> None:
    shown = set(re.findall(r'connector_starts_total\{cause="(\w+)"\}', metrics.render("")[0].decode()))
    assert shown == {cause.value for cause in Cause}


def test_exactly_one_state_is_one(metrics: Metrics) -> None:
    assert value(metrics, "connector_state", state="starting") == 1
    metrics.set_state(RunState.DRAINING)
    assert {state: value(metrics, "connector_state", state=state.value) for state in RunState} == {
        state: float(state is RunState.DRAINING) for state in RunState
    }


def test_two_runs_in_one_process_share_nothing(metrics: Metrics) -> None:
    metrics.late_acks.inc()
    assert value(Metrics(), "connector_late_acks_total") == 0


def test_a_scrape_parses_in_the_form_that_was_asked_for(metrics: Metrics) -> None:
    metrics.consumed_records.labels('a\nb"c').inc(3)
    text, text_type = metrics.render("text/plain;version=0.0.4")
    assert text_type.startswith("text/plain")
    assert "_created" not in text.decode()
    open_text, open_type = metrics.render(OPENMETRICS)
    assert open_type.startswith("application/openmetrics-text")
    for families in (parse_text(text.decode()), parse_openmetrics(open_text.decode())):  # type: ignore[no-untyped-call]
        samples = {sample.name: sample for family in families for sample in family.samples}
        assert samples["connector_consumed_records_total"].value == 3
        assert samples["connector_consumed_records_total"].labels == {"topic": 'a\nb"c'}


def test_updates_and_drops_during_scrapes_lose_nothing_and_break_nothing(metrics: Metrics) -> None:
    rounds, threads = 400, 3
    done = threading.Event()
    failures: list[BaseException] = []

    def update(topic: str) -> None:
        written = metrics.written_records.labels(topic)
        for number in range(rounds):
            written.inc(2)
            metrics.client_errors.labels(f"code-{number % 50}").inc()
            metrics.lag.labels(topic, number % 5).set(number)
            metrics.drop_partition(topic, number % 5)

    def scrape() -> None:
        try:
            while not done.is_set():
                assert metrics.render(OPENMETRICS)[0].endswith(b"# EOF\n")
        except BaseException as error:
            failures.append(error)
            raise

    scraper = threading.Thread(target=scrape)
    updaters = [threading.Thread(target=update, args=(f"topic-{number}",)) for number in range(threads)]
    for thread in (scraper, *updaters):
        thread.start()
    for thread in updaters:
        thread.join(30)
    done.set()
    scraper.join(30)
    assert not failures
    assert [value(metrics, "connector_written_records_total", topic=f"topic-{n}") for n in range(threads)] == [
        2 * rounds
    ] * threads
    assert "connector_consumer_lag_records{" not in metrics.render("")[0].decode()
