"""A real PostgreSQL for tests: the fixture `postgres` yields a `Postgres`, whatever it runs on.

`running_postgres` takes the first that serves: the server of `CONNECTOR_TEST_POSTGRES_DSN`, Docker, the programs of
this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.support.docker import why_docker_cannot_run
from tests.support.process import (
    ServerFailedError,
    ServerUnavailableError,
    end_process,
    free_ports,
    start_process,
    wait_for_server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE: Final = "postgres:17"
_UNPRIVILEGED: Final = "nobody"  # PostgreSQL refuses to run as root


class Postgres:
    """A server, and databases on it. `dsn` belongs to a user who may create databases."""

    def __init__(self, dsn: str, description: str) -> None:
        self.dsn = dsn
        self.description = description

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Yield the DSN of a new, empty database, and drop it afterwards with whoever is still connected."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self._execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield make_conninfo(self.dsn, dbname=name)
        finally:
            self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Yield the first PostgreSQL that this machine can have, and end it afterwards.

    Raises:
        ServerUnavailableError: there is none; the text says what to set or install.
        ServerFailedError: a server does not start.
    """
    dsn = os.environ.get("CONNECTOR_TEST_POSTGRES_DSN")
    if dsn:
        yield Postgres(dsn, "the server of CONNECTOR_TEST_POSTGRES_DSN")
        return
    why_no_docker = why_docker_cannot_run(IMAGE)
    if why_no_docker is None:
        with _postgres_in_docker() as dsn:
            yield Postgres(dsn, f"{IMAGE} in Docker")
        return
    programs = _programs()
    if programs is None:
        raise ServerUnavailableError(
            f"this test needs a real PostgreSQL: set CONNECTOR_TEST_POSTGRES_DSN ({why_no_docker}), or start Docker, "
            f"or install PostgreSQL (Debian: apt-get install postgresql)"
        )
    with _local_postgres(programs) as dsn:
        yield Postgres(dsn, f"PostgreSQL of {programs} at {dsn}")


@contextlib.contextmanager
def _postgres_in_docker() -> Iterator[str]:
    from testcontainers.community.postgres import PostgresContainer

    with PostgresContainer(IMAGE, driver=None) as container:
        yield container.get_connection_url()


def _programs() -> Path | None:
    """Return the folder with `initdb` and `postgres`; Debian keeps one of each version outside the PATH."""
    found = shutil.which("initdb")
    if found and shutil.which("postgres"):
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


@contextlib.contextmanager
def _local_postgres(programs: Path) -> Iterator[str]:
    user = _UNPRIVILEGED if os.geteuid() == 0 else None
    directory = Path(tempfile.mkdtemp(prefix="sluiceway-postgres-"))
    try:
        if user:
            shutil.chown(directory, user)
        data, log, [port] = directory / "data", directory / "server.log", free_ports(1)
        options = ["--username=test", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        result = subprocess.run(
            [programs / "initdb", "-D", data, *options],
            cwd=directory,
            user=user,
            extra_groups=[] if user else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if result.returncode:
            raise ServerFailedError(f"initdb failed:\n{result.stdout}{result.stderr}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
        }
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        process = start_process([str(programs / "postgres"), "-D", str(data), *arguments], log=log, user=user)
        try:
            wait_for_server(
                process, lambda: b"ready to accept connections" in log.read_bytes(), log=log, name="PostgreSQL"
            )
            yield f"postgresql://test@127.0.0.1:{port}/postgres"
        finally:
            end_process(process, signal_number=signal.SIGINT)  # its fast shutdown
    finally:
        shutil.rmtree(directory)
