"""SQLite sink: one transaction for each batch, rows keyed by topic, partition and offset, so a replay replaces its own.

Several processes may write one database, on one host: write-ahead log, one writer at a time, and whoever waits too long
tries again later. `synchronous=FULL` puts a transaction on disk before it returns. One connection, owned by the sink's
thread; after any error it is closed, which rolls back, and the next write opens it anew.
"""

from __future__ import annotations

import sqlite3
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from connector import ConfigError, ConnectorError, FatalError, Field, PoisonError, Sink, TransientError
from sinks.table import Column, TableLayout, TableSettings, tombstones
from sinks.values import convert, header_texts, iso_timestamps, span, to_json, to_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector import Batch, SinkContext

_BUSY_SECONDS = 1.0  # short, since the pipeline waits; the retry of a busy database is the runtime's
_TYPES = {
    "topic": "TEXT",
    "partition": "INTEGER",
    "offset": "INTEGER",
    "timestamp": "TEXT",
    "key": "BLOB",
    "value": "BLOB",
    "headers": "TEXT",
}
_TRANSIENT = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_SCHEMA,
    )
)
_POISON = frozenset((sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH))
_CONFIGURATION = frozenset(
    (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_ERROR)
)


def _check_path(path: str) -> str:
    if not path or path.startswith(":"):
        raise ValueError("is not the path of a file; a database in memory would lose what it acknowledges")
    return path


class SqliteSettings(TableSettings):
    """Settings of the sink `sqlite`."""

    path: Annotated[str, AfterValidator(_check_path)] = Field(
        description="Database file, on a local disk. It and missing directories are made"
    )


class SqliteSink(Sink[SqliteSettings]):
    """Writes rows into tables of one database file."""

    def __init__(self, settings: SqliteSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self._layout = TableLayout(settings)
        self._database: sqlite3.Connection | None = None
        # For each topic whose table is known to be there: what inserts a row, and what deletes one.
        self._statements: dict[str, tuple[str, str]] = {}

    @property
    def is_idempotent(self) -> bool:
        """Whether a repeat meets its own row."""
        return self.settings.mode != "insert"

    @property
    def deletes(self) -> bool:
        """Whether the key of a record tells its row."""
        return not self.settings.delete_problems()

    def open(self) -> None:
        """Open the database, or make it.

        Raises:
            ConfigError: The path cannot be used.
            TransientError: The database is locked, or the disk full.
        """
        self.close()
        directory = Path(self.settings.path).parent
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._connect()
        except OSError as error:
            raise ConfigError(f"cannot make {directory} for CONNECTOR_SINK_PATH: {error.strerror}") from error
        except sqlite3.Error as error:
            self.close()
            raise self._classify(error, "open") from error

    def _connect(self) -> sqlite3.Connection:
        self._database = sqlite3.connect(self.settings.path, timeout=_BUSY_SECONDS, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        return self._database

    def write(self, batch: Batch) -> None:
        """Write the batch in one transaction.

        Raises:
            ConfigError: The table does not fit the settings.
            PoisonError: A value that cannot be stored, or a repeated key in mode `insert`.
            TransientError: The database is locked, or the disk full.
        """
        if not batch:
            return
        values = self._values(batch)
        self._layout.check_keys(batch, values)
        try:
            self._apply(self._database or self._connect(), batch, values)
        except (OverflowError, UnicodeEncodeError) as error:
            self.close()
            raise PoisonError(f"{span(batch)}: a value does not fit into SQLite: {error}") from error
        except sqlite3.Error as error:
            self.close()
            raise self._classify(error, span(batch)) from error

    def close(self) -> None:
        """Close the database; an open transaction is rolled back."""
        self._statements.clear()
        if self._database is not None:
            self._database.close()
            self._database = None

    def _values(self, batch: Batch) -> dict[str, Sequence[Any]]:
        values: dict[str, Sequence[Any]] = dict(self._layout.json_columns(batch))
        for column in self._layout.columns:
            match column.field:
                case _ if column.path:
                    values[column.name] = convert(batch, values[column.name], _plain)
                case "timestamp":
                    values[column.name] = iso_timestamps(batch)
                case "headers":
                    values[column.name] = header_texts(batch)
                case field if field in batch.decoded:
                    values[column.name] = convert(batch, batch.column(field), _plain)
                case field:
                    values[column.name] = batch.column(field)
        return values

    def _apply(self, database: sqlite3.Connection, batch: Batch, values: dict[str, Sequence[Any]]) -> None:
        topic = batch.metadata.topic
        if topic not in self._statements:
            table = _quote(self.settings.table.format(topic=topic))
            database.execute(self._create(table))
            self._statements[topic] = self._insertion(table), self._deletion(table)
        insertion, deletion = self._statements[topic]
        rows = zip(*(values[column.name] for column in self._layout.columns), strict=True)
        database.execute(
            "BEGIN IMMEDIATE"
        )  # a plain BEGIN may find out at its first write that it cannot be the writer
        if self.context.tombstones == "delete":
            keys = zip(*(values[key] for key in self._layout.keys), strict=True)
            records = zip(tombstones(batch), rows, keys, strict=True)
            for is_tombstone, run in groupby(records, itemgetter(0)):  # in order, so that the last of a key stands
                if is_tombstone:
                    database.executemany(deletion, [key for _, _, key in run])
                else:
                    database.executemany(insertion, [row for _, row, _ in run])
        else:
            database.executemany(insertion, rows)
        database.execute("COMMIT")

    def _create(self, table: str) -> str:
        parts = [
            f"{_quote(column.name)} {_type(column)}{' NOT NULL' if column.name in self._layout.keys else ''}"
            for column in self._layout.columns
        ]
        if self._layout.keys:
            parts.append(f"PRIMARY KEY ({', '.join(map(_quote, self._layout.keys))})")
        return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(parts)})"

    def _deletion(self, table: str) -> str:
        keys = " AND ".join(f"{_quote(key)} = ?" for key in self._layout.keys)
        return f"DELETE FROM {table} WHERE {keys}"  # noqa: S608  # quoted

    def _insertion(self, table: str) -> str:
        names = [_quote(column.name) for column in self._layout.columns]
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608  # quoted
        if self.settings.mode == "insert":
            return statement
        keys = [_quote(key) for key in self._layout.keys]
        changes = [f"{name} = excluded.{name}" for name in names if name not in keys]
        action = f"UPDATE SET {', '.join(changes)}" if self.settings.mode == "upsert" and changes else "NOTHING"
        return f"{statement} ON CONFLICT ({', '.join(keys)}) DO {action}"

    def _classify(self, error: sqlite3.Error, doing: str) -> ConnectorError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
        text = f"{doing}: SQLite at {self.settings.path}: {error}"
        if code in _TRANSIENT:
            return TransientError(text)
        if code in _POISON or isinstance(error, sqlite3.DataError):
            return PoisonError(text)
        if code in _CONFIGURATION:
            return ConfigError(
                f"{text}. CONNECTOR_SINK_PATH needs a database that this user may write, and its table the columns of "
                "CONNECTOR_SINK_COLUMNS with CONNECTOR_SINK_KEY_COLUMNS as primary key; rename an older table to have "
                "a new one made."
            )
        return FatalError(text)


def _type(column: Column) -> str:
    return "" if column.path else _TYPES[column.field]  # a field out of JSON keeps the type that it has there


def _plain(value: Any) -> Any:
    """Return a decoded value as SQLite can store it: nested ones as JSON text."""
    if value is None or isinstance(value, (str, int, float, bytes)):
        return value
    return to_json(value).decode() if isinstance(value, (dict, list)) else to_text(value)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
