"""Alerts, runbook and dashboard match each other, and name only metrics, label values and events that exist."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from connector.telemetry.metrics import table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
RUNBOOK = "docs/runbook.md"
DASHBOARD = "deploy/grafana/dashboards/sluiceway.json"
TARGET_LABELS = {"job", "instance", "namespace"}  # Prometheus adds them
PROCESS_METRICS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds"}
VARIABLES = {"job", "instance", "topic"}


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def document(path: str) -> dict[str, Any]:
    text = read(path)
    found: dict[str, Any] = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    return found


def alerts() -> dict[str, dict[str, Any]]:
    groups = document("deploy/prometheus/alerts.yml")["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def sections() -> dict[str, str]:
    parts = re.split(r"^## (\w+)$", read(RUNBOOK), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def panels() -> list[dict[str, Any]]:
    return [panel for panel in document(DASHBOARD)["panels"] if panel["type"] != "row"]


def titles(panel: dict[str, Any]) -> str:
    return str(panel["title"])


# Alerts and runbook.


def test_the_runbook_has_a_section_for_each_alert_and_no_other_in_their_order() -> None:
    assert list(sections()) == list(alerts())


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_how_urgent_it_is_what_is_seen_and_where_its_section_is(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}#{name.lower()}"


@pytest.mark.parametrize("name", alerts())
def test_a_section_has_what_it_means_causes_signs_cures_and_what_is_lost_meanwhile(name: str) -> None:
    text = sections()[name]
    assert text.strip().startswith(f"`{alerts()[name]['labels']['severity']}`. ")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [cell.strip() for cell in rows[0]] == ["cause", "how to tell", "cure"]
    assert len(rows) >= 2
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows)
    assert "**Meanwhile** " in text


def test_every_log_event_that_the_runbook_names_is_written() -> None:
    listed = re.findall(r"[Ll]og(?: line)?:? ((?:`[a-z_]+`(?:, | and |, then )?)+)", read(RUNBOOK))
    named = {event for each in listed for event in re.findall(r"`([a-z_]+)`", each)}
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "connector").rglob("*.py")))
    assert len(named) >= 15
    assert not {event for event in named if f'"{event}"' not in code}


# What exists.


@cache
def served() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the labels of each series and their values, where these are a closed set."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for kind, declared in table().values():
        name = f"connector_{declared.name}"
        match kind.__name__:
            case "Histogram" | "TopicHistogram":
                for suffix in ("_count", "_sum"):
                    found[name + suffix] = dict(declared.labels)
                found[f"{name}_bucket"] = {**declared.labels, "le": ()}
            case "MeasuredSummary":
                found[name] = {**declared.labels, "quantile": ("0.5", "0.99")}
            case "Counter" | "TopicCounter" | "SecondsCounter":
                found[f"{name}_total"] = dict(declared.labels)
            case _:
                found[name] = dict(declared.labels)
    return found


def problems(expression: str) -> Iterator[str]:
    """Yield each series, label or label value in a PromQL expression that does not exist."""
    for name, matchers in re.findall(r"\b(\w+)(?:\{([^}]*)\})?", re.sub(r'"[^"]*"(?![^{]*\})', "", expression)):
        if name in PROCESS_METRICS or not name.startswith(("connector_", "process_")):
            continue
        if name not in served():
            yield f"there is no {name}"
            continue
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            if label in TARGET_LABELS:
                continue
            if label not in served()[name]:
                yield f"{name} has no label {label}"
            elif closed := served()[name][label]:
                values = value.split("|") if "~" in operator else [value]
                yield from (f"{label} of {name} is never {each}" for each in values if each not in closed)
    grouped = re.findall(r"\b(?:by|on|without|ignoring) \(([\w, ]*)\)", expression)
    labels = {label.strip() for each in grouped for label in each.split(",") if label.strip()}
    used = {name for name in re.findall(r"\bconnector_\w+", expression) if name in served()}
    known = TARGET_LABELS.union(*(served()[name] for name in used))
    yield from (f"{label} is a label of nothing in it" for label in sorted(labels - known))


def test_an_expression_with_something_that_does_not_exist_is_told() -> None:
    for wrong in (
        "connector_written_records",
        'connector_lanes{state="sleeping"}',
        'connector_lanes{mood="flowing"}',
        'connector_drains_total{outcome=~"drained|dropped"}',
        "sum by (topic) (connector_assigned_lanes)",
    ):
        assert list(problems(wrong)), wrong
    assert not list(problems('sum by (job, topic) (connector_topic_lag_records{job=~"$job", topic=~"$topic"}) > 0'))


@pytest.mark.parametrize("name", alerts())
def test_an_alert_names_only_what_exists(name: str) -> None:
    assert not list(problems(alerts()[name]["expr"]))


def test_the_tests_of_the_alerts_name_only_what_exists() -> None:
    tests = document("deploy/prometheus/alerts_test.yml")["tests"]
    series = {each["series"] for test in tests for each in test["input_series"]}
    assert not [problem for each in sorted(series) for problem in problems(each)]


def test_the_runbook_names_only_what_exists() -> None:
    code = re.findall(r"`([^`]*\bconnector_[^`]*)`", read(RUNBOOK))
    families = {f"connector_{declared.name}" for _, declared in table().values()}
    assert not [problem for each in code if each not in families for problem in problems(each)]


# The dashboard.


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


@pytest.mark.parametrize("panel", panels(), ids=titles)
def test_a_panel_asks_for_what_exists_of_the_chosen_copies(panel: dict[str, Any]) -> None:
    for expression in expressions(panel):
        assert not list(problems(expression))
        assert set(re.findall(r"\$(\w+)", expression)) <= VARIABLES | {"__rate_interval", "__range"}
        series = re.findall(r"\b(?:connector|process)_\w+", expression)
        assert expression.count('job=~"$job", instance=~"$instance"') == len(series)
        assert expression.count('topic=~"$topic"') == sum("topic" in served().get(name, ()) for name in series)


@pytest.mark.parametrize("panel", panels(), ids=titles)
def test_a_legend_names_only_labels_that_its_query_keeps(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        kept = re.findall(r"^(?:sum|max|min) by \(([\w, ]*)\)", target["expr"])
        labels = {label for each in kept for label in each.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


@pytest.mark.parametrize("panel", panels(), ids=titles)
def test_a_panel_says_what_it_shows_in_which_unit_and_what_no_data_means(panel: dict[str, Any]) -> None:
    assert len(panel["description"]) > 40
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert [target["refId"] for target in panel["targets"]] == [*itertools.islice("ABCDEFGH", len(panel["targets"]))]
    assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    defaults = panel["fieldConfig"]["defaults"]
    match panel["type"]:
        case "timeseries":
            assert defaults["unit"] in {"short", "cps", "Bps", "bytes", "s", "percentunit"}
            assert all(target["range"] and not target["instant"] for target in panel["targets"])
        case "stat":
            assert defaults["unit"] in {"short", "cps", "s"}
            assert defaults["noValue"]
            assert "No data" in panel["description"]
            assert all(target["instant"] and not target["range"] for target in panel["targets"])
        case "table":
            assert all(target["instant"] and target["format"] == "table" for target in panel["targets"])
        case other:
            pytest.fail(f"{other} is not one of the plain types")


def test_the_dashboard_is_one_page_in_rows_without_overlaps() -> None:
    every = document(DASHBOARD)["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in every
        for x, y in itertools.product(range(panel["gridPos"]["w"]), range(panel["gridPos"]["h"]))
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert [panel["gridPos"]["y"] for panel in every] == sorted(panel["gridPos"]["y"] for panel in every)
    assert [panel["title"] for panel in every if panel["type"] == "row"] == [
        "Is it consuming, and how far behind?",
        "Why does this lane not move?",
        "Where does the time go?",
        "What was retried and left out, and why?",
        "What did the last rebalance cost?",
        "Do commits work?",
        "What holds the memory?",
        "What does the Kafka client see?",
    ]


def test_the_dashboard_is_of_a_form_that_grafana_12_takes_and_its_variables_are_asked_of_what_exists() -> None:
    dashboard = document(DASHBOARD)
    assert dashboard["schemaVersion"] == 41  # of Grafana 12.0 and 12.1; later ones read it and raise it
    source, *rest = dashboard["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert {variable["name"] for variable in rest} == VARIABLES
    for variable in rest:
        assert variable["type"] == "query"
        assert variable["multi"]
        assert variable["includeAll"]
        asked = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", variable["query"]["query"])
        assert asked
        assert asked[1] == "connector_info" or asked[1] in served()
        assert asked[3] == variable["name"]


# Compose.


def test_compose_gives_prometheus_and_grafana_what_they_read() -> None:
    services = document("docker-compose.yml")["services"]
    (scrape,) = document("deploy/prometheus/prometheus.yml")["scrape_configs"]
    (discovery,) = scrape["dns_sd_configs"]
    assert [*discovery["names"]] == [name for name in services if name == "connector"]
    assert f"127.0.0.1::{discovery['port']}" in services["connector"]["ports"]
    (source,) = document("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    (provider,) = document("deploy/grafana/provisioning/dashboards/sluiceway.yml")["providers"]
    mounts = dict(volume.removesuffix(":ro").split(":") for volume in services["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    assert services["prometheus"]["volumes"] == ["./deploy/prometheus:/etc/prometheus:ro"]
