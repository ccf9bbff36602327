"""The server behind the sink `http` stops, refuses and asks to be left alone, under load: no record is lost or dies of
it, nobody leaves the group for it, and whoever keeps the keys of requests has each record once."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.support.connector import ConnectorProcess
from tests.support.group import group_settings
from tests.support.oracle import ends, judge, wait_until_committed
from tests.support.receiver import Handler, Received, Receiver, answer
from tests.support.scenario import Traffic, held, metric, wait_until_copy, wait_until_ready

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka
    from tests.support.oracle import Place

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

PARTITIONS = 4
RETRY_MAX_SECONDS = 2
ASKED_SECONDS = 4  # more than that


class Ledger(Receiver):
    """Counts records in each request that it takes, but once for each key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keys: set[str] = set()
        self.written: Counter[Place] = Counter()

    def store(self, handler: Handler, received: Received) -> None:
        self._note(received)
        handler.answer(200)

    def store_and_break_off(self, handler: Handler, received: Received) -> None:
        """Take the records, and let nobody know."""
        self._note(received)
        handler.close_connection = True

    def _note(self, received: Received) -> None:
        key = received.headers["idempotency-key"]
        if key not in self.keys:
            self.keys.add(key)
            self.written.update((each["topic"], each["partition"], each["offset"]) for each in received.records)


def _settings(kafka: Kafka, group_protocol: str, topic: str, receiver: Receiver) -> dict[str, str]:
    return {
        **group_settings(kafka, group_protocol, f"http-{topic}", [topic]),
        "CONNECTOR_SINK": "http",
        "CONNECTOR_SINK_URL": f"{receiver.url}/{{topic}}",
        "CONNECTOR_SINK_TOKEN": "0pen-sesame-0pen-sesame",
        "CONNECTOR_SINK_TIMEOUT": "2s",
        "CONNECTOR_SINK_COMPRESSION": "gzip",
        "CONNECTOR_RETRY_MAX": f"{RETRY_MAX_SECONDS}s",
        "CONNECTOR_DRAIN_TIMEOUT": "20s",
        "CONNECTOR_ON_POISON": "dlq",
        "CONNECTOR_DLQ_TOPIC": kafka.create_topic(),
        "NO_PROXY": "127.0.0.1",
    }


def _written(copy: ConnectorProcess, topic: str) -> float:
    return metric(copy, "connector_written_records_total", topic=topic) or 0.0


def _rebalances(copy: ConnectorProcess) -> list[float | None]:
    return [metric(copy, "connector_rebalances_total", event=name) for name in ("assigned", "added", "revoked", "lost")]


def _wait_until_all_lanes_retry(copy: ConnectorProcess, error: str) -> None:
    def do_they() -> bool:
        lanes = copy.status()["lanes"]
        return len(lanes) == PARTITIONS and all(
            lane["state"] == "retrying" and error in lane["last_error"] for lane in lanes
        )

    wait_until_copy(copy, f"every lane waits because of: {error}", do_they)


