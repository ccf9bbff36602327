"""What each built-in sink writes of odd records under each format is what docs/guides/formats.md says (INV-12).

A sink that is new needs a row in the page's last table and a case here: what it wrote, in the page's words. The page's
words are what the destination itself shows, as a JSON text, an SQL literal or a Python literal.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import psycopg
import pyarrow.parquet as pq
import pytest

from connector import PoisonError, Secret, Settings, Sink, SinkContext
from connector.pipeline.decode import Format
from connector.pipeline.screen import Screen
from sinks.file import FileSettings, FileSink
from sinks.http import HttpSettings, HttpSink
from sinks.kafka import KafkaSettings, KafkaSink
from sinks.null import NullSink
from sinks.parquet import ParquetSettings, ParquetSink
from sinks.postgres import PostgresSettings, PostgresSink
from sinks.sqlite import SqliteSettings, SqliteSink
from sinks.stdout import StdoutSettings, StdoutSink
from tests.support.kafka_topics import read_topic
from tests.support.parquet_files import parquet_files
from tests.support.receiver import Receiver
from tests.support.registry import FakeSchemas, framed
from tests.unit.sinks.sink_batches import CONTEXT, Record, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from connector import Batch, ConnectorError
    from tests.support.kafka import Kafka

Cells: TypeAlias = "dict[str, str]"  # by field of the record
Case: TypeAlias = "Callable[[Batch, Path, pytest.FixtureRequest], Sequence[Cells]]"

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guides/formats.md"
FIELDS = ("key", "value", "headers", "timestamp")
KEPT_NOWHERE = dict.fromkeys(FIELDS, "nothing")
UNDECODABLE = b"\xff\xfe"
NORMAL = {
    Format.BYTES: b"v",
    Format.STRING: b"v",
    Format.JSON: b'"v"',
    Format.AVRO: framed(1, b"v"),
    Format.JSON_SCHEMA: framed(2, b"v"),
}


def _write(sink: Sink[Any], batch: Batch) -> None:
    sink.open()
    try:
        sink.write(batch)
    finally:
        sink.close()


def _code(text: str) -> str:
    return f"`{text}`"


def _json_cells(document: bytes) -> Cells:
    record = orjson.loads(document)
    return {field: _code(orjson.dumps(record[field]).decode()) for field in FIELDS}


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def _null(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    _write(NullSink(Settings(), CONTEXT), batch)
    return [KEPT_NOWHERE] * len(batch)


def _stdout(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    with (tmp_path / "output").open("a") as output:
        monkeypatch.setattr(sys, "stdout", output)
        _write(StdoutSink(StdoutSettings(), CONTEXT), batch)
        monkeypatch.undo()
    return [_json_cells(line) for line in _lines(tmp_path / "output")]


def _file(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    _write(FileSink(FileSettings(path=str(tmp_path / "out")), CONTEXT), batch)
    return [_json_cells(line) for line in _lines(tmp_path / "out")]


def _bare_values(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    _write(FileSink(FileSettings(path=str(tmp_path / "out"), format="value"), CONTEXT), batch)
    words = {b"": "an empty line", UNDECODABLE: "the bytes"}
    return [
        {**KEPT_NOWHERE, "value": words.get(line, line.decode(errors="replace"))} for line in _lines(tmp_path / "out")
    ]


def _http(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    with Receiver() as receiver:
        _write(HttpSink(HttpSettings(url=receiver.url, body="json"), CONTEXT), batch)
        return [_json_cells(orjson.dumps(record)) for record in receiver.stored]


def _http_values(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    cells = []
    with Receiver() as receiver:
        for index in range(len(batch)):
            try:
                _write(HttpSink(HttpSettings(url=receiver.url, format="value"), CONTEXT), batch.slice(index, index + 1))
                value = _code(receiver.received[-1].body.decode().rstrip("\n"))
            except PoisonError:
                value = "poison"
            cells.append({**KEPT_NOWHERE, "value": value})
    return cells


def _sqlite(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    path = str(tmp_path / "records.db")
    _write(SqliteSink(SqliteSettings(path=path), CONTEXT), batch)
    literals = ", ".join(f'quote("{field}")' for field in FIELDS)
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(f"SELECT {literals} FROM records ORDER BY offset").fetchall()
    return [dict(zip(FIELDS, map(_code, row), strict=True)) for row in rows]


def _postgres(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    dsn = request.getfixturevalue("postgres_dsn")
    _write(PostgresSink(PostgresSettings(dsn=Secret(dsn)), CONTEXT), batch)
    literals = ", ".join(f"coalesce('''' || \"{field}\"::text || '''', 'NULL')" for field in FIELDS)
    with psycopg.connect(dsn) as database:
        rows = database.execute(f'SELECT {literals} FROM records ORDER BY "offset"').fetchall()
    return [dict(zip(FIELDS, map(_code, row), strict=True)) for row in rows]


def _kafka(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    kafka: Kafka = request.getfixturevalue("kafka")
    topic = kafka.create_topic()
    context = SinkContext("group", connection={"bootstrap.servers": kafka.bootstrap_servers})
    _write(KafkaSink(KafkaSettings(topic=topic), context), batch)
    return [
        {
            "key": _code(repr(record.key)),
            "value": _code(repr(record.value)),
            "headers": _code(repr(record.headers)),
            "timestamp": _code(repr(record.timestamp[1])),
        }
        for record in read_topic(kafka, topic)
    ]


def _parquet(batch: Batch, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[Cells]:
    sink = ParquetSink(ParquetSettings(path=str(tmp_path), layout=""), CONTEXT)
    answers: SimpleQueue[ConnectorError | None] = SimpleQueue()
    sink.open()
    try:
        sink.submit(batch, answers.put)
        sink.flush(batch.metadata.lane)
        assert answers.get(timeout=30) is None
    finally:
        sink.close()
    (path,) = parquet_files(tmp_path)
    rows = pq.ParquetFile(path).read().to_pylist()
    for row in rows:
        row["headers"] = [(header["name"], header["value"]) for header in row["headers"]]
    return [{field: _code(repr(row[field])) for field in FIELDS} for row in rows]


CASES: dict[str, Case] = {
    "null": _null,
    "stdout": _stdout,
    "file": _file,
    "file, `format=value`": _bare_values,
    "http": _http,
    "http, `format=value`": _http_values,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "kafka": _kafka,
    "parquet": _parquet,
}
SERVERS = {"postgres": pytest.mark.postgres, "kafka": pytest.mark.kafka}


def _table(first: str) -> dict[str, list[str]]:
    """Return the cells of the page's table whose first row begins so, by their row's name."""
    lines = PAGE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows: dict[str, list[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
        rows[re.sub(r"^`([\w-]+)`", r"\1", name)] = cells
    return rows


def _screened(format_: Format, records: Sequence[Record]) -> tuple[Batch, list[int]]:
    """Return what reaches the sink of such records, and the indexes of those that are poison."""
    screened = Screen(format_, format_, schemas=FakeSchemas()).look(make_batch(*records))
    assert {stage for stage, _ in screened.poison.values()} <= {"decode"}
    return screened.rest(), sorted(screened.poison)


def test_every_built_in_sink_has_a_row_and_a_case() -> None:
    built_in = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["connector.sinks"])
    assert {name.partition(",")[0] for name in CASES} == built_in, "CASES of this test"
    assert set(_table("sink")) == set(CASES), "the last table of docs/guides/formats.md"


@pytest.mark.parametrize("format_", list(Format), ids=lambda each: each.value)
def test_a_format_makes_of_null_empty_and_undecodable_what_its_row_says(format_: Format) -> None:
    records = [Record(entry, NORMAL[format_]) for entry in (None, b"", UNDECODABLE)]
    rest, poison = _screened(format_, records)
    values = iter(rest.column("value"))
    words = {repr(None): "null", repr(b""): "zero bytes", repr(""): "empty text", repr(UNDECODABLE): "the bytes"}
    cells = ["poison" if index in poison else words[repr(next(values))] for index in range(len(records))]
    assert _table("format")[format_.value][1:4] == cells


@pytest.mark.invariant(12)
@pytest.mark.parametrize("format_", list(Format), ids=lambda each: each.value)
@pytest.mark.parametrize("sink", [pytest.param(name, marks=SERVERS.get(name, ())) for name in CASES])
def test_a_sink_writes_of_odd_records_what_its_row_says(
    sink: str, format_: Format, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    normal = NORMAL[format_]
    records = {
        "null key": Record(normal, None),
        "null value": Record(None, normal),
        "empty value": Record(b"", normal),
        "undecodable value": Record(UNDECODABLE, normal),
        "undecodable key": Record(normal, UNDECODABLE),
        "headers": Record(normal, normal, [("a", b"1"), ("a", b"2"), ("a", None), ("b", b""), ("b", UNDECODABLE)]),
        "no timestamp": Record(normal, normal, timestamp_ms=None),
    }
    rest, poison = _screened(format_, list(records.values()))
    names = [name for index, name in enumerate(records) if index not in poison]
    written = dict(zip(names, CASES[sink](rest, tmp_path, request), strict=True))

    null_key, null_value, zero_bytes, empty_text, undecodable, headers, no_timestamp = _table("sink")[sink]
    assert written["null key"]["key"] == null_key
    assert written["null value"]["value"] == null_value
    assert written["headers"]["headers"] == headers
    assert written["no timestamp"]["timestamp"] == no_timestamp
    if format_ is Format.BYTES:
        assert written["empty value"]["value"] == zero_bytes
        assert written["undecodable value"]["value"] == undecodable
        assert written["undecodable key"]["key"] in (undecodable, "nothing")
    elif format_ is Format.STRING:
        assert written["empty value"]["value"] == empty_text
    assert ("empty value" in written) == (format_ in (Format.BYTES, Format.STRING))
    assert ("undecodable value" in written) == ("undecodable key" in written) == (format_ is Format.BYTES)
