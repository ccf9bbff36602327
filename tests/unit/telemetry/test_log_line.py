from __future__ import annotations

import json
import logging
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.telemetry.log_line import MAX_LINE_BYTES, console_form, fields_of, json_form, kind_of

FIRST = {"timestamp": "2026-08-01T00:00:00.000000Z", "level": "error", "logger": "x", "event": "happened"}

texts = st.text(st.characters(exclude_categories=["Cs"]))  # masked text is valid UTF-8
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


def client_record(text: str, level: int = logging.INFO, name: str = "librdkafka") -> logging.LogRecord:
    """Return what the client library logs, in its own way."""
    return logging.LogRecord(name, level, "", 0, "%s [%s] %s", ("FAIL", "rdkafka#consumer-1", text), None)


def kind(record: logging.LogRecord) -> object:
    return kind_of(record, fields_of(record))


@given(st.dictionaries(texts, plain, max_size=6))
def test_a_json_line_is_one_line_and_says_what_it_was_given(fields: dict[str, Any]) -> None:
    line = json_form({**fields, **FIRST})
    assert len(line.splitlines()) == 1
    assert all(unicodedata.category(char) not in ("Cc", "Zl", "Zp") for char in line)
    assert json.loads(line) == {**fields, **FIRST}


@pytest.mark.parametrize(
    "long",
    [
        {"error": "x" * 10_000_000},
        {"error": "\x00" * 100_000},
        {"error": "ü\U0001f600" * 100_000},
        {"partitions": [f"orders[{number}]" for number in range(100_000)]},
        {"detail": {f"key {number}": "value" for number in range(100_000)}},
        {"detail": [[[["x" * 1000] * 50] * 50] * 10]},
        {"k" * 200_000: 1},
        {f"field {number}": "x" * 100 for number in range(10_000)},
    ],
    ids=["text", "escapes", "wide", "list", "mapping", "nested", "key", "fields"],
)
def test_a_line_is_never_longer_than_64_kib_and_says_how_much_is_missing(long: dict[str, Any]) -> None:
    for form in (json_form, console_form(colours=False)):
        line = form({**FIRST, **long})
        assert len(line.encode()) <= MAX_LINE_BYTES
        assert "happened" in line
    shown = json.loads(json_form({**FIRST, **long}))
    assert {name: shown[name] for name in FIRST} == FIRST
    assert "characters]" in str(shown) or "entries]" in str(shown) or len(shown) < len(long)


def test_a_long_trace_keeps_its_beginning_and_its_end_where_the_error_stands() -> None:
    trace = "Traceback\n" + "  File …\n" * 100_000 + "ValueError: this one"
    shown = json.loads(json_form({**FIRST, "exception": trace, "short": "kept"}))
    assert shown["exception"].startswith("Traceback")
    assert shown["exception"].endswith("ValueError: this one")
    assert shown["short"] == "kept"


def test_a_console_line_shows_line_breaks_everywhere_but_in_a_trace() -> None:
    forged = "a\n2026-08-01 [info] forged"
    fields = {**FIRST, "event": forged, "error": forged, "list": [forged], forged: 1, "exception": "one\ntwo"}
    head, *trace = console_form(colours=False)(fields).splitlines()
    assert head.count("a\\n2026-08-01 [info] forged") == 4
    assert trace[-2:] == ["one", "two"]


def test_lines_of_the_client_that_differ_in_figures_repeat_each_other_and_others_do_not() -> None:
    refused = "[thrd:b1:9092/1]: b1:9092/1: Connect to ipv4#10.0.0.1:9092 failed (after 12ms in state CONNECT)"
    again = refused.replace("12ms", "3ms").replace("CONNECT)", "CONNECT, 4 identical error(s) suppressed)")
    first = kind(client_record(refused))
    assert first is not None
    assert kind(client_record(refused.replace("12ms", "3ms"))) == first
    assert kind(client_record(refused.replace("b1:9092", "b2:9092"))) != first
    assert kind(client_record(refused, logging.ERROR)) != first
    assert kind(client_record(again)) == kind(client_record(again.replace(" 4 ", " 17 ")))


def test_only_warnings_and_errors_repeat_except_those_of_the_client() -> None:
    assert kind(client_record("hello", logging.INFO, "driver")) is None
    assert kind(client_record("hello", logging.DEBUG)) is not None
    assert kind(client_record("hello", logging.WARNING, "driver")) is not None
