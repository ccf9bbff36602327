"""A sink that holds batches back is asked to finish them whenever others wait for that, and only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connector import ConnectorError, InputClosed, PoisonError, Sink, SinkContext, TransientError
from connector.api.settings import Settings
from connector.lane.lane import RECORD_OVERHEAD_BYTES
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.messages import Failed, Replace
from connector.pipeline.worker import SINK, PipelineSettings
from connector.sink.retry import Backoff
from connector.testing.client import records
from tests.support.engine import Destination, RecordingSink
from tests.support.pipeline import OnePipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from connector import Batch, Event, LaneId
    from connector.lane.lane import Lane

ONE_ROW = BatchLimits(rows=1, linger_seconds=0.0)
QUICK = PipelineSettings(limits=ONE_ROW, backoff=Backoff(initial=0.01, maximum=0.02))


class Holding(Destination):
    """Its sinks keep what is submitted until they are asked to finish it; `errors` is what becomes of it then."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[LaneId, list[tuple[Batch, Callable[[ConnectorError | None], None]]]] = {}
        self.flushed: list[LaneId] = []
        self.errors: list[ConnectorError] = []
        self.flush_errors: list[Exception] = []

    def make(self, pipeline: int) -> Sink[Any]:
        return HoldingSink(Settings(), SinkContext(group_id="g", pipeline=pipeline), self)

    def holds(self, lane: Lane) -> list[int]:
        """The offsets that are held back of a lane."""
        return [offset for batch, _ in list(self.held.get(lane.id, [])) for offset in batch.column("offset")]


class HoldingSink(RecordingSink):
    max_in_flight = 100_000

    def __init__(self, settings: Settings, context: SinkContext, destination: Holding) -> None:
        super().__init__(settings, context, destination)
        self._holding = destination

    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        self._holding.held.setdefault(batch.metadata.lane, []).append((batch, done))

    def flush(self, lane: LaneId) -> None:
        holding = self._holding
        holding.flushed.append(lane)
        if holding.flush_errors:
            raise holding.flush_errors.pop(0)
        held = holding.held.pop(lane, [])
        error = holding.errors.pop(0) if holding.errors else None
        for batch, done in held:
            if error is None:
                holding.written.extend(batch.rows("topic", "partition", "offset"))
            done(error)

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        match event:
            case InputClosed(id=lane):
                for _, done in self._holding.held.pop(lane, []):
                    done(TransientError("closed"))
            case _:
                pass


class Bench(OnePipeline):
    def __init__(self, settings: PipelineSettings = QUICK) -> None:
        self.holding = Holding()
        super().__init__(settings, destination=self.holding)

    def begun(self, partition: int = 0, *, high_bytes: int = 2**24) -> Lane:
        """A lane whose start is behind it."""
        lane = self.lane(partition, high_bytes=high_bytes)
        self.until(lambda: self.acked(lane) == [0])
        return lane

    def until_held(self, lane: Lane, number: int) -> None:
        self.until(lambda: len(self.holding.holds(lane)) == number, f"{number} are held back")

    def flushes(self, reason: str) -> float:
        return float(self.metrics.sink_flushes.labels(reason)._value.get())


def test_without_a_reason_nothing_is_asked_for() -> None:
    with Bench().running() as bench:
        lane = bench.begun()
        bench.put(lane, range(50))
        bench.until_held(lane, 50)
        assert bench.holding.flushed == []
        assert bench.acked(lane) == [0]


@pytest.mark.invariant(5)
def test_a_drain_finishes_the_lanes_that_leave_and_no_other() -> None:
    with Bench().running() as bench:
        leaving, kept = bench.begun(0), bench.begun(1)
        for lane in (leaving, kept):
            bench.put(lane, range(5))
            bench.until_held(lane, 5)
        assert bench.stop(leaving).wait(5)
        assert bench.holding.flushed == [leaving.id]
        assert bench.acked(leaving) == [0, 1, 2, 3, 4, 5]
        assert bench.metrics.drains.labels("drained")._value.get() == 1
        assert bench.holding.holds(kept) == [0, 1, 2, 3, 4]
        assert bench.flushes("drain") == 1


@pytest.mark.invariant(5)
def test_a_drain_finishes_what_it_has_only_now_collected() -> None:
    lingering = PipelineSettings(limits=BatchLimits(rows=100, linger_seconds=60), backoff=QUICK.backoff)
    with Bench(lingering).running() as bench:
        lane = bench.begun()
        bench.put(lane, range(5))
        bench.until(lambda: not lane.has_chunks)
        assert bench.stop(lane).wait(5)
        assert bench.acked(lane) == [0, 1]


