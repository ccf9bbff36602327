"""Every built-in sink keeps the contract that a plugin's sink is held to."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from connector import Secret, Settings
from connector.testing import SinkContract
from sinks.file import FileSettings, FileSink
from sinks.http import HttpSettings, HttpSink
from sinks.null import NullSink
from sinks.postgres import PostgresSettings, PostgresSink
from sinks.sqlite import SqliteSettings, SqliteSink
from sinks.stdout import StdoutSettings, StdoutSink
from tests.support.receiver import Receiver, answer
from tests.unit.sinks.sink_batches import restore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.receiver import Handler, Received

_COLUMNS = 'topic, partition, "offset", value, key, headers'
_JSON_COLUMNS = (
    "topic:@topic,partition:@partition,offset:@offset,where:partition,value:@value,key:@key,headers:@headers"
)


def read_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row whose headers are JSON text."""
    *fields, headers = row
    pairs = json.loads(headers) if isinstance(headers, str) else headers
    return (*fields, [(name, restore(content)) for name, content in pairs])


def read_line(line: bytes) -> tuple[Any, ...]:
    """A record of the sinks that write lines; a decoded value stays out of the comparison."""
    record = json.loads(line)
    row = record["topic"], record["partition"], record["offset"]
    value = record["value"]
    if not (value is None or isinstance(value, str) or (isinstance(value, dict) and "base64" in value)):
        return row
    headers = [(name, restore(content)) for name, content in record["headers"]]
    return (*row, restore(value), restore(record["key"]), headers)


class TestNull(SinkContract[Settings]):
    """It keeps nothing."""

    sink_type = NullSink

    def make_settings(self, tmp_path: Path) -> Settings:
        return Settings()

    def read_back(self, settings: Settings) -> None:
        return None


