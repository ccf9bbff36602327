"""INV-3: the watermark is the end of the finished prefix in delivery order, whatever the gaps."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import Offset
from connector.checkpoint.tracker import LaneTracker


@pytest.mark.invariant(3)
@given(start=st.integers(0, 2**62), gaps=st.lists(st.integers(0, 500), max_size=20), data=st.data())
def test_the_watermark_is_the_end_of_the_finished_prefix_whatever_the_gaps(
    start: int, gaps: list[int], data: st.DataObject
) -> None:
    ends = [Offset(end) for end in accumulate([start, *gaps])]
    tracker = LaneTracker()
    for sequence, end in enumerate(ends):
        tracker.deliver(sequence, end, now=0.0)
    finished = data.draw(st.lists(st.sampled_from(range(len(ends))), unique=True), label="finish order")
    seen: list[Offset | None] = [None]
    for sequence in finished:
        tracker.finish(sequence)
        seen.append(tracker.watermark)
    prefix = min(set(range(len(ends))) - set(finished), default=len(ends))
    assert tracker.watermark == (ends[prefix - 1] if prefix else None)
    assert tracker.pending == len(ends) - len(finished)
    assert seen == sorted(seen, key=lambda position: -1 if position is None else position), "it never goes back"


@pytest.mark.invariant(3)
@given(order=st.permutations(range(6)))
def test_when_everything_is_finished_the_watermark_is_the_end_in_whatever_order(order: list[int]) -> None:
    tracker = LaneTracker()
    for sequence in range(6):
        tracker.deliver(sequence, Offset(10 * sequence), now=0.0)
    for sequence in order:
        tracker.finish(sequence)
    assert (tracker.watermark, tracker.pending, tracker.oldest_pending_since) == (50, 0, None)
