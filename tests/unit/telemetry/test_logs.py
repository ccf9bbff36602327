from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from connector.api.errors import ConfigError
from connector.telemetry import logs, masking, repeats
from connector.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Lines = Callable[[], list[dict[str, Any]]]

log = logs.get_logger("connector.test")


@pytest.fixture(autouse=True)
def _fresh_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start without secrets, and leave the root logger as it was."""
    monkeypatch.setattr(masking, "_secrets", type(masking._secrets)())
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    logs.flush(5)
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


@pytest.fixture
def lines(capfd: pytest.CaptureFixture[str]) -> Lines:
    """Configure JSON, and return what parses the lines written since."""
    logs.configure("info", "json")

    def read() -> list[dict[str, Any]]:
        assert logs.flush(5)
        return [json.loads(line) for line in capfd.readouterr().err.splitlines()]

    return read


def run(program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], text=True, capture_output=True, timeout=30, check=False, **options
    )


def test_a_line_is_one_json_object_with_a_fixed_event_and_utc_time(lines: Lines) -> None:
    log.info("lanes_assigned", lanes=4, topics=("a", "b\nc"), error=None, fraction=0.5)
    (line,) = lines()
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "connector.test",
        "event": "lanes_assigned",
        "lanes": 4,
        "topics": ["a", "b\nc"],
        "error": None,
        "fraction": 0.5,
    }


def test_logging_and_structlog_of_other_libraries_come_out_the_same_way(lines: Lines) -> None:
    logging.getLogger("librdkafka").log(logging.WARNING, "%s [%s] %s", "FAIL", "rdkafka#1", "broker down")
    structlog.get_logger("plugin").info("plugin_event", rows=1)
    client, plugin = lines()
    assert (client["level"], client["logger"], client["event"]) == (
        "warning",
        "librdkafka",
        "FAIL [rdkafka#1] broker down",
    )
    assert (plugin["level"], plugin["event"], plugin["rows"]) == ("info", "plugin_event", 1)


def test_what_is_below_the_level_is_left_out_and_the_level_can_change(lines: Lines) -> None:
    log.debug("first")
    logs.configure("debug", "json")
    log.debug("second")
    logs.configure("error", "json")
    log.warning("third")
    assert [line["event"] for line in lines()] == ["second"]


def test_a_level_set_at_run_time_holds_for_every_logger_and_is_told_before_and_after(lines: Lines) -> None:
    kinds = ("ours", "plugin", "library", "client")
    own = logging.getLogger("with.its.own.level")
    own.setLevel(logging.WARNING)

    def say(level: str) -> None:
        getattr(log, level)("ours")
        getattr(structlog.get_logger("plugin"), level)("plugin")
        getattr(logging.getLogger("library"), level)("library")
        logging.getLogger("librdkafka").log(getattr(logging, level.upper()), "client")
        getattr(own, level)("own")

    say("debug")
    assert logs.set_level("DEBUG") == "info"
    say("debug")
    assert logs.set_level("error") == "debug"
    say("warning")
    assert logs.set_level("warning") == "error"
    say("warning")
    assert logs.set_level("warning") == "warning"
    own.setLevel(logging.NOTSET)
    changes = [("log_level_changed", before, after) for before, after in (("info", "debug"), ("debug", "error"))]
    said = [(line["event"], line.get("before"), line.get("after")) for line in lines()]
    assert said == [
        changes[0],
        *((each, None, None) for each in kinds),
        changes[1],
        ("log_level_changed", "error", "warning"),
        *((each, None, None) for each in (*kinds, "own")),
    ]


def test_a_level_that_does_not_exist_changes_nothing(lines: Lines) -> None:
    with pytest.raises(ConfigError, match="Set it to one of"):
        logs.set_level("loud")
    log.info("still")
    assert [line["event"] for line in lines()] == ["still"]


def test_an_outage_writes_a_line_for_each_half_minute_that_says_how_often(capfd: pytest.CaptureFixture[str]) -> None:
    clock = VirtualClock()
    handler = logs.LineHandler(clock)
    for number in range(12_000):  # ten minutes of twenty a second
        record = logging.makeLogRecord({"msg": "cannot connect, attempt %s", "args": (number,), "name": "driver"})
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        handler.handle(record)
        clock.advance(0.05)
    assert handler.flush_within(5)
    written = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert len(written) == 21
    assert sum(1 + line.get("repeated", 0) for line in written) == 12_000
    assert "repeated" not in written[0]


def test_repeats_of_different_codes_partitions_and_errors_are_told_apart(lines: Lines) -> None:
    for _ in range(3):
        log.warning("commit_failed", code="A", positions=1)
        log.warning("commit_failed", code="B", positions=2)
        log.warning("lane_not_drained", topic="t", partition=0)
        log.warning("lane_not_drained", topic="t", partition=1)
        log.info("is_not_limited")
    assert [line["event"] for line in lines()] == [
        "commit_failed",
        "commit_failed",
        "lane_not_drained",
        "lane_not_drained",
        *["is_not_limited"] * 3,
        *["commit_failed"] * 2,  # the rest, counted, because of the flush
        *["lane_not_drained"] * 2,
    ]


def test_repeats_that_stop_are_written_when_their_window_ends_though_nobody_logs_any_more(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "WINDOW_SECONDS", 0.2)
    handler = logs.LineHandler()
    for _ in range(3):
        handler.handle(logging.makeLogRecord({"msg": "again", "levelno": logging.ERROR, "levelname": "ERROR"}))
    written = ""
    deadline = time.monotonic() + 10
    while written.count("\n") < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
        written += capfd.readouterr().err
    assert [json.loads(line).get("repeated") for line in written.splitlines()] == [None, 1]


def test_repeats_left_out_are_written_at_the_end_of_the_process() -> None:
    program = """
