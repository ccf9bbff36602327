"""The database stops under load and comes back: nobody leaves the group for it, and nothing is lost or there twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.connector import ConnectorProcess
from tests.support.group import group_settings
from tests.support.oracle import ends, judge, wait_until_committed, written_to_table
from tests.support.postgres import stoppable_postgres
from tests.support.scenario import Traffic, held, metric, wait_until_copy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.kafka import Kafka
    from tests.support.postgres import LocalPostgres

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(180)]

RETRY_MAX_SECONDS = 5
PARTITIONS = 4


@pytest.fixture
def database() -> Iterator[LocalPostgres]:
    """A PostgreSQL of the test's own, which it stops."""
    with stoppable_postgres() as server:
        yield server


def _settings(kafka: Kafka, group_protocol: str, topic: str, database: LocalPostgres) -> dict[str, str]:
    """Exactly once, into a table without a key, in which a repeat would be a row more."""
    return {
        **group_settings(kafka, group_protocol, f"outage-{topic}", [topic]),
        "CONNECTOR_SINK": "postgres",
        "CONNECTOR_SINK_DSN": database.dsn,
        "CONNECTOR_SINK_POSITIONS": "true",
        "CONNECTOR_SINK_MODE": "insert",
        "CONNECTOR_SINK_PRIMARY_KEY": "false",
        "CONNECTOR_PIPELINES": "2",
        "CONNECTOR_RETRY_MAX": f"{RETRY_MAX_SECONDS}s",
        "CONNECTOR_DRAIN_TIMEOUT": "20s",
    }


def _written(copy: ConnectorProcess, topic: str) -> float:
    return metric(copy, "connector_written_records_total", topic=topic) or 0.0


def _wait_until_it_holds(copy: ConnectorProcess, count: int) -> None:
    wait_until_copy(copy, f"it holds {count}", lambda: len(held(copy)) == count)


def _rebalances(copy: ConnectorProcess) -> list[float | None]:
    return [metric(copy, "connector_rebalances_total", event=name) for name in ("assigned", "added", "revoked", "lost")]


def _retrying(copy: ConnectorProcess) -> int:
    return sum(lane["state"] == "retrying" for lane in copy.status()["lanes"])


def _wait_until_all_lanes_retry(copy: ConnectorProcess) -> None:
    wait_until_copy(copy, "every lane waits for the database", lambda: _retrying(copy) == PARTITIONS)


def test_a_stopped_database_costs_no_rebalance_no_record_and_no_repeat_and_is_used_again_within_two_backoffs(
    kafka: Kafka, group_protocol: str, database: LocalPostgres, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    is_long = pytestconfig.getoption("--protocols") != "one" and group_protocol == "consumer"
    seconds = 60 if is_long else 15
    topic = kafka.create_topic(partitions=PARTITIONS)
    settings = _settings(kafka, group_protocol, topic, database)
    with ConnectorProcess("copy", tmp_path, settings) as copy, Traffic(kafka, [topic], portion=200) as traffic:
        _wait_until_it_holds(copy, PARTITIONS)
        wait_until_copy(copy, "it writes", lambda: _written(copy, topic) > 0)
        rebalances = _rebalances(copy)
        database.stop(as_in_a_crash=True)
        stopped = time.monotonic()
        _wait_until_all_lanes_retry(copy)
        before = _written(copy, topic)
        lanes = copy.status()["lanes"]
        assert sum(lane["attempts"] for lane in lanes) > 0  # not of each: the breaker may open before a lane's first
        for lane in lanes:
            assert "PostgreSQL" in lane["last_error"]
            assert lane["next_try_seconds"] <= RETRY_MAX_SECONDS
        while time.monotonic() < stopped + seconds:
            assert copy.get("/livez").status_code == 200
            time.sleep(0.5)
        assert _written(copy, topic) == before
        assert (metric(copy, "connector_sink_breaker_opens_total") or 0) > 0
        database.start()
        back = time.monotonic()
        wait_until_copy(copy, "it writes again", lambda: _written(copy, topic) > before)
        recovered = time.monotonic() - back
        wait_until_copy(copy, "no lane waits", lambda: not _retrying(copy))
        traffic.stop()
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        assert _rebalances(copy) == rebalances
        assert copy.terminate() == 0
    verdict = judge(written_to_table(database.dsn), ends(kafka, [topic]))
    print(f"{group_protocol}: {traffic.produced} records, {seconds}s without, back after {recovered:.2f}s, {verdict}")
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
    assert recovered <= 2 * RETRY_MAX_SECONDS


def test_a_rebalance_while_the_database_is_stopped_spends_no_drain_timeout(
    kafka: Kafka, group_protocol: str, database: LocalPostgres, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    settings = _settings(kafka, group_protocol, topic, database)
    first, second = (ConnectorProcess(name, tmp_path, settings) for name in ("first", "second"))
    with first, Traffic(kafka, [topic], portion=200) as traffic:
        _wait_until_it_holds(first, PARTITIONS)
        wait_until_copy(first, "it writes", lambda: _written(first, topic) > 0)
        database.stop(as_in_a_crash=True)
        _wait_until_all_lanes_retry(first)
        with second:
            for copy in (first, second):
                _wait_until_it_holds(copy, PARTITIONS // 2)
            drains = [entry["drain_seconds"] for entry in first.events("lanes_revoked")]
            assert len(held(first) | held(second)) == PARTITIONS
            database.start()
            traffic.stop()
            wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
            assert (first.terminate(), second.terminate()) == (0, 0)
    verdict = judge(written_to_table(database.dsn), ends(kafka, [topic]))
    print(f"{group_protocol}: {traffic.produced} records, drains {drains} s, {verdict}")
    assert drains
    assert sum(drains) < 5
    assert first.events("drain_timed_out") == []
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
