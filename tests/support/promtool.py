"""Prometheus' own checker, `promtool`, of the Debian package prometheus."""

from __future__ import annotations

import shutil
import subprocess

from tests.support.process import ServerUnavailableError


def find_promtool() -> str:
    """Return the program's path.

    Raises:
        ServerUnavailableError: It is not installed.
    """
    path = shutil.which("promtool")
    if path is None:
        raise ServerUnavailableError(
            "promtool is not installed: RUNLEVEL=1 apt-get install --no-install-recommends prometheus"
        )
    return path


def check_metrics(promtool: str, scrape: bytes) -> str:
    """Return what promtool has against a scrape in the text form; nothing, if it is empty."""
    done = subprocess.run([promtool, "check", "metrics"], input=scrape, capture_output=True, timeout=30, check=False)
    problems = (done.stdout + done.stderr).decode()
    return problems or ("" if done.returncode == 0 else f"exit code {done.returncode}")
