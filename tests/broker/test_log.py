"""The log of a real process: an outage is a handful of lines that count it, and the level changes at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.process import wait_until
from tests.support.scenario import Scenario, metric

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

PASSWORD = "k33p-th1s"
TOKEN = "t" * 32
OUTAGE = {
    "CONNECTOR_SINK": "postgres",
    "CONNECTOR_SINK_DSN": f"postgresql://writer:{PASSWORD}@127.0.0.1:1/nowhere",
    "CONNECTOR_RETRY_INITIAL": "10ms",
    "CONNECTOR_RETRY_MAX": "10ms",
    "CONNECTOR_LOG_LEVEL": "info",
    "CONNECTOR_ADMIN_TOKEN": TOKEN,
}


def test_a_sink_that_is_down_is_told_in_a_few_lines_that_count_every_try(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    scenario = Scenario(kafka, group_protocol, [kafka.create_topic(partitions=2)], tmp_path, OUTAGE)
    with scenario.copy(settings={"CONNECTOR_SINK_PATH": ""}) as copy:
        wait_until(
            lambda: (metric(copy, "connector_sink_retries_total") or 0) >= 500, timeout=60, what="it is tried often"
        )
        assert copy.terminate() == 0
    lines = copy.events("sink_retry_scheduled")
    assert copy.count("sink_retry_scheduled") == lines[-1]["attempts"] >= 500
    assert len(lines) <= 4
    assert copy.events()[-1]["event"] == "run_ended"
    assert PASSWORD not in copy.log.read_text()


def test_the_level_changes_at_run_time_and_that_is_told_whatever_it_is(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=2)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, {**OUTAGE, "CONNECTOR_SINK": "null"})
    nothing = {"CONNECTOR_SINK_PATH": "", "CONNECTOR_SINK_DSN": ""}

    with scenario.copy(settings=nothing) as copy:
        copy.wait_for_event("rebalanced")
        port = copy.wait_for_event("admin_started")[-1]["port"]
        for level in ("error", "warning", "debug"):
            asked = {"headers": {"Authorization": f"Bearer {TOKEN}"}, "json": {"level": level}}
            answer = httpx.post(f"http://127.0.0.1:{port}/loglevel", **asked, timeout=10)  # type: ignore[arg-type]
            assert answer.is_success, answer.text
        with scenario.copy("second", nothing) as second:
            copy.wait_for_event("lanes_revoked")
            assert second.terminate() == 0
        assert copy.terminate() == 0
    changes = [(line["before"], line["after"]) for line in copy.events("log_level_changed")]
    assert changes == [("info", "error"), ("error", "warning"), ("warning", "debug")]
    assert {line["level"] for line in copy.events("lanes_revoked")} == {"debug"}
