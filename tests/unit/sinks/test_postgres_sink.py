"""The sink `postgres`: rows, repeats, error classes, and positions that make each record written exactly once."""

from __future__ import annotations

import contextlib
import json
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pydantic import ValidationError

from connector import (
    AuthenticationError,
    CloseReason,
    ConfigError,
    ConnectorError,
    FatalError,
    Input,
    InputClosed,
    LaneId,
    LaneInfo,
    Offset,
    PoisonError,
    RefusedError,
    StoredPosition,
    TransientError,
)
from sinks.postgres import PostgresSettings, PostgresSink
from tests.unit.sinks.sink_batches import CONTEXT, NASTY, TIMESTAMP_MS, Record, make_batch, restore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.postgres

LANE = LaneInfo(LaneId(1), "orders", 3, "id-1")


@pytest.fixture
def make_sink(postgres_dsn: str) -> Iterator[Callable[..., PostgresSink]]:
    with contextlib.ExitStack() as stack:

        def make(dsn: str = postgres_dsn, **settings: Any) -> PostgresSink:
            checked = PostgresSettings.model_validate({"dsn": dsn, **settings})
            assert checked.problems(1) == []
            sink = PostgresSink(checked, CONTEXT)
            stack.callback(sink.close)
            sink.open()
            return sink

        yield make


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


def rows(database: psycopg.Connection[Any], query: str = 'SELECT value FROM records ORDER BY "offset"') -> list[Any]:
    return database.execute(query).fetchall()


# What a row is


