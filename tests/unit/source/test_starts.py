"""Where a lane starts: the whole table of causes and policies, and that a failure to read is never "there is none"."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, Message, TopicPartition

from connector import ConfigError, Offset, StoredPosition
from connector.source.position import (
    SETTING_OF_CAUSE,
    Cause,
    Committed,
    StartPolicies,
    StartPolicy,
    TopicFacts,
    decode_metadata,
    encode_metadata,
    parse_start,
    start_cause,
)
from connector.source.starts import Found, Starts
from connector.telemetry.metrics import Metrics
from connector.testing.client import FakeClient
from tests.support.engine import StubCluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from connector.source.position import Start
    from connector.testing.client import Key

A, B, C = ("t", 0), ("t", 1), ("t", 2)
OURS, OTHER = TopicFacts(4, "id 1"), TopicFacts(4, "id 2")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def _committed(position: int, facts: TopicFacts | None = OURS) -> Committed:
    return Committed(Offset(position), facts)


def _cause(
    partition: int = 0,
    topic: TopicFacts = OURS,
    *,
    stored: StoredPosition | None = None,
    committed: Committed | None = None,
    siblings: Sequence[Committed] = (),
    seen: str | None = None,
    is_new_topic: bool = False,
) -> Cause:
    return start_cause(
        partition,
        topic=topic,
        stored=stored,
        committed=committed,
        siblings=siblings,
        seen_topic_id=seen,
        is_new_topic=is_new_topic,
    )


def test_a_sinks_position_wins_over_the_groups() -> None:
    assert _cause(stored=StoredPosition(Offset(7), "id 1"), committed=_committed(5)) is Cause.SINK
    assert _cause(stored=StoredPosition(Offset(7))) is Cause.SINK, "the sink does not know the id"


def test_a_committed_position_is_used_also_without_our_metadata() -> None:
    assert _cause(committed=_committed(5)) is Cause.COMMITTED
    assert _cause(committed=_committed(5, None)) is Cause.COMMITTED


@pytest.mark.parametrize("seen", [None, "id 1", "id 2"])
def test_another_topic_id_in_the_commit_or_the_sink_means_that_the_topic_was_made_again(seen: str | None) -> None:
    assert _cause(committed=_committed(5, OTHER), seen=seen) is Cause.RECREATED
    assert _cause(stored=StoredPosition(Offset(7), "id 2"), committed=_committed(5), seen=seen) is Cause.RECREATED


def test_a_topic_id_other_than_the_one_seen_while_running_means_so_too() -> None:
    assert _cause(seen="id 2") is Cause.RECREATED


@pytest.mark.parametrize(("then", "now"), [(None, "id 1"), ("id 1", None), (None, None)])
def test_without_ids_no_topic_is_taken_for_another(then: str | None, now: str | None) -> None:
    assert _cause(0, TopicFacts(4, now), committed=_committed(5, TopicFacts(4, then)), seen=then) is Cause.COMMITTED
    assert _cause(0, TopicFacts(4, now), seen=then) is Cause.NEW_GROUP


def test_no_position_is_expired_if_a_siblings_commit_knew_of_the_partition_and_new_if_not() -> None:
    siblings = [_committed(5, TopicFacts(2)), _committed(9, TopicFacts(3))]
    assert [_cause(index, siblings=siblings) for index in range(5)] == [
        Cause.EXPIRED,
        Cause.EXPIRED,
        Cause.EXPIRED,
        Cause.NEW_PARTITION,
        Cause.NEW_PARTITION,
    ]


def test_siblings_that_another_program_committed_cover_nothing() -> None:
    assert _cause(0, siblings=[_committed(5, None)]) is Cause.NEW_PARTITION


def test_without_any_sibling_it_is_a_new_group_or_a_new_topic() -> None:
    assert _cause() is Cause.NEW_GROUP
    assert _cause(is_new_topic=True) is Cause.NEW_PARTITION


def test_metadata_survives_the_commit_and_any_other_text_is_none_of_ours() -> None:
    for facts in (OURS, TopicFacts(1)):
        assert decode_metadata(encode_metadata(facts)) == facts
    for text in (
        None,
        "",
        "x",
        "7",
        "[]",
        "{}",
        '{"sluiceway": 2, "partitions": 4}',
        '{"sluiceway": 1}',
        "null",
        "\x00",
    ):
        assert decode_metadata(text) is None


def test_a_start_is_a_word_or_a_time_and_a_time_without_a_zone_is_utc() -> None:
    assert [parse_start(word) for word in ("earliest", "latest", "error")] == list(StartPolicy)
    assert parse_start("2026-01-31T12:00:00") == parse_start("2026-01-31T13:00:00+01:00") == NOON
    for text in ("", "end", "0", "Latest"):
        with pytest.raises(ValueError, match="is not earliest, latest, error or an ISO time"):
            parse_start(text)


# Through a client.


class Group:
    """A log from 10 to 20, a record a minute from 11:55 on in each of 4 partitions, and the group's positions."""

    def __init__(self, policies: StartPolicies | None = None, *, pattern: bool = False) -> None:
        self.metrics = Metrics()
        self.subscription = ("^t",) if pattern else ("t",)
        self.cluster = StubCluster({"t": OURS}, self.subscription)
        self.client = FakeClient()
        self.starts = Starts(self.cluster, self.subscription, policies or StartPolicies(), self.metrics)
        self.starts.remember(["t"])
        begin = int(NOON.timestamp() * 1000) - 5 * 60_000
        for partition in range(4):
            self.client._extend(
                [
                    Message(topic="t", partition=partition, offset=10 + index, timestamp=(1, begin + index * 60_000))
                    for index in range(10)
                ]
            )

    def commit(self, key: Key, position: int, facts: TopicFacts | None = OURS) -> None:
        metadata = encode_metadata(facts) if facts else ""
        self.client.stored[key] = TopicPartition(*key, position, metadata)

    def find(self, *keys: Key, stored: Mapping[Key, StoredPosition] | None = None) -> dict[Key, Found]:
        return self.starts.find(self.client, keys, stored or {})

    def count(self, name: str, cause: Cause) -> float:
        return float(getattr(self.metrics, name).labels(cause.value)._value.get())


