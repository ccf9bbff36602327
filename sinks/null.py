"""Null sink: drops every record, to show how fast everything before a sink is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector import Settings, Sink

if TYPE_CHECKING:
    from connector import Batch


class NullSink(Sink[Settings]):
    """Takes batches and keeps nothing of them; what it acknowledges is gone."""

    is_idempotent = True  # there is nothing to see of a repeat

    def write(self, batch: Batch) -> None:
        """Drop the batch, without a look at its records."""