def test_a_row_has_the_documented_columns(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    make_sink().write(make_batch(Record(b"v", b"k", [("h", b"1"), ("h", b"\xff"), ("h", None)])))
    columns = 'topic, partition, "offset", timestamp, key, value, headers'
    (row,) = rows(database, f"SELECT {columns} FROM records")
    instant = datetime(2025, 12, 31, 23, 59, 59, 123000, UTC)
    headers = [["h", "1"], ["h", {"base64": "/w=="}], ["h", None]]
    assert row == ("orders", 3, 10, instant, b"k", b"v", headers)


@pytest.mark.invariant(12)
def test_key_value_and_headers_come_back_byte_for_byte(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    make_sink().write(make_batch(*NASTY))
    read = rows(database, 'SELECT key, value, timestamp IS NULL, headers::text FROM records ORDER BY "offset"')
    for record, (key, value, has_no_timestamp, headers) in zip(NASTY, read, strict=True):
        assert (key, value, has_no_timestamp) == (record.key, record.value, record.timestamp_ms is None)
        assert [(name, restore(form)) for name, form in json.loads(headers)] == (record.headers or [])


def test_a_table_for_each_topic_in_a_schema_whatever_its_name(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE SCHEMA s")
    sink = make_sink(table='s.t "{topic}')
    sink.write(make_batch(b"1", topic="a.b-c"))
    sink.write(make_batch(b"2", topic="a_b-c"))
    assert rows(database, 'SELECT value FROM s."t ""a.b-c"') == [(b"1",)]
    assert rows(database, 'SELECT value FROM s."t ""a_b-c"') == [(b"2",)]


def test_a_table_name_that_the_server_would_cut_is_refused(make_sink: Callable[..., PostgresSink]) -> None:
    with pytest.raises(ConfigError, match="longer than 63 bytes"):
        make_sink(table="{topic}").write(make_batch(b"", topic="x" * 64))


MAPPED = {"mode": "upsert", "columns": "id:id,name:user.name,data:data,body:@value,at:@offset,time:@timestamp"}


def test_a_mapping_writes_json_fields_in_the_types_of_the_table(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    database.execute(
        "CREATE TABLE records (id uuid PRIMARY KEY, name varchar(5), data jsonb, body text, at numeric, time timestamp)"
    )
    first, second = (f"00000000-0000-0000-0000-00000000000{number}" for number in (1, 2))
    sink = make_sink(**MAPPED, key_columns="id")
    sink.write(
        make_batch(
            json.dumps({"id": first, "user": {"name": "a"}, "data": "text"}).encode(),
            json.dumps({"id": second, "data": {"a": [1]}}).encode(),
        )
    )
    assert rows(database, "SELECT id::text, name, data, at, time FROM records ORDER BY id") == [
        (first, "a", "text", 10, datetime(2025, 12, 31, 23, 59, 59, 123000)),  # noqa: DTZ001  # a column without a zone
        (second, None, {"a": [1]}, 11, datetime(2025, 12, 31, 23, 59, 59, 123000)),  # noqa: DTZ001
    ]


def test_the_last_record_of_a_key_stands_also_within_a_batch_and_equality_is_that_of_the_column(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE records (id bigint PRIMARY KEY, name text)")
    sink = make_sink(mode="upsert", columns="id:id,name:name", key_columns="id")
    sink.write(make_batch(b'{"id": 1, "name": "a"}', b'{"id": "01", "name": "b"}', b'{"id": 2, "name": "c"}'))
    assert rows(database, "SELECT id, name FROM records ORDER BY id") == [(1, "b"), (2, "c")]
    sink.write(make_batch(b'{"id": 2, "name": null}', offset=20))
    assert rows(database, "SELECT id, name FROM records ORDER BY id") == [(1, "b"), (2, None)]


def test_an_upsert_of_nothing_but_keys_leaves_the_row(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE records (id bigint PRIMARY KEY)")
    sink = make_sink(mode="upsert", columns="id:id", key_columns="id")
    sink.write(make_batch(b'{"id": 1}', b'{"id": 1}'))
    assert rows(database, "SELECT id FROM records") == [(1,)]


def test_decoded_values_fit_bytea_text_and_json_columns(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    database.execute('CREATE TABLE records ("offset" bigint PRIMARY KEY, b bytea, t text, j json)')
    sink = make_sink(columns="offset:@offset,b:@value,t:@value,j:@value", key_columns="offset")
    decoded = [{"a": 1}, "text", True, 1, None]
    sink.write(make_batch(*[b""] * len(decoded), decoded={"value": decoded}))
    assert rows(database, 'SELECT b, t, j FROM records ORDER BY "offset"') == [
        (b'{"a":1}', '{"a":1}', {"a": 1}),
        (b"text", "text", "text"),
        (b"true", "true", True),
        (b"1", "1", 1),
        (None, None, None),
    ]


def test_any_name_can_be_a_column(make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]) -> None:
    name = 'rate % %s {} "x"'
    sink = make_sink(mode="upsert", columns=f"{name}:@offset,v:@value", key_columns=name)
    sink.write(make_batch(b"1"))
    sink.write(make_batch(b"2"))
    assert rows(database, "SELECT * FROM records") == [(10, b"2")]


def test_a_large_record_is_written_whole(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    make_sink().write(make_batch(b"x" * 20_000_000))
    assert rows(database, "SELECT length(value) FROM records") == [(20_000_000,)]


# Repeats


@pytest.mark.parametrize(("mode", "kept"), [("upsert", b"new"), ("ignore", b"old")])
def test_a_repeated_record_is_one_row(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any], mode: str, kept: bytes
) -> None:
    sink = make_sink(mode=mode)
    sink.write(make_batch(b"old"))
    sink.write(make_batch(b"new", b"next"))
    assert rows(database) == [(kept,), (b"next",)]


def test_without_a_key_each_write_leaves_its_row_so_that_repeats_can_be_counted(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    sink = make_sink(mode="insert", primary_key=False)
    sink.write(make_batch(b"a", b"b"))
    sink.write(make_batch(b"b", offset=11))
    assert rows(database, 'SELECT "offset", count(*) FROM records GROUP BY 1 ORDER BY 1') == [(10, 1), (11, 2)]


def test_many_sinks_make_one_missing_table_at_the_same_moment(make_sink: Callable[..., PostgresSink]) -> None:
    sinks = [make_sink() for _ in range(8)]
    start = threading.Barrier(len(sinks))
    errors: list[BaseException] = []

    def write(number: int, sink: PostgresSink) -> None:
        start.wait(30)
        try:
            sink.write(make_batch(b"x", partition=number))
        except BaseException as error:  # noqa: BLE001  # told on the main thread
            errors.append(error)

    threads = [threading.Thread(target=write, args=item) for item in enumerate(sinks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []


# Errors


@pytest.mark.parametrize(
    ("table", "bad"),
    [
        ("id bigint PRIMARY KEY, name text", b'{"id": "x"}'),
        ("id bigint PRIMARY KEY, name varchar(3)", b'{"id": 2, "name": "long"}'),
        ("id bigint PRIMARY KEY, name text NOT NULL", b'{"id": 2}'),
        ("id bigint PRIMARY KEY, name text CHECK (name <> 'bad')", b'{"id": 2, "name": "bad"}'),
        ("id bigint PRIMARY KEY, name text", b'{"id": 2, "name": "NUL \\u0000"}'),
        ("id bigint PRIMARY KEY, name jsonb", b'{"id": 2, "name": {"a": "NUL \\u0000"}}'),
        ("id bigint PRIMARY KEY, name text", b'{"name": "no key"}'),
        ("id bigint PRIMARY KEY, name text", b"no json"),
    ],
)
def test_a_record_that_the_table_does_not_take_is_poison_and_nothing_of_its_batch_stays(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any], table: str, bad: bytes
) -> None:
    database.execute(f"CREATE TABLE records ({table})")
    sink = make_sink(columns="id:id,name:name", key_columns="id")
    with pytest.raises(PoisonError, match=r"orders\[3\]@11"):
        sink.write(make_batch(bad, offset=11))
    good = b'{"id": 1, "name": "a"}'
    with pytest.raises(PoisonError, match=r"orders\[3\]@1[01]"):
        sink.write(make_batch(good, bad))
    assert rows(database, "SELECT * FROM records") == []
    sink.write(make_batch(good))
    assert rows(database, "SELECT id FROM records") == [(1,)]


def test_a_timestamp_that_the_server_cannot_hold_is_poison(make_sink: Callable[..., PostgresSink]) -> None:
    with pytest.raises(PoisonError, match=r"orders\[3\]@10"):
        make_sink().write(make_batch(Record(timestamp_ms=TIMESTAMP_MS * 1_000_000)))


def test_a_repeated_key_in_mode_insert_is_poison_and_the_error_quotes_no_row(
    make_sink: Callable[..., PostgresSink],
) -> None:
    sink = make_sink(mode="insert")
    sink.write(make_batch(b"1"))
    with pytest.raises(PoisonError, match=r'unique constraint "records_pkey" \(SQLSTATE 23505\)$'):
        sink.write(make_batch(b"1"))


@pytest.mark.parametrize(
    ("table", "settings", "way_out"),
    [
        ("x int", {}, "has no column topic, partition, offset"),
        ("id bigint", {"columns": "id:id", "key_columns": "id"}, "Give the table a primary key"),
        (None, {"columns": "id:id", "key_columns": "id"}, "Create the table"),
    ],
)
def test_a_table_that_does_not_fit_is_a_configuration_error(
    make_sink: Callable[..., PostgresSink],
    database: psycopg.Connection[Any],
    table: str | None,
    settings: dict[str, str],
    way_out: str,
) -> None:
    if table:
        database.execute(f"CREATE TABLE records ({table})")
    with pytest.raises(ConfigError, match=way_out):
        make_sink(**settings).write(make_batch(b'{"id": 1}'))


def test_a_lost_connection_is_transient_and_the_retry_connects_again(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    sink = make_sink()
    sink.write(make_batch(b"1"))
    _cut(database, sink)
    with pytest.raises(TransientError):
        sink.write(make_batch(b"2", offset=11))
    sink.write(make_batch(b"2", offset=11))
    assert rows(database) == [(b"1",), (b"2",)]


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("SET default_transaction_read_only = on", "25006"),
        ("SET lock_timeout = '10ms'", "55P03"),
        ("SET statement_timeout = '10ms'", "57014"),
    ],
)
def test_a_server_that_cannot_write_now_is_transient_and_the_retry_connects_again(
    make_sink: Callable[..., PostgresSink],
    database: psycopg.Connection[Any],
    statement: str,
    state: str,
) -> None:
    sink = make_sink()
    sink.write(make_batch(b"1"))
    assert sink._connection is not None
    sink._connection.execute(statement)
    with database.transaction():
        if state != "25006":
            database.execute("LOCK TABLE records")
        with pytest.raises(TransientError, match=f"SQLSTATE {state}"):
            sink.write(make_batch(b"2", offset=11))
    sink.write(make_batch(b"2", offset=11))
    assert rows(database) == [(b"1",), (b"2",)]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"user": "nobody_there"}, AuthenticationError),
        ({"dbname": "no_such_database"}, FatalError),
        ({"port": "1"}, TransientError),
        ({"host": "no-such-host.invalid"}, TransientError),
        ({"sslmode": "nonsense"}, FatalError),
    ],
)
def test_what_refuses_a_connection_decides_whether_it_is_tried_again(
    postgres_dsn: str, make_sink: Callable[..., PostgresSink], changed: dict[str, str], expected: type[ConnectorError]
) -> None:
    dsn = psycopg.conninfo.make_conninfo(postgres_dsn, **changed)
    with pytest.raises(ConnectorError) as raised:
        make_sink(dsn)
    assert type(raised.value) is expected


def test_missing_rights_are_of_the_class_that_says_so(
    make_sink: Callable[..., PostgresSink], postgres_dsn: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE records (topic text PRIMARY KEY)")
    database.execute("DROP ROLE IF EXISTS reader")
    database.execute("CREATE ROLE reader")
    sink = make_sink(
        psycopg.conninfo.make_conninfo(postgres_dsn, options="-c role=reader"),
        columns="topic:@topic",
        key_columns="topic",
    )
    with pytest.raises(AuthenticationError, match="permission denied for table records"):
        sink.write(make_batch(b""))
    database.execute("DROP ROLE reader")


SECRET = "pa55word"


@pytest.mark.parametrize(
    "dsn", [f"host=x {SECRET}", f"postgresql://u:{SECRET}@[::1/x", f"postgresql://u:{SECRET}@h/d?x=1"]
)
def test_a_connection_string_that_cannot_be_read_is_refused_without_showing_it(dsn: str) -> None:
    with pytest.raises(ValidationError, match="is not a connection string") as raised:
        PostgresSettings.model_validate({"dsn": dsn})
    assert SECRET not in str(raised.value)


def test_the_password_is_in_no_error_and_no_representation() -> None:
    settings = PostgresSettings.model_validate({"dsn": f"postgresql://u:{SECRET}@127.0.0.1:1/{SECRET}"})
    sink = PostgresSink(settings, CONTEXT)
    with pytest.raises(TransientError) as raised:
        sink.open()
    sink.close()
    assert SECRET not in str(raised.value)
    assert SECRET not in repr(settings)


# Positions


def _cut(database: psycopg.Connection[Any], sink: PostgresSink) -> None:
    """End a sink's connection on the server, and wait until it is gone."""
    assert sink._connection is not None
    ended = database.execute("SELECT pg_terminate_backend(%s, 10000)", (sink._connection.info.backend_pid,)).fetchone()
    assert ended == (True,)


@pytest.fixture
def make_exact(make_sink: Callable[..., PostgresSink]) -> Callable[..., PostgresSink]:
    """Sinks that hold positions, and a table that shows repeats."""

    def make(**settings: Any) -> PostgresSink:
        return make_sink(positions=True, mode="insert", primary_key=False, **settings)

    return make


@pytest.fixture
def make_unopened(postgres_dsn: str) -> Iterator[Callable[[], PostgresSink]]:
    """Sinks that are not opened, as a command has them that reads or sets positions."""
    with contextlib.ExitStack() as stack:

        def make() -> PostgresSink:
            sink = PostgresSink(PostgresSettings.model_validate({"dsn": postgres_dsn, "positions": True}), CONTEXT)
            stack.callback(sink.close)
            return sink

        yield make


def test_positions_are_off_unless_asked_for(make_sink: Callable[..., PostgresSink]) -> None:
    assert not make_sink().holds_positions


def test_a_claim_returns_what_the_last_owner_wrote(make_exact: Callable[..., PostgresSink]) -> None:
    first = make_exact()
    assert first.holds_positions
    assert first.claim(LANE) is None
    first.write(make_batch(b"1", b"2"))
    assert make_exact().claim(LANE) == StoredPosition(Offset(12), "id-1")


def test_positions_of_other_groups_topics_and_partitions_are_apart(make_exact: Callable[..., PostgresSink]) -> None:
    sink = make_exact()
    sink.claim(LANE)
    sink.write(make_batch(b"1"))
    assert sink.claim(LaneInfo(LaneId(2), "orders", 4)) is None
    assert sink.claim(LaneInfo(LaneId(3), "other", 3)) is None


def test_rows_and_position_are_written_together_or_not_at_all(
    make_exact: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE records (value text NOT NULL)")
    sink = make_exact(columns="value:@value")
    sink.claim(LANE)
    with pytest.raises(PoisonError):
        sink.write(make_batch(b"1", None))
    assert rows(database, "SELECT next_offset FROM connector_positions") == [(None,)]
    sink.write(make_batch(b"1", b"2"))
    assert rows(database, "SELECT next_offset FROM connector_positions") == [(12,)]
    assert rows(database, "SELECT value FROM records") == [("1",), ("2",)]


def test_a_stale_owner_is_refused_and_writes_nothing(
    make_exact: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    old, new = make_exact(), make_exact()
    old.claim(LANE)
    old.write(make_batch(b"1"))
    assert new.claim(LANE) == StoredPosition(Offset(11), "id-1")
    with pytest.raises(RefusedError, match=r"orders\[3\]"):
        old.write(make_batch(b"2", offset=11))
    new.write(make_batch(b"2", offset=11))
    with pytest.raises(RefusedError):
        old.write(make_batch(b"3", offset=12))
    assert rows(database) == [(b"1",), (b"2",)]


def test_a_refused_lane_claims_again_and_goes_on(
    make_exact: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    sink = make_exact()
    sink.claim(LANE)
    sink.write(make_batch(b"1"))
    database.execute("UPDATE connector_positions SET next_offset = 10")  # an operator's reset
    with pytest.raises(RefusedError):
        sink.write(make_batch(b"2", offset=11))
    assert sink.claim(LANE) == StoredPosition(Offset(10), "id-1")
    sink.write(make_batch(b"1", offset=10))


def test_a_claim_waits_for_the_transaction_of_the_owner_before(
    make_exact: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    old, new = make_exact(), make_exact()
    old.claim(LANE)
    claimed: list[StoredPosition | None] = []
    claim = threading.Thread(target=lambda: claimed.append(new.claim(LANE)))
    with database.transaction():
        database.execute("UPDATE connector_positions SET next_offset = 11")  # as the old owner's write does
        claim.start()
        claim.join(0.1)
        assert claimed == []
    claim.join(30)
    assert claimed == [StoredPosition(Offset(11), None)]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_connection_lost_during_the_commit_ends_in_each_record_written_once(
    make_exact: Callable[..., PostgresSink],
    database: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    is_committed: bool,
) -> None:
    sink = make_exact()
    sink.claim(LANE)
    sink.write(make_batch(b"1"))
    commit = psycopg.transaction.Transaction._commit_gen

    def lose(transaction: psycopg.transaction.Transaction) -> Any:
        if is_committed:
            yield from commit(transaction)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    batch = make_batch(b"2", offset=11)
    with monkeypatch.context() as patch:
        patch.setattr(psycopg.transaction.Transaction, "_commit_gen", lose)
        with pytest.raises(TransientError):
            sink.write(batch)
    if is_committed:
        with pytest.raises(RefusedError):
            sink.write(batch)
        assert sink.claim(LANE) == StoredPosition(Offset(12), "id-1")
    else:
        sink.write(batch)
    sink.write(make_batch(b"3", offset=12))
    assert rows(database) == [(b"1",), (b"2",), (b"3",)]


def test_an_empty_batch_moves_the_position_over_a_gap(make_exact: Callable[..., PostgresSink]) -> None:
    sink = make_exact()
    sink.claim(LANE)
    sink.write(make_batch(offset=28))
    assert sink.claim(LANE) == StoredPosition(Offset(28), "id-1")


def test_lanes_of_one_sink_are_owned_apart_and_a_closed_one_is_forgotten(
    make_exact: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    sink = make_exact()
    other = LaneInfo(LaneId(2), "orders", 4)
    sink.claim(LANE)
    sink.claim(other)
    for batch in (make_batch(b"1"), make_batch(b"2", partition=4, lane=2), make_batch(b"3", offset=11)):
        sink.on_event(Input(batch.metadata.lane, batch.metadata, batch))
    sink.on_event(InputClosed(LANE.id, CloseReason.LOST))
    assert set(sink._claims) == {other.id}
    assert rows(database, "SELECT partition, next_offset FROM connector_positions ORDER BY 1") == [(3, 12), (4, 11)]


def test_positions_are_read_and_reset_by_a_sink_that_is_not_open(
    make_exact: Callable[..., PostgresSink], make_unopened: Callable[[], PostgresSink]
) -> None:
    assert make_unopened().read_positions() == {}  # there is no table yet
    make_unopened().reset_positions({("orders", 3): StoredPosition(Offset(10), "id-1")})
    assert make_unopened().read_positions() == {("orders", 3): StoredPosition(Offset(10), "id-1")}
    assert make_exact().claim(LANE) == StoredPosition(Offset(10), "id-1")


def test_reading_positions_makes_no_table(
    make_unopened: Callable[[], PostgresSink], database: psycopg.Connection[Any]
) -> None:
    make_unopened().read_positions()
    assert database.execute("SELECT to_regclass('connector_positions')").fetchone() == (None,)


def test_a_reset_sets_all_positions_or_none(
    make_exact: Callable[..., PostgresSink], make_unopened: Callable[[], PostgresSink]
) -> None:
    sink = make_exact()
    sink.claim(LANE)
    sink.write(make_batch(b"1"))
    beyond_bigint = {("orders", 3): StoredPosition(Offset(5)), ("orders", 4): StoredPosition(Offset(2**63))}
    with pytest.raises(ConnectorError):
        make_unopened().reset_positions(beyond_bigint)
    assert make_unopened().read_positions() == {("orders", 3): StoredPosition(Offset(11), "id-1")}
    sink.write(make_batch(b"2", offset=11))


def test_a_reset_waits_for_a_write_under_way_and_stands(
    make_exact: Callable[..., PostgresSink],
    make_unopened: Callable[[], PostgresSink],
    database: psycopg.Connection[Any],
) -> None:
    sink = make_exact()
    sink.claim(LANE)
    wanted = {("orders", 3): StoredPosition(Offset(5), "id-1")}
    reset = threading.Thread(target=lambda: make_unopened().reset_positions(wanted))
    with database.transaction():
        database.execute("UPDATE connector_positions SET next_offset = 11")  # as the owner's write does
        reset.start()
        reset.join(0.1)
        assert reset.is_alive()
    reset.join(30)
    assert make_unopened().read_positions() == wanted
    with pytest.raises(RefusedError):
        sink.write(make_batch(b"1", offset=11))


def test_a_frozen_owner_does_not_keep_the_partition(
    make_exact: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    """Its transaction, open while the process stands still, is ended by the server."""
    old, new = make_exact(), make_exact()
    old.claim(LANE)
    assert old._connection is not None
    assert old._connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("10s",)
    old._connection.execute("SET idle_in_transaction_session_timeout = '20ms'")

    def freeze() -> None:
        with old._transaction("frozen") as connection:
            connection.execute("UPDATE connector_positions SET next_offset = 11")
            assert new.claim(LANE) is None

    with pytest.raises(TransientError):
        freeze()
    with pytest.raises(RefusedError):
        old.write(make_batch(b"1"))
    assert rows(database, "SELECT next_offset FROM connector_positions") == [(None,)]


def test_commits_are_durable_although_the_server_would_not_wait_for_the_disk(
    make_sink: Callable[..., PostgresSink], database: psycopg.Connection[Any]
) -> None:
    database.execute("ALTER ROLE CURRENT_USER IN DATABASE %s SET synchronous_commit = off" % database.info.dbname)  # noqa: UP031
    sink = make_sink()
    assert sink._connection is not None
    assert sink._connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
