"""Copies are restarted one after another while records flow: nothing is lost, and nothing is written twice."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.connector import ConnectorProcess, protocol_settings
from tests.support.oracle import CommittedSampler, ends, judge, wait_until_committed, written_to_files

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 200_000


@pytest.mark.invariant(5)
def test_a_rolling_restart_loses_nothing_and_repeats_nothing(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topics = [kafka.create_topic(partitions=4), kafka.create_topic(partitions=4)]
    group = f"rolling-{topics[0]}"
    settings = {
        **protocol_settings(group_protocol),
        "CONNECTOR_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "CONNECTOR_GROUP_ID": group,
        "CONNECTOR_TOPICS": ",".join(topics),
        "CONNECTOR_SINK": "file",
    }
    copies = [
        ConnectorProcess(f"copy-{n}", tmp_path, {**settings, "CONNECTOR_SINK_PATH": str(tmp_path / f"{n}.jsonl")})
        for n in range(3)
    ]

    def produce() -> None:
        for _ in range(20):  # in portions, so that records flow during every restart
            for topic in topics:
                kafka.produce(topic, (b"x" * 100 for _ in range(RECORDS // 40)))
            finished.wait(0.5)

    finished = threading.Event()
    producer = threading.Thread(target=produce)
    with ExitStack() as stack:
        for copy in copies:
            stack.enter_context(copy)
        for copy in copies:
            copy.wait_for_event("lanes_assigned")
        sampler = stack.enter_context(CommittedSampler(kafka, group, topics))
        producer.start()
        stack.callback(finished.set)
        for copy in copies:
            assert copy.terminate() == 0
            before = len(copy.events("lanes_assigned"))
            copy.start()
            copy.wait_for_event("lanes_assigned", count=before + 1)
        finished.set()
        producer.join(120)
        wait_until_committed(kafka, group, topics)
        codes = [copy.terminate() for copy in copies]
    verdict = judge(written_to_files(tmp_path.glob("*.jsonl")), ends(kafka, topics))
    assert codes == [0, 0, 0]
    assert [copy.events("drain_timed_out") for copy in copies] == [[], [], []]
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
    assert sampler.samples > 0
    assert sampler.went_back == []
    assert sum(map(sum, ends(kafka, topics).values())) == RECORDS
