"""A dead letter: a record as it was, byte for byte, and one bounded set of `connector.dlq.*` headers that say why.

An older set is replaced, never added to, so a record that dies again and again does not grow. Null, empty and
duplicates are kept (INV-12). Pure. Pipelines make letters; `connector dlq` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from connector.telemetry.masking import mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from connector.api.record import Message

Header: TypeAlias = tuple[str, bytes | None]

PREFIX = "connector.dlq."
REPLAYS = PREFIX + "replays"
_NAMES = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "stage",
    "error_class",
    "message",
    "attempts",
    "group",
    "replays",
)
_TRUNCATED = PREFIX + "truncated"
_NO_TIMESTAMP = -1  # as Kafka writes it
_NO_TIMESTAMP_TYPE = 0  # confluent_kafka.TIMESTAMP_NOT_AVAILABLE
_MESSAGE_BYTES = 1000
_NAME_BYTES = 255
_KEPT_VALUE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record died, and of what. `stage` is `decode`, a transform or `write`.

    `timestamp_ms` is the record's own, None if it has none. `replays` says how often it was sent back before it died
    here. `truncated_bytes` is the size of the value before it was cut to fit, None if it is whole.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    stage: str
    error_class: str
    message: str
    attempts: int
    group: str
    replays: int = 0
    truncated_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that died. `headers` are its own, in order, without ours."""

    origin: Origin
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    def all_headers(self) -> list[Header]:
        """Return the headers as they are in the dead letter topic: its own, then our set."""
        origin = self.origin
        timestamp = _NO_TIMESTAMP if origin.timestamp_ms is None else origin.timestamp_ms
        ours: list[Header] = [
            (PREFIX + name, str(value).encode())
            for name, value in zip(
                _NAMES,
                (
                    origin.topic,
                    origin.partition,
                    origin.offset,
                    timestamp,
                    origin.stage,
                    origin.error_class,
                    origin.message,
                    origin.attempts,
                    origin.group,
                    origin.replays,
                ),
                strict=True,
            )
        ]
        if origin.truncated_bytes is not None:
            ours.append((_TRUNCATED, str(origin.truncated_bytes).encode()))
        return [*self.headers, *ours]

    def replay_headers(self) -> list[Header]:
        """Return the headers that the record is sent back with: its own, then how often it was sent back."""
        return [*self.headers, (REPLAYS, str(self.origin.replays + 1).encode())]

    def truncated(self) -> Letter:
        """Return it with only the beginning of its value and the size that it had, for a topic that takes no more.

        Where it is to be found in full the other headers say.
        """
        value = self.value or b""
        return Letter(
            replace(self.origin, truncated_bytes=len(value)),
            self.key,
            value[:_KEPT_VALUE_BYTES] if self.value is not None else None,
            self.headers,
        )


def letter_of(message: Message, *, stage: str, error_class: str, error: str, attempts: int, group: str) -> Letter:
    """Return the dead letter of a consumed record.

    Args:
        message: The record. How often it was replayed before is taken from its headers.
        stage: Where it failed: `decode`, a transform, `write`.
        error_class: Name of the error's class.
        error: The error's text; registered secrets are masked, and it is cut at 1000 bytes.
        attempts: How often it was tried.
        group: The consumer group that gives it up.
    """
    headers = _headers(message)
    kind, milliseconds = message.timestamp()
    origin = Origin(
        topic=str(message.topic()),
        partition=_whole(message.partition()),
        offset=_whole(message.offset()),
        timestamp_ms=milliseconds if kind != _NO_TIMESTAMP_TYPE and milliseconds >= 0 else None,
        stage=_cut(stage, _NAME_BYTES),
        error_class=_cut(error_class, _NAME_BYTES),
        message=_cut(str(mask(error)), _MESSAGE_BYTES),
        attempts=attempts,
        group=_cut(group, _NAME_BYTES),
        replays=_replays(headers),
    )
    return Letter(origin, message.key(), message.value(), _own(headers))


def read_letter(message: Message) -> Letter | None:
    """Return the letter that a record of a dead letter topic is, or None: nobody of us has written it."""
    headers = _headers(message)
    ours = {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}
    try:
        texts = {name: ours[name].decode() for name in _NAMES}  # type: ignore[union-attr]  # null raises, as below
        timestamp = int(texts["timestamp"])
        cut = ours.get("truncated")
        origin = Origin(
            topic=texts["topic"],
            partition=int(texts["partition"]),
            offset=int(texts["offset"]),
            timestamp_ms=timestamp if timestamp >= 0 else None,
            stage=texts["stage"],
            error_class=texts["error_class"],
            message=texts["message"],
            attempts=int(texts["attempts"]),
            group=texts["group"],
            replays=int(texts["replays"]),
            truncated_bytes=None if cut is None else int(cut),
        )
    except (KeyError, AttributeError, ValueError):
        return None
    return Letter(origin, message.key(), message.value(), _own(headers))


def _headers(message: Message) -> list[Header]:
    return [(name, value) for name, value in message.headers() or ()]


def _own(headers: Iterable[Header]) -> tuple[Header, ...]:
    return tuple(header for header in headers if not header[0].startswith(PREFIX))


def _replays(headers: Iterable[Header]) -> int:
    found: Mapping[str, bytes | None] = dict(headers)
    text = found.get(REPLAYS) or b""
    return int(text) if text.isdigit() and len(text) < 10 else 0


def _whole(number: int | None) -> int:
    return -1 if number is None else number


def _cut(text: str, most_bytes: int) -> str:
    """Return the beginning of a text that takes so many bytes at most."""
    return text.encode("utf-8", "backslashreplace")[:most_bytes].decode("utf-8", "ignore")
