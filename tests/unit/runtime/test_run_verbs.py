"""The verbs on a run: pause and resume, parameters, reload, stop; with the real controller, pipelines and plugins."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from connector import ConfigError, ExitCode
from connector.cli.verbs import RunVerbs
from connector.cli.workshop import Workshop
from connector.config.load import load
from connector.runtime.params import Params
from connector.runtime.snapshot import StatusBoard
from connector.telemetry.status import RunState
from tests.support.engine import Engine, MemoryDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from connector.api.event import Event
    from connector.pipeline.messages import Report
    from connector.pipeline.worker import Pipeline
    from tests.support.engine import PipelineMaker

A, B = ("t", 0), ("t", 1)

SINK = """
import dataclasses, json
from connector import Input, Settings, Sink

class Params(Settings):
    rate: int = 1
    colour: str = "red"

class Where(Settings):
    path: str

class Noting(Sink[Where]):
    params_type = Params

    def open(self):
        self.note("open")

    def note(self, what, **more):
        with open(self.settings.path, "a") as file:
            said = {"version": VERSION, "pipeline": self.context.pipeline, "what": what, **more}
            file.write(json.dumps(said) + "\\n")

    def on_event(self, event):
        if isinstance(event, Input):
            self.note("Input", offsets=list(event.data.column("offset")), values=[
                value.decode() for value in event.data.column("value")])
        else:
            self.note(type(event).__name__, **json.loads(json.dumps(dataclasses.asdict(event), default=str)))

    def close(self):
        self.note("close")
"""
TRANSFORM = """
from connector import Transform

class Tag(Transform):
    def apply(self, batch):
        return batch.with_column("value", [value + TEXT for value in batch.column("value")])
