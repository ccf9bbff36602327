"""A package of `connector new-sink` is whole: installed into a fresh environment, its tests pass, and it runs."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from connector.cli.new_sink import new_sink

if TYPE_CHECKING:
    from connector.testing import EmbeddedBroker
    from tests.support.kafka import Kafka

ROOT = Path(__file__).parents[2]
COUNT = 200


class Package:
    """A generated package, and the environment that it is installed into."""

    def __init__(self, directory: Path) -> None:
        self.folder = new_sink("web-hook", directory / "package")
        self.programs = directory / "environment" / "bin"

    def run(self, *command: str, settings: dict[str, str] | None = None, timeout: float = 100) -> str:
        """Run a program of the environment in the package's folder, and return what it printed."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTOR_")}
        program, *arguments = command
        done = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self.folder,
            env={**clean, **(settings or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Made once: an environment takes a minute."""
    package = Package(tmp_path_factory.mktemp("new-sink"))
    subprocess.run([sys.executable, "-m", "venv", package.programs.parent], check=True, timeout=60)
    install = ("pip", "install", "--quiet", "--disable-pip-version-check")
    package.run(*install, "-c", f"{ROOT}/constraints.txt", "-e", str(ROOT), "-e", ".", "pytest", timeout=280)
    return package


def run_to_the_end(package: Package, servers: str, topic: str, database: Path) -> None:
    """Produce records, have the sink take them all in a bounded run, and see that each is there once."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    for number in range(COUNT):
        producer.produce(topic, f"{number}".encode(), partition=number % 2)
    assert producer.flush(30) == 0
    settings = {
        "CONNECTOR_BOOTSTRAP_SERVERS": servers,
        "CONNECTOR_GROUP_ID": f"new-sink-{time.time_ns()}",
        "CONNECTOR_TOPICS": topic,
        "CONNECTOR_STOP": "end",
        "CONNECTOR_ADMIN_ADDRESS": "127.0.0.1:0",
        "CONNECTOR_SINK": "web-hook",
        "CONNECTOR_SINK_PATH": str(database),
    }
    package.run("connector", "run", settings=settings)
    with closing(sqlite3.connect(database)) as written:
        values = [int(value) for (value,) in written.execute("SELECT value FROM records ORDER BY CAST(value AS INT)")]
    assert values == list(range(COUNT))


@pytest.mark.embedded
@pytest.mark.timeout(360)
def test_it_installs_beside_the_connector_and_its_own_tests_pass(package: Package) -> None:
    assert " passed" in package.run("pytest", "-q", "-p", "no:cacheprovider")
    listed = package.run("connector", "sinks")
    assert "web-hook (sluiceway-sink-web-hook): Writes records into a table of a SQLite database." in listed
    assert "CONNECTOR_SINK_PATH: text; required\n      Database file." in listed


@pytest.mark.embedded
def test_its_types_are_strict(tmp_path: Path) -> None:
    folder = new_sink("web-hook", tmp_path / "package")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "src", "tests"],
        cwd=folder,
        env={**os.environ, "MYPYPATH": f"{ROOT}:src"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.embedded
@pytest.mark.timeout(360)
def test_the_connector_runs_it_on_the_embedded_broker(
    package: Package, embedded: EmbeddedBroker, tmp_path: Path
) -> None:
    embedded.create_topic("records", 2)
    run_to_the_end(package, embedded.bootstrap_servers, "records", tmp_path / "records.db")


@pytest.mark.kafka
@pytest.mark.timeout(360)
def test_the_connector_runs_it_on_kafka(package: Package, kafka: Kafka, tmp_path: Path) -> None:
    run_to_the_end(package, kafka.bootstrap_servers, kafka.create_topic(partitions=2), tmp_path / "records.db")
