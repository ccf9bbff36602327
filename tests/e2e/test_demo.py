"""`connector demo`: it counts honestly, cleans up after itself, and touches nothing that is not its own."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from connector.api.errors import ConfigError, FatalError
from connector.cli.demo.copies import Fleet
from connector.cli.demo.folder import MARKER, claim
from connector.cli.demo.tally import PartitionTally, tally
from connector.cli.demo.traffic import Traffic
from connector.testing.embedded import EmbeddedBroker
from tests.support.process import end_process, wait_until

if TYPE_CHECKING:
    from pathlib import Path

_SETTLE_SECONDS = 60


def start_demo(directory: Path, records: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "connector", "demo", "--directory", str(directory), "--records", str(records)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_for_end(demo: subprocess.Popen[bytes]) -> str:
    try:
        output, _ = demo.communicate(timeout=90)
    finally:
        end_process(demo)
    return output.decode()


def log_events(directory: Path, copy: int) -> list[str]:
    log = directory / f"copy-{copy}.log"
    return re.findall(r'"event": "(\w+)"', log.read_text()) if log.exists() else []


@pytest.mark.embedded
def test_the_demo_writes_every_record_once_through_live_rebalances(tmp_path: Path) -> None:
    demo = start_demo(tmp_path / "demo", 20_000)
    output = wait_for_end(demo)
    assert demo.returncode == 0, output
    assert re.search(r"delivered +20,000 of 20,000 records\nlost +0\nduplicated +0\nlag +0 ", output)
    assert re.search(r"copy 3 got +\w+\[", output)
    assert re.search(r"copy 1 stopped +.* drained, committed, gone in \d+ ms", output)
    assert re.search(r"copy [12] gave up +.* drained, committed in [\d,]+ ms", output)
    database = sqlite3.connect(tmp_path / "demo" / "records.db")
    columns = 'count(*), count(DISTINCT topic || partition || "-" || "offset"), count(json_extract(value, "$.order"))'
    assert database.execute(f"SELECT {columns} FROM records").fetchall() == [(20_000, 20_000, 20_000)]
    database.close()
    assert [log_events(tmp_path / "demo", copy)[-1] for copy in (1, 2, 3)] == ["run_ended"] * 3


@pytest.mark.embedded
def test_an_interrupted_demo_ends_its_copies_first(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, 200_000)
    try:
        wait_until(
            lambda: all("sink_opened" in log_events(tmp_path, copy) for copy in (1, 2)),
            timeout=_SETTLE_SECONDS,
            what="two copies run",
        )
        demo.send_signal(signal.SIGINT)
    finally:
        output = wait_for_end(demo)
    assert demo.returncode == 130, output
    assert "interrupted" in output
    assert "Traceback" not in output
    assert [log_events(tmp_path, copy)[-1] for copy in (1, 2)] == ["run_ended"] * 2


def test_a_copy_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTOR_")}
    with Fleet(lambda number: tmp_path / f"copy-{number}.log", environment) as fleet:
        copy = fleet.start_copy()  # without any setting
        copy.wait(_SETTLE_SECONDS)
        with pytest.raises(FatalError, match=r"(?s)copy 1 ended with exit code 2 although .*CONNECTOR_TOPICS"):
            fleet.look()


@pytest.mark.embedded
def test_production_halts_at_its_mark() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", 1)
        broker.create_topic("payments", 1)
        with Traffic(broker.bootstrap_servers, records=40, records_per_second=1e6) as traffic:
            traffic.allow(0.5)
            wait_until(lambda: traffic.acknowledged == 20, timeout=_SETTLE_SECONDS, what="half is produced")
            assert not traffic.is_done
            traffic.allow(1.0)
            wait_until(lambda: traffic.is_done, timeout=_SETTLE_SECONDS, what="all is produced")
            traffic.check()


def test_a_repeat_and_a_gap_do_not_cancel_each_other_out(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "records.db")
    database.execute('CREATE TABLE records (topic, partition, "offset")')
    offsets = [("orders", 0, 0), ("orders", 0, 0), ("orders", 0, 2), ("orders", 1, 0)]
    with database:
        database.executemany("INSERT INTO records VALUES (?, ?, ?)", offsets)
    database.close()
    first, second, unwritten = tally(
        tmp_path / "records.db", {("orders", 0): (3, 3), ("orders", 1): (1, 0), ("payments", 0): (2, 0)}
    )
    assert first == PartitionTally("orders", 0, end=3, committed=3, rows=3, distinct=2)
    assert (first.lost, first.duplicated, first.lag) == (1, 1, 0)
    assert (second.lost, second.duplicated, second.lag) == (0, 0, 1)
    assert (unwritten.lost, unwritten.duplicated, unwritten.lag) == (2, 0, 2)


def test_a_folder_that_the_demo_did_not_make_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "records.db"
    mine.write_text("precious")
    with pytest.raises(ConfigError, match="not made by the demo"), claim(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["records.db"]


def test_a_demo_replaces_what_an_earlier_one_left_and_nothing_else(tmp_path: Path) -> None:
    with claim(tmp_path / "demo") as folder:
        folder.database.write_text("old")
        folder.log(3).write_text("old")
        (folder.path / "notes.txt").write_text("mine")
    with claim(tmp_path / "demo") as folder:
        assert {path.name for path in folder.path.iterdir()} == {MARKER, "notes.txt"}


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with claim(tmp_path), pytest.raises(ConfigError, match="Another demo is running"), claim(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_a_problem_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"), claim(tmp_path / "file"):
        pass
