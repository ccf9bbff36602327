"""When which position is committed, on virtual time."""

from __future__ import annotations

import pytest

from connector import InvariantError, Offset, PartitionId
from connector.commit.schedule import CommitSchedule

P, Q = PartitionId(1), PartitionId(2)


def _at(**positions: int) -> dict[PartitionId, Offset]:
    return {{"p": P, "q": Q}[name]: Offset(position) for name, position in positions.items()}


@pytest.fixture
def schedule() -> CommitSchedule:
    """Interval 5 s, recommit 1000 s, tight 0.05 s; both partitions stand at 100, and a tick has just passed at 0."""
    schedule = CommitSchedule(5.0, recommit_interval=1000.0)
    for partition in (P, Q):
        schedule.admit(partition, Offset(100))
    assert schedule.due(0.0, _at(p=100, q=100)) == {}
    return schedule


def _commit(schedule: CommitSchedule, now: float, positions: dict[PartitionId, Offset]) -> None:
    schedule.sent(now, positions)
    schedule.settle(now, positions, {})


def test_moved_positions_are_committed_on_the_tick_and_unmoved_ones_are_not(schedule: CommitSchedule) -> None:
    assert schedule.due(4.9, _at(p=110, q=100)) == {}
    assert schedule.next_due(4.9) == 5.0
    assert schedule.due(5.0, _at(p=110, q=100)) == _at(p=110)
    _commit(schedule, 5.0, _at(p=110))
    assert schedule.committed(P) == 110
    assert schedule.next_due(5.0) == 10.0
    assert schedule.due(9.9, _at(p=120, q=100)) == {}
    assert schedule.due(10.0, _at(p=120, q=130)) == _at(p=120, q=130)


def test_a_tick_with_nothing_to_commit_is_over(schedule: CommitSchedule) -> None:
    assert schedule.due(5.0, _at(p=100)) == {}
    assert schedule.next_due(5.0) == 10.0


def test_a_start_chosen_by_policy_is_committed_at_once_whatever_its_position(schedule: CommitSchedule) -> None:
    schedule.admit(P, None)
    assert schedule.due(1.0, _at(p=0, q=150)) == _at(p=0)
    _commit(schedule, 1.0, _at(p=0))
    assert schedule.due(1.1, _at(p=1, q=150)) == {}
    assert schedule.due(5.0, _at(p=1, q=150)) == _at(p=1, q=150)


def test_an_unmoved_position_is_committed_again_on_the_slow_timer(schedule: CommitSchedule) -> None:
    _commit(schedule, 300.0, _at(q=150))
    assert schedule.due(999.9, _at(p=100, q=150)) == {}
    assert schedule.next_due(999.9) == 1000.0
    assert schedule.due(1000.0, _at(p=100, q=150)) == _at(p=100)
    _commit(schedule, 1000.0, _at(p=100))
    assert schedule.due(1299.9, _at(p=100, q=150)) == {}
    assert schedule.due(1300.0, _at(p=100, q=150)) == _at(q=150)


def test_one_commit_is_outstanding_at_a_time(schedule: CommitSchedule) -> None:
    schedule.sent(5.0, _at(p=110))
    assert schedule.due(20.0, _at(p=120, q=120)) == {}
    assert schedule.flush(20.0, _at(p=120, q=120)) == {}
    with pytest.raises(InvariantError, match="INV-4: a commit was sent while another is outstanding"):
        schedule.sent(20.0, _at(q=120))
    schedule.settle(20.0, _at(p=110), {})
    assert schedule.due(20.0, _at(p=120, q=120)) == _at(p=120, q=120)


def test_a_commit_that_is_never_answered_is_given_up_after_a_minute(schedule: CommitSchedule) -> None:
    schedule.sent(5.0, _at(p=110))
    assert schedule.next_due(6.0) == 65.0
    assert schedule.due(64.9, _at(p=120, q=100)) == {}
    assert schedule.due(65.0, _at(p=120, q=110)) == _at(q=110)
    _commit(schedule, 65.0, _at(q=110))
    assert schedule.due(65.5, _at(p=120, q=110)) == _at(p=120)
    schedule.sent(65.5, _at(p=120))
    schedule.settle(66.0, _at(p=110), {})  # the old answer comes after all
    assert schedule.committed(P) == 110
    schedule.settle(66.0, _at(p=120), {})
    assert schedule.committed(P) == 120


def test_a_retryable_error_is_tried_again_after_a_growing_backoff(schedule: CommitSchedule) -> None:
    now, waits = 5.0, []
    for _ in range(8):
        assert schedule.due(now, _at(p=110, q=100)) == _at(p=110)
        schedule.sent(now, _at(p=110))
        schedule.settle(now, {}, {P: "NOT_COORDINATOR"})
        failed_at = now
        while not schedule.due(now, _at(p=110, q=100)):
            now = schedule.next_due(now)
        waits.append(now - failed_at)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    _commit(schedule, now, _at(p=110))
    schedule.sent(now, _at(p=120))
    schedule.settle(now, {}, {P: "NOT_COORDINATOR"})
    assert schedule.due(now + 0.5, _at(p=120)) == _at(p=120)


