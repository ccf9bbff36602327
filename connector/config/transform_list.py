"""The list `CONNECTOR_TRANSFORMS`: which transforms run, in which order, under which names. Pure; called by `load`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_FUNCTION = re.compile(r"[A-Za-z_][\w.-]*:([A-Za-z_]\w*)")
_TAKEN = {
    "sink": "the sink in POST /reload",
    "decode": "the decoder in dead letters",
    "write": "the sink in dead letters",
    "tombstones": "CONNECTOR_TOMBSTONES in dead letters and metrics",
}


@dataclass(frozen=True, slots=True)
class TransformChoice:
    """An entry of the list. `plugin` is the name of a transform, or `module:function`."""

    name: str
    plugin: str

    def __str__(self) -> str:
        return self.plugin if self.name == _default_name(self.plugin) else f"{self.name}={self.plugin}"


def parse_transforms(value: str) -> tuple[TransformChoice, ...]:
    """Return the entries of a list such as `filter,hide=mask,my_module:keep`.

    Raises:
        ValueError: What cannot be an entry, or a name that comes twice; the text ends a sentence.
    """
    choices = tuple(_parse(part.strip()) for part in value.split(",") if part.strip())
    names = [choice.name for choice in choices]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"has {' and '.join(map(repr, twice))} more than once; give each a name of its own, as in one={twice[0]}"
        )
    return choices


def _parse(entry: str) -> TransformChoice:
    given, equals, plugin = (part.strip() for part in entry.rpartition("="))
    if not _NAME.fullmatch(plugin) and not _FUNCTION.fullmatch(plugin):
        raise ValueError(
            f"has {entry!r}, which is no transform; write its name (a-z, 0-9, '_', '-'), name=transform, or "
            "module:function"
        )
    name = given if equals else _default_name(plugin)
    if not _NAME.fullmatch(name):
        raise ValueError(f"has {entry!r}, whose name is none (a-z, 0-9, '_', '-'); write name={plugin}")
    if name in _TAKEN:
        raise ValueError(f"has {name!r}, which means {_TAKEN[name]}; give the transform another name: name={plugin}")
    return TransformChoice(name, plugin)


def _default_name(plugin: str) -> str:
    return plugin.rpartition(":")[2]
