"""The sink `sqlite`: rows are durable, whole batches or nothing, and a replay replaces its own."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from connector import ConfigError, PoisonError, TransientError
from sinks.sqlite import SqliteSettings, SqliteSink
from tests.unit.sinks.sink_batches import CONTEXT, NASTY, TIMESTAMP_MS, Record, make_batch, restore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "records.db"


@pytest.fixture
def make_sink(path: Path) -> Iterator[Callable[..., SqliteSink]]:
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> SqliteSink:
            sink = SqliteSink(SqliteSettings(path=str(path), **settings), CONTEXT)
            stack.callback(sink.close)
            sink.open()
            return sink

        yield make


def rows(path: Path, query: str = "SELECT value FROM records ORDER BY offset") -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


# What a row is


def test_a_row_has_the_documented_columns(make_sink: Callable[..., SqliteSink], path: Path) -> None:
    make_sink().write(make_batch(Record(b"v", b"k", [("h", b"1"), ("h", b"\xff"), ("h", None)])))
    assert rows(path, "SELECT topic, partition, offset, timestamp, key, value, headers FROM records") == [
        (
            "orders",
            3,
            10,
            "2025-12-31T23:59:59.123Z",
            b"k",
            b"v",
            '[["h","1"],["h",{"base64":"/w=="}],["h",null]]',
        )
    ]


@pytest.mark.invariant(12)
def test_key_value_and_headers_come_back_byte_for_byte(make_sink: Callable[..., SqliteSink], path: Path) -> None:
    make_sink().write(make_batch(*NASTY))
    read = rows(path, "SELECT key, value, timestamp IS NULL, headers FROM records ORDER BY offset")
    for record, (key, value, has_no_timestamp, headers) in zip(NASTY, read, strict=True):
        assert (key, value, has_no_timestamp) == (record.key, record.value, record.timestamp_ms is None)
        assert [(name, restore(form)) for name, form in json.loads(headers)] == (record.headers or [])


def test_decoded_values_keep_their_type_and_nested_ones_are_json_text(
    make_sink: Callable[..., SqliteSink], path: Path
) -> None:
    decoded = [{"a": 1}, [1], "text", 1, 1.5, None, b"\xff"]
    make_sink().write(make_batch(*[b""] * len(decoded), decoded={"value": decoded}))
    assert [value for (value,) in rows(path)] == ['{"a":1}', "[1]", "text", 1, 1.5, None, b"\xff"]


def test_a_table_for_each_topic_whatever_its_name(make_sink: Callable[..., SqliteSink], path: Path) -> None:
    sink = make_sink(table='t "{topic}')
    sink.write(make_batch(b"1", topic="a.b-c"))
    sink.write(make_batch(b"2", topic="a_b-c"))
    assert rows(path, 'SELECT value FROM "t ""a.b-c"') == [(b"1",)]
    assert rows(path, 'SELECT value FROM "t ""a_b-c"') == [(b"2",)]


def test_a_mapping_makes_rows_of_json_fields_and_the_last_record_of_a_key_stands(
    make_sink: Callable[..., SqliteSink], path: Path
) -> None:
    sink = make_sink(columns="id:id,name:user.name,tags:tags,at:@offset", key_columns="id")
    sink.write(
        make_batch(
            b'{"id": 1, "user": {"name": "a"}}',
            b'{"id": 2, "tags": ["x"]}',
            b'{"id": 1, "user": {"name": "b"}}',
        )
    )
    assert rows(path, "SELECT id, name, tags, at FROM records ORDER BY id") == [
        (1, "b", None, 12),
        (2, None, '["x"]', 11),
    ]


def test_a_large_record_is_written_whole(make_sink: Callable[..., SqliteSink], path: Path) -> None:
    make_sink().write(make_batch(b"x" * 20_000_000))
    assert rows(path, "SELECT length(value) FROM records") == [(20_000_000,)]


# Repeats


@pytest.mark.parametrize(("mode", "kept"), [("upsert", b"new"), ("ignore", b"old")])
def test_a_repeated_record_is_one_row(make_sink: Callable[..., SqliteSink], path: Path, mode: str, kept: bytes) -> None:
    sink = make_sink(mode=mode)
    sink.write(make_batch(b"old"))
    sink.write(make_batch(b"new"))
    assert rows(path) == [(kept,)]


def test_without_a_key_each_write_leaves_its_row_so_that_repeats_can_be_counted(
    make_sink: Callable[..., SqliteSink], path: Path
) -> None:
    sink = make_sink(mode="insert", primary_key=False)
    sink.write(make_batch(b"a", b"b"))
    sink.write(make_batch(b"b", offset=11))
    assert rows(path, "SELECT offset, count(*) FROM records GROUP BY offset") == [(10, 1), (11, 2)]


# Errors: nothing of a failed batch stays


@pytest.mark.parametrize(
    ("settings", "bad"),
    [
        ({"mode": "insert"}, Record(b"again")),
        ({"columns": "id:id", "key_columns": "id"}, Record(b'{"id": 18446744073709551615}')),
        ({"columns": "id:id", "key_columns": "id"}, Record(b'{"id": null}')),
        ({}, Record(timestamp_ms=TIMESTAMP_MS * 1_000_000)),
    ],
)
def test_a_record_that_cannot_be_stored_is_poison_and_names_itself(
    make_sink: Callable[..., SqliteSink], path: Path, settings: dict[str, str], bad: Record
) -> None:
    sink = make_sink(**settings)
    sink.write(make_batch(b'{"id": 1}', offset=11))
    with pytest.raises(PoisonError, match=r"orders\[3\]@11"):
        sink.write(make_batch(bad, offset=11))
    with pytest.raises(PoisonError, match=r"orders\[3\]@1[01]"):
        sink.write(make_batch(Record(b'{"id": 2}'), bad))
    assert rows(path, "SELECT count(*) FROM records") == [(1,)]


def test_a_locked_database_is_transient_and_the_retry_succeeds(
    make_sink: Callable[..., SqliteSink], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.sqlite._BUSY_SECONDS", 0.01)
    sink = make_sink()
    sink.write(make_batch(b"1"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TransientError, match="locked"):
            sink.write(make_batch(b"2", offset=11))
        other.execute("ROLLBACK")
    sink.write(make_batch(b"2", offset=11))
    assert rows(path) == [(b"1",), (b"2",)]


def test_a_full_disk_is_transient_and_the_retry_succeeds(make_sink: Callable[..., SqliteSink], path: Path) -> None:
    sink = make_sink()
    sink.write(make_batch(b"1"))
    assert sink._database is not None
    sink._database.execute("PRAGMA max_page_count = 1")  # of this connection: SQLITE_FULL, as on a full disk
    batch = make_batch(b"2" * 100_000, offset=11)
    with pytest.raises(TransientError, match="full"):
        sink.write(batch)
    assert rows(path) == [(b"1",)]
    sink.write(batch)
    assert rows(path, "SELECT count(*) FROM records") == [(2,)]


def test_a_path_that_is_no_database_is_a_configuration_error(tmp_path: Path) -> None:
    sink = SqliteSink(SqliteSettings(path=str(tmp_path)), CONTEXT)
    with pytest.raises(ConfigError, match="CONNECTOR_SINK_PATH"):
        sink.open()
    sink.close()


def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sink = SqliteSink(SqliteSettings(path=str(tmp_path / "file" / "x.db")), CONTEXT)
    with pytest.raises(ConfigError, match="CONNECTOR_SINK_PATH"):
        sink.open()
    sink.close()


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(ValidationError):
        SqliteSettings(path=":memory:")


@pytest.mark.parametrize("table", ["records(topic, partition, offset)", "records(something)"])
def test_a_table_that_does_not_fit_is_a_configuration_error(
    make_sink: Callable[..., SqliteSink], path: Path, table: str
) -> None:
    sink = make_sink()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE {table}")
    with pytest.raises(ConfigError, match="CONNECTOR_SINK_COLUMNS"):
        sink.write(make_batch(b"1"))


# Durable, and several writers at once

_ROOT = Path(__file__).parents[3]
_WRITE_AND_DIE = """
import os, signal, sys
from tests.unit.sinks.sink_batches import CONTEXT, make_batch
from sinks.sqlite import SqliteSettings, SqliteSink
sink = SqliteSink(SqliteSettings(path=sys.argv[1]), CONTEXT)
sink.open()
for number in range(20):
    sink.write(make_batch(b"%d" % number, offset=number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_right_after_the_ack_loses_nothing(path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _WRITE_AND_DIE, str(path)],
        env={"PYTHONPATH": str(_ROOT)},
        check=False,
    )
    assert result.returncode == -signal.SIGKILL
    assert [int(value) for (value,) in rows(path)] == list(range(20))


def test_a_transaction_is_synced_before_write_returns(make_sink: Callable[..., SqliteSink]) -> None:
    sink = make_sink()
    assert sink._database is not None
    assert sink._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert sink._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_several_writers_of_one_new_database_neither_lose_nor_repeat(path: Path) -> None:
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        sink = SqliteSink(SqliteSettings(path=str(path), mode="insert", primary_key=False), CONTEXT)

        def retry(step: Callable[[], None]) -> None:
            for _ in range(1000):
                with contextlib.suppress(TransientError):
                    return step()
            raise AssertionError("busy for ever")

        try:
            retry(sink.open)
            for number in range(10):
                retry(lambda number=number: sink.write(make_batch(b"x", partition=writer, offset=number)))  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001  # told on the main thread
            errors.append(error)
        finally:
            sink.close()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    written = rows(path, "SELECT partition, offset FROM records ORDER BY partition, offset")
    assert written == [(writer, number) for writer in range(4) for number in range(10)]
