"""Mask transform: fields of key, value and headers are replaced by a text, or by a hash that needs a secret key.

What is masked is a copy: the batch that came stays as it is, since it may come again, and dead letters have the
original bytes.
"""

from __future__ import annotations

import hmac
import re
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import orjson
from pydantic import AfterValidator

from connector import Field, PoisonError, RecordErrors, Secret, Settings, Transform, json_default

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector import Batch, TransientError

_SHORTEST_KEY = 16  # characters
_ROOT = re.compile(r"(key|value|headers)(?=[.\[]|$)")
_STEP = re.compile(r'\.(?:"(?P<quoted>[^"]+)"|(?P<name>[^."\[\]*\s]+)|(?P<any>\*))|(?P<each>\[\*?\])')


class Wild(Enum):
    """A step that stands for several."""

    ANY = "*"  # field of an object
    EACH = "[*]"  # element of an array


Step: TypeAlias = str | Wild


def parse_path(text: str) -> tuple[Step, ...]:
    """Return the steps of `value.user.email`, `value.cards[*].number`, `value."a.b"`, `headers.token` or `key`.

    Raises:
        ValueError: Another form; the text ends a sentence.
    """
    root = _ROOT.match(text)
    if root is None:
        raise ValueError(f"has {text!r}, which begins with none of key, value and headers; write value.iban, say")
    steps: list[Step] = [root[1]]
    position = root.end()
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            raise ValueError(
                f"has {text!r}, which is no path from column {position + 1} on; a path is names with dots, as in "
                'value.user.email, with * for any name, "…" around an odd one and [*] for the elements of an array'
            )
        steps.append(step["quoted"] or step["name"] or (Wild.ANY if step["any"] else Wild.EACH))
        position = step.end()
    if root[1] == "headers" and (len(steps) != 2 or steps[1] is Wild.EACH):
        raise ValueError(f"has {text!r}; a header has no fields, so write headers.name, or headers.* for all")
    return tuple(steps)


def _check_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    if not paths:
        raise ValueError("names nothing; write value.iban, say")
    for path in paths:
        parse_path(path)
    return paths


def _check_key(key: Secret | None) -> Secret | None:
    if key is not None and len(key.get_secret_value()) < _SHORTEST_KEY:
        raise ValueError(f"is too short to keep a hash secret; use {_SHORTEST_KEY} random characters or more")
    return key


class MaskSettings(Settings):
    """Read from CONNECTOR_TRANSFORM_MASK_FIELDS and so on."""

    fields: Annotated[tuple[str, ...], AfterValidator(_check_paths)] = Field(
        description="What is masked, with commas between: `key`, `value`, or paths in them, as in `value.user.email` "
        "and `headers.token`. A path goes through arrays by itself.",
        json_schema_extra={"values": "list"},
    )
    text: str = Field("***", description="What stands there instead.")
    hash_key: Annotated[Secret | None, AfterValidator(_check_key)] = Field(
        None,
        description="If set, a hash stands there instead of the text: HMAC-SHA256 with this key, as 64 hexadecimal "
        "digits. Equal values have equal hashes, in each run. 16 characters or more.",
    )


class MaskTransform(Transform[MaskSettings]):
    """Replaces fields by a text or a keyed hash. Null stays null, and what is missing is left alone."""

    def open(self) -> None:
        """Parse the paths."""
        key = self.settings.hash_key
        self._key = None if key is None else key.get_secret_value().encode()
        paths = [parse_path(path) for path in dict.fromkeys(self.settings.fields)]
        self._paths = {
            column: [path[1:] for path in paths if path[0] == column] for column in ("key", "value", "headers")
        }

    def apply(self, batch: Batch) -> Batch:
        """Return the batch with its fields masked."""
        masked = batch
        for column in ("key", "value"):
            if self._paths[column]:
                masked = masked.with_column(column, self._column(batch, column, self._paths[column]))
        names = {path[0] for path in self._paths["headers"]}
        if names:
            headers = [
                [(name, self._header(name, content, names)) for name, content in each]
                for each in batch.column("headers")
            ]
            masked = masked.with_column("headers", headers)
        return masked

    def _column(self, batch: Batch, column: str, paths: Sequence[tuple[Step, ...]]) -> list[Any]:
        reads_part = any(paths)
        entries: list[Any] = []
        errors: dict[int, TransientError | PoisonError] = {}
        for index, entry in enumerate(batch.column(column)):
            masked = entry
            if reads_part and isinstance(entry, (str, bytes)):
                errors[index] = PoisonError(
                    f"the {column} is {'text' if isinstance(entry, str) else 'bytes'}, so that no field of it can be "
                    f"masked. Set CONNECTOR_{column.upper()}_FORMAT to json, or to what it is"
                )
            try:
                for path in paths:
                    masked = self._masked(masked, path)
            except (RecursionError, TypeError):  # the texts of these may quote the value
                errors[index] = PoisonError(f"the {column} is nested too deeply, or has a value without a JSON form")
            entries.append(masked)
        if errors:
            raise RecordErrors(errors)
        return entries

    def _masked(self, entry: Any, path: tuple[Step, ...]) -> Any:
        """Return a copy of an entry in which what is at the end of the path is replaced."""
        if not path:
            return None if entry is None else self._replacement(entry)
        step, rest = path[0], path[1:]
        # An array is no step that has to be written, and [*] fits what is none: else such fields would get through.
        if isinstance(entry, list):
            return [self._masked(each, rest if step is Wild.EACH else path) for each in entry]
        if step is Wild.EACH:
            return self._masked(entry, rest)
        if not isinstance(entry, dict):
            return entry
        if step is Wild.ANY:
            return {name: self._masked(each, rest) for name, each in entry.items()}
        return entry | {step: self._masked(entry[step], rest)} if step in entry else entry

    def _header(self, name: str, content: bytes | None, names: set[Step]) -> bytes | None:
        is_meant = name in names or Wild.ANY in names
        return self._replacement(content).encode() if is_meant and content is not None else content

    def _replacement(self, entry: Any) -> str:
        if self._key is None:
            return self.settings.text
        if isinstance(entry, str):
            entry = entry.encode("utf-8", "surrogatepass")
        if not isinstance(entry, bytes):
            entry = orjson.dumps(entry, json_default, orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z)
        return hmac.digest(self._key, entry, "sha256").hex()
