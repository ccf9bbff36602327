"""`connector dlq show` and `connector dlq replay`: look at dead letters, and send them back."""

from __future__ import annotations

import base64
import json
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from connector.api.errors import ConfigError
from connector.api.settings import parse_duration
from connector.cli.table import print_table
from connector.config.load import load_connection
from connector.dlq.producer import ConfirmingProducer
from connector.dlq.reader import LetterFilter, LetterReader
from connector.dlq.replay import PRODUCER_TIMEOUT_SECONDS, ReplayPlan, ReplayReport, replay, replay_group
from connector.source.client_config import admin_properties
from connector.telemetry.logs import configure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from connector.dlq.reader import Entry

_CHUNK = 100
_COLUMNS = ("died", "letter", "record", "stage", "error", "tries", "replays", "key", "value", "message")
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Choice:
    """The options that both commands have, as they were typed; `topic` is the dead letter topic."""

    topic: str | None = None
    error_class: str | None = None
    origin: str | None = None
    since: str | None = None
    until: str | None = None

    def filter(self) -> LetterFilter:
        """Return which letters are meant.

        Raises:
            ConfigError: A time is none.
        """
        return LetterFilter(self.error_class, self.origin, _time("--since", self.since), _time("--until", self.until))


def show(env_file: Path | None, choice: Choice, *, limit: int, as_json: bool) -> None:
    """Print letters, the oldest of each partition first: a table, or one JSON object a line.

    Raises:
        ConfigError: The settings, a time or the topic are wrong.
        AuthenticationError: The credentials are refused, or a right is missing.
        UnreachableError: The cluster does not answer.
    """
    wanted = choice.filter()
    properties, topic = _connection(env_file, choice)
    reader = LetterReader(properties, topic, replay_group(topic))
    entries: list[Entry] = []
    try:
        reader.start(wanted.since_ms)
        while len(entries) < limit and (found := reader.read(_CHUNK)):
            chosen = [entry for entry in found if _is_wanted(wanted, entry)][: limit - len(entries)]
            entries += chosen
            if as_json:
                for entry in chosen:
                    print(json.dumps(_document(entry)))
    finally:
        reader.close()
    if as_json:
        return
    if entries:
        print_table(_COLUMNS, [_row(entry) for entry in entries])
    print(f"{len(entries)} shown of {topic}{'; there may be more: --limit' if len(entries) == limit else ''}.")


def send_back(
    env_file: Path | None,
    choice: Choice,
    *,
    target: str | None,
    limit: int | None,
    max_replays: int,
    from_beginning: bool,
    dry_run: bool,
) -> None:
    """Replay letters and print what became of them, after an error too.

    Raises:
        FatalError: As `connector.dlq.replay.replay`.
    """
    wanted = choice.filter()
    properties, topic = _connection(env_file, choice)
    plan = ReplayPlan(topic, wanted, target, limit, max_replays, is_dry=dry_run)
    report = ReplayReport()
    reader = LetterReader(properties, topic, replay_group(topic))
    producer = ConfirmingProducer(properties, PRODUCER_TIMEOUT_SECONDS)
    try:
        if from_beginning:
            reader.start()
        else:
            reader.start_committed()
        replay(plan, reader, producer, report)
    finally:
        producer.close()
        reader.close()
        _tell(plan, report)


def _tell(plan: ReplayPlan, report: ReplayReport) -> None:
    verb = "would be replayed" if plan.is_dry else "replayed"
    print(f"{report.replayed.total()} dead letters {verb}.")
    for target, count in sorted(report.replayed.items()):
        print(f"  {count} to {target}")
    for reason, count in sorted(report.passed_over.items()):
        print(f"  {count} passed over: {reason}")
    if report.passed_over and not plan.is_dry:
        print(f"The group {replay_group(plan.topic)} is behind those now; --from-beginning reaches them again.")


def _connection(env_file: Path | None, choice: Choice) -> tuple[dict[str, Any], str]:
    configure("error")
    client = load_connection(os.environ, env_file)
    topic = choice.topic or client.dlq_topic
    if topic is None:
        raise ConfigError("Which topic? Set CONNECTOR_DLQ_TOPIC or give --topic.")
    return {**admin_properties(client), "logger": logging.getLogger("librdkafka")}, topic


def _time(option: str, text: str | None) -> int | None:
    """Return milliseconds of an ISO time, or of a time so long ago."""
    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except ValueError:
        pass  # no duration, so a time
    else:
        return int((datetime.now(UTC).timestamp() - float(str(seconds))) * 1000)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text} is neither a time such as 2026-01-31T00:00:00Z nor how long ago, as in 30m or 7d."
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _is_wanted(wanted: LetterFilter, entry: Entry) -> bool:
    """Whether to show it; what is no letter is shown when nothing is asked for."""
    return wanted == LetterFilter() if entry.letter is None else wanted.takes(entry, entry.letter)


def _row(entry: Entry) -> tuple[str, ...]:
    where = (_iso(entry.died_ms), f"{entry.partition}@{entry.offset}")
    letter = entry.letter
    if letter is None:
        return (*where, "not a dead letter", *[""] * (len(_COLUMNS) - 3))
    origin = letter.origin
    return (
        *where,
        _safe(f"{origin.topic}[{origin.partition}]@{origin.offset}"),
        _safe(origin.stage),
        _safe(origin.error_class),
        str(origin.attempts),
        str(origin.replays),
        _preview(letter.key),
        _preview(letter.value),
        _safe(origin.message),
    )


def _preview(value: bytes | None) -> str:
    """Return the beginning of a key or value; null is a word, empty is quotes."""
    if value is None:
        return "null"
    return _safe(value[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")) or '""'


def _safe(text: str) -> str:
    """Return what can write to nobody's terminal, and fits into a table."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: _SHOWN_CHARACTERS + 1])
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "…"


def _document(entry: Entry) -> Mapping[str, Any]:
    place = {"partition": entry.partition, "offset": entry.offset, "died": _iso(entry.died_ms)}
    letter = entry.letter
    if letter is None:
        return {**place, "record": None}
    origin = letter.origin
    return {
        **place,
        "stage": origin.stage,
        "error_class": origin.error_class,
        "message": origin.message,
        "attempts": origin.attempts,
        "group": origin.group,
        "replays": origin.replays,
        "truncated": origin.truncated_bytes,
        "record": {
            "topic": origin.topic,
            "partition": origin.partition,
            "offset": origin.offset,
            "timestamp": None if origin.timestamp_ms is None else _iso(origin.timestamp_ms),
            "key": _text(letter.key),
            "value": _text(letter.value),
            "headers": [[name, _text(value)] for name, value in letter.headers],
        },
    }


def _text(value: bytes | None) -> object:
    """Return text, or `{"base64": …}` for bytes that are not UTF-8, as the sink `file` writes them."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _iso(milliseconds: int) -> str:
    try:
        time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # beyond what a calendar has
        return f"{milliseconds}ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
