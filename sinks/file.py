"""File sink: a line for each record, on disk before it is acknowledged.

A batch is appended to the *live* file at `path` and synced. Rotation renames the live file to a *finished* one, which
is never touched again. After a kill the live file can end in a part of a line; the next open cuts it off. It was not
acknowledged, so it comes again.

A live file has one writer, which holds an exclusive lock on it. One instance on one pipeline thread owns its files,
one for each rendered path; a file is closed with the last lane that writes to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import string
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
from pydantic import AfterValidator

from connector import ConfigError, Duration, Field, Input, InputClosed, Settings, Sink, Size, TransientError
from sinks.folders import file_errors, make_directory, make_usable, sync_directory
from sinks.json_lines import FORMAT_DESCRIPTION, LineFormat, to_lines
from sinks.template import placeholders

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector import Batch, Event, LaneId, SinkContext

_PLACEHOLDERS = ("topic", "partition", "pipeline", "host", "date")
_SEARCH_BYTES = 1 << 20
_log = structlog.get_logger(__name__)


def _check_path(path: str) -> str:
    placeholders(path, _PLACEHOLDERS)
    if not path or path.endswith("/"):
        raise ValueError("is not the path of a file; write one as in /data/{topic}-{partition}.jsonl")
    return path


class FileSettings(Settings):
    """Settings of the sink `file`."""

    path: Annotated[str, AfterValidator(_check_path)] = Field(
        description="File to append to, a template: {topic}, {partition}, {pipeline} (number of the pipeline), {host}, "
        "{date} (UTC date of writing). Missing directories are made"
    )
    format: LineFormat = Field(default="record", description=FORMAT_DESCRIPTION)
    rotate_bytes: Size = Field(
        default=0,
        description="Finish the file before the batch that would make it larger than this; a batch is never split. "
        "0: never",
    )
    rotate_interval: Duration = Field(
        default=0,
        description="Finish the file before the first batch that comes so long after it was opened. 0: never",
    )

    def problems(self, pipelines: int) -> list[str]:
        """Refuse a path that two pipelines would share: the second would wait for the lock for ever."""
        used = placeholders(self.path, _PLACEHOLDERS)
        if pipelines == 1 or "pipeline" in used or {"topic", "partition"} <= used:
            return []
        problem = (
            f"CONNECTOR_SINK_PATH={self.path} is one file for {pipelines} pipelines, and a file has one writer. "
            "Put {pipeline}, or both {topic} and {partition}, into it, or set CONNECTOR_PIPELINES=1."
        )
        return [problem]


class FileSink(Sink[FileSettings]):
    """Appends lines to files, and syncs them before it returns."""

    def __init__(self, settings: FileSettings, context: SinkContext, clock: Callable[[], float] = time.time) -> None:
        super().__init__(settings, context)
        self._clock = clock
        self._files: dict[Path, _LiveFile] = {}
        self._paths: dict[LaneId, Path] = {}  # where each lane wrote last

    def open(self) -> None:
        """Make the directory, as far as it is known before the first record, and see that it can be written to.

        Raises:
            ConfigError: It cannot.
            TransientError: The file system has no room, or fails.
        """
        literal = next(iter(string.Formatter().parse(self.settings.path)))[0]
        directory = Path(f"{literal}_").parent
        with file_errors(directory):
            make_usable(directory)

    def on_event(self, event: Event) -> None:
        """Write batches; close a file with the last lane that wrote to it."""
        match event:
            case Input(data=batch):
                self.write(batch)
            case InputClosed(id=lane):
                self._leave(lane)
            case _:
                pass

    def write(self, batch: Batch) -> None:
        """Append the batch and sync. A batch that failed is cut off again, so that a retry does not repeat it.

        Raises:
            ConfigError: The path cannot be used.
            PoisonError: A record has no form as one line.
            TransientError: The disk is full or fails, or another process has the file open.
        """
        data = to_lines(batch, self.settings.format)
        if not data:
            return
        now = self._clock()
        lane, path = batch.metadata.lane, self._render(batch, now)
        if self._paths.get(lane) != path:
            self._leave(lane)
            self._paths[lane] = path
        with file_errors(path):
            self._live_file(path, len(data), now).append(data)

    def close(self) -> None:
        """Close every file; what was acknowledged is on disk already."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._paths.clear()

    def _render(self, batch: Batch, now: float) -> Path:
        return Path(
            self.settings.path.format(
                topic=batch.metadata.topic,
                partition=batch.metadata.partition,
                pipeline=self.context.pipeline,
                host=self.context.host,
                date=datetime.fromtimestamp(now, UTC).date().isoformat(),
            )
        )

    def _live_file(self, path: Path, added_bytes: int, now: float) -> _LiveFile:
        """Return the open file at `path`, a new one if it is due to be finished or is no longer there."""
        while True:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = _LiveFile(path, now)
            size = file.size_in_place()
            if size is None:
                # Moved or deleted by somebody else: what is appended now would not be found at the path.
                self._files.pop(path).close()
            elif size and self._is_due(file, size + added_bytes, now):
                self._files.pop(path).finish(now)
            else:
                return file

    def _is_due(self, file: _LiveFile, size_bytes: int, now: float) -> bool:
        settings = self.settings
        return bool(
            (settings.rotate_bytes and size_bytes > settings.rotate_bytes)
            or (settings.rotate_interval and now - file.opened_at >= settings.rotate_interval)
        )

    def _leave(self, lane: LaneId) -> None:
        path = self._paths.pop(lane, None)
        if path is not None and path not in self._paths.values() and path in self._files:
            self._files.pop(path).close()


