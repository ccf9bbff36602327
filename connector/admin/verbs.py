"""The verbs: requests that change something. Each needs `Authorization: Bearer <CONNECTOR_ADMIN_TOKEN>`.

Without a token in the settings they are off. Requests are checked on the thread `admin`. What may be slow, a store or
a plugin's import, runs on one daemon thread `verbs`, so that no probe waits for it; the rest on `admin`. Each change is
one line in the log, `admin_verb_done`, with what was before, what is after, and where the request came from.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from connector.admin import arguments
from connector.admin.problem import FAILED, HEADERS, RequestRefusedError, problem, to_json
from connector.api.errors import ConfigError, TransientError
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from connector.api.event import JsonValue
    from connector.api.intents import Scope

log = get_logger(__name__)

_SLOW_SECONDS = 30.0  # for a verb on the thread `verbs`, and for its turn there
_OFF = (
    "The verbs are off, since CONNECTOR_ADMIN_TOKEN is not set. Set it, start again, and send it as "
    "'Authorization: Bearer <token>'."
)
_UNAUTHORISED = "This needs 'Authorization: Bearer <token>' with the token of CONNECTOR_ADMIN_TOKEN."
PATHS = ("/loglevel", "/params", "/params/{key}", "/pause", "/reload", "/resume", "/stop")


@dataclass(frozen=True, slots=True)
class Change:
    """What a verb changed. `before` and `after` are for the answer and the log: secrets are stars."""

    subject: str
    before: JsonValue
    after: JsonValue
    is_change: bool = True  # false: it was so already, and nobody was told


class Verbs(Protocol):
    """What the verbs do. A `ConfigError` is answered with 422 and its text, a `TransientError` with 503.

    The first three are called on the thread `verbs`, one at a time, and may take as long as a disk or an import does.
    The others are called on the thread `admin` and only leave a message for whoever does it: 202 means that it was
    taken on. What is so already is left alone.
    """

    def set_param(self, key: str, value: JsonValue) -> Change:
        """Check, store and deliver a runtime parameter."""

    def delete_param(self, key: str) -> Change:
        """Take a runtime parameter back."""

    def reload(self, operator_id: str) -> Change:
        """Import the newest version of the sink (`sink`) or of a transform, and have the pipelines take it."""

    def params(self) -> Mapping[str, JsonValue]:
        """Return the runtime parameters that are set, secrets as stars."""

    def pause(self, scope: Scope) -> Change:
        """Take no more records of it from Kafka, and stay in the group."""

    def resume(self, scope: Scope) -> Change:
        """Take its records again."""

    def stop(self) -> Change:
        """Begin the graceful end, as a signal does."""

    def set_log_level(self, level: str) -> Change:
        """Log from this level on."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a changing verb is answered with, when it did not fail."""

    change: Change
    detail: str
    status: int = 200


_Endpoint: TypeAlias = "Callable[[Request, Verbs], Awaitable[_Answer | Response]]"


