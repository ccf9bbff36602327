"""Apache Kafka on a JVM of this machine, from the jars that Maven resolves: no Docker needed.

`start_jvm_broker` gives a test a broker of its own, to stop, kill, freeze and start again, or with other properties
(SASL, authorisation, an older group protocol).
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.process import (
    ServerFailedError,
    ServerUnavailableError,
    end_process,
    free_ports,
    start_process,
    tail,
    wait_for_server,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

KAFKA_VERSION: Final = "4.3.1"
CACHE: Final = Path.home() / ".cache" / "sluiceway"
_KAFKA: Final = CACHE / f"kafka-{KAFKA_VERSION}"
_JAVA_VERSION: Final = 17
_COPY_DEPENDENCIES: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sluiceway.tests</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

# What makes a broker quick for tests; also given to the container. One broker, hence the replication factors.
QUICK_PROPERTIES: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.backoff.ms": "500",  # tests wait for compaction
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}


class JvmBroker:
    """One broker and controller, in one process. Ports and data stay the same from one `start` to the next.

    `bootstrap_servers` is the listener CLIENT, `internal_servers` the listener BROKER: it stays PLAINTEXT (as
    `User:ANONYMOUS`) when a test protects the first, so that the test can still set things up.
    """

    def __init__(self, directory: Path, properties: Mapping[str, str]) -> None:
        client, internal, controller = free_ports(3)
        self.bootstrap_servers = f"127.0.0.1:{client}"
        self.internal_servers = f"127.0.0.1:{internal}"
        self.log = directory / "broker.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._java = [java(), "-Xmx768m", "-cp", f"{kafka_jars()}/*"]
        self._directory = directory
        self._properties = directory / "server.properties"
        listeners = f"CLIENT://{self.bootstrap_servers},BROKER://{self.internal_servers}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "BROKER",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(directory / "data"),
            **QUICK_PROPERTIES,
            **properties,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._format()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start, and wait until clients can connect.

        Raises:
            ServerFailedError: it does not start; the text has the end of the log.
        """
        log_start = self.log.stat().st_size
        self.process = start_process([*self._java, "kafka.Kafka", str(self._properties)], log=self.log)

        def is_up() -> bool:
            with self.log.open("rb") as log:
                log.seek(log_start)
                return b"Kafka Server started" in log.read()

        wait_for_server(self.process, is_up, log=self.log, name=f"Apache Kafka {KAFKA_VERSION} on a JVM")

    def stop(self) -> None:
        """End it in order, and kill it after 20 s."""
        if self.process:
            end_process(self.process)
            self.process = None

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process:
            end_process(self.process, signal_number=signal.SIGKILL)
            self.process = None

    def close(self) -> None:
        """Stop it for good and delete its data and log."""
        self.stop()
        shutil.rmtree(self._directory)

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        command = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties)]
        with self.log.open("wb") as log:
            code = subprocess.run([*self._java, *command], stdout=log, stderr=log, check=False, timeout=60).returncode
        if code:
            raise ServerFailedError(f"Kafka's storage cannot be formatted. The end of the log:\n{tail(self.log)}")


def start_jvm_broker(properties: Mapping[str, str] | None = None) -> JvmBroker:
    """Start a broker in a temporary folder, with `properties` over the usual ones; about 6 s. Close it, or use `with`.

    Call it from a thread that lives as long as the broker (`start_process` says why).

    Raises:
        ServerUnavailableError: Java or Maven is missing.
        ServerFailedError: it does not start.
    """
    directory = Path(tempfile.mkdtemp(prefix="sluiceway-kafka-"))
    try:
        broker = JvmBroker(directory, properties or {})
        broker.start()
    except BaseException:
        shutil.rmtree(directory)
        raise
    return broker


def java(least: int = _JAVA_VERSION) -> str:
    """Return the path of a Java of at least this version: of JAVA_HOME, the PATH or /usr/lib/jvm.

    Raises:
        ServerUnavailableError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    first = f"{home}/bin/java" if home else shutil.which("java")
    others = sorted(str(path) for path in Path("/usr/lib/jvm").glob("*/bin/java"))
    for path in filter(None, [first, *others]):
        output = subprocess.run([path, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
        version = re.search(r'version "(\d+)', output)
        if version and int(version[1]) >= least:
            return path
    raise ServerUnavailableError(f"there is no Java {least} or newer")


def kafka_jars() -> Path:
    """Return the folder with Kafka's jars, resolved by Maven once for all runs (half a minute, 54 MB).

    Raises:
        ServerUnavailableError: Maven is missing.
        ServerFailedError: Maven failed.
    """

    def fetch(directory: Path) -> None:
        (directory / "pom.xml").write_text(_POM)
        maven(
            _COPY_DEPENDENCIES, f"-DoutputDirectory={directory / 'libs'}", "-DincludeScope=runtime", directory=directory
        )

    return resolved_once(_KAFKA, fetch) / "libs"


def resolved_once(folder: Path, fetch: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, which `fetch` fills the first time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Another test run may be at it: the lock makes it one download, the rename makes it all or nothing.
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                directory = Path(name) / folder.name
                directory.mkdir()
                fetch(directory)
                directory.rename(folder)
    return folder


def maven(goal: str, *arguments: str, directory: Path) -> None:
    """Run a goal of Maven.

    Raises:
        ServerUnavailableError: Maven is missing.
        ServerFailedError: it failed.
    """
    path = shutil.which("mvn")
    if not path:
        raise ServerUnavailableError("there is no mvn command to fetch it")
    result = subprocess.run(
        [path, "--batch-mode", "--quiet", goal, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=900,
    )
    if result.returncode:
        raise ServerFailedError(f"Maven cannot fetch what is needed:\n{result.stdout}{result.stderr}")
