"""An HTTP server that takes records as the sink `http` sends them, and misbehaves as a test wants it to."""

from __future__ import annotations

import contextlib
import gzip
import json
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Self


_OPENSSL = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out certificate.pem "
    "-days 2 -subj /CN=receiver -addext subjectAltName=IP:127.0.0.1"
)


@dataclass(frozen=True)
class Received:
    """A request, its body as it is after decompression."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float  # time.monotonic()

    @property
    def records(self) -> list[Any]:
        """What is in the body, whichever form it has."""
        if self.headers["content-type"] == "application/json":
            return list(json.loads(self.body))
        return [json.loads(line) for line in self.body.splitlines()]


class Handler(BaseHTTPRequestHandler):
    """Hands each request to the next behaviour of the script."""

    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = Received(self.command, self.path, headers, body, time.monotonic())
        with contextlib.suppress(OSError):  # the client has gone
            self.receiver.take(self, received)

    do_POST = do_PUT = do_PATCH = _take  # noqa: N815 - the names that the base class looks for

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send(self, data: bytes) -> None:
        """Send bytes as they are, and close the connection afterwards."""
        self.wfile.write(data)
        self.wfile.flush()
        self.close_connection = True

    def drip(self, data: bytes, seconds: float) -> None:
        """Send bytes one by one, until the client has had enough."""
        for byte in data:
            self.send(bytes([byte]))
            if self.receiver.is_closing.wait(seconds):
                return

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@dataclass
class Receiver:
    """`with Receiver() as receiver`: `script` has the behaviours of the next requests, `behave` what comes after."""

    tls: Path | None = None  # folder with certificate.pem and key.pem
    wants_certificate: bool = False  # the same one, of the client
    received: list[Received] = field(default_factory=list)
    stored: list[Any] = field(default_factory=list)
    script: list[Callable[[Handler, Received], object]] = field(default_factory=list)
    is_closing: threading.Event = field(default_factory=threading.Event)
    connections: int = 0
    port: int = 0
    _server: ThreadingHTTPServer | None = None

    def __post_init__(self) -> None:
        self.behave: Callable[[Handler, Received], object] = self.store

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/records"

    def start(self) -> None:
        """Listen, again on the same port after `stop`."""
        receiver = self

        class Server(ThreadingHTTPServer):
            daemon_threads = False
            block_on_close = True

            def get_request(self) -> tuple[socket.socket, Any]:
                receiver.connections += 1
                return super().get_request()

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that breaks off is no news here."""

        handler = type("OneHandler", (Handler,), {"receiver": self, "timeout": 0.5})
        self.is_closing.clear()
        self._server = Server(("127.0.0.1", self.port), handler)
        self.port = self._server.server_port
        if self.tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.tls / "certificate.pem", self.tls / "key.pem")
            if self.wants_certificate:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self.tls / "certificate.pem")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=[0.01], name="receiver").start()

    def stop(self) -> None:
        """Stop listening and wait until what is under way is over."""
        self.is_closing.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def take(self, handler: Handler, received: Received) -> None:
        """Let the next behaviour answer; on a connection that is kept when the server stops nobody does."""
        if self.is_closing.is_set():
            handler.close_connection = True
            return
        self.received.append(received)
        behave = self.script.pop(0) if self.script else self.behave
        behave(handler, received)

    def store(self, handler: Handler, received: Received) -> None:
        """Take the records, and say so."""
        self.stored += received.records
        handler.answer(204)


def answer(status: int, body: bytes = b"", **headers: str) -> Callable[[Handler, Received], None]:
    """Return the behaviour of a server that always says this."""
    return lambda handler, _: handler.answer(status, body, **headers)


def make_certificate(directory: Path) -> None:
    """Make a key and a certificate for 127.0.0.1 that no public authority has signed."""
    subprocess.run(
        _OPENSSL.split(),
        cwd=directory,
        check=True,
        capture_output=True,
        timeout=30,
    )
