"""Avro: from the text of a writer's schema to a decoder of what was written with it.

Called by the registry's thread when a schema is new; the decoder is called on the pipelines' threads. Records are read
by the schema that they were written with, so that defaults and aliases, which are of readers, do not matter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fastavro import _read_py, parse_schema, schemaless_reader
from fastavro.read import LOGICAL_READERS

from connector.api.arrow_fields import EXACT_DECIMAL, AvroRecord
from connector.pipeline.decode import Format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WRAPPER = "SluicewayValue"  # without a namespace, which names inside would take over
_NAMED = frozenset({"record", "error", "enum", "fixed"})
_DEEP_BYTES = 2000
"""A payload up to here cannot nest deeper than the compiled reader's stack: a level takes a byte at least. It has no
limit of its own and ends the process (measured: between 2,000 and 20,000 levels)."""


def _exact_decimal(data: bytes, schema: Any, _: Any = None) -> Decimal:
    """Return a decimal as it was written; fastavro's own reader rounds one that has more digits than its precision."""
    return Decimal(f"{int.from_bytes(data, 'big', signed=True)}E-{schema.get('scale', 0)}")


def _uuid(data: bytes, *_: Any) -> UUID | bytes:
    return UUID(bytes=data) if len(data) == 16 else data


# Names of logical types that fastavro does not have, so that nobody else who reads with it sees a difference.
LOGICAL_READERS[f"bytes-{EXACT_DECIMAL}"] = LOGICAL_READERS[f"fixed-{EXACT_DECIMAL}"] = _exact_decimal
LOGICAL_READERS["fixed-uuid"] = _uuid


@dataclass(frozen=True, slots=True)
class AvroDecoder:
    """Decodes payloads of one schema. Any thread may call it.

    Raises:
        ValueError: From `decode`: the payload is not of this schema; the text names the field.
    """

    schema: dict[str, Any]  # a record; what is none stands in the field `value` of one
    names: Mapping[str, Any]  # the named types in it, by full name
    is_wrapped: bool  # in such a record, which takes no bytes
    is_raw: bool  # plain bytes, which the serializers write without a length
    is_recursive: bool
    format: Format = Format.AVRO

    @property
    def avro_records(self) -> tuple[AvroRecord, ...]:
        """The record types that a value can be of: one, several of a union, or none."""
        if not self.is_wrapped:
            return (AvroRecord(self.schema, self.names),)
        only = self.schema["fields"][0]["type"]
        branches = [self.names.get(each, each) if isinstance(each, str) else each for each in _branches(only)]
        is_record = [isinstance(each, dict) and each["type"] == "record" for each in branches]
        return tuple(AvroRecord(each, self.names) for each in branches) if all(is_record) else ()

    def decode(self, payload: bytes) -> Any:
        """Return the value: dict, list, str, bytes, number, Decimal, UUID, date and time types, or None."""
        if self.is_raw:
            return payload
        stream = BytesIO(payload)
        is_deep = self.is_recursive and len(payload) > _DEEP_BYTES
        read = _read_py.schemaless_reader if is_deep else schemaless_reader
        try:
            value: Any = read(stream, self.schema, None)
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        except Exception as error:  # whatever the reader makes of bytes that are something else
            where = _failing_field(self.schema, self.names, BytesIO(payload))
            raise ValueError(f"{_words(error, payload)} in the field {where}") from error
        if rest := len(payload) - stream.tell():
            raise ValueError(f"has {rest} byte(s) after its end")
        return value["value"] if self.is_wrapped else value


