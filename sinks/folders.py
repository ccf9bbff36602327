"""Directories and disk errors of the sinks that write files. On the thread of whoever writes."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from connector import ConfigError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_UNUSABLE = frozenset(
    (
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    )
)


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Tell apart what a setting has to cure and what may work later.

    Raises:
        ConfigError: The path cannot be used.
        TransientError: The disk is full or fails.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _UNUSABLE:
            raise ConfigError(
                f"cannot write to {path}: {error.strerror}. Give this user the right to write there, or set "
                "CONNECTOR_SINK_PATH to another place."
            ) from error
        raise TransientError(f"cannot write to {path}: {error.strerror}") from error


def make_usable(directory: Path) -> None:
    """Make a directory, and see that files can be made in it; raises OSError."""
    make_directory(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, so that they survive a power failure; raises OSError."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    try:
        directory.mkdir()
    except FileExistsError as error:
        if not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Let the names in a directory survive a power failure; raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
