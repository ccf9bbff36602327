"""Logs: fixed event names with fields, on standard error, in console or JSON form, with secrets masked.

The connector itself says `get_logger(__name__).info("lanes_assigned", lanes=4)`. `configure`, called once by the
command, sends everything the same way: that, structlog as a plugin uses it, and `logging`, so uvicorn, database drivers
and the Kafka client (`Consumer(…, logger=logging.getLogger("librdkafka"))`).

No call blocks or raises: a full pipe behind standard error would otherwise stop the consumer thread (INV-2). Lines go
through a bounded queue to one thread named `logs`; when it is full they are dropped, and their number is logged. A
warning or error that repeats is written once in a while, with `repeated`, the number of those that were left out.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import structlog

from connector.api.errors import ConfigError
from connector.telemetry.log_line import console_form, fields_of, json_form, kind_of
from connector.telemetry.repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from structlog.typing import Processor

    from connector.telemetry.log_line import Fields

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FORMATS = ("auto", "console", "json")
_QUEUE_LINES = 10_000
# Clients that tell each request, its whole URL and ten steps of it; botocore also what it signs, session tokens too.
_TALKATIVE = ("httpx", "httpcore", "botocore", "boto3", "urllib3")


class LineHandler(logging.Handler):
    """Makes lines on the calling thread, writes them on the thread `logs`. A process has one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.form: Callable[[Mapping[str, Any]], str] = json_form
        self._clock = clock
        self._lines: queue.Queue[str] = queue.Queue(_QUEUE_LINES)
        # Repeats and the number of dropped lines are guarded by the handler's own lock, which emit is called under.
        self._repeats: Repeats[Fields] = Repeats()
        self._dropped = 0
        self._writer = threading.Thread(target=self._write, name="logs", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, unless it repeats another; called by `logging` under this handler's lock, on any thread."""
        try:
            fields = fields_of(record)
            kind = kind_of(record, fields)
            self._put([(fields, 0)] if kind is None else self._repeats.admit(kind, fields, self._clock()))
        except Exception as error:  # noqa: BLE001  # a field that cannot be shown must not hurt whoever logs it
            if record.name != __name__:
                event = record.msg.get("event") if isinstance(record.msg, dict) else record.msg
                _log.error("log_line_failed", line=event if isinstance(event, str) else "", error=type(error).__name__)

    def flush_within(self, timeout: float) -> bool:
        """Wait until everything so far is written or counted; false when that takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._locked():
            self._put(self._repeats.finish())
        with self._lines.all_tasks_done:
            return self._lines.all_tasks_done.wait_for(
                lambda: not self._lines.unfinished_tasks, max(0.0, deadline - time.monotonic())
            )

    def _put(self, passing: Sequence[tuple[Fields, int]]) -> None:
        for fields, others in passing:
            try:
                self._lines.put_nowait(self.form({**fields, "repeated": others} if others else fields))
            except queue.Full:
                self._dropped += 1 + others

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _write(self) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                _write_line(self._lines.get(timeout=self._patience()))
                self._lines.task_done()
            with self._locked():
                self._put(self._repeats.pass_overdue(self._clock()))
                dropped = self._dropped if self._lines.empty() else 0
                self._dropped -= dropped
            if dropped:
                _log.warning("log_lines_dropped", lines=dropped)

    def _patience(self) -> float | None:
        """Return for how long nothing has to be done. A window opens with a line, which wakes the writer."""
        end = self._repeats.next_end
        return None if end is None else max(0.0, end - self._clock())


def _write_line(line: str) -> None:
    """Write to what is standard error now; closed or gone, there is no other place to say so."""
    data = line.encode() + b"\n"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        try:
            descriptor = sys.stderr.fileno()
        except io.UnsupportedOperation:  # replaced by an object in memory
            sys.stderr.write(data.decode())
            return
        # Not through the stream: blocked with the stream's lock, this thread would abort the interpreter's exit.
        while data:
            data = data[os.write(descriptor, data) :]


_PROCESSORS: list[Processor] = [
    structlog.stdlib.filter_by_level,
    structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
]

_handler: LineHandler | None = None


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger: `log.info("event_name", field=value)`. May be made before `configure`."""
    return cast(
        "structlog.stdlib.BoundLogger",
        structlog.wrap_logger(
            logging.getLogger(name),
            processors=_PROCESSORS,
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=True,
        ),
    )


_log = get_logger(__name__)


def configure(level: str = "info", format: str = "auto") -> None:  # noqa: A002  # named as the setting
    """Send all logs of the process to standard error; called by the command, on the main thread, again at will.

    Args:
        level: `debug`, `info`, `warning` or `error`; what is below is left out.
        format: `console`, `json`, or `auto`: console on a terminal, else JSON.

    Raises:
        ConfigError: No such level or format.
    """
    global _handler  # noqa: PLW0603  # logging is one for the process, and so is its handler
    number = _number_of(level)
    if format.lower() not in _FORMATS:
        raise ConfigError(f"CONNECTOR_LOG_FORMAT={format} is not a format. Set it to one of {', '.join(_FORMATS)}.")
    is_console = format.lower() == "console" or (format.lower() == "auto" and _is_terminal())
    if _handler is None:
        _handler = LineHandler()
        atexit.register(flush, 1.0)
    _handler.form = console_form(colours=_is_terminal()) if is_console else json_form
    root = logging.getLogger()
    if _handler not in root.handlers:
        root.addHandler(_handler)
    _let_through(number)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=_PROCESSORS,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def set_level(level: str) -> str:
    """Log from this level on, after `configure`; returns the level of before. Any thread.

    It holds for the connector's loggers, those of plugins and libraries, and the Kafka client's; those of HTTP clients
    stay at warning. The change itself is logged whatever the two levels are.

    Raises:
        ConfigError: No such level.
    """
    number, before = _number_of(level), logging.getLogger().level
    names = {each: name for name, each in _LEVELS.items()}
    if number != before:
        _let_through(min(number, before, logging.INFO))
        _log.info("log_level_changed", before=names[before], after=names[number])
        _let_through(number)
    return names[before]


def flush(timeout: float) -> bool:
    """Wait up to `timeout` seconds until all lines are written; to be called before the process ends by force."""
    return _handler is None or _handler.flush_within(timeout)


def _number_of(level: str) -> int:
    if level.lower() not in _LEVELS:
        raise ConfigError(f"CONNECTOR_LOG_LEVEL={level} is not a level. Set it to one of {', '.join(_LEVELS)}.")
    return _LEVELS[level.lower()]


def _let_through(number: int) -> None:
    logging.getLogger().setLevel(number)
    if _handler is not None:
        _handler.setLevel(number)  # for loggers with a level of their own, which the root's does not bind


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (ValueError, AttributeError):  # closed, or none at all
        return False