def _group_for(cause: Cause, start: Start) -> Group:
    """A group in which partition A starts by this cause."""
    field = {
        Cause.NEW_GROUP: "new_group",
        Cause.NEW_PARTITION: "new_partition",
        Cause.EXPIRED: "on_expired",
        Cause.RECREATED: "on_recreated",
    }[cause]
    group = Group(StartPolicies(**{field: start}))
    if cause is Cause.NEW_PARTITION:
        group.commit(B, 15, TopicFacts(0, "id 1"))
    elif cause is Cause.EXPIRED:
        group.commit(B, 15)
    elif cause is Cause.RECREATED:
        group.commit(A, 15, OTHER)
    return group


@pytest.mark.parametrize("cause", [Cause.NEW_GROUP, Cause.NEW_PARTITION, Cause.EXPIRED, Cause.RECREATED])
@pytest.mark.parametrize(
    ("start", "offset"),
    [
        (StartPolicy.EARLIEST, 10),
        (StartPolicy.LATEST, 20),
        (NOON, 15),
        (datetime(2026, 1, 1, tzinfo=UTC), 10),
        (datetime(2027, 1, 1, tzinfo=UTC), 20),
    ],
)
def test_each_cause_has_its_own_policy_and_what_it_skips_is_counted(cause: Cause, start: Start, offset: int) -> None:
    group = _group_for(cause, start)
    found = group.find(A)[A]
    assert (found.start, found.cause) == (offset, cause)
    assert group.count("start_offsets_skipped", cause) == offset - 10
    assert sum(group.count("start_offsets_skipped", other) for other in Cause if other is not cause) == 0


