"""Parquet files from a real Kafka, in a folder and in a bucket: a reader meets whole files only, whatever ends."""

from __future__ import annotations

import io
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.connector import ConnectorProcess
from tests.support.group import committed_positions, group_settings
from tests.support.kills import SEED, kill_under_load
from tests.support.oracle import beyond, ends, judge, wait_until_committed
from tests.support.parquet_files import parquet_files
from tests.support.scenario import Traffic, held, metric, wait_until_copy, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.support.kafka import Kafka
    from tests.support.oracle import Place
    from tests.support.s3 import S3Server

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

ROUNDS = 5  # with two kills each
PARTITIONS = 4
VALUE = b'{"id": 7, "name": "J\xc3\xbcrgen", "price": 1.5, "tags": ["a", "b"]}'
COLUMNS = {
    "id": pa.int64(),
    "name": pa.string(),
    "price": pa.float64(),
    "tags": pa.list_(pa.string()),
    "kafka_topic": pa.string(),
    "kafka_partition": pa.int32(),
    "kafka_offset": pa.int64(),
}
NAME = re.compile(r"(?P<topic>[^/]+)/date=[0-9-]{10}/(?P=topic)-(\d+)-(\d{12})-(\d{12})-(\d+)-.{8}\.parquet")


@dataclass(frozen=True, slots=True)
class Lake:
    """Where the files are, and how to read them."""

    settings: dict[str, str]
    names: Callable[[], Iterable[str]]
    read: Callable[[str], bytes]

    def rows(self) -> Counter[Place]:
        """Return how often each record stands in the files; each of them is whole."""
        return Counter(place for name in self.names() for place in places(name, self.read(name)))


def folder_lake(folder: Path) -> Lake:
    return Lake(
        {"CONNECTOR_SINK_PATH": str(folder)},
        lambda: [path.relative_to(folder).as_posix() for path in parquet_files(folder)],
        lambda name: (folder / name).read_bytes(),
    )


def bucket_lake(s3: S3Server) -> Lake:
    bucket = s3.bucket()
    return Lake(
        {
            "CONNECTOR_SINK_PATH": f"s3://{bucket}",
            "CONNECTOR_SINK_ENDPOINT": s3.url,
            "CONNECTOR_SINK_REGION": "us-east-1",
            "CONNECTOR_SINK_ACCESS_KEY_ID": "tester",
            "CONNECTOR_SINK_SECRET_ACCESS_KEY": "tester-secret",
            "CONNECTOR_SINK_TIMEOUT": "2s",
            "NO_PROXY": "127.0.0.1",
        },
        lambda: s3.keys(bucket),
        lambda name: s3.read(bucket, name),
    )


def places(name: str, data: bytes) -> list[Place]:
    """Return the records of a file, which has to be whole, and what its name says."""
    table = pq.ParquetFile(io.BytesIO(data)).read()
    found = NAME.fullmatch(name)
    assert found, f"{name} is no name of a file"
    topic, (partition, first, last, count) = found["topic"], map(int, found.groups()[1:])
    assert {column: table.schema.field(column).type for column in COLUMNS} == COLUMNS, name
    offsets = table.column("kafka_offset").to_pylist()
    assert offsets == sorted(set(offsets)), f"{name} has an order"
    assert (offsets[0], offsets[-1], len(offsets)) == (first, last, count), name
    assert set(table.column("kafka_topic").to_pylist()) == {topic}, name
    assert set(table.column("kafka_partition").to_pylist()) == {partition}, name
    assert set(table.column("name").to_pylist()) == {"Jürgen"}, name
    return [(topic, partition, offset) for offset in offsets]


@dataclass(slots=True)
class Reader:
    """Reads each file as soon as it is there, from a thread of its own; `broken` are those that were not whole."""

    lake: Lake
    broken: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="reader")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for name in set(self.lake.names()) - self.seen:
                self.seen.add(name)
                try:
                    places(name, self.lake.read(name))
                except (AssertionError, pa.ArrowException, OSError) as error:
                    self.broken.append(f"{name}: {error!r}")


def make_settings(kafka: Kafka, group_protocol: str, topic: str, lake: Lake, **more: str) -> dict[str, str]:
    return {
        **group_settings(kafka, group_protocol, f"parquet-{topic}", [topic]),
        "CONNECTOR_SINK": "parquet",
        "CONNECTOR_VALUE_FORMAT": "json",
        **lake.settings,
        **more,
    }


def survive_ten_kills(kafka: Kafka, group_protocol: str, tmp_path: Path, lake: Lake, *, file_age: str) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    settings = make_settings(kafka, group_protocol, topic, lake, CONNECTOR_SINK_FILE_AGE=file_age)
    group = settings["CONNECTOR_GROUP_ID"]
    copies = [ConnectorProcess(f"copy-{n}", tmp_path, settings) for n in range(3)]
    uncommitted: list[int] = []
    allowed: Counter[Place] = Counter()
    pause = threading.Event()  # never set

    def note(victim: ConnectorProcess) -> None:
        """Note what files hold beyond the position that the victim leaves: no more than that may come again."""
        committed = committed_positions(kafka, group, [topic])
        pause.wait(1)  # a store may still finish what it has received; the victim's session lasts 6 s
        open_ = [place for place in lake.rows() if place[2] >= committed[place[:2]]]
        uncommitted.append(len(open_))
        allowed.update(open_)

    with Reader(lake) as reader:
        outcome = kill_under_load(kafka, [topic], group, copies, note, rounds=ROUNDS, value=VALUE, pause=0.3)
    written, files = lake.rows(), len(list(lake.names()))
    verdict = judge(written, ends(kafka, [topic]))
    print(
        f"{group_protocol}: {len(uncommitted)} kills, {outcome.produced} records, {files} files, "
        f"in files and not committed at each kill: {uncommitted}, {verdict}, seed {SEED}"
    )
    assert len(uncommitted) == 2 * ROUNDS
    assert reader.broken == []
    assert len(reader.seen) >= files / 2, "it has read while files came"
    assert (verdict.lost, beyond(verdict.repeated, allowed)) == ((), {}), f"seed {SEED}: {verdict}"
    assert outcome.went_back == []