from connector.telemetry import logs
logs.configure("info", "json")
for number in range(5):
    logs.get_logger("x").warning("again")
"""
    assert [json.loads(line).get("repeated") for line in run(program).stderr.splitlines()] == [None, 3]


def test_a_trace_that_repeats_is_the_one_of_its_own_moment(lines: Lines) -> None:
    for text in ("1", "two"):
        try:
            int(text, 2)
            float(text * 2 + "x")
        except ValueError:
            log.exception("broken")
    assert [line["exception"].splitlines()[-1] for line in lines()] == [
        "ValueError: could not convert string to float: '11x'",
        "ValueError: invalid literal for int() with base 2: 'two'",
    ]


def test_arguments_of_a_plugin_in_the_manner_of_logging_are_filled_in(lines: Lines) -> None:
    structlog.get_logger("plugin").info("wrote %d rows", 3)
    assert lines()[0]["event"] == "wrote 3 rows"


SECRET = 'hun"ter\\2 ü%'


@pytest.mark.parametrize(
    "show",
    [
        lambda: log.info("field", text=f"before {SECRET} after"),
        lambda: log.info("nested", deep={"list": [(SECRET,)], f"key {SECRET}": 1}),
        lambda: log.info(f"event {SECRET}"),
        lambda: log.info("object", error=ValueError(SECRET), data=SECRET.encode(), other={SECRET}),
        lambda: logging.getLogger("driver").error("cannot connect with %r", SECRET),
        lambda: log.info("url", dsn="postgres://u:hun%22ter%5C2%20%C3%BC%25@host/db"),
        lambda: log.info("json", body=json.dumps({"x": SECRET})),
    ],
)
def test_a_registered_secret_is_masked_wherever_it_stands(lines: Lines, show: Callable[[], None]) -> None:
    masking.register_secret(SECRET)
    show()
    (line,) = lines()
    assert "hun" not in json.dumps(line)
    assert "***" in json.dumps(line)


def test_a_registered_secret_is_masked_in_the_text_of_an_exception_and_its_cause(lines: Lines) -> None:
    masking.register_secret("s3cret-value")
    error = RuntimeError("password s3cret-value refused")
    error.__cause__ = ValueError("the cause has s3cret-value")
    log.error("sink_failed", exc_info=error)
    (line,) = lines()
    assert "s3cret-value" not in json.dumps(line)
    assert "RuntimeError: password *** refused" in line["exception"]


def test_what_is_secret_within_a_registered_value_is_masked_alone_too(lines: Lines) -> None:
    masking.register_secret("postgres://user:within-url@host/db")
    masking.register_secret("host=db password='within conninfo' user=x")
    masking.register_secret("-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END KEY-----\n")
    log.info("parts", a="within-url", b="within conninfo", c="MIIEvQIBADANBgkqhkiG9w0", d="-----BEGIN KEY-----")
    (line,) = lines()
    assert (line["a"], line["b"], line["c"], line["d"]) == ("***", "***", "***", "-----BEGIN KEY-----")


def test_a_value_is_masked_whose_key_looks_secret_unless_it_names_a_file(lines: Lines) -> None:
    log.info("settings", sasl_password="x", CONNECTOR_ADMIN_TOKEN="y", nested={"ssl.key.pem": "z"}, password_file="/p")
    (line,) = lines()
    assert line["sasl_password"] == line["CONNECTOR_ADMIN_TOKEN"] == line["nested"]["ssl.key.pem"] == "***"
    assert line["password_file"] == "/p"


def test_an_empty_secret_masks_nothing(lines: Lines) -> None:
    masking.register_secret("")
    masking.register_secret("  \n")
    log.info("plain", text="a  b")
    assert lines()[0]["text"] == "a  b"


def test_masked_data_is_plain_and_valid_utf_8() -> None:
    class Colour(Enum):
        RED = "red"

    masking.register_secret("12345")
    plain = masking.mask(
        {"colour": Colour.RED, "none": None, "yes": True, "number": 12345, "bad": "\udcff", "nan": float("nan")}
    )
    assert plain == {"colour": "red", "none": None, "yes": True, "number": "***", "bad": "\\udcff", "nan": "nan"}


def test_a_field_that_cannot_be_shown_costs_its_line_and_is_reported(lines: Lines) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    logging.getLogger().handlers[:] = [logs._handler] if logs._handler else []  # pytest's own is less careful
    log.info("broken_field", field=Broken())
    logging.getLogger("driver").error("two %s", 1, 2)  # noqa: PLE1205  # as a library may do it
    assert [(line["event"], line["line"], line["error"]) for line in lines()] == [
        ("log_line_failed", "broken_field", "RuntimeError"),
        ("log_line_failed", "two %s", "TypeError"),
    ]


def test_the_console_form_shows_control_characters_instead_of_obeying_them(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "console")
    log.info("topic\x1b[2J", name="\x1b]0;title\x07")
    assert logs.flush(5)
    text = capfd.readouterr().err
    assert "\x1b" not in text
    assert "topic\\x1b[2J" in text


def test_auto_is_json_where_standard_error_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "auto")
    log.info("hello")
    assert logs.flush(5)
    assert json.loads(capfd.readouterr().err)["event"] == "hello"


def test_auto_is_console_on_a_terminal() -> None:
    master, terminal = os.openpty()
    program = "from connector.telemetry import logs; logs.configure(); logs.get_logger('x').info('hello', lanes=1)"
    with subprocess.Popen([sys.executable, "-c", program], stderr=terminal) as process:
        process.wait(30)
    os.close(terminal)
    text = os.read(master, 10_000).decode()
    os.close(master)
    assert "hello" in text
    assert not text.startswith("{")


@pytest.mark.parametrize(("level", "form"), [("loud", "json"), ("info", "xml")])
def test_a_level_or_form_that_does_not_exist_is_refused_with_the_choices(level: str, form: str) -> None:
    with pytest.raises(ConfigError, match="Set it to one of"):
        logs.configure(level, form)


def test_lines_are_written_before_the_process_ends() -> None:
    program = """
