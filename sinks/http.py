"""HTTP sink: one request for each batch, records or values as lines of JSON or as one array.

The status decides: 2xx is done, what may pass is tried again, no earlier than the server asks (Retry-After, RFC 9110),
400, 413 and 422 are for the records, and everything else is for whoever has set the sink up. With `results` the body of
a 2xx names the records that were not stored.

An answer that is lost leaves open whether the batch was stored, so it is sent again. `Idempotency-Key` is the same for
the same bytes of the same records, and no other, so that a server can drop the repeat.

One client with one connection, owned by the sink's thread. A timer's thread ends a request that takes too long: httpx
limits each read and write, but not all of them together.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import re
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ValidationError

from connector import (
    AuthenticationError,
    ConfigError,
    ConnectorError,
    Duration,
    Field,
    PoisonError,
    RecordErrors,
    Secret,
    Settings,
    Sink,
    TransientError,
)
from sinks.json_lines import to_json_values, to_lines
from sinks.template import placeholders
from sinks.values import span

try:
    import httpx
except ImportError as missing:
    raise ImportError("the http sink needs httpx: pip install 'sluiceway[http]'") from missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from connector import Batch, SinkContext

Headers: TypeAlias = dict[str, Secret]

_ANSWER_BYTES = 2**22  # the longest answer that is read
_EXCERPT_CHARACTERS = 200
_KEEP_ALIVE_SECONDS = 4.0  # many servers close an idle connection after 5
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_VISIBLE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_OURS = frozenset(("content-length", "transfer-encoding", "content-encoding", "connection", "idempotency-key"))
_LATER = frozenset((408, 409, 423, 425, 429))  # 409: a request with the same Idempotency-Key is still under way
_REFUSED = frozenset((401, 403, 407))
_UNFIT = frozenset((400, 413, 422))


def _check_url(url: str) -> str:
    placeholders(url, ("topic",))
    try:
        parsed = httpx.URL(url.format(topic="topic"))
    except httpx.InvalidURL as error:
        raise ValueError(f"is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("is not a URL of a server; write one as in https://example.com/records/{topic}")
    if parsed.userinfo:
        raise ValueError(
            "has a user or password in it, which would be shown; set CONNECTOR_SINK_USERNAME and "
            "CONNECTOR_SINK_PASSWORD, or CONNECTOR_SINK_TOKEN"
        )
    if parsed.fragment or "{topic}" in url.split("://", 1)[1].split("/", 1)[0]:
        raise ValueError("has a fragment, or {topic} in the name of its server; put {topic} into the path or query")
    return url


def _check_headers(headers: Headers) -> Headers:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"has {name!r}, which cannot be the name of a header")
        if name.lower() in _OURS:
            raise ValueError(f"has {name}, which the sink sets itself; leave it out")
        if not _VISIBLE.fullmatch(value.get_secret_value()):
            raise ValueError(f"has a value of {name} that is empty or has other than printable ASCII characters")
    return headers


def _check_secret(secret: Secret) -> Secret:
    if not _VISIBLE.fullmatch(secret.get_secret_value()):
        raise ValueError("is empty or has other than printable ASCII characters")
    return secret


class HttpSettings(Settings):
    """Settings of the sink `http`."""

    url: Annotated[str, AfterValidator(_check_url)] = Field(
        description="Where batches are sent, a template: {topic} in its path or query. It is shown, so secrets belong "
        "into the headers"
    )
    method: Literal["POST", "PUT", "PATCH"] = Field(default="POST", description="Method of the requests")
    format: Literal["record", "value"] = Field(
        default="record",
        description="`record`: an object with topic, partition, offset, timestamp, key, value and headers; `value`: "
        "the value alone, which has to be JSON, null if there is none",
    )
    body: Literal["ndjson", "json"] = Field(
        default="ndjson", description="`ndjson`: a line for each record; `json`: one array of all"
    )
    compression: Literal["none", "gzip"] = Field(default="none", description="How the body is compressed")
    headers: Annotated[Headers, AfterValidator(_check_headers)] = Field(
        default={},
        description="More headers, as Name=value with commas between them. They count as secrets",
        json_schema_extra={"values": "pairs"},
    )
    token: Annotated[Secret, AfterValidator(_check_secret)] | None = Field(
        default=None, description="Token for `Authorization: Bearer`"
    )
    username: str | None = Field(default=None, description="User for `Authorization: Basic`")
    password: Secret | None = Field(default=None, description="Password for `Authorization: Basic`")
    timeout: Duration = Field(
        default=10.0,
        gt=0,
        description="How long a request may take with its answer. A rebalance waits for it, so it should be well below "
        "CONNECTOR_DRAIN_TIMEOUT",
    )
    results: bool = Field(
        default=False,
        description='Read the body of a 2xx: {"errors": [{"index": 3, "error": "why", "retry": false}]} names the '
        "records of the request that were not stored, counted from 0; all others are. Empty: all are",
    )
    tls_ca_file: str | None = Field(
        default=None, description="PEM file of the authorities that are trusted, in place of the public ones"
    )
    tls_certificate_file: str | None = Field(
        default=None, description="PEM file of the certificate that says who we are, with its key unless that is apart"
    )
    tls_key_file: str | None = Field(default=None, description="PEM file of that certificate's key, without a password")
    tls_verify: bool = Field(default=True, description="Whether the server has to prove who it is. false: for tests")

    def problems(self, pipelines: int) -> list[str]:
        """Refuse two ways to say who we are, half a way, and TLS settings without TLS."""
        found = []
        ways = [
            self.token is not None,
            self.username is not None,
            any(name.lower() == "authorization" for name in self.headers),
        ]
        if sum(ways) > 1:
            found.append(
                "CONNECTOR_SINK_TOKEN, CONNECTOR_SINK_USERNAME and Authorization in CONNECTOR_SINK_HEADERS exclude "
                "each other. Keep one of them."
            )
        if self.password is not None and self.username is None:
            found.append("CONNECTOR_SINK_PASSWORD goes with CONNECTOR_SINK_USERNAME. Set it too.")
        if self.tls_key_file is not None and self.tls_certificate_file is None:
            found.append("CONNECTOR_SINK_TLS_KEY_FILE goes with CONNECTOR_SINK_TLS_CERTIFICATE_FILE. Set it too.")
        if (self.tls_ca_file or self.tls_certificate_file or not self.tls_verify) and self.url.startswith("http://"):
            found.append(
                f"CONNECTOR_SINK_URL={_shown(self.url)} has no TLS. Begin it with https://, or leave out "
                "CONNECTOR_SINK_TLS_*."
            )
        return found


class _Failure(BaseModel):
    """A record that the server has not stored, in the body of its answer."""

    index: int = Field(ge=0, strict=True)
    error: str = "no reason given"
    retry: bool = False


class _Results(BaseModel):
    """The body of an answer."""

    errors: list[_Failure] = []


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came back: who says what of which records, in words, and what of it matters."""

    text: str
    status: int
    location: str
    retry_after: float | None
    body: bytes  # of a long one the beginning, more than _ANSWER_BYTES


