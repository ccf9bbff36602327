"""An address to listen on, as in `CONNECTOR_ADMIN_ADDRESS`. Apart from the settings, which take longer to import."""

from __future__ import annotations

import re
from typing import NamedTuple

_ADDRESS = re.compile(r"([^\s:\[\]]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")


class Address(NamedTuple):
    """Where a server listens. Port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


ADMIN_ADDRESS = Address("127.0.0.1", 9464)
"""The default."""


def parse_address(text: str) -> Address:
    """Read `host:port`, IPv6 in brackets.

    Raises:
        ValueError: It is none.
    """
    found = _ADDRESS.fullmatch(text)
    if not found or int(found[2]) > 65535:
        raise ValueError("is no address to listen on; write host:port, as in 127.0.0.1:9464 (port 0: a free one)")
    return Address(found[1].strip("[]"), int(found[2]))
