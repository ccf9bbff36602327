"""`FileWriter`: a thread that collects the rows of each lane and makes files of them.

The sink's thread hands everything in by messages, so nothing here is shared. A file has its own thread since it is
written when it is old enough, whatever the pipeline does meanwhile; files are written one after the other.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Protocol, TypeAlias, assert_never

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog

from connector import TransientError
from sinks.parquet.columns import NO_TIMESTAMP, Rows, split_by_time
from sinks.parquet.settings import PLACEHOLDERS
from sinks.template import placeholders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from connector import ConnectorError, LaneId
    from sinks.parquet.settings import ParquetSettings

_log = structlog.get_logger(__name__)

_CLOSE_SECONDS = 30.0
_TOPIC_ID_LENGTH = 8


class Store(Protocol):
    """Where files go: there whole or not at all. Errors are `ConnectorError`s."""

    def open(self) -> None: ...
    def probe(self) -> None: ...
    def place(self, name: str) -> str: ...
    def put(self, name: str, data: pa.Buffer) -> None: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """The partition that the rows of a lane are from."""

    topic: str
    partition: int
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class Added:
    """The rows of one batch, and whom to tell what became of them."""

    lane: LaneId
    origin: Origin
    table: pa.Table
    size_bytes: int  # in the memory budget
    is_typed: bool  # the types of its columns come from a schema
    done: Callable[[ConnectorError | None], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """The file of this lane has to be written now."""

    lane: LaneId


@dataclass(frozen=True, slots=True)
class Dropped:
    """The lane is gone; what there is of it must not be written any more."""

    lane: LaneId


_Message: TypeAlias = Added | Ended | Dropped | None


@dataclass(slots=True)
class _OpenFile:
    origin: Origin
    rows: Rows
    due: float  # when it is old enough, time.monotonic()
    count: int = 0
    size_bytes: int = 0
    batches: list[Callable[[ConnectorError | None], None]] = field(default_factory=list)

    def note(self, added: Added) -> None:
        self.count += len(added.table)
        self.size_bytes += added.size_bytes
        self.batches.append(added.done)


class FileWriter:
    """Collects rows and writes files; `put` and `close` are for the sink's thread.

    A file has the rows of one lane, batches as they are. A change of types that does not go into one file ends it. When
    it is written, every batch in it is done; when that fails, every batch has failed.
    """

    def __init__(self, store: Store, settings: ParquetSettings, form: str, name: str) -> None:
        self._store = store
        self._settings = settings
        self._form = form
        used = placeholders(settings.layout, PLACEHOLDERS)
        self._unit: timedelta | None = None  # the rows of one file are of one
        if used & {"record_date", "record_hour"}:
            self._unit = timedelta(hours=1) if "record_hour" in used else timedelta(days=1)
        self._mailbox: SimpleQueue[_Message] = SimpleQueue()
        self._files: dict[LaneId, _OpenFile] = {}
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, message: Added | Ended | Dropped) -> None:
        """Hand something in. Never blocks."""
        self._mailbox.put(message)

    def close(self) -> None:
        """End the thread. What is not written by then is not written any more; whoever waits for it is told."""
        self._mailbox.put(None)
        self._thread.join(_CLOSE_SECONDS)

    # The writer's thread.

    def _run(self) -> None:
        is_closed = False
        while not is_closed:
            with contextlib.suppress(Empty):  # then a file is old enough
                is_closed = self._obey(self._mailbox.get(timeout=self._timeout()))
            now = time.monotonic()
            for lane in [lane for lane, file in self._files.items() if file.due <= now and not is_closed]:
                self._finish(lane, "age")
        for lane in list(self._files):
            self._drop(lane)

    def _obey(self, message: _Message) -> bool:
        match message:
            case Added():
                self._add(message)
            case Ended(lane):
                self._finish(lane, "asked")
            case Dropped(lane):
                self._drop(lane)
            case None:
                return True
            case _:
                assert_never(message)
        return False

    def _timeout(self) -> float | None:
        due = min((file.due for file in self._files.values()), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _add(self, added: Added) -> None:
        file = self._files.get(added.lane)
        if file is not None and not file.rows.try_add(added.table, is_typed=added.is_typed):
            self._finish(added.lane, "schema")
            file = None
        if file is None:
            due = time.monotonic() + self._settings.file_age
            file = self._files[added.lane] = _OpenFile(added.origin, Rows(added.table), due)
        file.note(added)
        if file.count >= self._settings.file_rows:
            self._finish(added.lane, "rows")
        elif file.size_bytes >= self._settings.file_bytes:
            self._finish(added.lane, "bytes")

    def _drop(self, lane: LaneId) -> None:
        file = self._files.pop(lane, None)
        for done in file.batches if file else ():
            done(TransientError("the lane was closed before its file was full"))

    def _finish(self, lane: LaneId, reason: str) -> None:
        file = self._files.pop(lane, None)
        if file is None:
            return
        failure: ConnectorError | None = None
        try:
            for begin, table in self._split(file.rows.table(f"{self._form}offset")):
                self._write(file.origin, begin, table, reason)
        except Exception as error:  # noqa: BLE001 - the connector tells a declared error from a crash
            failure = error  # type: ignore[assignment]
        for done in file.batches:
            done(failure)

    def _split(self, table: pa.Table) -> Iterable[tuple[datetime | None, pa.Table]]:
        return [(None, table)] if self._unit is None else split_by_time(table, f"{self._form}timestamp", self._unit)

    def _write(self, origin: Origin, begin: datetime | None, table: pa.Table, reason: str) -> None:
        started = time.monotonic()
        stream = pa.BufferOutputStream()
        pq.write_table(
            table, stream, compression=self._settings.compression, row_group_size=self._settings.row_group_rows
        )
        data = stream.getvalue()
        name = self._folder(origin, begin) + self._file_name(origin, table)
        self._store.put(name, data)
        _log.info(
            "parquet_file_finished",
            path=self._store.place(name),
            records=len(table),
            file_bytes=data.size,
            reason=reason,
            write_seconds=round(time.monotonic() - started, 3),
        )

    def _folder(self, origin: Origin, begin: datetime | None) -> str:
        folder = self._settings.layout.format(
            topic=origin.topic,
            partition=origin.partition,
            record_date=NO_TIMESTAMP if begin is None else begin.date().isoformat(),
            record_hour=NO_TIMESTAMP if begin is None else f"{begin.hour:02}",
            date=datetime.now(UTC).date().isoformat(),
        )
        return folder and f"{folder}/"

    def _file_name(self, origin: Origin, table: pa.Table) -> str:
        """Return a name that no other rows have: what is written again replaces its file, if it is the same rows.

        The number of rows tells apart files of one range of which one has gaps; the id, topics that had one name.
        """
        ends = pc.min_max(table.column(f"{self._form}offset")).as_py()
        topic_id = f"-{origin.topic_id[:_TOPIC_ID_LENGTH]}" if origin.topic_id else ""
        offsets = f"{ends['min']:012}-{ends['max']:012}"
        return f"{origin.topic}-{origin.partition}-{offsets}-{len(table)}{topic_id}.parquet"
