"""What every built-in sink does as any sink must: loaded by its entry point, through the public plugin API alone."""

from __future__ import annotations

import ast
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import sinks
from connector import LaneId, LaneInfo, Sink
from tests.unit.sinks.sink_batches import CONTEXT, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@pytest.fixture(
    params=[
        "null",
        "stdout",
        "file",
        "http",
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("postgres with positions", marks=pytest.mark.postgres),
    ]
)
def make_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Sink[Any]]:
    """A sink class from its entry point, with the settings that it cannot do without."""
    name, *abilities = request.param.split(" with ")
    required = {
        "file": {"path": f"{tmp_path}/f"},
        "http": {"url": "http://127.0.0.1:9/"},
        "sqlite": {"path": f"{tmp_path}/d"},
    }
    given: Mapping[str, object] = required.get(name, {})
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


def test_an_empty_batch_is_taken(sink: Sink[Any]) -> None:
    sink.write(make_batch())


def test_the_sinks_import_nothing_of_the_connector_but_its_public_names() -> None:
    for module in Path(sinks.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("connector."), module
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("connector") for alias in node.names), module
