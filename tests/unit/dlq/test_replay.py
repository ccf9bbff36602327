"""A replay commits what the cluster has confirmed, and stops before what does not go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError

from connector.api.errors import ConfigError, PoisonFatalError, TransientError, UnreachableError
from connector.cli.dlq import Choice
from connector.dlq.reader import Entry, LetterFilter
from connector.dlq.replay import ReplayPlan, ReplayReport, replay, replay_group
from tests.unit.dlq.dead_messages import DeadMessage, dead, replayed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.dlq.letter import Letter
    from connector.dlq.producer import ConfirmingProducer, Outgoing
    from connector.dlq.reader import LetterReader


@dataclass
class Topic:
    """Reader and producer in one: letters to read, what was sent and committed."""

    entries: list[Entry]
    failures: dict[int, KafkaError] = field(default_factory=dict)  # by the number of the record sent
    topics_there: dict[str, int] = field(default_factory=lambda: {"orders": 4, "other": 1, "orders.dlq": 2})
    is_down: bool = False
    sent: list[Outgoing] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)

    def topics(self) -> dict[str, int]:
        if self.is_down:
            raise TransientError("the cluster does not answer")
        return self.topics_there

    def read(self, most: int) -> Sequence[Entry]:
        found, self.entries = self.entries[:most], self.entries[most:]
        return found

    def commit(self, positions: dict[int, int]) -> None:
        self.committed |= positions

    def send(self, records: Sequence[Outgoing]) -> dict[int, KafkaError]:
        start = len(self.sent)
        self.sent += records
        return {number - start: error for number, error in self.failures.items() if 0 <= number - start < len(records)}


def entries_of(*letters: Letter | None, partition: int = 0) -> list[Entry]:
    return [Entry(partition, offset, 1000 + offset, letter) for offset, letter in enumerate(letters)]


def run(topic: Topic, **plan: Any) -> ReplayReport:
    report = ReplayReport()
    replay(ReplayPlan("orders.dlq", **plan), cast("LetterReader", topic), cast("ConfirmingProducer", topic), report)
    return report


def letters(count: int) -> list[Letter]:
    return [dead(DeadMessage(at=offset)) for offset in range(count)]


def test_every_letter_is_sent_and_its_position_committed() -> None:
    topic = Topic(entries_of(*letters(250)))
    assert run(topic).replayed == {"orders": 250}
    assert len(topic.sent) == 250
    assert topic.committed == {0: 250}
    assert {(each.topic, each.partition, each.timestamp_ms) for each in topic.sent} == {
        ("orders", 3, 1_700_000_000_000)
    }


def test_a_dry_run_sends_and_commits_nothing() -> None:
    topic = Topic(entries_of(*letters(3)))
    assert run(topic, is_dry=True).replayed == {"orders": 3}
    assert (topic.sent, topic.committed) == ([], {})


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError._MSG_TIMED_OUT, UnreachableError), (KafkaError.MSG_SIZE_TOO_LARGE, PoisonFatalError)],
)
def test_a_letter_that_is_not_confirmed_stays_before_the_position_of_its_partition_only(
    code: int, error: type[Exception]
) -> None:
    two = [*entries_of(*letters(5)), *entries_of(*letters(5), partition=1)]
    topic = Topic(two, failures={2: KafkaError(code), 4: KafkaError(code)})
    with pytest.raises(error, match="partition 0 at offset 2"):
        run(topic)
    assert topic.committed == {0: 2, 1: 5}


def test_a_letter_whose_topic_is_gone_stops_the_replay_behind_those_before_it() -> None:
    gone = dead(DeadMessage(of_topic="gone"))
    topic = Topic(entries_of(*letters(2), gone, *letters(2)))
    with pytest.raises(ConfigError, match=r"orders\.dlq\[0\]@2 would go to gone, which does not exist"):
        run(topic)
    assert len(topic.sent) == 2
    assert topic.committed == {0: 2}


@pytest.mark.parametrize("plan", [{"target": "orders.dlq"}, {}])
def test_nothing_is_sent_to_the_dead_letter_topic(plan: dict[str, str]) -> None:
    topic = Topic(entries_of(dead(DeadMessage(of_topic="orders.dlq"))))
    with pytest.raises(ConfigError, match="the dead letter topic itself"):
        run(topic, **plan)
    assert (topic.sent, topic.committed) == ([], {})


def test_another_topic_and_a_topic_made_again_with_fewer_partitions_choose_the_partition_by_key() -> None:
    topic = Topic(entries_of(*letters(1)))
    run(topic, target="other")
    assert (topic.sent[0].topic, topic.sent[0].partition) == ("other", -1)
    topic = Topic(entries_of(*letters(1)), topics_there={"orders": 3})
    run(topic)
    assert topic.sent[0].partition == -1


def test_what_is_no_whole_letter_is_passed_over_and_counted() -> None:
    twice = dead(replayed(dead(replayed(dead()))))
    topic = Topic(entries_of(None, letters(1)[0].truncated(), twice, *letters(1)))
    report = run(topic, max_replays=2)
    assert report.replayed == {"orders": 1}
    assert report.passed_over == {
        "not a dead letter": 1,
        "truncated, so that it is not the record": 1,
        "replayed 2 times before": 1,
    }
    assert topic.committed == {0: 4}


def test_the_limit_counts_what_is_sent_and_the_position_is_behind_the_last() -> None:
    topic = Topic(entries_of(*letters(3), dead(DeadMessage(of_topic="other")), *letters(10)))
    report = run(topic, limit=5, filter=LetterFilter(topic="orders"))
    assert report.replayed == {"orders": 5}
    assert topic.committed == {0: 6}


def test_a_cluster_that_does_not_answer_has_its_exit_code() -> None:
    with pytest.raises(UnreachableError):
        run(Topic([], is_down=True))


def test_the_group_is_named_after_the_topic() -> None:
    assert replay_group("orders.dlq") == "orders.dlq.replay"


@pytest.mark.parametrize(
    ("wanted", "takes"),
    [
        (LetterFilter(), True),
        (LetterFilter(error_class="PoisonError"), True),
        (LetterFilter(error_class="Other"), False),
        (LetterFilter(topic="orders"), True),
        (LetterFilter(topic="order"), False),
        (LetterFilter(since_ms=1000, until_ms=1001), True),
        (LetterFilter(since_ms=1001), False),
        (LetterFilter(until_ms=1000), False),
    ],
)
def test_a_filter_takes_what_matches_all_of_it(wanted: LetterFilter, takes: bool) -> None:
    assert wanted.takes(Entry(0, 0, 1000, dead()), dead()) is takes


def test_times_are_read_as_iso_or_as_how_long_ago() -> None:
    assert Choice(since="1970-01-01T00:00:05Z", until="1970-01-01").filter() == LetterFilter(since_ms=5000, until_ms=0)
    ago = Choice(since="2h").filter().since_ms
    now = Choice(since="0s").filter().since_ms
    assert ago is not None
    assert now is not None
    assert abs(now - ago - 7_200_000) < 5000
    with pytest.raises(ConfigError, match="--until yesterday is neither a time such as"):
        Choice(until="yesterday").filter()