@pytest.mark.parametrize("code", ["ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "GROUP_AUTHORIZATION_FAILED"])
def test_a_member_that_is_out_does_not_spin_and_a_kept_lane_commits_again_after_a_minute(
    schedule: CommitSchedule, code: str
) -> None:
    schedule.sent(5.0, _at(p=110))
    schedule.settle(5.0, {}, {P: code})
    assert schedule.due(64.9, _at(p=120, q=110)) == _at(q=110)
    assert schedule.due(65.0, _at(p=120)) == _at(p=120)
    schedule.admit(P, Offset(90))
    assert schedule.due(70.0, _at(p=91)) == _at(p=91)


def test_a_kept_lane_that_was_refused_commits_again_after_the_next_assignment(schedule: CommitSchedule) -> None:
    schedule.admit(P, Offset(0))
    schedule.sent(0.0, {P: Offset(5)})
    schedule.settle(0.1, {}, {P: "ILLEGAL_GENERATION"})
    assert schedule.due(6.0, {P: Offset(5)}) == {}
    schedule.assigned()
    assert schedule.due(6.1, {P: Offset(5)}) == {P: Offset(5)}


def test_a_refusal_of_a_commit_that_was_sent_before_the_assignment_does_not_hold_the_lane(
    schedule: CommitSchedule,
) -> None:
    schedule.admit(P, Offset(0))
    schedule.sent(0.0, {P: Offset(5)})
    schedule.assigned()  # a cooperative rebalance that the lane was kept through
    schedule.settle(0.1, {}, {P: "ILLEGAL_GENERATION"})
    assert schedule.due(1.0, {P: Offset(5)}) == {P: Offset(5)}


def test_one_failed_partition_does_not_hold_the_others(schedule: CommitSchedule) -> None:
    schedule.sent(5.0, _at(p=110, q=110))
    schedule.settle(5.0, _at(q=110), {P: "UNKNOWN_TOPIC_OR_PART"})
    assert schedule.committed(P) == 100
    assert schedule.due(10.0, _at(p=120, q=120)) == _at(q=120)


def test_chased_partitions_are_committed_at_the_tight_cadence_and_later_whenever_they_move(
    schedule: CommitSchedule,
) -> None:
    schedule.chase([P, PartitionId(99)], 1.0)
    assert schedule.due(1.0, _at(p=101, q=101)) == _at(p=101)
    _commit(schedule, 1.0, _at(p=101))
    assert schedule.due(1.04, _at(p=102, q=101)) == {}
    assert schedule.next_due(1.04) == pytest.approx(1.09)
    assert schedule.due(1.05, _at(p=102, q=101)) == _at(p=102)
    _commit(schedule, 1.05, _at(p=102))
    assert schedule.due(1.2, _at(p=102, q=101)) == {}
    assert schedule.due(5.0, _at(p=102, q=101)) == _at(q=101)
    _commit(schedule, 5.0, _at(q=101))
    assert schedule.next_due(6.1) == 10.0
    assert schedule.due(6.1, _at(p=103, q=102)) == _at(p=103)
    _commit(schedule, 6.1, _at(p=103))
    assert schedule.due(6.11, _at(p=104, q=102)) == _at(p=104)


def test_flush_takes_everything_that_is_not_committed_and_is_settled_afterwards(schedule: CommitSchedule) -> None:
    assert not schedule.is_settled(_at(p=110, q=100))
    assert schedule.flush(0.1, _at(p=110, q=100)) == _at(p=110)
    schedule.sent(0.1, _at(p=110))
    schedule.settle(0.2, {}, {P: "ILLEGAL_GENERATION"})
    assert schedule.flush(0.6, _at(p=110, q=100)) == {}
    assert schedule.flush(0.7, _at(p=110, q=100)) == _at(p=110)
    _commit(schedule, 0.7, _at(p=110))
    assert schedule.is_settled(_at(p=110, q=100))
    assert schedule.flush(0.7, _at(p=110, q=100)) == {}


def test_forgotten_partitions_are_never_committed_nor_waited_for_and_their_late_answers_change_nothing(
    schedule: CommitSchedule,
) -> None:
    schedule.sent(5.0, _at(p=110, q=110))
    schedule.forget([P])
    assert schedule.due(6.0, _at(p=120, q=120)) == {}
    schedule.forget([Q])
    assert schedule.due(10.0, _at(p=120, q=120)) == schedule.flush(10.0, _at(p=120)) == {}
    schedule.settle(10.0, _at(p=110), {Q: "NOT_COORDINATOR"})
    assert schedule.committed(P) is None
    assert schedule.is_settled(_at(p=120, q=120))


def test_an_answer_while_the_next_commit_is_outstanding_does_not_take_the_position_back(
    schedule: CommitSchedule,
) -> None:
    schedule.settle(1.0, _at(p=130), {})  # synchronous, by the source
    schedule.settle(1.0, _at(p=110), {})
    assert schedule.committed(P) == 130
    assert schedule.due(5.0, _at(p=129)) == {}


@pytest.mark.parametrize(("positions", "message"), [(_at(p=99), "stands at 100"), (_at(p=1, q=2), "is not assigned")])
def test_sending_a_lower_position_or_one_of_somebody_else_is_a_bug_that_says_so(
    schedule: CommitSchedule, positions: dict[PartitionId, Offset], message: str
) -> None:
    if Q in positions:
        schedule.forget([P])
    with pytest.raises(InvariantError, match=f"INV-4: .*{message}"):
        schedule.sent(5.0, positions)
