"""INV-4: commits move forward within an assignment, whatever the answers."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import Offset, PartitionId
from connector.commit.schedule import CommitSchedule

P = PartitionId(1)
ANSWERS = st.sampled_from([None, "NOT_COORDINATOR", "ILLEGAL_GENERATION", "no answer"])


@pytest.mark.invariant(4)
@given(
    start=st.integers(0, 100),
    has_committed=st.booleans(),
    steps=st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 90.0), ANSWERS), max_size=40),
)
def test_no_position_is_sent_below_one_that_was_committed_or_sent(
    start: int, has_committed: bool, steps: list[tuple[int, float, str | None]]
) -> None:
    schedule = CommitSchedule(5.0, recommit_interval=100.0)
    schedule.admit(P, Offset(start) if has_committed else None)
    sent = [Offset(start)]
    now = 0.0
    for position, (_, seconds, answer) in zip(
        accumulate((gap for gap, _, _ in steps), initial=start), steps, strict=False
    ):
        now += seconds
        positions = schedule.due(now, {P: Offset(position)})
        if not positions:
            continue
        schedule.sent(now, positions)
        sent.append(positions[P])
        if answer is None:
            schedule.settle(now, positions, {})
        elif answer != "no answer":
            schedule.settle(now, {}, {P: answer})
    assert sent == sorted(sent)


@pytest.mark.invariant(4)
@given(answers=st.permutations([Offset(10), Offset(20), Offset(30)]))
def test_answers_in_any_order_leave_the_highest_position_standing(answers: list[Offset]) -> None:
    schedule = CommitSchedule(5.0)
    schedule.admit(P, Offset(0))
    for number, position in enumerate(sorted(answers)):
        schedule.sent(100.0 * number, {P: position})  # the one before was given up after a minute
    for position in answers:
        schedule.settle(300.0, {P: position}, {})
    assert schedule.committed(P) == 30
    assert schedule.flush(300.0, {P: Offset(29)}) == {}


@pytest.mark.invariant(4)
def test_a_new_assignment_may_start_below_the_old_position() -> None:
    schedule = CommitSchedule(5.0)
    schedule.admit(P, Offset(500))
    schedule.forget([P])
    schedule.admit(P, None)  # out of range, started by policy
    assert schedule.due(0.0, {P: Offset(0)}) == {P: 0}
