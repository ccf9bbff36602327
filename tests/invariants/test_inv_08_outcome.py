"""INV-8: every record that is taken ends in one counted outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import PoisonError, TransientError
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.decode import Format, decode
from connector.pipeline.messages import Acked, Delivered
from connector.pipeline.rejects import OnPoison
from connector.pipeline.screen import Screen
from connector.pipeline.worker import PipelineSettings
from connector.runtime.controller import ExitState
from connector.sink.retry import Backoff
from connector.testing import make_batch
from connector.testing.client import records
from tests.support.engine import Destination, Engine, make_driver
from tests.support.pipeline import OnePipeline
from tests.support.registry import FakeSchemas, framed

if TYPE_CHECKING:
    from connector import Batch

A = ("t", 0)
ENTRIES = st.none() | st.binary(max_size=4) | st.builds(framed, st.integers(1, 3), st.binary(max_size=4))
SETTINGS = PipelineSettings(limits=BatchLimits(rows=7, linger_seconds=0.0), screen=Screen(value_format=Format.STRING))


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
    rules = PipelineSettings(limits=BatchLimits(rows=7, linger_seconds=0.001), backoff=Backoff(0.001, 0.001))
    with Engine(driver, destination, settings=rules, on_poison=OnPoison.SKIP) as engine:
        assert engine.join().state is ExitState.COMPLETED
    assert destination.offsets(A) == sorted(set(range(20)) - poison)
    assert driver.committed(A) == 20

    def counted(name: str, **labels: str) -> float:
        return driver.metrics.registry.get_sample_value(f"connector_{name}_total", {"topic": "t", **labels}) or 0

    assert counted("written_records") == 20 - len(poison)
    assert counted("skipped_records", stage="write", error="PoisonError") == len(poison)


@pytest.mark.invariant(8)
@settings(max_examples=25, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    undecodable=st.sets(st.integers(0, 39)),
    unwritable=st.sets(st.integers(0, 39)),
)
def test_each_record_is_written_once_or_counted_as_skipped_once(
    gaps: list[int], undecodable: set[int], unwritable: set[int]
) -> None:
    offsets = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    bad = {offsets[index] for index in unwritable if index < len(offsets)}
    bench = OnePipeline(SETTINGS, OnPoison.SKIP)

    def behave(batch: Batch) -> None:
        if bad & set(batch.column("offset")):
            raise PoisonError("cannot be written")

    bench.destination.behave = behave
    with bench.running():
        lane = bench.lane()
        messages = [
            records("t", 0, [offset], b"\xff" if index in undecodable else b"x")[0]
            for index, offset in enumerate(offsets)
        ]
        bench.put_messages(lane, messages, is_last=True)
        bench.until(
            lambda: (
                bench.find(Delivered)[-1:] != []
                and bench.find(Delivered)[-1].next_offset == offsets[-1] + 1
                and len(bench.find(Acked)) == len(bench.find(Delivered))
            )
        )
        assert lane.held_bytes == 0
    not_decoded = {offsets[index] for index in undecodable if index < len(offsets)}
    skipped = bench.metrics.skipped_records.labels
    assert bench.destination.offsets(("t", 0)) == [each for each in offsets if each not in bad | not_decoded]
    assert skipped("t", "decode", "UndecodableError")._value.get() == len(not_decoded)
    assert skipped("t", "write", "PoisonError")._value.get() == len(bad - not_decoded)
    assert bench.metrics.written_records.labels("t")._value.get() == len(bench.destination.written)


@pytest.mark.invariant(8)
@given(column=st.lists(ENTRIES), format_=st.sampled_from(Format))
def test_decoding_keeps_the_length_and_names_every_entry_that_it_could_not_read(
    column: list[bytes | None], format_: Format
) -> None:
    found = decode(make_batch(*column), "value", format_, FakeSchemas())
    values, problems = found.values, found.problems
    assert len(values) == len(column)
    for index, entry in enumerate(column):
        assert entry is not None or index not in problems
        assert index not in problems or values[index] is None
