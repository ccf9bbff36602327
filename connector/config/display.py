"""How settings are shown: written as they are set, secrets as stars. For errors, `connector check` and the reference.

Pure.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, get_args

from pydantic import SecretStr

from connector.api.settings import format_duration

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

MASK = "***"
_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_IN_WEB_URL = re.compile(r"\b(https?://)[^\s/@]*@")  # also without a colon: tokens stand there
_IN_URL = re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]*@")
_IN_PAIRS = re.compile(r"\b(password|passwd|pwd|secret)(\s*=\s*)('[^']*'|[^\s&;,]+)", re.IGNORECASE)


def mask_credentials(text: str) -> str:
    """Hide passwords inside a value that is not a secret as a whole: `user:***@host`, `password=***`."""
    text = _IN_WEB_URL.sub(rf"\1{MASK}@", text)
    return _IN_PAIRS.sub(rf"\1\2{MASK}", _IN_URL.sub(rf"\1:{MASK}@", text))


def describe_default(field: FieldInfo) -> str:
    """Return a field's default, written as a user would write it; `required` where there is none."""
    extra = _extra(field)
    if "default" in extra:
        return str(extra["default"])
    if field.is_required():
        return "required"
    return format_setting(field, field.default) or "none"


def describe_values(field: FieldInfo) -> str:
    """Return which values a field takes: its choices, or the kind of value."""
    extra = _extra(field)
    kind = extra.get("values") or extra.get("unit")
    if kind:
        return str(kind)
    choices = choices_of(field.annotation)
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if is_secret(field):
        return "secret text"
    kinds = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}
    named = [kinds[part] for part in (field.annotation, *get_args(field.annotation)) if part in kinds]
    return named[0] if named else "text"


def is_secret(field: FieldInfo) -> bool:
    """Whether the value of this field must never be shown: it is a secret, or one is somewhere in its type."""
    return _has_secret(field.annotation)


def _has_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_has_secret, get_args(annotation)))


def format_setting(field: FieldInfo, value: object) -> str:
    """Write a value the way it is set: `200ms`, `8MiB`, `a,b`, `earliest`; nothing for None, stars for a secret."""
    unit = _extra(field).get("unit")
    match value:
        case None:
            text = ""
        case SecretStr():
            text = MASK if value.get_secret_value() else ""
        case Enum():
            text = str(value.value)
        case datetime():
            text = value.isoformat().replace("+00:00", "Z")
        case bool():
            text = str(value).lower()
        case int() if unit == "size":
            text = format_size(value)
        case int() | float() if unit == "duration":
            text = format_duration(value)
        case dict():
            text = ",".join(f"{name}={part}" for name, part in value.items())
        # A named tuple that says how it is written, as an address does, is no list.
        case list() | tuple() | set() | frozenset() if type(value).__str__ is object.__str__:
            text = ",".join(str(part) for part in value)
        case _:
            text = str(value)
    return mask_credentials(text)


def format_size(size_bytes: int) -> str:
    """Write bytes the way settings are written: `8MiB`, `1500`."""
    for unit, size in _SIZES:
        if size_bytes >= size and size_bytes % size == 0:
            return f"{size_bytes // size}{unit}"
    return str(size_bytes)


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def choices_of(annotation: Any) -> tuple[str, ...]:
    """Return the texts of a closed set: an enum's values or a `Literal`'s; nothing for other types."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(str(member.value) for member in annotation)
    arguments = get_args(annotation)
    if arguments and all(isinstance(choice, str) for choice in arguments):
        return arguments
    nested = [found for argument in arguments if (found := choices_of(argument))]
    return nested[0] if nested else ()
