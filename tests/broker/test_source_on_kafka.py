"""`KafkaSource` on a real broker: each of the seven events really comes; a partition changes hands after its commit.

tests/contracts has the whole contract, with a client that plays a script; this shows that a real group plays it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connector.api.source_event import (
    CommitReady,
    Drained,
    Idle,
    LanesAdded,
    LanesAssigned,
    LanesRetired,
    LanesRevoked,
    RevokeReason,
)
from tests.support.oracle import wait_until_committed
from tests.support.scenario import readable, send
from tests.support.source_member import SourceMember

if TYPE_CHECKING:
    from connector.api.types import LaneId
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]


def _lane_ids(member: SourceMember) -> list[LaneId]:
    """Return the ids of every lane that came, in order."""
    return [lane.id for event in member.of(LanesAssigned) + member.of(LanesAdded) for lane in event.lanes]


def test_a_group_gives_and_takes_lanes_and_is_idle_between(kafka: Kafka, group_protocol: str) -> None:
    topic = kafka.create_topic(partitions=4)
    kafka.produce(topic, 400)
    group = f"group-{topic}"
    first = SourceMember(kafka, group_protocol, topic, group)
    with first.running():
        first.until(lambda: first.partitions() == {0, 1, 2, 3}, "it holds all")
        assert first.of(LanesAssigned)[0] == next(event for event in first.events if not isinstance(event, Idle))
        first.until(lambda: isinstance(first.events[-1], Idle), "it is idle")
        with SourceMember(kafka, group_protocol, topic, group).running() as second:
            second.until(lambda: len(second.partitions()) == 2, "it holds half")
            first.until(lambda: first.partitions() == {0, 1, 2, 3} - second.partitions(), "the first holds the rest")
            [revoked] = first.of(LanesRevoked)
            assert revoked.reason is RevokeReason.REVOKED
            assert revoked.barrier.is_settled
            assert len(revoked.lanes) == (4 if group_protocol == "range" else 2)
            kafka.produce(topic, 400)
            wait_until_committed(kafka, group, [topic])
        first.until(lambda: first.partitions() == {0, 1, 2, 3}, "it holds all again")
        if group_protocol == "range":
            assert len(first.of(LanesAssigned)) == 3, "each rebalance of an eager group is a full new set"
            assert first.of(LanesAdded) == []
        else:
            assert len(first.of(LanesAssigned)) == 1
            assert first.of(LanesAdded)[-1].lanes
        kafka.produce(topic, 400)
        wait_until_committed(kafka, group, [topic])
    together = {at: sorted(first.taken.get(at, []) + second.taken.get(at, [])) for at in range(4)}
    assert together == {at: list(range(300)) for at in range(4)}
    ids = _lane_ids(first)
    assert len(ids) == len(set(ids))


@pytest.mark.invariant(5)
def test_a_partition_is_handed_over_where_its_old_owner_committed_and_not_before(
    kafka: Kafka, group_protocol: str
) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 200)
    group = f"group-{topic}"
    first = SourceMember(kafka, group_protocol, topic, group, limit=30, commits=False)
    second = SourceMember(kafka, group_protocol, topic, group)
    with first.running():
        first.until(lambda: first.taken == {0: list(range(30)), 1: list(range(30))}, "it has taken 30 of each")
        first.gate.clear()
        with second.running():
            first.until(lambda: bool(first.of(LanesRevoked)), "it is asked")
            [revoked] = first.of(LanesRevoked)
            leaving = {first.lanes[lane].partition for lane in revoked.lanes}
            second.until(lambda: bool(second.of(Idle)), "the second turns meanwhile")
            assert not second.partitions() & leaving
            assert not second.taken.keys() & leaving
            assert all(kafka.committed(group, topic)[at] is None for at in leaving)
            was_settled = revoked.barrier.is_settled
            first.gate.set()
            second.until(lambda: len(second.partitions()) == 1, "the second holds one")
            assert (was_settled, revoked.barrier.is_settled) == (False, True)
            [moved] = second.partitions()
            assert moved in leaving
            [lane] = second.lanes.values()
            assert lane.committed is not None
            second.until(lambda: len(second.taken.get(moved, [])) == 70, "it has read the rest")
            assert second.taken == {moved: list(range(30, 100))}
            first.limit = None
            kept = 1 - moved
            first.until(lambda: len(first.taken[kept]) == 100, "the first goes on")
            assert first.taken[kept] == list(range(100))


def test_restarted_lanes_are_lost_and_come_back_as_added_ones(kafka: Kafka, group_protocol: str) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20)
    with SourceMember(kafka, group_protocol, topic, f"group-{topic}").running() as member:
        member.until(
            lambda: len(member.taken) == 2 and all(len(at) == 10 for at in member.taken.values()), "it is read"
        )
        before = {lane.partition: lane.id for lane in member.lanes.values()}
        member.source.restart_lanes({before[1]: None})
        member.until(lambda: len(member.of(LanesAdded)) >= 1 and member.of(LanesAdded)[-1].lanes, "it comes back")
        [lost] = [event for event in member.of(LanesRevoked) if event.reason is RevokeReason.LOST]
        assert lost.lanes == (before[1],)
        assert lost.barrier.is_settled
        [lane] = member.of(LanesAdded)[-1].lanes
        assert lane.partition == 1
        assert lane.id > max(before.values())
        kafka.produce(topic, 20)
        member.until(lambda: all(at[-1:] == [19] for at in member.taken.values()), "it goes on")
        assert member.taken[0] == list(range(20))
        assert sorted(set(member.taken[1])) == list(range(20))


def test_a_bounded_run_tells_of_each_end_and_then_that_it_is_over(kafka: Kafka, group_protocol: str) -> None:
    topic = kafka.create_topic(partitions=4)  # full, empty, aborted at the tail, only aborted
    kafka.produce(topic, 500, partition=0)
    producer = kafka.transactional_producer()
    for partition, count, commits in ((2, 10, True), (2, 5, False), (3, 5, False)):
        send(producer, topic, partition, count, commits=commits)
    expected = readable(kafka, [topic])
    group = f"group-{topic}"
    with SourceMember(kafka, group_protocol, topic, group, is_bounded=True).running() as member:
        member.until(lambda: bool(member.of(Drained)), "it is over")
        assert {(topic, at, offset) for at, offsets in member.taken.items() for offset in offsets} == expected
        ends = kafka.end_offsets(topic)
        committed = kafka.committed(group, topic)
        assert all(committed[at] == end for at, end in ends.items() if end)
        count = len(member.of(Drained))
        member.until(lambda: len(member.of(Drained)) > count + 2, "it says so again and again")
    events = [event for event in member.events if not isinstance(event, Idle)]
    ready = [int(partition) for event in member.of(CommitReady) for partition in event.partitions]
    retired = [int(lane) for event in member.of(LanesRetired) for lane in event.lanes]
    assert sorted(ready) == sorted(retired) == sorted(map(int, _lane_ids(member)))  # both ids have the same number
    assert len(retired) == 4
    for lane in retired:
        when_ready = next(n for n, e in enumerate(events) if isinstance(e, CommitReady) and lane in e.partitions)
        when_retired = next(n for n, e in enumerate(events) if isinstance(e, LanesRetired) and lane in e.lanes)
        assert when_ready < when_retired
    over = next(n for n, event in enumerate(events) if isinstance(event, Drained))
    assert all(isinstance(event, Drained) for event in events[over:])
    assert not member.of(LanesRevoked)
