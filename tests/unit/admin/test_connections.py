"""Connections are bounded in number and time, so that a probe gets through whatever else comes."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from connector.admin import connections, server
from connector.admin.server import AdminServer
from connector.telemetry.metrics import Metrics
from tests.support.admin import STATUS, verb_lines
from tests.support.engine import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = b"Host: localhost\r\n"


@pytest.fixture
def running() -> Iterator[AdminServer]:
    made = AdminServer("127.0.0.1:0", status=lambda: STATUS, metrics=Metrics(), config_view=dict[str, str])
    made.start()
    yield made
    made.stop(10)


@contextmanager
def connected(running: AdminServer, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as made:
        made.sendall(sent)
        yield made


def closes(connection: socket.socket) -> bytes:
    """Return what comes before the server closes, or resets."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def dribble(connection: socket.socket, data: bytes) -> int:
    """Send a byte each 10 ms; returns how many until the server closes."""
    for sent in range(len(data)):
        try:
            connection.sendall(data[sent : sent + 1])
        except OSError:
            return sent
        time.sleep(0.01)
    return len(data)


def is_probed(running: AdminServer) -> bool:
    return httpx.get(f"http://127.0.0.1:{running.port}/livez").status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\n" + HOST])
def test_a_request_that_does_not_come_is_given_up(
    running: AdminServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "_REQUEST_SECONDS", 0.2)
    with connected(running, sent) as connection:
        assert closes(connection) == b""
    assert is_probed(running)


def test_a_byte_now_and_then_wins_no_time(running: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_REQUEST_SECONDS", 0.3)
    head = b"GET /livez HTTP/1.1\r\n" + HOST + b"X-Slow: " + b"x" * 10_000
    with connected(running) as connection:
        assert dribble(connection, head) < 500


def test_a_body_that_nobody_reads_wins_no_time_either(running: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_REQUEST_SECONDS", 0.3)
    head = b"GET /livez HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n"
    with connected(running, head) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert dribble(connection, b"x" * 1_000_000) < 500


def test_an_idle_connection_is_closed_and_one_in_use_is_kept(
    running: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_REQUEST_SECONDS", 0.3)
    assert running._server is not None
    monkeypatch.setattr(running._server.config, "timeout_keep_alive", 0.5)
    request = b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n"
    with connected(running) as connection:
        for _ in range(5):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"live\n"):
                answer += connection.recv(65536)
            time.sleep(0.1)
        started = time.monotonic()
        assert closes(connection) == b""
        assert 0.2 < time.monotonic() - started < 5
    assert server._KEEP_ALIVE_SECONDS <= 5


def test_an_answer_that_is_not_taken_is_given_up(running: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_WRITE_SECONDS", 0.2)
    monkeypatch.setattr(running._metrics, "render", lambda _: (b"x" * 20_000_000, "text/plain"))
    with connected(running, b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n") as connection:
        assert running._server is not None
        held = running._server.server_state.connections
        eventually(lambda: len(held) == 1)
        eventually(lambda: not held, "it is given up, though nothing was read")
        assert len(closes(connection)) < 20_000_000
    assert httpx.get(f"http://127.0.0.1:{running.port}/metrics").content == b"x" * 20_000_000, "one that reads gets all"


def test_more_connections_than_there_may_be_are_closed_at_once_and_the_others_go_on(
    running: AdminServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_MOST_CONNECTIONS", 3)
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}") as kept, ExitStack() as stack:
        assert kept.get("/livez").status_code == 200
        for _ in range(2):
            stack.enter_context(connected(running))
        assert running._server is not None
        held = running._server.server_state.connections
        eventually(lambda: len(held) == 3)
        with connected(running) as one_more:
            assert closes(one_more) == b""
        assert kept.get("/livez").status_code == 200
        [line] = verb_lines(caplog, "admin_connection_refused")
        assert (line["client"], line["connections"]) == ("127.0.0.1", 3)
        stack.close()
        eventually(lambda: len(held) == 1)
        assert is_probed(running)
