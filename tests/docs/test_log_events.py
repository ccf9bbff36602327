"""The table of log events against the log calls in the code, and the page against the table."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.config.log_events_page import log_events_page
from connector.telemetry.log_events import COMMON_FIELDS, EVENTS, FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "events.md"
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
PAST = re.compile(r"\w+ed|lost|found|cut|read|fell|done|begun|given|left|gone|made")


@dataclass(frozen=True)
class Call:
    """One log call in the code."""

    where: str
    event: str
    levels: frozenset[str]
    fields: frozenset[str]


def calls_in(source: str, name: str) -> Iterator[Call]:
    """Yield the log calls of a module. One that cannot be read without running it is an error."""
    tree = ast.parse(source)
    loggers = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and "get_logger(" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
            continue
        owner = ast.unparse(node.func.value)
        where = f"{name}:{node.lineno}"
        assert "get_logger(" not in owner.lower().replace("getlogger", "get_logger"), f"{where}: name the logger"
        if owner in loggers:
            yield _read(node, node.func.attr, tree, where)


def _read(node: ast.Call, method: str, tree: ast.Module, where: str) -> Call:
    levels, arguments = {method}, list(node.args)
    if method == "exception":
        levels = {"error"}
    elif method == "log":
        levels = {name.lower() for name in re.findall(r"logging\.([A-Z]+)", ast.unparse(arguments.pop(0)))}
    assert len(arguments) == 1, f"{where}: an event and fields by name, nothing else"
    event = arguments[0]
    assert isinstance(event, ast.Constant), f"{where}: the name of an event is written out"
    fields = {field for keyword in node.keywords for field in _fields_of(keyword, tree, where)}
    return Call(where, str(event.value), frozenset(levels), frozenset(fields - {"exc_info"}))


def _fields_of(keyword: ast.keyword, tree: ast.Module, where: str) -> Iterable[str]:
    if keyword.arg is not None:
        return [keyword.arg]
    function = ast.unparse(keyword.value).partition("(")[0]  # `**fields_of(…)`, a function that returns one literal
    [made] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    [returned] = [node for node in ast.walk(made) if isinstance(node, ast.Return)]
    assert isinstance(returned.value, ast.Dict), f"{where}: fields are written out"
    return [key.value for key in returned.value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


CALLS = [
    call
    for package in ("connector", "sinks", "transforms")
    for path in sorted((ROOT / package).rglob("*.py"))
    for call in calls_in(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
]
DECLARED = {event.name: event for event in EVENTS}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.where)
def test_every_log_call_has_a_declared_event_level_and_fields(call: Call) -> None:
    assert call.event in DECLARED, "declare it in connector/telemetry/log_events.py"
    declared = DECLARED[call.event]
    assert call.levels <= set(declared.levels)
    assert call.fields <= set(declared.fields)


@pytest.mark.parametrize("name", DECLARED)
def test_every_declared_event_is_written_with_every_level_and_field(name: str) -> None:
    calls = [call for call in CALLS if call.event == name]
    assert calls, "nobody writes it"
    assert {level for call in calls for level in call.levels} == set(DECLARED[name].levels)
    assert {field for call in calls for field in call.fields} == set(DECLARED[name].fields)


def test_each_event_is_declared_once_and_each_field_is_explained_and_used() -> None:
    assert Counter(event.name for event in EVENTS).most_common(1)[0][1] == 1
    used = {field for event in EVENTS for field in event.fields}
    assert used == set(FIELDS)
    assert not used & set(COMMON_FIELDS)


@pytest.mark.parametrize("name", DECLARED)
def test_a_name_says_what_has_happened_and_what_an_operator_does(name: str) -> None:
    assert any(PAST.fullmatch(word) for word in name.split("_")), name
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
    for text in (DECLARED[name].meaning, DECLARED[name].action):
        assert text.endswith(".")


def test_the_page_of_log_events_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == log_events_page(), (
        "docs/reference/events.md is old; write it anew: python -m connector.config.reference docs/reference"
    )
    for event in EVENTS:
        assert f"| `{event.name}` | {', '.join(event.levels)} |" in log_events_page()


MODULE = """
log = get_logger(__name__)
def told(x): return {"topic": x, "partition": 1}
def work():
    log.log(logging.WARNING if bad else logging.INFO, "rebalanced", **told(1), lanes=2)
    log.exception("failed", exc_info=True, error="e")
    other.info("not a log", call=1)
"""


def test_calls_are_read_with_their_levels_and_fields() -> None:
    first, second = calls_in(MODULE, "m")
    assert first == Call(
        "m:5", "rebalanced", frozenset({"warning", "info"}), frozenset({"topic", "partition", "lanes"})
    )
    assert second == Call("m:6", "failed", frozenset({"error"}), frozenset({"error"}))


@pytest.mark.parametrize("call", ['log.info(f"x{1}")', 'log.info("x %s", 1)', 'logging.getLogger("x").info("y")'])
def test_a_call_that_cannot_be_read_is_refused(call: str) -> None:
    with pytest.raises(AssertionError):
        list(calls_in(f"log = get_logger(__name__)\n{call}", "m"))
