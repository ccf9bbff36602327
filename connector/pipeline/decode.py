"""Bytes to values, by `CONNECTOR_KEY_FORMAT` and `CONNECTOR_VALUE_FORMAT`. Null stays null; empty is not null (INV-12).

Called on the pipeline's thread, once a batch and column. `bytes` costs nothing: the column is not touched.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Format(Enum):
    """How a key or a value is read."""

    BYTES = "bytes"
    STRING = "string"  # UTF-8
    JSON = "json"


_DECODERS: dict[Format, Callable[[bytes], Any]] = {Format.STRING: bytes.decode, Format.JSON: orjson.loads}


def decode(column: Sequence[bytes | None], format_: Format) -> tuple[Sequence[Any], dict[int, str]]:
    """Return the decoded column, and what is wrong with the entries that cannot be decoded, by index (None there)."""
    if format_ is Format.BYTES:
        return column, {}
    decoder = _DECODERS[format_]
    try:
        return [None if entry is None else decoder(entry) for entry in column], {}
    except ValueError:  # both decoders raise its subclasses; find which entries
        values: list[Any] = []
        problems: dict[int, str] = {}
        for index, entry in enumerate(column):
            try:
                values.append(None if entry is None else decoder(entry))
            except ValueError as error:
                values.append(None)
                problems[index] = f"not {format_.value}: {error}"
        return values, problems
