"""Failures of a sink: backoff for each lane, one circuit breaker for the sink, and recovery without a person."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from connector import RecordErrors, TransientError
from connector.api.event import Input
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.messages import Retry
from connector.pipeline.recovery import Recovery
from connector.pipeline.worker import PipelineSettings
from connector.sink.retry import Backoff
from connector.telemetry.metrics import Metrics
from tests.support.engine import Destination, FunctionTransform, RecordingSink
from tests.support.pipeline import OnePipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from connector import Batch, Sink
    from connector.lane.lane import Lane

LIMITS = BatchLimits(linger_seconds=0.0)
SLOW = PipelineSettings(limits=LIMITS, backoff=Backoff(initial=60, maximum=60))


class ProbedSink(RecordingSink):
    """Can be asked whether its destination is there."""

    def probe(self) -> None:
        destination = self._destination
        assert isinstance(destination, Probed)
        destination.probes += 1
        if destination.is_down:
            raise TransientError("still down")


class Probed(Destination):
    """A destination that can be down, and can be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = True
        self.probes = 0
        self.behave = self._down

    def _down(self, _: Batch) -> None:
        if self.is_down:
            raise TransientError("down")

    def make(self, pipeline: int) -> Sink[Any]:
        made = super().make(pipeline)
        return ProbedSink(made.settings, made.context, self)


def _down(_: object) -> None:
    raise TransientError("down")


def _writes(bench: OnePipeline) -> int:
    return len(bench.told(Input))


def _open_breaker(bench: OnePipeline, lanes: list[Lane]) -> None:
    """Let each of five lanes fail once, in a pipeline whose backoff is long."""
    for number, lane in enumerate(lanes, 1):
        bench.put(lane, range(3))
        bench.until(lambda: bench.metrics.sink_retries._value.get() == number)  # noqa: B023
    assert bench.pipeline.breaker_opens_until is not None


def test_failures_in_a_row_over_several_lanes_open_the_breaker() -> None:
    with OnePipeline(SLOW).running() as bench:
        bench.destination.behave = _down
        _open_breaker(bench, [bench.lane(partition) for partition in range(5)])
        waiting = bench.lane(5)
        bench.put(waiting, range(3))
        bench.until(lambda: waiting.id in bench.pipeline.retries)
        assert _writes(bench) == 5, "nothing is tried behind an open breaker"
        retry = bench.pipeline.retries[waiting.id]
        assert (retry.failures, retry.error) == (0, "the circuit breaker is open: down")
        assert bench.metrics.breaker_opens._value.get() == 1


def test_a_success_between_them_keeps_it_closed() -> None:
    with OnePipeline(SLOW).running() as bench:
        for partition in range(8):
            bench.destination.behave = _down
            lane = bench.lane(partition)
            bench.put(lane, range(3))
            bench.retrying(lane)
            bench.destination.behave = lambda _: None
            fine = bench.lane(100 + partition)
            bench.put(fine, range(3))
            bench.until_written(fine, range(3))
        assert bench.metrics.breaker_opens._value.get() == 0


def test_a_batch_of_which_nothing_reaches_the_sink_says_nothing_about_it() -> None:
    transforms = [("odd", lambda: FunctionTransform(lambda b: b.select(()) if b.metadata.partition >= 100 else b))]
    with OnePipeline(SLOW, transforms=transforms).running() as bench:
        bench.destination.behave = _down
        for partition in range(5):
            lane = bench.lane(partition)
            bench.put(lane, range(3))
            bench.retrying(lane)
            if partition < 4:
                filtered = bench.lane(100 + partition)
                bench.put(filtered, range(3))
                bench.until(lambda: bench.acked(filtered) == [0, 1])  # noqa: B023
        assert bench.pipeline.breaker_opens_until is not None


def test_records_that_fail_while_others_are_written_do_not_open_it_but_all_of_them_do() -> None:
    with OnePipeline(SLOW).running() as bench:

        def some(batch: Batch) -> None:
            raise RecordErrors({0: TransientError("busy")})

        def every(batch: Batch) -> None:
            raise RecordErrors({index: TransientError("busy") for index in range(len(batch))})

        for behave, opens in ((some, 0), (every, 1)):
            bench.destination.behave = behave
            for partition in range(6):
                lane = bench.lane(partition)
                bench.put(lane, range(3))
                bench.until(lambda: lane.id in bench.pipeline.retries)  # noqa: B023
            assert bench.metrics.breaker_opens._value.get() == opens


