"""A batch as Arrow: columns, built at once from lists, for sinks that write Parquet, Iceberg, Delta or a data frame.

Called on the sink's thread, through `Batch.to_arrow` and `Batch.__arrow_c_stream__`, and imports pyarrow only then.
The schema of a topic stays the same: null is kept apart from empty (INV-12), and a decoded column is text, or binary
where a transform gives bytes.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import orjson

from connector.api.errors import ConfigError, PoisonError
from connector.api.json_values import json_default

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from connector.api.batch import Batch


def record_batch(batch: Batch) -> pa.RecordBatch:
    """Return the records as one record batch.

    Columns: topic (dictionary of string), partition (int32), offset (int64), timestamp (milliseconds, UTC; null when
    there is none), timestamp_type (int8, as in the protocol of the client: 0 none, 1 create time, 2 log append time),
    key and value (binary, or string when decoded), headers (list of structs of name and value, in order), and then the
    columns that transforms have added, as decoded ones.

    Raises:
        ConfigError: pyarrow is not installed.
        PoisonError: A decoded value that is neither text nor bytes and has no JSON form.
    """
    arrow = load_pyarrow()
    count = len(batch)
    topic = arrow.DictionaryArray.from_arrays(
        arrow.repeat(arrow.scalar(0, arrow.int32()), count), arrow.array([batch.metadata.topic], arrow.string())
    )
    columns = {
        "topic": topic,
        "partition": arrow.repeat(arrow.scalar(batch.metadata.partition, arrow.int32()), count),
        "offset": arrow.array(batch.column("offset"), arrow.int64()),
        "timestamp": arrow.array(batch.column("timestamp_ms"), arrow.timestamp("ms", tz="UTC")),
        "timestamp_type": arrow.array([message.timestamp()[0] for message in batch.messages], arrow.int8()),
        "key": _entries(arrow, batch, "key"),
        "value": _entries(arrow, batch, "value"),
        "headers": _headers(arrow, batch.column("headers")),
    }
    columns |= {name: _entries(arrow, batch, name) for name in batch.decoded if name not in columns}
    return arrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def load_pyarrow() -> Any:
    """Return pyarrow; a `ConfigError` says how to get it."""
    try:
        import pyarrow as arrow  # noqa: PLC0415 - optional, and not wanted by most
    except ImportError as error:
        raise ConfigError(
            "the Arrow form of a batch needs pyarrow: pip install pyarrow, or pip install 'sluiceway[arrow]'"
        ) from error
    return arrow


def _entries(arrow: Any, batch: Batch, name: str) -> Any:
    """Return a column of entries. What is decoded becomes text or else JSON, so that its type does not hang on data."""
    entries = batch.column(name)
    if name not in batch.decoded:
        return arrow.array(entries, arrow.binary())
    texts = [entry if isinstance(entry, (str, bytes)) else json_text(entry) for entry in entries]
    is_binary = any(isinstance(entry, bytes) for entry in texts)
    return arrow.array(texts, arrow.binary() if is_binary else arrow.string())


def json_text(value: Any) -> str | None:
    """Return a decoded value as JSON, None as it is; a `PoisonError` where it has no such form."""
    if value is None:
        return None
    try:
        return orjson.dumps(value, json_default, orjson.OPT_UTC_Z).decode()
    except orjson.JSONEncodeError as error:
        raise PoisonError(f"a decoded value has no form in Arrow: {error}") from error


def _headers(arrow: Any, headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Any:
    pairs = [pair for each in headers for pair in each]
    entries = arrow.StructArray.from_arrays(
        [_names(arrow, [name for name, _ in pairs]), arrow.array([value for _, value in pairs], arrow.binary())],
        names=["name", "value"],
    )
    ends = accumulate(map(len, headers), initial=0)
    return arrow.ListArray.from_arrays(arrow.array(ends, arrow.int32()), entries)


def _names(arrow: Any, names: Sequence[str]) -> Any:
    """Return header names; null for one that is not UTF-8, which Arrow's strings have to be."""
    try:
        return arrow.array(names, arrow.string())
    except UnicodeEncodeError:
        return arrow.array([_encodable(name) for name in names], arrow.string())


def _encodable(name: str) -> str | None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return None
    return name
