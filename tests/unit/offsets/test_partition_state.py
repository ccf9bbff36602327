"""What is said of a partition: the position that counts, lag, and what is out of the ordinary."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from connector.offsets.state import GroupState, Member, PartitionState
from connector.source.position import StartPolicy, TopicFacts
from tests.unit.offsets.partition_states import committed, partition, started, stored


def alone(state: PartitionState, **policies: Any) -> PartitionState:
    (found,) = started(state, **policies)
    return found


@pytest.mark.parametrize(
    ("held", "position", "lag"),
    [
        ({"committed": committed(150)}, 150, 50),
        ({"committed": committed(150, None)}, 150, 50),  # of another program
        ({"committed": committed(100)}, 100, 100),
        ({"committed": committed(200)}, 200, 0),
        ({"committed": committed(150), "stored": stored(120)}, 120, 80),
        ({"stored": stored(180, None)}, 180, 20),
    ],
)
def test_the_sinks_position_counts_before_the_groups(held: dict[str, Any], position: int, lag: int) -> None:
    found = alone(partition(**held))
    assert (found.position, found.start, found.lag, found.note) == (position, position, lag, "")


@pytest.mark.parametrize(
    ("held", "note"),
    [
        ({}, "no position: CONNECTOR_START decides"),
        ({"committed": committed(99)}, "the position is not in the log: CONNECTOR_START_ON_OUT_OF_RANGE decides"),
        ({"committed": committed(201)}, "the position is not in the log: CONNECTOR_START_ON_OUT_OF_RANGE decides"),
        (
            {"committed": committed(150), "stored": stored(1)},
            "the position is not in the log: CONNECTOR_START_ON_OUT_OF_RANGE decides",
        ),
        (
            {"committed": committed(150, TopicFacts(4, "id-0"))},
            "the topic was made again since: CONNECTOR_START_ON_RECREATED decides",
        ),
        (
            {"committed": committed(150), "stored": stored(150, "id-0")},
            "the topic was made again since: CONNECTOR_START_ON_RECREATED decides",
        ),
    ],
)
def test_where_a_policy_decides_there_is_no_position_and_no_lag(held: dict[str, Any], note: str) -> None:
    found = alone(partition(**held))
    assert (found.position, found.lag, found.note) == (None, None, note)


def test_a_sibling_tells_a_new_partition_from_an_expired_position() -> None:
    states = started(
        partition(0, committed=committed(150, TopicFacts(2, "id-1"))),
        partition(1),
        partition(2),
        partition(1, topic="other"),
    )
    assert [state.note for state in states] == [
        "",
        "the position has expired: CONNECTOR_START_ON_EXPIRED decides",
        "a new partition: CONNECTOR_START_NEW_PARTITION decides",
        "no position: CONNECTOR_START decides",
    ]


@pytest.mark.parametrize(
    ("policy", "start"),
    [
        (StartPolicy.EARLIEST, 100),
        (StartPolicy.LATEST, 200),
        (StartPolicy.ERROR, None),
        (datetime(2026, 1, 1, tzinfo=UTC), None),
    ],
)
def test_the_policy_tells_where_a_lane_would_start_if_that_is_an_end_of_the_log(policy: Any, start: int | None) -> None:
    assert alone(partition(), new_group=policy).start == start
    assert alone(partition(committed=committed(5)), on_out_of_range=policy).start == start


def test_a_topic_or_partition_that_is_gone_is_said() -> None:
    gone = alone(partition(facts=None, log=None, stored=stored(150)))
    assert (gone.position, gone.start, gone.lag, gone.note) == (None, None, None, "the topic does not exist")
    assert alone(partition(7, log=None, committed=committed(150))).note == "no such partition, or it has no leader"


def test_only_a_group_without_members_is_empty() -> None:
    member = Member("client", "/10.0.0.1", "client-1", "static-1", (("orders", 0),))
    assert GroupState("empty", "classic", ()).is_empty
    assert GroupState("dead", "classic", ()).is_empty
    assert not GroupState("stable", "classic", (member,)).is_empty
    assert not GroupState("empty", "classic", (member,)).is_empty
    assert not GroupState("preparing_rebalance", "classic", ()).is_empty
    assert str(member) == "client at 10.0.0.1 (client-1, instance static-1)"
