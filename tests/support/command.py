"""Commands of the connector other than `run`, as processes that end by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def connector_command(
    settings: Mapping[str, str], *arguments: str, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run `connector …` with these settings and no others, and return its exit code and what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTOR_")}
    return subprocess.run(
        [sys.executable, "-m", "connector", *arguments],
        env={**clean, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