class VerbEndpoints:
    """The routes of the verbs. `start` and `stop` are called by the server, the rest on the thread `admin`.

    Args:
        verbs: What they do; None: they are off.
        token: What a request has to bring; None: they are off.
    """

    def __init__(self, verbs: Verbs | None, token: str | None) -> None:
        self._verbs = verbs
        self._token = token.encode() if token else None
        self._jobs: SimpleQueue[tuple[Future[Change], Callable[..., Change], tuple[Any, ...]] | None] = SimpleQueue()
        self._turn = (
            asyncio.Lock()
        )  # held while a job is on the thread `verbs`, also one that nobody waits for any more
        self._thread = threading.Thread(target=self._work, name="verbs", daemon=True)

    def routes(self) -> list[Route]:
        """Return a route for each verb."""
        verbs: dict[tuple[str, str], _Endpoint] = {
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
            try:
                change = function(*arguments)
            except BaseException as error:  # noqa: BLE001  # it goes to whoever asked; the thread serves the next
                future.set_exception(error)
            else:
                future.set_result(change)

    async def _slowly(self, request: Request, function: Callable[..., Change], *arguments: Any) -> Change:
        """Do it on the thread `verbs`, and wait for it, though not for ever: it may hang in a plugin's import."""
        try:
            async with asyncio.timeout(_SLOW_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise RequestRefusedError(503, "An earlier change is still under way; this one was not begun.") from None
        job: Future[Change] = Future()
        done = asyncio.wrap_future(job)
        done.add_done_callback(lambda _: self._turn.release())
        self._jobs.put((job, function, arguments))
        # Not cancelled with the request: the thread goes on, and holds the turn until it is done.
        await asyncio.wait({done}, timeout=_SLOW_SECONDS)
        if not done.done():
            done.add_done_callback(lambda late: _tell_late(request, late))
            raise RequestRefusedError(
                504, f"It is still under way after {_SLOW_SECONDS:g}s, and goes on. The log tells how it ends."
            )
        return done.result()

    def _guarded(self, endpoints: Mapping[str, _Endpoint]) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that lets nobody through without the token, and turns errors into answers."""

        async def answer(request: Request) -> Response:
            try:
                endpoint = endpoints["GET" if request.method == "HEAD" else request.method]
                done = await endpoint(request, self._allowed(request))
            except ClientDisconnect:
                log.info("admin_request_refused", **_asked(request), reason="the client has gone")
                return Response()  # to nobody
            except (RequestRefusedError, ConfigError, TransientError) as error:
                log.warning("admin_request_refused", **_asked(request), reason=str(error))
                return _refused(request, error)
            except Exception:
                log.exception("admin_verb_failed", **_asked(request))
                return problem(request, 500, FAILED)
            if isinstance(done, Response):
                return done
            _tell(request, done.change)
            return _answered(done)

        return answer

    def _allowed(self, request: Request) -> Verbs:
        """Return the verbs to whom may use them.

        Raises:
            RequestRefusedError: They are off, or the token is missing or wrong.
        """
        if self._verbs is None or self._token is None:
            raise RequestRefusedError(404, _OFF)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # In constant time, so that an answer's delay tells nothing of the token.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), self._token):
            raise RequestRefusedError(401, _UNAUTHORISED, {"WWW-Authenticate": "Bearer"})
        return self._verbs

    # Endpoints.

    async def _get_params(self, request: Request, verbs: Verbs) -> Response:
        arguments.query(request)
        return Response(to_json(verbs.params()), media_type="application/json", headers=HEADERS)

    async def _put_param(self, request: Request, verbs: Verbs) -> _Answer:
        arguments.query(request)
        key, value = request.path_params["key"], await arguments.json_body(request)
        change = await self._slowly(request, verbs.set_param, key, value)
        return _Answer(change, f"The parameter {key} is stored and on its way to the sink.")

    async def _delete_param(self, request: Request, verbs: Verbs) -> _Answer:
        arguments.query(request)
        key = request.path_params["key"]
        change = await self._slowly(request, verbs.delete_param, key)
        return _Answer(change, f"The parameter {key} is taken back; the sink is told.")

    async def _post_reload(self, request: Request, verbs: Verbs) -> _Answer:
        arguments.query(request)
        operator_id = await arguments.field(request, "operator_id", "the name of a transform, or sink")
        change = await self._slowly(request, verbs.reload, operator_id)
        detail = f"The new version of {operator_id} is imported; each pipeline takes it between batches."
        return _Answer(change, detail, 202)

    async def _post_pause(self, request: Request, verbs: Verbs) -> _Answer:
        scope = await arguments.scope(request)
        return _Answer(verbs.pause(scope), f"Pausing {scope}: no more records of it are taken from Kafka.", 202)

    async def _post_resume(self, request: Request, verbs: Verbs) -> _Answer:
        scope = await arguments.scope(request)
        return _Answer(verbs.resume(scope), f"Resuming {scope}.", 202)

    async def _post_stop(self, request: Request, verbs: Verbs) -> _Answer:
        arguments.query(request)
        return _Answer(verbs.stop(), "Stopping: what was taken is delivered and committed first.", 202)

    async def _post_log_level(self, request: Request, verbs: Verbs) -> _Answer:
        arguments.query(request)
        level = await arguments.field(request, "level", "debug, info, warning or error")
        return _Answer(verbs.set_log_level(level), f"Logging from {level} on, until the next start.")


def _refused(request: Request, error: RequestRefusedError | ConfigError | TransientError) -> Response:
    if isinstance(error, RequestRefusedError):
        return problem(request, error.status, str(error), headers=error.headers)
    return problem(request, 422 if isinstance(error, ConfigError) else 503, str(error))


def _answered(done: _Answer) -> Response:
    change = done.change
    document = {
        "changed": change.is_change,
        "detail": done.detail if change.is_change else "Nothing has changed: it was so already.",
        "before": change.before,
        "after": change.after,
    }
    status = done.status if change.is_change else 200
    return Response(to_json(document), status_code=status, media_type="application/json", headers=HEADERS)


def _asked(request: Request) -> dict[str, str]:
    """Return the fields of a log line that say what was asked, and from where."""
    client = request.client.host if request.client else ""
    return {"request": f"{request.method} {request.scope['path']}", "client": client}


def _tell(request: Request, change: Change) -> None:
    log.info(
        "admin_verb_done",
        **_asked(request),
        subject=change.subject,
        changed=change.is_change,
        before=change.before,
        after=change.after,
    )


def _tell_late(request: Request, done: asyncio.Future[Change]) -> None:
    if done.cancelled():  # the server has stopped
        return
    if (error := done.exception()) is not None:
        log.error("admin_verb_failed", **_asked(request), error=f"{type(error).__name__}: {error}")
    else:
        _tell(request, done.result())
