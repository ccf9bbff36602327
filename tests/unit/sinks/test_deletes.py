"""`CONNECTOR_TOMBSTONES=delete`: the table holds the last value of each key, and none whose last is a tombstone."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import LaneId, LaneInfo, Offset, PoisonError, RefusedError, Secret, Sink, StoredPosition
from sinks.postgres import PostgresSettings, PostgresSink
from sinks.sqlite import SqliteSettings, SqliteSink
from tests.unit.sinks.sink_batches import CONTEXT, Record, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from connector import Batch

MakeSink: TypeAlias = "Callable[..., Sink[Any]]"
Query: TypeAlias = "Callable[..., list[tuple[Any, ...]]]"

LANE = LaneInfo(LaneId(1), "orders", 3, "id-1")
DELETE = replace(CONTEXT, tombstones="delete")
BY_KEY = {"mode": "upsert", "columns": "id:@key,v:@value", "key_columns": "id"}
BY_FIELDS = {"mode": "upsert", "columns": "a:@key.a,b:@key.b,t:@topic,name:user.name", "key_columns": "t,b,a"}
KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=KINDS)
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[MakeSink, Query]]:
    """What makes a sink that deletes, and what asks its database."""
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            path = f"{tmp_path}/records.db"
            database: Any = stack.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
        else:
            dsn = request.getfixturevalue("postgres_dsn")
            database = stack.enter_context(psycopg.connect(dsn, autocommit=True))

        def make(context: Any = DELETE, **given: Any) -> Sink[Any]:
            if request.param == "sqlite":
                sink: Sink[Any] = SqliteSink(SqliteSettings(path=path, **given), context)
            else:
                sink = PostgresSink(PostgresSettings(dsn=Secret(dsn), **given), context)
            stack.callback(sink.close)
            assert sink.deletes
            sink.open()
            return sink

        def query(text: str = "SELECT id, v FROM records ORDER BY id") -> list[tuple[Any, ...]]:
            cursor = database.execute(text)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

        yield make, query


def records(*pairs: tuple[bytes, bytes | None], offset: int = 10) -> Batch:
    return make_batch(*(Record(value, key) for key, value in pairs), offset=offset)


def test_within_a_batch_the_last_state_of_a_key_stands(destination: tuple[MakeSink, Query]) -> None:
    make, query = destination
    sink = make(**BY_KEY)
    sink.write(records((b"k1", b"1"), (b"k2", b"1"), (b"k1", b"2"), (b"k1", None)))
    assert query() == [(b"k2", b"1")]
    sink.write(records((b"k2", None), (b"k1", None), (b"k1", b"3"), (b"k3", None), offset=14))
    assert query() == [(b"k1", b"3")]
    sink.write(records((b"k1", None), offset=18))
    assert query() == []


def test_a_tombstone_is_a_row_where_tombstones_are_written(destination: tuple[MakeSink, Query]) -> None:
    make, query = destination
    make(CONTEXT, **BY_KEY).write(records((b"k1", b"1"), (b"k1", None)))
    assert query() == [(b"k1", None)]


def test_an_empty_value_is_no_tombstone(destination: tuple[MakeSink, Query]) -> None:
    make, query = destination
    make(**BY_KEY).write(records((b"k1", b"1"), (b"k1", b"")))
    assert query() == [(b"k1", b"")]


def test_a_tombstone_without_a_key_is_poison_and_deletes_nothing(destination: tuple[MakeSink, Query]) -> None:
    make, query = destination
    sink = make(**BY_KEY)
    sink.write(records((b"k1", b"1")))
    with pytest.raises(PoisonError, match=r"orders\[3\]@12 has no value for the key column 'id'"):
        sink.write(make_batch(Record(None, b"k1"), Record(None, None), offset=11))
    assert query() == [(b"k1", b"1")]


@pytest.mark.parametrize("is_decoded", [False, True])
def test_fields_of_the_key_name_the_row_whether_decoded_or_not(
    destination: tuple[MakeSink, Query], is_decoded: bool
) -> None:
    make, query = destination
    query("CREATE TABLE records (a bigint, b text, t text, name text, PRIMARY KEY (a, b, t))")
    sink = make(**BY_FIELDS)
    keys: list[Any] = [{"a": 1, "b": "x"}, {"b": "y", "a": 1}, {"a": 2, "b": "x"}, {"b": "x", "a": "1"}]
    values = [{"user": {"name": "one"}}, {"user": {"name": "two"}}, {}, None]
    batch = make_batch(
        *(
            Record(None if value is None else json.dumps(value).encode(), json.dumps(key).encode())
            for key, value in zip(keys, values, strict=True)
        ),
        decoded={"key": keys, "value": values} if is_decoded else None,
    )
    sink.write(batch)
    left = [(1, "y", "orders", "two"), (2, "x", "orders", None)]
    assert query("SELECT a, b, t, name FROM records ORDER BY a") == left, "equality is that of the column: 1 is '1'"
    sink.write(make_batch(Record(None, b'{"a": 1, "b": "z"}'), Record(None, b'{"b": "y", "a": 1}'), topic="other"))
    assert query("SELECT a, b, t, name FROM records ORDER BY a") == left


KEYS = [b"a", b"b", b"\x00\xff", b""]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[tuple[bytes, bytes | None]]], list[int]]:
    """A log cut into batches, and to which batch the delivery goes back after each, if not to the next."""
    batches = draw(
        st.lists(
            st.lists(
                st.tuples(st.sampled_from(KEYS), st.sampled_from([None, None, b"", b"1", b"2"])), min_size=1, max_size=8
            ),
            min_size=1,
            max_size=6,
        )
    )
    return batches, [draw(st.integers(0, index + 1)) for index in range(len(batches))]


def test_the_table_is_the_compacted_log_wherever_batches_are_cut_and_whatever_is_replayed(
    destination: tuple[MakeSink, Query],
) -> None:
    make, query = destination
    sink = make(**BY_KEY)
    sink.write(records((b"first", b"makes the table")))

    @settings(max_examples=40, deadline=None)
    @given(histories())
    def check(history: tuple[list[list[tuple[bytes, bytes | None]]], list[int]]) -> None:
        log, jumps = history
        query("DELETE FROM records")
        model: dict[bytes, bytes] = {}
        starts = [sum(map(len, log[:index])) for index in range(len(log))]
        for index, pairs in enumerate(log):
            sink.write(records(*pairs, offset=starts[index]))
            for again in range(jumps[index], index + 1):
                sink.write(records(*log[again], offset=starts[again]))
            for key, value in pairs:
                model.pop(key, None)
                if value is not None:
                    model[key] = value
            assert query() == sorted(model.items())

    check()


@pytest.mark.postgres
def test_a_delete_and_the_position_are_one_transaction(postgres_dsn: str) -> None:
    given = PostgresSettings.model_validate({"dsn": postgres_dsn, "positions": True, **BY_KEY})
    former, owner = PostgresSink(given, DELETE), PostgresSink(given, DELETE)
    with contextlib.closing(former), contextlib.closing(owner), psycopg.connect(postgres_dsn, autocommit=True) as db:
        former.open()
        former.claim(LANE)
        former.write(records((b"k1", b"1"), (b"k2", b"1")))
        tombstone = records((b"k1", None), offset=12)
        owner.open()
        assert owner.claim(LANE) == StoredPosition(Offset(12), "id-1")
        with pytest.raises(RefusedError):
            former.write(tombstone)
        assert db.execute("SELECT id FROM records ORDER BY id").fetchall() == [(b"k1",), (b"k2",)]
        owner.write(tombstone)
        assert db.execute("SELECT id FROM records").fetchall() == [(b"k2",)]
        assert owner.claim(LANE) == StoredPosition(Offset(13), "id-1")
