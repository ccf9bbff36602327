"""The verbs: requests that change something. Each needs `Authorization: Bearer <CONNECTOR_ADMIN_TOKEN>`.

Without a token in the settings they are off. Requests are checked on the thread `admin`. What may be slow, a store or
a plugin's import, runs on one daemon thread `verbs`, so that no probe waits for it; the rest on `admin`.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import orjson
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from connector.api.errors import ConfigError, TransientError
from connector.telemetry.logs import get_logger
from connector.telemetry.masking import mask

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from connector.api.event import JsonValue

log = get_logger(__name__)

_MOST_BYTES = 2**20
_OFF = (
    "The verbs are off, since CONNECTOR_ADMIN_TOKEN is not set. Set it, start again, and send it as "
    "'Authorization: Bearer <token>'."
)
_UNAUTHORISED = "This needs 'Authorization: Bearer <token>' with the token of CONNECTOR_ADMIN_TOKEN."
_Endpoint: TypeAlias = "Callable[[Request, Verbs], Awaitable[Response]]"
PATHS = ("/loglevel", "/params", "/params/{key}", "/pause", "/reload", "/resume", "/stop")


class Verbs(Protocol):
    """What the verbs do. A `ConfigError` is answered with 422 and its text, a `TransientError` with 503.

    The first three are called on the thread `verbs`, one at a time, and may take as long as a disk or an import does.
    The others are called on the thread `admin` and only leave a message for whoever does it: 202 means that it was
    taken on.
    """

    def set_param(self, key: str, value: JsonValue) -> None:
        """Check, store and deliver a runtime parameter."""

    def delete_param(self, key: str) -> None:
        """Take a runtime parameter back."""

    def reload(self, operator_id: str) -> None:
        """Import the newest version of the sink (`sink`) or of a transform, and have the pipelines take it."""

    def params(self) -> Mapping[str, JsonValue]:
        """Return the runtime parameters that are set, secrets as stars."""

    def pause(self) -> None:
        """Take no more records from Kafka, and stay in the group."""

    def resume(self) -> None:
        """End the pause."""

    def stop(self) -> None:
        """Begin the graceful end, as a signal does."""

    def set_log_level(self, level: str) -> None:
        """Log from this level on."""


class _RefusedRequestError(Exception):
    """The request itself is wrong."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class VerbEndpoints:
    """The routes of the verbs. `start` and `stop` are called by the server, the rest on the thread `admin`.

    Args:
        verbs: What they do; None: they are off.
        token: What a request has to bring; None: they are off.
        headers: Of every answer.
    """

    def __init__(self, verbs: Verbs | None, token: str | None, headers: Mapping[str, str]) -> None:
        self._verbs = verbs
        self._token = token.encode() if token else None
        self._headers = headers
        self._jobs: SimpleQueue[tuple[Future[None], Callable[..., None], tuple[Any, ...]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="verbs", daemon=True)

    def routes(self) -> list[Route]:
        """Return a route for each verb."""
        verbs = {
            ("GET", "/params"): self._get_params,
            ("PUT", "/params/{key}"): self._put_param,
            ("DELETE", "/params/{key}"): self._delete_param,
            ("POST", "/reload"): self._post_reload,
            ("POST", "/pause"): self._post_pause,
            ("POST", "/resume"): self._post_resume,
            ("POST", "/stop"): self._post_stop,
            ("POST", "/loglevel"): self._post_log_level,
        }
        by_path: dict[str, dict[str, _Endpoint]] = {}
        for (method, path), endpoint in verbs.items():
            by_path.setdefault(path, {})[method] = endpoint
        return [Route(path, self._guarded(methods), methods=[*methods]) for path, methods in by_path.items()]

    def start(self) -> None:
        """Start the thread for what may be slow, if the verbs are on."""
        if self._verbs is not None and self._token is not None:
            self._thread.start()

    def stop(self, timeout: float) -> None:
        """End that thread; a verb that takes longer is cut off when the process ends."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(timeout)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, arguments = job
            if not future.set_running_or_notify_cancel():  # whoever asked has gone before it began
                continue
            try:
                function(*arguments)
            except BaseException as error:  # noqa: BLE001  # it goes to whoever asked; the thread serves the next
                future.set_exception(error)
            else:
                future.set_result(None)

    async def _slowly(self, function: Callable[..., None], *arguments: Any) -> None:
        future: Future[None] = Future()
        self._jobs.put((future, function, arguments))
        await asyncio.wrap_future(future)

    def _guarded(self, endpoints: Mapping[str, _Endpoint]) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that lets nobody through without the token, and turns errors into answers."""

        async def answer(request: Request) -> Response:
            what = f"{request.method} {request.url.path}"
            if self._verbs is None or self._token is None:
                return self._text(404, _OFF)
            if not self._is_allowed(request):
                log.warning("admin_request_refused", request=what, reason="token missing or wrong")
                return self._text(401, _UNAUTHORISED, {"WWW-Authenticate": "Bearer"})
            try:
                done = await endpoints["GET" if request.method == "HEAD" else request.method](request, self._verbs)
            except (_RefusedRequestError, ConfigError, TransientError) as error:
                log.warning("admin_request_refused", request=what, reason=str(error))
                return self._text(_code_of(error), str(error))
            except Exception:
                log.exception("admin_verb_failed", request=what)
                return self._text(500, "This failed; the log has the reason.")
            if request.method not in {"GET", "HEAD"}:
                log.info("admin_verb_done", request=what)
            return done

        return answer

    def _is_allowed(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # In constant time, so that an answer's delay tells nothing of the token.
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token or b"")

    # Endpoints.

    async def _get_params(self, _request: Request, verbs: Verbs) -> Response:
        body = orjson.dumps(mask(verbs.params()), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        return Response(body, media_type="application/json", headers=self._headers)

    async def _put_param(self, request: Request, verbs: Verbs) -> Response:
        key, value = request.path_params["key"], await _json_body(request)
        await self._slowly(verbs.set_param, key, value)
        return self._text(200, f"The parameter {key} is stored and on its way to the sink.")

    async def _delete_param(self, request: Request, verbs: Verbs) -> Response:
        key = request.path_params["key"]
        await self._slowly(verbs.delete_param, key)
        return self._text(200, f"The parameter {key} is taken back; the sink is told.")

    async def _post_reload(self, request: Request, verbs: Verbs) -> Response:
        operator_id = await _field(request, "operator_id", "the name of a transform, or sink")
        await self._slowly(verbs.reload, operator_id)
        return self._text(202, f"The new version of {operator_id} is imported; each pipeline takes it between batches.")

    async def _post_pause(self, _request: Request, verbs: Verbs) -> Response:
        verbs.pause()
        return self._text(202, "Pausing: no more records are taken from Kafka.")

    async def _post_resume(self, _request: Request, verbs: Verbs) -> Response:
        verbs.resume()
        return self._text(202, "Resuming.")

    async def _post_stop(self, _request: Request, verbs: Verbs) -> Response:
        verbs.stop()
        return self._text(202, "Stopping: what was taken is delivered and committed first.")

    async def _post_log_level(self, request: Request, verbs: Verbs) -> Response:
        level = await _field(request, "level", "debug, info, warning or error")
        verbs.set_log_level(level)
        return self._text(200, f"Logging from {level} on, until the next start.")

    def _text(self, code: int, text: str, more_headers: Mapping[str, str] | None = None) -> Response:
        return PlainTextResponse(f"{mask(text)}\n", status_code=code, headers={**self._headers, **(more_headers or {})})


def _code_of(error: _RefusedRequestError | ConfigError | TransientError) -> int:
    if isinstance(error, _RefusedRequestError):
        return error.code
    return 422 if isinstance(error, ConfigError) else 503


async def _json_body(request: Request) -> JsonValue:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise _RefusedRequestError(413, f"The body is larger than {_MOST_BYTES} bytes.")
    try:
        value: JsonValue = orjson.loads(body)
    except ValueError as error:
        raise _RefusedRequestError(400, f"The body is not JSON: {error}.") from error
    return value


async def _field(request: Request, name: str, meaning: str) -> str:
    """Return the one field of a JSON object, a text. Null, which would mean everything, is refused with a warning."""
    value = await _json_body(request)
    if isinstance(value, dict) and value.keys() == {name} and isinstance(value[name], str):
        return str(value[name])
    if isinstance(value, dict) and name in value and value[name] is None:
        raise _RefusedRequestError(422, f"{name} is null, which would mean everything. Name one: {meaning}.")
    raise _RefusedRequestError(422, f'The body must be {{"{name}": "…"}}: {meaning}.')
