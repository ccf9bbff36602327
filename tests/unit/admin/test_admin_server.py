from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import httpx
import pytest

from connector.admin.health import Limits
from connector.admin.server import AdminServer
from connector.admin.verbs import PATHS as VERB_PATHS
from connector.api.errors import ConfigError
from connector.api.intents import Intent
from connector.telemetry import masking
from connector.telemetry.metrics import Metrics
from connector.telemetry.status import LaneState, LaneStatus, PipelineStatus, RunState, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PATHS = ["/", "/config", "/livez", "/metrics", "/readyz", "/status"]

LANE = LaneStatus(
    lane=3,
    topic="orders",
    partition=0,
    pipeline=0,
    state=LaneState.FLOWING,
    watermark=12,
    committed=10,
    end_offset=12,
    lag=0,
    lag_age_seconds=0.5,
    held_bytes=0,
    sink_bytes=0,
    oldest_held_seconds=None,
    watermark_age_seconds=None,
)


def status_now() -> Status:
    return Status(
        state=RunState.RUNNING,
        is_ready=True,
        reason="",
        group_id="group",
        group_protocol="consumer",
        epoch=1,
        lanes=(LANE, replace(LANE, lane=4, partition=1, lag=None, lag_age_seconds=None, committed=None)),
        pipelines=(PipelineStatus(pipeline=0, lanes=2, is_open=True),),
        controller_seen=time.monotonic(),
        source_seen=time.monotonic(),
    )


@dataclass
class Run:
    """A served run whose status a test replaces."""

    snapshot: Status = field(default_factory=status_now)
    settings: Mapping[str, str] = field(default_factory=lambda: {"CONNECTOR_GROUP_ID": "group"})
    failure: Exception | None = None
    metrics: Metrics = field(default_factory=Metrics)

    def status(self) -> Status:
        if self.failure:
            raise self.failure
        return self.snapshot


@contextlib.contextmanager
def serving(run: Run, address: str = "127.0.0.1:0") -> Iterator[AdminServer]:
    server = AdminServer(
        address, status=run.status, metrics=run.metrics, config_view=lambda: run.settings, limits=Limits(20.0, 30.0)
    )
    before = set(threading.enumerate())
    server.start()
    try:
        yield server
    finally:
        server.stop(10)
    assert set(threading.enumerate()) <= before


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Run, httpx.Client]]:
    run = Run()
    with serving(run) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=10) as client:
        yield run, client


@pytest.fixture
def run(served: tuple[Run, httpx.Client]) -> Run:
    served[0].snapshot, served[0].failure = status_now(), None
    return served[0]


@pytest.fixture
def client(served: tuple[Run, httpx.Client], run: Run) -> httpx.Client:
    return served[1]


def test_metrics_are_served_in_the_form_that_is_asked_for(run: Run, client: httpx.Client) -> None:
    run.metrics.consumed_records.labels("orders").inc(5)
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert 'connector_consumed_records_total{topic="orders"} 5.0' in plain.text
    openmetrics = client.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


def test_live_and_ready_say_why_not(run: Run, client: httpx.Client) -> None:
    assert (client.get("/livez").status_code, client.get("/readyz").status_code) == (200, 200)
    run.snapshot = replace(run.snapshot, is_ready=False, reason="the sink is not open: connection refused")
    live, ready = client.get("/livez"), client.get("/readyz")
    assert live.status_code == 200
    assert (ready.status_code, ready.text) == (503, "not ready: the sink is not open: connection refused\n")


def test_a_process_that_is_not_live_is_not_ready_whatever_its_last_snapshot_says(
    run: Run, client: httpx.Client
) -> None:
    run.snapshot = replace(run.snapshot, controller_seen=time.monotonic() - 1000)
    for path in ("/livez", "/readyz"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert answer.text.startswith("not live: the controller was last seen 1000s ago")


def test_status_tells_absent_from_zero(run: Run, client: httpx.Client) -> None:
    document = client.get("/status").json()
    measured, unmeasured = document["lanes"]
    assert (measured["lag"], measured["committed"], measured["state"]) == (0, 10, "flowing")
    assert (unmeasured["lag"], unmeasured["lag_age_seconds"], unmeasured["committed"]) == (None, None, None)
    assert (document["state"], document["is_ready"], document["is_live"]) == ("running", True, True)
    assert 0 <= document["controller_silent_seconds"] < 30
    run.snapshot = replace(run.snapshot, source_seen=0.0)
    assert client.get("/status").json()["source_silent_seconds"] is None


def test_no_secret_is_served(run: Run, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_secrets", type(masking._secrets)())
    masking.register_secret("s3cret-value")
    run.settings = {"CONNECTOR_SINK_DSN": "postgres://u:s3cret-value@h", "CONNECTOR_ADMIN_TOKEN": "x", "OTHER": "y"}
    error = "password s3cret-value refused"
    run.snapshot = replace(run.snapshot, is_ready=False, reason=error, last_error=error)
    assert client.get("/config").json() == {
        "CONNECTOR_SINK_DSN": "postgres://u:***@h",
        "CONNECTOR_ADMIN_TOKEN": "***",
        "OTHER": "y",
    }
    assert client.get("/status").json()["last_error"] == "password *** refused"
    assert client.get("/readyz").text == "not ready: password *** refused\n"


def test_the_status_shows_what_is_held_back(run: Run, client: httpx.Client) -> None:
    held_back = replace(LANE, state=LaneState.HELD_BACK, reason="paused by an operator")
    run.snapshot = replace(run.snapshot, lanes=(held_back,), intents=(Intent("orders", 0, True),))
    document = client.get("/status").json()
    assert document["intents"] == [{"topic": "orders", "partition": 0, "is_held_back": True}]
    assert (document["lanes"][0]["state"], document["lanes"][0]["reason"]) == ("held_back", "paused by an operator")


def test_an_unknown_path_lists_the_known_ones(client: httpx.Client) -> None:
    answer = client.get("/health")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "No such path.",
        "instance": "/health",
        "paths": [*PATHS, *VERB_PATHS],
    }


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_method_is_refused_and_head_answers_like_get(client: httpx.Client, path: str) -> None:
    refused = client.post(path)
    assert (refused.status_code, refused.headers["content-type"]) == (405, "application/problem+json")
    assert refused.headers["allow"] == "GET, HEAD"
    assert refused.json()["detail"] == "POST is not for this path; it takes GET, HEAD."
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.headers["content-type"]) == (get.status_code, get.headers["content-type"])
    assert head.content == b""
    assert "server" not in get.headers


