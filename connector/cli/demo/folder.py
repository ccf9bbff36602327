"""The folder of a demo: its files, and whose it is. A demo replaces what an earlier one left, and nothing else."""

from __future__ import annotations

import contextlib
import fcntl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import TextIO

MARKER = ".made-by-connector-demo"
_OURS = ("records.db*", "copy-*.log", "settings.env")


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a demo keeps what it made."""

    path: Path

    @property
    def database(self) -> Path:
        """What the copies wrote."""
        return self.path / "records.db"

    @property
    def settings(self) -> Path:
        """The settings of the copies, as an environment file."""
        return self.path / "settings.env"

    def log(self, copy: int) -> Path:
        """What a copy logged."""
        return self.path / f"copy-{copy}.log"

    def keep_settings(self, settings: Mapping[str, str]) -> None:
        """Write the settings down, for whoever wants to look at them or start a copy of their own."""
        self.settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


@contextlib.contextmanager
def claim(path: Path) -> Iterator[Folder]:
    """Make the folder, or clear the one of an earlier demo; it is ours until the context ends, and then stays.

    Raises:
        ConfigError: There is something else at this path, another demo runs in it, or it cannot be written.
    """
    with _lock(path):
        for pattern in _OURS:
            for file in path.glob(pattern):
                file.unlink()
        yield Folder(path)


def _lock(path: Path) -> TextIO:
    marker = path / MARKER
    try:
        if path.is_dir() and any(path.iterdir()) and not marker.exists():
            raise ConfigError(
                f"{path} was not made by the demo (it has no {MARKER}), so it is left alone. Name another place with "
                "--directory."
            )
        path.mkdir(parents=True, exist_ok=True)
        lock = marker.open("w")
    except OSError as error:
        raise ConfigError(f"{path} cannot be used ({error.strerror}). Name another place with --directory.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"Another demo is running in {path}. Name another place with --directory.") from None
    return lock
