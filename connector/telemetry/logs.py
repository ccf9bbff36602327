"""Logs: fixed event names with fields, on standard error, in console or JSON form, with secrets masked.

The connector itself says `get_logger(__name__).info("lanes_assigned", lanes=4)`. `configure`, called once by the
command, sends everything the same way: that, structlog as a plugin uses it, and `logging`, so uvicorn, database drivers
and the Kafka client (`Consumer(…, logger=logging.getLogger("librdkafka"))`).

No call blocks or raises: a full pipe behind standard error would otherwise stop the consumer thread (INV-2). Lines go
through a bounded queue to one thread named `logs`; when it is full they are dropped, and their number is logged.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import logging
import math
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlsplit

import structlog

from connector.api.errors import ConfigError

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FORMATS = ("auto", "console", "json")
_QUEUE_LINES = 10_000
_MASK = "***"
_SECRET_KEY = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|api[_.-]?key|private[_.-]?key|key[_.-]pem|jaas|user[_.-]info",
    re.IGNORECASE,
)
_CONNINFO_PASSWORD = re.compile(r"\bpassword\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
_FIRST_FIELDS = ("timestamp", "level", "logger", "event")
_LONG_LINE = 16  # characters; a shorter line of a secret with several says too little to be masked alone


class _Secrets:
    """Every registered secret, in each form in which it may be written, as one pattern."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Guards _forms; taken by whoever registers; leaf lock.
        self._forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None  # replaced as a whole, read without the lock

    def add(self, value: str) -> None:
        forms = {
            form
            for part in _parts(value)
            for form in (part, repr(part)[1:-1], json.dumps(part)[1:-1], quote(part, safe=""))
            if form.strip()
        }
        with self._lock:
            self._forms |= forms
            if self._forms:
                longest_first = sorted(self._forms, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def mask(self, text: str) -> str:
        return self._pattern.sub(_MASK, text) if self._pattern else text


def _parts(value: str) -> set[str]:
    """Return a secret and what is secret in it: the password of a URL or connection string, lines of a key file."""
    parts = {value, value.strip()}
    parts.update(
        line.strip() for line in value.splitlines() if len(line.strip()) >= _LONG_LINE and not line.startswith("-----")
    )
    parts.update(found.strip("'") for found in _CONNINFO_PASSWORD.findall(value))
    with contextlib.suppress(ValueError):  # not a URL
        parts.add(urlsplit(value).password or "")
    return parts


_secrets = _Secrets()


def register_secret(value: str) -> None:
    """Never show this value again, in any field, exception text or page; the empty string is ignored. Any thread."""
    _secrets.add(value)


def mask(value: object, key: str = "") -> object:
    """Return plain data (dict, list, str, numbers, None; valid UTF-8) with every registered secret as `***`.

    A value whose key looks secret is masked whole, unless the key names a file.
    """
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if _SECRET_KEY.search(key) and not key.lower().endswith("_file"):
        return _MASK
    if isinstance(value, Mapping):
        return {_secrets.mask(str(name)): mask(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple, AbstractSet)):
        return [mask(item) for item in value]
    if isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
    else:
        text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)
    masked = _secrets.mask(text).encode("utf-8", "backslashreplace").decode()
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_number and masked == text else masked


def _mask_fields(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Mask every field; the ones that each line has come first."""
    return {key: mask(event[key], key) for key in dict.fromkeys((*_FIRST_FIELDS, *event)) if key in event}


def _escape_controls(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Make control characters visible, so that no topic name or error text can write to somebody's terminal."""
    return {
        key: _CONTROLS.sub(lambda found: repr(found[0])[1:-1], value) if isinstance(value, str) else value
        for key, value in event.items()
    }


class _QueueHandler(logging.Handler):
    """Formats on the calling thread, writes on the thread `logs`."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str] = queue.Queue(_QUEUE_LINES)
        self._dropped = 0
        self._writer = threading.Thread(target=self._write, name="logs", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one line; called by `logging` under this handler's lock, on any thread."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001  # a field that cannot be shown must not hurt whoever logs it
            if record.name != __name__:
                event = record.msg.get("event") if isinstance(record.msg, dict) else record.msg
                _log.error("log_line_failed", line=event if isinstance(event, str) else "", error=type(error).__name__)
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def flush_within(self, timeout: float) -> bool:
        """Wait until everything queued so far is written; false when that takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._lines.all_tasks_done:
            return self._lines.all_tasks_done.wait_for(
                lambda: not self._lines.unfinished_tasks, max(0.0, deadline - time.monotonic())
            )

    def _write(self) -> None:
        while True:
            _write_line(self._lines.get())
            self._lines.task_done()
            if self._dropped and self._lines.empty():
                self.acquire()  # the lock that emit is called under
                dropped, self._dropped = self._dropped, 0
                self.release()
                _log.warning("log_lines_dropped", lines=dropped)


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


# What structlog does on the calling thread: cheap, and nothing that can fail. The rest happens in the formatter.
_SHARED: list[Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
_PROCESSORS: list[Processor] = [
    structlog.stdlib.filter_by_level,
    *_SHARED,
    structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
]

_handler: _QueueHandler | None = None


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
    if level.lower() not in _LEVELS:
        raise ConfigError(f"CONNECTOR_LOG_LEVEL={level} is not a level. Set it to one of {', '.join(_LEVELS)}.")
    if format.lower() not in _FORMATS:
        raise ConfigError(f"CONNECTOR_LOG_FORMAT={format} is not a format. Set it to one of {', '.join(_FORMATS)}.")
    is_console = format.lower() == "console" or (format.lower() == "auto" and _is_terminal())
    if _handler is None:
        _handler = _QueueHandler()
        atexit.register(flush, 1.0)
    _handler.setFormatter(_formatter(is_console=is_console))
    root = logging.getLogger()
    if _handler not in root.handlers:
        root.addHandler(_handler)
    root.setLevel(_LEVELS[level.lower()])
    structlog.configure(
        processors=_PROCESSORS,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def flush(timeout: float) -> bool:
    """Wait up to `timeout` seconds until all lines are written; to be called before the process ends by force."""
    return _handler is None or _handler.flush_within(timeout)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (ValueError, AttributeError):  # closed, or none at all
        return False


def _formatter(*, is_console: bool) -> structlog.stdlib.ProcessorFormatter:
    """Return what makes a line of a record: the exception as text first, so that it is masked like any other field."""
    renderers: list[Processor] = (
        [_escape_controls, structlog.dev.ConsoleRenderer(colors=_is_terminal(), sort_keys=False)]
        if is_console
        else [structlog.processors.JSONRenderer(ensure_ascii=False)]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _mask_fields,
            *renderers,
        ],
    )
