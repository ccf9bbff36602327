"""Batches of real client messages for the tests of sinks."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import confluent_kafka

from connector import Batch, BatchMetadata, Epoch, LaneId, Offset, SinkContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMESTAMP_MS = 1_767_225_599_123  # 2025-12-31T23:59:59.123Z
CONTEXT = SinkContext(group_id="group", host="host-1")


@dataclass(frozen=True)
class Record:
    """What a test says of a record."""

    value: bytes | None = b"{}"
    key: bytes | None = b"key"
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp_ms: int | None = TIMESTAMP_MS


NASTY = (
    Record(value=None, key=None),
    Record(value=b"", key=b"", headers=[("h", b""), ("h", None)]),
    Record(value=b"\xff\xfe", key=b"\x80", headers=[("h", b"\xc3\x28")]),
    Record(value=b"a\x00b", key=b"\x00", headers=[("h", b"\x00")], timestamp_ms=None),
    Record(value="ä\u2028\U0001f600".encode(), headers=[("é", "ü".encode()), ("a", b"1"), ("a", b"2")]),
    Record(value=b'{"base64": "AA=="}'),
)


def restore(form: object) -> bytes | None:
    """Return the bytes that a JSON form stands for."""
    if isinstance(form, dict):
        return base64.b64decode(form["base64"], validate=True)
    return form.encode() if isinstance(form, str) else None


def make_batch(
    *records: Record | bytes | None,
    topic: str = "orders",
    partition: int = 3,
    offset: int = 10,
    lane: int = 1,
    decoded: Mapping[str, Sequence[Any]] | None = None,
    topic_id: str | None = "id-1",
) -> Batch:
    """Return a batch of consecutive offsets; plain bytes are the value of a record."""
    messages = []
    for number, given in enumerate(records):
        record = given if isinstance(given, Record) else Record(given)
        messages.append(
            confluent_kafka.Message(
                topic=topic,
                partition=partition,
                offset=offset + number,
                key=record.key,
                value=record.value,
                headers=record.headers,  # type: ignore[arg-type]  # the client's stub wants str among the values
                timestamp=(0, -1) if record.timestamp_ms is None else (1, record.timestamp_ms),
            )
        )
    metadata = BatchMetadata(
        lane=LaneId(lane),
        epoch=Epoch(1),
        sequence=0,
        topic=topic,
        partition=partition,
        first_offset=Offset(offset),
        next_offset=Offset(offset + len(messages)),
        topic_id=topic_id,
    )
    return Batch(metadata, messages, decoded=decoded or {})