def test_the_success_of_a_probe_wakes_every_lane_at_once() -> None:
    settings = PipelineSettings(limits=LIMITS, backoff=Backoff(initial=0.05, maximum=60))
    destination = Probed()
    with OnePipeline(settings, destination=destination).running() as bench:
        lanes = [bench.lane(partition) for partition in range(8)]
        for lane in lanes:
            bench.put(lane, range(3))
        bench.until(lambda: destination.probes >= 4)  # the open periods double: 50, 100, 200, 400 ms
        writes = _writes(bench)
        destination.is_down = False
        started = time.monotonic()
        for lane in lanes:
            bench.until_written(lane, range(3))
        assert time.monotonic() - started < 3
        assert _writes(bench) == writes + 8
        assert bench.pipeline.breaker_opens_until is None
        assert bench.pipeline.retries == {}


def test_whoever_finds_the_sink_back_closes_the_breaker_for_all() -> None:
    with OnePipeline(SLOW).running() as bench:
        bench.destination.behave = _down
        lanes = [bench.lane(partition) for partition in range(5)]
        _open_breaker(bench, lanes)
        bench.destination.behave = lambda _: None
        assert bench.stop(lanes[0]).wait(5)  # its one attempt
        for lane in lanes:
            bench.until_written(lane, range(3))
        assert bench.pipeline.breaker_opens_until is None


def test_a_probe_is_asked_once_in_a_period_and_no_batch_is_risked_while_it_fails() -> None:
    backoff = Backoff(initial=0.05, maximum=0.05)
    destination = Probed()
    with OnePipeline(PipelineSettings(limits=LIMITS, backoff=backoff), destination=destination).running() as bench:
        for partition in range(20):
            bench.put(bench.lane(partition), range(3))
        bench.until(lambda: destination.probes >= 1)
        writes, began, probes = _writes(bench), time.monotonic(), destination.probes
        bench.until(lambda: destination.probes >= probes + 5)
        assert _writes(bench) == writes
        assert destination.probes - probes <= (time.monotonic() - began) / 0.04 + 1


def test_without_a_probe_one_batch_in_a_period_is_risked() -> None:
    settings = PipelineSettings(limits=LIMITS, backoff=Backoff(initial=0.05, maximum=0.05))
    with OnePipeline(settings).running() as bench:
        bench.destination.behave = _down
        for partition in range(20):
            bench.put(bench.lane(partition), range(3))
        bench.until(lambda: bench.pipeline.breaker_opens_until is not None)
        writes, began = _writes(bench), time.monotonic()
        bench.until(lambda: _writes(bench) >= writes + 5)
        assert _writes(bench) - writes <= (time.monotonic() - began) / 0.04 + 1


@pytest.mark.invariant(2)
@pytest.mark.parametrize("in_backoff_first", [True, False])
def test_a_revocation_behind_an_open_breaker_makes_one_attempt_for_all_lanes(in_backoff_first: bool) -> None:
    with OnePipeline(SLOW).running() as bench:
        bench.destination.behave = _down
        failing = [bench.lane(partition) for partition in range(5)]
        _open_breaker(bench, failing)
        quiet = [bench.lane(partition) for partition in range(5, 10)]
        for lane in quiet:
            bench.put(lane, range(3))
            bench.until(lambda: lane.id in bench.pipeline.retries)  # noqa: B023
        writes, started = _writes(bench), time.monotonic()
        assert bench.stop(*([*failing, *quiet] if in_backoff_first else [*quiet, *failing])).wait(5)
        assert time.monotonic() - started < 3
        assert _writes(bench) == writes + 1
        assert bench.metrics.drains.labels("not_drained")._value.get() == 10
        assert bench.pipeline.retries == {}


