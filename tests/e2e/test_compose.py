"""docker-compose.yml, as the README has it: rows arrive, copies come and go, and each order is there exactly once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.containers import RUN_ID, RUN_LABEL
from tests.support.docker import docker
from tests.support.kafka import Kafka
from tests.support.oracle import ends, judge, written_to_table
from tests.support.process import free_ports, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.containers, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
GROUP = "orders-to-postgres"
TOPIC = TABLE = "orders"
OURS = ("connector", "producer")  # what runs our image
CORE = (*OURS, "kafka", "postgres", "topic", "watch")


class Project:
    """The compose file under a name of the run's own, with free ports and the image of this checkout."""

    def __init__(self, image: str, directory: Path) -> None:
        kafka_port, postgres_port = free_ports(2)
        self.name = f"sluiceway-e2e-{RUN_ID[:8]}"
        services = {
            name: {"labels": {RUN_LABEL: RUN_ID}, **({"image": image} if name in OURS else {})} for name in CORE
        }
        (directory / "override.json").write_text(json.dumps({"services": services}))
        (directory / "ports").write_text(f"KAFKA_PORT={kafka_port}\nPOSTGRES_PORT={postgres_port}\n")
        files = ("-f", str(FILE), "-f", str(directory / "override.json"))
        self._compose = ("compose", "-p", self.name, "--env-file", str(directory / "ports"), *files)
        password = (ROOT / "deploy" / "compose" / "postgres-password.txt").read_text().strip()
        self.servers = f"localhost:{kafka_port}"
        self.dsn = f"postgresql://sluiceway:{password}@127.0.0.1:{postgres_port}/shop"

    def compose(self, *arguments: str) -> str:
        """Run `docker compose` and return what it printed."""
        return docker(*self._compose, *arguments)

    def up(self, copies: int) -> None:
        """Start what does not run, with so many copies of the connector."""
        self.compose("up", "--detach", "--no-build", "--scale", f"connector={copies}")

    def containers(self, service: str) -> list[dict[str, Any]]:
        """Return what compose says of each container of a service, ended ones too."""
        return [json.loads(line) for line in self.compose("ps", "--all", "--format", "json", service).splitlines()]

    def rows(self) -> int:
        """Return how many rows there are."""
        with psycopg.connect(self.dsn, connect_timeout=10) as connection:
            [(count,)] = connection.execute(f"SELECT count(*) FROM {TABLE}").fetchall()
        return int(count)

    def wait_for_more_rows(self, *, timeout: float = 60) -> None:
        """Wait until there are more rows than now."""
        before = self.rows()
        wait_until(lambda: self.rows() > before, timeout=timeout, what=f"there are more than {before} rows")


@pytest.fixture
def project(image: str, tmp_path: Path) -> Iterator[Project]:
    """Not started yet; removed with its data at the end."""
    project = Project(image, tmp_path)
    yield project
    project.compose("down", "--volumes", "--timeout", "5")
    assert docker("ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={project.name}") == ""


def test_orders_arrive_once_whatever_happens_to_the_copies(
    project: Project, record_property: Callable[[str, object], None]
) -> None:
    started = time.monotonic()
    project.up(copies=2)
    wait_until(lambda: project.rows() > 0, timeout=60, what="there are rows")
    record_property("seconds to the first row", round(time.monotonic() - started, 1))
    kafka = Kafka(project.servers)

    def wait_for_members(count: int) -> None:
        def are_there() -> bool:
            members = kafka.describe_group(GROUP).members
            return [len(member.partitions) for member in members] == [8 // count] * count

        wait_until(are_there, timeout=60, what=f"{count} members share the partitions")
        project.wait_for_more_rows()

    wait_for_members(2)
    project.up(copies=4)
    wait_for_members(4)
    project.compose("kill", "--signal", "KILL", "connector")
    assert {copy["ExitCode"] for copy in project.containers("connector")} == {137}
    project.up(copies=4)
    started = time.monotonic()
    project.wait_for_more_rows(timeout=100)  # the sessions of the dead members last 45 s
    record_property("to go on after the kill", round(time.monotonic() - started, 1))
    started = time.monotonic()
    project.compose("stop")
    record_property("to stop", round(time.monotonic() - started, 1))
    assert [copy["ExitCode"] for service in OURS for copy in project.containers(service)] == [0] * 5
    project.up(copies=2)
    project.wait_for_more_rows()
    project.compose("stop", "producer")
    sent = [sum(of_topic) for of_topic in ends(kafka, [TOPIC]).values()]
    wait_until(lambda: [project.rows()] == sent, timeout=60, what="all orders are there")
    verdict = judge(written_to_table(project.dsn, TABLE), ends(kafka, [TOPIC]))
    assert (verdict.lost, dict(verdict.repeated)) == ((), {})
    project.compose("stop", "connector")
    assert [copy["ExitCode"] for copy in project.containers("connector")] == [0, 0]
    assert project.rows() == sent[0]
    record_property("rows", sent[0])
