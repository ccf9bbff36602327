"""Server processes of tests: they end with the test run, also when it crashes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


class ServerUnavailableError(Exception):
    """No server of the wanted kind can be had on this machine; the text says what to install."""


class ServerFailedError(Exception):
    """A server was there to be used, but did not start or stop; the text ends with its log."""


@contextlib.contextmanager
def fail_if_unavailable() -> Iterator[None]:
    """Fail the test that needs a server that cannot be had; skip it under `CONNECTOR_TEST_ALLOW_SKIP=1`."""
    try:
        yield
    except ServerUnavailableError as error:
        if os.environ.get("CONNECTOR_TEST_ALLOW_SKIP") == "1":
            pytest.skip(str(error))
        pytest.fail(f"{error}; CONNECTOR_TEST_ALLOW_SKIP=1 skips such tests", pytrace=False)


def start_process(
    command: Sequence[str], *, log: Path, user: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a server in the log's folder, both output streams appended to the log, as `user` if one is given.

    On Linux it is killed when the thread that called this ends, so call it from one that lives as long as the server.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            user=user,
            extra_groups=[] if user else None,
            # One system call, resolved beforehand: safe after a fork. It outlasts a crash of the test run.
            preexec_fn=_die_with_parent if _LIBC else None,  # noqa: PLW1509
        )


def end_process(process: subprocess.Popen[bytes], *, signal_number: int = signal.SIGTERM, timeout: float = 20) -> None:
    """Ask a process to end, kill it after `timeout` seconds, and collect it."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal_number)
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout)


def wait_until(condition: Callable[[], bool], *, timeout: float, what: str) -> None:
    """Wait until the condition holds, asking every 20 ms.

    Raises:
        TimeoutError: it did not within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g}s: {what}")
        time.sleep(0.02)


def wait_for_server(
    process: subprocess.Popen[bytes], is_up: Callable[[], bool], *, log: Path, name: str, timeout: float = 60
) -> None:
    """Wait until a server that was just started is up.

    Raises:
        ServerFailedError: it ended, or did not come up within `timeout` seconds; it is ended then.
    """
    try:
        wait_until(lambda: process.poll() is not None or is_up(), timeout=timeout, what=f"{name} is up")
        failure = None if process.poll() is None else f"it ended with code {process.returncode}"
    except TimeoutError as error:
        failure = str(error)
    if failure:
        end_process(process)
        raise ServerFailedError(f"{name} did not start: {failure}. The end of its log:\n{tail(log)}")


def tail(log: Path, lines: int = 40) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def free_ports(count: int) -> list[int]:
    """Return different loopback ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in sockets]


def _die_with_parent() -> None:
    if _LIBC:
        _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
