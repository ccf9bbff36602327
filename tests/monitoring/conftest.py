"""The table of what each panel's query gave, at the end of the run."""

from __future__ import annotations

import pytest

PANELS = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    for line in config.stash.get(PANELS, []):
        terminalreporter.write_line(line)
