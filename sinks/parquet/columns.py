"""A batch as a table, and how tables of one file come to one schema.

`to_table` is called on the sink's thread, the rest on that of the writer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from connector import ConfigError, PoisonError, json_default
from sinks.values import span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector import Batch

NO_TIMESTAMP = "__HIVE_DEFAULT_PARTITION__"
"""What Hive calls the partition of null."""

RECORD = ""
FIELDS = "kafka_"
"""The two forms of a table, by what the names of the columns begin with that tell where a record is from."""

_ORIGIN = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "headers")
_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)


def to_table(batch: Batch, form: str) -> pa.Table:
    """Return the records of a batch, a row for each.

    As `RECORD`: the columns of the Arrow form of a batch. As `FIELDS`: one column for each field of the values, then
    `kafka_topic` and so on, `kafka_tombstone` (the value is null), and the columns that transforms have added.

    Raises:
        ConfigError: Fields of values that nothing has decoded.
        PoisonError: A value that is no object, or has a field with a name that is taken.
    """
    columns = _record_columns(batch) if form == RECORD else _field_columns(batch)
    topic = f"{form}topic"
    columns[topic] = columns[topic].cast(pa.string())
    return pa.table(columns)


def _record_columns(batch: Batch) -> dict[str, Any]:
    records = batch.to_arrow()
    return {name: records.column(name) for name in records.schema.names}


def _field_columns(batch: Batch) -> dict[str, Any]:
    if "value" not in batch.decoded:
        raise ConfigError(
            "CONNECTOR_SINK_COLUMNS=fields needs values with fields. Set CONNECTOR_VALUE_FORMAT to json, avro or "
            "json-schema, or CONNECTOR_SINK_COLUMNS to record."
        )
    values = batch.column("value")
    # Without the value, of which this would make text.
    others = _record_columns(batch.with_column("value", [None] * len(batch)))
    del others["value"]
    origin = {FIELDS + name: others.pop(name) for name in _ORIGIN}
    origin[f"{FIELDS}tombstone"] = pa.array([value is None for value in values], pa.bool_())
    fields: dict[str, Any] = {}
    if not all(value is None or value == {} for value in values):
        found = batch.fields_to_arrow()
        fields = {name: found.column(name) for name in found.schema.names}
    if taken := (fields.keys() & (origin.keys() | others.keys())) | (origin.keys() & others.keys()):
        raise PoisonError(f"{span(batch)} cannot be written: two columns would have the name {min(taken)}")
    return {**fields, **origin, **others}


class Rows:
    """The rows of one file: tables that have one schema, which widens with them.

    Args:
        table: The first.
    """

    def __init__(self, table: pa.Table) -> None:
        self._schema = table.schema
        self._tables = [table]

    def try_add(self, table: pa.Table, *, is_typed: bool) -> bool:
        """Add a table, if its columns fit to those that there are: then every value stays what it is.

        New columns and new fields are fine, and null, which has any type. Where types come from the data, whole numbers
        may also become numbers with a fraction, if they are exact there.

        Args:
            table: What is added.
            is_typed: The types are those of a schema, and another type is meant to be another.
        """
        if table.schema.equals(self._schema):
            self._tables.append(table)
            return True
        try:
            schema = pa.unify_schemas(
                [self._schema, table.schema], promote_options="default" if is_typed else "permissive"
            )
            added = _fitted(table, schema)
            if not schema.equals(self._schema):
                self._tables = [_fitted(each, schema) for each in self._tables]
        except pa.ArrowException:
            return False
        self._schema = schema
        self._tables.append(added)
        return True

    def table(self, offset: str) -> pa.Table:
        """Return all rows as Parquet can have them: without columns that are only null, and `{}` as text.

        They are in the order of the partition: a batch whose file failed comes again behind those that came after it.

        Args:
            offset: The name of the column with the offset.
        """
        table = pa.concat_tables(sorted(self._tables, key=lambda each: each.column(offset)[:1].to_pylist()))
        for name in table.column_names:
            column = table.column(name)
            if pa.types.is_null(column.type):
                table = table.drop_columns([name])
            elif _has_empty_struct(column.type):
                texts = [None if value is None else _json(value) for value in column.to_pylist()]
                table = table.set_column(table.column_names.index(name), name, pa.array(texts, pa.string()))
        return table


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    names = set(table.column_names)
    columns = [
        table.column(field.name).cast(field.type) if field.name in names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _has_empty_struct(kind: Any) -> bool:
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return True
    return any(_has_empty_struct(kind.field(index).type) for index in range(kind.num_fields))


def _json(value: Any) -> str:
    return orjson.dumps(value, json_default).decode()


def split_by_time(table: pa.Table, timestamp: str, unit: timedelta) -> Iterator[tuple[datetime | None, pa.Table]]:
    """Yield the rows of each day or hour, and when it begins; None: without a timestamp, or after the year 9999."""
    numbers = pc.divide(table.column(timestamp).cast(pa.int64()), int(unit.total_seconds() * 1000))
    begins = {number: _begin(number, unit) for number in numbers.unique().to_pylist()}
    for begin in dict.fromkeys(begins.values()):
        wanted = pa.array([number for number, each in begins.items() if each == begin], pa.int64())
        yield begin, table.filter(pc.is_in(numbers, value_set=wanted))


def _begin(number: int | None, unit: timedelta) -> datetime | None:
    try:
        return None if number is None else _EPOCH_START + number * unit
    except OverflowError:
        return None
