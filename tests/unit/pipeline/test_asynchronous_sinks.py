"""Sinks that acknowledge asynchronously: several batches in flight, settled in any order, from any thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from connector import ExitCode, FatalError, PoisonError, RecordErrors, RefusedError, TransientError
from connector.api.event import CloseReason, InputClosed, Reload
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.messages import Acked, Failed, Refused, Replace
from connector.pipeline.rejects import OnPoison
from connector.pipeline.worker import SINK, PipelineSettings
from connector.sink.plugin import CrashError
from connector.sink.retry import Backoff
from tests.support.engine import Engine, HeldDestination, MemoryDriver
from tests.support.pipeline import OnePipeline

if TYPE_CHECKING:
    from connector import Sink
    from connector.lane.lane import Lane

ONE_ROW = BatchLimits(rows=1, linger_seconds=0.0)
SLOW = PipelineSettings(limits=ONE_ROW, backoff=Backoff(initial=60, maximum=60))
QUICK = PipelineSettings(limits=ONE_ROW, backoff=Backoff(initial=0.01, maximum=0.02))


class Bench(OnePipeline):
    """A pipeline whose sink keeps what is submitted."""

    destination: HeldDestination

    def __init__(self, settings: PipelineSettings = QUICK, on_poison: OnPoison = OnPoison.FAIL) -> None:
        super().__init__(settings, on_poison, destination=HeldDestination())

    def until_submitted(self, number: int) -> None:
        self.until(lambda: len(self.destination.submitted) == number, f"{number} are submitted")

    def submitted(self) -> list[list[int]]:
        return [submission.offsets for submission in list(self.destination.submitted)]

    def begun(self, partition: int = 0) -> Lane:
        """A lane whose start is acknowledged."""
        lane = self.lane(partition)
        self.until(lambda: self.acked(lane) == [0])
        return lane


def test_several_batches_are_in_flight_and_one_more_goes_for_each_that_is_settled() -> None:
    with Bench().running() as bench:
        lane = bench.begun()
        bench.put(lane, range(6))
        bench.until_submitted(3)
        bench.destination.settle(1)
        bench.until_submitted(4)
        assert bench.submitted() == [[0], [1], [2], [3]]
        for index in (0, 2, 3):
            bench.destination.settle(index)
        bench.until_submitted(6)


@pytest.mark.parametrize("lingers", [True, False])
def test_the_limit_holds_for_all_lanes_together_also_when_they_drain(lingers: bool) -> None:
    limits = BatchLimits(rows=10, linger_seconds=60) if lingers else ONE_ROW
    with Bench(PipelineSettings(limits=limits, backoff=QUICK.backoff)).running() as bench:
        lanes = [bench.begun(partition) for partition in range(5)]
        for lane in lanes:
            bench.put(lane, range(2))
        if lingers:
            bench.until(lambda: not any(lane.has_chunks for lane in lanes))
        else:
            bench.until_submitted(3)
        barrier = bench.stop(*lanes)
        settled = 0
        while barrier.remaining:
            bench.until(lambda: len(bench.destination.submitted) > settled or barrier.remaining == 0)  # noqa: B023
            if settled < len(bench.destination.submitted):
                assert len(bench.destination.submitted) - settled <= 3
                bench.destination.settle(settled)
                settled += 1
        assert bench.metrics.drains.labels("not_drained")._value.get() == 0


@pytest.mark.invariant(3)
def test_acknowledgements_come_in_any_order_and_the_watermark_is_the_finished_prefix() -> None:
    driver, destination = MemoryDriver(), HeldDestination()
    driver.assign(("t", 0))
    driver.append(("t", 0), range(3))
    with Engine(driver, destination, settings=QUICK) as engine:
        engine.until(lambda: len(destination.submitted) == 3)
        destination.settle(2)
        destination.settle(1)
        engine.until(lambda: destination.offsets(("t", 0)) == [2, 1])
        (lane,) = engine.controller.fleet.lanes
        engine.until(lambda: engine.controller.checkpointer.pending([lane]) == 1)
        assert driver.committed(("t", 0)) in (None, 0)
        destination.settle(0)
        engine.until_committed(("t", 0), 3)


def test_a_batch_that_failed_is_tried_again_while_the_others_go_on() -> None:
    with Bench().running() as bench:
        lane = bench.begun()
        bench.put(lane, range(3))
        bench.until_submitted(3)
        bench.destination.settle(0, TransientError("down"))
        bench.destination.settle(1)
        bench.until_submitted(4)
        assert bench.submitted()[3] == [0]
        bench.destination.settle(2)
        bench.until(lambda: bench.acked(lane) == [0, 2, 3])
        bench.destination.settle(3)
        bench.until(lambda: bench.acked(lane) == [0, 2, 3, 1])


def test_what_others_settle_does_not_cut_a_backoff_short() -> None:
    with Bench(SLOW).running() as bench:
        lane = bench.begun()
        bench.put(lane, range(3))
        bench.until_submitted(3)
        bench.destination.settle(0, TransientError("down"))
        bench.retrying(lane)
        bench.destination.settle(1)
        bench.destination.settle(2)
        bench.until(lambda: bench.acked(lane) == [0, 2, 3])
        assert len(bench.destination.submitted) == 3
        assert bench.pipeline.retries[lane.id].failures == 1


def test_failures_of_a_batch_add_up_over_its_tries_until_the_limit() -> None:
    backoff = Backoff(initial=0.01, maximum=0.01, limit=2)
    with Bench(PipelineSettings(limits=ONE_ROW, backoff=backoff)).running() as bench:
        bench.put(bench.begun(), range(1))
        for index in range(3):
            bench.until_submitted(index + 1)
            bench.destination.settle(index, TransientError("down"))
        bench.until(lambda: bool(bench.find(Failed)))
        assert "failed 3 times (last error: down)" in str(bench.find(Failed)[0].error)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_revocation_waits_for_what_is_in_flight(order: list[int]) -> None:
    with Bench().running() as bench:
        lane = bench.begun()
        bench.put(lane, range(2))
        bench.until_submitted(2)
        barrier = bench.stop(lane)
        assert not barrier.wait(0.05)
        for index in order:
            assert barrier.remaining == 1
            bench.destination.settle(index)
        assert barrier.wait(5)
        assert sorted(bench.acked(lane)) == [0, 1, 2]
        assert bench.told(InputClosed) == [InputClosed(lane.id, CloseReason.REVOKED)]


def test_a_revocation_waits_for_the_others_when_one_has_failed() -> None:
    with Bench(SLOW).running() as bench:
        lane = bench.begun()
        bench.put(lane, range(2))
        bench.until_submitted(2)
        barrier = bench.stop(lane)
        bench.destination.settle(1, TransientError("down"))
        assert not barrier.wait(0.05)
        bench.destination.settle(0)
        assert barrier.wait(5), "what failed does not wait for its backoff"
        assert bench.acked(lane) == [0, 1]


def test_a_revocation_waits_no_longer_than_its_deadline_and_a_late_word_is_harmless() -> None:
    with Bench().running() as bench:
        lane, other = bench.begun(0), bench.begun(1)
        bench.put(lane, range(2))
        bench.until_submitted(2)
        started = time.monotonic()
        assert bench.stop(lane, timeout=0.1).wait(5)
        assert time.monotonic() - started < 3
        assert bench.acked(lane) == [0]
        bench.destination.settle(0)
        bench.destination.settle(1, TransientError("late"))
        bench.put(other, range(3))
        bench.until_submitted(5)
        assert bench.acked(lane) == [0]
        assert bench.pipeline.retries == {}


def test_records_that_failed_are_submitted_again_alone() -> None:
    limits = BatchLimits(rows=5, linger_seconds=0.0)
    with Bench(PipelineSettings(limits=limits, backoff=QUICK.backoff), OnPoison.SKIP).running() as bench:
        lane = bench.begun()
        bench.put(lane, range(5))
        bench.until_submitted(1)
        bench.destination.settle(0, RecordErrors({1: PoisonError("bad"), 3: TransientError("busy")}))
        bench.until_submitted(2)
        assert bench.submitted()[1] == [3]
        bench.destination.settle(1)
        bench.until(lambda: bench.acked(lane) == [0, 1])
        assert bench.metrics.skipped_records.labels("t", "write", "PoisonError")._value.get() == 1


def test_a_poison_batch_is_halved_within_the_limit_until_the_record_is_found() -> None:
    limits = BatchLimits(rows=8, linger_seconds=0.0)
    with Bench(PipelineSettings(limits=limits, backoff=QUICK.backoff), OnPoison.SKIP).running() as bench:
        lane = bench.begun()
        bench.put(lane, range(8))
        settled = 0
        while bench.acked(lane) != [0, 1]:
            bench.until(lambda: len(bench.destination.submitted) > settled or bench.acked(lane) == [0, 1])  # noqa: B023
            if settled < len(bench.destination.submitted):
                assert len(bench.destination.submitted) - settled <= 3
                bad = 5 in bench.submitted()[settled]
                bench.destination.settle(settled, PoisonError("bad") if bad else None)
                settled += 1
        assert sorted(bench.destination.offsets(("t", 0))) == [0, 1, 2, 3, 4, 6, 7]


def test_a_refused_batch_lets_its_lane_go() -> None:
    with Bench().running() as bench:
        lane = bench.begun()
        bench.put(lane, range(2))
        bench.until_submitted(2)
        bench.destination.settle(0, RefusedError("another"))
        bench.until(lambda: bench.find(Refused) == [Refused(lane.id)])
        bench.destination.settle(1)
        assert bench.stop(lane).wait(5)


@pytest.mark.parametrize(
    ("error", "is_crash"), [(FatalError("disk gone"), False), (ValueError("a bug"), True), (PoisonError("bad"), False)]
)
def test_what_ends_a_pipeline_ends_it_from_a_late_word_too(error: Exception, is_crash: bool) -> None:
    with Bench().running() as bench:
        lane = bench.begun()
        bench.put(lane, range(2))
        bench.until_submitted(2)
        barrier = bench.stop(lane)
        bench.destination.settle(0, error)
        bench.until(lambda: bool(bench.find(Failed)))
        failed = bench.find(Failed)[0]
        assert (failed.is_crash, isinstance(failed.error, CrashError)) == (is_crash, is_crash)
        assert failed.error.exit_code is (ExitCode.POISON if isinstance(error, PoisonError) else ExitCode.SINK)
        assert barrier.wait(5)


def test_what_submit_raises_is_retried_or_ends_it() -> None:
    with Bench().running() as bench:
        bench.destination.submit_errors = [TransientError("full"), TransientError("full")]
        lane = bench.begun()
        bench.put(lane, range(1))
        bench.until_submitted(1)
        assert bench.metrics.sink_retries._value.get() == 2
        bench.destination.settle(0)
        bench.until(lambda: bench.acked(lane) == [0, 1])
        bench.destination.submit_errors = [ValueError("a bug")]
        bench.put(lane, [1])
        bench.until(lambda: bool(bench.find(Failed)))
        assert bench.find(Failed)[0].is_crash


def test_behind_an_open_breaker_one_batch_is_the_probe() -> None:
    with Bench(PipelineSettings(limits=ONE_ROW, backoff=Backoff(initial=0.2, maximum=0.2))).running() as bench:
        lanes = [bench.begun(partition) for partition in range(3)]
        for lane in lanes:
            bench.put(lane, range(1))
        bench.until_submitted(3)
        failed = 0
        while bench.pipeline.breaker_opens_until is None:
            bench.until(lambda: len(bench.destination.submitted) > failed)  # noqa: B023
            bench.destination.settle(failed, TransientError("down"))
            failed += 1
            bench.until(lambda: bench.metrics.sink_retries._value.get() == failed)  # noqa: B023
        for index in range(failed, len(bench.destination.submitted)):  # in flight when it opened
            bench.destination.settle(index, TransientError("down"))
        submitted = len(bench.destination.submitted)
        bench.until_submitted(submitted + 1)
        until = bench.pipeline.breaker_opens_until
        assert until is not None
        assert until > time.monotonic()
        bench.destination.settle(submitted)
        bench.until_submitted(submitted + 3)
        assert bench.pipeline.breaker_opens_until is None


def test_a_reload_waits_for_what_is_in_flight_and_nothing_is_submitted_meanwhile() -> None:
    old, new = HeldDestination(), HeldDestination()
    made: list[Sink[Any]] = []

    def make() -> Sink[Any]:
        made.append(new.make(0))
        return made[0]

    bench = Bench()
    bench.destination = old
    with bench.running():
        lane = bench.begun()
        bench.put(lane, range(5))
        bench.until_submitted(3)
        bench.pipeline.put(Replace(SINK, make))
        old.settle(0)
        old.settle(2, TransientError("down"))
        bench.until(lambda: bench.acked(lane) == [0, 1])
        assert made == []
        assert bench.told(Reload) == []
        old.settle(1)
        bench.until(lambda: len(new.submitted) == 3)
        assert bench.submitted() == [[0], [1], [2]], "the old one was given nothing more"
        assert [submission.offsets for submission in new.submitted] == [[2], [3], [4]]
        assert bench.told()[-1] == Reload(SINK)
        for index in range(3):
            new.settle(index)
        bench.until(lambda: sorted(bench.acked(lane)) == [0, 1, 2, 3, 4, 5])
    assert [type(report) for report in bench.reports].count(Acked) == 6