class _LiveFile:
    """One open file with its lock. Every method raises OSError as it comes."""

    def __init__(self, path: Path, now: float) -> None:
        self._path = path
        self.opened_at = now
        self._torn_at: int | None = None  # where a failed append began that could not be cut off yet
        make_directory(path.parent)
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            self._cut_tail()
            sync_directory(path.parent)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise ConfigError(
                f"CONNECTOR_SINK_PATH={self._path} is not a regular file. Name one, or use the stdout sink."
            )
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TransientError(
                f"another process on this host has {self._path} open, and a file has one writer. This ends by itself "
                "when that process is a copy that is being replaced; else give each process a CONNECTOR_SINK_PATH of "
                "its own."
            ) from error
        if self.size_in_place() is None:
            raise TransientError(f"another process has just finished {self._path}")

    def _cut_tail(self) -> None:
        """Cut off what follows the last line break."""
        size = end = os.fstat(self._descriptor).st_size
        while end > 0:
            start = max(0, end - _SEARCH_BYTES)
            found = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)
            _log.warning("file_tail_cut", path=str(self._path), cut_bytes=size - end, kept_bytes=end)

    def size_in_place(self) -> int | None:
        """Return the size in bytes; None when the path no longer leads to this file."""
        try:
            named = self._path.stat()
        except FileNotFoundError:
            return None
        return named.st_size if os.path.samestat(named, os.fstat(self._descriptor)) else None

    def append(self, data: bytes | bytearray) -> None:
        """Write and sync, or leave the file as it was."""
        self._cut_torn()
        self._torn_at = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError:
            # After a failed sync too: the kernel has dropped the pages, and only writing them again brings them back.
            with contextlib.suppress(OSError):  # whatever comes next tries again
                self._cut_torn()
            raise
        self._torn_at = None

    def _cut_torn(self) -> None:
        """Cut off what a failed append has left."""
        if self._torn_at is not None:
            os.ftruncate(self._descriptor, self._torn_at)
            self._torn_at = None

    def finish(self, now: float) -> None:
        """Close and rename to `name.20260131T235959Z.suffix`, with a number where that is taken."""
        try:
            self._cut_torn()
            os.fsync(self._descriptor)
            # Nobody else renames: whoever holds the lock on the live file is the only one who finishes it.
            self._path.rename(self._free_name(now))
            sync_directory(self._path.parent)
        finally:
            self.close()

    def _free_name(self, now: float) -> Path:
        instant = f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}"
        finished = self._path.with_name(f"{self._path.stem}.{instant}{self._path.suffix}")
        number = 1
        while finished.exists():
            number += 1
            finished = self._path.with_name(f"{self._path.stem}.{instant}-{number}{self._path.suffix}")
        return finished

    def close(self) -> None:
        """Close the file, and with it the lock."""
        with contextlib.suppress(OSError):  # then the tail stays, and the next open cuts it
            self._cut_torn()
        os.close(self._descriptor)
