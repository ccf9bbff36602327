"""Schema registries for tests: `StubRegistry`, whose faults a test chooses, `FakeSchemas` without a server, and records
that name their schema.
"""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

import fastavro

from connector.pipeline.decode import Format, UnknownSchemaError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Self, TypeAlias

    from connector import PoisonError
    from connector.api.arrow_fields import AvroRecord
    from connector.pipeline.decode import Decoder, SchemaId

KNOWN_GUID = UUID("0f0c9c0c-4f3f-4b3d-9c3a-3d5b5a5c5d5e")
NOT_FOUND = {"error_code": 40403, "message": "Schema not found"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the stub answers instead of a schema; `drip` sends the body byte by byte, so many seconds apart."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    drip: float = 0.0


Behaviour: TypeAlias = "Callable[[str], Answer | None]"


class StubRegistry:
    """A registry on a loopback port, as a context; `behave` is asked first, with the path, and may wait or answer.

    `asked` has the path of every request, in order; `authorization` what they brought. With `tls` it speaks https.
    """

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.schemas: dict[str, dict[str, Any]] = {}  # by path
        self.asked: list[str] = []
        self.authorization: list[str | None] = []
        self.behave: Behaviour = lambda _: None
        self._scheme = "https" if tls else "http"
        self._server = _Server(("127.0.0.1", port), _handler(self))
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="stub-registry")

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(
        self,
        schema_id: int,
        schema: Any,
        kind: str = "AVRO",
        *,
        references: Sequence[tuple[str, str, int]] = (),
        subject: tuple[str, int] | None = None,
        guid: UUID | None = None,
    ) -> None:
        """Have a schema, under an id, perhaps as a version of a subject; references are (name, subject, version)."""
        text = schema if kind == "PROTOBUF" else json.dumps(schema)
        content = {
            "schema": text,
            "schemaType": kind,
            "id": schema_id,
            "references": [{"name": name, "subject": of, "version": version} for name, of, version in references],
        }
        self.schemas[f"/schemas/ids/{schema_id}"] = content
        if guid is not None:
            self.schemas[f"/schemas/guids/{guid}"] = content
        if subject is not None:
            name, version = subject
            self.schemas[f"/subjects/{name}/versions/{version}"] = {**content, "subject": name, "version": version}

    def answer(self, path: str) -> Answer:
        """Return what a request gets."""
        instead = self.behave(path)
        if instead is not None:
            return instead
        found = self.schemas.get(path)
        return Answer(200 if found else 404, json.dumps(found or NOT_FOUND).encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        """End what is open, too: else a client goes on with its connection as if nothing had happened."""
        super().server_close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients go in the middle here."""


def _handler(stub: StubRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer takes 40 ms

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            stub.asked.append(path)
            stub.authorization.append(self.headers.get("Authorization"))
            answer = stub.answer(path)
            with suppress(OSError):  # the client may have gone by now
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.body)))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if not answer.drip:
                    self.wfile.write(answer.body)
                for byte in answer.body if answer.drip else b"":
                    self.wfile.write(bytes([byte]))
                    time.sleep(answer.drip)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    return Handler


@dataclass(frozen=True, slots=True)
class Upper:
    """Decodes letters to capitals."""

    format: Format = Format.AVRO
    avro_records: tuple[AvroRecord, ...] = ()

    def decode(self, payload: bytes) -> Any:
        if payload and not payload.isalpha():
            raise ValueError("has other things than letters")
        return payload.decode().upper()


class FakeSchemas:
    """Has schema 1 and a GUID for Avro, 2 for JSON; `asked` has the ids of each call."""

    def __init__(self) -> None:
        self.asked: list[set[SchemaId]] = []

    def find(self, ids: Collection[SchemaId]) -> Mapping[SchemaId, Decoder | PoisonError]:
        self.asked.append(set(ids))
        known: dict[SchemaId, Decoder] = {1: Upper(), KNOWN_GUID: Upper(), 2: Upper(Format.JSON_SCHEMA)}
        return {each: known.get(each, UnknownSchemaError(f"no schema {each}")) for each in ids}


def framed(schema_id: SchemaId, payload: bytes) -> bytes:
    """Return a payload with the id of its schema in front."""
    if isinstance(schema_id, UUID):
        return b"\x01" + schema_id.bytes + payload
    return b"\x00" + schema_id.to_bytes(4, "big") + payload


def avro(schema: Any, value: Any) -> bytes:
    """Return a value in Avro's binary form."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()
