"""Every query of the dashboard gives data: a real Prometheus scrapes real copies on a real Kafka while faults go on."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connector.config.memory import container_limit_bytes
from tests.monitoring.conftest import PANELS
from tests.support.process import free_ports
from tests.support.prometheus import Prometheus, running_prometheus
from tests.support.scenario import Scenario, Traffic, held, wait_until_copy, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.connector import ConnectorProcess
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.promtool, pytest.mark.timeout(180)]

DEPLOY = Path(__file__).parents[2] / "deploy"
JOB = "sluiceway-live"
EXPECTED_ALERTS = {"ConnectorRecordsDeadLettered", "ConnectorRecordsSkipped"}
SINK = """
import os
import time
from connector import Field, PoisonError, Settings, Sink, TransientError


class MoodySettings(Settings):
    path: str = Field(description="While this file exists, nothing can be written.")


class MoodySink(Sink[MoodySettings]):
    def write(self, batch):
        if os.path.exists(self.settings.path):
            raise TransientError("the destination is down")
        for (value,) in batch.rows("value"):
            if value == "poison":
                raise PoisonError("the destination does not take it")
        time.sleep(0.01)
"""


def test_every_query_of_the_dashboard_gives_data_while_faults_go_on(
    kafka: Kafka, prometheus_program: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    topic, letters = kafka.create_topic(partitions=4), kafka.create_topic()
    outage = tmp_path / "outage"
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/moody.py").write_text(SINK)
    settings = {
        "CONNECTOR_SINK": "moody",
        "CONNECTOR_PLUGIN_DIR": str(tmp_path / "plugins"),
        "CONNECTOR_VALUE_FORMAT": "string",
        "CONNECTOR_TOMBSTONES": "ignore",
    }
    ports = free_ports(2)
    targets = [f"127.0.0.1:{port}" for port in ports]
    names = {"CONNECTOR_TOPICS": f"{topic},there-is-no-{topic}"}  # the client reports the missing one as an error
    scenario = Scenario(kafka, "cooperative-sticky", [topic], tmp_path, {**settings, **names})
    sink, dlq = {"CONNECTOR_SINK_PATH": str(outage)}, {"CONNECTOR_ON_POISON": "dlq", "CONNECTOR_DLQ_TOPIC": letters}
    first = scenario.copy("first", {**sink, **dlq, "CONNECTOR_ADMIN_ADDRESS": targets[0]})
    second = scenario.copy("second", {**sink, "CONNECTOR_ON_POISON": "skip", "CONNECTOR_ADMIN_ADDRESS": targets[1]})
    start = time.time()
    kafka.produce(topic, 20_000)  # a backlog
    with (
        running_prometheus(
            prometheus_program,
            tmp_path / "prometheus",
            job=JOB,
            targets=targets,
            rules=DEPLOY / "prometheus/alerts.yml",
        ) as prometheus,
        first,
        Traffic(kafka, [topic], portion=200),
    ):
        wait_until_ready(first)
        prometheus.wait_for("connector_written_records_total > 0")

        outage.touch()
        prometheus.wait_for("connector_sink_breaker_opens_total > 0")
        prometheus.wait_for("connector_oldest_unacknowledged_seconds > 2")
        outage.unlink()
        wait_until_copy(first, "lanes flow again", lambda: _states(first) == {"flowing"})

        with second:  # joins: a rebalance
            wait_until_ready(second)
            wait_until_copy(second, "it holds two partitions", lambda: len(held(second)) == 2)
            wait_until_copy(first, "it has drained two", lambda: len(held(first)) == 2)
            for partition in range(4):  # to the dead letter topic by one copy, passed over by the other
                kafka.produce(topic, [b"poison", b"\xff", None], partition=partition)
            prometheus.wait_for("connector_dead_letters_total > 0")
            prometheus.wait_for("connector_skipped_records_total > 0")
            prometheus.wait_for("rate(connector_filtered_records_total[10s]) >= 0")  # that takes two scrapes
            assert second.terminate() == 0  # leaves: another one
        wait_until_copy(first, "it holds all again", lambda: len(held(first)) == 4)
        prometheus.wait_for("count(connector_ready) == 1")
        for name in EXPECTED_ALERTS:  # a rule is evaluated a second after the scrape that it needs
            prometheus.wait_for(f"ALERTS{{alertname='{name}', alertstate='firing'}}")

        asked = [*_ask_panels(prometheus, start)]
        rules = prometheus.rules()
        fired = prometheus.instant(f"last_over_time(ALERTS{{alertstate='firing'}}[{math.ceil(time.time() - start)}s])")
        variables = {name: prometheus.instant(_series_of(query)) for name, query in _variables()}

    request.config.stash[PANELS] = [
        "panel | query | series | largest value",
        *(f"{each.title} | {each.legend} | {each.series} | {each.largest:.6g}" for each in asked),
    ]
    has_limit = container_limit_bytes() is not None
    empty = [each for each in asked if not each.series and (has_limit or each.legend != "limit")]
    assert not [f"{each.title}: {each.query}" for each in empty]
    assert all(variables.values())
    assert not [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]
    assert {series["metric"]["alertname"] for series in fired} == EXPECTED_ALERTS


@dataclass(frozen=True, slots=True)
class Asked:
    """What one query of a panel gave: how many series with a number, and the largest of all numbers."""

    title: str
    legend: str
    query: str
    series: int
    largest: float


def _ask_panels(prometheus: Prometheus, start: float) -> Iterator[Asked]:
    """Ask as Grafana would: instant queries now, the others over the whole run, with `NaN` for no data."""
    now = time.time()
    for panel in _dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query = _substituted(target["expr"], now - start)
            if target["instant"]:
                found = [[series["value"]] for series in prometheus.instant(query)]
            else:
                found = [series["values"] for series in prometheus.over(query, start, now, 1)]
            numbers = [[float(number) for _, number in values if math.isfinite(float(number))] for values in found]
            largest = max((max(each) for each in numbers if each), default=math.nan)
            yield Asked(panel["title"], _legend(panel, target), query, sum(map(bool, numbers)), largest)


def _legend(panel: dict[str, Any], target: dict[str, Any]) -> str:
    """Return what the panel calls the query; a table renames its column."""
    for step in panel.get("transformations", ()):
        renamed: dict[str, str] = step["options"].get("renameByName", {})
        if column := renamed.get(f"Value #{target['refId']}"):
            return column
    return "-" if target["legendFormat"] == "__auto" else str(target["legendFormat"])


def _substituted(query: str, seconds: float) -> str:
    for name, value in {
        "job": JOB,
        "instance": ".*",
        "topic": ".*",
        "__rate_interval": "10s",
        "__range": f"{math.ceil(seconds)}s",
    }.items():
        query = re.sub(rf"\${name}\b", value, query)
    assert "$" not in query
    return query


def _variables() -> Iterator[tuple[str, str]]:
    for variable in _dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def _series_of(query: str) -> str:
    """Return what `label_values(SERIES, LABEL)` looks at: the series that have the label."""
    found = re.fullmatch(r"label_values\((\w+)(?:\{(.*)\})?, (\w+)\)", query)
    assert found, query
    return _substituted(f"{found[1]}{{{found[2] or ''}}}", 0)


def _dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/sluiceway.json").read_text(encoding="utf-8"))
    return document


def _states(copy: ConnectorProcess) -> set[str]:
    return {lane["state"] for lane in copy.status()["lanes"]}