def test_a_server_that_fails_in_every_way_costs_no_record_no_rebalance_and_no_dead_letter(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    with Ledger() as receiver:
        settings = _settings(kafka, group_protocol, topic, receiver)
        with ConnectorProcess("copy", tmp_path, settings) as copy, Traffic(kafka, [topic], portion=200) as traffic:
            wait_until_copy(copy, "it holds all", lambda: len(held(copy)) == PARTITIONS)
            wait_until_copy(copy, "it writes", lambda: _written(copy, topic) > 0)
            rebalances = _rebalances(copy)

            receiver.stop()
            _wait_until_all_lanes_retry(copy, "is not reached")
            time.sleep(8)  # the outage
            before = _written(copy, topic)
            receiver.start()
            back = time.monotonic()
            wait_until_copy(copy, "it writes again", lambda: _written(copy, topic) > before)
            recovered = time.monotonic() - back

            receiver.behave = answer(503)
            _wait_until_all_lanes_retry(copy, "answers 503")

            receiver.behave = answer(429, Retry_After=str(ASKED_SECONDS))
            wait_until_copy(copy, "a lane waits because of that", lambda: "answers 429" in copy.get("/status").text)
            asked = len(receiver.received)
            wait_until_copy(copy, "it asks again", lambda: len(receiver.received) > asked + 1)
            pauses = [later.at - one.at for one, later in pairwise(receiver.received[asked:])]

            receiver.behave = receiver.store
            receiver.script = [receiver.store_and_break_off] * 3
            wait_until_copy(copy, "the script is over", lambda: not receiver.script)
            traffic.stop()
            wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
            assert _rebalances(copy) == rebalances
            assert kafka.end_offsets(settings["CONNECTOR_DLQ_TOPIC"]) == {0: 0}
            assert copy.terminate() == 0
    verdict = judge(receiver.written, ends(kafka, [topic]))
    print(f"{group_protocol}: {traffic.produced} records, back after {recovered:.2f}s, pauses {pauses} s, {verdict}")
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
    assert recovered <= 2 * RETRY_MAX_SECONDS + 1
    assert min(pauses) >= ASKED_SECONDS, "no lane asks before the time that the server wants"
    assert settings["CONNECTOR_SINK_TOKEN"] not in copy.log.read_text()
    assert not [entry for entry in copy.events() if entry.get("logger", "").startswith("http")], "a line for a request"


def test_a_rebalance_while_the_server_wants_to_be_left_alone_does_not_wait_for_that(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    with Ledger() as receiver:
        settings = _settings(kafka, group_protocol, topic, receiver)
        first, second = (ConnectorProcess(name, tmp_path, settings) for name in ("first", "second"))
        with first, Traffic(kafka, [topic], portion=200) as traffic:
            wait_until_copy(first, "it holds all", lambda: len(held(first)) == PARTITIONS)
            wait_until_copy(first, "it writes", lambda: _written(first, topic) > 0)
            receiver.behave = answer(429, Retry_After="3600")
            _wait_until_all_lanes_retry(first, "answers 429")
            with second:
                for copy in (first, second):
                    wait_until_copy(copy, "it holds its share", lambda: len(held(copy)) == PARTITIONS // 2)  # noqa: B023
                drains = [entry["drain_seconds"] for entry in first.events("lanes_revoked")]
                receiver.behave = receiver.store
                traffic.stop()
                assert first.terminate() in (0, 6)  # what it holds back for an hour is the next owner's
                assert second.terminate() in (0, 6)
        with ConnectorProcess("third", tmp_path, settings) as third:
            wait_until_ready(third)
            wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
            assert third.terminate() == 0
    verdict = judge(receiver.written, ends(kafka, [topic]))
    print(f"{group_protocol}: {traffic.produced} records, drains {drains} s, {verdict}")
    assert drains
    assert sum(drains) < 5
    assert verdict.lost == (), str(verdict)


def test_records_that_the_server_names_become_dead_letters_and_no_others(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=1)
    kafka.produce(topic, [b"bad" if number % 100 == 7 else b"good" for number in range(1000)], partition=0)
    with Ledger() as receiver:

        def store_the_good_ones(handler: Handler, received: Received) -> None:
            records = received.records
            receiver.written.update(
                (each["topic"], each["partition"], each["offset"]) for each in records if each["value"] == "good"
            )
            errors = [{"index": at, "error": "bad"} for at, each in enumerate(records) if each["value"] == "bad"]
            handler.answer(207, json.dumps({"errors": errors}).encode())

        receiver.behave = store_the_good_ones
        settings = {**_settings(kafka, group_protocol, topic, receiver), "CONNECTOR_SINK_RESULTS": "true"}
        with ConnectorProcess("copy", tmp_path, settings) as copy:
            wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
            assert copy.terminate() == 0
    verdict = judge(receiver.written, ends(kafka, [topic]))
    assert verdict.lost == tuple((topic, 0, number) for number in range(7, 1000, 100))
    assert dict(verdict.repeated) == {}
    assert kafka.end_offsets(settings["CONNECTOR_DLQ_TOPIC"]) == {0: 10}


def test_a_server_that_refuses_the_token_ends_the_process_with_code_3_and_no_record_counts_as_done(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=1)
    kafka.produce(topic, 10, partition=0)
    with Ledger() as receiver:
        receiver.behave = lambda handler, received: handler.answer(401, received.headers["authorization"].encode())
        settings = _settings(kafka, group_protocol, topic, receiver)
        with ConnectorProcess("copy", tmp_path, settings) as copy:
            assert copy.wait() == 3
    (failed,) = copy.events("run_failed")
    assert "answers 401" in failed["error"]
    assert "CONNECTOR_SINK_TOKEN" in failed["error"]
    assert settings["CONNECTOR_SINK_TOKEN"] not in copy.log.read_text()
    assert not kafka.committed(settings["CONNECTOR_GROUP_ID"], topic)[0], "at most where it began"
