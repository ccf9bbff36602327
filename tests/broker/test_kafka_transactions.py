"""Kafka to Kafka: with transactions every record is there exactly once for a `read_committed` reader, whatever ends."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.connector import ConnectorProcess
from tests.support.group import (
    committed_positions,
    end_positions,
    group_settings,
    wait_until_committed_beyond,
)
from tests.support.kafka_topics import read_topic
from tests.support.oracle import CommittedSampler, Verdict, ends, judge, wait_until_committed
from tests.support.process import wait_until
from tests.support.scenario import Traffic, held

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

SEED = random.randrange(2**32)  # in the message of a failure
RANDOM = random.Random(SEED)
PARTITIONS = 4
COPIES = 2


class Mirror:
    """A topic, the topic that copies of the connector write it to, and the copies."""

    def __init__(self, kafka: Kafka, group_protocol: str, directory: Path, *, transactional: bool) -> None:
        self.kafka = kafka
        self.topic = kafka.create_topic(partitions=PARTITIONS)
        self.target = kafka.create_topic(partitions=PARTITIONS)
        self.group = f"mirror-{self.topic}"
        self.settings = {
            **group_settings(kafka, group_protocol, self.group, [self.topic]),
            "CONNECTOR_SINK": "kafka",
            "CONNECTOR_SINK_TOPIC": self.target,
            "CONNECTOR_SINK_PARTITION": "same",
            "CONNECTOR_SINK_ORIGIN_HEADERS": "true",
            "CONNECTOR_SINK_TRANSACTIONAL": str(transactional).lower(),
            "CONNECTOR_SINK_TIMEOUT": "4s",
            "CONNECTOR_SINK_TRANSACTION_TIMEOUT": "5s",
        }
        self.copies = [ConnectorProcess(f"copy-{n}", directory, self.settings) for n in range(COPIES)]

    def start(self, stack: ExitStack) -> None:
        """Start the copies and wait until each has its part."""
        for copy in self.copies:
            stack.enter_context(copy)
        self.wait_until_divided()

    def wait_until_divided(self) -> None:
        share = PARTITIONS // COPIES
        wait_until(
            lambda: all(len(held(copy)) == share for copy in self.copies), timeout=60, what="each has its partitions"
        )

    def wait_for_progress(self) -> None:
        """Wait until each partition is committed beyond what there is now."""
        wait_until_committed_beyond(self.kafka, self.group, end_positions(self.kafka, [self.topic]))

    def finish(self) -> None:
        """Wait until everything is committed, and end the copies."""
        wait_until_committed(self.kafka, self.group, [self.topic])
        assert [copy.terminate() for copy in self.copies] == [0] * COPIES

    def verdict(self) -> Verdict:
        """Compare what a `read_committed` reader finds with what was produced."""
        found = Counter(record.origin_row()[:3] for record in read_topic(self.kafka, self.target))
        return judge(found, ends(self.kafka, [self.topic]))

    def order_breaks(self) -> list[tuple[int, int, int]]:
        """Return where a partition of the target goes back, as partition, offset before and after."""
        breaks, last = [], dict.fromkeys(range(PARTITIONS), -1)
        for record in read_topic(self.kafka, self.target):
            _, partition, offset = record.origin_row()[:3]
            if offset <= last[partition]:
                breaks.append((partition, last[partition], offset))
            last[partition] = offset
        return breaks


def kill_under_load(mirror: Mirror, kills: int) -> list[str]:
    """Kill a copy at random moments and start it again, under load; return committed positions that went back."""
    moments = threading.Event()  # never set: its wait is the random moment
    with ExitStack() as stack:
        mirror.start(stack)
        sampler = stack.enter_context(CommittedSampler(mirror.kafka, mirror.group, [mirror.topic]))
        traffic = stack.enter_context(Traffic(mirror.kafka, [mirror.topic], portion=500))
        for number in range(kills):
            mirror.wait_for_progress()
            victim = mirror.copies[number % COPIES]
            moments.wait(RANDOM.uniform(0, 0.5))
            victim.kill()
            victim.start()
        mirror.wait_for_progress()
        traffic.stop()
        mirror.finish()
    assert sampler.samples > 0
    print(f"{kills} kills, {traffic.produced} records, seed {SEED}")
    return sampler.went_back


@pytest.mark.invariant(1)
def test_ten_kills_leave_every_record_there_exactly_once(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    mirror = Mirror(kafka, group_protocol, tmp_path, transactional=True)
    went_back = kill_under_load(mirror, 10)
    verdict = mirror.verdict()
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), f"seed {SEED}: {verdict}"
    assert mirror.order_breaks() == []
    assert went_back == []


@pytest.mark.invariant(1)
def test_without_transactions_kills_lose_nothing(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    mirror = Mirror(kafka, group_protocol, tmp_path, transactional=False)
    kill_under_load(mirror, 3)
    verdict = mirror.verdict()
    print(f"{group_protocol}: {verdict}")
    assert verdict.lost == (), f"seed {SEED}: {verdict}"


def test_a_rolling_restart_neither_loses_nor_repeats(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    mirror = Mirror(kafka, group_protocol, tmp_path, transactional=True)
    with ExitStack() as stack:
        mirror.start(stack)
        traffic = stack.enter_context(Traffic(kafka, [mirror.topic], portion=500))
        for number, copy in enumerate(mirror.copies * 2):
            mirror.wait_for_progress()
            assert copy.terminate() == 0
            copy.start()
            copy.wait_for_event("admin_started", count=2 + number // COPIES)
            mirror.wait_until_divided()
        mirror.wait_for_progress()
        traffic.stop()
        mirror.finish()
    verdict = mirror.verdict()
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
    assert mirror.order_breaks() == []
    refused = [event for copy in mirror.copies for event in copy.events("lane_not_drained")]
    assert refused == [], "a drain ends with its transaction committed"


@pytest.mark.invariant(6)
def test_a_thawed_zombie_commits_nothing(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    mirror = Mirror(kafka, group_protocol, tmp_path, transactional=True)
    zombie = mirror.copies[0]
    with ExitStack() as stack:
        mirror.start(stack)
        traffic = stack.enter_context(Traffic(kafka, [mirror.topic], portion=500, pause=0.2))
        for _ in range(3):
            wait_until_committed_beyond(kafka, mirror.group, committed_positions(kafka, mirror.group, [mirror.topic]))
            zombie.send(signal.SIGSTOP)
            mirror.wait_for_progress()  # the other copy has everything by now
            zombie.send(signal.SIGCONT)
            mirror.wait_until_divided()
        mirror.wait_for_progress()
        traffic.stop()
        mirror.finish()
    verdict = mirror.verdict()
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
    assert mirror.order_breaks() == []
    assert zombie.events("lanes_lost")
