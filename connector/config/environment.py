"""What is set, as text: the environment, and a file of variables if wanted. Needs no model of the settings.

So `connector healthcheck` can read one setting whatever else is wrong, without importing what the others need. Rules:

- `<NAME>_FILE` names a file that holds the value (one trailing line break is cut off).
- The environment wins over the file of variables, setting by setting.
- An empty value counts as unset, since `${NAME:-}` in a compose file leaves one behind.

Called once by a command, before any thread starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from connector.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "CONNECTOR_"
FILE_SUFFIX = "_FILE"
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


@dataclass(frozen=True, slots=True)
class Reading:
    """A value as text, and where it was read: `environment`, the path of a file, or the line of a file."""

    value: str
    origin: str


def read_layers(environ: Mapping[str, str], env_file: Path | None, problems: list[str]) -> list[dict[str, Reading]]:
    """Return what is set, the file first: a later layer wins.

    Args:
        environ: The environment.
        env_file: Lines of `NAME=value`; `#` begins a comment line, `export ` before the name and one pair of quotes
            around the value are taken off. Names that do not begin with `CONNECTOR_` are left alone.
        problems: Takes a line for each thing that is wrong with the file.
    """
    layers = [_file_layer(env_file, problems)] if env_file is not None else []
    layers.append({name: Reading(value, "environment") for name, value in environ.items()})
    return [
        {name: reading for name, reading in layer.items() if name.startswith(PREFIX) and reading.value}
        for layer in layers
    ]


def find_reading(layers: list[dict[str, Reading]], name: str) -> Reading | None:
    """Return the reading of one setting, from its `_FILE` if that is what is set.

    Raises:
        ConfigError: The file that it names cannot be read.
    """
    for layer in reversed(layers):
        if name in layer:
            return layer[name]
        if name + FILE_SUFFIX in layer:
            return read_value(name, layer[name + FILE_SUFFIX])
    return None


def read_value(name: str, path: Reading) -> Reading:
    """Read the value of a setting from a file.

    Raises:
        ConfigError: It cannot be read, or is empty.
    """
    try:
        content = Path(path.value).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}{FILE_SUFFIX}={path.value} cannot be read: {_reason(error)}.") from error
    value = content.removesuffix("\n").removesuffix("\r")
    if not value:
        raise ConfigError(f"{name}{FILE_SUFFIX}={path.value} is empty. Write the value into the file.")
    return Reading(value, path.value)


def _file_layer(path: Path, problems: list[str]) -> dict[str, Reading]:
    layer: dict[str, Reading] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"--env-file {path} cannot be read: {_reason(error)}.")
        return layer
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is not None and not found[1].startswith(PREFIX):
            continue
        if found is None:
            problems.append(f"{path}:{number} is not NAME=value. Correct it, or begin the line with #.")
        elif found[1] in layer:
            first = layer[found[1]].origin
            problems.append(f"{path}:{number} sets {found[1]} again, after {first}. Remove one of them.")
        else:
            layer[found[1]] = Reading(_unquote(found[2].strip()), f"{path}:{number}")
    return layer


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


def _unquote(text: str) -> str:
    is_quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if is_quoted else text
