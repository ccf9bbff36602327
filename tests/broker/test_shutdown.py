"""The end of a process: by a signal under load, with a sink that hangs, with a broker that is gone."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.connector import ConnectorProcess
from tests.support.group import committed_positions, group_settings, wait_until_committed_beyond
from tests.support.jvm import start_jvm_broker
from tests.support.kafka import GROUP_PROTOCOLS, Kafka
from tests.support.oracle import (
    ends,
    judge,
    wait_until_committed,
    written_in_order,
    written_to_files,
    written_to_table,
)
from tests.support.process import tail, wait_until
from tests.support.scenario import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

SHUTDOWN_SECONDS = 5.0
LATE_SECONDS = 3.0  # what a busy machine may add to that


def end_by(copy: ConnectorProcess, number: signal.Signals) -> tuple[int, float]:
    """Send a signal; return the exit code and the seconds that the end took."""
    started = time.monotonic()
    copy.send(number)
    return copy.wait(), time.monotonic() - started


@pytest.mark.invariant(1)
def test_a_signal_under_load_ends_with_everything_written_committed_once(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topics = [kafka.create_topic(partitions=4)]
    group = f"signal-{topics[0]}"
    path = tmp_path / "out.jsonl"
    settings = {
        **group_settings(kafka, group_protocol, group, topics),
        "CONNECTOR_SINK": "file",
        "CONNECTOR_SINK_PATH": str(path),
        "CONNECTOR_SHUTDOWN_TIMEOUT": "10s",
    }
    copy = ConnectorProcess("copy", tmp_path, settings)
    with ExitStack() as stack:
        traffic = stack.enter_context(Traffic(kafka, topics, portion=1000))
        stack.callback(copy.close)
        for number in (signal.SIGTERM, signal.SIGINT):
            copy.start()
            wait_until_committed_beyond(kafka, group, committed_positions(kafka, group, topics))
            code, seconds = end_by(copy, number)
            print(f"{group_protocol}: {number.name} took {seconds:.2f}s")
            assert code == 0, tail(copy.log)
            assert seconds < 10
            assert path.read_bytes().endswith(b"\n")
            verdict = judge(written_to_files([path]), committed_ends(kafka, group, topics[0]))
            assert (verdict.lost, dict(verdict.repeated)) == ((), {}), f"{number.name}: {verdict}"
        traffic.stop()
        copy.start()
        wait_until_committed(kafka, group, topics)
        assert copy.terminate() == 0
    verdict = judge(written_to_files([path]), ends(kafka, topics))
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)


def committed_ends(kafka: Kafka, group: str, topic: str) -> dict[str, list[int]]:
    """Return the group's position in each partition of a topic, as `judge` takes it."""
    positions = committed_positions(kafka, group, [topic])
    return {topic: [positions[topic, partition] for partition in range(len(positions))]}


class HeldTable:
    """A copy that writes into a table, and the test's lock on that table, which lets its writes hang."""

    def __init__(self, kafka: Kafka, dsn: str, directory: Path) -> None:
        self.kafka = kafka
        self.dsn = dsn
        self.topics = [kafka.create_topic(partitions=4)]
        self.group = f"held-{self.topics[0]}"
        self.copy = ConnectorProcess(
            "copy",
            directory,
            {
                **group_settings(kafka, "consumer", self.group, self.topics),
                "CONNECTOR_SINK": "postgres",
                "CONNECTOR_SINK_DSN": make_conninfo(
                    dsn, application_name="copy", options="-c lock_timeout=0 -c statement_timeout=0"
                ),
                "CONNECTOR_SINK_MODE": "insert",
                "CONNECTOR_SINK_PRIMARY_KEY": "false",
                "CONNECTOR_SHUTDOWN_TIMEOUT": f"{SHUTDOWN_SECONDS:g}s",
            },
        )
        self._database = psycopg.connect(dsn, connect_timeout=10)

    def start(self) -> None:
        """Start the copy, and let it write something."""
        self.copy.start()
        self.kafka.produce(self.topics[0], 4000)
        wait_until_committed(self.kafka, self.group, self.topics)

    def hold(self) -> None:
        """Let the writes hang from now on, and wait until one does."""
        self._database.execute("LOCK TABLE records IN ACCESS EXCLUSIVE MODE")
        self.kafka.produce(self.topics[0], 4000)
        query = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'copy' AND wait_event_type = 'Lock'"
        with psycopg.connect(self.dsn, autocommit=True, connect_timeout=10) as watch:
            wait_until(lambda: watch.execute(query).fetchone() is not None, timeout=30, what="a write hangs")

    def release(self) -> None:
        """Let the writes go on."""
        self._database.rollback()

    def finish(self) -> None:
        """Let the copy, started again, write what is left, and see that each record is there once."""
        self.release()
        self.copy.start()
        wait_until_committed(self.kafka, self.group, self.topics)
        assert self.copy.terminate() == 0
        self.judge()

    def judge(self) -> None:
        """See that each record is there once."""
        verdict = judge(written_to_table(self.dsn), ends(self.kafka, self.topics))
        assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)

    def close(self) -> None:
        """End everything."""
        self.copy.close()
        self._database.close()


