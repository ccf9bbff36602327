"""From what a logger was given to the text of one line: plain masked fields, then JSON or the console's form.

Pure, but for the look at the exception that is being handled. No line is longer than `MAX_LINE_BYTES`: what is too long
is cut in its middle, with a mark that says how much is missing.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import structlog

from connector.telemetry.log_events import IDENTIFYING
from connector.telemetry.masking import mask

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

Fields: TypeAlias = "dict[str, Any]"

MAX_LINE_BYTES = 64 * 1024
CLIENT_LOGGER = "librdkafka"

_FIRST_CUT = 16 * 1024  # characters of a text, when a line is too long
_CUT_FURTHER = 4
_ENTRIES = 16  # characters are worth one entry of a list or mapping
_SMALLEST_CUT = 64  # below, lists and mappings are not shown at all
_FIRST_FIELDS = 8  # are always kept
_MULTI_LINE = ("exception", "stack")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # all but tab and newline
_COUNT = re.compile(r"(?<![\w.:#/\[-])\d+(\.\d+)?(ms|us|s)?(?![\w:/-])")  # no part of a name, address or version


def fields_of(record: logging.LogRecord) -> Fields:
    """Return what a record of `logging` or structlog says, masked; on the thread that logs it."""
    said: Fields
    if isinstance(record.msg, dict) and hasattr(record, "_name"):  # from structlog, by its `wrap_for_formatter`
        said = dict(record.msg)
        if arguments := said.pop("positional_args", None):
            said["event"] %= arguments
    else:
        said = {"event": record.getMessage(), "exc_info": record.exc_info, "stack_info": record.stack_info}
    said = cast("Fields", structlog.processors.StackInfoRenderer()(None, "", said))
    said = cast("Fields", structlog.processors.format_exc_info(None, "", said))
    said.pop("stack_info", None)
    first = {
        "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")[:-6] + "Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": said.get("event"),
    }
    return {key: mask(value, key) for key, value in {**first, **said, **first}.items()}


def kind_of(record: logging.LogRecord, fields: Mapping[str, Any]) -> Hashable | None:
    """Return what a warning or error has in common with its repeats; None: each one is written.

    The client's own lines are limited at every level. Figures within a text make no difference.
    """
    if record.levelno < logging.WARNING and record.name != CLIENT_LOGGER:
        return None
    said = _COUNT.sub("#", str(fields["event"]))
    return record.name, record.levelno, said, *(str(fields[name]) for name in IDENTIFYING if name in fields)


def json_form(fields: Mapping[str, Any]) -> str:
    """Return one JSON object without a line break or control character in it."""
    return _fit(
        lambda shown: _CONTROLS.sub(_json_escape, json.dumps(shown, ensure_ascii=False, allow_nan=False)), fields
    )


def console_form(*, colours: bool) -> Callable[[Mapping[str, Any]], str]:
    """Return what makes a line for people: only a trace has several lines, and nothing can write to the terminal."""
    # Values are shown as Python writes them, so without anything that a terminal would obey.
    renderer = structlog.dev.ConsoleRenderer(colors=colours, sort_keys=False, repr_native_str=True)

    def render(fields: Mapping[str, Any]) -> str:
        return str(renderer(None, "", {_visible(key): value for key, value in fields.items()} | _shown(fields)))

    return lambda fields: _fit(render, fields)


def _shown(fields: Mapping[str, Any]) -> Fields:
    """Return the fields that the console shows as they are."""
    raw = {key: str(fields[key]) for key in ("event", "logger", *_MULTI_LINE) if key in fields}
    return {key: _visible(text, breaks=key in _MULTI_LINE) for key, text in raw.items()}


def _visible(text: str, *, breaks: bool = False) -> str:
    shown = _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
    return shown if breaks else shown.replace("\n", "\\n")


def _json_escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _fit(render: Callable[[Mapping[str, Any]], str], fields: Mapping[str, Any]) -> str:
    """Render, and cut long values until the line is short enough; other lines stay as they are."""
    line, characters = render(fields), _FIRST_CUT
    while len(line) * 4 > MAX_LINE_BYTES and len(line.encode()) > MAX_LINE_BYTES:
        line = render({_cut(key, characters): _cut(value, characters) for key, value in _some(fields, characters)})
        characters //= _CUT_FURTHER
    return line


def _some(fields: Mapping[str, Any], characters: int) -> list[tuple[str, Any]]:
    return list(fields.items())[: max(_FIRST_FIELDS, characters // _ENTRIES)]


def _cut(value: Any, characters: int) -> Any:
    entries = characters // _ENTRIES
    if isinstance(value, str) and len(value) > characters:
        half = characters // 2
        return f"{value[:half]}…[{len(value) - 2 * half} characters]…{value[len(value) - half :]}"
    if isinstance(value, (list, dict)) and characters < _SMALLEST_CUT:
        return f"…[{len(value)} entries]…"
    if isinstance(value, list):
        rest = len(value) - entries
        return [*(_cut(each, characters) for each in value[:entries]), *([f"…[{rest} entries]…"] if rest > 0 else [])]
    if isinstance(value, dict):
        rest = len(value) - entries
        kept = {_cut(key, characters): _cut(each, characters) for key, each in list(value.items())[:entries]}
        return {**kept, **({"…": f"[{rest} entries]"} if rest > 0 else {})}
    return value