def test_a_status_that_cannot_be_read_fails_its_request_only(run: Run, client: httpx.Client) -> None:
    run.failure = RuntimeError("no snapshot")
    for path, kind in (
        ("/livez", "text/plain; charset=utf-8"),
        ("/readyz", "text/plain; charset=utf-8"),
        ("/status", "application/problem+json"),
    ):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (500, kind)
    assert client.get("/metrics").status_code == 200
    run.failure = None
    assert client.get("/livez").status_code == 200


def test_a_scrape_that_fails_leaves_the_server_running(
    run: Run, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_accept: str) -> tuple[bytes, str]:
        raise RuntimeError("broken collector")

    with monkeypatch.context() as broken:
        broken.setattr(run.metrics, "render", fail)
        assert client.get("/metrics").status_code == 500
    assert client.get("/metrics").status_code == 200


def test_the_page_needs_nothing_from_elsewhere_and_writes_what_it_gets_as_text(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", page.text)
    assert "innerHTML" not in page.text
    assert "prefers-color-scheme: dark" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_requests_run_on_the_one_admin_thread(run: Run, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def status() -> Status:
        seen.append(threading.current_thread().name)
        return run.snapshot

    with serving(run) as server:
        monkeypatch.setattr(server, "_status", status)
        for path in ("/livez", "/status"):
            httpx.get(f"http://127.0.0.1:{server.port}{path}")
    assert seen == ["admin", "admin"]


def test_an_address_in_use_is_refused_with_the_way_out() -> None:
    with serving(Run()) as server, pytest.raises(ConfigError, match=r"Address already in use\. Set it to a free port"):
        AdminServer(
            f"127.0.0.1:{server.port}", status=status_now, metrics=Metrics(), config_view=dict[str, str]
        ).start()


@pytest.mark.parametrize(
    "address", ["", "9464", ":9464", "127.0.0.1", "127.0.0.1:", "localhost:x", "h:70000", "::1:9464", "[::1]", "[]:1"]
)
def test_a_malformed_address_is_refused_with_examples(address: str) -> None:
    server = AdminServer(address, status=status_now, metrics=Metrics(), config_view=dict[str, str])
    with pytest.raises(ConfigError, match=r"Write host:port, as in 127\.0\.0\.1:9464"):
        server.start()


def test_an_address_of_another_machine_is_refused() -> None:
    server = AdminServer("192.0.2.1:9464", status=status_now, metrics=Metrics(), config_view=dict[str, str])
    with pytest.raises(ConfigError, match="cannot be listened on"):
        server.start()


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")
def test_an_ipv6_address_works() -> None:
    with serving(Run(), "[::1]:0") as server:
        assert httpx.get(f"http://[::1]:{server.port}/livez").status_code == 200


def test_a_port_that_a_stopped_run_has_left_can_be_taken_at_once_and_stop_may_come_twice() -> None:
    with serving(Run()) as server, httpx.Client() as client:
        assert client.get(f"http://127.0.0.1:{server.port}/livez").status_code == 200
        server.stop(10)
        server.stop(10)
        with serving(Run(), f"127.0.0.1:{server.port}") as next_one:
            assert httpx.get(f"http://127.0.0.1:{next_one.port}/livez").status_code == 200


def test_a_client_that_never_finishes_its_request_does_not_hold_up_the_stop() -> None:
    with serving(Run()) as server, socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        assert httpx.get(f"http://127.0.0.1:{server.port}/livez").status_code == 200  # so the other was accepted
        started = time.monotonic()
        server.stop(10)
        assert time.monotonic() - started < 5


def test_a_server_that_was_never_started_can_be_stopped() -> None:
    AdminServer("127.0.0.1:0", status=status_now, metrics=Metrics(), config_view=dict[str, str]).stop(1)
