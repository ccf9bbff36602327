"""Copies of the connector in containers, with the Kafka and the PostgreSQL that they move records between."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.containers import Container
from tests.support.oracle import Verdict, ends, judge, wait_until_committed, written_to_table
from tests.support.process import free_ports, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from testcontainers.core.network import Network

    from tests.support.kafka import Kafka

TABLE = "records"
ADMIN_PORT = 9464
MEMORY = "256m"


class ContainerCopy(Container):
    """One copy, as the guide runs it: a read-only file system, no capabilities, a limit of its memory."""

    def __init__(
        self,
        image: str,
        network: Network,
        settings: Mapping[str, str],
        *,
        mounts: Mapping[Path, str] | None = None,
    ) -> None:
        [port] = free_ports(1)
        self.admin = f"http://127.0.0.1:{port}"
        super().__init__(
            image,
            publishes={ADMIN_PORT: port},
            network=network,
            environment=settings,
            mounts=mounts,
            options={
                "read_only": True,
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges"],
                "mem_limit": MEMORY,
                "memswap_limit": MEMORY,
            },
        )

    def get(self, path: str) -> httpx.Response:
        """Ask the admin endpoint."""
        return httpx.get(f"{self.admin}{path}", timeout=10)

    def lanes(self) -> list[dict[str, Any]]:
        """Return the lanes of `/status`; none while it does not answer."""
        try:
            lanes: list[dict[str, Any]] = self.get("/status").json()["lanes"]
        except httpx.TransportError:
            return []
        return lanes

    def is_ready(self) -> bool:
        """Whether `/readyz` says so."""
        try:
            return self.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the entries of its log, or those of one event."""
        lines = (line for line in self.log().splitlines() if line.startswith("{"))
        return [entry for entry in map(json.loads, lines) if name is None or entry.get("event") == name]

    def wait_for(self, what: str, is_true: Callable[[], object], *, timeout: float = 60) -> None:
        """Wait for a condition on a running copy.

        Raises:
            TimeoutError: Not in time.
            AssertionError: The copy has ended.
        """

        def is_done() -> bool:
            assert self.is_running, f"the copy ended before: {what}\n{self.log()[-4000:]}"
            return bool(is_true())

        wait_until(is_done, timeout=timeout, what=what)


class Stand:
    """What one test has for itself on the shared servers: a topic, a group, an empty database, and its copies.

    The table has no key, and the copies insert: a record that comes twice is there twice.
    """

    def __init__(
        self, image: str, network: Network, kafka: Kafka, dsn: str, directory: Path, *, partitions: int = 4
    ) -> None:
        self.kafka = kafka
        self.dsn = dsn  # for this machine
        self.topic = kafka.create_topic(partitions=partitions)
        self.group = f"group-{self.topic}"
        self._image = image
        self._network = network
        self._directory = directory
        self._copies = contextlib.ExitStack()
        kafka.group_config(self.group, {"consumer.session.timeout.ms": "6000"})
        self.inner_dsn = make_conninfo(dsn, host="postgres", port=5432)
        self._settings = {
            "CONNECTOR_BOOTSTRAP_SERVERS": "kafka:9094",
            "CONNECTOR_GROUP_ID": self.group,
            "CONNECTOR_TOPICS": self.topic,
            "CONNECTOR_COMMIT_INTERVAL": "500ms",
        }
        self._sink = {
            "CONNECTOR_SINK": "postgres",
            "CONNECTOR_SINK_DSN_FILE": "/run/secrets/dsn",
            "CONNECTOR_SINK_TABLE": TABLE,
            "CONNECTOR_SINK_POSITIONS": "true",
            "CONNECTOR_SINK_MODE": "insert",
            "CONNECTOR_SINK_PRIMARY_KEY": "false",
        }

    def close(self) -> None:
        """Remove the copies."""
        self._copies.close()

    def secret(self, name: str, value: str) -> dict[Path, str]:
        """Write a secret into a file and return the mount that shows it to a copy as `/run/secrets/NAME`."""
        file = self._directory / name
        file.write_text(value)
        return {file: f"/run/secrets/{name}"}

    def copy(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        sink: Mapping[str, str] | None = None,
        image: str | None = None,
        mounts: Mapping[Path, str] | None = None,
    ) -> ContainerCopy:
        """Start a copy, which is removed with the stand; `sink` takes the place of the settings for the table."""
        copy = ContainerCopy(
            image or self._image,
            self._network,
            {**self._settings, **(sink or self._sink), **(settings or {})},
            mounts={**self.secret("dsn", self.inner_dsn), **(mounts or {})},
        )
        return self._copies.enter_context(copy)

    def rows(self) -> int:
        """Return how many rows the table has; 0 if there is none yet."""
        with psycopg.connect(self.dsn, connect_timeout=10) as connection:
            found = connection.execute("SELECT to_regclass(%s)", (TABLE,)).fetchone()
            if found is None or found[0] is None:
                return 0
            [(count,)] = connection.execute(f"SELECT count(*) FROM {TABLE}").fetchall()
        return int(count)

    def wait_for_more_rows(self, than: int = 0, *, timeout: float = 60) -> None:
        """Wait until the table has more rows."""
        wait_until(lambda: self.rows() > than, timeout=timeout, what=f"there are more than {than} rows")

    def wait_until_shared(self, copies: Sequence[ContainerCopy], *, timeout: float = 60) -> None:
        """Wait until these copies hold all partitions, and each of them some."""
        partitions = list(self.kafka.partitions(self.topic))

        def is_shared() -> bool:
            held = [[lane["partition"] for lane in copy.lanes()] for copy in copies]
            return all(held) and sorted(itertools.chain(*held)) == partitions

        wait_until(is_shared, timeout=timeout, what=f"{len(copies)} copies share the partitions")

    def wait_until_committed(self, *, timeout: float = 120) -> None:
        """Wait until the group has committed the end of the topic."""
        wait_until_committed(self.kafka, self.group, [self.topic], timeout=timeout)

    def positions(self) -> dict[int, int | None]:
        """Return the position of each partition in the database."""
        with psycopg.connect(self.dsn, connect_timeout=10) as connection:
            found = connection.execute("SELECT partition, next_offset FROM connector_positions").fetchall()
        return dict(found)

    def rows_by_partition(self) -> dict[int, int]:
        """Return how many rows of each partition the table has."""
        with psycopg.connect(self.dsn, connect_timeout=10) as connection:
            found = connection.execute(f"SELECT partition, count(*) FROM {TABLE} GROUP BY 1").fetchall()
        return dict(found)

    def verdict(self) -> Verdict:
        """Compare the table with the topic."""
        return judge(written_to_table(self.dsn, TABLE), ends(self.kafka, [self.topic]))
