"""Positions as a file: a backup that is restored gives the same positions, and what cannot be used is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.api.types import Offset
from connector.offsets.document import csv_document, json_document, read_document
from connector.offsets.plan import RefusedResetError, plan_moves
from connector.offsets.state import GroupState, LogRange, Member
from connector.source.position import TopicFacts
from tests.unit.offsets.partition_states import committed, partition, reading, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.offsets.state import PartitionState, Reading

FORMS: list[Callable[[Reading], str]] = [json_document, csv_document]
every_form = pytest.mark.parametrize("write", FORMS)

LOG = LogRange(Offset(0), Offset(2**63 - 1))
held = st.fixed_dictionaries(
    {},
    optional={
        "committed": st.builds(committed, st.integers(0, LOG.end)),
        "stored": st.builds(stored, st.integers(0, LOG.end), st.sampled_from(["id-1", None])),
    },
)
states = st.lists(
    st.builds(
        lambda key, facts, given: partition(key[1], topic=key[0], facts=facts, log=LOG, **given),
        st.tuples(st.text("abc._-", min_size=1, max_size=5), st.integers(0, 3)),
        st.sampled_from([TopicFacts(4, "id-1"), TopicFacts(4)]),
        held,
    ),
    max_size=6,
    unique_by=lambda state: state.key,
)


@every_form
@given(states=states)
def test_a_backup_restored_gives_each_partition_the_position_that_counted(
    write: Callable[[Reading], str], states: list[PartitionState]
) -> None:
    before = reading(*states)
    saved = read_document(write(before))
    counted = {state.key: state.position for state in before.partitions if state.position is not None}
    moves = plan_moves(before.partitions, saved.wanted)
    assert {move.state.key: move.to for move in moves} == counted
    assert all((move.skipped, move.repeated) == (0, 0) for move in moves)
    assert set(saved.without) == {state.key for state in before.partitions} - counted.keys()


@every_form
def test_a_position_of_a_former_topic_or_out_of_range_is_no_position_in_a_backup(
    write: Callable[[Reading], str],
) -> None:
    text = write(
        reading(
            partition(0, committed=committed(150, TopicFacts(4, "id-0"))),
            partition(1, committed=committed(5)),
            partition(2, committed=committed(150)),
            partition(0, topic="gone", facts=None, log=None, stored=stored(150)),
        )
    )
    saved = read_document(text)
    assert saved.wanted.keys() == {("orders", 2)}
    assert saved.wanted["orders", 2].topic_id == "id-1"
    assert saved.without == (("orders", 0), ("orders", 1), ("gone", 0))


def test_absent_is_null_or_empty_and_never_0() -> None:
    found = reading(
        partition(0, topic="new"),
        partition(1, committed=committed(200)),
        partition(0, topic="gone", facts=None, log=None),
    )
    new, at_end, gone = json.loads(json_document(found))["partitions"]
    for name in ("position", "committed", "sink_position", "lag", "metadata"):
        assert new[name] is None
    assert (at_end["lag"], at_end["metadata"]) == (0, {"partitions": 4, "topic_id": "id-1"})
    assert [gone[name] for name in ("log_start", "log_end", "topic_id", "note")] == [
        *(None, None, None),
        "the topic does not exist",
    ]
    lines = csv_document(found).splitlines()
    assert lines[1] == "new,0,,id-1,,,100,200,,no position: CONNECTOR_START decides"
    assert lines[2] == "orders,1,200,id-1,200,,100,200,0,"


def test_the_members_are_in_the_json() -> None:
    member = Member("client", "/10.0.0.1", "client-1", None, (("orders", 0),))
    document = json.loads(json_document(reading(partition(), group=GroupState("stable", "consumer", (member,)))))
    assert (document["group"], document["state"], document["protocol"]) == ("group", "stable", "consumer")
    assert document["members"] == [
        {
            "client_id": "client",
            "host": "/10.0.0.1",
            "member_id": "client-1",
            "instance_id": None,
            "partitions": [["orders", 0]],
        }
    ]


@pytest.mark.parametrize(
    "text",
    [
        "topic,partition,position\norders,3,150\n",
        "position,comment,topic,partition\r\n150,x,orders,3\r\n",
        '{"partitions": [{"topic": "orders", "partition": 3, "position": 150}]}',
    ],
)
def test_a_file_by_hand_needs_no_more_than_topic_partition_and_position(text: str) -> None:
    saved = read_document(text)
    assert {key: (want.position, want.topic_id) for key, want in saved.wanted.items()} == {("orders", 3): (150, None)}


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["the first line of the file has to name its columns; missing: topic, partition, position"]),
        ("orders,3,150\n", ["the first line of the file has to name its columns; missing: topic, partition, position"]),
        ("topic,partition\norders,3\n", ["the first line of the file has to name its columns; missing: position"]),
        (
            "topic,partition,position\n,3,1\norders,x,1\norders,3,-1\norders,4,1\norders,4,2\n",
            [
                "line 2: topic is missing",
                "line 3: partition is no whole number: x",
                "line 4: position is no whole number: -1",
                "line 6: orders[4] is there twice",
            ],
        ),
        ("topic,partition,position\norders,3,\norders,3,1\n", ["line 3: orders[3] is there twice"]),
        ('{"partitions": [', ["line 1 of the file is no JSON: Expecting value"]),
        ("{}", ["the file is not what `connector offsets show --json` writes: no list of partitions"]),
        ('{"partitions": [1]}', ["the file is not what `connector offsets show --json` writes: no list of partitions"]),
        (
            '{"partitions": [{"topic": 1, "partition": 0, "position": 1}, {"topic": "a", "partition": 0.5}]}',
            ["partitions[0]: topic is missing", "partitions[1]: partition is no whole number: 0.5"],
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_every_line_that_is_wrong(text: str, problems: list[str]) -> None:
    with pytest.raises(RefusedResetError) as refused:
        read_document(text)
    assert str(refused.value).split("\n  - ")[1:] == problems