def test_a_revocation_behind_an_open_breaker_drains_everything_when_the_sink_is_back() -> None:
    with OnePipeline(SLOW).running() as bench:
        bench.destination.behave = _down
        lanes = [bench.lane(partition) for partition in range(7)]
        _open_breaker(bench, lanes[:5])
        for lane in lanes[5:]:
            bench.put(lane, range(3))
            bench.until(lambda: lane.id in bench.pipeline.retries)  # noqa: B023
        bench.destination.behave = lambda _: None
        assert bench.stop(*lanes).wait(5)
        assert len(bench.destination.written) == 21
        assert bench.metrics.drains.labels("drained")._value.get() == 7


def test_a_lane_that_only_lingers_is_tried_at_a_revocation_behind_an_open_breaker() -> None:
    settings = PipelineSettings(limits=BatchLimits(rows=3, linger_seconds=60), backoff=SLOW.backoff)
    with OnePipeline(settings).running() as bench:
        bench.destination.behave = _down
        _open_breaker(bench, [bench.lane(partition) for partition in range(5)])
        lane = bench.lane(9)
        bench.put(lane, range(2))
        bench.until(lambda: not lane.has_chunks)
        bench.destination.behave = lambda _: None
        assert bench.stop(lane).wait(5)
        assert bench.destination.offsets(("t", 9)) == [0, 1]


def test_a_half_open_breaker_asks_and_tells_why_not() -> None:
    recovery = Recovery(Backoff(initial=0.001, maximum=0.001), Metrics(), 0)
    for _ in range(5):
        recovery.note_failure(TransientError("down"))
    while (obstacle := recovery.obstacle(Retry(3, "down", 0.0), lambda: None)) is not None:
        assert (obstacle.failures, obstacle.error) == (3, "down")

    def still_down() -> None:
        raise TransientError("still down")

    deadline = time.monotonic() + 5
    while (obstacle := recovery.obstacle(None, still_down)) is None or obstacle.error != "still down":
        assert time.monotonic() < deadline
    assert recovery.note_success()
    assert recovery.obstacle(None, still_down) is None, "a closed breaker asks nothing"


def _busy(_: object) -> None:
    raise TransientError("come back later", retry_after=60)


def _busy_with_one(_: object) -> None:
    raise RecordErrors({0: TransientError("locked"), 2: TransientError("come back later", retry_after=60)})


@pytest.mark.parametrize("behave", [_busy, _busy_with_one])
def test_a_destination_that_asks_for_time_has_it_from_every_lane(behave: Callable[[object], None]) -> None:
    with OnePipeline(PipelineSettings(limits=LIMITS, backoff=Backoff(initial=0.01, maximum=0.02))).running() as bench:
        bench.destination.behave = behave
        asked, other = bench.lane(0), bench.lane(1)
        bench.put(asked, range(3))
        bench.retrying(asked)
        bench.put(other, range(3))
        bench.until(lambda: other.id in bench.pipeline.retries)
        assert _writes(bench) == 1, "the other lane leaves it alone too"
        now = time.monotonic()
        for lane in (asked, other):
            retry = bench.pipeline.retries[lane.id]
            assert 50 < retry.at - now <= 60
            assert "come back later" in retry.error


def test_the_time_that_is_asked_for_is_over_when_it_is_over() -> None:
    with OnePipeline(PipelineSettings(limits=LIMITS, backoff=Backoff(initial=0.01, maximum=0.02))).running() as bench:
        moments = []

        def busy_once(_: object) -> None:
            moments.append(time.monotonic())
            if len(moments) == 1:
                raise TransientError("come back later", retry_after=0.3)

        bench.destination.behave = busy_once
        lanes = [bench.lane(partition) for partition in range(2)]
        for lane in lanes:
            bench.put(lane, range(3))
        for lane in lanes:
            bench.until_written(lane, range(3))
        assert moments[1] - moments[0] >= 0.3
        assert bench.pipeline.breaker_opens_until is None


@pytest.mark.invariant(2)
def test_a_revocation_does_not_wait_for_the_time_that_is_asked_for_and_makes_one_attempt() -> None:
    with OnePipeline(SLOW).running() as bench:
        bench.destination.behave = _busy
        lanes = [bench.lane(partition) for partition in range(4)]
        for lane in lanes:
            bench.put(lane, range(3))
            bench.until(lambda: lane.id in bench.pipeline.retries)  # noqa: B023
        started = time.monotonic()
        assert bench.stop(*lanes).wait(5)
        assert time.monotonic() - started < 3
        assert _writes(bench) == 2
