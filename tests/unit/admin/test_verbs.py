"""Verbs change something: nobody does without the token, what is slow delays no probe, and each answer says why."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from connector.admin.server import AdminServer
from connector.api.errors import ConfigError, TransientError
from connector.telemetry.metrics import Metrics
from connector.telemetry.status import RunState, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOKEN = "verb-token-81"
STATUS = Status(RunState.RUNNING, is_ready=True, reason="", group_id="g", group_protocol="consumer", epoch=1)
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


@dataclass
class FakeVerbs:
    """Notes what was called, on which thread; raises `failure`, waits for `gate`."""

    calls: list[tuple[str, ...]] = field(default_factory=list)
    threads: dict[str, str] = field(default_factory=dict)
    failure: Exception | None = None
    gate: threading.Event | None = None

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        self.threads[call[0]] = threading.current_thread().name
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure

    def params(self) -> Mapping[str, Any]:
        self._note("params")
        return {"rate": 5, "api_key": "***"}

    def set_param(self, key: str, value: Any) -> None:
        self._note("set_param", key, value)

    def delete_param(self, key: str) -> None:
        self._note("delete_param", key)

    def reload(self, operator_id: str) -> None:
        self._note("reload", operator_id)

    def pause(self) -> None:
        self._note("pause")

    def resume(self) -> None:
        self._note("resume")

    def stop(self) -> None:
        self._note("stop")

    def set_log_level(self, level: str) -> None:
        self._note("set_log_level", level)


def make_server(verbs: FakeVerbs | None, token: str | None) -> AdminServer:
    return AdminServer(
        "127.0.0.1:0",
        status=lambda: STATUS,
        metrics=Metrics(),
        config_view=dict[str, str],
        verbs=verbs,
        token=token,
    )


@pytest.fixture
def verbs() -> FakeVerbs:
    return FakeVerbs()


@pytest.fixture
def server(verbs: FakeVerbs) -> Iterator[AdminServer]:
    before = set(threading.enumerate())
    made = make_server(verbs, TOKEN)
    made.start()
    yield made
    made.stop(10)
    assert set(threading.enumerate()) <= before


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
    assert verbs.calls == [
        ("params",),
        ("set_param", "rate", 5),
        ("delete_param", "rate"),
        ("reload", "sink"),
        ("pause",),
        ("resume",),
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
                assert answer.status_code == 404
                assert "CONNECTOR_ADMIN_TOKEN is not set" in answer.text
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
    ],
)
def test_a_body_that_cannot_be_meant_is_refused(
    client: httpx.Client, verbs: FakeVerbs, path: str, body: bytes, code: int
) -> None:
    assert client.post(path, content=body).status_code == code
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
    ("failure", "code", "text"),
    [
        (ConfigError("The sink has no parameter 'rat'."), 422, "The sink has no parameter 'rat'."),
        (TransientError("disk full"), 503, "disk full"),
        (RuntimeError("our bug"), 500, "This failed; the log has the reason."),
    ],
)
def test_a_verb_that_is_refused_or_fails_says_why_and_the_next_is_served(
    client: httpx.Client, verbs: FakeVerbs, failure: Exception, code: int, text: str
) -> None:
    verbs.failure = failure
    for method, path, body in VERBS:
        answer = client.request(method, path, json=body)
        assert (answer.status_code, answer.text) == (code, f"{text}\n")
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


def test_no_value_of_a_parameter_is_logged(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    assert client.put("/params/rate", json="value-82").status_code == 200
    assert "value-82" not in "".join(
        str(record.msg) for record in caplog.records if record.name.startswith("connector")
    )
