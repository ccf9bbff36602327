"""`connector sinks`: what is installed, and the settings of each."""

from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING

from connector.config.display import describe_default, describe_values
from connector.config.load import SINK_PREFIX
from connector.config.settings import environment_name
from connector.sink.loader import installed

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from connector.sink.loader import InstalledSink

_WIDTH = 100


def list_sinks() -> None:
    """Print every installed sink; one that cannot be imported with its problem and the way out."""
    for number, each in enumerate(installed()):
        if number:
            print()
        _print_sink(each)


def _print_sink(each: InstalledSink) -> None:
    if each.sink is None:
        print(f"{each.name} ({each.distribution}): {each.problem}")
        return
    first_line = (inspect.getdoc(each.sink) or "").partition("\n")[0]
    print(f"{each.name} ({each.distribution}): {first_line}")
    fields = each.sink.settings_type.model_fields
    for name, field in fields.items():
        _print_setting(environment_name(name, SINK_PREFIX), field)
    if not fields:
        print("  No settings.")


def _print_setting(name: str, field: FieldInfo) -> None:
    default = describe_default(field)
    tail = default if default == "required" else f"default {default}"
    print(f"  {name}: {describe_values(field).replace('`', '')}; {tail}")
    print(textwrap.fill(field.description or "", _WIDTH, initial_indent="      ", subsequent_indent="      "))
