"""`Batch`: records of one lane, in order. Its views are built only when asked for.

A pipeline builds it and hands it to its sink on the same thread. `messages` costs nothing, `column` and `rows` a pass,
`to_arrow` a pass for each column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from connector.api.arrow import record_batch
from connector.api.arrow_fields import AvroRecord, field_batch
from connector.api.errors import PoisonError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from connector.api.record import Message
    from connector.api.types import Epoch, LaneId, Offset

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_ORIGIN = frozenset({"topic", "partition", "offset", "timestamp", "timestamp_ms"})
_NO_TIMESTAMP_TYPE = 0  # confluent_kafka.TIMESTAMP_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """Where a batch stands in its lane.

    `sequence` counts the batches of a lane from 0 without gaps; a retry keeps it. `first_offset` is that of the first
    record, `next_offset` the position after the batch, which may lie beyond the last record (gaps, INV-3).
    """

    lane: LaneId
    epoch: Epoch
    sequence: int
    topic: str
    partition: int
    first_offset: Offset
    next_offset: Offset
    topic_id: str | None = None


@dataclass(slots=True)
class Batch:
    """Records of one lane; `len(batch)` is their number, `size_bytes` what they count in the memory budget."""

    metadata: BatchMetadata
    messages: Sequence[Message]
    size_bytes: int = 0
    decoded: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # columns that a decoder has replaced
    avro_records: Mapping[str, Sequence[AvroRecord]] = field(default_factory=dict)  # what these were written with

    def __len__(self) -> int:
        return len(self.messages)

    def column(self, name: str) -> Sequence[Any]:
        """Return one value for each record.

        `key` and `value` are bytes or None, or what `CONNECTOR_KEY_FORMAT` and `CONNECTOR_VALUE_FORMAT` make of them;
        `timestamp` is an aware UTC datetime or None, `timestamp_ms` the number; `headers` a list of (name, bytes or
        None) with order and duplicates kept, empty when there are none.

        Raises:
            KeyError: No such column.
            PoisonError: A `timestamp` after the year 9999.
        """
        if name in self.decoded:
            return self.decoded[name]
        return _COLUMNS[name](self.messages)

    def rows(self, *columns: str) -> Iterable[tuple[Any, ...]]:
        """Return one tuple for each record, with these columns in this order."""
        return zip(*(self.column(name) for name in columns), strict=True)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the records as one Arrow record batch; `connector.api.arrow` says which columns it has.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        return record_batch(self)

    def fields_to_arrow(self, column: str = "value") -> pa.RecordBatch:
        """Return one Arrow column for each field of the objects in a decoded column, null where one is missing.

        Under `avro` the types are those of the schemas; under the other formats those that the values of this batch
        have in common, and JSON text where they have none. An entry that is null has null in every column.

        Raises:
            ConfigError: pyarrow is not installed.
            PoisonError: An entry that is no object, no field at all, or a value that does not fit its column's type.
        """
        return field_batch(self, column)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the records as a stream of one record batch, by the Arrow PyCapsule protocol.

        So whatever takes Arrow takes a batch: `pyarrow.table(batch)`, `polars.from_arrow(batch)`, DuckDB.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        capsule: object = record_batch(self).__arrow_c_stream__(requested_schema)
        return capsule

    def slice(self, start: int, stop: int) -> Batch:
        """Return records `start` to `stop` (exclusive) as a batch of their own, for isolating a bad record."""
        messages = self.messages[start:stop]
        last = stop >= len(self.messages)
        metadata = BatchMetadata(
            lane=self.metadata.lane,
            epoch=self.metadata.epoch,
            sequence=self.metadata.sequence,
            topic=self.metadata.topic,
            partition=self.metadata.partition,
            first_offset=messages[0].offset(),  # type: ignore[arg-type]  # a consumed message has an offset
            next_offset=self.metadata.next_offset if last else self.messages[stop].offset(),  # type: ignore[arg-type]
            topic_id=self.metadata.topic_id,
        )
        decoded = {name: column[start:stop] for name, column in self.decoded.items()}
        size_bytes = self.size_bytes * len(messages) // max(1, len(self.messages))
        return Batch(metadata, messages, size_bytes, decoded, self.avro_records)

    def select(self, indexes: Sequence[int]) -> Batch:
        """Return the records with these indexes, ascending, as a batch with the same metadata.

        Its position covers the records that are left out: they count as done (INV-8).
        """
        messages = [self.messages[index] for index in indexes]
        decoded = {name: [column[index] for index in indexes] for name, column in self.decoded.items()}
        size_bytes = self.size_bytes * len(messages) // max(1, len(self.messages))
        return Batch(self.metadata, messages, size_bytes, decoded, self.avro_records)

    def with_column(self, name: str, values: Sequence[Any]) -> Batch:
        """Return this batch with a column replaced, or one more: a value for each record.

        Raises:
            ValueError: The number of values differs, or the column tells where and when a record is from.
        """
        if name in _ORIGIN:
            raise ValueError(f"the column {name} tells where a record is from and stays; give the new one another name")
        if len(values) != len(self.messages):
            raise ValueError(f"{len(values)} value(s) for the column {name} of a batch of {len(self.messages)}")
        avro_records = {each: records for each, records in self.avro_records.items() if each != name}
        return Batch(self.metadata, self.messages, self.size_bytes, {**self.decoded, name: values}, avro_records)


def _timestamps_ms(messages: Sequence[Message]) -> list[int | None]:
    return [
        milliseconds if kind != _NO_TIMESTAMP_TYPE and milliseconds >= 0 else None
        for kind, milliseconds in (message.timestamp() for message in messages)
    ]


def _timestamps(messages: Sequence[Message]) -> list[datetime | None]:
    # Arithmetic, since datetime.fromtimestamp goes through a float and loses the last digits.
    try:
        return [
            None if milliseconds is None else _EPOCH_START + timedelta(milliseconds=milliseconds)
            for milliseconds in _timestamps_ms(messages)
        ]
    except OverflowError as error:
        raise PoisonError("a timestamp is after the year 9999: its producer seems to count smaller units") from error


_COLUMNS: dict[str, Callable[[Sequence[Message]], Sequence[Any]]] = {
    "topic": lambda messages: [message.topic() for message in messages],
    "partition": lambda messages: [message.partition() for message in messages],
    "offset": lambda messages: [message.offset() for message in messages],
    "key": lambda messages: [message.key() for message in messages],
    "value": lambda messages: [message.value() for message in messages],
    "headers": lambda messages: [message.headers() or [] for message in messages],
    "timestamp": _timestamps,
    "timestamp_ms": _timestamps_ms,
}
