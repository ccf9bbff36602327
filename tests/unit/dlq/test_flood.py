"""The flood limit is what a list of the last records says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.dlq.flood import FloodLimit

notes = st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=30)


@given(notes=notes, window=st.integers(1, 40), ratio=st.sampled_from([0.1, 0.25, 0.5, 1.0]), row=st.integers(0, 20))
def test_it_floods_exactly_when_the_last_records_say_so(
    notes: list[tuple[bool, int]], window: int, ratio: float, row: int
) -> None:
    flood = FloodLimit(max_ratio=ratio, window=window, max_consecutive=row)
    records: list[bool] = []
    for is_dead, count in notes:
        (flood.note_dead if is_dead else flood.note_written)(count)
        records += [is_dead] * count
        in_a_row = len(records) - max((at + 1 for at, each in enumerate(records) if not each), default=0)
        last = records[-window:]
        if row and in_a_row > row:
            assert flood.limit == "consecutive"
        elif len(last) == window and sum(last) > ratio * window:
            assert flood.limit == "ratio"
        else:
            assert flood.limit is None
        assert (flood.is_flooded() is None) is (flood.limit is None)


def test_a_few_dead_records_at_the_start_are_no_flood() -> None:
    flood = FloodLimit(max_ratio=0.5, window=1000, max_consecutive=200)
    flood.note_dead(200)
    assert flood.is_flooded() is None


def test_one_dead_record_in_every_batch_of_500_is_no_flood_for_ever() -> None:
    flood = FloodLimit(max_ratio=0.5, window=1000, max_consecutive=200)
    for _ in range(1000):
        flood.note_written(499)
        flood.note_dead(1)
        assert flood.is_flooded() is None


def test_the_reason_names_the_numbers_and_the_setting() -> None:
    flood = FloodLimit(max_ratio=0.5, window=10, max_consecutive=3)
    flood.note_dead(4)
    reason = flood.is_flooded()
    assert reason is not None
    assert "4 in a row, more than CONNECTOR_DLQ_MAX_CONSECUTIVE=3" in reason
    flood.note_written(1)
    assert flood.is_flooded() is None
    for _ in range(3):
        flood.note_dead(2)
        flood.note_written(1)
    reason = flood.is_flooded()
    assert reason is not None
    assert "6 of the last 10, more than CONNECTOR_DLQ_MAX_RATIO=0.5" in reason
