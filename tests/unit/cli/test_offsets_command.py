"""`connector offsets` before and without a cluster: what is refused at once, and what cannot be reached."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.command import connector_command

if TYPE_CHECKING:
    from pathlib import Path

SINK = '''
from connector import Offset, Sink, StoredPosition, TransientError

class Own(Sink):
    """Holds positions."""

    @property
    def holds_positions(self):
        return True
'''
RESETS = """
    @property
    def resets_positions(self):
        return True
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """A cluster that is not there, given up quickly, and a folder for a sink."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    return {
        "CONNECTOR_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
        "CONNECTOR_GROUP_ID": "group",
        "CONNECTOR_TOPICS": "orders",
        "CONNECTOR_STARTUP_TIMEOUT": "500ms",
        "CONNECTOR_PLUGIN_DIR": str(tmp_path),
    }


def call(settings: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Return the exit code and standard error; nothing stands on standard output."""
    done = connector_command(settings, "offsets", *arguments)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give one of --to and --from-file"),
        (["--to", "latest", "--from-file", "x"], "give one of --to and --from-file"),
        (["--to", "yesterday"], "--to yesterday is not earliest, latest, an offset, or a time"),
        (["--from-file", "/there/is/no/such.json"], "--from-file /there/is/no/such.json cannot be read: "),
    ],
)
def test_a_reset_to_nowhere_is_refused_before_anything_is_asked(
    settings: dict[str, str], arguments: list[str], reason: str
) -> None:
    code, said = call(settings, "reset", *arguments)
    assert code == 2
    assert said.startswith(f"connector: refused, nothing was changed\n  - {reason}")


@pytest.mark.parametrize("command", [["show"], ["show", "--json"], ["reset", "--to", "latest", "--execute"]])
def test_a_cluster_that_is_not_there_is_exit_8(settings: dict[str, str], command: list[str]) -> None:
    code, said = call(settings, *command)
    assert code == 8
    assert said.startswith("connector: No Kafka cluster within 0.5s (last error: ")


def test_wrong_settings_are_exit_2(settings: dict[str, str]) -> None:
    settings["CONNECTOR_SINK"] = "no-such-sink"
    code, said = call(settings, "show")
    assert code == 2
    assert "problem in the configuration" in said


def test_a_sink_that_holds_positions_and_cannot_reset_them_makes_a_reset_refuse(
    settings: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(SINK)
    settings["CONNECTOR_SINK"] = "own"
    code, said = call(settings, "reset", "--to", "earliest")
    assert code == 2
    assert "the sink own holds positions, which count, and has no way to reset them" in said


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ('TransientError("the disk sleeps")', "the sink own could not read its positions: the disk sleeps"),
        ("KeyError(3)", "the sink own raised KeyError: 3"),
    ],
)
def test_a_sink_that_cannot_be_asked_is_exit_7_since_its_positions_would_count(
    settings: dict[str, str], tmp_path: Path, error: str, reason: str
) -> None:
    (tmp_path / "own.py").write_text(f"{SINK}{RESETS}\n    def read_positions(self):\n        raise {error}\n")
    settings["CONNECTOR_SINK"] = "own"
    for command in (["show"], ["reset", "--to", "earliest", "--execute"]):
        code, said = call(settings, *command)
        assert code == 7
        assert reason in said
