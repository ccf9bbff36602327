"""The fields of decoded objects as Arrow columns, for sinks whose tables have a column for each field.

Called on the sink's thread, through `Batch.fields_to_arrow`. Under `avro` a column has the type that the schemas give
it, whatever the data; under the other formats the type that the values of the batch have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from connector.api.arrow import json_text, load_pyarrow
from connector.api.errors import PoisonError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from connector.api.batch import Batch

EXACT_DECIMAL = "sluiceway-decimal"
"""The logical type `decimal` in a schema that was made for reading, where it is valid."""


@dataclass(frozen=True, slots=True)
class AvroRecord:
    """A record type of Avro, as JSON has it, and the named types in it by full name."""

    schema: Mapping[str, Any]
    names: Mapping[str, Any]


def field_batch(batch: Batch, column: str) -> pa.RecordBatch:
    """Return a record batch with a column for each field of the objects in a decoded column.

    Raises:
        ConfigError: pyarrow is not installed.
        PoisonError: An entry that is no object, or a value that does not fit into the type of its column.
    """
    arrow = load_pyarrow()
    entries = batch.column(column)
    if not all(entry is None or isinstance(entry, dict) for entry in entries):
        raise PoisonError(f"a {column} is no object with fields, so that it has no columns")
    records = batch.avro_records.get(column, ())
    types = _Types(arrow).of(records)
    names = [*types] if records else list(dict.fromkeys(name for entry in entries if entry for name in entry))
    arrays = [
        _array(arrow, name, [entry.get(name) if entry else None for entry in entries], types.get(name))
        for name in names
    ]
    if not arrays:  # a record batch without columns would have no rows
        raise PoisonError(f"no {column} of the batch has a field, so that there are no columns")
    return arrow.RecordBatch.from_arrays(arrays, names=names)


def _array(arrow: Any, name: str, values: Sequence[Any], kind: Any) -> Any:
    if kind is None:
        try:
            return arrow.array([_fit(arrow, value, None) for value in values])
        except (arrow.ArrowException, OverflowError):  # nothing in common
            return arrow.array([json_text(value) for value in values], arrow.string())
    try:
        if not (arrow.types.is_nested(kind) or arrow.types.is_string(kind)):
            return arrow.array(values, kind)
        return arrow.array([_fit(arrow, value, kind) for value in values], kind)
    except (arrow.ArrowException, OverflowError) as error:
        raise PoisonError(f"the field {name} does not fit into the Arrow type {kind}: {error}") from error


def _fit(arrow: Any, value: Any, kind: Any) -> Any:
    """Return a value as pyarrow takes it for a type; None: any type."""
    fitted = value
    match value:
        case UUID():
            fitted = str(value)
        case None | str() | bytes():
            pass
        case _ if kind is not None and arrow.types.is_string(kind):
            fitted = json_text(value)
        case dict() if kind is not None and arrow.types.is_map(kind):
            fitted = [(key, _fit(arrow, each, kind.item_type)) for key, each in value.items()]
        case dict():
            inner = {} if kind is None else {field.name: field.type for field in kind}
            fitted = {key: _fit(arrow, each, inner.get(key)) for key, each in value.items()}
        case list():
            fitted = [_fit(arrow, each, None if kind is None else kind.value_type) for each in value]
    return fitted


class _Types:
    """Avro types to Arrow types. What has none is text: unions of several branches, types that contain themselves."""

    def __init__(self, arrow: Any) -> None:
        self._arrow = arrow
        self._plain = {
            "null": arrow.null(),
            "boolean": arrow.bool_(),
            "int": arrow.int32(),
            "long": arrow.int64(),
            "float": arrow.float32(),
            "double": arrow.float64(),
            "bytes": arrow.binary(),
            "string": arrow.string(),
        }
        self._logical = {
            "date": arrow.date32(),
            "time-millis": arrow.time32("ms"),
            "time-micros": arrow.time64("us"),
            "timestamp-millis": arrow.timestamp("ms", tz="UTC"),
            "timestamp-micros": arrow.timestamp("us", tz="UTC"),
            "local-timestamp-millis": arrow.timestamp("ms"),
            "local-timestamp-micros": arrow.timestamp("us"),
            "uuid": arrow.string(),
        }

    def of(self, records: Iterable[AvroRecord]) -> dict[str, Any]:
        """Return the types of the fields that records of several schemas have, by name."""
        types: dict[str, Any] = {}
        for record in records:
            for field in record.schema["fields"]:
                kind = self._type(field["type"], record.names, frozenset({record.schema["name"]}))
                name = field["name"]
                types[name] = kind if name not in types else self._common(types[name], kind)
        return types

    def _common(self, one: Any, other: Any) -> Any:
        if one == other:
            return one
        schemas = [self._arrow.schema([("field", kind)]) for kind in (one, other)]
        try:
            return self._arrow.unify_schemas(schemas, promote_options="permissive").field("field").type
        except self._arrow.ArrowException:
            return self._arrow.string()

    def _type(self, kind: Any, names: Mapping[str, Any], inside: frozenset[str]) -> Any:
        arrow = self._arrow
        if isinstance(kind, str):
            if kind in self._plain:
                return self._plain[kind]
            return arrow.string() if kind in inside else self._type(names[kind], names, inside)
        if isinstance(kind, list):
            branches = [each for each in kind if each != "null"]
            if not branches:
                return arrow.null()
            return arrow.string() if len(branches) > 1 else self._type(branches[0], names, inside)
        return self._defined(kind, names, inside)

    def _defined(self, kind: Mapping[str, Any], names: Mapping[str, Any], inside: frozenset[str]) -> Any:
        arrow, logical = self._arrow, kind.get("logicalType")
        match kind["type"]:
            case _ if logical in self._logical:
                found = self._logical[logical]
            case "bytes" | "fixed" if logical == EXACT_DECIMAL:
                found = self._decimal(kind)
            case "fixed":
                found = arrow.binary(kind["size"])
            case "enum":
                found = arrow.string()
            case "array":
                found = arrow.list_(self._type(kind["items"], names, inside))
            case "map":
                found = arrow.map_(arrow.string(), self._type(kind["values"], names, inside))
            case "record" if kind["fields"] and kind["name"] not in inside:
                within = inside | {kind["name"]}
                fields = [(field["name"], self._type(field["type"], names, within)) for field in kind["fields"]]
                found = arrow.struct(fields)
            case "record":
                found = arrow.string()
            case plain:
                found = self._type(plain, names, inside)
        return found

    def _decimal(self, kind: Mapping[str, Any]) -> Any:
        precision, scale = kind["precision"], kind.get("scale", 0)
        if precision <= 38:
            return self._arrow.decimal128(precision, scale)
        return self._arrow.decimal256(precision, scale) if precision <= 76 else self._arrow.string()
