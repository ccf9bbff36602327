"""`connector new-sink` writes a clean package, or says in one line why not. tests/e2e installs and runs one."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from connector.cli import main
from connector.cli.new_sink import new_sink

ROOT = Path(__file__).parents[3]


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_the_package_goes_into_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code("new-sink", "web-hook") == 0
    assert capsys.readouterr().out.startswith("Made sluiceway-sink-web-hook. Next: cd sluiceway-sink-web-hook && ")
    folder = tmp_path / "sluiceway-sink-web-hook"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "src/web_hook_sink/__init__.py",
        "src/web_hook_sink/py.typed",
        "src/web_hook_sink/sink.py",
        "tests/test_web_hook_sink.py",
    }
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["connector.sinks"] == {"web-hook": "web_hook_sink:WebHookSink"}


@pytest.mark.parametrize("name", ["x", "web-hook", "a" * 24, "test", "class", "s3-2"])
@pytest.mark.parametrize("config", [ROOT / "pyproject.toml", Path("pyproject.toml")])
def test_what_is_written_is_formatted_and_clean(name: str, config: Path, tmp_path: Path) -> None:
    folder = new_sink(name, tmp_path / "package")
    for command in (("format", "--check"), ("check",)):
        arguments = [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", str(config), "."]
        done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name", ["", "Web", "web_hook", "1web", "-web", "web-", "web--hook", "../web", "web.hook", "wéb", "a" * 25, "web\n"]
)
def test_a_bad_name_is_refused_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("new-sink", "--directory", str(tmp_path / "package"), "--", name) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"connector: {name!r} is no name for a sink. Use lower-case letters")
    assert not (tmp_path / "package").exists()


def test_the_name_of_an_installed_sink_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("new-sink", "sqlite", "--directory", str(tmp_path / "package")) == 2
    assert capsys.readouterr().err == "connector: a sink sqlite is installed already. Choose another name.\n"


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("new-sink", "hook", "--directory", str(tmp_path)) == 2
    assert capsys.readouterr().err == (
        f"connector: {tmp_path} exists already. Name another folder with --directory, or remove it.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert exit_code("new-sink", "hook", "--directory", str(tmp_path / "file" / "package")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
