"""The offline commands, as a user calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from connector import __version__
from connector.api.errors import FencedError
from connector.cli import main
from connector.config.settings import ConnectorSettings, environment_name

if TYPE_CHECKING:
    from pathlib import Path

REQUIRED = {"CONNECTOR_BOOTSTRAP_SERVERS": "b:9092", "CONNECTOR_GROUP_ID": "g", "CONNECTOR_TOPICS": "orders"}
SECRETS = {
    "CONNECTOR_KAFKA_SASL_PASSWORD": "secret-41",
    "CONNECTOR_KAFKA_SSL_KEY_PASSWORD": "secret-42",
    "CONNECTOR_KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET": "secret-43",
    "CONNECTOR_SINK": "postgres",
    "CONNECTOR_SINK_DSN": "postgresql://me:secret-44@db/records",
    "CONNECTOR_KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": "https://me:secret-45@issuer/token",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in REQUIRED.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def rows(text: str) -> dict[str, list[str]]:
    """The lines of `check` by their first word; of several the first."""
    return {line.split()[0]: line.split()[1:] for line in reversed(text.splitlines()) if line}


def test_check_shows_every_setting_with_its_value_and_origin(
    environment: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").write_text("7\n")
    (tmp_path / "prod.env").write_text("CONNECTOR_PIPELINES=2\n")
    environment.setenv("CONNECTOR_BATCH_ROWS_FILE", str(tmp_path / "rows"))
    assert exit_code("--env-file", str(tmp_path / "prod.env"), "check") == 0
    shown = rows(capsys.readouterr().out)
    for field in ConnectorSettings.model_fields:
        assert environment_name(field) in shown
    assert shown["CONNECTOR_GROUP_ID"] == ["g", "environment"]
    assert shown["CONNECTOR_BATCH_ROWS"] == ["7", str(tmp_path / "rows")]
    assert shown["CONNECTOR_PIPELINES"] == ["2", f"{tmp_path / 'prod.env'}:1"]
    assert shown["CONNECTOR_DRAIN_TIMEOUT"] == ["20s", "default"]
    assert shown["CONNECTOR_SINK_FORMAT"] == ["record", "default"]


def test_check_shows_the_clients_properties_and_who_decided_them(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("CONNECTOR_KAFKA_FETCH_WAIT_MAX_MS", "50")
    assert exit_code("check") == 0
    out = capsys.readouterr().out
    shown = rows(out)
    assert shown["group.protocol"] == ["consumer", "CONNECTOR_GROUP_PROTOCOL"]
    assert shown["enable.auto.commit"] == ["false", "fixed"]
    assert shown["fetch.queue.backoff.ms"] == ["2", "tuned", "default"]
    assert shown["fetch.wait.max.ms"] == ["50", "CONNECTOR_KAFKA_FETCH_WAIT_MAX_MS"]
    assert shown["fetch.max.bytes"][1] == "CONNECTOR_MEMORY_BUDGET"
    assert "gets classic, with group.protocol=classic, partition.assignment.strategy=cooperative-sticky" in out


def test_check_tells_what_may_surprise(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    environment.setenv("CONNECTOR_SHUTDOWN_TIMEOUT", "5s")
    assert exit_code("check") == 0
    assert "Note: CONNECTOR_SHUTDOWN_TIMEOUT=5s ends a shutdown" in capsys.readouterr().out


def test_problems_are_one_block_on_standard_error_and_exit_2(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("CONNECTOR_PIPELINES", "x")
    environment.setenv("CONNECTOR_TOPIC", "y")
    assert exit_code("check") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "connector: 2 problems in the configuration\n"
        "  - CONNECTOR_TOPIC: there is no such setting. Did you mean CONNECTOR_TOPICS? Correct or remove it.\n"
        "  - CONNECTOR_PIPELINES=x is no whole number. Write digits only.\n"
    )


@pytest.mark.parametrize("command", [("check",), ("config",), ("config", "--json")])
def test_no_secret_is_shown(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    for name, value in SECRETS.items():
        environment.setenv(name, value)
    assert exit_code(*command) == 0
    captured = capsys.readouterr()
    assert "CONNECTOR_KAFKA_SASL_PASSWORD" in captured.out
    assert "secret-4" not in captured.out + captured.err
    environment.setenv("CONNECTOR_PIPELINES", "x")
    assert exit_code(*command) == 2
    captured = capsys.readouterr()
    assert "secret-4" not in captured.out + captured.err


def test_the_printed_configuration_read_as_a_file_gives_itself(
    environment: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("CONNECTOR_STOP", "2026-03-01T00:00:00+01:00")
    environment.setenv("CONNECTOR_BATCH_LINGER", "1500ms")
    environment.setenv("CONNECTOR_GROUP_PROTOCOL", "classic")
    environment.setenv("CONNECTOR_KAFKA_CLIENT_ID", "a b")
    assert exit_code("config") == 0
    printed = capsys.readouterr().out
    for name in (*REQUIRED, "CONNECTOR_STOP", "CONNECTOR_BATCH_LINGER", "CONNECTOR_GROUP_PROTOCOL"):
        environment.delenv(name)
    environment.delenv("CONNECTOR_KAFKA_CLIENT_ID")
    (tmp_path / "printed.env").write_text(printed)
    assert exit_code("config", "--env-file", str(tmp_path / "printed.env")) == 0
    assert capsys.readouterr().out == printed


def test_the_configuration_as_json_has_settings_and_client_properties_with_their_origin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code("config", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"]["CONNECTOR_TOPICS"] == {"value": "orders", "from": "environment"}
    assert printed["client"]["auto.offset.reset"] == {"value": "error", "from": "fixed"}


def test_sinks_lists_every_installed_sink_with_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("sinks") == 0
    out = capsys.readouterr().out
    for name in ("file", "http", "null", "parquet", "postgres", "sqlite", "stdout"):
        assert f"{name} (sluiceway): " in out
    assert "CONNECTOR_SINK_DSN: secret text; required" in out
    assert "CONNECTOR_SINK_FORMAT: record, value; default record" in out
    assert "filter (sluiceway): " in out
    assert "CONNECTOR_TRANSFORM_FILTER_EXPRESSION: text; required" in out
    assert out.index("Sinks\n") < out.index("sqlite") < out.index("Transforms\n") < out.index("filter")


def test_sinks_shows_plugins_of_the_directory_and_the_reason_of_a_broken_one(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text('from connector import Sink\nclass Own(Sink):\n    """Mine."""\n')
    (tmp_path / "bad.py").write_text("import a_missing_module\n")
    environment.setenv("CONNECTOR_PLUGIN_DIR", str(tmp_path))
    assert exit_code("sinks") == 0
    out = capsys.readouterr().out
    assert f"own ({tmp_path / 'own.py'}): Mine.\n  No settings." in out
    assert f"bad ({tmp_path / 'bad.py'}): cannot be imported: No module named 'a_missing_module'" in out
    assert "sqlite (sluiceway): " in out


@pytest.mark.parametrize("before", [True, False])
def test_run_gets_the_file_of_variables_and_its_number_is_the_exit_code(
    environment: pytest.MonkeyPatch, before: bool
) -> None:
    given: list[Path | None] = []
    module = ModuleType("connector.cli.run")

    def run(env_file: Path | None) -> int:
        given.append(env_file)
        return 6

    module.run = run  # type: ignore[attr-defined]  # a module made here
    environment.setitem(sys.modules, "connector.cli.run", module)
    option = ("--env-file", "x.env")
    assert exit_code(*(option if before else ()), "run", *(() if before else option)) == 6
    assert [str(path) for path in given] == ["x.env"]


def test_a_fatal_error_is_one_line_with_its_exit_code(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_env_file: Path | None) -> int:
        raise FencedError("The client is fenced. Start again.")

    module = ModuleType("connector.cli.run")
    module.run = fail  # type: ignore[attr-defined]  # a module made here
    environment.setitem(sys.modules, "connector.cli.run", module)
    assert exit_code("run") == 4
    assert capsys.readouterr().err == "connector: The client is fenced. Start again.\n"


def test_demo_gets_its_options(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[dict[str, object]] = []
    module = ModuleType("connector.cli.demo")

    def demo(**options: object) -> int:
        given.append(options)
        return 0

    module.demo = demo  # type: ignore[attr-defined]  # a module made here
    environment.setitem(sys.modules, "connector.cli.demo", module)
    assert exit_code("demo") == 0
    assert exit_code("demo", "--records", "1000", "--directory", str(tmp_path)) == 0
    assert given == [
        {"records": 200_000, "directory": None},
        {"records": 1000, "directory": tmp_path},
    ]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"sluiceway {__version__}\n"


def test_help_needs_neither_the_client_nor_a_sink() -> None:
    code = (
        "import contextlib, io, sys\nfrom connector.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        "print([name for name in ('confluent_kafka', 'rich', 'structlog', 'sinks') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert printed.stdout == "[]\n"
