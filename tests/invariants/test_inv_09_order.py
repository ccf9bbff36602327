"""INV-9: a lane keeps its order."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import TransientError
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.worker import PipelineSettings
from connector.runtime.controller import ExitState
from connector.sink.retry import Backoff
from tests.support.engine import Destination, Engine, make_driver

if TYPE_CHECKING:
    from connector import Batch

gaps = st.lists(st.integers(1, 5), max_size=15)


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
