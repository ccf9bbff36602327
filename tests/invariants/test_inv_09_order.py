"""INV-9: a lane keeps its order, through retries, bad records and back pressure."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import PoisonError, TransientError
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.messages import Acked, Delivered
from connector.pipeline.rejects import OnPoison
from connector.pipeline.worker import PipelineSettings
from connector.runtime.controller import ExitState
from connector.sink.retry import Backoff
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver, make_driver
from tests.support.pipeline import OnePipeline

if TYPE_CHECKING:
    from connector import Batch

A = ("t", 0)
gaps = st.lists(st.integers(1, 5), max_size=15)
SETTINGS = PipelineSettings(
    limits=BatchLimits(rows=5, linger_seconds=0.0), backoff=Backoff(initial=0.0001, maximum=0.0002)
)


@pytest.mark.invariant(9)
@settings(max_examples=20, deadline=None)
@given(partitions=st.lists(gaps, min_size=1, max_size=4), failures=st.lists(st.booleans(), max_size=12))
def test_each_partition_is_written_in_order_whatever_fails_on_the_way(
    partitions: list[list[int]], failures: list[bool]
) -> None:
    ends = {("t", number): list(accumulate(gaps)) for number, gaps in enumerate(partitions)}
    driver, destination, coming = make_driver("memory", ends=ends), Destination(), iter(failures)

    def behave(_: Batch) -> None:
        if next(coming, False):
            raise TransientError("down")

    destination.behave = behave
    driver.assign(*ends)
    rules = PipelineSettings(limits=BatchLimits(rows=3, linger_seconds=0.001), backoff=Backoff(0.001, 0.001))
    with Engine(driver, destination, pipelines=2, settings=rules) as engine:
        assert engine.join().state is ExitState.COMPLETED
    assert {key: destination.offsets(key) for key in ends} == ends


@pytest.mark.invariant(9)
@settings(max_examples=25, deadline=None)
@given(
    chunks=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    faults=st.lists(st.sampled_from(["ok", "transient", "poison"]), max_size=30),
)
def test_records_reach_the_sink_in_order_and_acks_come_in_order_whatever_fails(
    chunks: list[int], faults: list[str]
) -> None:
    bench = OnePipeline(SETTINGS, OnPoison.SKIP)
    script = iter(faults)

    def behave(_: object) -> None:
        match next(script, "ok"):
            case "transient":
                raise TransientError("down")
            case "poison":
                raise PoisonError("bad")
            case _:
                pass

    bench.destination.behave = behave
    total = sum(chunks)
    with bench.running():
        lane, begin = bench.lane(), 0
        for size in chunks:
            bench.put(lane, range(begin, begin + size))
            begin += size
        bench.until(
            lambda: (
                bench.find(Delivered)[-1:] != []
                and bench.find(Delivered)[-1].next_offset == total
                and len(bench.find(Acked)) == len(bench.find(Delivered))
            )
        )
    offsets = bench.destination.offsets(A)
    assert offsets == sorted(set(offsets))
    skipped = bench.metrics.skipped_records.labels("t", "write", "PoisonError")._value.get()
    assert len(offsets) + skipped == total
    assert [report.sequence for report in bench.find(Acked)] == [*range(len(bench.find(Delivered)))]


@pytest.mark.invariant(9)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lane_keeps_its_order_through_pause_and_resume_over_gaps(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, lanes_bytes=30_000), Destination()
    offsets = [3 * index + index // 50 for index in range(1500)]
    driver.append(A, offsets)
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_written(A, offsets)
        engine.until_committed(A, offsets[-1] + 1)
    assert driver.fake.names("pause"), "it was paused on the way"
