"""Names and values that the design keeps for a later version, each with what serves instead today.

They are refused, not ignored: whoever sets one counts on what it does.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORMAT = "Use bytes and decode in the sink."
_REGISTRY = "Use CONNECTOR_KEY_FORMAT and CONNECTOR_VALUE_FORMAT with bytes, string or json."

LATER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "CONNECTOR_PROCESSES": "Run more copies instead: the group divides the partitions among them.",
        "CONNECTOR_ORDERING": "Remove it: the records of a partition keep their order.",
        "CONNECTOR_REGISTRY_*": _REGISTRY,
    }
)
"""Names, some with a `*` at their end."""

LATER_VALUES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        **{
            (f"CONNECTOR_{part}_FORMAT", name): _FORMAT
            for part in ("KEY", "VALUE")
            for name in ("avro", "json-schema", "protobuf")
        },
    }
)


def later_name(name: str) -> str | None:
    """Return what serves instead of a setting of a later version; None when it is not one."""
    for pattern, instead in LATER_NAMES.items():
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            return instead
    return None
