"""Verbs change something: nobody does without the token, what is slow delays no probe, and each answer says why."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from connector.admin import arguments
from connector.admin import verbs as verbs_module
from connector.admin.server import AdminServer
from connector.api.errors import ConfigError, TransientError
from connector.api.intents import EVERYTHING, Scope
from connector.telemetry.metrics import Metrics
from tests.support.admin import STATUS, TOKEN, FakeVerbs, is_problem, verb_lines
from tests.support.engine import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

VERBS: list[tuple[str, str, Any]] = [
    ("GET", "/params", None),
    ("PUT", "/params/rate", 5),
    ("DELETE", "/params/rate", None),
    ("POST", "/reload", {"operator_id": "sink"}),
    ("POST", "/pause", None),
    ("POST", "/resume", None),
    ("POST", "/stop", None),
    ("POST", "/loglevel", {"level": "debug"}),
]


def make_server(verbs: FakeVerbs | None, token: str | None) -> AdminServer:
    return AdminServer(
        "127.0.0.1:0",
        status=lambda: STATUS,
        metrics=Metrics(),
        config_view=dict[str, str],
        verbs=verbs,
        token=token,
    )


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[AdminServer, FakeVerbs]]:
    before, verbs = set(threading.enumerate()), FakeVerbs()
    made = make_server(verbs, TOKEN)
    made.start()
    yield made, verbs
    made.stop(10)
    assert set(threading.enumerate()) <= before


@pytest.fixture
def verbs(served: tuple[AdminServer, FakeVerbs]) -> FakeVerbs:
    served[1].reset()
    return served[1]


@pytest.fixture
def server(served: tuple[AdminServer, FakeVerbs], verbs: FakeVerbs) -> AdminServer:
    return served[0]


@pytest.fixture
def client(server: AdminServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=10, headers=headers) as made:
        yield made


def test_each_verb_does_what_it_says(client: httpx.Client, verbs: FakeVerbs) -> None:
    answers = [client.request(method, path, json=body) for method, path, body in VERBS]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 202, 202, 202, 202, 200]
    assert answers[0].json() == {"rate": 5, "api_key": "***"}
    assert all(answer.headers["cache-control"] == "no-store" for answer in answers)
    assert all(answer.headers["content-type"] == "application/json" for answer in answers)
    assert answers[1].json() == {
        "changed": True,
        "detail": "The parameter rate is stored and on its way to the sink.",
        "before": {"rate": 5},
        "after": {"rate": 6},
    }
    assert all(answer.json()["changed"] and answer.json()["detail"] for answer in answers[1:])
    assert verbs.calls == [
        ("params",),
        ("set_param", "rate", 5),
        ("delete_param", "rate"),
        ("reload", "sink"),
        ("pause", EVERYTHING),
        ("resume", EVERYTHING),
        ("stop",),
        ("set_log_level", "debug"),
    ]


@pytest.mark.parametrize("authorization", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer \xff"])
def test_without_the_token_nothing_happens_whatever_the_body(
    server: AdminServer, verbs: FakeVerbs, authorization: str | None
) -> None:
    headers = {} if authorization is None else {b"Authorization": authorization.encode("latin-1")}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers) as client:
        for method, path, body in VERBS:
            answer = client.request(method, path, json=body)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            is_problem(answer, 401, "Unauthorized", "CONNECTOR_ADMIN_TOKEN", path)
            assert TOKEN not in answer.text
    assert verbs.calls == []


@pytest.mark.parametrize(("has_verbs", "token"), [(True, None), (False, TOKEN), (False, None)])
def test_without_a_token_in_the_settings_the_verbs_are_off_and_say_so(has_verbs: bool, token: str | None) -> None:
    verbs = FakeVerbs()
    server = make_server(verbs if has_verbs else None, token)
    server.start()
    headers = {"Authorization": f"Bearer {token}"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers) as client:
            for method, path, body in VERBS:
                answer = client.request(method, path, json=body)
                is_problem(answer, 404, "Not Found", "CONNECTOR_ADMIN_TOKEN is not set", path)
            assert client.get("/livez").status_code == 200
    finally:
        server.stop(10)
    assert verbs.calls == []


def test_the_scheme_is_read_without_regard_to_case(client: httpx.Client) -> None:
    assert client.post("/pause", headers={"Authorization": f"bEARER {TOKEN}"}).status_code == 202


@pytest.mark.parametrize("value", [None, True, 1.5, "text", [1, {"a": None}], {"deep": [True]}])
def test_a_parameter_may_have_any_json_value(client: httpx.Client, verbs: FakeVerbs, value: Any) -> None:
    assert client.put("/params/a%20key", content=json.dumps(value)).status_code == 200
    assert verbs.calls == [("set_param", "a key", value)]


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/reload", b"", 400),
        ("/reload", b"{half", 400),
        ("/reload", b"[]", 422),
        ("/reload", b"{}", 422),
        ("/reload", b'{"operator_id": 5}', 422),
        ("/reload", b'{"operator_id": "sink", "more": 1}', 422),
        ("/loglevel", b'{"operator_id": "sink"}', 422),
        ("/loglevel", b" " * (2**20 + 1), 413),
        ("/loglevel?level=debug", b'{"level": "debug"}', 400),
        ("/stop?now", b"", 400),
    ],
)
def test_a_body_that_cannot_be_meant_is_refused(
    client: httpx.Client, verbs: FakeVerbs, path: str, body: bytes, code: int
) -> None:
    answer = client.post(path, content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (code, "application/problem+json")
    assert verbs.calls == []


def test_reloading_everything_is_refused_with_a_warning(
    client: httpx.Client, verbs: FakeVerbs, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.post("/reload", json={"operator_id": None})
    assert (answer.status_code, verbs.calls) == (422, [])
    assert "null, which would mean everything" in answer.text
    [warning] = [record for record in caplog.records if isinstance(record.msg, dict) and "null" in str(record.msg)]
    assert warning.levelname == "WARNING"


@pytest.mark.parametrize(
    ("failure", "code", "title", "text"),
    [
        (ConfigError("The sink has no parameter 'rat'."), 422, "Unprocessable", "The sink has no parameter 'rat'."),
        (TransientError("disk full"), 503, "Service Unavailable", "disk full"),
        (RuntimeError("our bug"), 500, "Internal Server Error", "This failed; the log has the reason."),
    ],
)
def test_a_verb_that_is_refused_or_fails_says_why_and_the_next_is_served(
    client: httpx.Client, verbs: FakeVerbs, *, failure: Exception, code: int, title: str, text: str
) -> None:
    verbs.failure = failure
    for method, path, body in VERBS:
        answer = client.request(method, path, json=body)
        is_problem(answer, code, title, text, path)
        assert "our bug" not in answer.text
    verbs.failure = None
    assert all(client.request(method, path, json=body).is_success for method, path, body in VERBS)


def test_what_is_slow_delays_neither_a_probe_nor_a_stop(client: httpx.Client, verbs: FakeVerbs) -> None:
    verbs.gate = threading.Event()
    answers: list[int] = []
    waiting = threading.Thread(
        target=lambda: answers.append(client.post("/reload", json={"operator_id": "sink"}).status_code)
    )
    waiting.start()
    deadline = threading.Event()
    while not verbs.calls:
        assert not deadline.wait(0.01)
    gate, verbs.gate = verbs.gate, None
    with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=10) as other:
        assert other.get("/livez").status_code == 200
        assert other.post("/stop").status_code == 202
    assert answers == []
    gate.set()
    waiting.join(10)
    assert answers == [202]
    assert verbs.threads == {"reload": "verbs", "stop": "admin"}


def test_what_changes_nothing_is_answered_with_200_and_says_so(client: httpx.Client, verbs: FakeVerbs) -> None:
    verbs.is_change = False
    for method, path, body in VERBS[1:]:
        answer = client.request(method, path, json=body)
        assert answer.status_code == 200
        assert (answer.json()["changed"], answer.json()["detail"]) == (
            False,
            "Nothing has changed: it was so already.",
        )


def test_each_change_is_one_line_with_what_was_what_is_and_where_it_came_from(
    client: httpx.Client, verbs: FakeVerbs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for method, path, body in VERBS:
        client.request(method, path, json=body)
    verbs.is_change = False
    client.post("/pause")
    lines = verb_lines(caplog)
    assert [line["request"] for line in lines] == [
        *(f"{method} {path}" for method, path, _ in VERBS[1:]),
        "POST /pause",
    ]
    assert [line["changed"] for line in lines] == [True] * (len(VERBS) - 1) + [False]
    assert {line["client"] for line in lines} == {"127.0.0.1"}
    assert all((line["before"], line["after"]) == ({"rate": 5}, {"rate": 6}) for line in lines)
    assert TOKEN not in str([record.msg for record in caplog.records])


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize(
    ("query", "body", "scope"),
    [
        ("", None, EVERYTHING),
        ("", {}, EVERYTHING),
        ("?topic=orders", None, Scope("orders")),
        ("?topic=orders&partition=3", None, Scope("orders", 3)),
        ("?partition=0&topic=a.b_c-d", None, Scope("a.b_c-d", 0)),
        ("", {"topic": "orders"}, Scope("orders")),
        ("", {"topic": "orders", "partition": 0}, Scope("orders", 0)),
    ],
)
def test_everything_a_topic_or_a_partition_is_paused_and_resumed(
    client: httpx.Client, verbs: FakeVerbs, *, verb: str, query: str, body: Any, scope: Scope
) -> None:
    answer = client.post(f"/{verb}{query}") if body is None else client.post(f"/{verb}{query}", json=body)
    assert answer.status_code == 202
    assert str(scope) in answer.json()["detail"]
    assert verbs.calls == [(verb, scope)]


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize(
    ("query", "body", "code", "words"),
    [
        ("?partition=3", None, 422, "A topic has to be named"),
        ("?topic=", None, 422, "A topic has to be named"),
        ("?topic=&partition=3", None, 422, "A topic has to be named"),
        ("?topic=a&partition=", None, 422, "partition= is no partition. Send a whole number from 0 on."),
        ("?topic=a&partition=x", None, 422, "partition=x is no partition"),
        ("?topic=a&partition=-1", None, 422, "partition=-1 is no partition"),
        ("?topic=a&partition=1.0", None, 422, "partition=1.0 is no partition"),
        ("?topic=a&partition=\u0663", None, 422, "is no partition"),
        ("?topic=a&partition=2147483648", None, 422, "is no partition"),
        ("?topic=a&partitions=1", None, 400, "/%s has no query parameter 'partitions'. It takes topic and partition."),
        ("?topic=a&topic=b", None, 400, "The query parameter topic comes twice."),
        ("?topic=a", {"partition": 1}, 422, "by the query or in the body, not by both"),
        ("", {"partition": 1}, 422, "A topic has to be named"),
        ("", {"topic": None}, 422, "A topic has to be named"),
        ("", {"topic": "a", "partition": None}, 422, "partition=None is no partition"),
        ("", {"topic": "a", "partition": True}, 422, "partition=True is no partition"),
        ("", {"topic": "a", "partition": "1"}, 422, "partition=1 is no partition"),
        ("", {"topic": "a", "partition": 1.0}, 422, "partition=1.0 is no partition"),
        ("", {"topic": ["a"]}, 422, "A topic has to be named"),
        ("", {"topics": "a"}, 422, "The body must be"),
        ("", ["a"], 422, "The body must be"),
        ("", b"null", 422, "The body must be"),
        ("", b"{", 400, "The body is not JSON"),
    ],
)
def test_a_scope_that_cannot_be_meant_pauses_nothing_and_says_what_can(
    client: httpx.Client, verbs: FakeVerbs, *, verb: str, query: str, body: Any, code: int, words: str
) -> None:
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(f"/{verb}{query}", content=content)
    title = {400: "Bad Request", 422: "Unprocessable"}[code]
    is_problem(answer, code, title, words.replace("%s", verb), f"/{verb}")
    assert verbs.calls == []


def test_a_body_that_does_not_tell_its_length_is_bounded_too(client: httpx.Client, verbs: FakeVerbs) -> None:
    def chunks(count: int) -> Iterator[bytes]:
        yield b'{"level": "debug"}'
        yield from [b" " * 1024] * count

    assert client.post("/loglevel", content=chunks(1000)).status_code == 200
    answer = client.post("/loglevel", content=chunks(1024))
    is_problem(answer, 413, "Too Large", "larger than 1048576 bytes", "/loglevel")
    assert verbs.calls == [("set_log_level", "debug")]
    assert client.get("/livez").status_code == 200


@contextmanager
def connected(server: AdminServer, *parts: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as made:
        made.sendall(b"".join(parts))
        yield made


def received(connection: socket.socket) -> bytes:
    """Return everything until the server closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


