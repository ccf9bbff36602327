"""Files in a folder: whole or not there at all. On the writer's thread, `open` and `probe` on the sink's."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from sinks.folders import file_errors, make_directory, make_usable, sync_directory

if TYPE_CHECKING:
    import pyarrow as pa

_log = structlog.get_logger(__name__)

# Readers leave out what begins with a dot, and a file in it does not end in .parquet.
_INCOMPLETE = ".incomplete"


class LocalFolder:
    """A folder with a hidden one in it, in which files are written before they get their names.

    Whoever writes such a file holds a lock on it. One without a lock is what a process has left that was killed.
    """

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._incomplete = self._root / _INCOMPLETE

    def open(self) -> None:
        """Make the folder and remove what was left of files that were never finished.

        Raises:
            ConfigError: The folder cannot be used.
            TransientError: The disk is full or fails.
        """
        with file_errors(self._root):
            make_usable(self._root)
            make_usable(self._incomplete)
            removed = sum(map(_remove_if_left, self._incomplete.iterdir()))
        if removed:
            _log.warning("parquet_leftovers_removed", path=str(self._incomplete), files=removed)

    def probe(self) -> None:
        """See whether the folder is there; raises as `open` does."""
        with file_errors(self._root):
            make_usable(self._incomplete)

    def place(self, name: str) -> str:
        """Return what a file is called in logs and errors."""
        return str(self._root / name)

    def put(self, name: str, data: pa.Buffer) -> None:
        """Write a file, which is on disk when this returns. One of the same name is replaced.

        Raises:
            ConfigError: The path cannot be used.
            TransientError: The disk is full or fails.
        """
        target = self._root / name
        part = self._incomplete / f"{uuid.uuid4()}.part"
        with file_errors(target):
            make_directory(self._incomplete)
            make_directory(target.parent)
            try:
                with part.open("xb", buffering=0) as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    rest = memoryview(data)
                    while rest:
                        rest = rest[file.write(rest) :]
                    os.fsync(file)
                    part.rename(target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            sync_directory(target.parent)


def _remove_if_left(part: Path) -> bool:
    try:
        with part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()
    except (BlockingIOError, FileNotFoundError):  # somebody writes it, or has just finished
        return False
    return True