class HttpSink(Sink[HttpSettings]):
    """Sends each batch as one request."""

    def __init__(self, settings: HttpSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self._client: httpx.Client | None = None
        self._deadline = _Deadline(settings.timeout)
        self._secrets = _secrets(settings)

    def open(self) -> None:
        """Get ready to connect; the first batch does it.

        Raises:
            ConfigError: A file of certificates cannot be used, or the environment names a proxy that is none.
        """
        self.close()
        self._make_client()

    def _make_client(self) -> httpx.Client:
        verify = _tls(self.settings)
        try:
            self._client = httpx.Client(
                headers=_headers(self.settings),
                verify=verify,
                timeout=self.settings.timeout,
                limits=httpx.Limits(max_connections=1, keepalive_expiry=_KEEP_ALIVE_SECONDS),
            )
        except (ValueError, ImportError, httpx.InvalidURL):  # without the text, which may have the proxy's password
            raise ConfigError(
                "the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names is not one for HTTP. Write "
                "http://host:port, or add the server to NO_PROXY."
            ) from None
        return self._client

    def write(self, batch: Batch) -> None:
        """Send the batch; returning means that the server has answered 2xx.

        Raises:
            AuthenticationError: The server does not want us.
            ConfigError: The server answers as none does that takes records here.
            PoisonError: A value that is not JSON, or a request that the server finds bad or too large.
            RecordErrors: The server has named records that it has not stored.
            TransientError: The server is not there, is busy, or has not answered in time.
        """
        if not batch:
            return
        lines = to_lines(batch, "record") if self.settings.format == "record" else to_json_values(batch)
        # JSON has no line break but those between records.
        body = bytes(lines) if self.settings.body == "ndjson" else b"[" + lines[:-1].replace(b"\n", b",") + b"]"
        headers = {"Idempotency-Key": self._key(batch, body)}
        if self.settings.compression == "gzip":
            body = gzip.compress(body, compresslevel=6)
        url = self.settings.url.format(topic=batch.metadata.topic)
        self._judge(self._request(url, body, headers, span(batch)), len(batch))

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _key(self, batch: Batch, body: bytes) -> str:
        """Return what tells these bytes of these records from any others; a topic that was made anew has others."""
        metadata = batch.metadata
        digest = blake2b(self.context.group_id.encode() + b"\0" + body, digest_size=8).hexdigest()
        return f"{metadata.topic}-{metadata.partition}-{metadata.first_offset}-{metadata.next_offset}-{digest}"

    def _request(self, url: str, body: bytes, headers: Mapping[str, str], doing: str) -> _Answer:
        client = self._client or self._make_client()
        trace = {"trace": self._deadline.note}
        content = bytearray()
        try:
            with (
                self._deadline,
                client.stream(self.settings.method, url, content=body, headers=headers, extensions=trace) as response,
            ):
                for chunk in response.iter_raw():
                    content += chunk
                    if len(content) > _ANSWER_BYTES:
                        break
        except httpx.TransportError as error:
            raise self._failure(error, f"{doing}: {_shown(url)}") from error
        return _Answer(
            f"{doing}: {_shown(url)} answers {response.status_code}",
            response.status_code,
            response.headers.get("Location", ""),
            _retry_after(response.headers.get("Retry-After", "")),
            bytes(content),
        )

    def _failure(self, error: httpx.TransportError, text: str) -> ConnectorError:
        if self._deadline.is_over or isinstance(error, httpx.TimeoutException):
            return TransientError(f"{text} has not answered within {self.settings.timeout:g} s")
        if isinstance(error, httpx.LocalProtocolError):
            return ConfigError(f"{text} cannot be asked: {error}. Correct CONNECTOR_SINK_HEADERS.")
        refusal = _certificate_error(error)
        if refusal is not None:
            return ConfigError(
                f"{text} cannot prove who it is: {refusal.verify_message}. Correct its certificate, or set "
                "CONNECTOR_SINK_TLS_CA_FILE to the authority that has signed it."
            )
        # A connection that breaks may do so after the batch was stored.
        return TransientError(f"{text} is not reached or has broken off: {error}")

    def _judge(self, answer: _Answer, count: int) -> None:
        """Raise what an answer to so many records means, unless that is success."""
        status = answer.status
        said = f"{answer.text}{self._excerpt(answer)}"
        if status in _LATER or status >= 500:
            raise TransientError(said, retry_after=answer.retry_after)
        if status in _REFUSED:
            raise AuthenticationError(
                f"{said}. Correct CONNECTOR_SINK_TOKEN, CONNECTOR_SINK_USERNAME and CONNECTOR_SINK_PASSWORD, or "
                "CONNECTOR_SINK_HEADERS, or what they may do there."
            )
        if status in _UNFIT:
            raise PoisonError(said)
        if 300 <= status < 400:
            where = self._mask(_shown(answer.location))[:_EXCERPT_CHARACTERS]
            raise ConfigError(
                f"{answer.text}, a redirection to {where or 'nowhere'}, and records are not sent after it. Set "
                "CONNECTOR_SINK_URL to where they are taken."
            )
        if not 200 <= status < 300:
            raise ConfigError(
                f"{said}. Correct CONNECTOR_SINK_URL and CONNECTOR_SINK_METHOD, or the form of the body by "
                "CONNECTOR_SINK_BODY and CONNECTOR_SINK_FORMAT."
            )
        if self.settings.results:
            errors = self._results(answer, count)
            if errors:
                raise RecordErrors(errors)
        elif status == 207:
            raise ConfigError(
                f"{answer.text}, a result for each record, and nobody reads it. Set CONNECTOR_SINK_RESULTS=true if it "
                "has the form that is documented there."
            )

    def _results(self, answer: _Answer, count: int) -> dict[int, TransientError | PoisonError]:
        """Return what a server says of single records; without a word that can be read nothing counts as stored."""
        if not answer.body and answer.status != 207:
            return {}
        failures: list[_Failure] | None = None
        if len(answer.body) <= _ANSWER_BYTES:
            with contextlib.suppress(ValidationError):
                failures = _Results.model_validate_json(answer.body).errors
        if failures is None or any(failure.index >= count for failure in failures):
            raise TransientError(
                f"{answer.text}, but without results for {count} record(s), as CONNECTOR_SINK_RESULTS=true needs them"
                f"{self._excerpt(answer)}",
                retry_after=answer.retry_after,
            )
        errors: dict[int, TransientError | PoisonError] = {}
        for failure in failures:
            reason = self._mask(failure.error)[:_EXCERPT_CHARACTERS]
            text = f"{answer.text}, but record {failure.index} of them is not stored: {reason}"
            errors[failure.index] = (
                TransientError(text, retry_after=answer.retry_after) if failure.retry else PoisonError(text)
            )
        return errors

    def _excerpt(self, answer: _Answer) -> str:
        text = " ".join(answer.body[: 10 * _EXCERPT_CHARACTERS].decode(errors="replace").split())
        return f": {self._mask(text)[:_EXCERPT_CHARACTERS]}" if text else ""

    def _mask(self, text: str) -> str:
        """Hide secrets in what a server says, which may repeat what it was sent."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class _Deadline:
    """A limit for a whole request: `with deadline`, and `note` as its trace. Without it an answer that comes byte by
    byte would never end, since each read is in time.

    Entered and left by the sink's thread; `_end` runs on the timer's, and shuts the connection down under the other.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._socket: socket.socket | None = None  # the last one that was connected; set by the sink's thread
        self._timer: Timer | None = None
        self.is_over = False

    def __enter__(self) -> Self:
        self.is_over = False
        self._timer = Timer(self._seconds, self._end)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def note(self, event: str, info: Mapping[str, Any]) -> None:
        """Take an event of httpcore's trace: which socket there is now."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
        if self.is_over and event.endswith(".send_request_headers.started"):
            raise httpx.ConnectTimeout("it was over before there was a connection to shut down")

    def _end(self) -> None:
        self.is_over = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # closed by now
                # Not the method of a TLS socket, which would take the other thread's state away.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _headers(settings: HttpSettings) -> httpx.Headers:
    headers = httpx.Headers(
        {
            "User-Agent": "sluiceway",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/x-ndjson" if settings.body == "ndjson" else "application/json",
        }
    )
    if settings.compression == "gzip":
        headers["Content-Encoding"] = "gzip"
    if settings.token is not None:
        headers["Authorization"] = f"Bearer {settings.token.get_secret_value()}"
    if settings.username is not None:
        headers["Authorization"] = f"Basic {_basic(settings)}"
    headers.update({name: value.get_secret_value() for name, value in settings.headers.items()})
    return headers


def _basic(settings: HttpSettings) -> str:
    password = settings.password.get_secret_value() if settings.password else ""
    return base64.b64encode(f"{settings.username}:{password}".encode()).decode()


def _secrets(settings: HttpSettings) -> list[str]:
    given = [settings.token, settings.password, *settings.headers.values()]
    secrets = [secret.get_secret_value() for secret in given if secret is not None]
    if settings.username is not None:
        secrets.append(_basic(settings))
    return sorted((secret for secret in secrets if secret), key=len, reverse=True)


def _tls(settings: HttpSettings) -> ssl.SSLContext | bool:
    """Return how a server is trusted, and who we are to it.

    Raises:
        ConfigError: A file cannot be used.
    """
    if settings.url.startswith("http://"):
        return False  # then nobody reads the list of authorities, which takes time
    context = httpx.create_ssl_context()
    authorities, certificate, key = settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file
    with _file_errors("TLS_CA_FILE", authorities):
        if authorities is not None:
            context = ssl.create_default_context(cafile=authorities)
    with _file_errors("TLS_CERTIFICATE_FILE", f"{certificate}, with {key or 'its own key'},"):
        if certificate is not None:
            # Asked for a password by the library, the process would wait for a terminal.
            context.load_cert_chain(certificate, key, password="")
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.contextmanager
def _file_errors(setting: str, value: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # also what is wrong with the content of a file
        raise ConfigError(
            f"CONNECTOR_SINK_{setting}={value} cannot be used: {error.strerror or error}. Name a PEM file that this "
            "user may read."
        ) from error


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _retry_after(text: str) -> float | None:
    """Return the seconds that a server asks to wait: it gives a number or a date (RFC 9110, 10.2.3)."""
    if re.fullmatch(r"[0-9]{1,9}", text.strip()):
        return float(text)
    with contextlib.suppress(ValueError, OverflowError):  # neither: as if it had not asked
        then = parsedate_to_datetime(text)
        return max(0.0, (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return None


def _shown(url: str) -> str:
    return url.partition("?")[0]