def test_the_end_of_a_bounded_run_finishes_its_lane() -> None:
    with Bench().running() as bench:
        lane = bench.begun()
        bench.put(lane, range(3))
        bench.until_held(lane, 3)
        bench.put_messages(lane, records("t", 0, range(3, 6)), is_last=True)
        bench.until(lambda: bench.acked(lane) == [0, 1, 2, 3, 4, 5, 6])
        assert bench.holding.holds(lane) == []
        assert bench.flushes("end") >= 1


@pytest.mark.invariant(11)
def test_a_lane_whose_budget_is_all_at_the_sink_goes_on() -> None:
    with Bench().running() as bench:
        lane = bench.begun(high_bytes=10 * (RECORD_OVERHEAD_BYTES + 5))
        assert not bench.put(lane, range(9))
        bench.until_held(lane, 9)
        assert bench.holding.flushed == []
        assert bench.put(lane, [9])
        bench.until_written(lane, range(10))
        assert bench.flushes("memory") == 1
        assert lane.held_bytes == 0


@pytest.mark.invariant(11)
def test_a_lane_that_is_paused_after_all_of_it_was_taken_goes_on_too() -> None:
    with Bench().running() as bench:
        lane = bench.begun(high_bytes=10 * (RECORD_OVERHEAD_BYTES + 5))
        bench.put(lane, range(8))
        bench.until_held(lane, 8)
        resumed: list[Lane] = []
        assert lane.call_when_low(resumed.append)  # as the consumer thread does, a moment late
        bench.until_written(lane, range(8))
        bench.until(lambda: resumed == [lane])


def test_a_reload_finishes_everything_first() -> None:
    with Bench().running() as bench:
        lanes = [bench.begun(partition) for partition in range(3)]
        for lane in lanes:
            bench.put(lane, range(4))
            bench.until_held(lane, 4)
        new = Holding()
        bench.pipeline.put(Replace(SINK, lambda: new.make(0)))
        for lane in lanes:
            bench.until(lambda lane=lane: bench.acked(lane) == [0, 1, 2, 3, 4])  # type: ignore[misc]
        bench.put(lanes[0], [4])
        bench.until(lambda: new.holds(lanes[0]) == [4])


def test_after_an_outage_the_trial_is_finished_at_once() -> None:
    with Bench().running() as bench:
        lane = bench.begun()
        bench.put(lane, range(20))
        bench.until_held(lane, 20)
        bench.holding.errors = [TransientError("down")] * 3
        HoldingSink.flush(bench.pipeline._delivery.runner.sink, lane.id)  # type: ignore[union-attr, arg-type]  # of age
        bench.until(lambda: sorted(bench.holding.offsets(("t", 0))) == list(range(20)), "all are written in the end")
        bench.until(lambda: sorted(bench.acked(lane)) == list(range(21)))
        assert bench.pipeline.breaker_opens_until is None
        assert bench.flushes("retry") >= 3


def test_a_drain_during_an_outage_is_over_at_once() -> None:
    slow = PipelineSettings(limits=ONE_ROW, backoff=Backoff(initial=30, maximum=30))
    with Bench(slow).running() as bench:
        lane = bench.begun()
        bench.put(lane, range(4))
        bench.until_held(lane, 4)
        bench.holding.errors = [TransientError("down")]
        assert bench.stop(lane).wait(5)
        assert bench.acked(lane) == [0]
        assert bench.metrics.drains.labels("not_drained")._value.get() == 1


def test_what_flush_raises_is_a_bug_of_the_sink() -> None:
    with Bench().running() as bench:
        lane = bench.begun()
        bench.put(lane, range(1))
        bench.until_held(lane, 1)
        bench.holding.flush_errors = [PoisonError("no")]
        assert bench.stop(lane).wait(5)
        bench.until(lambda: bool(bench.find(Failed)))
        assert "HoldingSink.flush raised PoisonError: no" in str(bench.find(Failed)[0].error)
        assert bench.find(Failed)[0].is_crash


def test_a_lane_that_was_lost_frees_its_room() -> None:
    with Bench().running() as bench:
        lane, other = bench.begun(0), bench.begun(1)
        bench.put(lane, range(3))
        bench.until_held(lane, 3)
        bench.drop(lane)
        bench.put(other, range(1))
        bench.until_held(other, 1)
        bench.until(lambda: bench.pipeline._delivery.runner.in_flight == 1)  # type: ignore[union-attr]
