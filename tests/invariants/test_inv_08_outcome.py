"""INV-8: every record ends in one counted outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import PoisonError, TransientError
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.worker import PipelineSettings
from connector.runtime.controller import ExitState
from connector.sink.retry import Backoff
from tests.support.engine import Destination, Engine, make_driver

if TYPE_CHECKING:
    from connector import Batch

A = ("t", 0)


@pytest.mark.invariant(8)
@settings(max_examples=20, deadline=None)
@given(poison=st.sets(st.integers(0, 19)), failures=st.lists(st.booleans(), max_size=12))
def test_every_record_is_written_or_skipped_once_and_both_are_counted(poison: set[int], failures: list[bool]) -> None:
    driver, destination, coming = make_driver("memory", ends={A: range(20)}), Destination(), iter(failures)

    def behave(batch: Batch) -> None:
        if next(coming, False):
            raise TransientError("down")
        if not poison.isdisjoint(batch.column("offset")):
            raise PoisonError("a bad record")

    destination.behave = behave
    driver.assign(A)
    rules = PipelineSettings(
        limits=BatchLimits(rows=7, linger_seconds=0.001), backoff=Backoff(0.001, 0.001), skips_poison=True
    )
    with Engine(driver, destination, settings=rules) as engine:
        assert engine.join().state is ExitState.COMPLETED
    assert destination.offsets(A) == sorted(set(range(20)) - poison)
    assert driver.committed(A) == 20

    def counted(name: str, **labels: str) -> float:
        return driver.metrics.registry.get_sample_value(f"connector_{name}_total", {"topic": "t", **labels}) or 0

    assert counted("written_records") == 20 - len(poison)
    assert counted("skipped_records", stage="write", error="PoisonError") == len(poison)
