"""Events without records: at their turn, before the first batch of a new instance, and never in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connector import FatalError, TransientError
from connector.api.event import (
    CloseReason,
    Error,
    Input,
    InputClosed,
    InputRecovered,
    NodeFailed,
    NodeRestarted,
    ParamDeleted,
    ParamUpdate,
    Stop,
    StopCause,
)
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.messages import Failed, Finish, Finished, Notice, StallLane
from connector.pipeline.worker import PipelineSettings
from connector.sink.retry import Backoff
from tests.support.engine import RecordingSink
from tests.support.pipeline import OnePipeline

if TYPE_CHECKING:
    from connector.api.event import Event

FAILED = NodeFailed((), "oops", "pipeline-0")
NOTICES: list[Event] = [
    ParamUpdate("rate", 5),
    ParamDeleted("rate"),
    FAILED,
    NodeRestarted("pipeline-0"),
    Error("hello"),
]


def test_a_new_instance_hears_its_notices_before_its_first_batch() -> None:
    with OnePipeline(notices=[ParamUpdate("rate", 5), FAILED]).running() as bench:
        bench.put(bench.lane(), range(3))
        bench.until(lambda: len(bench.told()) == 3)
        assert bench.told()[:2] == [ParamUpdate("rate", 5), FAILED]
        assert isinstance(bench.told()[2], Input)


def test_what_is_told_before_the_sink_is_open_waits_and_keeps_its_order() -> None:
    bench = OnePipeline(PipelineSettings(backoff=Backoff(initial=0.05, maximum=0.05)), notices=[FAILED])
    bench.destination.open_errors = [TransientError("down")] * 2
    with bench.running():
        for event in NOTICES:
            bench.pipeline.put(Notice(event))
        bench.until(lambda: bench.pipeline.is_open)
        bench.until(lambda: len(bench.told()) == len(NOTICES) + 1)
        assert bench.told() == [FAILED, *NOTICES]


@pytest.mark.invariant(10)
def test_a_failure_is_told_before_stop_even_to_a_sink_that_never_opened() -> None:
    bench = OnePipeline(PipelineSettings(backoff=Backoff(initial=60, maximum=60)), notices=[FAILED])
    bench.destination.open_errors = [TransientError("down")]
    with bench.running():
        bench.until(lambda: bench.pipeline.open_retry is not None)
        bench.pipeline.put(Finish(StopCause.MANUAL))
        bench.until(lambda: bool(bench.find(Finished)))
        assert bench.told() == [FAILED, Stop(StopCause.MANUAL)]


@pytest.mark.parametrize("event", NOTICES, ids=lambda event: type(event).__name__)
def test_events_that_a_sink_chokes_on_do_not_stop_its_records(event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    take = RecordingSink.on_event

    def on_event(sink: RecordingSink, given: Event) -> None:
        take(sink, given)
        if not isinstance(given, Input):
            raise FatalError("what is that?")

    monkeypatch.setattr(RecordingSink, "on_event", on_event)
    with OnePipeline().running() as bench:
        bench.pipeline.put(Notice(event))
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until_written(lane, range(3))
        assert bench.told()[0] == event
        assert bench.find(Failed) == []


def test_a_sink_that_was_written_before_an_event_existed_ignores_it() -> None:
    with OnePipeline().running() as bench:
        bench.pipeline.put(Notice("an event of a later version"))  # type: ignore[arg-type]
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until_written(lane, range(3))


@pytest.mark.invariant(10)
def test_a_stalled_lane_is_closed_once_and_recovers_before_its_next_batch() -> None:
    with OnePipeline().running() as bench:
        lane = bench.lane()
        bench.put(lane, range(2))
        bench.until_written(lane, range(2))
        bench.pipeline.put(StallLane(lane.id))
        bench.pipeline.put(StallLane(lane.id))
        bench.until(lambda: len(bench.told(InputClosed)) == 1)
        bench.put(lane, [2])
        bench.put(lane, [3])
        bench.until_written(lane, range(4))
        kinds = [type(event) for event in bench.told() if not isinstance(event, Stop)]
        assert kinds[0] is Input
        assert kinds[1:4] == [InputClosed, InputRecovered, Input]
        assert kinds.count(InputRecovered) == 1
        assert bench.told(InputClosed) == [InputClosed(lane.id, CloseReason.STALLED)]
        assert bench.told(InputRecovered) == [InputRecovered(lane.id)]


def test_a_lane_that_stalls_before_the_sink_is_open_is_told_when_it_is() -> None:
    bench = OnePipeline(PipelineSettings(limits=BatchLimits(linger_seconds=0), backoff=Backoff(0.05, 0.05)))
    bench.destination.open_errors = [TransientError("down")]
    with bench.running():
        lane = bench.lane()
        bench.pipeline.put(StallLane(lane.id))
        bench.put(lane, range(2))
        bench.until_written(lane, range(2))
        assert [type(event) for event in bench.told()] == [InputClosed, InputRecovered, Input]


@pytest.mark.parametrize("reason", list(CloseReason))
def test_a_lane_that_is_dropped_is_closed_with_its_reason_after_its_last_batch(reason: CloseReason) -> None:
    with OnePipeline().running() as bench:
        lane = bench.lane()
        bench.put(lane, range(2))
        bench.until_written(lane, range(2))
        bench.drop(lane, reason)
        bench.until(lambda: bench.told(InputClosed) == [InputClosed(lane.id, reason)])
        bench.put(lane, [2])
        bench.pipeline.put(Finish(StopCause.ALL_INPUTS_CLOSED))
        bench.until(bench.is_stopped)
        assert bench.told()[-2:] == [InputClosed(lane.id, reason), Stop(StopCause.ALL_INPUTS_CLOSED)]
