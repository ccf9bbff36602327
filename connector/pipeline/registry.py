"""Schemas by id, from a schema registry that speaks Confluent's protocol; a decoder is made once and kept.

One for the process. `find` is called by the pipelines and waits a tenth of a second at most: requests are made by a
thread of their own, `registry`, one after the other. So a registry that is slow or down holds up only the lanes that
need a schema which is not known yet, and neither a drain nor another lane.

What an answer means: 401 and 403 end the run. 404 with the registry's own code is a schema that does not exist; it may
be on its way to this copy of the registry, so it is asked for again during a grace time, and is poison after that. All
else, garbage too, is transient: nobody knows yet what the record is.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from connector.api.errors import AuthenticationError, ConfigError, ConnectorError, PoisonError, TransientError
from connector.api.settings import format_duration
from connector.pipeline.avro import avro_decoder
from connector.pipeline.decode import Decoder, PendingError, SchemaId, UndecodableError, UnknownSchemaError
from connector.pipeline.json_schema import json_schema_decoder
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)

_PATIENCE_SECONDS = 0.1  # how long a pipeline waits; most registries answer sooner
_FAILURE_KEPT_SECONDS = 1.0
_LONGEST_ANSWER_BYTES = 16 * 2**20
_UNKNOWN_KEPT_SECONDS = 60.0  # for how long a schema that does not exist is not asked for again
_MOST_UNKNOWN = 100_000
_MAKERS: Mapping[str, Callable[[str, list[tuple[str, str]]], Decoder]] = {
    "AVRO": avro_decoder,
    "JSON": json_schema_decoder,
}

Found: TypeAlias = Decoder | PoisonError


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Where the registry is, and how long it may take; seconds.

    `properties` are those of `SchemaRegistryClient`. `timeout` is for all requests of one schema, those for its
    references too; `unknown_grace` how long an id may be unknown.
    """

    properties: Mapping[str, Any]
    timeout: float = 5.0
    unknown_grace: float = 30.0


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A schema that the registry does not have: since when, and until when nobody asks again; time.monotonic()."""

    since: float
    until: float


@dataclass(slots=True)
class _Request:
    """A schema that is asked for: the answer, since when, and when a failure was the answer; time.monotonic().

    A failure stays until one pipeline has heard of it, else a registry that fails slowly would never have failed.
    """

    future: Future[Found]
    since: float
    failed_at: float | None = None
    is_given_up: bool = False  # a pipeline has counted it as failed before its answer

    def is_stale(self, now: float) -> bool:
        """Whether whoever asked has gone without hearing of the failure."""
        return self.failed_at is not None and now - self.failed_at > _FAILURE_KEPT_SECONDS


class _NotFoundError(Exception):
    """The registry says that there is no such schema."""


class Registry:
    """Finds decoders. `find` may be called by any thread; the client belongs to the thread `registry`.

    Raises:
        ConfigError: The client does not take the settings, or a certificate cannot be read.
    """

    def __init__(self, settings: RegistrySettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._url = settings.properties["url"]
        try:
            self._client = SchemaRegistryClient({**settings.properties, "timeout": settings.timeout, "max.retries": 0})
        except (ValueError, OSError) as error:  # a certificate, or a key, that is none
            raise ConfigError(f"The client of the schema registry refuses CONNECTOR_REGISTRY_*: {error}") from error
        # The client gives no other access to Retry-After, and limits neither the length of an answer nor its duration.
        self._client._rest_client.session.event_hooks = {"response": [self._read_answer]}
        # Guards _found, _asked and _unknown; taken by pipelines and the thread `registry`; leaf lock.
        self._lock = Lock()
        self._found: dict[SchemaId, Found] = {}
        self._asked: dict[SchemaId, _Request] = {}
        self._unknown: dict[SchemaId, _Unknown] = {}
        self._queue: SimpleQueue[SchemaId | None] = SimpleQueue()
        self._is_closed = False
        # Of the thread `registry`:
        self._deadline = 0.0
        self._has_answered = False
        self._retry_after: float | None = None  # as the last answer asked for
        self._closed_until = 0.0  # until when nothing is asked; time.monotonic()
        self._thread = Thread(target=self._run, name="registry", daemon=True)
        self._thread.start()

    def find(self, ids: Collection[SchemaId]) -> Mapping[SchemaId, Found]:
        """Return a decoder for each id, or why there will never be one.

        All that are not known are asked for before anything is raised.

        Raises:
            PendingError: No answer yet.
            TransientError: The registry cannot be asked now.
            FatalError: It refuses the credentials.
        """
        with self._lock:
            found = {each: self._found[each] for each in ids if each in self._found}
        missing = [each for each in ids if each not in found]
        if not missing:
            return found
        asked = {each: self._ask(each) for each in missing}
        newest = max(request.since for request in asked.values())
        futures = [request.future for request in asked.values()]
        wait(futures, max(0.0, newest + _PATIENCE_SECONDS - time.monotonic()))
        failure: ConnectorError | None = None
        for each, request in asked.items():
            try:
                found[each] = request.future.result(0)
            except TimeoutError:
                failure = failure or self._late(each, request)
            except TransientError as error:
                self._forget(each, request)
                if failure is None or isinstance(failure, PendingError):
                    failure = error
        if failure is not None:
            raise failure
        return found

    def close(self) -> None:
        """Let the thread end after the schema that it is at. Does not wait for it."""
        self._is_closed = True
        self._queue.put(None)

    def _late(self, schema_id: SchemaId, request: _Request) -> TransientError:
        seconds = time.monotonic() - request.since
        if seconds < self._settings.timeout:
            return PendingError(f"waits for schema {schema_id} from the registry {self._url}")
        request.is_given_up = True
        return TransientError(f"the schema registry {self._url} has not answered for {seconds:.1f}s")

    def _forget(self, schema_id: SchemaId, request: _Request) -> None:
        with self._lock:
            if self._asked.get(schema_id) is request:
                del self._asked[schema_id]

    def _ask(self, schema_id: SchemaId) -> _Request:
        now = time.monotonic()
        with self._lock:
            unknown = self._unknown.get(schema_id)
            if unknown is not None and now < unknown.until:
                known: Future[Found] = Future()
                known.set_result(self._unknown_error(schema_id))
                return _Request(known, now)
            request = self._asked.get(schema_id)
            is_new = request is None or request.is_stale(now)
            if request is None or is_new:
                request = self._asked[schema_id] = _Request(Future(), now)
        if is_new:
            self._queue.put(schema_id)
        return request

    def _unknown_error(self, schema_id: SchemaId) -> UnknownSchemaError:
        return UnknownSchemaError(
            f"the schema registry {self._url} does not have schema {schema_id}, and did not get it within "
            f"CONNECTOR_REGISTRY_UNKNOWN_GRACE={format_duration(self._settings.unknown_grace)}"
        )

    # The thread `registry`.

    def _run(self) -> None:
        while (schema_id := self._queue.get()) is not None and not self._is_closed:
            found: Found | None = None
            failure: Exception | None = None
            try:
                found = self._look_up(schema_id)
            except Exception as error:  # noqa: BLE001 - whoever waits for it must hear of it
                failure = error
            with self._lock:
                request = self._asked[schema_id]
                if found is not None or request.is_given_up:
                    del self._asked[schema_id]
                else:
                    request.failed_at = time.monotonic()
            if found is not None:
                request.future.set_result(found)
            else:
                request.future.set_exception(failure)
        self._client.close()

    def _look_up(self, schema_id: SchemaId) -> Found:
        left = self._closed_until - time.monotonic()
        if left > 0:
            raise TransientError(f"the schema registry {self._url} asked to wait {left:.1f}s more", retry_after=left)
        self._deadline = time.monotonic() + self._settings.timeout
        try:
            found = self._fetch(schema_id)
        except _NotFoundError:
            return self._note_unknown(schema_id)
        with self._lock:
            self._unknown.pop(schema_id, None)
            self._found[schema_id] = found
        return found

    def _note_unknown(self, schema_id: SchemaId) -> UnknownSchemaError:
        self._metrics.registry_errors.labels("unknown_schema").inc()
        now, grace = time.monotonic(), self._settings.unknown_grace
        with self._lock:
            before = self._unknown.pop(schema_id, None)
            since = before.since if before else now
            is_over = now - since >= grace
            self._unknown[schema_id] = _Unknown(since, now + _UNKNOWN_KEPT_SECONDS if is_over else now)
            if len(self._unknown) > _MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]
        if is_over:
            return self._unknown_error(schema_id)
        raise TransientError(
            f"the schema registry {self._url} does not have schema {schema_id}; it may get it within "
            f"{grace - (now - since):.1f}s"
        )

    def _fetch(self, schema_id: SchemaId) -> Found:
        if isinstance(schema_id, UUID):
            schema = self._request(lambda: self._client.get_schema_by_guid(str(schema_id)))
        else:
            schema = self._request(lambda: self._client.get_schema(schema_id))
        kind = schema.schema_type or "AVRO"
        if kind not in _MAKERS:
            return UndecodableError(f"schema {schema_id} is of the type {kind}, which no format of this version reads")
        text, references = self._text(schema), list(self._references(schema, set()))
        try:
            decoder = _MAKERS[kind](text, references)
        except Exception as error:  # noqa: BLE001 - whatever the library makes of a schema that it does not take
            return UndecodableError(f"schema {schema_id} cannot be used: {type(error).__name__}: {error}")
        log.info("schema_found", schema=str(schema_id), schema_type=kind, references=len(references))
        return decoder

    def _references(self, schema: Schema, seen: set[tuple[Any, ...]]) -> Iterator[tuple[str, str]]:
        """Yield name and text of the schemas that one refers to, those that they refer to first."""
        for each in schema.references or []:
            if (what := (each.name, each.subject, each.version)) not in seen:
                seen.add(what)
                referenced = self._request(partial(self._version, each))
                yield from self._references(referenced, seen)
                yield str(each.name), self._text(referenced)

    def _version(self, reference: SchemaReference) -> Schema:
        # Deleted ones too: a schema that refers to one is still in use.
        return self._client.get_version(str(reference.subject), reference.version or "latest", deleted=True).schema

    def _text(self, schema: Schema) -> str:
        """Return the text of a schema; one that is not even JSON was no registry's answer."""
        try:
            json.loads(schema.schema_str or "")
        except (TypeError, ValueError) as error:
            raise self._garbage("a schema that is not JSON") from error
        return str(schema.schema_str)

    def _request(self, ask: Callable[[], Schema]) -> Schema:
        """Make one request; every error that comes out has a class."""
        if time.monotonic() > self._deadline:
            raise self._failed("slow", f"takes longer than {format_duration(self._settings.timeout)} for a schema")
        self._has_answered, self._retry_after = False, None
        try:
            return ask()
        except SchemaRegistryError as error:
            raise self._refused(error) from error
        except ConnectorError:
            raise
        except Exception as error:  # of the client's HTTP library, or of the client at an answer that it did not expect
            reason = f"{type(error).__name__}: {error}"
            if self._has_answered:
                raise self._garbage(f"an answer that cannot be read ({reason})") from error
            raise self._failed("unreachable", f"cannot be reached ({reason})") from error

    def _refused(self, error: SchemaRegistryError) -> Exception:
        status = error.http_status_code
        # The registry's own code for a schema, subject or version that is not there; a wrong URL gives other answers.
        if status == 404 and str(error.error_code).startswith("404") and error.error_code != 404:
            return _NotFoundError()
        reason = f"http_{status}"
        if status in (401, 403):
            self._metrics.registry_errors.labels(reason).inc()
            return AuthenticationError(
                f"The schema registry {self._url} answers HTTP {status}: it refuses the credentials. Check "
                "CONNECTOR_REGISTRY_USER and CONNECTOR_REGISTRY_PASSWORD, or CONNECTOR_REGISTRY_TOKEN, and what "
                "they may read."
            )
        asks = ""
        if self._retry_after is not None:
            self._closed_until = time.monotonic() + self._retry_after
            asks = f", and asks to wait {self._retry_after:g}s"
        elif status == 404:
            asks = ", which is not its word for a missing schema; check CONNECTOR_REGISTRY_URL"
        return self._failed(reason, f"answers HTTP {status}{asks}", self._retry_after)

    def _failed(self, reason: str, what: str, retry_after: float | None = None) -> TransientError:
        self._metrics.registry_errors.labels(reason).inc()
        return TransientError(f"the schema registry {self._url} {what}", retry_after=retry_after)

    def _garbage(self, what: str) -> TransientError:
        self._client.clear_caches()  # type: ignore[no-untyped-call]  # the client keeps even what it cannot read
        return self._failed("garbage", f"gives {what}")

    def _read_answer(self, response: Any) -> None:
        """Read an answer whole, as the HTTP library would after this hook, but not for ever."""
        self._has_answered = True
        self._retry_after = _seconds(response.headers.get("Retry-After"))
        deadline = time.monotonic() + self._settings.timeout
        chunks: list[bytes] = []
        for chunk in response.iter_bytes():
            chunks.append(chunk)
            if time.monotonic() > deadline:
                raise self._failed("slow", f"takes longer than {format_duration(self._settings.timeout)} to answer")
            if sum(map(len, chunks)) > _LONGEST_ANSWER_BYTES:
                raise self._garbage(f"an answer of more than {_LONGEST_ANSWER_BYTES // 2**20}MiB")
        response._content = b"".join(chunks)


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which has a number or a date; None where it has neither."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        at = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
