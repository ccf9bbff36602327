"""The schema registry stops under load and comes back: nobody leaves the group for it, and no record dies of it."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.connector import ConnectorProcess
from tests.support.group import group_settings
from tests.support.oracle import ends, judge, wait_until_committed, written_to_files
from tests.support.process import free_ports
from tests.support.registry import Answer, StubRegistry, avro, framed
from tests.support.scenario import held, metric, wait_until_copy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

OUTAGE_SECONDS = 30
PARTITIONS = 4
FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECOND = {"type": "record", "name": "Order", "fields": [*FIRST["fields"], {"name": "note", "type": "string"}]}


def _settings(kafka: Kafka, group_protocol: str, topic: str, url: str, output: Path) -> dict[str, str]:
    return {
        **group_settings(kafka, group_protocol, f"registry-{topic}", [topic]),
        "CONNECTOR_VALUE_FORMAT": "avro",
        "CONNECTOR_REGISTRY_URL": url,
        "CONNECTOR_REGISTRY_TIMEOUT": "2s",
        "CONNECTOR_RETRY_MAX": "5s",
        "CONNECTOR_DRAIN_TIMEOUT": "20s",
        "CONNECTOR_ON_POISON": "dlq",
        "CONNECTOR_DLQ_TOPIC": kafka.create_topic(),
        "CONNECTOR_SINK": "file",
        "CONNECTOR_SINK_PATH": str(output),
    }


def _orders(schema_id: int, count: int) -> list[bytes | None]:
    schema, extra = (FIRST, {}) if schema_id == 1 else (SECOND, {"note": "ä"})
    return [framed(schema_id, avro(schema, {"id": number, **extra})) for number in range(count)]


def _produce(kafka: Kafka, topic: str, schema_id: int, partitions: list[int], count: int = 200) -> None:
    for partition in partitions:
        kafka.produce(topic, _orders(schema_id, count), partition=partition)


def _written(copy: ConnectorProcess, topic: str) -> float:
    return metric(copy, "connector_written_records_total", topic=topic) or 0.0


def _has_written(copy: ConnectorProcess, topic: str, count: float) -> bool:
    return _written(copy, topic) == count


def _lanes(copy: ConnectorProcess) -> dict[int, dict[str, Any]]:
    return {lane["partition"]: lane for lane in copy.status()["lanes"]}


def _rebalances(copy: ConnectorProcess) -> list[float | None]:
    return [metric(copy, "connector_rebalances_total", event=name) for name in ("assigned", "added", "revoked", "lost")]


@pytest.mark.parametrize("fault", ["refused", "never answers", "http 503"])
def test_an_outage_of_the_registry_costs_no_record_and_no_rebalance_and_holds_only_lanes_with_a_new_schema(
    kafka: Kafka, group_protocol: str, tmp_path: Path, fault: str
) -> None:
    seconds = OUTAGE_SECONDS if fault == "refused" else 10
    topic = kafka.create_topic(partitions=PARTITIONS)
    [port] = free_ports(1)
    settings = _settings(kafka, group_protocol, topic, f"http://127.0.0.1:{port}", tmp_path / "out.jsonl")
    with ConnectorProcess("copy", tmp_path, settings) as copy:
        with StubRegistry(port) as registry:
            registry.add(1, FIRST)
            _produce(kafka, topic, 1, [0, 1, 2, 3])
            wait_until_copy(copy, "it writes all", lambda: _written(copy, topic) == PARTITIONS * 200)
            assert registry.asked == ["/schemas/ids/1"]
        rebalances = _rebalances(copy)
        stopped = time.monotonic()
        if fault == "refused":
            _wait_out(copy, kafka, topic, stopped + seconds, "cannot be reached")
        else:
            with StubRegistry(port) as registry:
                registry.behave = lambda _: Answer(503) if fault == "http 503" else time.sleep(3)
                _wait_out(copy, kafka, topic, stopped + seconds, "HTTP 503" if fault == "http 503" else "")
        assert metric(copy, "connector_decode_retries_total")
        assert metric(copy, "connector_sink_breaker_opens_total") == 0
        assert metric(copy, "connector_sink_retries_total") == 0
        with StubRegistry(port) as registry:
            registry.add(2, SECOND)
            back = time.monotonic()
            wait_until_copy(copy, "no lane waits", lambda: all(not lane["attempts"] for lane in _lanes(copy).values()))
            wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
            recovered = time.monotonic() - back
        assert _rebalances(copy) == rebalances
        assert metric(copy, "connector_dead_letters_total") in (None, 0)
        assert kafka.end_offsets(settings["CONNECTOR_DLQ_TOPIC"]) == {0: 0}
        assert copy.terminate() == 0
    verdict = judge(written_to_files([tmp_path / "out.jsonl"]), ends(kafka, [topic]))
    print(f"{group_protocol}, {fault}: {seconds}s without a registry, all committed {recovered:.2f}s after it was back")
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
    notes = [json.loads(line)["value"].get("note") for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert (notes.count("ä"), notes.count(None)) == (400, len(notes) - 400)


def _wait_out(copy: ConnectorProcess, kafka: Kafka, topic: str, end: float, error: str) -> None:
    """Spend an outage: partitions 2 and 3 get a new schema, 0 and 1 go on and are written."""
    _produce(kafka, topic, 2, [2, 3])
    wait_until_copy(
        copy, "two lanes wait", lambda: sum(lane["state"] == "awaiting_schema" for lane in _lanes(copy).values()) == 2
    )
    while time.monotonic() < end:
        before = _written(copy, topic)
        _produce(kafka, topic, 1, [0, 1], 50)
        wait_until_copy(copy, "the others go on", partial(_has_written, copy, topic, before + 100), timeout=5)
        assert copy.get("/livez").status_code == 200
        time.sleep(0.5)
    for partition, lane in _lanes(copy).items():
        if partition in (2, 3):
            assert lane["state"] == "awaiting_schema"
            assert "the schema registry" in lane["last_error"]
            assert error in lane["last_error"]
            assert lane["attempts"] > 0
            assert lane["next_try_seconds"] <= 5
        else:
            assert lane["state"] == "flowing"


def test_a_rebalance_while_the_registry_is_down_spends_no_drain_timeout_and_repeats_nothing(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    [port] = free_ports(1)
    output = tmp_path / "out-{host}.jsonl"
    settings = _settings(kafka, group_protocol, topic, f"http://127.0.0.1:{port}", output)
    first, second = (
        ConnectorProcess(name, tmp_path, {**settings, "CONNECTOR_SINK_PATH": str(tmp_path / f"{name}.jsonl")})
        for name in ("first", "second")
    )
    with first, StubRegistry(port) as registry:
        registry.add(1, FIRST)
        _produce(kafka, topic, 1, [0, 1, 2, 3])
        wait_until_copy(first, "it writes all", lambda: _written(first, topic) == PARTITIONS * 200)
        registry.behave = lambda _: time.sleep(3)  # and then says that there is no such schema
        _produce(kafka, topic, 2, [0, 1, 2, 3])
        wait_until_copy(
            first, "all wait", lambda: sum(lane["state"] == "awaiting_schema" for lane in _lanes(first).values()) == 4
        )
        with second:
            wait_until_copy(second, "it holds some", lambda: 0 < len(held(second)) < PARTITIONS)
            wait_until_copy(first, "it holds the rest", lambda: len(held(first)) + len(held(second)) == PARTITIONS)
            drains = [entry["drain_seconds"] for entry in first.events("rebalanced") if entry.get("drain_seconds")]
            assert drains
            assert max(drains) < 5
            registry.behave = lambda _: None
            registry.add(2, SECOND)
            wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
            assert kafka.end_offsets(settings["CONNECTOR_DLQ_TOPIC"]) == {0: 0}
            assert (first.terminate(), second.terminate()) == (0, 0)
    verdict = judge(written_to_files(tmp_path.glob("*.jsonl")), ends(kafka, [topic]))
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
    print(f"{group_protocol}: drains of {drains} s")
