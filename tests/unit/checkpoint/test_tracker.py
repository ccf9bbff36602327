"""One lane's finished prefix, case by case; the general properties are in tests/invariants."""

from __future__ import annotations

import pytest

from connector import InvariantError, Offset
from connector.checkpoint.tracker import LaneTracker


def _tracker(*ends: int) -> LaneTracker:
    tracker = LaneTracker()
    for sequence, end in enumerate(ends):
        tracker.deliver(sequence, Offset(end), now=float(sequence))
    return tracker


def test_there_is_no_watermark_before_the_first_batch_is_finished() -> None:
    tracker = _tracker(10, 20)
    tracker.finish(1)
    assert tracker.watermark is None
    assert tracker.pending == 1


def test_the_empty_first_batch_gives_the_start_position() -> None:
    tracker = _tracker(500)
    tracker.finish(0)
    assert tracker.watermark == 500
    assert tracker.pending == 0


def test_a_batch_that_is_never_finished_holds_the_watermark_for_good() -> None:
    tracker = _tracker(0, 10, 20, 30)
    for sequence in (0, 1, 3):
        tracker.finish(sequence)
    assert tracker.watermark == 10
    assert tracker.oldest_pending_since == 2.0


def test_a_batch_without_records_moves_the_position_through_a_hole() -> None:
    tracker = _tracker(22, 28, 28)
    for sequence in range(3):
        tracker.finish(sequence)
    assert tracker.watermark == 28
    assert tracker.oldest_pending_since is None


def test_the_oldest_unfinished_batch_tells_how_long_the_watermark_stands() -> None:
    tracker = _tracker(0, 10, 20)
    assert tracker.oldest_pending_since == 0.0
    tracker.finish(1)
    assert tracker.oldest_pending_since == 0.0
    tracker.finish(0)
    assert tracker.oldest_pending_since == 2.0


@pytest.mark.parametrize("sequence", [0, 1, 3])
def test_a_gap_or_repeat_in_the_sequence_is_a_bug_that_says_so(sequence: int) -> None:
    tracker = _tracker(0, 10)
    with pytest.raises(InvariantError, match=f"INV-3: batch {sequence} was delivered where batch 2 was due"):
        tracker.deliver(sequence, Offset(20), now=0.0)


def test_a_position_that_goes_back_is_a_bug_that_says_so() -> None:
    tracker = _tracker(0, 10)
    with pytest.raises(InvariantError, match="INV-3: batch 2 ends at 9, before the end 10"):
        tracker.deliver(2, Offset(9), now=0.0)


@pytest.mark.parametrize("sequence", [0, 2])
def test_finishing_twice_is_a_bug_that_says_so(sequence: int) -> None:
    tracker = _tracker(0, 10, 20)
    tracker.finish(sequence)
    with pytest.raises(InvariantError, match=f"INV-1: batch {sequence} was acknowledged twice"):
        tracker.finish(sequence)


def test_finishing_what_was_never_delivered_is_a_bug_that_says_so() -> None:
    tracker = _tracker(0)
    with pytest.raises(InvariantError, match="INV-1: batch 1 was acknowledged and never delivered"):
        tracker.finish(1)
