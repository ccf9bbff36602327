"""Epochs, fences and what is safe to commit, case by case."""

from __future__ import annotations

import pytest

from connector import InvariantError, LaneId, Offset, PartitionId
from connector.checkpoint.checkpointer import Checkpointer

A, B, C = LaneId(1), LaneId(2), LaneId(3)
PA, PB, PC = PartitionId(11), PartitionId(12), PartitionId(13)


@pytest.fixture
def checkpointer() -> Checkpointer:
    checkpointer = Checkpointer()
    checkpointer.begin_epoch([(A, PA), (B, PB)])
    return checkpointer


def test_each_full_assignment_is_the_next_epoch_and_a_gain_joins_the_current_one(checkpointer: Checkpointer) -> None:
    assert checkpointer.epoch == 1
    checkpointer.add([(C, PC)])
    assert checkpointer.epoch == 1
    checkpointer.fence([A, B, C])
    assert checkpointer.begin_epoch([]) == 2


def test_an_epoch_does_not_begin_while_lanes_are_live(checkpointer: Checkpointer) -> None:
    checkpointer.fence([A])
    with pytest.raises(InvariantError, match=r"INV-5: a new epoch begins while lanes \[2\] are live"):
        checkpointer.begin_epoch([(C, PC)])
    assert checkpointer.epoch == 1


def test_a_lane_id_is_never_used_again(checkpointer: Checkpointer) -> None:
    checkpointer.fence([B])
    checkpointer.drop([B])
    with pytest.raises(InvariantError, match="INV-7: lane 2 of partition 12 is not new"):
        checkpointer.add([(B, PB)])


def test_two_live_lanes_never_share_a_partition(checkpointer: Checkpointer) -> None:
    with pytest.raises(InvariantError, match="INV-7: lane 3 of partition 11 is not new"):
        checkpointer.add([(C, PA)])


def test_only_live_lanes_with_a_finished_batch_have_a_watermark(checkpointer: Checkpointer) -> None:
    assert checkpointer.deliver(A, 0, Offset(100), 0.0)
    assert checkpointer.deliver(B, 0, Offset(200), 0.0)
    assert checkpointer.watermarks() == {}
    assert checkpointer.finish(A, 0)
    assert checkpointer.watermarks() == {PA: 100}
    assert checkpointer.finish(B, 0)
    assert checkpointer.watermarks() == {PA: 100, PB: 200}
    assert checkpointer.watermarks([B, C]) == {PB: 200}
    checkpointer.fence([B])
    assert checkpointer.watermarks() == checkpointer.watermarks([A, B]) == {PA: 100}


def test_fencing_one_lane_leaves_the_others_alone(checkpointer: Checkpointer) -> None:
    for lane in (A, B):
        checkpointer.deliver(lane, 0, Offset(0), 0.0)
    checkpointer.fence([A])
    assert not checkpointer.finish(A, 0)
    assert checkpointer.finish(B, 0)
    assert checkpointer.late_acks == 1


def test_a_fenced_or_dropped_or_unknown_lane_takes_nothing_and_is_settled(checkpointer: Checkpointer) -> None:
    checkpointer.deliver(A, 0, Offset(0), 1.0)
    checkpointer.fence([A, C])
    for _ in range(2):  # fenced, then dropped
        for lane in (A, C):
            assert not checkpointer.deliver(lane, 1, Offset(10), 0.0)
            assert not checkpointer.finish(lane, 0)
            assert checkpointer.is_settled(lane)
            assert checkpointer.watermark_age(lane, 5.0) is None
        assert checkpointer.pending([A, C]) == 0
        checkpointer.drop([A, C])
    assert checkpointer.late_acks == 4


def test_pending_work_and_its_age_are_told_by_lane(checkpointer: Checkpointer) -> None:
    checkpointer.deliver(A, 0, Offset(0), 1.0)
    checkpointer.deliver(A, 1, Offset(10), 2.0)
    assert checkpointer.pending([A, B]) == 2
    assert not checkpointer.is_settled(A)
    assert checkpointer.is_settled(B)
    assert checkpointer.watermark_age(A, 5.0) == 4.0
    checkpointer.finish(A, 0)
    assert checkpointer.watermark_age(A, 5.0) == 3.0
    checkpointer.finish(A, 1)
    assert checkpointer.watermark_age(A, 5.0) is None
    assert checkpointer.is_settled(A)


def test_a_settled_lane_may_be_dropped_without_a_fence_and_no_other(checkpointer: Checkpointer) -> None:
    checkpointer.deliver(A, 0, Offset(0), 0.0)
    with pytest.raises(InvariantError, match=r"INV-5: lane 1 is dropped with 1 batch\(es\) in flight"):
        checkpointer.drop([A])
    checkpointer.finish(A, 0)
    checkpointer.drop([A, B])
    assert checkpointer.watermarks() == {}
