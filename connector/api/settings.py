"""Settings of a plugin: a typed model that gives each field its environment name, validation, masking and docs.

The field `path` of a sink is read from `CONNECTOR_SINK_PATH` or, the file's content, from `CONNECTOR_SINK_PATH_FILE`.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_duration(value: object) -> object:
    """Return seconds of `500ms`, `30s`, `5m`, `2h`, `7d` or a bare `0`; other types pass unchanged.

    Raises:
        ValueError: No such duration.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", value)
    if found:
        return float(found[1]) * _DURATION_UNITS[found[2]]
    if re.fullmatch(r"\s*0+\s*", value):
        return 0.0
    raise ValueError("is not a duration; write a number and a unit, as in 500ms, 30s, 5m or 2h")


def parse_size(value: object) -> object:
    """Return bytes of `64MiB`, `8MB`, `1024`; other types pass unchanged.

    Raises:
        ValueError: No such size.
    """
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B|B|)\s*", value, re.IGNORECASE)
    if not found:
        raise ValueError("is not a size; write bytes or a number and a unit, as in 64MiB, 8MB or 1048576")
    return int(float(found[1]) * _SIZE_UNITS[found[2].upper()])


def format_duration(seconds: float) -> str:
    """Write seconds the way settings are written: `500ms`, `30s`, `5m`."""
    if seconds < 1 and seconds != 0:
        return f"{seconds * 1000:g}ms"
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


Duration = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, json_schema_extra={"unit": "duration"})]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0, json_schema_extra={"unit": "size"})]
Secret = SecretStr  # prints as ***; read with get_secret_value()


class Settings(BaseModel):
    """Base of a plugin's settings. Frozen; a field that does not exist is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def problems(self, pipelines: int) -> list[str]:
        """Return what is wrong with the fields together, in a process of so many pipelines; each says the way out."""
        return []

    def delete_problems(self) -> list[str]:
        """Return why a sink with these fields cannot do `CONNECTOR_TOMBSTONES=delete`; each says the way out."""
        return []


__all__ = ["Duration", "Field", "Secret", "Settings", "Size", "format_duration", "parse_duration", "parse_size"]
