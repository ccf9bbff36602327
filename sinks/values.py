"""Values of a batch in the forms that destinations take: JSON, bytes, readable text.

Works on whole columns, on the sink's thread. Null, empty and undecodable stay three things (INV-12).
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from connector import PoisonError, json_default

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from connector import Batch

T = TypeVar("T")

_MILLISECONDS = tuple(f".{number:03d}Z" for number in range(1000))


def position(batch: Batch, index: int) -> str:
    """Name record `index` of a batch in an error: `orders[3]@42`."""
    return f"{batch.metadata.topic}[{batch.metadata.partition}]@{batch.messages[index].offset()}"


def span(batch: Batch) -> str:
    """Name the records of a batch in an error: `orders[3]@42..57`."""
    if not batch:
        return f"{batch.metadata.topic}[{batch.metadata.partition}]"
    first = position(batch, 0)
    return first if len(batch) == 1 else f"{first}..{batch.messages[-1].offset()}"


def convert(batch: Batch, values: Sequence[Any], function: Callable[[Any], T]) -> list[T]:
    """Return `function` of each value, one for each record of the batch.

    Raises:
        PoisonError: `function` raised a TypeError or ValueError; the text names the record.
    """
    converted: list[T] = []
    try:
        for value in values:
            converted.append(function(value))  # noqa: PERF401  # its length tells which one failed
    except (TypeError, ValueError) as error:
        raise PoisonError(f"{position(batch, len(converted))} cannot be written: {error}") from error
    return converted


def to_json(value: Any) -> bytes:
    """Return what a decoder made as JSON; a TypeError (`orjson.JSONEncodeError`) where JSON cannot express it."""
    return orjson.dumps(value, json_default, orjson.OPT_UTC_Z)


def to_text(value: Any) -> str:
    """Return a value that is neither an object nor an array as text: instants and times as ISO 8601, `Z` for UTC."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def to_bytes(value: Any) -> bytes | None:
    """Return bytes and strings as they are, null as None, anything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else to_json(value)


def readable(value: bytes | None) -> str | dict[str, str] | None:
    """Return bytes that are UTF-8 as a string, others as `{"base64": …}`."""
    return None if value is None else json_default(value)


def header_texts(batch: Batch) -> list[str]:
    """Return the headers of each record as the JSON text of a list of [name, value], order and duplicates kept."""
    return [
        orjson.dumps([(name, readable(content)) for name, content in headers]).decode() if headers else "[]"
        for headers in batch.column("headers")
    ]


def iso_timestamps(batch: Batch) -> list[str | None]:
    """Return timestamps in UTC as `2026-01-31T23:59:59.123Z`, None where a record has none.

    Raises:
        PoisonError: A timestamp after the year 9999, which ISO 8601 cannot express.
    """
    seconds: dict[int, str] = {}  # the records of a batch share a few of them
    texts: list[str | None] = []
    for timestamp in batch.column("timestamp_ms"):
        if timestamp is None:
            texts.append(None)
            continue
        second = timestamp // 1000
        if second not in seconds:
            try:
                seconds[second] = datetime.fromtimestamp(second, UTC).isoformat()[:19]
            except (ValueError, OverflowError, OSError) as error:
                raise PoisonError(
                    f"{position(batch, len(texts))} has the timestamp {timestamp} ms, after the year 9999. Its "
                    "producer probably counts in a smaller unit."
                ) from error
        texts.append(seconds[second] + _MILLISECONDS[timestamp % 1000])
    return texts
