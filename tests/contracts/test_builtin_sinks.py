"""What every built-in sink does as any sink must: loaded by its entry point, through the public plugin API alone."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import sinks
from connector import CloseReason, Input, InputClosed, LaneId, LaneInfo, Sink, Stop, StopCause
from tests.unit.sinks.sink_batches import CONTEXT, NASTY, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from connector import Event

NAMES = ("null", "stdout", "file", "sqlite", "postgres")


@dataclass(frozen=True, slots=True)
class LaterEvent:
    """An event that a later version may send."""


@pytest.fixture(
    params=[
        "null",
        "stdout",
        "file",
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("postgres with positions", marks=pytest.mark.postgres),
    ]
)
def make_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Sink[Any]]:
    """A sink class from its entry point, with the settings that it cannot do without."""
    name, *abilities = request.param.split(" with ")
    given: Mapping[str, object] = {"file": {"path": f"{tmp_path}/f"}, "sqlite": {"path": f"{tmp_path}/d"}}.get(name, {})
    if name == "postgres":
        given = {"dsn": request.getfixturevalue("postgres_dsn"), "positions": bool(abilities)}
    (point,) = entry_points(group="connector.sinks", name=name)
    loaded = cast("type[Sink[Any]]", point.load())
    return lambda: loaded(loaded.settings_type.model_validate(given), CONTEXT)


@pytest.fixture
def sink(make_sink: Callable[[], Sink[Any]]) -> Iterator[Sink[Any]]:
    made = make_sink()
    made.open()
    if made.holds_positions:
        made.claim(LaneInfo(LaneId(1), "orders", 3, "id-1"))
    yield made
    made.close()


def test_close_is_allowed_before_open(make_sink: Callable[[], Sink[Any]]) -> None:
    make_sink().close()


def test_open_is_allowed_again(sink: Sink[Any]) -> None:
    sink.open()
    sink.write(make_batch(b"1"))


def test_a_batch_of_nasty_records_is_taken(sink: Sink[Any]) -> None:
    batch = make_batch(*NASTY)
    sink.on_event(Input(batch.metadata.lane, batch.metadata, batch))


def test_an_empty_batch_is_taken(sink: Sink[Any]) -> None:
    sink.write(make_batch())


def test_decoded_values_are_taken(sink: Sink[Any]) -> None:
    decoded: list[object] = [{"a": [1, 2.5, None, True]}, "text", 1, None]
    sink.write(make_batch(*[b"x"] * 4, decoded={"value": decoded, "key": decoded}))


def test_a_replay_after_a_restart_is_taken(make_sink: Callable[[], Sink[Any]], sink: Sink[Any]) -> None:
    sink.write(make_batch(b"1", b"2"))
    sink.close()
    again = make_sink()
    again.open()
    if again.holds_positions:
        again.claim(LaneInfo(LaneId(1), "orders", 3, "id-1"))
    again.write(make_batch(b"1", b"2", b"3"))
    again.close()


def test_every_other_event_is_taken_whether_known_or_not(sink: Sink[Any]) -> None:
    sink.write(make_batch(b"1"))
    later = cast("Event", LaterEvent())
    closed = InputClosed(LaneId(1)), InputClosed(LaneId(1), CloseReason.LOST), InputClosed(LaneId(99), CloseReason.END)
    for event in (later, *closed, Stop(StopCause.ALL_INPUTS_CLOSED)):
        sink.on_event(event)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_described(name: str) -> None:
    (point,) = entry_points(group="connector.sinks", name=name)
    for field in point.load().settings_type.model_fields.values():
        assert field.description


def test_the_sinks_import_nothing_of_the_connector_but_its_public_names() -> None:
    for module in Path(sinks.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("connector."), module
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("connector") for alias in node.names), module
