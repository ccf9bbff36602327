"""A plugin is replaced between batches: the new one takes over what waits; one that fails leaves the old running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from connector import FatalError, Offset, StoredPosition, TransientError
from connector.api.event import Error, Input, ParamUpdate, Reload, Stop
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.messages import Claimed, Failed, Replace
from connector.pipeline.worker import SINK, PipelineSettings
from connector.sink.retry import Backoff
from tests.support.engine import Destination, FunctionTransform, RecordingSink
from tests.support.pipeline import OnePipeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector import Batch, Sink
    from connector.api.event import Event
    from connector.lane.lane import Lane

T0 = ("t", 0)
SLOW = PipelineSettings(limits=BatchLimits(linger_seconds=0.0), backoff=Backoff(initial=60, maximum=60))


class Versions:
    """Notes when sinks of any version are closed, in one order with the events of all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.closed: list[Sink[Any]] = []

        def close(sink: Sink[Any]) -> None:
            self.closed.append(sink)

        monkeypatch.setattr(RecordingSink, "close", close)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Versions:
    return Versions(monkeypatch)


def _replace(bench: OnePipeline, new: Destination, *notices: Event, adopted: Callable[[], None] = lambda: None) -> None:
    bench.pipeline.put(Replace(SINK, lambda: new.make(0), adopted, lambda: notices))


def _written(bench: OnePipeline, lane: Lane, destination: Destination, offsets: list[int]) -> None:
    bench.until(lambda: destination.offsets((lane.topic, lane.partition)) == offsets)


def _raise(error: Exception) -> Any:
    raise error


def test_the_new_sink_takes_over_and_reload_is_the_old_ones_last_event_before_it_is_closed(versions: Versions) -> None:
    new, adopted = Destination(), list[int]()
    with OnePipeline().running() as bench:
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until_written(lane, range(3))
        _replace(bench, new, ParamUpdate("rate", 5), adopted=lambda: adopted.append(len(bench.told(Reload))))
        bench.put(lane, range(3, 6))
        _written(bench, lane, new, [3, 4, 5])
        assert bench.destination.offsets(T0) == [0, 1, 2]
        assert bench.told()[-1] == Reload(SINK)
        assert len(versions.closed) == 1
        assert adopted == [1]
        kinds = [type(event) for _, event in new.events]
        assert kinds == [ParamUpdate, Input]
    assert [event for _, event in new.events if isinstance(event, Stop)] != []
    assert bench.told(Stop) == []


@pytest.mark.parametrize("error", [TransientError("down"), FatalError("no table"), ValueError("a bug")])
@pytest.mark.parametrize("fails_in", ["make", "open"])
def test_a_sink_that_fails_to_start_leaves_the_old_one_and_says_so(
    fails_in: str, error: Exception, versions: Versions
) -> None:
    new, adopted = Destination(), list[bool]()
    new.open_errors = [error]
    with OnePipeline().running() as bench:
        lane = bench.lane()
        make = (lambda: _raise(error)) if fails_in == "make" else (lambda: new.make(0))
        bench.pipeline.put(Replace(SINK, make, lambda: adopted.append(True), lambda: [ParamUpdate("rate", 5)]))
        bench.put(lane, range(3))
        bench.until_written(lane, range(3))
        (told,) = bench.told(Error)
        assert isinstance(told, Error)
        assert str(error) in told.message
        assert adopted == []
        assert new.events == []
        assert len(versions.closed) == (1 if fails_in == "open" else 0), "what was opened in vain is closed"
        assert bench.find(Failed) == []
        assert bench.told(Reload) == []


def test_a_batch_that_is_being_retried_goes_on_with_the_new_sink() -> None:
    new = Destination()
    settings = PipelineSettings(limits=SLOW.limits, backoff=Backoff(initial=0.05, maximum=0.05))
    with OnePipeline(settings).running() as bench:
        bench.destination.behave = lambda _: _raise(TransientError("down"))
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.retrying(lane)
        _replace(bench, new)
        _written(bench, lane, new, [0, 1, 2])
        bench.until(lambda: bench.acked(lane) == [0, 1])
        assert bench.destination.written == []


def test_a_sink_that_holds_positions_claims_its_lanes_again() -> None:
    new = Destination()
    bench = OnePipeline()
    bench.destination.stored = {T0: StoredPosition(Offset(0))}
    new.stored = {T0: StoredPosition(Offset(3))}
    with bench.running():
        lane, waiting = bench.lane(0), bench.lane(1)
        bench.put(lane, range(3))
        bench.until_written(lane, range(3))
        _replace(bench, new)
        bench.put(lane, range(3, 5))
        _written(bench, lane, new, [3, 4])
        assert [info.id for info in new.claims] == [lane.id, waiting.id]
        assert bench.find(Claimed) == [], "the lanes go on where they are"


