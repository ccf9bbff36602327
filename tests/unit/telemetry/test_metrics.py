from __future__ import annotations

import re
import threading

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from connector.source.position import Cause
from connector.telemetry.metrics import Metrics, table
from connector.telemetry.series import Distribution
from connector.telemetry.status import RunState

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_measured_gauge_shows_what_was_measured_and_nothing_of_before(metrics: Metrics) -> None:
    name = "connector_consumer_lag_records"
    assert value(metrics, name, topic="orders", partition="0") is None
    metrics.lag.show({("orders", "0"): 0, ("orders", "1"): 7})
    assert value(metrics, name, topic="orders", partition="0") == 0
    metrics.lag.show({("orders", "1"): 6})
    assert value(metrics, name, topic="orders", partition="0") is None
    assert value(metrics, name, topic="orders", partition="1") == 6


def test_a_metric_has_series_from_the_start_unless_it_says_when_they_are_absent(metrics: Metrics) -> None:
    shown = {family.name for family in metrics.registry.collect() if family.samples}
    for attribute, (_, declared) in table().items():
        is_shown = f"connector_{declared.name}".removesuffix("_info") in shown
        assert is_shown == (not declared.absent or attribute == "commits"), attribute


def test_topics_beyond_the_limit_share_a_series_and_are_told(metrics: Metrics) -> None:
    metrics = Metrics(topic_limit=2)
    for topic in ("a", "b", "c", "d", "a", "c"):
        metrics.consumed_records.labels(topic).inc()
    shown = {topic: value(metrics, "connector_consumed_records_total", topic=topic) for topic in ("a", "b", "_other")}
    assert shown == {"a": 2, "b": 1, "_other": 3}
    assert value(metrics, "connector_consumed_records_total", topic="c") is None
    assert value(metrics, "connector_topic_series_omitted") == 2


def test_a_summary_shows_the_quantiles_that_were_measured_and_sums_that_grow(metrics: Metrics) -> None:
    name = "connector_client_broker_round_trip_seconds"
    metrics.client_broker_round_trip.show({("1",): Distribution({0.5: 0.002, 0.99: 0.1}, 1.5, 30)})
    assert value(metrics, name, broker="1", quantile="0.99") == 0.1
    assert value(metrics, f"{name}_sum", broker="1") == 1.5
    assert value(metrics, f"{name}_count", broker="1") == 30


def test_counters_of_closed_label_sets_show_zero_before_anything_happened(metrics: Metrics) -> None:
    text = metrics.render("")[0].decode()
    for series in (
        'connector_batches_total{reason="linger"} 0.0',
        'connector_rebalances_total{event="lost"} 0.0',
        'connector_drains_total{outcome="timed_out"} 0.0',
        'connector_sink_write_seconds_count{outcome="fatal"} 0.0',
        'connector_commits_total{code="NO_ERROR",outcome="ok"} 0.0',
        'connector_lanes{state="held_back"} 0.0',
        "connector_commit_seconds_count 0.0",
        "connector_partition_series_omitted 0.0",
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


def test_updates_during_scrapes_lose_nothing_and_break_nothing(metrics: Metrics) -> None:
    rounds, threads = 400, 3
    done = threading.Event()
    failures: list[BaseException] = []

    def update(topic: str) -> None:
        watch = metrics.pipeline_seconds.start(topic)
        for number in range(rounds):
            metrics.written_records.labels(topic).inc(2)
            metrics.client_errors.labels(f"code-{number % 50}").inc()
            metrics.lag.show({(topic, str(partition)): number for partition in range(number % 5)})
            watch.switch("sink" if number % 2 else "wait")

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
