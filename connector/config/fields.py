"""One field of a settings model: from text to what the model takes, and what is wrong in words.

Pure. Called by `load`.
"""

from __future__ import annotations

from difflib import get_close_matches
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic import BeforeValidator

from connector.config.display import choices_of, format_setting

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_WORDS = {
    "missing": "is required. Set it",
    "int_parsing": "is no whole number. Write digits only",
    "int_from_float": "is no whole number. Write digits only",
    "float_parsing": "is no number",
    "bool_parsing": "is neither true nor false",
    "string_too_short": "is too short",
    "dict_type": "is no mapping. Write name=value pairs with commas between them",
}
_LIMITS = {"ge": "must be at least", "gt": "must be more than", "le": "must be at most", "lt": "must be less than"}


def plain_value(field: FieldInfo, text: str) -> Any:
    """Return what the model takes for the text of an environment variable.

    Lists are written with commas, mappings as `name=value` pairs with commas. A field with a validator of its own gets
    the text.
    """
    if any(isinstance(part, BeforeValidator) for part in field.metadata):
        return text
    kinds = {get_origin(kind) or kind for kind in _alternatives(field.annotation)}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if kinds & {list, tuple, set, frozenset}:
        return parts
    if dict in kinds and all("=" in part for part in parts):
        return {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in parts)}
    return text


def broken_rule(error: ErrorDetails, field: FieldInfo | None) -> str:
    """Return the rule that a value breaks and the way out, as the end of a sentence that begins with the name."""
    context = error.get("ctx", {})
    kind = error["type"]
    if kind in {"literal_error", "enum"} and field is not None:
        return _one_of(choices_of(field.annotation), error["input"])
    for key, words in _LIMITS.items():
        if key in context and field is not None:
            return f"{words} {format_setting(field, context[key])}."
    if kind == "value_error":
        return _sentence(str(context["error"]))
    return _sentence(_WORDS.get(kind) or f"is not valid: {error['msg']}")


def _one_of(choices: tuple[str, ...], value: object) -> str:
    nearest = get_close_matches(str(value).lower(), choices, n=1)
    meant = f" Did you mean {nearest[0]}?" if nearest else ""
    return f"must be {' or '.join(filter(None, (', '.join(choices[:-1]), choices[-1])))}.{meant}"


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else text + "."
