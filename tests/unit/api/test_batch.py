"""Views of a batch: null, empty and absent stay different things (INV-12)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from connector import Batch, BatchMetadata, Epoch, LaneId, Offset


def _batch(*messages: Message, next_offset: int = 99) -> Batch:
    metadata = BatchMetadata(LaneId(1), Epoch(2), 7, "orders", 3, Offset(10), Offset(next_offset), topic_id="abc")
    return Batch(metadata, messages, size_bytes=300)


def _message(offset: int, **fields: object) -> Message:
    return Message(topic="orders", partition=3, offset=offset, **fields)  # type: ignore[arg-type]  # any field of it


@pytest.mark.invariant(12)
def test_null_and_empty_are_kept_apart_in_key_value_and_header() -> None:
    batch = _batch(
        _message(10, key=None, value=b"", headers=[("a", None), ("a", b""), ("b", b"1")]),
        _message(11, key=b"", value=None),
    )
    assert list(batch.rows("offset", "key", "value")) == [(10, None, b""), (11, b"", None)]
    assert batch.column("headers") == [[("a", None), ("a", b""), ("b", b"1")], []]
    assert list(batch.rows("topic", "partition")) == [("orders", 3)] * 2
    assert len(batch) == 2


@pytest.mark.parametrize("timestamp", [(TIMESTAMP_NOT_AVAILABLE, 0), (TIMESTAMP_CREATE_TIME, -1)])
def test_a_missing_timestamp_is_none(timestamp: tuple[int, int]) -> None:
    batch = _batch(_message(10, timestamp=timestamp))
    assert batch.column("timestamp") == batch.column("timestamp_ms") == [None]


@pytest.mark.parametrize("milliseconds", [0, 1_700_000_000_123, 253_402_300_799_999])
def test_an_instant_is_aware_and_exact_to_the_millisecond(milliseconds: int) -> None:
    batch = _batch(_message(10, timestamp=(TIMESTAMP_CREATE_TIME, milliseconds)))
    (instant,) = batch.column("timestamp")
    assert instant.tzinfo is UTC
    assert (instant - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() == pytest.approx(milliseconds / 1000, abs=1e-6)
    assert instant.microsecond == milliseconds % 1000 * 1000
    assert batch.column("timestamp_ms") == [milliseconds]


def test_decoded_columns_stand_in_front_of_the_bytes() -> None:
    batch = _batch(_message(10, value=b"1"), _message(11, value=b"2"))
    batch.decoded = {"value": [1, 2]}
    assert list(batch.rows("offset", "value")) == [(10, 1), (11, 2)]


def test_an_unknown_column_is_an_error() -> None:
    with pytest.raises(KeyError):
        _batch().column("nothing")


def test_slices_tile_the_batch_in_offsets_bytes_and_decoded_columns() -> None:
    batch = _batch(*(_message(offset) for offset in (10, 20, 30)), next_offset=99)
    batch.decoded = {"value": ["a", "b", "c"]}
    head, tail = batch.slice(0, 1), batch.slice(1, 3)
    assert (head.metadata.first_offset, head.metadata.next_offset) == (10, 20)
    assert (tail.metadata.first_offset, tail.metadata.next_offset) == (20, 99)
    assert head.column("value") == ["a"]
    assert tail.column("value") == ["b", "c"]
    assert head.size_bytes + tail.size_bytes == batch.size_bytes
    assert {part.metadata.sequence for part in (head, tail)} == {7}
    assert {part.metadata.topic_id for part in (head, tail)} == {"abc"}