def test_a_sink_that_cannot_claim_leaves_the_old_one(versions: Versions) -> None:
    new = Destination()
    new.stored, new.claim_errors = {}, [TransientError("locked")]
    bench = OnePipeline()
    bench.destination.stored = {T0: None}
    with bench.running():
        lane = bench.lane()
        _replace(bench, new)
        bench.put(lane, range(3))
        bench.until_written(lane, range(3))
        assert len(bench.told(Error)) == len(versions.closed) == 1


def test_a_reload_while_the_sink_does_not_open_tries_the_new_one_at_once(versions: Versions) -> None:
    bench, new = OnePipeline(SLOW, notices=[ParamUpdate("rate", 1)]), Destination()
    bench.destination.open_errors = [TransientError("wrong host")]
    with bench.running():
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until(lambda: bench.pipeline.open_retry is not None)
        _replace(bench, new, ParamUpdate("rate", 2))
        _written(bench, lane, new, [0, 1, 2])
        assert [event for _, event in new.events][:2] == [ParamUpdate("rate", 1), ParamUpdate("rate", 2)]
        assert bench.told() == []
        assert len(versions.closed) == 1
        assert bench.pipeline.open_retry is None


def test_a_sink_that_is_open_by_a_reload_is_not_opened_again_by_the_old_timer() -> None:
    backoff = Backoff(initial=0.05, maximum=0.05)
    bench, new = OnePipeline(PipelineSettings(limits=SLOW.limits, backoff=backoff)), Destination()
    bench.destination.open_errors = [TransientError("wrong host")]
    with bench.running():
        bench.until(lambda: bench.pipeline.open_retry is not None)
        _replace(bench, new)
        bench.until(lambda: bench.pipeline.is_open)
        new.open_errors = [FatalError("opened twice")]
        bench.destination.behave = lambda _: None
        lane = bench.lane()
        for offset in range(20):  # past the timer
            bench.put(lane, [offset])
            _written(bench, lane, new, list(range(offset + 1)))
            bench.until(lambda: bench.acked(lane)[-1:] == [offset + 1])  # noqa: B023
        bench.until(lambda: not bench.pipeline._timers or bench.pipeline._timers[0][2] is not None)
        assert bench.find(Failed) == []


# Transforms.


def _adds(text: bytes, made: list[FunctionTransform]) -> Callable[[], FunctionTransform]:
    def apply(batch: Batch) -> Batch:
        return batch.with_column("value", [value + text for value in batch.column("value")])

    def make() -> FunctionTransform:
        made.append(FunctionTransform(apply))
        return made[-1]

    return make


def test_a_transform_is_replaced_in_its_place_and_the_old_one_is_closed() -> None:
    made: list[FunctionTransform] = []
    transforms = [("a", _adds(b"-a1", made)), ("b", _adds(b"-b1", made))]
    with OnePipeline(transforms=transforms).running() as bench:
        lane = bench.lane()
        bench.put(lane, [0], b"x")
        bench.until_written(lane, [0])
        bench.pipeline.put(Replace("a", _adds(b"-a2", made)))
        bench.put(lane, [1], b"x")
        bench.until_written(lane, [0, 1])
        values = [value for batch in bench.destination.batches for value in batch.column("value")]
        assert values == [b"x-a1-b1", b"x-a2-b1"]
        assert [type(event) for event in bench.told()] == [Input, Reload, Input]
        assert bench.told(Reload) == [Reload("a")]
        assert [each.is_closed for each in made] == [True, False, False]


def test_a_transform_that_fails_to_start_leaves_the_old_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FunctionTransform] = []
    with OnePipeline(transforms=[("a", _adds(b"-a1", made))]).running() as bench:
        lane = bench.lane()
        bench.until(lambda: bench.pipeline.is_open)
        monkeypatch.setattr(FunctionTransform, "open", lambda _: _raise(ImportError("no module")))
        bench.pipeline.put(Replace("a", _adds(b"-a2", made)))
        bench.put(lane, [0], b"x")
        bench.until_written(lane, [0])
        assert list(bench.destination.batches[0].column("value")) == [b"x-a1"]
        (told,) = bench.told(Error)
        assert "no module" in getattr(told, "message")  # noqa: B009 - an Error, as asked for
        assert [each.is_closed for each in made] == [False, True]


def test_a_crash_of_a_plugin_is_not_undone_by_a_reload_that_comes_after_it() -> None:
    with OnePipeline().running() as bench:
        bench.destination.behave = lambda _: _raise(ValueError("a bug"))
        lane = bench.lane()
        bench.put(lane, [0])
        bench.until(lambda: bool(bench.find(Failed)))
        _replace(bench, Destination())
        assert bench.stop(lane).wait(5), "the supervisor makes a new pipeline, with the new version"
        assert len(bench.find(Failed)) == 1
