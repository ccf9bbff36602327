"""A real schema registry for tests: Apicurio Registry on a JVM of this machine, the app that Maven resolves.

`running_registry` takes the registry of `CONNECTOR_TEST_REGISTRY_URL`, else starts one, in memory, on a loopback port.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from tests.support.jvm import CACHE, java, maven, resolved_once
from tests.support.process import ServerUnavailableError, end_process, free_ports, start_process, wait_for_server

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION: Final = "3.3.3"
_FOLDER: Final = CACHE / f"apicurio-registry-{_VERSION}"
_JAVA_VERSION: Final = 21
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"
_API: Final = "/apis/ccompat/v7"  # Confluent's protocol


@contextlib.contextmanager
def running_registry() -> Iterator[tuple[str, str]]:
    """Yield the URL of a registry and its description, and end it afterwards.

    Raises:
        ServerUnavailableError: there is none; the text says what to set or install.
        ServerFailedError: it does not start.
    """
    url = os.environ.get("CONNECTOR_TEST_REGISTRY_URL")
    if url:
        yield url, f"the registry of CONNECTOR_TEST_REGISTRY_URL at {url}"
        return
    try:
        command = [java(_JAVA_VERSION), "-Xmx400m", "-jar", str(_app() / "quarkus-run.jar")]
    except ServerUnavailableError as error:
        raise ServerUnavailableError(
            f"this test needs a real schema registry: set CONNECTOR_TEST_REGISTRY_URL ({error}), or install Java "
            f"{_JAVA_VERSION} and Maven (Debian: apt-get install openjdk-21-jre-headless maven)"
        ) from error
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}{_API}"
    directory = Path(tempfile.mkdtemp(prefix="sluiceway-registry-"))
    try:
        log = directory / "registry.log"
        environment = {**os.environ, "QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
        process = start_process(command, log=log, environment=environment)
        try:
            wait_for_server(process, lambda: _answers(url), log=log, name=f"Apicurio Registry {_VERSION}")
            yield url, f"Apicurio Registry {_VERSION} on a JVM at {url}"
        finally:
            end_process(process)
    finally:
        shutil.rmtree(directory)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/subjects", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def _app() -> Path:
    """Return the folder of the app, fetched once for all runs (158 MB)."""

    def fetch(directory: Path) -> None:
        artifact = f"io.apicurio:apicurio-registry-app:{_VERSION}:tar.gz:all"
        maven(_COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={directory}", directory=directory)
        [archive] = directory.glob("*.tar.gz")
        with tarfile.open(archive) as content:
            content.extractall(directory, filter="data")
        archive.unlink()

    return resolved_once(_FOLDER, fetch)
