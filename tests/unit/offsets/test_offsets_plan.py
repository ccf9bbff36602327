"""A reset before it is done: from where to where, what it costs, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.api.types import Offset
from connector.offsets.plan import (
    Edge,
    Move,
    RefusedResetError,
    Scope,
    Wanted,
    parse_target,
    plan_moves,
    wanted_at,
    wanted_at_time,
)
from connector.offsets.state import LogRange
from connector.source.position import Committed, StartPolicy, TopicFacts
from tests.unit.offsets.partition_states import FACTS, committed, partition, started, stored

if TYPE_CHECKING:
    from connector.offsets.state import PartitionState


def move(state: PartitionState, to: int, **policies: object) -> Move:
    (state,) = started(state, **policies)
    (planned,) = plan_moves([state], {state.key: Wanted(Offset(to))})
    return planned


@given(st.data())
def test_a_reset_skips_or_repeats_exactly_the_offsets_between_from_and_to(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 1000))
    log = LogRange(Offset(first), Offset(first + data.draw(st.integers(0, 1000))))
    before, to = (data.draw(st.integers(log.start, log.end)) for _ in range(2))
    planned = move(partition(log=log, committed=committed(before)), to)
    read_without, read_with = set(range(before, log.end)), set(range(to, log.end))
    assert planned.skipped == len(read_without - read_with)
    assert planned.repeated == len(read_with - read_without)


def test_what_is_skipped_and_repeated_is_measured_from_where_a_lane_would_start() -> None:
    of_sink = move(partition(committed=committed(190), stored=stored(150)), 160)
    assert (of_sink.skipped, of_sink.repeated, of_sink.note) == (10, 0, "from: the sink's; the group's is 190")
    below = move(partition(committed=committed(5)), 160)
    assert (below.state.position, below.skipped, below.repeated) == (None, 60, 0)
    at_the_end = move(partition(), 160, new_group=StartPolicy.LATEST)
    assert (at_the_end.skipped, at_the_end.repeated) == (0, 40)
    unknown = move(partition(), 160, new_group=StartPolicy.ERROR)
    assert (unknown.skipped, unknown.repeated, unknown.note) == (None, None, "no position: CONNECTOR_START decides")


def test_group_and_sink_are_given_the_facts_of_the_topic_so_that_the_start_rules_know_the_position() -> None:
    planned = move(partition(committed=committed(150, TopicFacts(2, "id-0"))), 160)
    assert planned.committed == Committed(Offset(160), FACTS)
    assert planned.stored == stored(160, "id-1")


@pytest.mark.parametrize("to", [100, 200])
def test_both_ends_of_the_log_are_in_range(to: int) -> None:
    assert move(partition(), to).to == to


def test_every_problem_is_told_and_nothing_is_planned() -> None:
    states = started(
        partition(0), partition(1), partition(7, log=None), partition(0, topic="gone", facts=None, log=None)
    )
    wanted = {
        ("orders", 0): Wanted(Offset(99)),
        ("orders", 1): Wanted(Offset(201)),
        ("orders", 7): Wanted(Offset(150)),
        ("gone", 0): Wanted(Offset(150)),
        ("strange", 0): Wanted(Offset(150)),
    }
    with pytest.raises(RefusedResetError) as refused:
        plan_moves(states, wanted)
    assert refused.value.exit_code == 2
    assert str(refused.value).splitlines() == [
        "refused, nothing was changed",
        "  - gone[0]: the topic does not exist, or it may not be described (ACL: Describe on the topic)",
        "  - orders[0]: 99 is not in the log, which goes from 100 to 200",
        "  - orders[1]: 201 is not in the log, which goes from 100 to 200",
        "  - orders[7]: no such partition, or it has no leader",
        "  - strange[0]: the topic does not exist, or it may not be described (ACL: Describe on the topic)",
    ]


def test_a_saved_position_is_not_given_to_another_topic_of_the_same_name() -> None:
    (state,) = started(partition())
    for topic_id in ("id-1", None):
        assert plan_moves([state], {state.key: Wanted(Offset(150), topic_id=topic_id)})
    with pytest.raises(RefusedResetError, match="the topic was made again since the position was saved"):
        plan_moves([state], {state.key: Wanted(Offset(150), topic_id="id-0")})
    (without_ids,) = started(partition(facts=TopicFacts(4)))
    assert plan_moves([without_ids], {state.key: Wanted(Offset(150), topic_id="id-0")})


def test_an_end_of_the_log_is_taken_for_each_partition() -> None:
    states = [partition(0), partition(1, log=LogRange(Offset(0), Offset(7))), partition(2, log=None)]
    assert {key: want.position for key, want in wanted_at(states, Edge.EARLIEST).items()} == {
        ("orders", 0): 100,
        ("orders", 1): 0,
    }
    assert {key: want.position for key, want in wanted_at(states, Edge.LATEST).items()} == {
        ("orders", 0): 200,
        ("orders", 1): 7,
    }


def test_a_partition_without_a_log_is_refused_when_an_offset_is_given_for_all() -> None:
    states = started(partition(0), partition(1, log=None))
    with pytest.raises(RefusedResetError, match=r"orders\[1\]"):
        plan_moves(states, wanted_at(states, Offset(150)))


def test_a_time_after_the_last_record_is_the_end_and_says_so() -> None:
    states = [partition(number) for number in range(4)]
    found = dict(zip([state.key for state in states], [Offset(150), None, Offset(205), Offset(50)], strict=True))
    wanted = wanted_at_time(states, found)
    late = "no record at that time or later: the end"
    assert list(wanted.values()) == [
        Wanted(Offset(150)),
        Wanted(Offset(200), late),
        Wanted(Offset(200), late),
        Wanted(Offset(100)),
    ]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", Edge.EARLIEST),
        ("latest", Edge.LATEST),
        ("0", Offset(0)),
        ("20260131", Offset(20260131)),  # digits are an offset, never a date
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T08:00:00Z", datetime(2026, 1, 31, 8, tzinfo=UTC)),
        ("2026-01-31T08:00:00+02:00", datetime(2026, 1, 31, 6, tzinfo=UTC)),
    ],
)
def test_a_target_is_an_end_an_offset_or_a_time(text: str, target: object) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "-1", "1.5", "soon", "error", "²", "committed"])
def test_anything_else_is_no_target(text: str) -> None:
    with pytest.raises(ValueError, match="is not earliest, latest, an offset, or a time"):
        parse_target(text)


KEYS = [("orders", 0), ("orders", 1), ("payments", 0)]


@pytest.mark.parametrize(
    ("scope", "taken"),
    [
        (Scope(), KEYS),
        (Scope(topics=frozenset({"orders"})), KEYS[:2]),
        (Scope(partitions=frozenset({0})), [KEYS[0], KEYS[2]]),
        (Scope(frozenset({"orders"}), frozenset({1})), [KEYS[1]]),
    ],
)
def test_a_scope_narrows_by_topic_and_by_partition(scope: Scope, taken: list[tuple[str, int]]) -> None:
    scope.check(KEYS)
    assert [key for key in KEYS if scope.takes(key)] == taken


@pytest.mark.parametrize(
    ("scope", "problem"),
    [
        (Scope(topics=frozenset({"order"})), "--topic order: there is no such topic here; there are: orders, payments"),
        (Scope(partitions=frozenset({0, 2})), "--partition 2: none of the topics has it"),
        (Scope(frozenset({"payments"}), frozenset({1})), "--partition 1: none of the topics has it"),
    ],
)
def test_what_is_named_and_not_there_is_refused(scope: Scope, problem: str) -> None:
    with pytest.raises(RefusedResetError) as refused:
        scope.check(KEYS)
    assert str(refused.value).splitlines()[1:] == [f"  - {problem}"]


def test_a_position_of_a_former_topic_is_no_start() -> None:
    planned = move(partition(stored=stored(150, "id-0")), 160)
    assert (planned.state.position, planned.skipped, planned.repeated) == (None, 60, 0)
    assert planned.note == "the topic was made again since: CONNECTOR_START_ON_RECREATED decides"
