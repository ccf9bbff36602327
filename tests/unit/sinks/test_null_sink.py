"""The sink `null`."""

from __future__ import annotations

from connector import Settings
from sinks.null import NullSink
from tests.unit.sinks.sink_batches import CONTEXT, make_batch


def test_it_never_looks_at_a_record() -> None:
    batch = make_batch(b"a")
    batch.messages = [None]  # type: ignore[list-item]  # whoever looks at it fails
    NullSink(Settings(), CONTEXT).write(batch)