HEAD = f"POST /pause HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()


@pytest.mark.parametrize("length", [b"Content-Length: 100\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_body_that_does_not_come_is_given_up_and_pauses_nothing(
    server: AdminServer, client: httpx.Client, verbs: FakeVerbs, monkeypatch: pytest.MonkeyPatch, length: bytes
) -> None:
    monkeypatch.setattr(arguments, "_BODY_SECONDS", 0.2)
    with connected(server, HEAD, length) as connection:
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in answer
    assert b"The body did not come within 0.2s." in answer
    assert verbs.calls == []
    assert client.get("/livez").status_code == 200


def test_a_client_that_leaves_in_the_middle_of_its_body_changes_nothing(
    server: AdminServer, client: httpx.Client, verbs: FakeVerbs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with connected(server, HEAD, b"Content-Length: 100\r\n\r\n", b'{"topic":'):
        pass
    eventually(lambda: bool(verb_lines(caplog, "admin_request_refused")))
    [line] = verb_lines(caplog, "admin_request_refused")
    assert line["reason"] == "the client has gone"
    assert [each.levelname for each in caplog.records if "the client has gone" in str(each.msg)] == ["INFO"]
    assert verbs.calls == []
    assert client.post("/pause").status_code == 202


def test_a_verb_that_hangs_is_answered_in_time_those_behind_it_too_and_its_end_is_told(
    client: httpx.Client, verbs: FakeVerbs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(verbs_module, "_SLOW_SECONDS", 0.2)
    verbs.gate = threading.Event()
    hangs = client.post("/reload", json={"operator_id": "sink"})
    is_problem(hangs, 504, "Gateway Timeout", "still under way after 0.2s, and goes on", "/reload")
    waits = client.put("/params/rate", json=5)
    is_problem(waits, 503, "Service Unavailable", "this one was not begun", "/params/rate")
    gate, verbs.gate = verbs.gate, None
    assert client.post("/pause").status_code == 202
    gate.set()
    eventually(lambda: "POST /reload" in [line["request"] for line in verb_lines(caplog)])
    assert client.put("/params/rate", json=6).status_code == 200
    assert verbs.calls == [("reload", "sink"), ("pause", EVERYTHING), ("set_param", "rate", 6)]


def test_a_verb_that_hangs_and_then_fails_is_told_too(
    client: httpx.Client, verbs: FakeVerbs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verbs_module, "_SLOW_SECONDS", 0.2)
    verbs.gate = threading.Event()
    assert client.post("/reload", json={"operator_id": "sink"}).status_code == 504
    verbs.failure = ConfigError("half saved")
    verbs.gate.set()
    eventually(lambda: bool(verb_lines(caplog, "admin_verb_failed")))
    [line] = verb_lines(caplog, "admin_verb_failed")
    assert (line["request"], line["error"]) == ("POST /reload", "ConfigError: half saved")


def test_a_server_with_a_verb_that_hangs_can_be_stopped(verbs: FakeVerbs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs_module, "_SLOW_SECONDS", 0.2)
    server = make_server(verbs, TOKEN)
    server.start()
    verbs.gate = threading.Event()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"http://127.0.0.1:{server.port}/reload"
    assert httpx.post(url, json={"operator_id": "sink"}, headers=headers).status_code == 504
    server.stop(0.5)
    verbs.gate.set()
    eventually(lambda: not server._verbs._thread.is_alive())


def test_head_is_answered_as_get_and_what_a_path_does_not_take_is_told(client: httpx.Client, verbs: FakeVerbs) -> None:
    head = client.head("/params")
    assert (head.status_code, head.content, head.headers["content-type"]) == (200, b"", "application/json")
    refused = [client.get("/pause"), client.post("/params/rate"), client.patch("/params")]
    assert [answer.status_code for answer in refused] == [405, 405, 405]
    assert [answer.headers["allow"] for answer in refused] == ["POST", "DELETE, PUT", "GET, HEAD"]
    assert verbs.calls == [("params",)]
