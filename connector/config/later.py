"""Names and values that the design keeps for a later version, each with what serves instead today.

They are refused, not ignored: whoever sets one counts on what it does.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROTOBUF = "Use bytes and decode in the sink."

LATER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "CONNECTOR_PROCESSES": "Run more copies instead: the group divides the partitions among them.",
        "CONNECTOR_ORDERING": "Remove it: the records of a partition keep their order.",
    }
)
"""Names that there will be."""

LATER_VALUES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("CONNECTOR_KEY_FORMAT", "protobuf"): _PROTOBUF,
        ("CONNECTOR_VALUE_FORMAT", "protobuf"): _PROTOBUF,
    }
)
