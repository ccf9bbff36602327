"""What the base class of every sink promises to plugin authors."""

from __future__ import annotations

import pytest

from connector import (
    Batch,
    BatchMetadata,
    Epoch,
    Event,
    Input,
    InputClosed,
    LaneId,
    LaneInfo,
    Offset,
    Settings,
    Sink,
    SinkContext,
    Stop,
    StopCause,
)


class _Settings(Settings):
    name: str = "x"


class _Simple(Sink[_Settings]):
    def write(self, batch: Batch) -> None:
        self.written = [*getattr(self, "written", []), batch]


class _Empty(Sink[Settings]):
    pass


class _Grandchild(_Simple):
    pass


def _batch() -> Batch:
    return Batch(BatchMetadata(LaneId(1), Epoch(1), 0, "t", 0, Offset(0), Offset(0)), [])


def test_the_settings_model_is_the_type_argument() -> None:
    assert _Simple.settings_type is _Settings
    assert _Grandchild.settings_type is _Settings
    assert Sink.settings_type is Settings


def test_a_simple_sink_gets_its_batches_and_ignores_every_other_event() -> None:
    sink = _Simple(_Settings(), SinkContext("group"))
    batch = _batch()
    sink.open()
    events: list[Event] = [Input(LaneId(1), batch.metadata, batch), InputClosed(LaneId(1)), Stop(StopCause.MANUAL)]
    for event in events:
        sink.on_event(event)
    sink.close()
    assert sink.written == [batch]
    assert sink.settings.name == "x"
    assert sink.context.group_id == "group"


def test_a_sink_without_write_says_so_at_the_first_batch() -> None:
    batch = _batch()
    with pytest.raises(TypeError, match="_Empty implements neither write nor on_event"):
        _Empty(Settings(), SinkContext("group")).on_event(Input(LaneId(1), batch.metadata, batch))


def test_a_sink_that_holds_positions_must_claim() -> None:
    sink = _Empty(Settings(), SinkContext("group"))
    assert not sink.holds_positions
    with pytest.raises(TypeError, match="does not implement claim"):
        sink.claim(LaneInfo(LaneId(1), "t", 0))


def test_a_sink_that_resets_positions_must_read_and_reset_them() -> None:
    sink = _Empty(Settings(), SinkContext("group"))
    assert not sink.resets_positions
    with pytest.raises(TypeError, match="does not implement read_positions"):
        sink.read_positions()
    with pytest.raises(TypeError, match="does not implement reset_positions"):
        sink.reset_positions({})
