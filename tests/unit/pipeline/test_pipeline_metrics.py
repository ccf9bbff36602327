"""Where a pipeline's time goes, how old what it holds is, and how late its data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from connector import PoisonError, TransientError
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.decode import Format
from connector.pipeline.screen import Screen
from connector.pipeline.work import produced_at
from connector.pipeline.worker import PipelineSettings
from connector.sink.retry import Backoff
from tests.support.engine import HeldDestination
from tests.support.pipeline import QUICK, FakeLetters, OnePipeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connector import Batch

NEVER_AGAIN = PipelineSettings(limits=BatchLimits(linger_seconds=0.0), backoff=Backoff(initial=60, maximum=60))


def seconds(bench: OnePipeline) -> Mapping[str, float]:
    read = bench.metrics.registry.get_sample_value
    activities = ("wait", "decode", "transform", "sink", "dead_letters", "blocked", "other")
    labels = [{"pipeline": "0", "activity": activity} for activity in activities]
    return {each["activity"]: read("connector_pipeline_seconds_total", each) or 0.0 for each in labels}


def busiest(bench: OnePipeline, activity: str) -> None:
    """Wait until a pipeline spends its time so: of the last moments, all."""

    def is_all() -> bool:
        before = seconds(bench)
        time.sleep(0.01)
        after = seconds(bench)
        return after[activity] - before[activity] > 0.9 * (sum(after.values()) - sum(before.values()))

    bench.until(is_all, f"all time goes to {activity}: {seconds(bench)}")


def test_the_activities_of_a_pipeline_add_up_to_its_life() -> None:
    started = time.perf_counter()
    with OnePipeline().running() as bench:
        made = time.perf_counter()
        lane = bench.lane()
        bench.put(lane, range(1000))
        bench.until_written(lane, range(1000))
        busiest(bench, "wait")
        least = time.perf_counter() - made
        total = sum(seconds(bench).values())
        assert least <= total <= time.perf_counter() - started
    ended = sum(seconds(bench).values())
    time.sleep(0.01)
    assert sum(seconds(bench).values()) == ended


def test_a_write_that_hangs_is_the_sinks_time_while_it_hangs() -> None:
    with OnePipeline().running() as bench:
        bench.destination.hang()
        bench.put(bench.lane(), [0])
        bench.destination.wait_hanging()
        busiest(bench, "sink")


def test_records_that_a_failing_sink_holds_back_are_blocked_time() -> None:
    with OnePipeline(NEVER_AGAIN).running() as bench:
        lane = bench.lane()
        busiest(bench, "wait")

        def fail(_: Batch) -> None:
            raise TransientError("down")

        bench.destination.behave = fail
        bench.put(lane, [0])
        bench.retrying(lane)
        busiest(bench, "blocked")


def test_a_sink_that_is_not_open_blocks_the_lanes_that_there_are() -> None:
    bench = OnePipeline(NEVER_AGAIN)
    bench.destination.open_errors = [TransientError("down")]
    with bench.running():
        bench.until(lambda: bench.pipeline.open_retry is not None)
        busiest(bench, "wait")
        bench.lane()
        busiest(bench, "blocked")


def test_an_asynchronous_sink_blocks_when_it_is_full_and_more_is_there() -> None:
    settings = PipelineSettings(limits=BatchLimits(rows=1, linger_seconds=0.0), backoff=QUICK.backoff)
    destination = HeldDestination()
    with OnePipeline(settings, destination=destination).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until(lambda: len(destination.submitted) == 3)
        busiest(bench, "wait")  # full, but nothing waits for it
        bench.put(lane, [3])
        busiest(bench, "blocked")
        for index in range(3):
            destination.settle(index)
        bench.until(lambda: len(destination.submitted) == 4)
        busiest(bench, "wait")
        destination.settle(3)


def test_decoding_and_dead_letters_have_times_of_their_own() -> None:
    letters = FakeLetters()
    letters.before = lambda: time.sleep(0.03)
    settings = PipelineSettings(limits=QUICK.limits, backoff=QUICK.backoff, screen=Screen(value_format=Format.JSON))
    with OnePipeline(settings, rejects=letters.rejects).running() as bench:

        def refuse(_: Batch) -> None:
            raise PoisonError("no")

        bench.destination.behave = refuse
        lane = bench.lane()
        bench.put(lane, range(2), b"1")
        bench.until(lambda: len(letters.confirmed) == 2)
        bench.until(lambda: bench.acked(lane) == [0, 1])
    spent = seconds(bench)
    assert spent["dead_letters"] >= 0.03
    assert spent["decode"] > 0
    assert spent["sink"] > 0


@pytest.mark.parametrize(
    ("kind", "milliseconds", "expected"),
    [
        (TIMESTAMP_CREATE_TIME, 1_700_000_000_123, 1_700_000_000.123),
        (TIMESTAMP_CREATE_TIME, 0, 0.0),
        (TIMESTAMP_CREATE_TIME, -1, None),
        (TIMESTAMP_NOT_AVAILABLE, 0, None),
    ],
)
def test_a_record_without_timestamp_has_no_age(kind: int, milliseconds: int, expected: float | None) -> None:
    assert produced_at(message(0, milliseconds, kind)) == expected


def message(offset: int, milliseconds: int, kind: int = TIMESTAMP_CREATE_TIME) -> Message:
    return Message(topic="t", partition=0, offset=offset, value=b"v", timestamp=(kind, milliseconds))


def latency(bench: OnePipeline, field: str) -> float | None:
    return bench.metrics.registry.get_sample_value(f"connector_end_to_end_latency_seconds_{field}", {"topic": "t"})


def test_the_latency_of_a_batch_is_the_age_of_its_first_record_and_is_observed_once() -> None:
    with OnePipeline().running() as bench:
        lane = bench.lane()
        now = int(time.time() * 1000)
        bench.put_messages(lane, [message(0, now - 60_000), message(1, now)])
        bench.until(lambda: latency(bench, "count") == 1)
        assert 60 <= (latency(bench, "sum") or 0) < 60 + 10
        bench.put_messages(lane, [message(2, now + 3_600_000)])  # a clock that is ahead: no negative time
        bench.until(lambda: latency(bench, "count") == 2)
        assert 60 <= (latency(bench, "sum") or 0) < 60 + 10
        bench.put_messages(lane, [message(3, -1)])
        bench.until_written(lane, range(4))
    assert latency(bench, "count") == 2


def test_what_is_out_is_as_old_as_its_oldest_record_whatever_the_order_of_acknowledgements() -> None:
    settings = PipelineSettings(limits=BatchLimits(rows=1, linger_seconds=0.0), backoff=QUICK.backoff)
    destination = HeldDestination()
    with OnePipeline(settings, destination=destination).running() as bench:
        lane = bench.lane()
        bench.put(lane, [0])
        first = lane.held_since
        assert first is not None
        bench.until(lambda: len(destination.submitted) == 1)
        bench.put(lane, [1])
        bench.until(lambda: len(destination.submitted) == 2)
        destination.settle(1)
        bench.until(lambda: bench.acked(lane) == [0, 2])
        assert lane.held_since == first
        one_of_three = lane.sink_bytes
        assert one_of_three > 0
        destination.settle(0)
        bench.until(lambda: lane.held_since is None)
        assert lane.sink_bytes == lane.held_bytes == 0
