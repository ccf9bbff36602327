"""`Guard`: refuses requests that a page in somebody's browser may have made, before anything else looks at them.

A page may bind its own name to our address (DNS rebinding) and is then of our origin, but its requests name that host.
So a host that is not ours is refused: for what changes something everywhere, for all on a loopback address, which only
this machine reaches. Elsewhere Prometheus and probes come by whatever name. And what changes something is refused when
it comes from another origin. Called on the thread `admin`.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from connector.admin.problem import problem
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

log = get_logger(__name__)

_HOST = re.compile(r"(?P<name>\[[^\[\]]*\]|[^:\[\]]*)(:\d*)?")
_READING = ("GET", "HEAD")


class Guard:
    """An ASGI application around another.

    Args:
        app: What answers requests that are let through.
        address: The host that we listen on, as it is set.
        is_loopback: Whether only this machine reaches it.
        hosts: Further names of ours, `CONNECTOR_ADMIN_HOSTS`.
    """

    def __init__(self, app: ASGIApp, *, address: str, is_loopback: bool, hosts: Collection[str]) -> None:
        self._app = app
        self._is_loopback = is_loopback
        self._names = frozenset(_plain(name) for name in ("localhost", socket.gethostname(), address, *hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        request = HTTPConnection(scope)
        host, origin = request.headers.get("host"), request.headers.get("origin")
        is_change = scope["method"] not in _READING
        answer = self._app
        if (is_change or self._is_loopback) and not self._is_ours(host, is_change=is_change):
            self._tell(request, f"unknown host {host}")
            named = "names no host" if host is None else f"names the host {host}, which is none of this server's names"
            answer = problem(
                request,
                421,
                f"The request {named}. Use an IP address, localhost or this machine's name, or add the name by which "
                "it is reached to CONNECTOR_ADMIN_HOSTS.",
            )
        elif is_change and origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
            self._tell(request, f"origin {origin}")
            answer = problem(
                request, 403, f"The request comes from a page of {origin}, and changes are taken from no other origin."
            )
        await answer(scope, receive, send)

    def _is_ours(self, host: str | None, *, is_change: bool) -> bool:
        if host is None:  # HTTP/1.0, of which no browser makes requests
            return not is_change
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = _plain(found["name"])
        with suppress(ValueError):
            ip_address(name)
            return True  # nobody binds a name to it
        return name in self._names

    @staticmethod
    def _tell(request: HTTPConnection, reason: str) -> None:
        client = request.client.host if request.client else ""
        what = f"{request.scope['method']} {request.scope['path']}"
        log.warning("admin_request_refused", request=what, client=client, reason=reason)


def _plain(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()