def avro_decoder(text: str, references: Sequence[tuple[str, str]]) -> AvroDecoder:
    """Return the decoder of a schema.

    Args:
        text: The schema, as JSON.
        references: Name and text of the schemas that it refers to, in the order in which they depend on each other.

    Raises:
        Exception: Whatever fastavro makes of a schema that is none.
    """
    names: dict[str, Any] = {}
    for _, referenced in references:
        parse_schema(_for_reading(json.loads(referenced)), named_schemas=names)
    raw = _for_reading(json.loads(text))
    is_record = isinstance(raw, dict) and raw.get("type") in ("record", "error")
    if not is_record:
        raw = _record_of(raw)
    schema: Any = parse_schema(raw, named_schemas=names)
    only = schema["fields"][0]["type"] if schema["fields"] else None
    return AvroDecoder(
        schema=schema,
        names=names,
        is_wrapped=not is_record,
        is_raw=not is_record and only in ("bytes", {"type": "bytes"}),
        is_recursive=_is_recursive(schema, names),
    )


def _branches(kind: Any) -> list[Any]:
    return [each for each in kind if each != "null"] if isinstance(kind, list) else [kind]


def _record_of(schema: Any) -> dict[str, Any]:
    return {"type": "record", "name": _WRAPPER, "fields": [{"name": "value", "type": schema}]}


def _for_reading(schema: Any) -> Any:
    """Return a schema without what is for writers and other readers, and with decimals that are read exactly."""
    if isinstance(schema, list):
        return [_for_reading(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in schema.items() if key not in ("default", "aliases")}
    for key in ("type", "items", "values", "fields"):
        if key in made:
            made[key] = _for_reading(made[key])
    if made.get("logicalType") == "decimal":
        precision, scale = made.get("precision"), made.get("scale", 0)
        is_valid = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0
        # The specification: a logical type that is not valid is ignored.
        made["logicalType"] = EXACT_DECIMAL if is_valid else None
    return made


def _is_recursive(schema: Any, names: Mapping[str, Any]) -> bool:
    """Whether a type of a parsed schema is inside itself, so that a payload decides how deep it nests."""
    inside: set[str] = set()
    done: set[str] = set()

    def visit(part: Any) -> bool:
        if isinstance(part, str):
            return part in names and visit(names[part])
        if isinstance(part, list):
            return any(map(visit, part))
        kind = part["type"]
        if kind not in ("record", "error"):
            return visit(part.get("items") or part.get("values") or ([] if kind in _NAMED else kind))
        name = part["name"]
        if name in inside or name in done:
            return name in inside
        inside.add(name)
        found = any(visit(field["type"]) for field in part["fields"])
        inside.discard(name)
        done.add(name)
        return found

    return visit(schema)


def _failing_field(record: Mapping[str, Any], names: Mapping[str, Any], stream: BytesIO, levels: int = 8) -> str:
    """Return the path of the first field that cannot be read, by reading one after the other; so many levels deep."""
    for field in record["fields"]:
        start = stream.tell()
        kind = field["type"]
        schema = parse_schema(_record_of(_by_name(kind)), named_schemas=dict(names))
        try:
            _read_py.schemaless_reader(stream, schema, None)
        except Exception:  # noqa: BLE001 - its place is what is wanted; why, the caller knows
            inner = names.get(kind, kind) if isinstance(kind, str) else kind
            if levels and isinstance(inner, dict) and inner["type"] == "record":
                stream.seek(start)
                return f"{field['name']}.{_failing_field(inner, names, stream, levels - 1)}"
            return str(field["name"])
    return str(record["fields"][-1]["name"]) if record["fields"] else "value"


def _by_name(kind: Any) -> Any:
    """Return a part of a parsed schema with the named types in it as names: they are defined already."""
    if isinstance(kind, list):
        return [_by_name(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    if kind["type"] in _NAMED:
        return kind["name"]
    return {key: _by_name(value) if key in ("items", "values") else value for key, value in kind.items()}


def _words(error: Exception, payload: bytes) -> str:
    """Say what the reader met, without the bytes that it read."""
    match error:
        case EOFError():
            return "ends too early"
        case IndexError() if payload[-1:] >= b"\x80":  # in the middle of a number
            return "ends too early"
        case UnicodeDecodeError():
            return "has a text that is not UTF-8"
        case IndexError():
            return "has a branch or a symbol that there is not"
        case OverflowError() | ValueError():
            return "has a date, a time or a UUID that there is not"
        case _:
            return f"is not valid ({type(error).__name__})"
