"""A sink's runner: every error that comes out has a class, notices hurt nobody, and a batch is settled once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from connector import (
    Batch,
    ConnectorError,
    FatalError,
    LaneId,
    Offset,
    PoisonError,
    RecordErrors,
    RefusedError,
    Settings,
    Sink,
    SinkContext,
    TransientError,
)
from connector.api.batch import BatchMetadata
from connector.api.event import Error, Input, InputClosed, Stop, StopCause
from connector.api.types import Epoch
from connector.sink.plugin import CrashError
from connector.sink.runner import SinkRunner
from connector.telemetry.metrics import Metrics
from connector.testing.client import records

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.api.event import Event

DECLARED = [
    TransientError("down"),
    PoisonError("bad"),
    RecordErrors({0: PoisonError("bad")}),
    RefusedError("another"),
    FatalError("no disk"),
]
OUTCOMES = ["transient", "poison", "poison", "refused", "fatal"]


class Scripted(Sink[Settings]):
    """Notes its calls; raises what it is told to."""

    max_in_flight = 2

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__(Settings(), SinkContext(group_id="g"))
        self.error = error
        self.calls: list[object] = []
        self.dones: list[Callable[..., None]] = []

    def _do(self, call: object) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error

    def open(self) -> None:
        self._do("open")

    def on_event(self, event: Event) -> None:
        self._do(event)

    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        self.dones.append(done)
        self._do("submit")

    def probe(self) -> None:
        self._do("probe")

    def close(self) -> None:
        self._do("close")


def _batch() -> Batch:
    metadata = BatchMetadata(LaneId(1), Epoch(1), 0, "t", 0, Offset(0), Offset(1))
    return Batch(metadata, records("t", 0, [0]))


def _runner(error: BaseException | None = None) -> tuple[SinkRunner, Scripted, Metrics]:
    sink, metrics = Scripted(error), Metrics()
    return SinkRunner(sink, metrics, metrics.pipeline_seconds.start("0")), sink, metrics


def _errors(metrics: Metrics, error: BaseException) -> Any:
    return metrics.sink_errors.labels(type(error).__name__)._value.get()


@pytest.mark.parametrize(("error", "outcome"), [*zip(DECLARED, OUTCOMES, strict=True)])
def test_a_declared_error_of_write_comes_out_as_it_is_and_is_counted(error: ConnectorError, outcome: str) -> None:
    runner, _, metrics = _runner(error)
    with pytest.raises(type(error)) as raised:
        runner.write(_batch())
    assert raised.value is error
    assert _errors(metrics, error) == 1
    count = metrics.registry.get_sample_value("connector_sink_write_seconds_count", {"outcome": outcome})
    assert count == 1


@pytest.mark.parametrize("call", ["open", "probe", "write"])
def test_anything_else_is_a_crash_of_the_sink_that_keeps_its_cause(call: str) -> None:
    error = ValueError("oops")
    runner, _, _ = _runner(error)
    with pytest.raises(CrashError, match="Scripted raised ValueError: oops") as raised:
        getattr(runner, call)(*([_batch()] if call == "write" else []))
    assert raised.value.__cause__ is error
    assert raised.value.node is None, "the pipeline's own"


def test_a_batch_comes_as_an_input() -> None:
    runner, sink, _ = _runner()
    batch = _batch()
    runner.write(batch)
    assert sink.calls == [Input(batch.metadata.lane, batch.metadata, batch)]


@pytest.mark.parametrize("error", [*DECLARED, ValueError("a bug")])
def test_a_notice_that_the_sink_cannot_take_goes_no_further(error: Exception) -> None:
    runner, sink, _ = _runner(error)
    runner.tell(Error("hello"))
    assert sink.calls == [Error("hello")]


def test_stop_is_the_last_event_and_close_follows_whatever_it_raises() -> None:
    runner, sink, _ = _runner(ValueError("a bug"))
    runner.tell(InputClosed(LaneId(1)))
    runner.stop(StopCause.MANUAL)
    assert sink.calls == [InputClosed(LaneId(1)), Stop(StopCause.MANUAL), "close"]


@pytest.mark.parametrize("error", [None, *DECLARED])
def test_what_an_asynchronous_sink_says_is_passed_on(error: ConnectorError | None) -> None:
    runner, sink, _ = _runner()
    heard: list[object] = []
    runner.submit(_batch(), heard.append)
    assert (heard, runner.in_flight) == ([], 1)
    sink.dones[0](error)
    assert heard == [error]


def test_an_asynchronous_sink_with_a_bug_has_crashed() -> None:
    runner, sink, _ = _runner()
    heard: list[object] = []
    runner.submit(_batch(), heard.append)
    sink.dones[0](KeyError("x"))
    assert isinstance(heard[0], CrashError)


@pytest.mark.parametrize("error", [TransientError("full"), ValueError("a bug")])
def test_what_submit_raises_is_what_became_of_the_batch(error: Exception) -> None:
    runner, _, _ = _runner(error)
    heard: list[object] = []
    runner.submit(_batch(), heard.append)
    assert len(heard) == 1
    assert heard[0] is error or isinstance(heard[0], CrashError)


def test_only_the_first_word_on_a_batch_counts() -> None:
    runner, sink, _ = _runner()
    heard: list[object] = []
    runner.submit(_batch(), heard.append)
    sink.dones[0](None)
    sink.dones[0](TransientError("no, wait"))
    assert heard == [None]
    raising, sink, _ = _runner(ValueError("after all"))
    sink.dones = []
    raising.submit(_batch(), heard.append)
    sink.dones[0](None)
    assert len(heard) == 2


def test_there_is_room_for_as_many_as_the_sink_declares() -> None:
    runner, _, _ = _runner()
    for expected in (True, True):
        assert runner.has_room is expected
        runner.submit(_batch(), lambda _: None)
    states = [runner.has_room]
    runner.settled(None)
    states.append(runner.has_room)
    runner.is_leaving = True
    states.append(runner.has_room)
    assert states == [False, True, False]
