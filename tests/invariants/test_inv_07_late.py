"""INV-7: acknowledgements and commit answers that come after the fence only count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import LaneId, Offset, PartitionId
from connector.checkpoint.checkpointer import Checkpointer
from connector.commit.schedule import CommitSchedule


@pytest.mark.invariant(7)
@given(late=st.lists(st.integers(0, 9), max_size=20), is_dropped=st.booleans())
def test_an_ack_of_a_fenced_lane_is_counted_and_changes_nothing(late: list[int], is_dropped: bool) -> None:
    checkpointer = Checkpointer()
    old, new = LaneId(1), LaneId(2)
    checkpointer.begin_epoch([(old, PartitionId(1))])
    for sequence in range(5):
        checkpointer.deliver(old, sequence, Offset(sequence), 0.0)
    checkpointer.fence([old])
    if is_dropped:
        checkpointer.drop([old])
    checkpointer.add([(new, PartitionId(2))])  # the partition is back, as another lane
    checkpointer.deliver(new, 0, Offset(0), 0.0)
    for sequence in late:
        assert not checkpointer.finish(old, sequence)
    assert checkpointer.late_acks == len(late)
    assert checkpointer.watermarks() == {}
    assert checkpointer.pending([old, new]) == 1


@pytest.mark.invariant(7)
def test_an_ack_of_before_the_rebalance_does_not_pin_the_lane_that_came_back() -> None:
    checkpointer = Checkpointer()
    old, new = LaneId(1), LaneId(2)
    checkpointer.begin_epoch([(old, PartitionId(1))])
    checkpointer.deliver(old, 0, Offset(100), 0.0)  # hangs
    checkpointer.fence([old])
    checkpointer.drop([old])
    checkpointer.begin_epoch([(new, PartitionId(2))])
    checkpointer.deliver(new, 0, Offset(100), 1.0)
    checkpointer.deliver(new, 1, Offset(101), 1.0)
    assert not checkpointer.finish(old, 0)
    for sequence in range(2):
        assert checkpointer.finish(new, sequence)
    assert checkpointer.watermarks() == {PartitionId(2): 101}


@pytest.mark.invariant(7)
@pytest.mark.parametrize("failed", [{}, {PartitionId(1): "UNKNOWN_MEMBER_ID"}])
def test_a_commit_answer_for_a_lane_that_is_gone_changes_nothing(failed: dict[PartitionId, str]) -> None:
    schedule = CommitSchedule(5.0)
    old, new = PartitionId(1), PartitionId(2)
    schedule.admit(old, Offset(0))
    schedule.sent(0.0, {old: Offset(10)})
    schedule.forget([old])
    schedule.admit(new, Offset(0))
    schedule.settle(1.0, {} if failed else {old: Offset(10)}, failed)
    assert schedule.committed(old) is None
    assert schedule.committed(new) == 0
    assert schedule.due(5.0, {old: Offset(20), new: Offset(5)}) == {new: 5}
