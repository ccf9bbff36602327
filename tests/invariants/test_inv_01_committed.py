"""INV-1: a position is committed only when all that was delivered before it is done.

One state machine runs the checkpointer and the commit schedule as the controller does, on virtual time, against a group
coordinator of a few lines. It holds INV-1, INV-3, INV-4 and INV-7 at once, since they break each other's way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from connector import LaneId, Offset, PartitionId
from connector.checkpoint.checkpointer import Checkpointer
from connector.commit.outcome import Outcome, outcome_of
from connector.commit.schedule import CommitSchedule

TOPIC_PARTITIONS = range(3)
ERRORS = ["NOT_COORDINATOR", "_TIMED_OUT", "REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_TOPIC_OR_PART"]
NO_ANSWER = "no answer"


@dataclass
class ModelLane:
    """What a reader of the specification would write down about a lane."""

    lane: LaneId
    partition: PartitionId
    topic_partition: int
    floor: Offset  # no commit of this lane is below
    ends: list[Offset] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    @property
    def safe(self) -> list[Offset]:
        """Ends of the finished prefix."""
        unfinished = set(range(len(self.ends))) - self.done
        return self.ends[: min(unfinished, default=len(self.ends))]

    @property
    def open(self) -> list[int]:
        return sorted(set(range(len(self.ends))) - self.done - self.failed)


@dataclass
class Commit:
    positions: dict[PartitionId, Offset]
    fate: str | None  # error code, None: accepted


class Controller(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.checkpointer = Checkpointer()
        self.schedule = CommitSchedule(5.0, recommit_interval=60.0)
        self.now = 0.0
        self.ids = 0
        self.late_acks = 0
        self.live: dict[LaneId, ModelLane] = {}
        self.gone: list[ModelLane] = []
        self.in_flight: list[Commit] = []
        self.group: dict[int, Offset] = {}  # what the coordinator holds

    # The group

    @rule(chosen=st.sets(st.sampled_from(TOPIC_PARTITIONS)), policy=st.integers(0, 5), full=st.booleans())
    def assign(self, chosen: set[int], policy: int, full: bool) -> None:
        if full:
            self._leave(list(self.live), is_drained=False, fate=None)
        held = {lane.topic_partition for lane in self.live.values()}
        lanes = []
        for topic_partition in sorted(chosen - held):
            self.ids += 1
            start = self.group.get(topic_partition, Offset(policy))
            lanes.append(ModelLane(LaneId(self.ids), PartitionId(self.ids + 1000), topic_partition, start))
        pairs = [(lane.lane, lane.partition) for lane in lanes]
        if full:
            epoch = self.checkpointer.epoch
            assert self.checkpointer.begin_epoch(pairs) == epoch + 1
        else:
            self.checkpointer.add(pairs)
        for lane in lanes:
            self.live[lane.lane] = lane
            self.schedule.admit(lane.partition, self.group.get(lane.topic_partition))
            self._deliver(lane, lane.floor)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_drained=st.booleans(), fate=st.sampled_from([None, *ERRORS]))
    def revoke(self, data: st.DataObject, is_drained: bool, fate: str | None) -> None:
        self._leave(data.draw(st.lists(st.sampled_from(list(self.live)), unique=True)), is_drained, fate)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        lanes = data.draw(st.lists(st.sampled_from(list(self.live)), unique=True))
        for lane in lanes:  # somebody else goes on from what the group holds, perhaps further than we were
            topic_partition = self.live[lane].topic_partition
            if topic_partition in self.group:
                self.group[topic_partition] = Offset(self.group[topic_partition] + data.draw(st.integers(0, 50)))
        self._drop(lanes)

    def _leave(self, lanes: list[LaneId], is_drained: bool, fate: str | None) -> None:
        if is_drained:
            for lane in lanes:
                for sequence in self.live[lane].open:
                    self._finish(self.live[lane], sequence)
        positions = self.checkpointer.watermarks(lanes)
        if fate is None:
            self._accept(positions)
            self.schedule.settle(self.now, positions, {})
        else:
            self.schedule.settle(self.now, {}, dict.fromkeys(positions, fate))
        self._drop(lanes)

    def _drop(self, lanes: list[LaneId]) -> None:
        self.checkpointer.fence(lanes)
        for lane in lanes:
            model = self.live.pop(lane)
            self.gone.append(model)
            self.schedule.forget([model.partition])
        self.checkpointer.drop(lanes)

    # The lanes

    @precondition(lambda self: self.live)
    @rule(data=st.data(), gap=st.integers(0, 9))
    def deliver(self, data: st.DataObject, gap: int) -> None:
        lane = self.live[data.draw(st.sampled_from(list(self.live)))]
        self._deliver(lane, Offset(lane.ends[-1] + gap))

    @precondition(lambda self: any(lane.open for lane in self.live.values()))
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def finish(self, data: st.DataObject, fails: bool) -> None:
        lane = data.draw(st.sampled_from([lane for lane in self.live.values() if lane.open]))
        sequence = data.draw(st.sampled_from(lane.open))
        if fails:
            lane.failed.add(sequence)
        else:
            self._finish(lane, sequence)

    @precondition(lambda self: any(lane.open for lane in self.gone))
    @rule(data=st.data())
    def finish_late(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from([lane for lane in self.gone if lane.open]))
        before = self.checkpointer.watermarks()
        assert not self.checkpointer.finish(lane.lane, data.draw(st.sampled_from(lane.open)))
        assert not self.checkpointer.deliver(lane.lane, len(lane.ends), lane.ends[-1], self.now)
        self.late_acks += 1
        assert self.checkpointer.watermarks() == before

    def _deliver(self, lane: ModelLane, end: Offset) -> None:
        assert self.checkpointer.deliver(lane.lane, len(lane.ends), end, self.now)
        lane.ends.append(end)

    def _finish(self, lane: ModelLane, sequence: int) -> None:
        assert self.checkpointer.finish(lane.lane, sequence)
        lane.done.add(sequence)

    # The commits

    @rule(
        seconds=st.sampled_from([0.0, 0.05, 1.0, 5.0, 30.0, 70.0]),
        fate=st.sampled_from([None, None, None, NO_ANSWER, *ERRORS]),
        chases=st.booleans(),
    )
    def turn(self, seconds: float, fate: str | None, chases: bool) -> None:
        self.now += seconds
        if chases:
            self.schedule.chase([lane.partition for lane in self.live.values()], self.now)
        positions = self.schedule.due(self.now, self.checkpointer.watermarks())
        assert self.schedule.next_due(self.now) >= self.now
        if positions:
            self._send(positions, fate)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        commit = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        if commit.fate is None:
            self.schedule.settle(self.now, commit.positions, {})
        elif commit.fate != NO_ANSWER:
            self.schedule.settle(self.now, {}, dict.fromkeys(commit.positions, commit.fate))

    @rule()
    def flush(self) -> None:
        """With a coordinator that answers, everything safe is committed in two tries."""
        self.now += 61.0  # whatever is outstanding is given up
        for _ in range(2):
            self.now += 0.5
            if positions := self.schedule.flush(self.now, self.checkpointer.watermarks()):
                self._send(positions, None)
                self.schedule.settle(self.now, self.in_flight.pop().positions, {})
        assert self.schedule.is_settled(self.checkpointer.watermarks())
        for lane in self.live.values():
            if lane.safe:
                assert self.group[lane.topic_partition] == lane.safe[-1]

    def _send(self, positions: dict[PartitionId, Offset], fate: str | None) -> None:
        self.schedule.sent(self.now, positions)
        assert self.schedule.due(self.now, self.checkpointer.watermarks()) == {}
        if fate is None:
            self._accept(positions)
        else:
            self._check(positions)
        self.in_flight.append(Commit(positions, fate))

    def _accept(self, positions: dict[PartitionId, Offset]) -> None:
        for lane in self._check(positions):
            position = positions[lane.partition]
            assert position >= self.group.get(lane.topic_partition, position), "INV-4: the group goes back"
            self.group[lane.topic_partition] = position

    def _check(self, positions: dict[PartitionId, Offset]) -> list[ModelLane]:
        lanes = [lane for lane in self.live.values() if lane.partition in positions]
        assert len(lanes) == len(positions), "a commit of a partition that is not ours"
        for lane in lanes:
            position = positions[lane.partition]
            assert position in lane.safe, "INV-1: the position passes unfinished work"
            assert position >= lane.floor, "INV-4: the position goes back within the assignment"
            lane.floor = position
        return lanes

    @invariant()
    def the_watermark_is_the_finished_prefix(self) -> None:
        expected = {lane.partition: lane.safe[-1] for lane in self.live.values() if lane.safe}
        assert self.checkpointer.watermarks() == expected, "INV-3"

    @invariant()
    def late_acks_only_count(self) -> None:
        assert self.checkpointer.late_acks == self.late_acks, "INV-7"

    @invariant()
    def what_is_unfinished_is_known(self) -> None:
        for lane in self.live.values():
            assert self.checkpointer.pending([lane.lane]) == len(lane.ends) - len(lane.done)
            assert self.checkpointer.is_settled(lane.lane) == (len(lane.ends) == len(lane.done))


@pytest.mark.invariant(1)
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
@pytest.mark.invariant(7)
def test_whatever_happens_only_finished_work_is_committed_and_commits_go_forward() -> None:
    run_state_machine_as_test(Controller, settings=settings(max_examples=150, stateful_step_count=40, deadline=None))


@pytest.mark.invariant(1)
def test_a_record_that_the_sink_never_saw_is_not_committed_at_a_revocation() -> None:
    checkpointer = Checkpointer()
    lane, partition = LaneId(1), PartitionId(1)
    checkpointer.begin_epoch([(lane, partition)])
    checkpointer.deliver(lane, 0, Offset(100), 0.0)  # the start
    checkpointer.finish(lane, 0)
    checkpointer.deliver(lane, 1, Offset(101), 0.0)
    assert checkpointer.watermarks() == {partition: 100}


def test_the_errors_of_the_model_are_of_both_kinds() -> None:
    assert {outcome_of(code) for code in ERRORS} == {Outcome.RETRY, Outcome.WAIT}
