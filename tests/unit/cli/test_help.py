"""What `--help` shows and what a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer

from connector.cli import app, main

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH = 80


def every_command(of: object, *before: str) -> Iterator[tuple[str, ...]]:
    """Every command and group, as it is typed after `connector`."""
    for name, command in getattr(of, "commands", {}).items():
        yield (*before, name)
        yield from every_command(command, *before, name)


COMMANDS = [(), *every_command(typer.main.get_command(app))]


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> str:
    monkeypatch.setenv("COLUMNS", str(_WIDTH))
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_a_terminal_and_cuts_nothing_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    text = shown(monkeypatch, capsys, command)
    assert "..." not in text.removeprefix(f"Usage: connector {' '.join(command)}".rstrip()).replace("[ARGS]...", "")
    assert [line for line in text.splitlines() if len(line) > _WIDTH] == []


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in ((), ("dlq",), ("offsets",))])
def test_every_command_has_an_example_that_begins_as_it_is_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    _, _, examples = shown(monkeypatch, capsys, command).partition("\n  Example")
    lines = examples.splitlines()[1:]
    assert lines
    assert all(f"connector {' '.join(command)}" in line for line in lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_and_completes_commands_with_it(shell: str) -> None:
    def ask(**variables: str) -> str:
        answer = subprocess.run(
            [sys.executable, "-m", "connector"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return answer.stdout

    assert "_CONNECTOR_COMPLETE" in ask(_CONNECTOR_COMPLETE=f"source_{shell}")
    typed = {"COMP_WORDS": "connector dlq ", "COMP_CWORD": "2"} if shell == "bash" else {}
    completed = ask(
        _CONNECTOR_COMPLETE=f"complete_{shell}",
        _TYPER_COMPLETE_ARGS="connector dlq ",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        **typed,
    )
    assert "replay" in completed
    assert "healthcheck" not in completed
