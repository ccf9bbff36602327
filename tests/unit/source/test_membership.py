"""A sink commits as the member that this process is, and only lanes that are this member's in that generation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from connector import LaneId, RefusedError, TransientError
from connector.source.assignment import Assignment
from connector.source.membership import Membership
from connector.source.position import TopicFacts, decode_metadata
from connector.testing import FakeClient

if TYPE_CHECKING:
    from connector.source.assignment import Held

FACTS = TopicFacts(4, "id-1")


class Member(FakeClient):
    """A client whose generation a test sets."""

    generation = 1

    def consumer_group_metadata(self) -> bytes:
        return b"CGMDv2:" + self.generation.to_bytes(4, sys.byteorder, signed=True) + b"group"


def lane(assignment: Assignment, partition: int = 0) -> Held:
    return assignment.mint(("t", partition), FACTS, awaits_sink=False)


def test_a_lane_is_committed_as_the_member_with_the_facts_of_its_topic() -> None:
    client, membership, assignment = Member(), Membership(), Assignment()
    held = lane(assignment)
    membership.publish(client, assignment)
    commit = membership.group_commit(held.lane.id)
    assert commit.member == client.consumer_group_metadata()
    assert decode_metadata(commit.metadata) == FACTS


@pytest.mark.invariant(7)
def test_a_lane_that_has_left_is_refused_with_the_generation_that_came_after() -> None:
    client, membership, assignment = Member(), Membership(), Assignment()
    gone, kept = lane(assignment, 0), lane(assignment, 1)
    membership.publish(client, assignment)
    assignment.drop(gone)
    membership.publish(client, assignment)
    client.generation = 2
    membership.refresh(client)
    with pytest.raises(RefusedError):
        membership.group_commit(gone.lane.id)
    assert membership.group_commit(kept.lane.id).member == client.consumer_group_metadata()


def test_a_partition_that_has_come_back_is_another_lane() -> None:
    client, membership, assignment = Member(), Membership(), Assignment()
    old = lane(assignment)
    assignment.drop(old)
    new = lane(assignment)
    membership.publish(client, assignment)
    with pytest.raises(RefusedError):
        membership.group_commit(old.lane.id)
    membership.group_commit(new.lane.id)


@pytest.mark.parametrize("generation", [0, -1])
def test_nothing_is_committed_without_a_generation(generation: int) -> None:
    client, membership, assignment = Member(), Membership(), Assignment()
    held = lane(assignment)
    membership.publish(client, assignment)
    client.generation = generation
    membership.refresh(client)
    with pytest.raises(TransientError):
        membership.group_commit(held.lane.id)


def test_nobody_commits_before_the_first_assignment() -> None:
    with pytest.raises(RefusedError):
        Membership().group_commit(LaneId(1))
