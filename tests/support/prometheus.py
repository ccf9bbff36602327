"""A real Prometheus for tests: Debian's `prometheus`, on loopback, with its data in a temporary folder."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from tests.support.process import (
    ServerUnavailableError,
    end_process,
    free_ports,
    start_process,
    wait_for_server,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


def find_prometheus() -> str:
    """Return the program's path.

    Raises:
        ServerUnavailableError: It is not installed.
    """
    path = shutil.which("prometheus")
    if path is None:
        raise ServerUnavailableError(
            "prometheus is not installed: RUNLEVEL=1 apt-get install --no-install-recommends prometheus"
        )
    return path


class Prometheus:
    """A server that scrapes. Any thread may ask it."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=f"http://{address}/api/v1", timeout=30, trust_env=False)

    def instant(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now; each has `metric` and `value`."""
        return self._result("query", query=expression)

    def over(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Return its series between two times (unix seconds); each has `metric` and `values`."""
        return self._result("query_range", query=expression, start=start, end=end, step=step)

    def rules(self) -> list[dict[str, Any]]:
        """Return every rule with its health."""
        groups = self._get("rules", {})["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def wait_for(self, expression: str, *, timeout: float = 30) -> None:
        """Wait until an expression has a series.

        Raises:
            TimeoutError: Not in time.
        """
        wait_until(lambda: bool(self.instant(expression)), timeout=timeout, what=f"{expression} has a series")

    def close(self) -> None:
        """Close the connections to it."""
        self._client.close()

    def _result(self, path: str, **parameters: str | float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get(path, parameters)["result"]
        return found

    def _get(self, path: str, parameters: Mapping[str, str | float]) -> Any:
        answer = self._client.get(path, params={name: str(value) for name, value in parameters.items()})
        document = answer.json()
        assert document["status"] == "success", f"{parameters}: {document.get('error')}"
        return document["data"]


@contextlib.contextmanager
def running_prometheus(
    program: str, directory: Path, *, job: str, targets: Sequence[str], rules: Path
) -> Iterator[Prometheus]:
    """Yield a Prometheus that scrapes these targets and evaluates these rules every second."""
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [*targets]}]}],
    }
    directory.mkdir()
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    log = directory / "prometheus.log"
    command = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    process = start_process(command, log=log)
    try:
        wait_for_server(process, lambda: _is_ready(address), log=log, name="prometheus")
        server = Prometheus(address)
        try:
            yield server
        finally:
            server.close()
    finally:
        end_process(process)


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", timeout=2, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
