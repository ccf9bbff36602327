"""What tests in containers share: the image of this checkout, a Kafka, a PostgreSQL; and the report of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from testcontainers.core.network import Network

from tests.support.containers import KAFKA_IMAGE, POSTGRES_IMAGE, RUN_ID, RUN_LABEL, KafkaContainer, PostgresContainer
from tests.support.copies import Stand
from tests.support.docker import docker, why_docker_cannot_run
from tests.support.kafka import Kafka
from tests.support.postgres import Postgres
from tests.support.process import ServerUnavailableError, fail_if_unavailable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

ROOT = Path(__file__).parents[2]
IMAGE = "sluiceway:e2e"


@pytest.fixture(scope="session")
def base_image() -> str:
    """The image that ours is made from."""
    found = re.search(r"^ARG BASE=(\S+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture(scope="session")
def image(base_image: str) -> str:
    """The connector's image, built from this checkout. Its name stays, so that the next build finds its layers."""
    with fail_if_unavailable():
        for needed in (base_image, KAFKA_IMAGE, POSTGRES_IMAGE):
            if reason := why_docker_cannot_run(needed):
                raise ServerUnavailableError(f"the tests in containers cannot run: {reason}")
    docker("build", "--quiet", "-f", str(ROOT / "deploy" / "Dockerfile"), "-t", IMAGE, str(ROOT), timeout=600)
    return IMAGE


@pytest.fixture(scope="session")
def network(image: str) -> Iterator[Network]:
    """Where the containers find each other by name."""
    with Network() as network:
        yield network


@pytest.fixture(scope="session")
def kafka_container(network: Network) -> Iterator[KafkaContainer]:
    """The broker of all tests in containers, which a test may stop as long as it starts it again."""
    with KafkaContainer(network) as container:
        yield container


@pytest.fixture(scope="session")
def postgres_container(network: Network) -> Iterator[PostgresContainer]:
    """The database server of all tests in containers, likewise."""
    with PostgresContainer(network) as container:
        yield container


@pytest.fixture
def stand(
    image: str, network: Network, kafka_container: KafkaContainer, postgres_container: PostgresContainer, tmp_path: Path
) -> Iterator[Stand]:
    """A topic, a group, an empty database and the copies of one test."""
    kafka = Kafka(kafka_container.bootstrap_servers, f"{KAFKA_IMAGE} in Docker")
    with Postgres(postgres_container.dsn, f"{POSTGRES_IMAGE} in Docker").database() as dsn:
        stand = Stand(image, network, kafka, dsn, tmp_path)
        try:
            yield stand
        finally:
            stand.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of all containers' logs to the report of a test that failed."""
    report = yield
    if report.failed and item.get_closest_marker("containers"):
        names = docker("ps", "--all", "--filter", f"label={RUN_LABEL}={RUN_ID}", "--format", "{{.Names}} {{.Image}}")
        for line in names.splitlines():
            log = docker("logs", "--tail", "40", line.split()[0])
            report.sections.append((f"the end of the log of {line}", log))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long each test in containers took, and the figures that it recorded."""
    reports = [report for category in ("passed", "failed") for report in terminalreporter.getreports(category)]
    cases = [report for report in reports if report.when == "call" and "containers" in report.keywords]
    if not cases:
        return
    terminalreporter.section("tests in containers")
    for report in cases:
        name = report.nodeid.partition("::")[2].removeprefix("test_").replace("_", " ")
        figures = ", ".join(f"{name} {value}" for name, value in report.user_properties)
        terminalreporter.write_line(
            f"{report.outcome}  {report.duration:5.1f} s  {name}" + (f": {figures}" if figures else "")
        )
