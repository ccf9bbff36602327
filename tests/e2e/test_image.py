"""The image has what it needs and nothing else, and the wheel is whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connector import __version__
from tests.support.docker import docker

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.containers, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
MEGABYTE = 1_000_000
UNWANTED = r"""
for program in gcc cc g++ make; do command -v $program; done
find / -xdev \( -path '*/.cache/pip' -o -path '/src' -o -name '*.whl' -newer /opt/venv/pyvenv.cfg \) -print
find /opt/venv -name 'pyarrow*' -print
"""


def _inspect(image: str) -> dict[str, Any]:
    [found] = json.loads(docker("image", "inspect", image))
    return dict(found)


def test_the_image_adds_at_most_120_mb_to_its_base(
    image: str, base_image: str, record_property: Callable[[str, object], None]
) -> None:
    added = (_inspect(image)["Size"] - _inspect(base_image)["Size"]) / MEGABYTE
    record_property("MB above the base", round(added))
    assert added <= 120


def test_the_image_has_no_compiler_no_cache_of_pip_and_no_arrow(image: str) -> None:
    assert docker("run", "--rm", "--user", "root", "--entrypoint", "sh", image, "-c", UNWANTED) == ""


def test_the_image_says_who_runs_it_how_it_stops_and_how_its_health_is_asked(image: str) -> None:
    config = _inspect(image)["Config"]
    assert config["User"] == "10001:10001"
    assert (config["Entrypoint"], config["Cmd"]) == (["connector"], ["run"])
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "connector", "healthcheck"]
    assert config["Labels"]["org.opencontainers.image.title"] == "Sluiceway"


def test_every_command_runs_in_the_image(image: str) -> None:
    assert docker("run", "--rm", "--read-only", image, "--version").strip().endswith(__version__)
    listed = docker("run", "--rm", "--read-only", image, "sinks")
    for sink in ("file", "null", "postgres", "sqlite", "stdout"):
        assert f"\n{sink} (sluiceway): " in f"\n{listed}"


def test_the_wheel_installs_into_a_fresh_environment_and_runs(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in ("connector", "sinks", "transforms"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    wheel = ("wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source))
    subprocess.run([sys.executable, *pip, *wheel], check=True, timeout=120)
    [built] = tmp_path.glob("*.whl")
    record_property("kB", round(built.stat().st_size / 1000))
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=60)
    started = time.monotonic()
    install = ("install", "-c", str(ROOT / "constraints.txt"), str(built))
    subprocess.run([environment / "bin" / "python", *pip, *install], check=True, timeout=300)
    record_property("seconds to install", round(time.monotonic() - started))
    for command, said in (("--version", __version__), ("sinks", "sqlite (sluiceway): ")):
        done = subprocess.run(
            [environment / "bin" / "connector", command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert said in done.stdout
