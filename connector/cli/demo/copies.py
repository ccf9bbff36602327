"""The copies of the connector in a demo: real processes, known by what any operator sees of them.

That is their log, one JSON object a line, their `/metrics`, and their exit code. Main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import re
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from connector.api.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

_METRICS_SECONDS = 0.5  # between two looks at a copy's metrics
_METRICS_TIMEOUT = 0.5
_RATE_SECONDS = 2.0  # a rate is the mean over this time; batches make it jump within less
_END_SECONDS = 30.0  # after a SIGTERM; the shutdown timeout of a copy is 25 s
_LOG_LINES = 12  # shown of a copy that has ended badly
_WRITTEN = re.compile(rb"^connector_written_records_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True, slots=True)
class Happening:
    """What a copy's log tells of a rebalance: it got partitions, gave them up, lost them, or was stopped.

    `at` is a Unix time. `seconds` is how long the drain took, for a copy that was stopped all until its end.
    """

    at: float
    copy: int
    what: str
    lanes: tuple[str, ...]
    seconds: float | None = None


class Copy:
    """One `connector run`, started at once."""

    def __init__(
        self, number: int, log: Path, environment: Mapping[str, str], tell: Callable[[Happening], None]
    ) -> None:
        self.number = number
        self.log = log
        self.lanes: set[str] = set()  # partitions, as `orders[3]`
        self.written = 0
        self.is_told_to_stop = False
        self.exit_code: int | None = None
        self._tell_fleet = tell
        self._admin_port: int | None = None
        self._next_measure = 0.0
        self._measures: deque[tuple[float, int]] = deque()  # time and records written
        self._stopping_at = 0.0
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "connector", "run"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C comes to the demo, which ends its copies
                # One system call, resolved beforehand: safe after a fork. No copy outlives a demo that is killed.
                preexec_fn=_die_with_parent if _LIBC else None,  # noqa: PLW1509
            )
        self._reader = log.open("rb")
        self._unread = b""

    @property
    def state(self) -> str:
        """What it does, in a word or two."""
        if self.exit_code is not None:
            return f"ended, exit {self.exit_code}"
        if self.is_told_to_stop:
            return "stopping"
        return "consuming" if self.lanes else "starting"

    @property
    def rate(self) -> float:
        """Records written a second, of late."""
        if self.exit_code is not None or len(self._measures) < 2:
            return 0.0
        (before, had), (now, has) = self._measures[0], self._measures[-1]
        return (has - had) / (now - before)

    def stop(self) -> None:
        """Send SIGTERM, once."""
        if not self.is_told_to_stop and self.exit_code is None:
            self.is_told_to_stop = True
            self._process.terminate()

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, timeout))

    def kill(self) -> None:
        """Send SIGKILL, if it still runs, and collect it."""
        self._process.kill()
        self.exit_code = self._process.wait()
        self._reader.close()

    def look(self) -> None:
        """Read what is new in the log and the metrics, and see whether it has ended.

        Raises:
            FatalError: It ended badly, or before it was told to.
        """
        if self.exit_code is not None:
            return
        code = self._process.poll()  # before the log, so that the log is complete when it has ended
        self._read_log()
        if code is not None:
            self.exit_code = code
            self._reader.close()
            self.lanes.clear()
            if code or not self.is_told_to_stop:
                raise FatalError(self._obituary())
        elif time.monotonic() >= self._next_measure:
            self._measure()
            self._next_measure = time.monotonic() + _METRICS_SECONDS

    def _obituary(self) -> str:
        code = self.exit_code or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        when = "after its SIGTERM" if self.is_told_to_stop else "although nobody stopped it"
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n  ".join((f"copy {self.number} {how} {when}. The end of {self.log}:", *lines))

    def _read_log(self) -> None:
        *lines, self._unread = (self._unread + self._reader.read()).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):  # else a traceback or the like, which is shown when it ends
                self._hear(orjson.loads(line))

    def _hear(self, entry: Mapping[str, Any]) -> None:
        at = datetime.fromisoformat(entry["timestamp"]).timestamp()
        lanes = list(_unfold(entry.get("partitions", ())))
        match entry["event"]:
            case "admin_started":
                self._admin_port = entry["port"]
            case "lanes_assigned":
                self.lanes.update(lanes)
                self._note(at, "got", lanes)
            case "lanes_revoked":
                self.lanes.difference_update(lanes)
                self._note(at, "gave up", lanes, entry["drain_seconds"])
            case "lanes_lost":
                self.lanes.difference_update(lanes)
                self._note(at, "lost", lanes)
            case "stop_requested":
                self._stopping_at = at
            case "run_ended":
                self._note(self._stopping_at, "stopped", self.lanes, at - self._stopping_at)
            case _:
                pass

    def _note(self, at: float, what: str, lanes: Collection[str], seconds: float | None = None) -> None:
        if lanes:
            self._tell_fleet(Happening(at, self.number, what, tuple(sorted(lanes)), seconds))

    def _measure(self) -> None:
        if self._admin_port is None:
            return
        connection = http.client.HTTPConnection("127.0.0.1", self._admin_port, timeout=_METRICS_TIMEOUT)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return  # busy, or about to end: the figures stay as they are until the next look
        finally:
            connection.close()
        now = time.monotonic()
        self.written = round(sum(map(float, _WRITTEN.findall(text))))
        self._measures.append((now, self.written))
        while now - self._measures[0][0] > _RATE_SECONDS:
            self._measures.popleft()


class Fleet:
    """All copies of a demo. A context manager: leaving it ends those that still run."""

    def __init__(self, log: Callable[[int], Path], environment: Mapping[str, str]) -> None:
        self.copies: list[Copy] = []
        self.happenings: list[Happening] = []  # as they become known
        self._log = log
        self._environment = environment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = [copy for copy in self.copies if copy.exit_code is None]
        deadline = time.monotonic() + _END_SECONDS
        try:
            for copy in running:
                copy.stop()
            for copy in running:
                copy.wait(deadline - time.monotonic())
        finally:  # too late, or interrupted once more
            for copy in running:
                copy.kill()

    @property
    def lanes(self) -> int:
        """How many partitions they hold together."""
        return sum(len(copy.lanes) for copy in self.copies)

    def start_copy(self) -> Copy:
        """Start one more."""
        number = len(self.copies) + 1
        copy = Copy(number, self._log(number), self._environment, self.happenings.append)
        self.copies.append(copy)
        return copy

    def look(self) -> None:
        """See what is new with each.

        Raises:
            FatalError: One has ended badly, or before it was told to.
        """
        for copy in self.copies:
            copy.look()


def _unfold(partitions: Iterable[str]) -> Iterator[str]:
    """Return `orders[1]`, `orders[2]`, `orders[5]` for `orders[1-2,5]`, as the log has it."""
    for each in partitions:
        topic, numbers = each.removesuffix("]").split("[")
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            yield from (f"{topic}[{number}]" for number in range(int(first), int(last or first) + 1))


def _die_with_parent() -> None:
    if _LIBC:
        _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
