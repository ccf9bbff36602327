"""`AdminServer`: /metrics, /livez, /readyz, /status, /config, a live page, and the verbs, on one daemon thread `admin`.

Every answer but a verb's is made from what others have published: the frozen status snapshot, the metrics, the
effective settings. The thread takes no lock that the data path needs, so the worst that a scrape can do is to fail
itself.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from dataclasses import asdict
from ipaddress import ip_address
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from connector import __version__
from connector.admin.connections import BoundedConnection
from connector.admin.guard import Guard
from connector.admin.health import Limits, Verdict, liveness, readiness
from connector.admin.page import CONTENT_SECURITY_POLICY, PAGE
from connector.admin.problem import FAILED, HEADERS, problem, to_json
from connector.admin.verbs import PATHS, VerbEndpoints
from connector.api.errors import ConfigError
from connector.telemetry.logs import get_logger
from connector.telemetry.masking import mask

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from starlette.requests import Request

    from connector.admin.verbs import Verbs
    from connector.telemetry.metrics import Metrics
    from connector.telemetry.status import Status

log = get_logger(__name__)

_BACKLOG = 128
_KEEP_ALIVE_SECONDS = 5
_HEALTH = ("/livez", "/readyz")  # plain text, whatever they answer


class AdminServer:
    """The admin endpoint of one run. `start` and `stop` are called from one thread.

    Args:
        address: `host:port` as in `CONNECTOR_ADMIN_ADDRESS`; IPv6 in brackets; port 0 takes a free one.
        status: Returns the newest snapshot; called on the admin thread, must not block.
        metrics: What /metrics shows.
        config_view: Returns the effective settings, masked; called on the admin thread, must not block.
        limits: When /livez calls the process dead.
        verbs: What requests that change something do; None: they are off.
        token: `CONNECTOR_ADMIN_TOKEN`, which such a request has to bring; None: they are off.
        hosts: `CONNECTOR_ADMIN_HOSTS`, further names that a `Host` header may have.
        clock: `time.monotonic`, the clock of the snapshot.
    """

    def __init__(
        self,
        address: str,
        *,
        status: Callable[[], Status],
        metrics: Metrics,
        config_view: Callable[[], Mapping[str, str]],
        limits: Limits | None = None,
        verbs: Verbs | None = None,
        token: str | None = None,
        hosts: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._status = status
        self._metrics = metrics
        self._config_view = config_view
        self._limits = limits or Limits()
        self._hosts = hosts
        self._clock = clock
        self._port = 0
        self._paths = {
            "/": self._get_page,
            "/config": self._get_config,
            "/livez": self._get_livez,
            "/metrics": self._get_metrics,
            "/readyz": self._get_readyz,
            "/status": self._get_status,
        }
        self._verbs = VerbEndpoints(verbs, token)
        shown = [Route(path, _contained(endpoint), methods=["GET"]) for path, endpoint in self._paths.items()]
        self._app = Starlette(
            routes=[*shown, *self._verbs.routes()],
            exception_handlers={HTTPException: self._no_endpoint},
        )
        self._app.router.redirect_slashes = False
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The real port, once started."""
        return self._port

    def start(self) -> None:
        """Listen, and serve from now on; connections made from here on are answered.

        Raises:
            ConfigError: The address is malformed, not ours, or in use.
        """
        host, port = _split(self._address)
        listening = _listen(self._address, host, port)
        bound, self._port = listening.getsockname()[:2]
        guarded = Guard(self._app, address=host, is_loopback=ip_address(bound).is_loopback, hosts=self._hosts)
        self._server = uvicorn.Server(
            uvicorn.Config(
                guarded,
                loop="asyncio",
                http=BoundedConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=_run, args=(self._server, listening), name="admin", daemon=True)
        self._verbs.start()
        self._thread.start()
        log.info("admin_started", address=self._address, port=self._port)

    def stop(self, timeout: float) -> None:
        """Stop serving within `timeout` seconds; a request that takes longer is cut off when the process ends."""
        if self._server is None or self._thread is None or not self._thread.is_alive():
            return
        deadline = time.monotonic() + timeout
        self._server.should_exit = True
        self._thread.join(timeout)
        self._server.force_exit = True
        self._verbs.stop(max(0.0, deadline - time.monotonic()))

    # Endpoints, on the thread `admin`.

    def _get_metrics(self, request: Request) -> Response:
        body, content_type = self._metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={**HEADERS, "Content-Type": content_type})

    def _get_livez(self, _request: Request) -> Response:
        return _answer(liveness(self._status(), self._clock(), self._limits))

    def _get_readyz(self, _request: Request) -> Response:
        status = self._status()
        # The snapshot of a dead controller says what was true when it died.
        alive = liveness(status, self._clock(), self._limits)
        return _answer(readiness(status) if alive.ok else alive)

    def _get_status(self, _request: Request) -> Response:
        status, now = self._status(), self._clock()
        document = asdict(status)
        # Times of a clock that has no meaning elsewhere become ages; None: never seen.
        for thread in ("controller", "source"):
            seen = document.pop(f"{thread}_seen")
            document[f"{thread}_silent_seconds"] = now - seen if seen else None
        document["is_live"], document["live_reason"] = liveness(status, now, self._limits)
        document["version"] = __version__
        return _json(document)

    def _get_config(self, _request: Request) -> Response:
        return _json(dict(self._config_view()))

    def _get_page(self, _request: Request) -> Response:
        return HTMLResponse(PAGE, headers={**HEADERS, "Content-Security-Policy": CONTENT_SECURITY_POLICY})

    async def _no_endpoint(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  # it is asked for no other
        if error.status_code == 404:
            return problem(request, 404, "No such path.", members={"paths": [*self._paths, *PATHS]})
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        detail = f"{request.method} is not for this path; it takes {allowed}."
        return problem(request, error.status_code, detail, headers={"Allow": allowed})


def _contained(endpoint: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint as a coroutine, so that no pool of threads runs it, whose error ends its own request only."""

    async def answer(request: Request) -> Response:
        try:
            return endpoint(request)
        except Exception:
            path = request.scope["path"]
            log.exception("admin_request_failed", path=path)
            if path in _HEALTH:
                return PlainTextResponse(f"{FAILED}\n", status_code=500, headers=HEADERS)
            return problem(request, 500, FAILED)

    return answer


def _answer(verdict: Verdict) -> Response:
    return PlainTextResponse(f"{mask(verdict.reason)}\n", status_code=200 if verdict.ok else 503, headers=HEADERS)


def _json(document: Mapping[str, object]) -> Response:
    return Response(to_json(document), media_type="application/json", headers=HEADERS)


def _run(server: uvicorn.Server, listening: socket.socket) -> None:
    try:
        server.run(sockets=[listening])  # takes over no signals, since this is not the main thread
    except Exception:
        log.exception("admin_failed", meaning="records still flow, but metrics and health are no longer served")
    finally:
        listening.close()


def _split(address: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        ConfigError: The address is malformed.
    """
    found = re.fullmatch(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\[\]:\s]+)):(?P<port>\d{1,5})", address.strip())
    if not found or int(found["port"]) > 65535:
        raise ConfigError(
            f"CONNECTOR_ADMIN_ADDRESS={address} is not an address. Write host:port, as in 127.0.0.1:9464, "
            "0.0.0.0:9464 or [::1]:9464."
        )
    return found["v6"] or found["host"], int(found["port"])


def _listen(address: str, host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: The address is not ours, or in use.
    """
    try:
        family, kind, protocol, _, bindable = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as on_error:
            listening = on_error.enter_context(socket.socket(family, kind, protocol))
            # A port that an ended process has just left is free; one that is listened on is not.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(bindable)
            listening.listen(_BACKLOG)
            on_error.pop_all()
    except OSError as error:
        raise ConfigError(
            f"CONNECTOR_ADMIN_ADDRESS={address} cannot be listened on: {error.strerror or error}. Set it to a free "
            "port of this machine, or to port 0 for any free one."
        ) from error
    return listening