class TestStdout(SinkContract[StdoutSettings]):
    """Standard output is a file here."""

    sink_type = StdoutSink

    @pytest.fixture(autouse=True)
    def _redirected(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self._path = tmp_path / "output"
        self._monkeypatch = monkeypatch
        with self._path.open("a") as self._output:
            yield

    def make_settings(self, tmp_path: Path) -> StdoutSettings:
        self._monkeypatch.setattr(sys, "stdout", self._output)  # here, since pytest sets its own before each call
        return StdoutSettings()

    def read_back(self, settings: StdoutSettings) -> list[tuple[Any, ...]]:
        return [read_line(line) for line in self._path.read_bytes().splitlines()]


class TestFile(SinkContract[FileSettings]):
    """One live file."""

    sink_type = FileSink

    def make_settings(self, tmp_path: Path) -> FileSettings:
        return FileSettings(path=f"{tmp_path}/records.jsonl")

    def read_back(self, settings: FileSettings) -> list[tuple[Any, ...]]:
        return [read_line(line) for line in Path(settings.path).read_bytes().splitlines()]


class TestRotatedFile(TestFile):
    """A file for each partition, finished after a few records."""

    def make_settings(self, tmp_path: Path) -> FileSettings:
        return FileSettings(path=f"{tmp_path}/{{partition}}.jsonl", rotate_bytes=500)

    def read_back(self, settings: FileSettings) -> list[tuple[Any, ...]]:
        files = sorted(Path(settings.path).parent.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        return [read_line(line) for path in files for line in path.read_bytes().splitlines()]


class TestHttp(SinkContract[HttpSettings]):
    """A server that stores what it is sent."""

    sink_type = HttpSink
    options: dict[str, Any] = {}  # noqa: RUF012 - read only

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with Receiver() as self._receiver:
            yield

    def make_settings(self, tmp_path: Path) -> HttpSettings:
        return HttpSettings.model_validate({"url": self._receiver.url, **self.options})

    def read_back(self, settings: HttpSettings) -> list[tuple[Any, ...]]:
        return [read_line(json.dumps(record).encode()) for record in self._receiver.stored]

    @contextlib.contextmanager
    def outage(self, settings: HttpSettings) -> Iterator[None]:
        self._receiver.behave = answer(503)
        yield
        self._receiver.behave = self._receiver.store


class TestHttpThatRefuses(TestHttp):
    """A server that finds the whole of a request bad for one record in it."""

    bad_value = b"bad"
    options = {"body": "json", "compression": "gzip"}  # noqa: RUF012 - read only

    @pytest.fixture(autouse=True)
    def _refusing(self, _server: None) -> None:
        self._receiver.behave = self._take

    def _take(self, handler: Handler, received: Received) -> None:
        if any(record["value"] == "bad" for record in received.records):
            handler.answer(422)
        else:
            self._receiver.store(handler, received)


class TestHttpWithResults(TestHttpThatRefuses):
    """A server that stores the others, and says which one it has not."""

    options = {"results": True}  # noqa: RUF012 - read only

    def _take(self, handler: Handler, received: Received) -> None:
        values = [record["value"] for record in received.records]
        self._receiver.stored += [record for record in received.records if record["value"] != "bad"]
        errors = [{"index": index, "error": "bad"} for index, value in enumerate(values) if value == "bad"]
        handler.answer(200, json.dumps({"errors": errors}).encode())


class TestSqlite(SinkContract[SqliteSettings]):
    """As it is by default: a repeat replaces its own row."""

    sink_type = SqliteSink

    def make_settings(self, tmp_path: Path) -> SqliteSettings:
        return SqliteSettings(path=f"{tmp_path}/records.db")

    def read_back(self, settings: SqliteSettings) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(settings.path)) as database:
            return [read_row(row) for row in database.execute(f"SELECT {_COLUMNS} FROM records ORDER BY rowid")]

    @contextlib.contextmanager
    def outage(self, settings: SqliteSettings) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(settings.path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield


class TestSqliteWithoutKey(TestSqlite):
    """Where a repeat leaves a row of its own."""

    def make_settings(self, tmp_path: Path) -> SqliteSettings:
        return SqliteSettings(path=f"{tmp_path}/records.db", mode="insert", primary_key=False)


class TestSqliteWithJson(TestSqlite):
    """Columns out of the value, so that there are bad values."""

    bad_value = b"no json"

    def make_settings(self, tmp_path: Path) -> SqliteSettings:
        return SqliteSettings(path=f"{tmp_path}/records.db", columns=_JSON_COLUMNS)


class TestSqliteByKey(TestSqlite):
    """Rows by the keys of records, so that tombstones can delete."""

    def make_settings(self, tmp_path: Path) -> SqliteSettings:
        return SqliteSettings(path=f"{tmp_path}/records.db", key_columns="key")


@pytest.mark.postgres
class TestPostgres(SinkContract[PostgresSettings]):
    """As it is by default."""

    sink_type = PostgresSink
    options: dict[str, Any] = {}  # noqa: RUF012 - read only
    order = "ctid"

    @pytest.fixture(autouse=True)
    def _database(self, postgres_dsn: str) -> None:
        self._dsn = postgres_dsn

    def make_settings(self, tmp_path: Path) -> PostgresSettings:
        return PostgresSettings(dsn=Secret(f"{self._dsn} options='-c lock_timeout=200ms'"), **self.options)

    def read_back(self, settings: PostgresSettings) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._dsn) as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM records ORDER BY {self.order}")
            return [read_row(row) for row in rows]

    @contextlib.contextmanager
    def outage(self, settings: PostgresSettings) -> Iterator[None]:
        with psycopg.connect(self._dsn) as other:
            other.execute("LOCK TABLE records")
            yield


class TestPostgresWithoutKey(TestPostgres):
    """Where a repeat leaves a row of its own."""

    options = {"mode": "insert", "primary_key": False}  # noqa: RUF012 - read only


class TestPostgresByKey(TestPostgres):
    """Rows by the keys of records, so that tombstones can delete."""

    options = {"mode": "upsert", "key_columns": "key"}  # noqa: RUF012 - read only
    order = '"offset"'  # a batch is folded by key, and stored in no order


class TestPostgresByKeyWithPositions(TestPostgres):
    """Both in one transaction."""

    options = {**TestPostgresByKey.options, "positions": True}  # noqa: RUF012 - read only
    order = TestPostgresByKey.order


class TestPostgresWithPositions(TestPostgres):
    """Exactly once, and no key that would hide a repeat."""

    options = {"positions": True, "mode": "insert", "primary_key": False}  # noqa: RUF012 - read only
