"""The latch that a revocation waits on."""

from __future__ import annotations

import threading

import pytest

from connector import InvariantError, Offset, PartitionId
from connector.api.barrier import DrainBarrier

P = PartitionId(1)


@pytest.mark.invariant(5)
def test_the_wait_ends_when_every_party_has_arrived_and_not_before() -> None:
    barrier = DrainBarrier(3)
    result: list[bool] = []
    waiter = threading.Thread(target=lambda: result.append(barrier.wait(30.0)))
    waiter.start()
    barrier.arrive()
    assert barrier.remaining == 2
    assert waiter.is_alive()
    barrier.arrive(2)
    waiter.join(timeout=10.0)
    assert result == [True]
    assert barrier.remaining == 0


def test_zero_parties_are_done_and_settled() -> None:
    barrier = DrainBarrier(0)
    assert barrier.wait(0.0)
    assert barrier.is_settled
    assert barrier.positions == {}


@pytest.mark.invariant(5)
@pytest.mark.parametrize("parties", [0, 1])
def test_one_arrival_too_many_is_a_bug_that_says_so(parties: int) -> None:
    barrier = DrainBarrier(parties)
    barrier.arrive(parties)
    with pytest.raises(InvariantError, match=r"INV-5: .*arrived twice"):
        barrier.arrive()


def test_at_the_deadline_the_newest_positions_are_there_and_nothing_that_comes_later() -> None:
    barrier = DrainBarrier(1)
    assert barrier.attach({P: Offset(10)})
    assert barrier.attach({P: Offset(20)})
    assert not barrier.wait(0.0)
    assert not barrier.attach({P: Offset(30)})
    assert barrier.positions == {P: 20}
    barrier.arrive()
    assert barrier.positions == {P: 20}


def test_attached_positions_are_a_copy() -> None:
    barrier = DrainBarrier(1)
    positions = {P: Offset(10)}
    barrier.attach(positions)
    positions[P] = Offset(99)
    assert barrier.positions == {P: 10}


def test_only_the_source_settles_it() -> None:
    barrier = DrainBarrier(1)
    barrier.arrive()
    assert barrier.wait(0.0)
    assert not barrier.is_settled
    barrier.settle()
    assert barrier.is_settled


def test_who_arrives_with_unfinished_work_is_counted_and_not_waited_for() -> None:
    barrier = DrainBarrier(3)
    barrier.arrive()
    assert barrier.not_drained == 0
    barrier.arrive(is_drained=False)
    barrier.arrive()
    assert (barrier.not_drained, barrier.wait(0.0)) == (1, True)
