"""`connector run` as a process of its own, the way a user runs it, and a look at what it does."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Self

import httpx

from tests.support.process import end_process, start_process, tail, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PROTOCOL_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "range": {
        "CONNECTOR_GROUP_PROTOCOL": "classic",
        "CONNECTOR_ASSIGNMENT_STRATEGY": "range",
        "CONNECTOR_KAFKA_SESSION_TIMEOUT_MS": "6000",
        "CONNECTOR_KAFKA_HEARTBEAT_INTERVAL_MS": "500",
    },
    "cooperative-sticky": {
        "CONNECTOR_GROUP_PROTOCOL": "classic",
        "CONNECTOR_ASSIGNMENT_STRATEGY": "cooperative-sticky",
        "CONNECTOR_KAFKA_SESSION_TIMEOUT_MS": "6000",
        "CONNECTOR_KAFKA_HEARTBEAT_INTERVAL_MS": "500",
    },
    "consumer": {"CONNECTOR_GROUP_PROTOCOL": "consumer"},
}


def protocol_settings(group_protocol: str) -> dict[str, str]:
    """Return the settings of one of the three group protocols; classic sessions last 6 s."""
    return dict(_PROTOCOL_SETTINGS[group_protocol])


class ConnectorProcess:
    """One copy. Its log is JSON lines; its admin port is a free one, which the log tells."""

    def __init__(self, name: str, directory: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._settings = {
            "CONNECTOR_ADMIN_ADDRESS": "127.0.0.1:0",
            "CONNECTOR_LOG_FORMAT": "json",
            "CONNECTOR_LOG_LEVEL": "debug",  # tells each callback of a rebalance at once
            "CONNECTOR_COMMIT_INTERVAL": "500ms",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it; the log of an earlier start is kept and added to."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTOR_")}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._process = start_process(
            [sys.executable, "-m", "connector", "run"], log=self.log, environment={**clean, **self._settings}
        )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._running().poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._running().send_signal(number)

    def wait(self, timeout: float = 60) -> int:
        """Return the exit code.

        Raises:
            TimeoutError: It did not end in time; the text ends with its log.
        """
        try:
            wait_until(lambda: not self.is_running, timeout=timeout, what=f"{self.name} ends")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{tail(self.log)}") from None
        return self._running().wait()

    def terminate(self, timeout: float = 60) -> int:
        """Send SIGTERM and return the exit code."""
        self.send(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """SIGKILL, and collect it."""
        self.send(signal.SIGKILL)
        self.wait(10)

    def close(self) -> None:
        """End it, whatever it does, frozen too."""
        if self._process is not None and self.is_running:
            self.send(signal.SIGCONT)
            end_process(self._process, timeout=10)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the log's entries of all starts, or those of one event."""
        return [entry for entry in _entries(self.log) if name is None or entry.get("event") == name]

    def count(self, name: str) -> int:
        """Return how often an event has happened, the repeats that were only counted too."""
        return sum(1 + entry.get("repeated", 0) for entry in self.events(name))

    def wait_for_event(self, name: str, *, count: int = 1, timeout: float = 60) -> list[dict[str, Any]]:
        """Wait until the log has so many entries of an event, and return them."""
        try:
            wait_until(
                lambda: len(self.events(name)) >= count or not self.is_running,
                timeout=timeout,
                what=f"{self.name} logs {name}",
            )
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{tail(self.log)}") from None
        found = self.events(name)
        if len(found) < count:
            raise AssertionError(f"{self.name} ended without {name}\n{tail(self.log)}")
        return found

    def get(self, path: str) -> httpx.Response:
        """Ask the admin endpoint of the last start."""
        port = self.wait_for_event("admin_started")[-1]["port"]
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10)

    def status(self) -> dict[str, Any]:
        """Return `/status`."""
        document: dict[str, Any] = self.get("/status").json()
        return document

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process


def _entries(log: Path) -> Iterator[dict[str, Any]]:
    if not log.exists():
        return
    for line in log.read_bytes().splitlines():
        if line.startswith(b"{"):
            try:
                yield json.loads(line)
            except ValueError:  # the last line, half written
                continue
