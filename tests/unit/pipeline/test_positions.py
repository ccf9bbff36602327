"""A sink that holds or commits positions is brought to the end of each batch, whatever becomes of the last records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connector import Batch, Input, Offset, PoisonError, RecordErrors, StoredPosition, TransientError
from connector.lane.lane import Chunk
from connector.pipeline.messages import Acked, Claimed, Failed
from connector.pipeline.rejects import OnPoison
from tests.support.pipeline import OnePipeline

if TYPE_CHECKING:
    from collections.abc import Collection

    from connector.lane.lane import Lane


@pytest.fixture(params=["holds", "commits"])
def bench(request: pytest.FixtureRequest) -> OnePipeline:
    """A pipeline whose sink moves positions, in one way or the other."""
    bench = OnePipeline(on_poison=OnPoison.SKIP)
    if request.param == "holds":
        bench.destination.stored = {("t", 0): StoredPosition(Offset(0))}
    else:
        bench.destination.commits_positions = True
    return bench


def _lane(bench: OnePipeline) -> Lane:
    """Return a lane whose start is committed already."""
    return bench.lane(committed=0)


def _positions(bench: OnePipeline) -> list[tuple[int, int]]:
    """Return how many records each write had, and where it brought the sink."""
    return [(len(batch), batch.metadata.next_offset) for batch in bench.destination.batches]


def _refuse(bench: OnePipeline, bad: Collection[int]) -> None:
    def behave(batch: Batch) -> None:
        if any(message.offset() in bad for message in batch.messages):
            raise PoisonError("bad")

    bench.destination.behave = behave


@pytest.mark.parametrize(
    ("bad", "positions"),
    [
        ((), [(4, 4)]),
        ((0,), [(1, 2), (2, 4)]),
        ((3,), [(2, 2), (1, 3), (0, 4)]),
        ((0, 1, 2, 3), [(0, 4)]),
    ],
)
def test_rejected_records_at_the_end_move_the_position_and_others_cost_no_write(
    bench: OnePipeline, bad: tuple[int, ...], positions: list[tuple[int, int]]
) -> None:
    _refuse(bench, bad)
    with bench.running():
        bench.put(_lane(bench), range(4))
        bench.until(lambda: len(bench.find(Acked)) == 2)  # the lane's start is one
        assert _positions(bench) == positions


def test_the_position_is_moved_by_a_retry_when_the_sink_is_down_for_it(bench: OnePipeline) -> None:
    failures = [TransientError("down")] * 2

    def behave(batch: Batch) -> None:
        if not batch and failures:
            raise failures.pop()
        if batch:
            raise PoisonError("bad")

    bench.destination.behave = behave
    with bench.running():
        bench.put(_lane(bench), [0])
        bench.until(lambda: len(bench.find(Acked)) == 2)
        assert _positions(bench) == [(0, 1)]


@pytest.mark.parametrize(("committed", "writes"), [(None, [(0, 7)]), (5, [(0, 7)]), (7, [])])
def test_a_sink_that_commits_positions_is_told_of_a_start_that_is_not_committed(
    committed: int | None, writes: list[tuple[int, int]]
) -> None:
    bench = OnePipeline()
    bench.destination.commits_positions = True
    with bench.running():
        bench.lane(start=7, committed=committed)
        bench.until(lambda: len(bench.find(Acked)) == 1)
    assert _positions(bench) == writes


def test_a_sink_that_commits_positions_moves_past_what_has_no_records() -> None:
    bench = OnePipeline()
    bench.destination.commits_positions = True
    with bench.running():
        lane = bench.lane(committed=0)
        lane.put(Chunk([], Offset(9)))  # markers and aborted records
        bench.until(lambda: _positions(bench) == [(0, 9)])


def test_a_sink_without_positions_gets_no_empty_batch() -> None:
    bench = OnePipeline(on_poison=OnPoison.SKIP)
    _refuse(bench, (1, 3))
    with bench.running():
        bench.put(bench.lane(), range(4))
        bench.until(lambda: len(bench.find(Acked)) == 2)
    assert not bench.find(Claimed)
    assert all(len(event.data) for _, event in bench.destination.events if isinstance(event, Input))


def test_a_sink_that_moves_positions_may_not_write_a_part_of_a_batch(bench: OnePipeline) -> None:
    def behave(_: Batch) -> None:
        raise RecordErrors({1: PoisonError("bad")})

    bench.destination.behave = behave
    with bench.running():
        bench.put(_lane(bench), range(4))
        bench.until(lambda: bool(bench.find(Failed)))
        assert bench.find(Failed)[0].is_crash
        assert "raised RecordErrors" in str(bench.find(Failed)[0].error)
        assert len(bench.find(Acked)) == 1  # the lane's start
