"""`connector sinks`: which sinks and transforms there are, and the settings of each."""

from __future__ import annotations

import inspect
import os
import textwrap
from typing import TYPE_CHECKING, Any

from connector.config.display import describe_default, describe_values
from connector.config.load import SINK_PREFIX, plugins_of, transform_prefix
from connector.config.settings import environment_name
from connector.plugins.loader import SINK, TRANSFORM

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic.fields import FieldInfo

    from connector.plugins.loader import Plugin

_WIDTH = 100
_HEADINGS = {SINK: "Sinks", TRANSFORM: "Transforms", None: "Files that cannot be used"}


def list_sinks(env_file: Path | None = None) -> None:
    """Print every plugin, installed or in `CONNECTOR_PLUGIN_DIR`; a broken one with its problem and the way out."""
    found = plugins_of(os.environ, env_file).installed()
    blocks: list[str] = []
    for kind, heading in _HEADINGS.items():
        of_kind = [_describe(each) for each in found if each.kind is kind]
        if of_kind:
            blocks += [heading, *of_kind]
    print("\n\n".join(blocks))


def _describe(each: Plugin[Any]) -> str:
    if each.loaded is None:
        return f"{each.name} ({each.origin}): {each.problem}"
    # The class's own docstring: that of a base says nothing about it.
    first_line = inspect.cleandoc(each.loaded.__doc__ or "").partition("\n")[0]
    prefix = SINK_PREFIX if each.kind is SINK else transform_prefix(each.name)
    fields = each.loaded.settings_type.model_fields
    lines = [f"{each.name} ({each.origin}): {first_line}".rstrip()]
    lines += [_describe_setting(environment_name(name, prefix), field) for name, field in fields.items()]
    return "\n".join(lines if fields else [*lines, "  No settings."])


def _describe_setting(name: str, field: FieldInfo) -> str:
    default = describe_default(field)
    tail = default if default == "required" else f"default {default}"
    meaning = textwrap.fill(field.description or "", _WIDTH, initial_indent="      ", subsequent_indent="      ")
    return f"  {name}: {describe_values(field).replace('`', '')}; {tail}\n{meaning}"
