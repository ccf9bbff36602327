"""`connector offsets` on a real Kafka: what it shows is so, and a run starts exactly where a reset has put it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from psycopg.conninfo import make_conninfo

from connector.offsets.apply import apply_moves
from connector.offsets.group import GroupClient
from connector.offsets.plan import RefusedResetError, Wanted, plan_moves
from connector.offsets.state import GroupState
from connector.source.position import StartPolicies
from tests.client.member import Member, run_until
from tests.support.command import connector_command
from tests.support.connector import ConnectorProcess
from tests.support.group import group_settings
from tests.support.oracle import written_to_files, written_to_table
from tests.support.process import wait_until
from tests.support.scenario import commit, send, topic_facts, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


class Group:
    """A group, the commands about its positions, and bounded runs of it into a file each."""

    def __init__(
        self, kafka: Kafka, group_protocol: str, topics: list[str], directory: Path, settings: Mapping[str, str]
    ) -> None:
        self.name = f"group-{directory.name}-{time.time_ns()}"
        self._directory = directory
        self.settings = {
            **group_settings(kafka, group_protocol, self.name, topics),
            "CONNECTOR_SINK": "file",
            "CONNECTOR_SINK_PATH": str(directory / "unused.jsonl"),
            **settings,
        }

    def show(self) -> dict[str, Any]:
        shown = connector_command(self.settings, "offsets", "show", "--json")
        assert shown.returncode == 0, shown.stderr
        document: dict[str, Any] = json.loads(shown.stdout)
        return document

    def column(self, name: str) -> list[Any]:
        """A value of each partition, in the order of topics and partitions."""
        return [partition[name] for partition in self.show()["partitions"]]

    def reset(self, *arguments: str, code: int = 0) -> str:
        """Return what is printed, on standard error if it is refused."""
        done = connector_command(self.settings, "offsets", "reset", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    def run_to_the_end(self, name: str) -> dict[str, list[int]]:
        """Return what a bounded run has written: the offsets of each partition, once for each time, by `topic[n]`."""
        path = self._directory / f"{name}.jsonl"
        settings = {"CONNECTOR_STOP": "end"}
        if self.settings["CONNECTOR_SINK"] == "file":
            settings["CONNECTOR_SINK_PATH"] = str(path)
        with ConnectorProcess(name, self._directory, {**self.settings, **settings}) as copy:
            assert copy.wait() == 0
        written: dict[str, list[int]] = {}
        for topic, partition, offset in written_to_files([path] if path.exists() else []).elements():
            written.setdefault(f"{topic}[{partition}]", []).append(offset)
        return {name: sorted(offsets) for name, offsets in written.items()}


def rows(printed: str) -> dict[int, list[str]]:
    """The table of a reset: from, to, skipped, repeated and note of each partition."""
    lines = (line.split(maxsplit=6) for line in printed.splitlines())
    return {int(cells[1]): cells[2:] for cells in lines if len(cells) > 5 and cells[1].isdecimal()}


def test_what_is_committed_where_the_log_ends_and_who_is_a_member_is_shown_and_refused(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 50, partition=0)
    group = Group(kafka, group_protocol, [topic, "there-is-no-such-topic"], tmp_path, {})
    assert (group.show()["state"], group.column("committed")) == ("dead", [None, None])
    with ConnectorProcess("copy", tmp_path, group.settings) as copy:
        wait_until_ready(copy)
        wait_until(lambda: kafka.committed(group.name, topic)[0] == 50, timeout=60, what="the records are committed")
        shown = group.show()
        assert shown["state"] == "stable"
        assert shown["protocol"] == ("consumer" if group_protocol == "consumer" else "classic")
        assert [member["partitions"] for member in shown["members"]] == [[[topic, 0], [topic, 1]]]
        assert shown["missing_topics"] == ["there-is-no-such-topic"]
        facts = topic_facts(kafka, topic)
        first = shown["partitions"][0]
        assert (first["committed"], first["log_start"], first["log_end"], first["lag"]) == (50, 0, 50, 0)
        assert first["metadata"] == {"topic_id": facts.topic_id, "partitions": 2}
        for arguments in (["--to", "earliest"], ["--to", "earliest", "--execute"]):
            refused = group.reset(*arguments, code=2)
            assert refused.startswith("connector: refused, nothing was changed\n")
            assert f"member sluiceway at {shown['members'][0]['host'].lstrip('/')} (" in refused
        assert kafka.committed(group.name, topic)[0] == 50
        assert copy.terminate() == 0
    wait_until(lambda: group.show()["state"] == "empty", timeout=30, what="the group is empty")
    group.reset("--to", "earliest", "--execute")
    assert kafka.committed(group.name, topic) == {0: 0, 1: 0}


def test_a_member_that_joins_between_the_look_and_the_deed_is_refused_by_the_broker(
    kafka: Kafka, group_protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 10)
    with Member(kafka.bootstrap_servers, topic, group_protocol) as member:
        run_until(lambda: len(member.records) == 10, member)
        member.consumer.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
        properties = {"bootstrap.servers": kafka.bootstrap_servers}
        client = GroupClient(properties, member.group, [topic], ignored=[], policies=StartPolicies(), timeout=15)
        try:
            states = client.read({}).partitions
            moves = plan_moves(states, {state.key: Wanted(state.log.start) for state in states if state.log})
            real, before_it_joined = client.describe, [GroupState("empty", "", ())]
            monkeypatch.setattr(client, "describe", lambda: before_it_joined.pop() if before_it_joined else real())
            with pytest.raises(RefusedResetError, match="member rdkafka at"):
                apply_moves(member.group, moves, client, _NoSink())
        finally:
            client.close()
        assert kafka.committed(member.group, topic) == {0: 10}


class _NoSink:
    are_held = False

    def read(self) -> dict[tuple[str, int], Any]:
        raise AssertionError("it holds none")

    def reset(self, positions: object) -> None:
        raise AssertionError("it holds none")


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_backup_is_restored_and_a_run_starts_exactly_there(
    kafka: Kafka, group_protocol: str, tmp_path: Path, form: str
) -> None:
    topics = [kafka.create_topic(partitions=2), kafka.create_topic()]
    for topic in topics:
        kafka.produce(topic, 60)
    group = Group(kafka, group_protocol, topics, tmp_path, {})
    commit(kafka, group.name, topics[0], {0: 7, 1: 21}, topic_facts(kafka, topics[0]))  # no position in the other topic
    backup = connector_command(group.settings, "offsets", "show", f"--{form}").stdout
    (tmp_path / "backup").write_text(backup)
    group.reset("--to", "latest", "--execute")
    assert group.column("lag") == [0, 0, 0]
    file = ("--from-file", str(tmp_path / "backup"))
    printed = group.reset(*file)
    assert printed.splitlines()[0] == f"Left as they are, since the file has no position for them: {topics[1]}[0]."
    assert rows(printed) == {0: ["30", "7", "0", "23", "from the file"], 1: ["30", "21", "0", "9", "from the file"]}
    assert "3 positions" not in group.reset(*file, "--partition", "1", "--execute")
    assert kafka.committed(group.name, topics[0]) == {0: 30, 1: 21}
    assert "Set, and read back: 2 positions" in group.reset(*file, "--execute")
    assert group.run_to_the_end("restored") == {
        f"{topics[0]}[0]": [*range(7, 30)],
        f"{topics[0]}[1]": [*range(21, 30)],
    }


def test_a_reset_to_a_time_starts_at_the_first_record_from_then_on(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20, partition=0)
    kafka.produce(topic, 5, partition=1)
    between = datetime.now(UTC) + timedelta(milliseconds=20)
    wait_until(lambda: datetime.now(UTC) > between, timeout=10, what="the time between has passed")
    kafka.produce(topic, 10, partition=0)
    group = Group(kafka, group_protocol, [topic], tmp_path, {"CONNECTOR_START": "latest"})
    printed = group.reset("--to", between.isoformat())
    late = "no record at that time or later: the end; no position: CONNECTOR_START decides"
    assert rows(printed) == {
        0: ["-", "20", "0", "10", "no position: CONNECTOR_START decides"],
        1: ["-", "5", "0", "0", late],
    }
    assert "Nothing was changed." in printed
    assert kafka.committed(group.name, topic) == {0: None, 1: None}
    group.reset("--to", between.isoformat(), "--execute")
    assert group.column("metadata") == [{"topic_id": topic_facts(kafka, topic).topic_id, "partitions": 2}] * 2
    assert group.run_to_the_end("from-then") == {f"{topic}[0]": [*range(20, 30)]}


def test_one_partition_of_one_topic_goes_to_an_offset_and_the_others_stay(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    first, second = kafka.create_topic(partitions=2), kafka.create_topic(partitions=2)
    for topic in (first, second):
        kafka.produce(topic, 20)
    group = Group(kafka, group_protocol, [first, second], tmp_path, {})
    group.reset("--to", "latest", "--execute")
    printed = group.reset("--to", "4", "--topic", second, "--partition", "1", "--execute")
    assert rows(printed) == {1: ["10", "4", "0", "6"]}
    assert kafka.committed(group.name, first) == {0: 10, 1: 10}
    assert kafka.committed(group.name, second) == {0: 10, 1: 4}
    assert group.run_to_the_end("one") == {f"{second}[1]": [*range(4, 10)]}
    # A topic need not be subscribed to be reset, nor to be shown when the group has a position there.
    group.settings["CONNECTOR_TOPICS"] = first
    assert group.column("topic") == sorted([first] * 2 + [second] * 2)
    assert "2 partitions" in group.reset("--to", "5")
    assert "2 partitions" in group.reset("--to", "5", "--topic", second)


def test_an_offset_out_of_range_is_refused_with_the_range_and_nothing_is_set(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 20)
    group = Group(kafka, "consumer", [topic], tmp_path, {})
    commit(kafka, group.name, topic, {0: 1, 1: 5}, topic_facts(kafka, topic))
    kafka.delete_records(topic, {0: 4})
    assert group.column("note") == ["the position is not in the log: CONNECTOR_START_ON_OUT_OF_RANGE decides", ""]
    assert group.column("position") == [None, 5]
    assert f"{topic}[0]: 3 is not in the log, which goes from 4 to 10" in group.reset("--to", "3", "--execute", code=2)
    refused = group.reset("--to", "11", "--execute", code=2)
    assert f"{topic}[0]: 11 is not in the log, which goes from 4 to 10" in refused
    assert f"{topic}[1]: 11 is not in the log, which goes from 0 to 10" in refused
    assert kafka.committed(group.name, topic) == {0: 1, 1: 5}


def test_the_end_of_a_transactional_log_is_its_last_stable_offset(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    producer = kafka.transactional_producer()
    send(producer, topic, 0, 5, commits=True)  # 0 to 4, and a marker
    send(producer, topic, 0, 3, commits=False)  # 6 to 8, and a marker
    producer.begin_transaction()
    producer.produce(topic, b"open")  # 10
    producer.flush(30)
    group = Group(kafka, "consumer", [topic], tmp_path, {})
    printed = group.reset("--to", "latest", "--execute")
    assert rows(printed) == {0: ["-", "10", "10", "0", "no position: CONNECTOR_START decides"]}
    assert "10 offsets skipped, 0 repeated" in printed
    assert "fewer records than offsets" in printed
    assert (group.column("log_end"), group.column("lag")) == ([10], [0])
    producer.commit_transaction(30)
    assert group.run_to_the_end("open") == {f"{topic}[0]": [10]}


def test_a_topic_that_was_made_again_is_told_and_old_positions_are_not_given_to_it(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 10)
    group = Group(kafka, "consumer", [topic], tmp_path, {})
    group.reset("--to", "5", "--execute")
    old = topic_facts(kafka, topic)
    (tmp_path / "backup.json").write_text(json.dumps(group.show()))
    kafka.delete_topic(topic)
    assert group.show()["missing_topics"] == [topic]
    kafka.create_topic(topic)
    kafka.produce(topic, 10)
    commit(kafka, group.name, topic, {0: 5}, old)  # as a member commits that has not seen it yet
    (shown,) = group.show()["partitions"]
    assert (shown["committed"], shown["position"], shown["lag"]) == (5, None, None)
    assert shown["note"] == "the topic was made again since: CONNECTOR_START_ON_RECREATED decides"
    refused = group.reset("--from-file", str(tmp_path / "backup.json"), "--execute", code=2)
    assert "the topic was made again since the position was saved" in refused
    group.reset("--to", "5", "--execute")
    assert group.column("position") == [5]
    assert group.run_to_the_end("again") == {f"{topic}[0]": [*range(5, 10)]}


@pytest.mark.postgres
def test_positions_in_the_sink_are_shown_and_reset_too_and_decide_where_a_run_starts(
    kafka: Kafka, group_protocol: str, tmp_path: Path, postgres_dsn: str
) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 40)
    group = Group(kafka, group_protocol, [topic], tmp_path, {})
    del group.settings["CONNECTOR_SINK_PATH"]
    group.settings |= {
        "CONNECTOR_SINK": "postgres",
        "CONNECTOR_SINK_DSN": postgres_dsn,
        "CONNECTOR_SINK_POSITIONS": "true",
        "CONNECTOR_SINK_MODE": "insert",
        "CONNECTOR_SINK_PRIMARY_KEY": "false",  # so that a repeat can be seen
    }
    with psycopg.connect(postgres_dsn, autocommit=True) as database:
        assert group.column("sink_position") == [None, None]
        assert database.execute("SELECT to_regclass('connector_positions')").fetchone() == (None,)
        group.run_to_the_end("first")
        assert group.column("sink_position") == [20, 20]
        commit(kafka, group.name, topic, {0: 3, 1: 3})  # what another tool would do: it decides nothing
        assert (group.column("committed"), group.column("position")) == ([3, 3], [20, 20])
        owners = database.execute("SELECT owner FROM connector_positions").fetchall()
        printed = group.reset("--to", "15", "--partition", "1")
        assert rows(printed) == {1: ["20", "15", "0", "5", "from: the sink's; the group's is 3"]}
        printed = group.reset("--to", "15", "--partition", "1", "--execute")
        assert printed.endswith(f"1 position of the group {group.name} and of the sink postgres.\n")
        assert (group.column("committed"), group.column("sink_position")) == ([3, 15], [20, 15])
        assert len(set(owners) & set(database.execute("SELECT owner FROM connector_positions").fetchall())) == 1
        assert group.column("lag") == [0, 5]
    group.run_to_the_end("again")
    expected = {(topic, part, offset): 1 for part in (0, 1) for offset in range(20)}
    assert written_to_table(postgres_dsn) == {**expected, **{(topic, 1, offset): 2 for offset in range(15, 20)}}


@pytest.mark.postgres
def test_a_sink_that_fails_leaves_the_start_as_it_was_and_the_same_command_completes_it(
    kafka: Kafka, tmp_path: Path, postgres_dsn: str
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 10)
    group = Group(kafka, "consumer", [topic], tmp_path, {})
    del group.settings["CONNECTOR_SINK_PATH"]
    group.settings |= {
        "CONNECTOR_SINK": "postgres",
        "CONNECTOR_SINK_DSN": make_conninfo(postgres_dsn, options="-c lock_timeout=100ms"),
        "CONNECTOR_SINK_POSITIONS": "true",
    }
    group.reset("--to", "9", "--execute")
    with psycopg.connect(postgres_dsn) as writer:
        writer.execute("UPDATE connector_positions SET owner = owner")  # a transaction that takes long
        failed = group.reset("--to", "4", "--execute", code=7)
        assert "the group's positions are set, those in the sink are not" in failed
    assert (group.column("committed"), group.column("sink_position"), group.column("position")) == ([4], [9], [9])
    group.reset("--to", "4", "--execute")
    assert group.column("position") == [4]
    group.settings["CONNECTOR_SINK_DSN"] = "postgresql://nobody@127.0.0.1:9/none"
    assert "the sink postgres could not read its positions" in group.reset("--to", "4", code=7)


def test_a_position_of_another_program_is_shown_without_metadata(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, 10)
    group = Group(kafka, "consumer", [topic], tmp_path, {})
    commit(kafka, group.name, topic, {0: 2})
    table = connector_command(group.settings, "offsets", "show").stdout.splitlines()
    assert table[0] == f"Group {group.name}: empty, classic protocol, 0 members"
    assert [line.split(maxsplit=7)[1:] for line in table[3:]] == [
        ["0", "2", "-", "0", "5", "3"],
        ["1", "-", "-", "0", "5", "-", "a new partition: CONNECTOR_START_NEW_PARTITION decides"],
    ]
    group.reset("--to", "3", "--partition", "0", "--execute")
    table = connector_command(group.settings, "offsets", "show").stdout.splitlines()
    assert f"2 partitions, id {topic_facts(kafka, topic).topic_id}" in table[3]
