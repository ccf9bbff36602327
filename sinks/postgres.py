"""PostgreSQL sink: one transaction for each batch, and with `positions` the lane's position in that transaction too.

A batch is one `INSERT … SELECT … FROM unnest(arrays)`. Every array is of text, bigint or bytea, and the server casts
it to the type of the column, so a table that is there already may have types of its own. Where tombstones delete, a
`DELETE` of their keys goes before it, and the insert leaves out each key whose last record is a tombstone.

With positions, a lane is claimed by writing a fresh owner token into its row of the positions table, and each write
first moves that row on, from the position and for the owner that it expects. The row lock puts writers of one partition
in a line; whoever is no longer the owner, or had its last commit succeed without hearing of it, moves no row and is
refused before it inserts anything. So each record is written exactly once.

One connection, owned by the sink's thread. After a transient error it is closed and the next attempt makes a new one.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, ConfigDict

from connector import (
    AuthenticationError,
    CloseReason,
    ConfigError,
    ConnectorError,
    FatalError,
    Field,
    Input,
    InputClosed,
    PoisonError,
    RefusedError,
    Secret,
    Sink,
    StoredPosition,
    TransientError,
)
from sinks.table import MODE_DESCRIPTION, Column, Mode, TableLayout, TableSettings, check_table, tombstones
from sinks.values import convert, header_texts, span, to_bytes, to_json

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as missing:
    raise ImportError("the postgres sink needs psycopg: pip install 'sluiceway[postgres]'") from missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from connector import Batch, Event, LaneId, LaneInfo, Offset, SinkContext

_CONNECTION: dict[str, Any] = {
    "application_name": "sluiceway",
    "client_encoding": "utf8",
    "connect_timeout": 10,
    # A server that vanishes without a word is noticed after 30 s.
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# A frozen owner must not keep the lock on its position for ever: the server ends its transaction.
_OPTIONS = "-c timezone=UTC -c statement_timeout=60s -c lock_timeout=10s -c idle_in_transaction_session_timeout=10s"
_NAME_BYTES = 63  # PostgreSQL cuts longer names, so two long topics could meet in one table
_NEW_TYPES = {
    "topic": "text",
    "partition": "integer",
    "offset": "bigint",
    "timestamp": "timestamptz",
    "key": "bytea",
    "value": "bytea",
    "headers": "json",  # not jsonb, which has no NUL in strings
}
_JSON = ("json", "jsonb")
# No column can be called so, since a colon ends its name in the setting.
_ORDINAL = sql.Identifier(":ordinal")
_TOMBSTONE = sql.Identifier(":tombstone")
_WHO_MAY = "Set CONNECTOR_SINK_DSN to a user who may do this, with the right password."
_PARAMETERS = "\0"  # stands for them while percent signs in names are doubled; no name can have one
_CREATE_POSITIONS = sql.SQL(
    "CREATE TABLE IF NOT EXISTS {} (group_id text, topic text, partition integer, next_offset bigint, topic_id text, "
    "owner text NOT NULL, PRIMARY KEY (group_id, topic, partition))"
)
_CLAIM = sql.SQL(
    "INSERT INTO {} AS p (group_id, topic, partition, owner) VALUES (%s, %s, %s, %s) "
    "ON CONFLICT (group_id, topic, partition) DO UPDATE SET owner = excluded.owner RETURNING p.next_offset, p.topic_id"
)
_READ = sql.SQL(
    "SELECT topic, partition, next_offset, topic_id FROM {} WHERE group_id = %s AND next_offset IS NOT NULL"
)
_RESET = sql.SQL(
    "INSERT INTO {} AS p (group_id, topic, partition, owner, next_offset, topic_id) VALUES (%s, %s, %s, %s, %s, %s) "
    "ON CONFLICT (group_id, topic, partition) DO UPDATE "
    "SET owner = excluded.owner, next_offset = excluded.next_offset, topic_id = excluded.topic_id"
)
_MOVE = sql.SQL(
    "UPDATE {} SET next_offset = %s, topic_id = %s WHERE group_id = %s AND topic = %s AND partition = %s "
    "AND owner = %s AND next_offset IS NOT DISTINCT FROM %s"
)
_TRANSIENT = re.compile(r"08...|40...|53...|57...|58...|55P03|25006|25P0[234]")  # SQLSTATEs, PostgreSQL appendix A
_POISON = re.compile(r"2[123]...|54...|P0...|44000")
_DENIAL = re.compile(r"28...|42501")
# When a connection is refused the client library has only the text, in the server's language.
_DENIED = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|permission denied|not permitted to log in"
    r"|role \".*\" does not exist"
)
_REFUSED = re.compile(r"does not exist|invalid \w+ value")


def _table_name(template: str, **names: str) -> sql.Identifier:
    """Return the table that a template names: `schema.table`, or without a schema; a dot in a topic is no separator.

    Raises:
        ConfigError: A name that PostgreSQL would cut.
    """
    parts = [part.format(**names) for part in template.split(".")]
    for part in parts:
        if len(part.encode()) > _NAME_BYTES:
            raise ConfigError(
                f"the table name {part} is longer than {_NAME_BYTES} bytes, and PostgreSQL would cut it. Set "
                "CONNECTOR_SINK_TABLE to a template that makes shorter names."
            )
    return sql.Identifier(*parts)


def _check_name(template: str) -> str:
    if not all(template.split(".")) or template.count(".") > 1 or "%" in template:
        raise ValueError("is not a table name; write table or schema.table, without a percent sign")
    return template


def _check_dsn(dsn: Secret) -> Secret:
    try:
        conninfo_to_dict(dsn.get_secret_value())
    except psycopg.ProgrammingError:
        # Without the cause: its text quotes parts of the string, which may be the password.
        raise ValueError(
            "is not a connection string; write postgresql://user:password@host:5432/database, with special characters "
            "in percent encoding, or host=… dbname=… user=… password=…"
        ) from None
    return dsn


class PostgresSettings(TableSettings):
    """Settings of the sink `postgres`."""

    model_config = ConfigDict(hide_input_in_errors=True)  # a connection string that cannot be read holds a password

    dsn: Annotated[Secret, AfterValidator(_check_dsn)] = Field(
        description="Connection string, postgresql://user:password@host:5432/database; what it says wins over the sink"
    )
    table: Annotated[str, AfterValidator(check_table), AfterValidator(_check_name)] = Field(
        default="records", description="Table or schema.table, a template: {topic}. Made when it is missing"
    )
    mode: Mode = Field(default="ignore", description=MODE_DESCRIPTION)
    positions: bool = Field(
        default=False,
        description="Store each lane's position in the transaction of its rows and start from it: exactly once",
    )
    positions_table: Annotated[str, AfterValidator(_check_name)] = Field(
        default="connector_positions", description="Table of the positions, keyed by group, topic and partition"
    )


@dataclass(slots=True)
class _Claim:
    """A lane that this instance owns, and where it has brought it."""

    topic: str
    partition: int
    owner: str
    expected: Offset | None


class PostgresSink(Sink[PostgresSettings]):
    """Writes rows into tables of one database."""

    def __init__(self, settings: PostgresSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self._layout = TableLayout(settings)
        self._connection: psycopg.Connection | None = None
        self._writers: dict[str, _Writer] = {}  # for each topic whose table has been looked at
        self._claims: dict[LaneId, _Claim] = {}
        self._positions = _table_name(settings.positions_table)

    @property
    def is_idempotent(self) -> bool:
        """Whether a repeat meets its own row."""
        return self.settings.mode != "insert"

    @property
    def deletes(self) -> bool:
        """Whether the key of a record tells its row."""
        return not self.settings.delete_problems()

    @property
    def holds_positions(self) -> bool:
        """Whether lanes start from the positions in the database."""
        return self.settings.positions

    @property
    def resets_positions(self) -> bool:
        """Whether a command may set the positions in the database: wherever there are any."""
        return self.settings.positions

    def open(self) -> None:
        """Connect, and make the positions table when it is needed and missing.

        Raises:
            ConfigError: The server refuses the settings.
            AuthenticationError: The server refuses the user.
            TransientError: The server is not there, or not ready.
        """
        with self._transaction("open") as connection:
            if self.settings.positions:
                self._create_positions(connection)

    def on_event(self, event: Event) -> None:
        """Write batches; forget the claim of a lane that is gone, which one that has only stalled is not."""
        match event:
            case Input(data=batch):
                self.write(batch)
            case InputClosed(id=lane, reason=reason) if reason is not CloseReason.STALLED:
                self._claims.pop(lane, None)
            case _:
                pass

    def claim(self, lane: LaneInfo) -> StoredPosition | None:
        """Become the owner of a partition's position, once a write of the owner before has ended, and return it.

        Raises:
            TransientError: The database is not there, or such a write takes long.
        """
        owner = str(uuid.uuid4())
        key = (self.context.group_id, lane.topic, lane.partition)
        with self._transaction(f"claim {lane.topic}[{lane.partition}]") as connection:
            row = connection.execute(_CLAIM.format(self._positions), (*key, owner)).fetchone()
        next_offset, topic_id = row or (None, None)
        self._claims[lane.id] = _Claim(lane.topic, lane.partition, owner, next_offset)
        return None if next_offset is None else StoredPosition(next_offset, topic_id)

    def read_positions(self) -> Mapping[tuple[str, int], StoredPosition]:
        """Return the group's positions, none if there is no table of them yet.

        Raises:
            TransientError: The database is not there.
        """
        with self._transaction("read positions") as connection:
            if not _types(connection, self._positions):
                return {}
            rows = connection.execute(_READ.format(self._positions), (self.context.group_id,)).fetchall()
        return {(topic, partition): StoredPosition(offset, topic_id) for topic, partition, offset, topic_id in rows}

    def reset_positions(self, positions: Mapping[tuple[str, int], StoredPosition]) -> None:
        """Set positions in one transaction, each with a fresh owner token that nobody has, once writes have ended.

        Raises:
            TransientError: The database is not there, or a write takes long.
        """
        rows = [
            (self.context.group_id, topic, partition, str(uuid.uuid4()), stored.next_offset, stored.topic_id)
            for (topic, partition), stored in sorted(positions.items())  # two resets cannot wait for each other
        ]
        with self._transaction("reset positions") as connection:
            self._create_positions(connection)
            with connection.cursor() as cursor:
                cursor.executemany(_RESET.format(self._positions), rows)

    def write(self, batch: Batch) -> None:
        """Write the batch in one transaction, and the lane's position with it.

        Raises:
            ConfigError: The table does not fit the settings.
            AuthenticationError: The user may not do this.
            PoisonError: A value that the table does not take.
            RefusedError: The lane has another owner, or its position is not where this sink has brought it.
            TransientError: The database is not there, or has no room.
        """
        if not batch and not self.settings.positions:
            return
        metadata = batch.metadata
        writer = self._writers.get(metadata.topic) or self._prepare(metadata.topic)
        steps = writer.steps(batch) if batch else ()
        with self._transaction(span(batch)) as connection:
            if self.settings.positions:
                self._move_position(connection, batch)
            for statement, arrays in steps:
                connection.execute(statement, arrays)
        if self.settings.positions:
            self._claims[metadata.lane].expected = metadata.next_offset

    def close(self) -> None:
        """Disconnect; an open transaction is rolled back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _move_position(self, connection: psycopg.Connection, batch: Batch) -> None:
        metadata = batch.metadata
        claim = self._claims[metadata.lane]
        key = (self.context.group_id, claim.topic, claim.partition)
        moved = connection.execute(
            _MOVE.format(self._positions),
            (metadata.next_offset, metadata.topic_id, *key, claim.owner, claim.expected),
        )
        if moved.rowcount == 0:
            raise RefusedError(
                f"{claim.topic}[{claim.partition}] is no longer at {claim.expected} for this owner in "
                f"{self.settings.positions_table}: another one has claimed it, it was reset, or a commit succeeded "
                "that looked lost"
            )

    def _create_positions(self, connection: psycopg.Connection) -> None:
        if not _types(connection, self._positions):
            _create(connection, _CREATE_POSITIONS.format(self._positions))

    def _prepare(self, topic: str) -> _Writer:
        """Make the table if it is missing, look at its columns, and keep what writes to it."""
        table = _table_name(self.settings.table, topic=topic)
        with self._transaction(f"prepare {table.as_string()}") as connection:
            types = _types(connection, table)
            if not types:
                if self._layout.reads_json:
                    raise ConfigError(
                        f"there is no table {table.as_string()}, and the types of the columns that "
                        "CONNECTOR_SINK_COLUMNS takes out of JSON are yours to choose. Create the table, with the "
                        "columns of CONNECTOR_SINK_KEY_COLUMNS as its primary key."
                    )
                _create(connection, self._creation(table))
                types = _types(connection, table)
        missing = [column.name for column in self._layout.columns if column.name not in types]
        if missing:
            raise ConfigError(
                f"the table {table.as_string()} has no column {', '.join(missing)}. Add it, or set "
                "CONNECTOR_SINK_COLUMNS to columns that the table has."
            )
        deletes = self.context.tombstones == "delete"
        writer = self._writers[topic] = _Writer(self._layout, self.settings.mode, table, types, deletes=deletes)
        return writer

    def _creation(self, table: sql.Identifier) -> sql.Composed:
        parts: list[sql.Composable] = [
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(_NEW_TYPES[column.field]))
            for column in self._layout.columns
        ]
        if self._layout.keys:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(_names(self._layout.keys)))
        return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(table, sql.SQL(", ").join(parts))

    @contextlib.contextmanager
    def _transaction(self, doing: str) -> Iterator[psycopg.Connection]:
        """Give a connection in a transaction, and turn the driver's errors into ours."""
        try:
            connection = self._connection or self._connect()
            with connection.transaction():
                yield connection
        except psycopg.Error as error:
            classified = self._classify(error, doing)
            if isinstance(classified, TransientError):
                self.close()
            raise classified from error

    def _connect(self) -> psycopg.Connection:
        given = conninfo_to_dict(self.settings.dsn.get_secret_value())
        options = f"{_OPTIONS} {given.get('options') or ''}"
        conninfo = make_conninfo(**{**_CONNECTION, **given, "options": options})
        connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
        self._connection = connection
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        # What has returned has to be durable, whatever the server's default.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        return connection

    def _classify(self, error: psycopg.Error, doing: str) -> ConnectorError:
        # The details below the first line quote the whole row.
        text = f"{doing}: PostgreSQL: {self._mask(error.diag.message_primary or ' '.join(str(error).split()))}"
        state = error.sqlstate
        if state is None:
            return self._classify_without_state(error, text)
        text = f"{text} (SQLSTATE {state})"
        if _TRANSIENT.fullmatch(state):
            return TransientError(text)
        if _POISON.fullmatch(state):
            return PoisonError(text)
        if state == "42P10":
            return ConfigError(
                f"{text}. Give the table a primary key or unique constraint on ({', '.join(self._layout.keys)}), or "
                "set CONNECTOR_SINK_KEY_COLUMNS to the columns of the one that it has."
            )
        if _DENIAL.fullmatch(state):
            return AuthenticationError(f"{text}. {_WHO_MAY}")
        return FatalError(f"{text}. Correct the table, or CONNECTOR_SINK_DSN.")

    def _classify_without_state(self, error: psycopg.Error, text: str) -> ConnectorError:
        if isinstance(error, psycopg.DataError):
            return PoisonError(text)
        if isinstance(error, psycopg.ProgrammingError):
            return ConfigError(f"{text}. Correct CONNECTOR_SINK_DSN.")
        if self._connection is None and _DENIED.search(str(error)):
            return AuthenticationError(f"{text}. {_WHO_MAY}")
        if self._connection is None and _REFUSED.search(str(error)):
            return FatalError(f"{text}. Correct CONNECTOR_SINK_DSN.")
        return TransientError(text)

    def _mask(self, text: str) -> str:
        given = conninfo_to_dict(self.settings.dsn.get_secret_value())
        for name in ("password", "sslpassword"):
            secret = given.get(name)
            if secret:
                text = text.replace(str(secret), "***")
        return text


