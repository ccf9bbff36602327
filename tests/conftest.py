"""Fixtures that several kinds of tests use: servers and group protocols. `tests/README.md` says who gets what."""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING

import pytest

from connector.testing.embedded import EmbeddedBroker
from tests.support.apicurio import running_registry
from tests.support.kafka import GROUP_PROTOCOLS, Kafka, running_kafka
from tests.support.postgres import Postgres, running_postgres
from tests.support.process import fail_if_unavailable
from tests.support.prometheus import find_prometheus
from tests.support.promtool import find_promtool
from tests.support.s3 import S3Server, running_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVERS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--protocols",
        choices=("one", "all", "others"),
        default="one",
        help="run each test of group_protocol with one group protocol, with all, or with those that `one` leaves out",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SERVERS] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `group_protocol` the protocols that `--protocols` asks for.

    The one is chosen by a hash of the test's id, which spreads the tests over the protocols and stays the same.
    """
    if "group_protocol" not in metafunc.fixturenames:
        return
    one = GROUP_PROTOCOLS[zlib.crc32(metafunc.definition.nodeid.encode()) % len(GROUP_PROTOCOLS)]
    others = tuple(protocol for protocol in GROUP_PROTOCOLS if protocol != one)
    chosen = {"one": (one,), "others": others, "all": GROUP_PROTOCOLS}[metafunc.config.getoption("--protocols")]
    metafunc.parametrize("group_protocol", chosen, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `--protocols one` runs just the same."""
    if config.getoption("--protocols") == "others":
        other = [item for item in items if "group_protocol" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in other])
        items[:] = other


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which real servers the run used."""
    for description in config.stash[_SERVERS]:
        terminalreporter.write_line(f"server used: {description}")


@pytest.fixture
def group_protocol(request: pytest.FixtureRequest) -> str:
    """A name of `GROUP_PROTOCOLS`; see `pytest_generate_tests`."""
    protocol: str = request.param
    return protocol


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    """A broker inside this process, new for each test (milliseconds)."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[Kafka]:
    """A real Apache Kafka, one for the whole run: use topics and groups of your own."""
    with contextlib.ExitStack() as stack:
        with fail_if_unavailable():
            cluster = stack.enter_context(running_kafka())
        pytestconfig.stash[_SERVERS].append(cluster.description)
        yield cluster


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[Postgres]:
    """A real PostgreSQL, one for the whole run."""
    with contextlib.ExitStack() as stack:
        with fail_if_unavailable():
            server = stack.enter_context(running_postgres())
        pytestconfig.stash[_SERVERS].append(server.description)
        yield server


@pytest.fixture(scope="session")
def registry(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a real schema registry, one for the whole run: use subjects of your own."""
    with contextlib.ExitStack() as stack:
        with fail_if_unavailable():
            url, description = stack.enter_context(running_registry())
        pytestconfig.stash[_SERVERS].append(description)
        yield url


@pytest.fixture
def postgres_dsn(postgres: Postgres) -> Iterator[str]:
    """The DSN of an empty PostgreSQL database, new for each test."""
    with postgres.database() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that speaks S3, one for the whole run: use buckets of your own."""
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of Prometheus' checker."""
    with fail_if_unavailable():
        return find_promtool()


@pytest.fixture(scope="session")
def prometheus_program() -> str:
    """The path of a Prometheus server, which `running_prometheus` starts."""
    with fail_if_unavailable():
        return find_prometheus()
