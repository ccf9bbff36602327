"""`connector healthcheck`: asks the admin address of the configuration, for a container's HEALTHCHECK.

It runs again and again beside the connector, so it imports neither the Kafka client nor the model of the settings, and
it needs no setting but the address, whatever is wrong with the others.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import time
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from connector.api.errors import ConfigError
from connector.config.address import ADMIN_ADDRESS, Address, parse_address
from connector.config.environment import find_reading, read_layers

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_SECONDS = 3.0
_SHOWN_BYTES = 300
_SETTING = "CONNECTOR_ADMIN_ADDRESS"
_LOOPBACK = {4: "127.0.0.1", 6: "::1"}


class _UnhealthyError(Exception):
    """What was found, as the line says it."""


def healthcheck(env_file: Path | None, *, is_ready_wanted: bool, url: str | None) -> bool:
    """Ask once, print what was found in one line, and return whether it is well.

    Args:
        env_file: File of variables.
        is_ready_wanted: Ask `/readyz`, whether it consumes, instead of `/livez`.
        url: Asked instead of the configured address; without a path, `/livez` or `/readyz` of it.
    """
    path = "/readyz" if is_ready_wanted else "/livez"
    try:
        said = _ask(*(_split(url, path) if url is not None else (_configured(env_file), path)))
    except (_UnhealthyError, ConfigError) as error:
        print(f"unhealthy: {error}")
        return False
    print(f"healthy: {said}")
    return True


def _configured(env_file: Path | None) -> Address:
    problems: list[str] = []
    reading = find_reading(read_layers(os.environ, env_file, problems), _SETTING)
    if reading is None and problems:
        raise ConfigError(problems[0])  # the address may be what could not be read
    try:
        address = parse_address(reading.value) if reading is not None else ADMIN_ADDRESS
    except ValueError as error:
        raise ConfigError(f"{_SETTING}={reading.value if reading else ''} {error}.") from error
    if address.port == 0:
        raise ConfigError(f"{_SETTING}={address} takes any free port, so which one is not known here: give --url.")
    return _reachable(address)


def _reachable(address: Address) -> Address:
    """Return where to connect to; `0.0.0.0` and `::` mean every address, so the loopback one too."""
    try:
        parsed = ipaddress.ip_address(address.host)
    except ValueError:
        return address  # a name
    return Address(_LOOPBACK[parsed.version], address.port) if parsed.is_unspecified else address


def _split(url: str, path: str) -> tuple[Address, str]:
    try:
        parts = urlsplit(url)
        port = 80 if parts.port is None else parts.port
    except ValueError as error:
        raise ConfigError(f"--url {url} is no URL: {error}.") from error
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"--url {url}: write http://host:port, with a path or without.")
    given = parts.path if parts.path not in ("", "/") else path
    return Address(parts.hostname, port), f"{given}?{parts.query}" if parts.query else given


def _ask(address: Address, path: str) -> str:
    """Return the first line of the answer."""
    shown = f"http://{address}{path}"
    try:
        status, said = _get(address, path)
    except TimeoutError as error:
        raise _UnhealthyError(f"{shown}: no answer within {_TIMEOUT_SECONDS:g}s") from error
    except OSError as error:
        raise _UnhealthyError(f"{shown}: {error.strerror or error}") from error
    except http.client.HTTPException as error:
        raise _UnhealthyError(f"{shown}: what answers does not speak HTTP ({type(error).__name__})") from error
    if status != http.client.OK:
        raise _UnhealthyError(said or f"{shown} answered {status}")
    return said


def _get(address: Address, path: str) -> tuple[int, str]:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    with closing(http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_SECONDS)) as connection:
        connection.connect()
        connection.sock.settimeout(max(0.01, deadline - time.monotonic()))
        connection.request("GET", path)
        answer = connection.getresponse()
        first_line = answer.read(_SHOWN_BYTES).decode("utf-8", "backslashreplace").partition("\n")[0]
    return answer.status, "".join(each for each in first_line if each.isprintable())
