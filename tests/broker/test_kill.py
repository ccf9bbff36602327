"""Copies are killed while records flow: nothing is lost, and only what was not committed comes again."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.connector import ConnectorProcess
from tests.support.group import committed_positions, group_settings, wait_until_committed_beyond
from tests.support.oracle import (
    CommittedSampler,
    Place,
    beyond,
    ends,
    judge,
    wait_until_committed,
    written_in_order,
    written_to_files,
    written_to_table,
)
from tests.support.process import wait_until
from tests.support.scenario import Traffic, held

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

ROUNDS = 2  # with two kills each: twelve over the three protocols
SEED = random.randrange(2**32)  # in the message of a failure
RANDOM = random.Random(SEED)


def kill_under_load(
    kafka: Kafka,
    topics: Sequence[str],
    group: str,
    copies: Sequence[ConnectorProcess],
    on_kill: Callable[[ConnectorProcess], None],
) -> list[str]:
    """Run the copies, kill two at random moments in each round, start them again, and end them when all is committed.

    Returns:
        The committed positions that were seen to go back.
    """
    moments = threading.Event()  # never set: its wait is the random moment
    with ExitStack() as stack:
        for copy in copies:
            stack.enter_context(copy)
        wait_until(lambda: all(held(copy) for copy in copies), timeout=60, what="every copy has partitions")
        sampler = stack.enter_context(CommittedSampler(kafka, group, topics))
        traffic = stack.enter_context(Traffic(kafka, topics, portion=200))
        for _ in range(ROUNDS):
            wait_until_committed_beyond(kafka, group, committed_positions(kafka, group, topics))
            victims = RANDOM.sample(copies, 2)
            for victim in victims:  # the second dies in the rebalance that the first one's end has begun, or before it
                moments.wait(RANDOM.uniform(0, 1.5))
                victim.kill()
                on_kill(victim)
            for victim in victims:
                victim.start()
        wait_until_committed_beyond(kafka, group, committed_positions(kafka, group, topics))
        traffic.stop()
        wait_until_committed(kafka, group, topics)
        codes = [copy.terminate() for copy in copies]
    assert codes == [0] * len(copies)
    assert sampler.samples > 0
    return sampler.went_back


@pytest.mark.invariant(1)
def test_a_kill_loses_nothing_and_repeats_only_what_was_not_committed(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topics = [kafka.create_topic(partitions=4), kafka.create_topic(partitions=4)]
    group = f"kill-{topics[0]}"
    settings = {**group_settings(kafka, group_protocol, group, topics), "CONNECTOR_SINK": "file"}
    files = {f"copy-{n}": tmp_path / f"{n}.jsonl" for n in range(3)}
    copies = [
        ConnectorProcess(name, tmp_path, {**settings, "CONNECTOR_SINK_PATH": str(path)}) for name, path in files.items()
    ]
    seen = dict.fromkeys(files, 0)  # how many lines the copy's file had when it was started
    uncommitted: list[int] = []
    allowed: Counter[Place] = Counter()

    def note(victim: ConnectorProcess) -> None:
        """Note what the copy had written since its start that was not committed: no more than that may come again."""
        committed = committed_positions(kafka, group, topics)
        written = written_in_order(files[victim.name])
        open_ = [
            (topic, partition, offset)
            for topic, partition, offset in written[seen[victim.name] :]
            if offset >= committed[topic, partition]
        ]
        seen[victim.name] = len(written)
        uncommitted.append(len(open_))
        allowed.update(open_)

    went_back = kill_under_load(kafka, topics, group, copies, note)
    verdict = judge(written_to_files(files.values()), ends(kafka, topics))
    print(f"written and not committed at each kill: {uncommitted}, {verdict}, seed {SEED}")
    assert (verdict.lost, beyond(verdict.repeated, allowed)) == ((), {}), f"seed {SEED}: {verdict}"
    assert went_back == []


@pytest.mark.postgres
@pytest.mark.invariant(1)
def test_a_kill_neither_loses_nor_repeats_with_positions_in_the_sink(
    kafka: Kafka, group_protocol: str, postgres_dsn: str, tmp_path: Path
) -> None:
    topics = [kafka.create_topic(partitions=4), kafka.create_topic(partitions=4)]
    group = f"kill-{topics[0]}"
    settings = {
        **group_settings(kafka, group_protocol, group, topics),
        "CONNECTOR_SINK": "postgres",
        "CONNECTOR_SINK_DSN": postgres_dsn,
        "CONNECTOR_SINK_POSITIONS": "true",
        "CONNECTOR_SINK_MODE": "insert",
        "CONNECTOR_SINK_PRIMARY_KEY": "false",
    }
    copies = [ConnectorProcess(f"copy-{n}", tmp_path, settings) for n in range(3)]
    kills: list[str] = []
    went_back = kill_under_load(kafka, topics, group, copies, lambda victim: kills.append(victim.name))
    verdict = judge(written_to_table(postgres_dsn), ends(kafka, topics))
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), f"seed {SEED}: {verdict}"
    assert went_back == []
    assert len(kills) == 2 * ROUNDS
