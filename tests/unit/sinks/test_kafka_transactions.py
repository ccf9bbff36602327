"""How a transaction of the sink `kafka` ends, whatever the client says: committed, aborted, or found out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import ValidationError

from connector import (
    AuthenticationError,
    CloseReason,
    ConfigError,
    GroupCommit,
    InputClosed,
    LaneId,
    PoisonError,
    RefusedError,
    SinkContext,
    TransientError,
)
from connector.testing import make_batch
from sinks.kafka import KafkaSettings, KafkaSink
from sinks.kafka import producer as producer_module
from sinks.kafka import transaction as transaction_module
from sinks.kafka.settings import producer_properties

if TYPE_CHECKING:
    from connector import Batch

STEPS = ("init", "begin", "produce", "offsets", "commit", "abort")


class FakeProducer:
    """Keeps what is called; `errors` has the exceptions that a step raises next, by its name."""

    made: list[FakeProducer]
    errors: dict[str, list[BaseException]]

    def __init__(self, properties: dict[str, Any]) -> None:
        self.properties = properties
        self.calls: list[str] = []
        self.positions: list[tuple[str, int, int, str | None]] = []
        self.members: list[bytes] = []
        self.made.append(self)

    def _call(self, step: str) -> None:
        self.calls.append(step)
        if self.errors.get(step):
            raise self.errors[step].pop(0)

    def init_transactions(self, timeout: float) -> None:
        self._call("init")

    def begin_transaction(self) -> None:
        self._call("begin")

    def produce(self, *_: Any, **__: Any) -> None:
        self._call("produce")

    def send_offsets_to_transaction(self, positions: list[Any], member: bytes, timeout: float) -> None:
        self._call("offsets")
        self.positions += [(each.topic, each.partition, each.offset, each.metadata) for each in positions]
        self.members.append(member)

    def commit_transaction(self, timeout: float) -> None:
        self._call("commit")

    def abort_transaction(self, timeout: float) -> None:
        self._call("abort")

    def poll(self, timeout: float) -> int:
        return 0


def said(name: str, *, retriable: bool = False, abortable: bool = False) -> KafkaException:
    return KafkaException(
        KafkaError(getattr(KafkaError, name), "said", retriable=retriable, txn_requires_abort=abortable)
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeProducer]:
    kind = type("OneFakeProducer", (FakeProducer,), {"made": [], "errors": {}})
    monkeypatch.setattr(producer_module, "Producer", kind)
    monkeypatch.setattr(transaction_module, "_RETRY_SECONDS", 0.001)
    return kind


def sink_of(**fields: Any) -> KafkaSink:
    context = SinkContext("group", pipeline=3, host="h", group_commit=lambda _: GroupCommit(b"member", "facts"))
    return KafkaSink(KafkaSettings(topic="copies", transactional=True, **fields), context)


def batch_of(lane: int = 1, count: int = 2) -> Batch:
    return make_batch(*[b"x"] * count, lane=lane, offset=10, next_offset=17)


def test_the_position_goes_with_the_records_as_the_member_with_its_metadata(fake: type[FakeProducer]) -> None:
    sink = sink_of()
    sink.write(batch_of())
    sink.write(batch_of(count=0))
    [client] = fake.made
    steps = ["init", "begin", "produce", "produce", "offsets", "commit", "begin", "offsets", "commit"]
    assert client.calls == steps
    assert client.positions == [("orders", 0, 17, "facts")] * 2
    assert client.members == [b"member"] * 2


def test_the_id_is_of_the_group_the_process_and_the_pipeline() -> None:
    properties = [
        producer_properties(KafkaSettings(topic="t", transactional=True), SinkContext("g", pipeline=number, host="h"))
        for number in range(2)
    ]
    ids = [each["transactional.id"] for each in properties]
    assert len(set(ids)) == 2
    assert [each.rpartition("-")[0] for each in ids] == ["g-h-0", "g-h-1"]
    assert properties[0]["message.timeout.ms"] < properties[0]["transaction.timeout.ms"]


def test_settings_that_cannot_be_exactly_once_are_refused_with_the_reason() -> None:
    other = KafkaSettings(topic="t", transactional=True, bootstrap_servers="other:1")
    assert "one transaction cannot span two clusters" in other.problems(1)[0]
    slow = KafkaSettings(topic="t", transactional=True, timeout=40)
    assert "CONNECTOR_SINK_TRANSACTION_TIMEOUT" in slow.problems(1)[0]
    assert KafkaSettings(topic="t", bootstrap_servers="other:1", timeout=40).problems(1) == []
    with pytest.raises(ValidationError, match="two pipelines with one id"):
        KafkaSettings(topic="t", transactional_id="{group}")


@pytest.mark.parametrize("step", ["produce", "offsets", "commit"])
@pytest.mark.parametrize("name", ["_TIMED_OUT", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "NOT_COORDINATOR"])
def test_what_fails_is_aborted_and_comes_again(fake: type[FakeProducer], step: str, name: str) -> None:
    sink = sink_of()
    fake.errors[step] = [said(name, abortable=True)]
    with pytest.raises(TransientError):
        sink.write(batch_of())
    sink.write(batch_of())
    [client] = fake.made
    assert client.calls.count("abort") == 1
    assert client.calls[-1] == "commit"


@pytest.mark.parametrize("step", ["offsets", "commit"])
def test_a_step_that_takes_longer_is_insisted_on(fake: type[FakeProducer], step: str) -> None:
    fake.errors[step] = [said("_TIMED_OUT", retriable=True)] * 3
    sink_of().write(batch_of())
    [client] = fake.made
    assert client.calls.count(step) == 4
    assert "abort" not in client.calls


def test_a_commit_without_an_answer_is_found_out_before_the_lane_goes_on(fake: type[FakeProducer]) -> None:
    sink = sink_of(timeout=1)
    fake.errors["commit"] = [said("_TIMED_OUT", retriable=True)] * 10_000
    fake.errors["abort"] = [said("_STATE")]
    with pytest.raises(TransientError):
        sink.write(batch_of(lane=1))
    fake.errors.clear()
    sink.write(batch_of(lane=2))  # with a client whose `init_transactions` has ended the transaction
    with pytest.raises(RefusedError, match="perhaps committed"):
        sink.write(batch_of(lane=1))
    sink.write(batch_of(lane=1))
    assert [client.calls.count("init") for client in fake.made] == [1, 1]


def test_a_lane_that_has_left_is_not_asked_about_any_more(fake: type[FakeProducer]) -> None:
    sink = sink_of()
    fake.errors.update({"commit": [said("_FENCED")], "abort": [said("_FENCED")]})
    with pytest.raises(TransientError):
        sink.write(batch_of())
    sink.on_event(InputClosed(LaneId(1), CloseReason.STALLED))
    sink.on_event(InputClosed(LaneId(2), CloseReason.LOST))
    assert sink._transactions._unknown == {LaneId(1)}
    sink.on_event(InputClosed(LaneId(1), CloseReason.LOST))
    assert sink._transactions._unknown == set()


@pytest.mark.parametrize("step", ["produce", "offsets"])
def test_what_fails_before_the_commit_was_not_committed_even_if_the_client_is_lost(
    fake: type[FakeProducer], step: str
) -> None:
    sink = sink_of()
    fake.errors.update({step: [said("_FENCED")], "abort": [said("_FENCED")]})
    with pytest.raises(TransientError):
        sink.write(batch_of())
    sink.write(batch_of())
    assert [client.calls[-1] for client in fake.made] == ["abort", "commit"]


def test_an_error_that_is_not_the_clients_aborts_and_goes_on(fake: type[FakeProducer]) -> None:
    fake.errors["produce"] = [ValueError("a bug")]
    with pytest.raises(ValueError, match="a bug"):
        sink_of().write(batch_of())
    assert fake.made[0].calls[-1] == "abort"


def test_a_failure_that_comes_as_a_system_error_is_known_by_its_cause(fake: type[FakeProducer]) -> None:
    error = SystemError("returned a result with an exception set")
    error.__cause__ = said("_FENCED")
    fake.errors["commit"] = [error]
    with pytest.raises(TransientError, match="_FENCED"):
        sink_of().write(batch_of())


@pytest.mark.parametrize(("name", "kind"), [("INVALID_RECORD", PoisonError), ("_MSG_TIMED_OUT", TransientError)])
def test_a_record_that_is_refused_leaves_nothing_of_its_batch(
    fake: type[FakeProducer], name: str, kind: type[Exception]
) -> None:
    fake.errors["produce"] = [said(name)]
    with pytest.raises(kind, match="orders"):
        sink_of().write(batch_of())
    assert "commit" not in fake.made[0].calls
    assert fake.made[0].calls[-1] == "abort"


@pytest.mark.parametrize(
    ("step", "name", "kind"),
    [
        ("init", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", AuthenticationError),
        ("init", "INVALID_TRANSACTION_TIMEOUT", ConfigError),
        ("init", "_TIMED_OUT", TransientError),
        ("begin", "_FENCED", TransientError),
        ("offsets", "GROUP_AUTHORIZATION_FAILED", AuthenticationError),
        ("produce", "TOPIC_AUTHORIZATION_FAILED", AuthenticationError),
    ],
)
def test_a_missing_right_or_a_wrong_setting_ends_the_process_and_nothing_else(
    fake: type[FakeProducer], step: str, name: str, kind: type[Exception]
) -> None:
    fake.errors[step] = [said(name)]
    sink = sink_of()
    with pytest.raises(kind):
        sink.write(batch_of())
    if kind is TransientError:
        sink.write(batch_of())
        assert len(fake.made) == 2


@pytest.mark.parametrize("when", [0, 1])
def test_a_lane_that_is_not_ours_any_more_commits_nothing(fake: type[FakeProducer], when: int) -> None:
    answers = [GroupCommit(b"member", "facts")] * when

    def commit(_: LaneId) -> GroupCommit:
        if not answers:
            raise RefusedError("gone")
        return answers.pop()

    sink = KafkaSink(KafkaSettings(topic="copies", transactional=True), SinkContext("group", group_commit=commit))
    with pytest.raises(RefusedError, match="gone"):
        sink.write(batch_of())
    calls = [call for client in fake.made for call in client.calls]
    assert "commit" not in calls
    assert ("abort" in calls) == bool(when)
