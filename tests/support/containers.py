"""Containers of tests, by testcontainers: published on loopback only, on ports that stay from one start to the next.

Each is a context manager that removes the container with its volumes, whatever happened in between.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg
from testcontainers.core.container import DockerContainer

from tests.support.jvm import KAFKA_VERSION, QUICK_PROPERTIES
from tests.support.process import ServerFailedError, free_ports, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from testcontainers.core.network import Network

KAFKA_IMAGE: Final = f"apache/kafka:{KAFKA_VERSION}"
POSTGRES_IMAGE: Final = "postgres:17"
RUN_LABEL: Final = "sluiceway.test-run"
RUN_ID: Final = uuid.uuid4().hex  # of this run's containers
_START_SECONDS: Final = 90.0
_USER: Final = "test"


class Container:
    """One container. The thread that made it calls every method.

    Args:
        image: Its name.
        publishes: Ports of the container, and the port of 127.0.0.1 that each is published at.
        network: Where it is besides, under the name `alias`.
        command: Instead of the image's.
        environment: Variables of it.
        mounts: Files and folders of this machine, and where they are in the container; only to be read unless the
            place ends with `:rw`.
        options: Whatever `docker run` has, as the Docker SDK calls it: `mem_limit`, `read_only`.
    """

    def __init__(
        self,
        image: str,
        *,
        publishes: Mapping[int, int] | None = None,
        network: Network | None = None,
        alias: str | None = None,
        command: list[str] | None = None,
        environment: Mapping[str, str] | None = None,
        mounts: Mapping[Path, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._container = DockerContainer(image).with_envs(**(environment or {}))
        for port, host_port in (publishes or {}).items():
            # The Docker SDK takes an address too, which testcontainers' type does not have.
            self._container.ports[f"{port}/tcp"] = ("127.0.0.1", host_port)  # type: ignore[assignment]
        for path, place in (mounts or {}).items():
            target, _, mode = place.partition(":")
            self._container.with_volume_mapping(path, target, mode or "ro")
        if network is not None:
            self._container.with_network(network)
            self._container.with_network_aliases(*([alias] if alias else []))
        if command is not None:
            self._container.with_command(command)
        self._container.with_kwargs(labels={RUN_LABEL: RUN_ID}, **(options or {}))

    def __enter__(self) -> Self:
        try:
            self._container.start()
            self.wait_until_up()
        except BaseException:
            self._container.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._container.stop()

    def wait_until_up(self) -> None:
        """Wait until it serves; a plain container does at once."""

    @property
    def state(self) -> dict[str, Any]:
        """What Docker says of it now: `State` of `docker inspect`."""
        state: dict[str, Any] = self.inspect()["State"]
        return state

    @property
    def is_running(self) -> bool:
        return bool(self.state["Running"])

    def inspect(self) -> dict[str, Any]:
        """Return all that `docker inspect` shows."""
        container = self._container.get_wrapped_container()
        container.reload()
        attributes: dict[str, Any] = container.attrs
        return attributes

    def start(self) -> None:
        """Start it again, and wait until it serves."""
        self._container.get_wrapped_container().start()
        self.wait_until_up()

    def stop(self, seconds: int = 30) -> int:
        """`docker stop -t SECONDS`: SIGTERM, after that time SIGKILL. Return the exit code."""
        self._container.get_wrapped_container().stop(timeout=seconds)
        return self._exit_code()

    def kill(self) -> None:
        """`docker kill`: SIGKILL."""
        self._container.get_wrapped_container().kill()
        wait_until(lambda: not self.is_running, timeout=10, what="the killed container has ended")

    def wait(self, timeout: float) -> int:
        """Wait until it ends by itself, and return the exit code."""
        wait_until(lambda: not self.is_running, timeout=timeout, what=f"the container ends; its log:\n{self.log()}")
        return self._exit_code()

    def run(self, *command: str) -> str:
        """Run a program in it and return what it printed.

        Raises:
            AssertionError: It did not end with 0.
        """
        code, output = self._container.exec(list(command))
        text: str = output.decode(errors="replace")
        assert code == 0, f"{command} ended with {code}:\n{text}"
        return text

    def log(self) -> str:
        """Return what it has printed since it was made."""
        output: bytes = self._container.get_wrapped_container().logs()
        return output.decode(errors="replace")

    def _exit_code(self) -> int:
        return int(self.state["ExitCode"])

    def _wait_until(self, serves: Callable[[], bool]) -> None:
        name = self._container.image
        try:
            wait_until(lambda: not self.is_running or serves(), timeout=_START_SECONDS, what=f"{name} serves")
            failure = None if self.is_running else f"{name} has ended with {self._exit_code()}"
        except TimeoutError as error:
            failure = str(error)
        if failure:
            raise ServerFailedError(f"{failure}. The end of its log:\n{self.log()[-4000:]}")


class KafkaContainer(Container):
    """Apache Kafka, one broker and controller. Clients of this machine find it at `bootstrap_servers`.

    Containers in its network find it under the name `kafka`: at port 9094 without a password, and at port 9095 by
    SASL/PLAIN, as the user `connector` with `sasl_password`.
    """

    def __init__(self, network: Network | None = None) -> None:
        [port] = free_ports(1)
        self.bootstrap_servers = f"127.0.0.1:{port}"
        self.sasl_password = uuid.uuid4().hex
        self._starts = 1
        # A broker reaches itself by its advertised address, and the port of this machine does not exist inside.
        inside = "kafka" if network else "localhost"
        plain_login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        users = f'{plain_login} required user_connector="{self.sasl_password}";'
        # One KAFKA_* variable replaces all defaults of the image, so this is the whole set.
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": "1@localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "BROKER",
            "listeners": "HOST://:9092,BROKER://:9094,SASL://:9095,CONTROLLER://:9093",
            "advertised.listeners": f"HOST://{self.bootstrap_servers},BROKER://{inside}:9094,SASL://{inside}:9095",
            "listener.security.protocol.map": ",".join(
                ("HOST:PLAINTEXT", "BROKER:PLAINTEXT", "SASL:SASL_PLAINTEXT", "CONTROLLER:PLAINTEXT")
            ),
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": users,
            "log.dirs": "/tmp/kraft-combined-logs",
            **QUICK_PROPERTIES,
        }
        super().__init__(
            KAFKA_IMAGE,
            publishes={9092: port},
            network=network,
            alias="kafka",
            environment={f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in properties.items()},
        )

    def start(self) -> None:
        """Start it again with its data, and wait until it serves."""
        self._starts += 1
        super().start()

    def wait_until_up(self) -> None:
        """Wait until clients can connect."""
        self._wait_until(lambda: self.log().count("Kafka Server started") == self._starts)


class PostgresContainer(Container):
    """PostgreSQL. Clients of this machine find it by `dsn`, containers in its network as `postgres`, at port 5432."""

    def __init__(self, network: Network | None = None) -> None:
        [port] = free_ports(1)
        self.password = uuid.uuid4().hex
        self.dsn = f"postgresql://{_USER}:{self.password}@127.0.0.1:{port}/postgres"
        super().__init__(
            POSTGRES_IMAGE,
            publishes={5432: port},
            network=network,
            alias="postgres",
            # The data outlive the container's processes, but need not outlive this machine.
            command=["postgres", "-c", "fsync=off", "-c", "full_page_writes=off"],
            environment={"POSTGRES_USER": _USER, "POSTGRES_PASSWORD": self.password, "POSTGRES_DB": "postgres"},
        )

    def wait_until_up(self) -> None:
        """Wait until clients can connect; the server that prepares the database is not to be reached by TCP."""

        def serves() -> bool:
            try:
                psycopg.connect(self.dsn, connect_timeout=5).close()
            except psycopg.OperationalError:
                return False
            return True

        self._wait_until(serves)