"""


class Run:
    """A run of plugins in files, with its verbs."""

    def __init__(self, directory: Path, *, pipelines: int = 1, state: Path | None = None) -> None:
        self.plugins = directory / "plugins"
        self.plugins.mkdir(exist_ok=True)
        self._notes = directory / "notes"
        self.install("VERSION = 1\n" + SINK, "TEXT = b'-1'\n" + TRANSFORM)
        config = load(
            {
                "CONNECTOR_BOOTSTRAP_SERVERS": "127.0.0.1:1",
                "CONNECTOR_GROUP_ID": "g",
                "CONNECTOR_TOPICS": "t",
                "CONNECTOR_PLUGIN_DIR": str(self.plugins),
                "CONNECTOR_SINK": "noting",
                "CONNECTOR_SINK_PATH": str(self._notes),
                "CONNECTOR_TRANSFORMS": "tag",
                "CONNECTOR_BATCH_LINGER": "1ms",
                "CONNECTOR_RETRY_INITIAL": "10ms",
            }
        )
        self.driver = MemoryDriver()
        self.params = Params(config.sink.params_type, state)
        self.board = StatusBoard("g", self.driver.metrics)

        def maker(report: Callable[[Report], None]) -> PipelineMaker:
            self.workshop = Workshop(config, self.driver.metrics, report)

            def make(number: int, incarnation: int, notices: Sequence[Event]) -> Pipeline:
                return self.workshop.make_pipeline(number, incarnation, (*self.params.all(), *notices))

            return make

        self.engine = Engine(self.driver, pipelines=pipelines, maker=maker, publish=self.board.publish)
        self.verbs = RunVerbs(self.engine.controller, self.workshop, self.params)

    def install(self, sink: str, transform: str | None = None) -> None:
        (self.plugins / "noting.py").write_text(sink)
        if transform is not None:
            (self.plugins / "tag.py").write_text(transform)

    @contextmanager
    def running(self) -> Iterator[Run]:
        with self.engine:
            yield self

    def notes(self, *whats: str) -> list[dict[str, Any]]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [note for note in map(json.loads, lines) if not whats or note["what"] in whats]

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        try:
            self.engine.until(condition, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.notes()[-10:]}") from None

    def values(self) -> list[str]:
        return [value for note in self.notes("Input") for value in note["values"]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_parameter_is_checked_stored_and_told_to_every_sink_and_again_to_a_new_one(tmp_path: Path) -> None:
    with Run(tmp_path, pipelines=2, state=tmp_path / "state").running() as run:
        with pytest.raises(ConfigError, match="rate"):
            run.verbs.set_param("rate", "fast")
        with pytest.raises(ConfigError, match="Did you mean rate"):
            run.verbs.set_param("rat", 5)
        run.verbs.set_param("rate", 5)
        run.verbs.set_param("colour", "blue")
        run.until(lambda: len(run.notes("ParamUpdate")) == 4)
        run.verbs.delete_param("colour")
        run.until(lambda: len(run.notes("ParamDeleted")) == 2)
        assert {(note["pipeline"], note["key"]) for note in run.notes("ParamDeleted")} == {(0, "colour"), (1, "colour")}
        assert run.verbs.params() == {"rate": 5}
    before = len(run.notes())
    with Run(tmp_path, state=tmp_path / "state").running() as again:
        again.driver.assign(A)
        again.driver.append(A, range(3))
        again.until(lambda: len(again.notes("Input")) == 1)
        kinds = [note["what"] for note in again.notes()[before:]]
        assert kinds == ["open", "ParamUpdate", "Input"]
        assert again.notes()[before + 1]["value"] == 5


def test_a_sink_is_reloaded_from_its_file_in_every_pipeline_and_hears_its_parameters(tmp_path: Path) -> None:
    with Run(tmp_path, pipelines=2).running() as run:
        run.driver.assign(A, B)
        run.until(lambda: len(run.notes("open")) == 2)
        run.verbs.set_param("rate", 5)
        run.install("VERSION = 2\n" + SINK)
        run.verbs.reload("sink")
        run.until(lambda: len(run.notes("close")) == 2)
        assert [note["version"] for note in run.notes("close")] == [1, 1]
        run.driver.append(A, range(3))
        run.driver.append(B, range(3))
        run.until(lambda: len(run.values()) == 6)
        assert {note["version"] for note in run.notes("Input")} == {2}
        assert {(note["pipeline"], note["operator_id"]) for note in run.notes("Reload")} == {(0, "sink"), (1, "sink")}
        assert run.workshop.config.sink.open.__globals__["VERSION"] == 2, "what a later pipeline is made of"
        told = [(note["version"], note["pipeline"]) for note in run.notes("ParamUpdate")]
        assert set(told) == {(1, 0), (1, 1), (2, 0), (2, 1)}


@pytest.mark.parametrize("broken", ["import does not exist\n", "raise ValueError('half saved')\n"])
def test_a_version_that_cannot_be_imported_is_refused_and_the_old_one_goes_on(run: Run, broken: str) -> None:
    with run.running():
        run.driver.assign(A)
        run.install(broken + "VERSION = 2\n" + SINK)
        with pytest.raises(ConfigError):
            run.verbs.reload("sink")
        run.driver.append(A, range(3))
        run.until(lambda: len(run.values()) == 3)
        assert {note["version"] for note in run.notes("Input")} == {1}


def test_a_version_that_does_not_open_leaves_the_old_one_also_after_a_crash(run: Run) -> None:
    with run.running():
        run.driver.assign(A)
        run.until(lambda: len(run.notes("open")) == 1)
        run.install("VERSION = 2\n" + SINK.replace('self.note("open")', 'raise OSError("no route")'))
        run.verbs.reload("sink")
        run.until(lambda: len(run.notes("Error")) == 1)
        (told,) = run.notes("Error")
        assert told["version"] == 1
        assert "no route" in told["message"]
        assert run.workshop.config.sink.open.__globals__["VERSION"] == 1, "what a later pipeline is made of"
        run.driver.append(A, range(3))
        run.until(lambda: len(run.values()) == 3)
        assert {note["version"] for note in run.notes("Input")} == {1}
        assert not run.notes("Reload")


def test_a_transform_is_reloaded_from_its_file(run: Run) -> None:
    with run.running():
        run.driver.assign(A)
        run.driver.append(A, [0])
        run.until(lambda: run.values() == ["value-1"])
        run.install("VERSION = 1\n" + SINK, "TEXT = b'-two'\n" + TRANSFORM)
        run.verbs.reload("tag")
        run.until(lambda: [note["operator_id"] for note in run.notes("Reload")] == ["tag"])
        run.driver.append(A, [1])
        run.until(lambda: run.values() == ["value-1", "value-two"])
        assert len(run.notes("open")) == 1, "the sink is the same"


def test_an_operator_that_does_not_exist_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="tog"):
        run.verbs.reload("tog")


def test_stop_drains_and_ends_with_0(run: Run) -> None:
    with run.running():
        run.driver.assign(A)
        run.driver.append(A, range(3))
        run.until(lambda: len(run.values()) == 3)
        run.verbs.stop()
        assert run.engine.join().code is ExitCode.COMPLETED
    assert [note["what"] for note in run.notes()][-2:] == ["Stop", "close"]
    assert run.driver.committed(A) == 3


def test_pause_is_shown_and_takes_readiness_and_resume_gives_it_back(run: Run) -> None:
    with run.running():
        run.driver.assign(A)
        run.until(lambda: run.board.latest.is_ready)
        run.verbs.pause()
        run.until(lambda: run.board.latest.reason == "paused by an operator")
        assert (run.board.latest.state, run.board.latest.is_ready) == (RunState.RUNNING, False)
        assert len(run.board.latest.lanes) == 1, "it stays a member"
        run.verbs.resume()
        run.until(lambda: run.board.latest.is_ready)
