"""Parquet sink: many batches make a file, in a folder or in a bucket of S3, that is there whole or not at all.

Batches are held back until their file ends: by rows, bytes, age, or because the connector asks for it. They are done
when the file is on disk, or stored by the bucket. Each batch becomes a table on the sink's thread, where its poison
shows; a thread of its own collects the tables and writes the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector import CloseReason, InputClosed, Sink

try:
    import pyarrow  # noqa: F401 - what is imported below needs it
except ImportError as missing:
    raise ImportError("the parquet sink needs pyarrow: pip install 'sluiceway[parquet]'") from missing

from sinks.parquet.columns import FIELDS, RECORD, to_table
from sinks.parquet.local import LocalFolder
from sinks.parquet.settings import ParquetSettings
from sinks.parquet.writer import Added, Dropped, Ended, FileWriter, Origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector import Batch, ConnectorError, Event, LaneId, SinkContext
    from sinks.parquet.writer import Store

__all__ = ["ParquetSettings", "ParquetSink"]

_FORMATS_WITH_FIELDS = ("json", "avro", "json-schema")


class ParquetSink(Sink[ParquetSettings]):
    """Writes Parquet files, each there whole or not at all."""

    max_in_flight = 1_000_000  # in effect none: the memory budget ends a file long before

    def __init__(self, settings: ParquetSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self._store = _store(settings)
        self._writer: FileWriter | None = None
        self._form = RECORD
        if settings.columns == "fields" or (
            settings.columns == "auto" and context.value_format in _FORMATS_WITH_FIELDS
        ):
            self._form = FIELDS

    def open(self) -> None:
        """See that files can be written.

        Raises:
            ConfigError: The folder cannot be used, or there is no such bucket.
            AuthenticationError: The store refuses the credentials.
            TransientError: The disk or the store fails.
        """
        self._store.open()
        if self._writer is None:
            self._writer = FileWriter(self._store, self.settings, self._form, f"parquet-{self.context.pipeline}")

    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        """Add a batch to the file of its lane.

        Raises:
            PoisonError: A record that has no row in these columns.
        """
        metadata = batch.metadata
        self._put(
            Added(
                lane=metadata.lane,
                origin=Origin(metadata.topic, metadata.partition, metadata.topic_id),
                table=to_table(batch, self._form),
                size_bytes=batch.size_bytes,
                is_typed="value" in batch.avro_records,
                done=done,
            )
        )

    def flush(self, lane: LaneId) -> None:
        """Let the file of a lane be written now."""
        self._put(Ended(lane))

    def on_event(self, event: Event) -> None:
        """Drop what is not written of a lane that is gone."""
        match event:
            case InputClosed(id=lane, reason=reason) if reason is not CloseReason.STALLED:
                self._put(Dropped(lane))
            case _:
                pass

    def probe(self) -> None:
        """Ask whether the folder or the bucket is there."""
        self._store.probe()

    def close(self) -> None:
        """End the writer."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _put(self, message: Added | Ended | Dropped) -> None:
        if self._writer is not None:
            self._writer.put(message)


def _store(settings: ParquetSettings) -> Store:
    if settings.bucket is None:
        return LocalFolder(settings.path)
    from sinks.parquet.s3 import Bucket  # noqa: PLC0415 - a folder needs no boto3

    return Bucket(*settings.bucket, settings)
