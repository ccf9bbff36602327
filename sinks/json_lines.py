"""Records as lines, the form that the `file`, `stdout` and `http` sinks write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import orjson

from connector import PoisonError, json_default
from sinks.values import convert, iso_timestamps, position, readable, to_bytes, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector import Batch

LineFormat: TypeAlias = Literal["record", "value"]

FORMAT_DESCRIPTION = (
    "`record`: a JSON object with topic, partition, offset, timestamp, key, value and headers; `value`: the value "
    "alone, as it is or, decoded, as JSON; null and empty are both an empty line, and a line break in it is a poison "
    "record"
)


def to_lines(batch: Batch, line_format: LineFormat) -> bytes | bytearray:
    """Return one line for each record, in order, each with its line break.

    Raises:
        PoisonError: A value that JSON cannot express, or, as a bare value, one with a line break in it.
    """
    return _record_lines(batch) if line_format == "record" else _value_lines(batch)


def to_json_values(batch: Batch) -> bytes:
    """Return one line for each record, in order: its value alone, as JSON without line breaks; null for none.

    Raises:
        PoisonError: A value that is not JSON, or that JSON cannot express.
    """
    lines = convert(batch, batch.column("value"), to_json if "value" in batch.decoded else _json_text)
    lines.append(b"")
    return b"\n".join(lines)


def _json_text(value: bytes | None) -> bytes:
    if value is None:
        return b"null"
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"its value is not JSON ({error}). CONNECTOR_SINK_FORMAT=record takes any value") from error
    # Within strings a line break is written \\n, so what is replaced is only space.
    return value.replace(b"\n", b" ").replace(b"\r", b" ")


def _record_lines(batch: Batch) -> bytearray:
    topic, partition = batch.metadata.topic, batch.metadata.partition
    # One buffer, not a list to join: orjson's bytes occupy a kilobyte each for as long as they are kept (measured: six
    # times as long).
    lines = bytearray()
    records = zip(
        batch.column("offset"),
        iso_timestamps(batch),
        _readable_column(batch, "key"),
        _readable_column(batch, "value"),
        batch.column("headers"),
        strict=True,
    )
    try:
        for offset, timestamp, key, value, headers in records:
            record = {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "timestamp": timestamp,
                "key": key,
                "value": value,
                "headers": [(name, readable(content)) for name, content in headers] if headers else headers,
            }
            lines += orjson.dumps(record, json_default, orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z)
    except orjson.JSONEncodeError as error:
        index = lines.count(b"\n")
        raise PoisonError(f"{position(batch, index)} cannot be written as JSON: {error}") from error
    return lines


def _value_lines(batch: Batch) -> bytes:
    values = batch.column("value")
    if "value" in batch.decoded:
        values = convert(batch, values, to_bytes)
    lines = [value or b"" for value in values]
    lines.append(b"")
    data = b"\n".join(lines)
    if data.count(b"\n") != len(values):
        index = next(index for index, line in enumerate(lines) if b"\n" in line)
        raise PoisonError(
            f"{position(batch, index)} has a line break in its value, and format=value writes one record a line. Set "
            "CONNECTOR_SINK_FORMAT=record, or CONNECTOR_VALUE_FORMAT=json, which writes a value without line breaks."
        )
    return data


def _readable_column(batch: Batch, name: str) -> Sequence[Any]:
    values = batch.column(name)
    if name in batch.decoded:
        return values
    try:
        return [None if value is None else value.decode() for value in values]
    except UnicodeDecodeError:
        return [readable(value) for value in values]
