"""A copy is frozen until the group has given its partitions away, and thawed: it does no harm and works again."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.connector import ConnectorProcess
from tests.support.group import (
    committed_positions,
    end_positions,
    group_settings,
    wait_until_committed_beyond,
)
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
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from tests.support.group import Partition
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

GATE = 7  # an advisory lock
# Runs before the statement looks for its row, so whoever waits here holds nothing that the next owner needs.
HOLD_THE_ZOMBIE = f"""
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') = 'zombie' THEN
        PERFORM pg_advisory_xact_lock_shared({GATE});
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER hold BEFORE UPDATE ON connector_positions FOR EACH STATEMENT EXECUTE FUNCTION hold();
"""


def wait_until_both_have_partitions(copies: Sequence[ConnectorProcess]) -> None:
    wait_until(lambda: all(len(held(copy)) == 2 for copy in copies), timeout=60, what="both have two partitions")


def wait_until_it_works_again(kafka: Kafka, group: str, copies: Sequence[ConnectorProcess]) -> None:
    """Wait until both copies have partitions, and the first one's are committed beyond what there was by then."""
    wait_until_both_have_partitions(copies)
    partitions = held(copies[0])
    marks = end_positions(kafka, sorted({topic for topic, _ in partitions}))
    wait_until_committed_beyond(kafka, group, {place: marks[place] for place in partitions})


def continued(places: Sequence[Place], start: int, partitions: Collection[Partition]) -> list[Place]:
    """Return what follows without a gap, in each partition, on the last record before `start`."""
    last = {(topic, partition): offset for topic, partition, offset in places[:start]}
    found = []
    for topic, partition, offset in places[start:]:
        if (topic, partition) in partitions and offset == last.get((topic, partition), -1) + 1:
            last[topic, partition] = offset
            found.append((topic, partition, offset))
    return found


@pytest.mark.invariant(6)
def test_a_thawed_zombie_commits_nothing_it_has_lost_and_works_again(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topics = [kafka.create_topic(partitions=4)]
    group = f"zombie-{topics[0]}"
    settings = {**group_settings(kafka, group_protocol, group, topics), "CONNECTOR_SINK": "file"}
    files = [tmp_path / f"{n}.jsonl" for n in range(2)]
    copies = [
        ConnectorProcess(f"copy-{n}", tmp_path, {**settings, "CONNECTOR_SINK_PATH": str(path)})
        for n, path in enumerate(files)
    ]
    zombie = copies[0]
    with ExitStack() as stack:
        for copy in copies:
            stack.enter_context(copy)
        wait_until_both_have_partitions(copies)
        sampler = stack.enter_context(CommittedSampler(kafka, group, topics))
        traffic = stack.enter_context(Traffic(kafka, topics, portion=200))
        wait_until_committed_beyond(kafka, group, committed_positions(kafka, group, topics))
        partitions = held(zombie)
        zombie.send(signal.SIGSTOP)
        committed = committed_positions(kafka, group, topics)
        at_freeze = len(written_in_order(files[0]))
        marks = end_positions(kafka, topics)
        wait_until_committed_beyond(kafka, group, {place: marks[place] for place in partitions})  # by the other copy
        zombie.send(signal.SIGCONT)
        zombie.wait_for_event("lanes_lost")
        wait_until_it_works_again(kafka, group, copies)
        traffic.stop()
        wait_until_committed(kafka, group, topics)
        codes = [copy.terminate() for copy in copies]
    assert codes == [0, 0]
    assert sampler.went_back == []
    written = written_in_order(files[0])
    # Before it hears that it has lost its partitions it may go on writing, but not commit.
    late = continued(written, at_freeze, partitions)
    allowed = Counter(place for place in [*written[:at_freeze], *late] if place[2] >= committed[place[:2]])
    verdict = judge(written_to_files(files), ends(kafka, topics))
    print(f"{group_protocol}: written uncommitted {len(allowed)}, {len(late)} of it after the thaw, {verdict}")
    assert (verdict.lost, beyond(verdict.repeated, allowed)) == ((), {}), str(verdict)


@pytest.mark.postgres
@pytest.mark.invariant(6)
def test_the_write_of_a_thawed_zombie_is_refused_by_a_sink_with_positions(
    kafka: Kafka, group_protocol: str, postgres_dsn: str, tmp_path: Path
) -> None:
    topics = [kafka.create_topic(partitions=4)]
    group = f"zombie-{topics[0]}"
    settings = {
        **group_settings(kafka, group_protocol, group, topics),
        "CONNECTOR_SINK": "postgres",
        "CONNECTOR_SINK_POSITIONS": "true",
        "CONNECTOR_SINK_MODE": "insert",
        "CONNECTOR_SINK_PRIMARY_KEY": "false",
    }
    names = ("zombie", "other")
    copies = [
        ConnectorProcess(
            name,
            tmp_path,
            {
                **settings,
                "CONNECTOR_SINK_DSN": make_conninfo(
                    postgres_dsn, application_name=name, options="-c lock_timeout=0 -c statement_timeout=0"
                ),
            },
        )
        for name in names
    ]
    zombie = copies[0]
    with ExitStack() as stack:
        for copy in copies:
            stack.enter_context(copy)
        wait_until_both_have_partitions(copies)
        sampler = stack.enter_context(CommittedSampler(kafka, group, topics))
        traffic = stack.enter_context(Traffic(kafka, topics, portion=200))
        wait_until_committed_beyond(kafka, group, committed_positions(kafka, group, topics))
        database = stack.enter_context(psycopg.connect(postgres_dsn, autocommit=True, connect_timeout=10))
        database.execute(HOLD_THE_ZOMBIE)
        partitions = held(zombie)
        database.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        wait_until(lambda: is_held_in_a_write(database), timeout=30, what="a write of the zombie hangs")
        zombie.send(signal.SIGSTOP)
        marks = end_positions(kafka, topics)
        wait_until_committed_beyond(kafka, group, {place: marks[place] for place in partitions})  # by the other copy
        database.execute("SELECT pg_advisory_unlock(%s)", (GATE,))
        zombie.send(signal.SIGCONT)
        refused = zombie.wait_for_event("write_refused")
        wait_until_it_works_again(kafka, group, copies)
        traffic.stop()
        wait_until_committed(kafka, group, topics)
        codes = [copy.terminate() for copy in copies]
    assert codes == [0, 0]
    assert sampler.went_back == []
    assert (refused[0]["topic"], refused[0]["partition"]) in partitions
    verdict = judge(written_to_table(postgres_dsn), ends(kafka, topics))
    print(f"{group_protocol}: refused {len(zombie.events('write_refused'))}, {verdict}")
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)


def is_held_in_a_write(database: psycopg.Connection) -> bool:
    query = (
        "SELECT 1 FROM pg_stat_activity "
        "WHERE application_name = 'zombie' AND wait_event_type = 'Lock' AND query LIKE 'UPDATE%'"
    )
    return database.execute(query).fetchone() is not None