@pytest.mark.parametrize("cause", [Cause.NEW_GROUP, Cause.NEW_PARTITION, Cause.EXPIRED, Cause.RECREATED])
def test_the_policy_error_says_which_setting_to_change(cause: Cause) -> None:
    group = _group_for(cause, StartPolicy.ERROR)
    with pytest.raises(ConfigError, match=rf"^t\[0\] cannot start: .*{SETTING_OF_CAUSE[cause]}=error"):
        group.find(A)


def test_a_position_of_before_the_topic_was_made_again_is_not_taken_for_a_committed_one() -> None:
    group = _group_for(Cause.RECREATED, StartPolicy.EARLIEST)
    assert group.find(A)[A].committed is None, "commits below it are needed again"


def test_committed_and_sink_positions_are_used_as_they_are_and_skip_nothing() -> None:
    group = Group(StartPolicies(*[StartPolicy.ERROR] * 5))
    group.commit(A, 13)
    group.commit(B, 14, None)
    found = group.find(A, B, C, stored={C: StoredPosition(Offset(16), "id 1")})
    assert {key: (each.start, each.cause, each.committed) for key, each in found.items()} == {
        A: (13, Cause.COMMITTED, 13),
        B: (14, Cause.COMMITTED, 14),
        C: (16, Cause.SINK, None),
    }


def test_a_topic_made_again_is_noticed_by_the_id_that_was_seen_before() -> None:
    group = Group(StartPolicies(new_group=StartPolicy.LATEST))
    assert group.find(A)[A].cause is Cause.NEW_GROUP
    group.cluster.topics["t"] = OTHER
    assert (group.find(A)[A].cause, group.find(B)[B].facts) == (Cause.RECREATED, OTHER)


def test_a_partition_newer_than_what_the_cluster_said_is_looked_up_all_the_same() -> None:
    group = Group(StartPolicies(new_group=StartPolicy.LATEST))
    group.commit(A, 15)
    found = group.find(("t", 4))[("t", 4)]
    assert (found.cause, found.facts) == (Cause.NEW_PARTITION, TopicFacts(5, "id 1"))


def test_a_new_topic_under_a_pattern_is_read_from_its_begin_whatever_the_policy_of_a_new_group() -> None:
    group = Group(StartPolicies(new_group=StartPolicy.LATEST), pattern=True)
    group.cluster.topics["t2"] = TopicFacts(1, "id 3")
    group.cluster.look()
    assert group.find(("t2", 0))[("t2", 0)].cause is Cause.NEW_PARTITION, "it was not there at start"


def test_a_topic_under_a_pattern_in_a_group_that_is_at_work_in_others_is_new() -> None:
    group = Group(StartPolicies(new_group=StartPolicy.LATEST), pattern=True)
    group.cluster.topics["t2"] = TopicFacts(1, "id 3")
    group.cluster.look()
    group.starts.remember(["t", "t2"])  # this process has started after the topic came
    assert group.find(("t2", 0))[("t2", 0)].cause is Cause.NEW_GROUP, "nobody has committed anything"
    group.commit(A, 15)
    assert group.find(("t2", 0))[("t2", 0)].cause is Cause.NEW_PARTITION


def test_a_topic_that_does_not_exist_is_left_out() -> None:
    group = Group()
    assert set(group.find(A, ("gone", 0))) == {A}


def _no_coordinator(group: Group) -> None:
    group.client.fail_next("committed", "_TIMED_OUT")


def _one_partition_fails(group: Group) -> None:
    group.client.committed_errors[B] = "STALE_MEMBER_EPOCH"


def _no_facts(group: Group) -> None:
    group.cluster.facts_error = "_TRANSPORT"


def _no_leader(group: Group) -> None:
    group.client.fail_next("get_watermark_offsets", "LEADER_NOT_AVAILABLE")


@pytest.mark.parametrize("fail", [_no_coordinator, _one_partition_fails, _no_facts, _no_leader])
def test_a_failure_to_read_is_never_taken_for_none(fail: Mapping[str, object]) -> None:
    group = Group(StartPolicies(new_group=StartPolicy.LATEST))
    assert callable(fail)
    fail(group)
    with pytest.raises(KafkaException):
        group.find(A)
