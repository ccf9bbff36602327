"""The built-in filter: what matches goes on, what is left out counts as done, what cannot be read is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Message
from pydantic import ValidationError

from connector import Batch, BatchMetadata, Epoch, LaneId, Offset, RecordErrors, SinkContext
from transforms.filter import FilterSettings, FilterTransform


def batch_of(*values: bytes | None) -> Batch:
    messages = [Message(topic="t", partition=0, offset=10 + n, key=b"k%d" % n, value=v) for n, v in enumerate(values)]
    return Batch(BatchMetadata(LaneId(1), Epoch(1), 0, "t", 0, Offset(10), Offset(99)), messages, size_bytes=1000)


def kept(batch: Batch, **settings: Any) -> list[int]:
    transform = FilterTransform(FilterSettings.model_validate(settings), SinkContext("g"))
    transform.open()
    result = transform.apply(batch)
    assert result.metadata == batch.metadata  # the position covers what was left out (INV-8)
    return [offset - 10 for offset in result.column("offset")]


def test_the_whole_text_has_to_match_and_null_does_not() -> None:
    batch = batch_of(b"paid", b"paid out", None, b"", "größe".encode())
    assert kept(batch, pattern="paid") == [0]
    assert kept(batch, pattern="paid.*") == [0, 1]
    assert kept(batch, pattern=".*") == [0, 1, 3, 4]
    assert kept(batch, pattern="größe") == [4]
    assert kept(batch, pattern="k[12]", column="key") == [1, 2]


def test_dropping_is_the_exact_opposite() -> None:
    batch = batch_of(b"paid", b"open", None)
    assert kept(batch, pattern="paid", drop=True) == [1, 2]
    assert kept(batch, pattern="x", drop=True) == [0, 1, 2]
    assert kept(batch, pattern="x") == []


def test_a_field_of_a_decoded_object_is_found_by_its_path_and_a_missing_one_does_not_match() -> None:
    values = [{"a": {"b": "x"}}, {"a": {"b": 5}}, {"a": {"b": True}}, {"a": "x"}, [1], None, {"a": {"b": None}}]
    batch = batch_of(*(json.dumps(value).encode() for value in values))
    batch.decoded = {"value": values}
    assert kept(batch, pattern="x|5|true", field="a.b") == [0, 1, 2]
    assert kept(batch, pattern=".*", field="a.b") == [0, 1, 2]


def test_bytes_that_are_no_text_are_named_by_their_index() -> None:
    with pytest.raises(RecordErrors) as refused:
        kept(batch_of(b"a", b"\xff", b"b", b"\xfe"), pattern="a")
    assert list(refused.value.errors) == [1, 3]


def test_a_pattern_that_is_none_is_refused_at_start() -> None:
    with pytest.raises(ValidationError, match="is no regular expression"):
        FilterSettings.model_validate({"pattern": "["})
