"""Batches of real client messages, for tests of sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from connector.api.batch import Batch, BatchMetadata
from connector.api.types import Epoch, LaneId, Offset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Record:
    """What a test says of a record. A timestamp of None is none."""

    value: bytes | None = b"{}"
    key: bytes | None = b"key"
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = 1_767_225_599_123  # 2025-12-31T23:59:59.123Z


def make_batch(
    *records: Record | bytes | None,
    topic: str = "orders",
    partition: int = 0,
    offset: int = 0,
    next_offset: int | None = None,
    lane: int = 1,
    sequence: int = 0,
    topic_id: str | None = "id-1",
    decoded: Mapping[str, Sequence[Any]] | None = None,
) -> Batch:
    """Return a batch with consecutive offsets from `offset`; bytes and None are the value of a record.

    `decoded` gives columns as a format setting would leave them; `next_offset` is the position after the batch, by
    default that after its last record.
    """
    messages = [_message(each, topic, partition, number) for number, each in enumerate(records, offset)]
    metadata = BatchMetadata(
        lane=LaneId(lane),
        epoch=Epoch(1),
        sequence=sequence,
        topic=topic,
        partition=partition,
        first_offset=Offset(offset),
        next_offset=Offset(offset + len(messages) if next_offset is None else next_offset),
        topic_id=topic_id,
    )
    return Batch(metadata, messages, sum(map(len, messages)), decoded or {})


def _message(given: Record | bytes | None, topic: str, partition: int, offset: int) -> Message:
    record = given if isinstance(given, Record) else Record(given)
    no_timestamp = (TIMESTAMP_NOT_AVAILABLE, -1)
    return Message(
        topic=topic,
        partition=partition,
        offset=offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers) or None,
        timestamp=no_timestamp if record.timestamp_ms is None else (TIMESTAMP_CREATE_TIME, record.timestamp_ms),
    )
