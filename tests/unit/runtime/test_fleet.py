"""The fleet: each lane has one owner, and a crashed pipeline's lanes stay with its number until they come back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from connector import FatalError, LaneId, PartitionId
from connector.api.barrier import DrainBarrier
from connector.api.event import CloseReason, Error, NodeFailed, NodeRestarted, StopCause
from connector.api.types import Epoch
from connector.lane.lane import Lane
from connector.pipeline.messages import AddLanes, DropLanes, Failed, Finish, Notice, StallLane, StopLanes
from connector.runtime.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.api.event import Event


class FakePipeline:
    """Notes the commands it is given."""

    def __init__(self, number: int, incarnation: int, notices: Sequence[Event]) -> None:
        self.number = number
        self.incarnation = incarnation
        self.notices = list(notices)
        self.commands: list[Any] = []
        self.is_started = False

    def start(self) -> None:
        self.is_started = True

    def put(self, command: object) -> None:
        self.commands.append(command)

    def of(self, kind: type) -> list[Any]:
        return [command for command in self.commands if isinstance(command, kind)]


def _fleet(count: int) -> tuple[Fleet, Any]:
    fleet = Fleet(FakePipeline, count)  # type: ignore[arg-type]
    return fleet, fleet.pipelines


def _lanes(*numbers: int) -> list[Lane]:
    return [Lane(LaneId(number), PartitionId(number), "t", number) for number in numbers]


def _crash(number: int, error: str = "oops", node: str | None = None) -> Failed:
    return Failed(number, FatalError(error), node or f"pipeline-{number}", is_crash=True)


def test_lanes_go_to_the_pipeline_that_has_the_fewest() -> None:
    fleet, pipelines = _fleet(2)
    fleet.place(_lanes(1, 2, 3), Epoch(1))
    assert fleet.owners == {1: 0, 2: 1, 3: 0}
    fleet.forget(LaneId(1))
    fleet.forget(LaneId(3))
    fleet.place(_lanes(4, 5), Epoch(1))
    assert (fleet.owners[LaneId(4)], fleet.owners[LaneId(5)]) == (0, 0)
    assert [[lane.id for lane in command.lanes] for command in pipelines[0].of(AddLanes)] == [[1, 3], [4, 5]]


@pytest.mark.invariant(5)
def test_a_barrier_is_counted_down_by_the_owners_and_here_for_lanes_that_nobody_has() -> None:
    fleet, pipelines = _fleet(2)
    fleet.place(_lanes(1, 2), Epoch(1))
    barrier = DrainBarrier(4)
    fleet.stop_lanes([LaneId(1), LaneId(2), LaneId(8), LaneId(9)], barrier, 5.0)
    assert barrier.remaining == 2
    assert [pipeline.of(StopLanes)[0].lanes for pipeline in pipelines] == [(1,), (2,)]


def test_a_stall_a_drop_and_an_event_reach_whom_they_concern() -> None:
    fleet, pipelines = _fleet(2)
    fleet.place(_lanes(1, 2), Epoch(1))
    fleet.stall(LaneId(2))
    fleet.drop_lanes([LaneId(1), LaneId(7)], CloseReason.END)
    fleet.tell(Error("hello"))
    assert (pipelines[0].of(StallLane), pipelines[1].of(StallLane)) == ([], [StallLane(LaneId(2))])
    assert (pipelines[0].of(DropLanes), pipelines[1].of(DropLanes)) == (
        [DropLanes((LaneId(1),), CloseReason.END)],
        [],
    )
    assert [pipeline.of(Notice) for pipeline in pipelines] == [[Notice(Error("hello"))]] * 2


def test_a_replacement_starts_at_its_time_and_takes_the_number_and_the_lanes() -> None:
    fleet, pipelines = _fleet(2)
    fleet.place(_lanes(1, 2, 3), Epoch(1))
    old, other = pipelines
    now = time.monotonic()
    fleet.schedule_replacement(_crash(0), now + 5)
    fleet.start_replacements(now + 4)
    assert pipelines[0] is old
    fleet.start_replacements(now + 5)
    fleet.start_replacements(now + 6)
    new = pipelines[0]
    assert (new.number, new.incarnation, new.is_started) == (0, 1, True)
    assert new.notices == [NodeFailed((LaneId(1), LaneId(3)), "oops", "pipeline-0")]
    assert old.of(Finish) == [Finish(StopCause.MANUAL)]
    assert pipelines[1] is other
    assert not other.of(Finish)
    fleet.forget(LaneId(3))  # revoked while the replacement opens
    assert fleet.opened(0) == (1,)
    assert new.of(Notice) == [Notice(NodeRestarted("pipeline-0"))]
    assert fleet.opened(0) == (), "once"


def test_a_pipeline_that_opens_for_the_first_time_brings_nothing_back() -> None:
    fleet, pipelines = _fleet(1)
    fleet.place(_lanes(1), Epoch(1))
    assert fleet.opened(0) == ()
    assert pipelines[0].of(Notice) == []


def test_a_pipeline_that_opened_just_before_it_crashed_is_not_its_own_replacement() -> None:
    fleet, _ = _fleet(1)
    fleet.place(_lanes(1), Epoch(1))
    fleet.schedule_replacement(_crash(0), 5.0)
    assert fleet.opened(0) == ()
    fleet.start_replacements(6.0)
    assert fleet.pipelines[0].incarnation == 1, "the replacement still comes"
    assert fleet.opened(0) == (1,)


def test_failures_add_up_until_a_replacement_is_open() -> None:
    fleet, pipelines = _fleet(1)
    fleet.place(_lanes(1), Epoch(1))
    for number, node in enumerate(["strict", "pipeline-0", "pipeline-0"]):
        fleet.schedule_replacement(_crash(0, f"error {number}", node), 0.0)
        fleet.start_replacements(1.0)
    assert [event.error for event in pipelines[0].notices] == ["error 0", "error 1", "error 2"]
    assert fleet.opened(0) == (1,)
    assert pipelines[0].of(Notice) == [Notice(NodeRestarted("strict")), Notice(NodeRestarted("pipeline-0"))]
    fleet.schedule_replacement(_crash(0, "later"), 0.0)
    fleet.start_replacements(1.0)
    assert [event.error for event in pipelines[0].notices] == ["later"]


def test_after_the_end_no_lane_has_an_owner_and_a_barrier_waits_for_nobody() -> None:
    fleet, pipelines = _fleet(1)
    fleet.place(_lanes(1), Epoch(1))
    fleet.finish(StopCause.ALL_INPUTS_CLOSED)
    barrier = DrainBarrier(1)
    fleet.stop_lanes([LaneId(1)], barrier, 5.0)
    assert barrier.remaining == 0
    assert pipelines[0].of(Finish) == [Finish(StopCause.ALL_INPUTS_CLOSED)]