from connector.telemetry import logs, masking, repeats
from connector.testing.clock import VirtualClock
logs.configure("info", "json")
for number in range(500):
    logs.get_logger("x").info("line", number=number)
"""
    assert [json.loads(line)["number"] for line in run(program).stderr.splitlines()] == list(range(500))


@pytest.mark.parametrize("close", ["sys.stderr.close()", "sys.stderr = None"])
def test_a_closed_standard_error_is_no_error_of_whoever_logs(close: str) -> None:
    program = f"""
import sys
from connector.telemetry import logs, masking, repeats
from connector.testing.clock import VirtualClock
logs.configure("info", "json")
{close}
logs.get_logger("x").error("nobody_reads_this")
logs.flush(5)
print("still here")
"""
    ended = run(program)
    assert (ended.returncode, ended.stdout) == (0, "still here\n")


def test_a_reader_that_does_not_read_blocks_nobody_and_what_was_dropped_is_counted() -> None:
    program = """
import sys, time
from connector.telemetry import logs, masking, repeats
from connector.testing.clock import VirtualClock
logs.configure("info", "json")
log = logs.get_logger("x")
for number in range(15_000):
    log.info("line", text="x" * 100)
print("done", flush=True)
sys.stdin.readline()
logs.flush(20)
"""
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing, text=True
    ) as process:
        os.close(writing)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"  # while the pipe is full
        with contextlib.closing(process.stdin):
            process.stdin.write("\n")
        with os.fdopen(reading, encoding="utf-8") as pipe:
            events = [json.loads(line) for line in pipe]
    dropped = sum(event["lines"] for event in events if event["event"] == "log_lines_dropped")
    assert dropped > 0
    assert dropped + sum(event["event"] == "line" for event in events) == 15_000
