"""Copies are killed while records flow: nothing is lost, and only what was not committed comes again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.connector import ConnectorProcess
from tests.support.group import committed_positions, group_settings
from tests.support.kills import SEED, kill_under_load
from tests.support.oracle import Place, beyond, ends, judge, written_in_order, written_to_files, written_to_table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

ROUNDS = 2  # with two kills each: twelve over the three protocols


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

    went_back = kill_under_load(kafka, topics, group, copies, note, rounds=ROUNDS).went_back
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
    went_back = kill_under_load(
        kafka, topics, group, copies, lambda victim: kills.append(victim.name), rounds=ROUNDS
    ).went_back
    verdict = judge(written_to_table(postgres_dsn), ends(kafka, topics))
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), f"seed {SEED}: {verdict}"
    assert went_back == []
    assert len(kills) == 2 * ROUNDS
