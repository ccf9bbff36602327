"""What a record becomes in a table: settings and columns that the database sinks share.

A column takes a field of the record (`@offset`), or a field of the value (`user.name`) or of the key (`@key.id`), read
as JSON. By default there is one for each field of the record, and topic, partition and offset are the key: a repeated
record meets its own row. For a tombstone to delete a row, the record's key has to say which one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import AfterValidator

from connector import Field, PoisonError, Settings
from sinks.template import placeholders
from sinks.values import position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector import Batch

Mode: TypeAlias = Literal["insert", "upsert", "ignore"]

MODE_DESCRIPTION = (
    "What a record does whose key is there already: `upsert` replaces the row, `ignore` leaves it, both so that a "
    "repeat does no harm; `insert` is for tables without a key, else a repeat is a poison record"
)
RECORD_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Column:
    """A column and where it comes from: a field of the record, or, with a path, what is there in its JSON."""

    name: str
    field: str
    path: tuple[str, ...] = ()


def parse_columns(text: str) -> tuple[Column, ...]:
    """Return the columns of `id:@key.id,name:user.name,position:@offset`.

    Raises:
        ValueError: Another form, an unknown field of the record, or a column twice.
    """
    columns = []
    for part in text.split(","):
        name, _, source = (word.strip() for word in part.partition(":"))
        if not name or not source or ":" in source or not all(source.split(".")):
            raise ValueError(f"has {part.strip()!r}; write column:field, as in id:id,name:user.name,position:@offset")
        if not source.startswith("@"):
            columns.append(Column(name, "value", tuple(source.split("."))))
        elif source[1:] in RECORD_FIELDS:
            columns.append(Column(name, source[1:]))
        elif source.startswith("@key."):
            columns.append(Column(name, "key", tuple(source.split(".")[1:])))
        else:
            known = ", ".join(f"@{field}" for field in RECORD_FIELDS)
            raise ValueError(f"has {source!r}, which is no field of a record; there are {known}, @key.field")
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"has the column {name!r} twice")
    return tuple(columns)


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names of a comma list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def check_table(table: str) -> str:
    """Return a template of a table name, or raise a ValueError that says what is wrong with it."""
    placeholders(table, ("topic",))
    if not table.strip():
        raise ValueError("is empty; name a table, or leave it out")
    return table


def _check_columns(columns: str) -> str:
    parse_columns(columns)
    return columns


class TableSettings(Settings):
    """Settings that every sink with tables has."""

    table: Annotated[str, AfterValidator(check_table)] = Field(
        default="records", description="Table, a template: {topic}. Made when it is missing"
    )
    mode: Mode = Field(default="upsert", description=MODE_DESCRIPTION)
    columns: Annotated[str, AfterValidator(_check_columns)] = Field(
        default=",".join(f"{field}:@{field}" for field in RECORD_FIELDS),
        description="Comma list of column:field. A field is one of the record (@topic, @partition, @offset, "
        "@timestamp, @key, @value, @headers), of its value read as JSON, with dots into objects (user.name), or of its "
        "key read as JSON (@key.id); NULL if missing",
    )
    key_columns: str = Field(
        default="topic,partition,offset", description="Comma list of the columns that tell rows apart"
    )
    primary_key: bool = Field(
        default=True,
        description="Whether a table that the sink makes has the key columns as its primary key. Without one, which "
        "needs mode=insert, each write of a record leaves a row of its own, so that repeats can be counted",
    )

    def problems(self, pipelines: int) -> list[str]:
        """Refuse a mode without a key and a key without its columns."""
        if not self.primary_key:
            problem = (
                f"CONNECTOR_SINK_PRIMARY_KEY=false leaves CONNECTOR_SINK_MODE={self.mode} nothing to find a row by. "
                "Set CONNECTOR_SINK_MODE=insert."
            )
            return [] if self.mode == "insert" else [problem]
        names = [column.name for column in parse_columns(self.columns)]
        keys = parse_names(self.key_columns)
        missing = [key for key in keys if key not in names]
        what = f"names {', '.join(missing)}, which CONNECTOR_SINK_COLUMNS does not have" if missing else "is empty"
        problem = (
            f"CONNECTOR_SINK_KEY_COLUMNS={self.key_columns} {what}. Name columns of {', '.join(names)}, or set "
            "CONNECTOR_SINK_MODE=insert and CONNECTOR_SINK_PRIMARY_KEY=false."
        )
        return [problem] if missing or not keys else []

    def delete_problems(self) -> list[str]:
        """Refuse settings under which the key of a record does not tell its row, or a row is not replaced."""
        way_out = "or set CONNECTOR_TOMBSTONES to write, ignore or fail."
        if self.mode != "upsert":
            problem = (
                f"CONNECTOR_TOMBSTONES=delete needs rows that follow the last record of their key, which those of "
                f"CONNECTOR_SINK_MODE={self.mode} do not. Set CONNECTOR_SINK_MODE=upsert, {way_out}"
            )
            return [problem]
        keys = parse_names(self.key_columns)
        fields = {column.name: column.field for column in parse_columns(self.columns) if column.name in keys}
        # A partition is no part of it: a key that moves when partitions are added would leave its old row behind.
        others = [name for name, field in fields.items() if field not in ("key", "topic")]
        if not others and "key" in fields.values():
            return []
        what = f"has {', '.join(others)}, and" if others else "takes nothing from the key, and"
        problem = (
            f"CONNECTOR_TOMBSTONES=delete: CONNECTOR_SINK_KEY_COLUMNS={self.key_columns} {what} only its key tells "
            "which row a tombstone deletes. Name columns that CONNECTOR_SINK_COLUMNS takes from the key, as in id:@key "
            f"or id:@key.id, {way_out}"
        )
        return [problem]


class TableLayout:
    """The columns of a sink's tables, parsed once, and their values in a batch."""

    def __init__(self, settings: TableSettings) -> None:
        self.columns = parse_columns(settings.columns)
        self.keys = parse_names(settings.key_columns) if settings.primary_key else ()
        self.reads_json = any(column.path for column in self.columns)

    def json_columns(self, batch: Batch) -> dict[str, list[Any]]:
        """Return the values of the columns that come out of JSON, by column name; a missing field is None.

        Raises:
            PoisonError: A value or key that is not a JSON object.
        """
        columns = [column for column in self.columns if column.path]
        documents = {field: _documents(batch, field) for field in {column.field: None for column in columns}}
        return {column.name: _walk(documents[column.field], column.path) for column in columns}

    def check_keys(self, batch: Batch, values: dict[str, Sequence[Any]]) -> None:
        """See that no key column is NULL: it would match nothing, and each repeat would be a new row.

        Raises:
            PoisonError: One is.
        """
        for key in self.keys:
            if None in values[key]:
                index = list(values[key]).index(None)
                raise PoisonError(f"{position(batch, index)} has no value for the key column {key!r}")


def tombstones(batch: Batch) -> list[bool]:
    """Return for each record whether it has no value, as decoder and transforms have left it."""
    return [value is None for value in batch.column("value")]


def _documents(batch: Batch, field: str) -> list[dict[str, Any]]:
    documents = []
    for index, value in enumerate(batch.column(field)):
        document = value
        if isinstance(value, (bytes, str)):
            try:
                document = orjson.loads(value)
            except orjson.JSONDecodeError as error:
                raise PoisonError(f"{position(batch, index)} has a {field} that is not JSON: {error}") from error
        if document is None:  # a tombstone has no fields
            document = {}
        if not isinstance(document, dict):
            raise PoisonError(f"{position(batch, index)} has a {field} that is JSON, but not an object with fields")
        documents.append(document)
    return documents


def _walk(documents: list[dict[str, Any]], path: tuple[str, ...]) -> list[Any]:
    values: list[Any] = documents
    for name in path:
        values = [value.get(name) if isinstance(value, dict) else None for value in values]
    return values