@pytest.fixture
def held_table(kafka: Kafka, postgres_dsn: str, tmp_path: Path) -> Iterator[HeldTable]:
    held = HeldTable(kafka, postgres_dsn, tmp_path)
    try:
        held.start()
        held.hold()
        yield held
    finally:
        held.close()


@pytest.mark.postgres
def test_a_second_signal_changes_nothing(held_table: HeldTable) -> None:
    copy = held_table.copy
    copy.send(signal.SIGTERM)
    copy.wait_for_event("stop_requested")
    copy.send(signal.SIGTERM)
    wait_until(lambda: copy.status()["state"] == "draining", timeout=10, what="the status tells of the drain")
    held_table.release()
    assert copy.wait() == 0, tail(copy.log)
    held_table.judge()


@pytest.mark.postgres
def test_a_third_signal_ends_the_process_at_once(held_table: HeldTable) -> None:
    copy = held_table.copy
    copy.send(signal.SIGTERM)
    copy.wait_for_event("stop_requested")
    started = time.monotonic()
    copy.send(signal.SIGINT)  # another number: two pending signals with the same one are one
    copy.send(signal.SIGTERM)
    assert copy.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - started < SHUTDOWN_SECONDS / 2
    held_table.finish()


@pytest.mark.postgres
def test_a_sink_that_hangs_ends_with_code_6_by_the_deadline_and_loses_nothing(held_table: HeldTable) -> None:
    code, seconds = end_by(held_table.copy, signal.SIGTERM)
    print(f"SIGTERM with a hanging sink took {seconds:.2f}s")
    assert code == 6, tail(held_table.copy.log)
    assert seconds < SHUTDOWN_SECONDS + LATE_SECONDS
    assert held_table.copy.events("run_ended")[-1]["uncommitted_partitions"] > 0
    held_table.finish()


def test_an_end_without_a_broker_has_code_6_by_the_deadline(tmp_path: Path) -> None:
    with start_jvm_broker() as broker, ExitStack() as stack:
        kafka = Kafka(broker.bootstrap_servers)
        topic = kafka.create_topic(partitions=4)
        files = [tmp_path / f"{group_protocol}.jsonl" for group_protocol in GROUP_PROTOCOLS]
        copies = [
            ConnectorProcess(
                group_protocol,
                tmp_path,
                {
                    **group_settings(kafka, group_protocol, group_protocol, [topic]),
                    "CONNECTOR_SINK": "file",
                    "CONNECTOR_SINK_PATH": str(file),
                    "CONNECTOR_COMMIT_INTERVAL": "10m",  # so that there is something to commit at the end
                    "CONNECTOR_SHUTDOWN_TIMEOUT": f"{SHUTDOWN_SECONDS:g}s",
                },
            )
            for group_protocol, file in zip(GROUP_PROTOCOLS, files, strict=True)
        ]
        for copy in copies:
            stack.enter_context(copy)

        def produce(total: int) -> None:
            kafka.produce(topic, 4000)
            wait_until(
                lambda: all(len(set(written_in_order(file))) == total for file in files),
                timeout=60,
                what=f"every copy has written {total} records",
            )

        def end_all() -> None:
            started = time.monotonic()
            for copy in copies:
                copy.send(signal.SIGTERM)
            for copy in copies:
                code, seconds = copy.wait(), time.monotonic() - started
                print(f"{copy.name}: code {code} after {seconds:.2f}s")
                assert code == 6, tail(copy.log)
                assert seconds < SHUTDOWN_SECONDS + LATE_SECONDS, tail(copy.log)

        produce(4000)
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        end_all()
        broker.process.send_signal(signal.SIGCONT)
        for copy in copies:
            copy.start()
        produce(8000)
        broker.kill()
        end_all()
        for file in files:
            verdict = judge(written_to_files([file]), {topic: [2000] * 4})
            assert verdict.lost == ()
            # Of what was read before the broker froze, which was not committed.
            assert all(count == 1 and place[2] < 1000 for place, count in verdict.repeated.items()), str(verdict)