@pytest.mark.invariant(1)
def test_ten_kills_leave_whole_files_lose_nothing_and_repeat_only_what_was_not_committed(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    folder = tmp_path / "lake"
    survive_ten_kills(kafka, group_protocol, tmp_path, folder_lake(folder), file_age="300ms")
    assert list((folder / ".incomplete").iterdir()) == [], "what the kills left is removed"


@pytest.mark.invariant(1)
def test_ten_kills_leave_whole_files_in_a_bucket_too(kafka: Kafka, s3: S3Server, tmp_path: Path) -> None:
    survive_ten_kills(kafka, "consumer", tmp_path, bucket_lake(s3), file_age="1s")


def test_files_are_written_before_their_partitions_leave(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    lake = folder_lake(tmp_path / "lake")
    settings = make_settings(kafka, group_protocol, topic, lake, CONNECTOR_SINK_FILE_AGE="1h")
    first, second = (ConnectorProcess(name, tmp_path, settings) for name in ("first", "second"))
    with first, Traffic(kafka, [topic], portion=200, value=VALUE) as traffic:
        _wait_until_it_holds_records(first, topic)
        with second:  # joins: a rebalance
            for copy in (first, second):
                wait_until_copy(copy, "it holds its share", lambda: len(held(copy)) == PARTITIONS // 2)  # noqa: B023
            _wait_until_it_holds_records(second, topic)
            assert second.terminate() == 0  # leaves: another one
        wait_until_copy(first, "it holds all again", lambda: len(held(first)) == PARTITIONS)
        traffic.stop()
        assert first.terminate() == 0
    with ConnectorProcess("third", tmp_path, {**settings, "CONNECTOR_STOP": "end"}) as rest:
        assert rest.wait() == 0
    verdict = judge(lake.rows(), ends(kafka, [topic]))
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
    finished = [entry for copy in (first, second, rest) for entry in copy.events("parquet_file_finished")]
    assert {entry["reason"] for entry in finished} == {"asked"}
    assert len(finished) <= 5 * PARTITIONS, "one for each lane, not one for each batch"


def test_time_ends_a_file_although_nothing_more_comes(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=1)
    lake = folder_lake(tmp_path / "lake")
    settings = make_settings(kafka, "consumer", topic, lake, CONNECTOR_SINK_FILE_AGE="2s")
    with ConnectorProcess("copy", tmp_path, settings) as copy:
        wait_until_ready(copy)
        kafka.produce(topic, [VALUE] * 10)
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        (finished,) = copy.events("parquet_file_finished")
        assert (finished["reason"], finished["records"]) == ("age", 10)
        assert sum(lake.rows().values()) == 10
        assert copy.terminate() == 0
    assert len(copy.events("parquet_file_finished")) == 1


def test_a_store_that_is_away_costs_no_record_and_no_rebalance(
    kafka: Kafka, group_protocol: str, s3: S3Server, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    lake = bucket_lake(s3)
    settings = make_settings(
        kafka, group_protocol, topic, lake, CONNECTOR_SINK_FILE_AGE="300ms", CONNECTOR_RETRY_MAX="1s"
    )
    with (
        ConnectorProcess("copy", tmp_path, settings) as copy,
        Traffic(kafka, [topic], portion=200, value=VALUE) as traffic,
    ):
        wait_until_copy(copy, "it holds all", lambda: len(held(copy)) == PARTITIONS)
        wait_until_copy(copy, "it writes", lambda: metric(copy, "connector_written_records_total", topic=topic))
        rebalances = _rebalances(copy)
        with s3.answering(503, "SlowDown"):
            wait_until_copy(copy, "every lane waits", lambda: _states(copy) == ["retrying"] * PARTITIONS)
            wait_until_copy(copy, "the sink is left alone", lambda: metric(copy, "connector_sink_breaker_opens_total"))
        wait_until_copy(copy, "it goes on", lambda: _states(copy) == ["flowing"] * PARTITIONS)
        traffic.stop()
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        assert _rebalances(copy) == rebalances
        assert copy.terminate() == 0
    libraries = {entry["logger"] for entry in copy.events() if entry["logger"].startswith(("boto", "urllib3"))}
    assert libraries == set(), "they would tell each request and what it was signed with"
    verdict = judge(lake.rows(), ends(kafka, [topic]))
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)


def _wait_until_it_holds_records(copy: ConnectorProcess, topic: str) -> None:
    def does_it() -> bool:
        lanes = copy.status()["lanes"]
        return bool(lanes) and all(lane["watermark_age_seconds"] is not None for lane in lanes)

    wait_until_copy(copy, f"each of its files has records of {topic}", does_it)


def _states(copy: ConnectorProcess) -> list[str]:
    return [lane["state"] for lane in copy.status()["lanes"]]


def _rebalances(copy: ConnectorProcess) -> list[float | None]:
    return [metric(copy, "connector_rebalances_total", event=name) for name in ("assigned", "added", "revoked", "lost")]
