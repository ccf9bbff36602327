"""`connector healthcheck`: one question to a running connector, one line, exit 0 or 1."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from connector.admin.server import AdminServer
from connector.cli import healthcheck, main
from connector.config.address import ADMIN_ADDRESS
from connector.config.settings import ConnectorSettings
from connector.telemetry.metrics import Metrics
from connector.telemetry.status import RunState, Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Answer(BaseHTTPRequestHandler):
    """Says which path was asked for; 503 when that begins with /not."""

    def do_GET(self) -> None:
        self.send_response(503 if self.path.startswith("/not") else 200)
        self.end_headers()
        self.wfile.write(f"asked for {self.path}\nmore\n".encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("CONNECTOR_ADMIN_ADDRESS", raising=False)
    return monkeypatch


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["healthcheck", *arguments])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("\n") == 1
    return int(ended.value.code or 0), captured.out.rstrip("\n")


def test_a_running_connector_says_itself_whether_it_lives_and_consumes(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.monotonic()
    status = Status(
        state=RunState.RUNNING,
        is_ready=False,
        reason="the sink is not open",
        group_id="group",
        group_protocol="consumer",
        epoch=1,
        lanes=(),
        pipelines=(),
        controller_seen=now,
        source_seen=now,
    )
    server = AdminServer("127.0.0.1:0", status=lambda: status, metrics=Metrics(), config_view=dict)
    server.start()
    try:
        environment.setenv("CONNECTOR_ADMIN_ADDRESS", f"127.0.0.1:{server.port}")
        assert check(capsys) == (0, "healthy: live")
        assert check(capsys, "--ready") == (1, "unhealthy: not ready: the sink is not open")
    finally:
        server.stop(10)


def test_the_address_is_read_as_any_setting_is(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, port: int
) -> None:
    (tmp_path / "address").write_text(f"127.0.0.1:{port}\n")
    (tmp_path / "prod.env").write_text(f"CONNECTOR_ADMIN_ADDRESS='127.0.0.1:{port}'\n")
    expected = (0, "healthy: asked for /livez")
    assert check(capsys, "--env-file", str(tmp_path / "prod.env")) == expected
    environment.setenv("CONNECTOR_ADMIN_ADDRESS_FILE", str(tmp_path / "address"))
    assert check(capsys) == expected
    environment.setenv("CONNECTOR_ADMIN_ADDRESS", f"127.0.0.1:{port}")
    assert check(capsys) == expected


def test_other_settings_may_be_wrong(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, port: int
) -> None:
    environment.setenv("CONNECTOR_PIPELINES", "x")
    environment.setenv("CONNECTOR_NO_SUCH_SETTING", "x")
    environment.setenv("CONNECTOR_GROUP_ID_FILE", "/there/is/no/such/file")
    (tmp_path / "broken.env").write_text(f"no variable\nCONNECTOR_ADMIN_ADDRESS=127.0.0.1:{port}\n")
    assert check(capsys, "--env-file", str(tmp_path / "broken.env"))[0] == 0


def test_the_default_is_that_of_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert ConnectorSettings.model_fields["admin_address"].default == ADMIN_ADDRESS
    asked: list[object] = []

    def ask(address: object, _path: str) -> str:
        asked.append(address)
        return "live"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(healthcheck, "_ask", ask)
        assert check(capsys) == (0, "healthy: live")
    assert asked == [ADMIN_ADDRESS]


@pytest.mark.parametrize(
    ("listening", "asked"),
    [
        ("0.0.0.0:{}", "127.0.0.1:{}"),
        ("[::]:{}", "[::1]:{}"),
        ("[::1]:{}", "[::1]:{}"),
        ("localhost:{}", "localhost:{}"),
    ],
)
def test_every_address_of_the_machine_includes_the_loopback_one(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], closed_port: int, listening: str, asked: str
) -> None:
    environment.setenv("CONNECTOR_ADMIN_ADDRESS", listening.format(closed_port))
    code, line = check(capsys)
    assert code == 1
    assert line.startswith(f"unhealthy: http://{asked.format(closed_port)}/livez: ")


def test_a_url_goes_before_the_configuration(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], closed_port: int, port: int
) -> None:
    environment.setenv("CONNECTOR_ADMIN_ADDRESS", f"127.0.0.1:{closed_port}")
    url = f"http://127.0.0.1:{port}"
    assert check(capsys, "--url", url) == (0, "healthy: asked for /livez")
    assert check(capsys, "--url", f"{url}/", "--ready") == (0, "healthy: asked for /readyz")
    assert check(capsys, "--url", f"{url}/metrics?x=1") == (0, "healthy: asked for /metrics?x=1")
    assert check(capsys, "--url", f"{url}/nothing") == (1, "unhealthy: asked for /nothing")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:0", "takes any free port"),
        ("nonsense", "is no address to listen on"),
    ],
)
def test_an_address_that_cannot_be_asked_is_unhealthy(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str, reason: str
) -> None:
    environment.setenv("CONNECTOR_ADMIN_ADDRESS", address)
    code, line = check(capsys)
    assert code == 1
    assert f"CONNECTOR_ADMIN_ADDRESS={address} {reason}" in line


@pytest.mark.parametrize("url", ["127.0.0.1:9464", "https://127.0.0.1:9464", "http://", "http://h:99999"])
def test_a_url_that_is_none_is_unhealthy(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, line = check(capsys, "--url", url)
    assert code == 1
    assert line.startswith(f"unhealthy: --url {url}")


def test_a_file_of_variables_that_cannot_be_read_is_unhealthy_since_it_may_hold_the_address(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, line = check(capsys, "--env-file", str(tmp_path / "missing.env"))
    assert code == 1
    assert line.endswith("missing.env cannot be read: No such file or directory.")


def test_a_server_that_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(healthcheck, "_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert check(capsys, "--url", url) == (1, f"unhealthy: {url}/livez: no answer within 0.1s")


def test_what_does_not_speak_http_is_unhealthy(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(4096)
                connection.sendall(b"\x15\x03\x01\x00\x02\n")

        thread = threading.Thread(target=babble)
        thread.start()
        code, line = check(capsys, "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert code == 1
    assert line.startswith("unhealthy: http://127.0.0.1:")


def test_it_imports_neither_the_client_nor_the_settings(port: int) -> None:
    code = (
        "import contextlib, io, sys\nfrom connector.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    main(['healthcheck', '--url', 'http://127.0.0.1:{port}'])\n"
        "heavy = ('confluent_kafka', 'connector.config.settings', 'prometheus_client', 'rich', 'sinks', 'structlog')\n"
        "print([name for name in heavy if name in sys.modules], 'connector.cli.healthcheck' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert printed.stdout == "[] True\n"
