"""The fake Kafka client does what was measured of the real one (tests/client)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from connector.source.client import generation
from connector.testing.client import Call, FakeClient, records

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.source.client import KafkaClient

A, B = ("t", 0), ("t", 1)
EAGER: dict[str, Any] = {"auto.offset.reset": "error"}
COOPERATIVE: dict[str, Any] = {**EAGER, "partition.assignment.strategy": "cooperative-sticky"}


class Member:
    """A subscribed client that assigns at offset 0 in `on_assign`; hooks run inside the callbacks."""

    def __init__(self, properties: dict[str, Any], on_revoke: Callable[[], object] = lambda: None) -> None:
        self.committed: list[tuple[str | None, list[tuple[int, str | None]]]] = []
        self.fake = FakeClient().configure({**properties, "on_commit": self._on_commit})
        self.client: KafkaClient = self.fake
        self.hook = on_revoke
        self.client.subscribe(["t"], self._on_assign, self._on_revoke, lambda _, __: None)

    def _on_assign(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        targets = [TopicPartition(where.topic, where.partition, 0) for where in partitions]
        if self.fake.is_eager:
            client.assign(targets)
        else:
            client.incremental_assign(targets)

    def _on_revoke(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        self.hook()

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        answers = [(where.partition, where.error.name() if where.error else None) for where in partitions]
        self.committed.append((error.name() if error else None, answers))

    def position(self, key: tuple[str, int] = A) -> int:
        return self.client.position([TopicPartition(*key)])[0].offset

    def offsets(self, count: int = 100) -> list[tuple[int | None, int | None]]:
        return [(message.partition(), message.offset()) for message in self.client.consume(count, 0)]


@pytest.fixture(params=[EAGER, COOPERATIVE, {**EAGER, "group.protocol": "consumer"}])
def member(request: pytest.FixtureRequest) -> Member:
    return Member(request.param)


def _commit(*entries: tuple[tuple[str, int], int]) -> list[TopicPartition]:
    return [TopicPartition(*key, position, f"metadata {position}") for key, position in entries]


def _code(caught: pytest.ExceptionInfo[KafkaException]) -> str:
    name: str = caught.value.args[0].name()
    return name


def test_the_real_client_and_the_fake_fit_one_protocol() -> None:
    real = Consumer({"group.id": "g", "bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    clients: list[KafkaClient] = [real, FakeClient()]
    names = [name for name in vars(FakeClient) if hasattr(Consumer, name) and not name.startswith("_")]
    assert len(names) == 19
    for client in clients:
        client.close()
        with pytest.raises(RuntimeError, match="Consumer closed"):
            client.poll(0)
        client.close()


def test_records_come_from_the_assigned_offset_and_the_position_follows_what_was_returned(member: Member) -> None:
    member.fake.messages(records("t", 0, [0, 1, 5]))
    assert member.client.poll(0) is None
    member.fake.assign_partitions(A)
    first = member.client.poll(0)
    assert first is not None
    assert (first.offset(), first.value(), member.position()) == (0, b"value", 1)
    assert member.offsets() == [(0, 1), (0, 5)]
    assert member.position() == 6
    member.fake.skip_to(A, 9)
    assert member.offsets() == []
    assert member.position() == 9


def test_one_consume_holds_a_revocation_an_assignment_and_records_of_the_new_one(member: Member) -> None:
    positions: list[int] = []
    member.hook = lambda: positions.append(member.position())
    member.fake.assign_partitions(A)
    member.fake.messages(records("t", 0, [0, 1]))
    assert member.offsets(1) == [(0, 0)]
    member.fake.revoke_partitions()
    member.fake.assign_partitions()
    member.fake.assign_partitions(B) if not member.fake.is_eager else member.fake.assign_partitions(A, B)
    member.fake.messages(records("t", 1, [7]))
    assert set(member.offsets()) == ({(0, 0), (0, 1), (1, 7)} if member.fake.is_eager else {(1, 7)})
    assert positions == [1], "record 1 was collected, not returned"
    assert member.fake.names("on_assign", "on_revoke") == ["on_assign", "on_revoke", "on_assign", "on_assign"]


def test_the_client_finishes_what_the_callbacks_leave(member: Member) -> None:
    fake = FakeClient(member.fake.properties)
    fake.subscribe(["t"])
    fake.stored[A] = TopicPartition("t", 0, 1)
    fake.messages(records("t", 0, [0, 1]))
    fake.assign_partitions(A, B)
    found = fake.consume(10, 0)
    assert [message.offset() for message in found if not message.error()] == [1]
    [error] = [message.error() for message in found if message.error()]
    assert error is not None
    assert (error.name(), error.str()) == ("_AUTO_OFFSET_RESET", "no previously committed offset available")
    fake.revoke_partitions(A)
    fake.poll(0)
    assert set(fake.assigned) == (set() if fake.is_eager else {B})


def test_a_pause_holds_outlives_revocation_and_return_and_is_void_before_the_assignment(member: Member) -> None:
    where = [TopicPartition(*A)]
    member.client.pause(where)
    member.fake.assign_partitions(A)
    member.fake.messages(records("t", 0, [0, 1, 2]))
    assert member.offsets(1) == [(0, 0)]
    member.client.pause(where)
    member.fake.revoke_partitions(A)
    member.fake.assign_partitions(A)
    assert member.offsets() == []
    member.client.resume(where)
    assert member.offsets() == [(0, 0), (0, 1), (0, 2)]


def test_each_protocol_has_its_own_way_to_assign(member: Member) -> None:
    member.fake.assign_partitions(A)
    member.client.poll(0)
    target = [TopicPartition(*A, 5)]
    if member.fake.is_eager:
        with pytest.raises(KafkaException) as caught:
            member.client.incremental_assign(target)
        assert _code(caught) == "_STATE"
        member.client.assign(target)
    else:
        with pytest.raises(KafkaException) as caught:
            member.client.assign(target)
        assert _code(caught) == "_STATE"
        with pytest.raises(KafkaException) as caught:
            member.client.incremental_assign(target)
        assert _code(caught) == "_CONFLICT"
        with pytest.raises(KafkaException) as caught:
            member.client.incremental_unassign([TopicPartition(*B)])
        assert _code(caught) == "_INVALID_ARG"
        member.client.incremental_unassign(target)
        member.client.incremental_assign(target)
    member.fake.messages(records("t", 0, [4, 5]))
    assert member.offsets() == [(0, 5)]
    member.client.seek(TopicPartition(*A, 4))
    assert member.position() == OFFSET_INVALID
    assert member.offsets() == [(0, 4), (0, 5)]


def test_an_incremental_unassign_outside_a_rebalance_makes_the_revocation_fail() -> None:
    member = Member(COOPERATIVE)
    member.fake.assign_partitions(A)
    member.client.poll(0)
    member.client.incremental_unassign([TopicPartition(*A)])
    member.fake.revoke_partitions(A)
    with pytest.raises(KafkaException) as caught:
        member.client.poll(0)
    assert _code(caught) == "_INVALID_ARG"


def test_commits_are_stored_with_metadata_and_answered_in_a_later_call(member: Member) -> None:
    member.fake.assign_partitions(A, B)
    member.client.poll(0)
    member.client.commit(offsets=_commit((A, 3)), asynchronous=True)
    assert member.committed == []
    member.client.poll(0)
    assert member.committed == [(None, [(0, None)])]
    [answer] = member.client.commit(offsets=_commit((B, 4)), asynchronous=False)
    assert (answer.offset, answer.error) == (4, None)
    member.client.poll(0)
    assert len(member.committed) == 1, "a synchronous commit has no callback"
    found = member.client.committed([TopicPartition(*A), TopicPartition(*B), TopicPartition("t", 2)], timeout=1)
    assert [(where.offset, where.metadata) for where in found] == [
        (3, "metadata 3"),
        (4, "metadata 4"),
        (OFFSET_INVALID, None),
    ]


def test_commits_fail_as_the_script_says_whole_or_in_part(member: Member) -> None:
    member.fake.assign_partitions(A, B)
    member.client.poll(0)
    member.fake.fail_commit("NOT_COORDINATOR", times=2)
    member.fake.fail_commit("UNKNOWN_TOPIC_OR_PART", only=B)
    both = _commit((A, 1), (B, 1))
    member.client.commit(offsets=both, asynchronous=True)
    member.client.poll(0)
    assert member.committed == [("NOT_COORDINATOR", [(0, "NOT_COORDINATOR"), (1, "NOT_COORDINATOR")])]
    with pytest.raises(KafkaException) as caught:
        member.client.commit(offsets=both, asynchronous=False)
    assert _code(caught) == "NOT_COORDINATOR"
    answers = member.client.commit(offsets=both, asynchronous=False)
    assert [answer.error and answer.error.name() for answer in answers] == [None, "UNKNOWN_TOPIC_OR_PART"]
    assert set(member.fake.stored) == {A}


def test_who_does_not_own_a_partition_cannot_commit_it(member: Member) -> None:
    member.fake.assign_partitions(A)
    member.client.poll(0)
    for offsets, code in ((_commit((B, 1)), "ILLEGAL_GENERATION"), ([], "_NO_OFFSET")):
        with pytest.raises(KafkaException) as caught:
            member.client.commit(offsets=offsets, asynchronous=False)
        assert _code(caught) == code
    member.fake.lose_partitions()
    member.client.poll(0)
    with pytest.raises(KafkaException) as caught:
        member.client.commit(offsets=_commit((A, 1)), asynchronous=False)
    assert _code(caught) == "UNKNOWN_MEMBER_ID"
    assert generation(member.client) < 0


def test_an_old_answer_comes_after_the_revocation_that_it_was_outstanding_at(member: Member) -> None:
    member.hook = lambda: member.client.commit(offsets=_commit((A, 9)), asynchronous=False)
    member.fake.assign_partitions(A)
    member.client.poll(0)
    member.fake.hold_answers()
    member.client.commit(offsets=_commit((A, 3)), asynchronous=True)
    member.fake.revoke_partitions(A)
    member.client.poll(0)
    assert member.committed == []
    member.fake.release_answers()
    member.client.poll(0)
    assert member.committed == [(None, [(0, None)])]
    assert member.fake.stored[A].offset == 9
    names = ["on_revoke", "commit_sync", "on_revoke_done", "on_commit"]
    assert member.fake.names(*names) == names
    assert Call("commit_sync", (("t", 0, 9),), inside="on_revoke") in member.fake.calls


def test_close_runs_the_revocation_and_the_outstanding_answer_inside(member: Member) -> None:
    caught: list[KafkaException] = []

    def revoke() -> None:
        member.client.commit(offsets=_commit((A, 9)), asynchronous=False)
        try:
            member.client.committed([TopicPartition(*A)], timeout=1)
        except KafkaException as error:
            caught.append(error)

    member.hook = revoke
    member.fake.assign_partitions(A)
    member.client.poll(0)
    member.fake.hold_answers()
    member.client.commit(offsets=_commit((A, 3)), asynchronous=True)
    member.client.close()
    assert member.fake.is_closed
    assert member.committed == [(None, [(0, None)])]
    assert [error.args[0].name() for error in caught] == ["_TIMED_OUT"]
    assert member.fake.names("close", "on_revoke", "on_commit") == ["close", "on_revoke", "on_commit"]


def test_an_exception_out_of_a_callback_is_a_system_error(member: Member) -> None:
    def revoke() -> None:
        raise ValueError("hook")

    member.hook = revoke
    member.fake.assign_partitions(A)
    member.fake.revoke_partitions(A)
    with pytest.raises(SystemError, match="a callback of the client raised: hook"):
        member.client.poll(0)


def test_polling_inside_a_callback_is_recorded_as_what_kills_the_process(member: Member) -> None:
    member.hook = lambda: member.client.poll(0)
    member.fake.assign_partitions(A)
    member.fake.revoke_partitions(A)
    with pytest.raises(SystemError):
        member.client.poll(0)
    assert member.fake.violations == ["poll inside on_revoke, where the client aborts the process"]


def test_a_second_thread_inside_is_recorded(member: Member) -> None:
    poller = threading.Thread(target=member.client.poll, args=(30.0,))
    poller.start()
    assert member.fake.wait_until(lambda: member.fake._inside is not None)
    with pytest.raises(AssertionError, match="position from a second thread"):
        member.position()
    member.fake.error("_TRANSPORT")
    poller.join(timeout=10.0)
    assert not poller.is_alive()
    assert len(member.fake.violations) == 1


def test_a_step_wakes_a_poll_that_waits_and_can_be_waited_for(member: Member) -> None:
    found: list[Message | None] = []
    poller = threading.Thread(target=lambda: found.append(member.client.poll(30.0)))
    poller.start()
    member.fake.assign_partitions(A)
    assert member.fake.wait_served()
    assert member.fake.assigned == {A: 0}
    member.fake.messages(records("t", 0, [0]))
    poller.join(timeout=10.0)
    assert found[0] is not None
    assert found[0].offset() == 0


def test_a_fatal_error_comes_once_and_then_nothing_works(member: Member) -> None:
    member.fake.assign_partitions(A)
    member.fake.error("_FATAL", "ConsumerGroupHeartbeat is not supported")
    member.fake.messages(records("t", 0, [0]))
    [message] = member.client.consume(10, 0)
    error = message.error()
    assert error is not None
    assert (error.name(), error.fatal()) == ("_FATAL", False)
    assert member.client.poll(0) is None
    with pytest.raises(KafkaException) as caught:
        member.client.commit(offsets=_commit((A, 1)), asynchronous=True)
    assert _code(caught) == "_FATAL"
    member.client.close()
    assert "on_revoke" not in member.fake.names()


def test_reads_answer_from_the_log_or_fail_as_the_script_says(member: Member) -> None:
    member.fake.messages([Message(topic="t", partition=0, offset=at, timestamp=(1, at * 10)) for at in (3, 4, 8)])
    member.fake.partition_counts["t"] = 2
    member.client.poll(0)
    where = TopicPartition(*A)
    assert member.client.get_watermark_offsets(where, timeout=1) == (3, 9)
    member.fake.watermarks[A] = (5, 20)
    assert member.client.get_watermark_offsets(where) == (5, 20)
    found = member.client.offsets_for_times([TopicPartition(*A, 35), TopicPartition(*A, 90)], timeout=1)
    assert [each.offset for each in found] == [4, OFFSET_END]
    topics = member.client.list_topics().topics
    assert len(topics["t"].partitions) == 2
    assert member.client.list_topics("u").topics["u"].error.name() == "UNKNOWN_TOPIC_OR_PART"
    member.fake.fail_next("committed", "_TIMED_OUT")
    with pytest.raises(KafkaException) as caught:
        member.client.committed([where])
    assert _code(caught) == "_TIMED_OUT"
    member.fake.committed_errors[A] = "STALE_MEMBER_EPOCH"
    [answer] = member.client.committed([where])
    assert answer.error is not None
    assert answer.error.name() == "STALE_MEMBER_EPOCH"


def test_other_callbacks_come_from_the_properties() -> None:
    heard: list[object] = []
    fake = FakeClient().configure({"error_cb": lambda error: heard.append(error.name()), "stats_cb": heard.append})
    fake.client_error("_ALL_BROKERS_DOWN", "1/1 brokers are down")
    fake.statistics("{}")
    fake.poll(0)
    assert heard == ["_ALL_BROKERS_DOWN", "{}"]
