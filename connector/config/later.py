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
_TOMBSTONES = "Leave it at write: the sink gets tombstones as records whose value is null."

LATER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "CONNECTOR_PROCESSES": "Run more copies instead: the group divides the partitions among them.",
        "CONNECTOR_ORDERING": "Remove it: the records of a partition keep their order.",
        "CONNECTOR_TRANSFORMS": "Transform in the sink, or behind it.",
        "CONNECTOR_TRANSFORM_*": "Transform in the sink, or behind it.",
        "CONNECTOR_DLQ_TOPIC": "Use CONNECTOR_ON_POISON=fail, which stops, or skip, which counts and logs.",
        "CONNECTOR_PLUGIN_DIR": "Install the plugin as a package with an entry point in the group connector.sinks.",
        "CONNECTOR_STATE_DIR": "Remove it: nothing is stored beside the sink and the group's positions.",
        "CONNECTOR_LANE_IDLE_TIMEOUT": "Watch the lag and the age of the watermark in /metrics.",
        "CONNECTOR_ADMIN_TOKEN": "Remove it: the admin server only shows and changes nothing.",
        "CONNECTOR_REGISTRY_*": _REGISTRY,
    }
)
"""Names, some with a `*` at their end."""

LATER_VALUES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("CONNECTOR_ON_POISON", "dlq"): "Use fail, which stops, or skip, which counts and logs.",
        ("CONNECTOR_TOMBSTONES", "delete"): _TOMBSTONES,
        ("CONNECTOR_TOMBSTONES", "ignore"): _TOMBSTONES,
        ("CONNECTOR_TOMBSTONES", "fail"): _TOMBSTONES,
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