class _Writer:
    """The statements that write batches of one topic, and their parameters: an array for each column."""

    def __init__(
        self, layout: TableLayout, mode: Mode, table: sql.Identifier, types: dict[str, str], *, deletes: bool
    ) -> None:
        self._layout = layout
        self._types = types
        columns = layout.columns
        names = _names([column.name for column in columns])
        insertion = sql.SQL("INSERT INTO {} ({}) {}").format(table, names, self._last_rows(mode, deletes=deletes))
        if mode != "insert":
            changes = [
                sql.SQL("{} = {}").format(sql.Identifier(column.name), sql.Identifier("excluded", column.name))
                for column in columns
                if mode == "upsert" and column.name not in layout.keys
            ]
            action = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(changes)) if changes else sql.SQL("NOTHING")
            insertion += sql.SQL(" ON CONFLICT ({}) DO {}").format(_names(layout.keys), action)
        self._insertion = self._with_parameters(insertion, columns, deletes=deletes)
        self._key_columns = [column for column in columns if column.name in layout.keys]
        self._deletion = self._with_parameters(self._delete(table), self._key_columns) if deletes else None

    def _last_rows(self, mode: Mode, *, deletes: bool) -> sql.Composed:
        columns = self._layout.columns
        rows = self._rows(columns, _TOMBSTONE, _ORDINAL) if deletes else self._rows(columns, _ORDINAL)
        names = _names([column.name for column in columns])
        if mode != "upsert" or any(column.field == "offset" for column in columns if column.name in self._layout.keys):
            return sql.SQL("SELECT {} FROM ({}) AS r").format(names, rows)
        # One statement cannot change a row twice, so the last record of a key stands for those before it; which keys
        # are equal is the server's to say.
        keys = _names(self._layout.keys)
        last = sql.SQL("SELECT DISTINCT ON ({}) * FROM ({}) AS r ORDER BY {}, {} DESC").format(
            keys, rows, keys, _ORDINAL
        )
        condition = sql.SQL(" WHERE NOT {}").format(_TOMBSTONE) if deletes else sql.SQL("")
        return sql.SQL("SELECT {} FROM ({}) AS l{}").format(names, last, condition)

    def _delete(self, table: sql.Identifier) -> sql.Composed:
        keys = self._key_columns
        matches = [
            sql.SQL("{} = {}").format(sql.Identifier("t", key.name), sql.Identifier("r", key.name)) for key in keys
        ]
        return sql.SQL("DELETE FROM {} AS t USING ({}) AS r WHERE {}").format(
            table, self._rows(keys, _ORDINAL), sql.SQL(" AND ").join(matches)
        )

    def _rows(self, columns: Sequence[Column], *more: sql.Identifier) -> sql.Composed:
        """Return the query of the rows that the arrays are; `more` are names after those of the columns."""
        return sql.SQL("SELECT {}, {} FROM unnest({}) WITH ORDINALITY AS u ({}, {})").format(
            sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(self._expression(number, column), sql.Identifier(column.name))
                for number, column in enumerate(columns)
            ),
            sql.SQL(", ").join(more),
            sql.SQL(_PARAMETERS),
            sql.SQL(", ").join(sql.Identifier(f"c{number}") for number in range(len(columns))),
            sql.SQL(", ").join(more),
        )

    def _with_parameters(self, statement: sql.Composed, columns: Sequence[Column], *, deletes: bool = False) -> sql.SQL:
        types = [*(self._array_type(column) for column in columns), *(["boolean"] if deletes else [])]
        arrays = ", ".join(f"%b::{each}[]" for each in types)
        return sql.SQL(statement.as_string().replace("%", "%%").replace(_PARAMETERS, arrays))

    def _array_type(self, column: Column) -> str:
        if column.field in ("partition", "offset", "timestamp"):
            return "bigint"
        return "bytea" if self._types[column.name] == "bytea" else "text"

    def _expression(self, number: int, column: Column) -> sql.Composed:
        value: sql.Composable = sql.Identifier("u", f"c{number}")
        type_name = self._types[column.name]
        if column.field == "timestamp" and type_name != "bigint":  # milliseconds, which a bigint column keeps
            value = sql.SQL("(timestamptz 'epoch' + {} * interval '1 millisecond')").format(value)
        return sql.SQL("{}::{}").format(value, sql.SQL(type_name))

    def steps(self, batch: Batch) -> list[tuple[sql.SQL, list[Sequence[Any]]]]:
        """Return the statements that write a batch, each with its arrays.

        Raises:
            PoisonError: A value that has no form for its column, or none in a key column.
        """
        values: dict[str, Sequence[Any]] = dict(self._layout.json_columns(batch))
        for column in self._layout.columns:
            values[column.name] = self._column(batch, column, values.get(column.name, ()))
        self._layout.check_keys(batch, values)
        arrays = [values[column.name] for column in self._layout.columns]
        if self._deletion is None:
            return [(self._insertion, arrays)]
        gone = tombstones(batch)
        steps = [(self._insertion, [*arrays, gone])]
        if any(gone):
            steps.insert(0, (self._deletion, [list(compress(values[key.name], gone)) for key in self._key_columns]))
        return steps

    def _column(self, batch: Batch, column: Column, json_values: Sequence[Any]) -> Sequence[Any]:
        match column.field:
            case _ if column.path:
                values = json_values
            case "timestamp":
                return batch.column("timestamp_ms")
            case "headers":
                values = header_texts(batch)
            case field:
                values = batch.column(field)
        array_type = self._array_type(column)
        if array_type == "bigint":
            return values
        if array_type == "bytea":
            return convert(batch, values, to_bytes)
        is_made = bool(column.path) or column.field in batch.decoded  # by a decoder, so that a string is not JSON yet
        return convert(batch, values, _to_json_text if is_made and self._types[column.name] in _JSON else _to_text)


def _to_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    return to_json(value).decode() if isinstance(value, (dict, list, bool)) else str(value)


def _to_json_text(value: Any) -> str | None:
    return None if value is None else to_json(value).decode()


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _types(connection: psycopg.Connection, table: sql.Identifier) -> dict[str, str]:
    """Return the columns of a table with their types, nothing if there is no such table.

    -1 leaves lengths out: a cast to `varchar(3)` would cut silently, the assignment to the column refuses.
    """
    rows = connection.execute(
        "SELECT attname, format_type(atttypid, -1) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        (table.as_string(),),
    )
    return dict(rows.fetchall())


def _create(connection: psycopg.Connection, statement: sql.Composed) -> None:
    # IF NOT EXISTS still fails when another process makes the same table at the same moment; then it is there.
    made_meanwhile = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject)
    with contextlib.suppress(*made_meanwhile), connection.transaction():
        connection.execute(statement)
