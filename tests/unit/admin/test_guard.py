"""What a page in somebody's browser may have sent is refused, and whoever scrapes and probes gets through."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from connector.admin.server import AdminServer
from connector.telemetry.metrics import Metrics
from tests.support.admin import STATUS, TOKEN, FakeVerbs, is_problem, verb_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = [
    "localhost",
    "LocalHost",
    "localhost.",
    "127.0.0.1",
    "192.0.2.7",
    "[::1]",
    socket.gethostname(),
    "connector",
    "a.b",
]
UNKNOWN = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost:9464@evil",
    "",
    "[::1",
    "xlocalhost",
]
CHANGES = [("POST", "/pause"), ("POST", "/stop"), ("PUT", "/params/rate"), ("DELETE", "/params/rate"), ("POST", "/x")]
READS = ["/", "/livez", "/readyz", "/metrics", "/status", "/config", "/params"]


@contextmanager
def serving(address: str, verbs: FakeVerbs) -> Iterator[httpx.Client]:
    server = AdminServer(
        address,
        status=lambda: STATUS,
        metrics=Metrics(),
        config_view=dict[str, str],
        verbs=verbs,
        token=TOKEN,
        hosts=("Connector", "a.b"),
    )
    server.start()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=10, headers=headers) as client:
            yield client
    finally:
        server.stop(10)


@pytest.fixture(scope="module")
def shared() -> FakeVerbs:
    return FakeVerbs()


@pytest.fixture
def verbs(shared: FakeVerbs) -> FakeVerbs:
    shared.reset()
    return shared


@pytest.fixture(scope="module")
def loopback(shared: FakeVerbs) -> Iterator[httpx.Client]:
    with serving("127.0.0.1:0", shared) as client:
        yield client


@pytest.fixture(scope="module")
def everywhere(shared: FakeVerbs) -> Iterator[httpx.Client]:
    with serving("0.0.0.0:0", shared) as client:
        yield client


@pytest.mark.parametrize("host", OURS)
def test_names_of_ours_are_known_with_and_without_a_port(loopback: httpx.Client, verbs: FakeVerbs, host: str) -> None:
    for named in (host, f"{host}:9464"):
        assert loopback.get("/livez", headers={"Host": named}).status_code == 200
        assert loopback.post("/pause", headers={"Host": named}).status_code == 202
    assert len(verbs.calls) == 2


@pytest.mark.parametrize("host", UNKNOWN)
def test_on_a_loopback_address_every_request_under_an_unknown_host_is_refused(
    loopback: httpx.Client, verbs: FakeVerbs, host: str
) -> None:
    for path in READS:
        is_problem(loopback.get(path, headers={"Host": host}), 421, "Misdirected", "CONNECTOR_ADMIN_HOSTS", path)
    for method, path in CHANGES:
        answer = loopback.request(method, path, headers={"Host": host})
        is_problem(answer, 421, "Misdirected", "none of this server's names", path)
    assert verbs.calls == []


@pytest.mark.parametrize("host", UNKNOWN)
def test_on_other_addresses_probes_come_by_any_name_and_changes_do_not(
    everywhere: httpx.Client, verbs: FakeVerbs, host: str
) -> None:
    for path in READS:
        assert everywhere.get(path, headers={"Host": host}).status_code == 200
        assert everywhere.head(path, headers={"Host": host}).status_code == 200
    for method, path in CHANGES:
        is_problem(everywhere.request(method, path, headers={"Host": host}), 421, "Misdirected", "none of", path)
    assert {call[0] for call in verbs.calls} == {"params"}


def test_the_name_of_the_address_itself_is_known(verbs: FakeVerbs, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **named: real("127.0.0.1" if host == "box" else host, *more, **named)
    )
    with serving("box:0", verbs) as client:
        assert client.post("/pause", headers={"Host": "box"}).status_code == 202
        assert client.get("/livez", headers={"Host": "box.example"}).status_code == 421


def _raw(client: httpx.Client, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=10) as made:
        made.sendall(request)
        return b"".join(iter(lambda: made.recv(65536), b""))


def test_a_request_without_a_host_may_read_and_not_change(loopback: httpx.Client, verbs: FakeVerbs) -> None:
    assert _raw(loopback, b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert _raw(loopback, b"HEAD /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    change = f"POST /pause HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    answer = _raw(loopback, change)
    assert answer.startswith(b"HTTP/1.1 421 ")
    assert b"names no host" in answer
    assert _raw(loopback, b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert verbs.calls == []


@pytest.mark.parametrize("fixture", ["loopback", "everywhere"])
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "http://localhost:9464.evil.example"]
)
def test_a_change_that_comes_from_a_page_of_another_origin_is_refused(
    fixture: str, origin: str, verbs: FakeVerbs, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue(fixture)
    headers = {"Host": "localhost:9464", "Origin": origin}
    for method, path in CHANGES:
        answer = client.request(method, path, headers=headers)
        is_problem(answer, 403, "Forbidden", f"comes from a page of {origin}", path)
    assert verbs.calls == []
    assert client.get("/status", headers=headers).status_code == 200
    assert client.post("/pause", headers={**headers, "Origin": "http://LOCALHOST:9464"}).status_code == 202


def test_a_browser_that_asks_first_is_not_told_that_it_may(loopback: httpx.Client) -> None:
    asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for headers in (asks, {}):
        answer = loopback.options("/pause", headers=headers)
        assert answer.status_code == (403 if headers else 405)
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_who_was_refused_and_why_is_logged(loopback: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    loopback.get("/status", headers={"Host": "evil.example"})
    loopback.post("/pause", headers={"Origin": "https://evil.example"})
    first, second = verb_lines(caplog, "admin_request_refused")
    assert (first["request"], first["client"], first["reason"]) == (
        "GET /status",
        "127.0.0.1",
        "unknown host evil.example",
    )
    assert (second["request"], second["reason"]) == ("POST /pause", "origin https://evil.example")
