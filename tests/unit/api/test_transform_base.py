"""A transform is written in a few lines; what it returns keeps the position and the order."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from connector import Batch, BatchMetadata, Epoch, Field, LaneId, Offset, Settings, SinkContext, Transform


class UpperSettings(Settings):
    column: str = Field("value", description="Which.")


class Upper(Transform[UpperSettings]):
    def apply(self, batch: Batch) -> Batch:
        name = self.settings.column
        return batch.with_column(name, [value and value.upper() for value in batch.column(name)])


class Louder(Upper):
    pass


def batch_of(*values: bytes | None) -> Batch:
    messages = [Message(topic="t", partition=3, offset=10 + n, value=value) for n, value in enumerate(values)]
    metadata = BatchMetadata(LaneId(1), Epoch(1), 4, "t", 3, Offset(10), Offset(99))
    return Batch(metadata, messages, size_bytes=300, decoded={"extra": list(range(len(values)))})


def test_the_type_argument_is_the_settings_model_of_subclasses_too() -> None:
    assert Upper.settings_type is Louder.settings_type is UpperSettings
    transform = Louder(UpperSettings.model_validate({}), SinkContext("g", pipeline=2))
    transform.open()
    assert list(transform.apply(batch_of(b"a", None, b"")).rows("offset", "value")) == [
        (10, b"A"),
        (11, None),
        (12, b""),
    ]
    assert transform.context.pipeline == 2
    transform.close()


def test_a_transform_without_apply_says_so() -> None:
    class Nothing(Transform[Settings]):
        pass

    with pytest.raises(TypeError, match="Nothing does not implement apply"):
        Nothing(Settings(), SinkContext("g")).apply(batch_of(b"a"))


@pytest.mark.invariant(8)
def test_what_is_selected_keeps_order_columns_and_the_position_of_what_is_left_out() -> None:
    batch = batch_of(b"a", b"b", b"c")
    selected = batch.select([0, 2])
    assert list(selected.rows("offset", "value", "extra")) == [(10, b"a", 0), (12, b"c", 2)]
    assert selected.metadata == batch.metadata
    assert selected.size_bytes == 200
    nothing = batch.select(())
    assert (len(nothing), nothing.size_bytes, nothing.metadata.next_offset) == (0, 0, 99)
    assert len(nothing.select(())) == 0


def test_a_changed_column_is_another_batch_and_the_bytes_stay() -> None:
    batch = batch_of(b"a", b"b")
    changed = batch.with_column("value", [1, 2]).with_column("customer", ["x", "y"])
    assert list(changed.rows("value", "customer", "extra")) == [(1, "x", 0), (2, "y", 1)]
    assert list(batch.column("value")) == [message.value() for message in changed.messages] == [b"a", b"b"]


@pytest.mark.parametrize("name", ["topic", "partition", "offset", "timestamp", "timestamp_ms"])
def test_where_a_record_is_from_cannot_be_changed(name: str) -> None:
    with pytest.raises(ValueError, match="give the new one another name"):
        batch_of(b"a").with_column(name, [1])


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"3 value\(s\) for the column value of a batch of 2"):
        batch_of(b"a", b"b").with_column("value", [1, 2, 3])
