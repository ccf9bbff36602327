"""A reset is done in an order that is safe wherever it breaks off, and is read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connector.api.errors import ExitCode, FatalError
from connector.api.types import Offset
from connector.offsets.apply import IncompleteResetError, SinkNotResetError, apply_moves
from connector.offsets.plan import RefusedResetError, Wanted, plan_moves
from connector.offsets.state import GroupState, Member
from tests.unit.offsets.partition_states import EMPTY_GROUP, committed, partition, started, stored

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from connector.api.sink import StoredPosition
    from connector.offsets.plan import Move
    from connector.offsets.state import Key
    from connector.source.position import Committed

MEMBER = Member("client", "/10.0.0.1", "client-1", None, ())
A, B = ("orders", 0), ("orders", 1)


class Cluster:
    """A group in memory that notes what is done. `joins_before_commit`: a member comes at the last moment."""

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps
        self.state = EMPTY_GROUP
        self.positions: dict[Key, Committed] = {}
        self.refused: dict[Key, str] = {}
        self.joins_before_commit = False

    def describe(self) -> GroupState:
        self.steps.append("describe")
        return self.state

    def commit(self, positions: Mapping[Key, Committed]) -> dict[Key, str]:
        self.steps.append("commit")
        if self.joins_before_commit:
            self.state = GroupState("stable", "consumer", (MEMBER,))
            return dict.fromkeys(positions, "UNKNOWN_MEMBER_ID")
        self.positions |= {key: position for key, position in positions.items() if key not in self.refused}
        return self.refused

    def committed(self, keys: Collection[Key]) -> dict[Key, Committed]:
        self.steps.append("read group")
        return {key: position for key, position in self.positions.items() if key in keys}


class InSink:
    """A sink's positions in memory."""

    def __init__(self, steps: list[str], *, are_held: bool = True) -> None:
        self.steps = steps
        self.are_held = are_held
        self.failure: FatalError | None = None
        self.positions: dict[Key, StoredPosition] = {}

    def reset(self, positions: Mapping[Key, StoredPosition]) -> None:
        self.steps.append("reset sink")
        if self.failure:
            raise self.failure
        self.positions |= positions

    def read(self) -> Mapping[Key, StoredPosition]:
        self.steps.append("read sink")
        return self.positions


@pytest.fixture
def steps() -> list[str]:
    return []


@pytest.fixture
def cluster(steps: list[str]) -> Cluster:
    return Cluster(steps)


@pytest.fixture
def sink(steps: list[str]) -> InSink:
    return InSink(steps)


@pytest.fixture
def moves() -> tuple[Move, ...]:
    states = started(partition(0, committed=committed(110)), partition(1, committed=committed(120)))
    return plan_moves(states, {A: Wanted(Offset(150)), B: Wanted(Offset(160))})


def test_the_group_goes_first_then_the_sink_and_both_are_read_back(
    cluster: Cluster, sink: InSink, moves: tuple[Move, ...], steps: list[str]
) -> None:
    apply_moves("group", moves, cluster, sink)
    assert steps == ["describe", "commit", "reset sink", "read group", "read sink"]
    assert cluster.positions == {A: committed(150), B: committed(160)}
    assert sink.positions == {A: stored(150), B: stored(160)}


def test_a_sink_that_holds_none_is_not_asked(cluster: Cluster, moves: tuple[Move, ...], steps: list[str]) -> None:
    apply_moves("group", moves, cluster, InSink(steps, are_held=False))
    assert steps == ["describe", "commit", "read group"]


def test_nothing_is_set_while_there_are_members(
    cluster: Cluster, sink: InSink, moves: tuple[Move, ...], steps: list[str]
) -> None:
    cluster.state = GroupState("stable", "consumer", (MEMBER,))
    with pytest.raises(RefusedResetError, match=r"member client at 10\.0\.0\.1") as refused:
        apply_moves("group", moves, cluster, sink)
    assert refused.value.exit_code == ExitCode.CONFIGURATION
    assert steps == ["describe"]


def test_a_member_that_joins_at_the_last_moment_keeps_the_sink_untouched(
    cluster: Cluster, sink: InSink, moves: tuple[Move, ...], steps: list[str]
) -> None:
    cluster.joins_before_commit = True
    with pytest.raises(RefusedResetError, match=r"nothing was changed(.|\n)*member client at 10\.0\.0\.1"):
        apply_moves("group", moves, cluster, sink)
    assert steps == ["describe", "commit", "describe"]


def test_a_sink_that_fails_is_told_and_the_same_again_completes_it(
    cluster: Cluster, sink: InSink, moves: tuple[Move, ...]
) -> None:
    sink.failure = FatalError("the sink postgres could not reset its positions: connection refused")
    with pytest.raises(SinkNotResetError, match=r"connection refused.*Give the same command again") as failed:
        apply_moves("group", moves, cluster, sink)
    assert failed.value.exit_code == ExitCode.SINK
    assert sink.positions == {}
    sink.failure = None
    apply_moves("group", moves, cluster, sink)
    assert sink.positions == {A: stored(150), B: stored(160)}


def test_a_partition_that_is_refused_is_named_and_left_alone_in_the_sink_too(
    cluster: Cluster, sink: InSink, moves: tuple[Move, ...]
) -> None:
    cluster.refused = {B: "UNKNOWN_TOPIC_OR_PART"}
    with pytest.raises(IncompleteResetError) as failed:
        apply_moves("group", moves, cluster, sink)
    assert failed.value.exit_code == ExitCode.DEADLINE
    assert str(failed.value).splitlines() == [
        "1 of 2 positions are not set as planned",
        "  - orders[1]: the broker refused the position: UNKNOWN_TOPIC_OR_PART",
    ]
    assert sink.positions == {A: stored(150)}


def test_what_does_not_read_back_as_it_was_set_is_told(
    cluster: Cluster, sink: InSink, moves: tuple[Move, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {A: committed(151), B: committed(160)}
    monkeypatch.setattr(cluster, "committed", lambda _keys: changed)
    monkeypatch.setattr(sink, "read", lambda: {A: stored(150)})
    with pytest.raises(IncompleteResetError) as failed:
        apply_moves("group", moves, cluster, sink)
    assert str(failed.value).splitlines()[1:] == [
        "  - orders[0]: the group's position is 151 after it was set to 150",
        "  - orders[1]: the sink's position is none after it was set to 160",
    ]
