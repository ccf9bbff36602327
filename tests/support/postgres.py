"""A real PostgreSQL for tests: the fixture `postgres` yields a `Postgres`, whatever it runs on.

`running_postgres` takes the first that serves: the server of `CONNECTOR_TEST_POSTGRES_DSN`, Docker, the programs of
this machine. A test that stops a database has its own by `stoppable_postgres`.
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

from tests.support.containers import POSTGRES_IMAGE, PostgresContainer
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
    why_no_docker = why_docker_cannot_run(POSTGRES_IMAGE)
    if why_no_docker is None:
        with PostgresContainer() as container:
            yield Postgres(container.dsn, f"{POSTGRES_IMAGE} in Docker")
        return
    programs = _programs()
    if programs is None:
        raise ServerUnavailableError(
            f"this test needs a real PostgreSQL: set CONNECTOR_TEST_POSTGRES_DSN ({why_no_docker}), or start Docker, "
            f"or install PostgreSQL (Debian: apt-get install postgresql)"
        )
    with _local_postgres(programs) as server:
        yield Postgres(server.dsn, f"PostgreSQL of {programs} at {server.dsn}")


def _programs() -> Path | None:
    """Return the folder with `initdb` and `postgres`; Debian keeps one of each version outside the PATH."""
    found = shutil.which("initdb")
    if found and shutil.which("postgres"):
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


class LocalPostgres:
    """A server of this machine's programs that a test may stop and start again; its data and its port stay."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs = programs
        self._log = directory / "server.log"
        self._data = directory / "data"
        self._user = _UNPRIVILEGED if os.geteuid() == 0 else None
        [self._port] = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.dsn = f"postgresql://test@127.0.0.1:{self._port}/postgres"

    def prepare(self) -> None:
        """Make the files of an empty server."""
        if self._user:
            shutil.chown(self._log.parent, self._user)
        options = ["--username=test", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        result = subprocess.run(
            [self._programs / "initdb", "-D", self._data, *options],
            cwd=self._log.parent,
            user=self._user,
            extra_groups=[] if self._user else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if result.returncode:
            raise ServerFailedError(f"initdb failed:\n{result.stdout}{result.stderr}")

    def start(self) -> None:
        """Start it; returns when it takes connections."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
        }
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        self._log.unlink(missing_ok=True)
        command = [str(self._programs / "postgres"), "-D", str(self._data), *arguments]
        self._process = process = start_process(command, log=self._log, user=self._user)
        wait_for_server(
            process, lambda: b"ready to accept connections" in self._log.read_bytes(), log=self._log, name="PostgreSQL"
        )

    def stop(self, *, as_in_a_crash: bool = False) -> None:
        """End it with every connection; as in a crash: at once, so that it has to recover what it had committed."""
        if self._process is not None:
            end_process(self._process, signal_number=signal.SIGQUIT if as_in_a_crash else signal.SIGINT)
            self._process = None


@contextlib.contextmanager
def stoppable_postgres() -> Iterator[LocalPostgres]:
    """Yield a server of the test's own, started, and end it afterwards. It needs the programs of this machine.

    Raises:
        ServerUnavailableError: there are none; the text says what to install.
        ServerFailedError: it does not start.
    """
    programs = _programs()
    if programs is None:
        raise ServerUnavailableError(
            "this test stops a PostgreSQL of its own, which needs its programs (Debian: apt-get install postgresql)"
        )
    with _local_postgres(programs) as server:
        yield server


@contextlib.contextmanager
def _local_postgres(programs: Path) -> Iterator[LocalPostgres]:
    directory = Path(tempfile.mkdtemp(prefix="sluiceway-postgres-"))
    server = LocalPostgres(programs, directory)
    try:
        server.prepare()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)
