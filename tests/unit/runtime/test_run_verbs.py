"""The verbs on a run: pause and resume, parameters, reload, stop; with the real controller, pipelines and plugins."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from connector import ConfigError, ExitCode
from connector.admin.verbs import Change
from connector.api.intents import EVERYTHING, Intent, Scope
from connector.cli.verbs import RunVerbs
from connector.cli.workshop import Workshop
from connector.config.load import load
from connector.runtime.params import Params
from connector.runtime.snapshot import StatusBoard
from connector.source.membership import Membership
from connector.telemetry.status import RunState
from tests.support.engine import Engine, MemoryDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
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

    def __init__(
        self,
        directory: Path,
        *,
        pipelines: int = 1,
        state: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
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
                **(settings or {}),
            }
        )
        self.driver = MemoryDriver()
        self.params = Params(config.sink.params_type, state)
        self.board = StatusBoard("g", self.driver.metrics)

        def maker(report: Callable[[Report], None]) -> PipelineMaker:
            self.workshop = Workshop(config, self.driver.metrics, report, Membership())

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
        assert run.verbs.set_param("rate", 5) == Change("rate", {}, {"rate": 5})
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


def test_what_is_so_already_changes_nothing_and_tells_no_sink(run: Run) -> None:
    with run.running():
        run.driver.assign(A)
        run.until(lambda: len(run.notes("open")) == 1)
        assert run.verbs.set_param("rate", 5).is_change
        assert run.verbs.set_param("rate", 5) == Change("rate", {"rate": 5}, {"rate": 5}, is_change=False)
        assert run.verbs.set_param("rate", 6) == Change("rate", {"rate": 5}, {"rate": 6})
        assert run.verbs.delete_param("rate") == Change("rate", {"rate": 6}, {})
        assert run.verbs.delete_param("rate") == Change("rate", {}, {}, is_change=False)
        assert run.verbs.pause(Scope("t", 0)) == Change("t[0]", "nothing held back", "t[0] held back")
        assert not run.verbs.pause(Scope("t", 0)).is_change
        assert run.verbs.resume(EVERYTHING).is_change
        assert not run.verbs.resume(Scope("t")).is_change
        assert not run.verbs.set_log_level("WARNING").is_change
        assert run.verbs.stop() == Change("", "running", "stopping")
        assert run.verbs.stop() == Change("", "stopping", "stopping", is_change=False)
        run.engine.join()
        assert not run.verbs.stop().is_change
    told = [(note["what"], note.get("value")) for note in run.notes() if "key" in note]
    assert told == [("ParamUpdate", 5), ("ParamUpdate", 6), ("ParamDeleted", None)]


def test_a_partition_is_paused_before_it_is_assigned_and_the_intents_are_shown(run: Run) -> None:
    with run.running():
        run.verbs.pause(Scope("t"))
        run.verbs.resume(Scope("t", 1))
        run.until(lambda: len(run.driver.memory._intents.in_force) == 2)
        run.driver.assign(A, B)
        run.driver.append(A, range(3))
        run.driver.append(B, range(3))
        run.until(lambda: len(run.values()) == 3)
        run.until(lambda: run.board.latest.intents == (Intent("t", None, True), Intent("t", 1, False)))
        run.until(lambda: run.board.latest.is_ready)
        run.verbs.resume(Scope("t"))
        run.until(lambda: len(run.values()) == 6)


@pytest.mark.parametrize(("topic", "meant"), [("T", ""), ("tt", " Did you mean t?"), ("dead", "")])
def test_a_topic_that_is_not_subscribed_is_refused_with_what_is(run: Run, topic: str, meant: str) -> None:
    for verb in (run.verbs.pause, run.verbs.resume):
        with pytest.raises(ConfigError) as refused:
            verb(Scope(topic, 0))
        assert str(refused.value) == f"The topic {topic} is not one that is read here: CONNECTOR_TOPICS=t.{meant}"


def test_a_topic_that_a_pattern_can_match_may_be_named_before_it_exists_but_not_that_of_the_dead_letters(
    tmp_path: Path,
) -> None:
    more = {"CONNECTOR_TOPICS": "t,^pay", "CONNECTOR_ON_POISON": "dlq", "CONNECTOR_DLQ_TOPIC": "pay.dead"}
    run = Run(tmp_path, settings=more)
    assert run.verbs.pause(Scope("payments")).is_change
    with pytest.raises(ConfigError, match=r"pay\.dead is not one that is read here"):
        run.verbs.pause(Scope("pay.dead"))


def test_pause_is_shown_and_takes_readiness_and_resume_gives_it_back(run: Run) -> None:
    with run.running():
        run.driver.assign(A)
        run.until(lambda: run.board.latest.is_ready)
        run.verbs.pause(EVERYTHING)
        run.until(lambda: run.board.latest.reason == "paused by an operator")
        assert (run.board.latest.state, run.board.latest.is_ready) == (RunState.RUNNING, False)
        assert len(run.board.latest.lanes) == 1, "it stays a member"
        run.verbs.resume(EVERYTHING)
        run.until(lambda: run.board.latest.is_ready)
