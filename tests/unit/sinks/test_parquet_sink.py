"""The sink `parquet` in a folder: what ends a file, what is in it, and that it is whole or not there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from connector import (
    CloseReason,
    ConfigError,
    ConnectorError,
    InputClosed,
    LaneId,
    PoisonError,
    Secret,
    SinkContext,
    TransientError,
)
from connector.testing import make_batch as sized_batch
from sinks.parquet import ParquetSettings, ParquetSink
from tests.support.engine import eventually
from tests.support.parquet_files import parquet_files, read_rows
from tests.unit.sinks.sink_batches import NASTY, TIMESTAMP_MS, Record, make_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connector import Batch

DAY_MS = 86_400_000
LANE = LaneId(1)


@dataclass
class Bench:
    """An open sink, and what it has said of each batch, in order."""

    folder: Path
    sink: ParquetSink
    answers: list[ConnectorError | None] = field(default_factory=list)

    def submit(self, *batches: Batch) -> None:
        for batch in batches:
            self.sink.submit(batch, self.answers.append)

    def finish(self, *batches: Batch) -> None:
        """Submit batches, and have their files written."""
        expected = len(self.answers) + len(batches)
        self.submit(*batches)
        for lane in {batch.metadata.lane for batch in batches}:
            self.sink.flush(lane)
        eventually(lambda: len(self.answers) == expected)

    @property
    def files(self) -> list[Path]:
        return parquet_files(self.folder)

    def table(self) -> pa.Table:
        """The one file that there is."""
        (path,) = self.files
        return pq.ParquetFile(path).read()


@contextlib.contextmanager
def opened(folder: Path, value_format: str = "bytes", **settings: Any) -> Iterator[Bench]:
    context = SinkContext(group_id="group", value_format=value_format)
    sink = ParquetSink(ParquetSettings(path=str(folder), **settings), context)
    sink.open()
    try:
        yield Bench(folder, sink)
    finally:
        sink.close()


def objects(*values: Any, offset: int = 0, lane: int = 1, **more: Any) -> Batch:
    """A batch whose values the format json has decoded."""
    texts = [None if value is None else orjson.dumps(value) for value in values]
    return make_batch(*texts, offset=offset, lane=lane, decoded={"value": list(values), **more})


# What ends a file.


def test_a_file_ends_with_the_batch_that_fills_it_by_rows(tmp_path: Path) -> None:
    with opened(tmp_path, file_rows=5) as bench:
        bench.submit(make_batch(b"1", b"2", b"3", offset=0))
        bench.submit(make_batch(b"4", b"5", b"6", offset=3), make_batch(b"7", offset=6))
        eventually(lambda: len(bench.answers) == 2)
        assert bench.answers == [None, None]
        assert [row[2] for row in read_rows(tmp_path)] == [0, 1, 2, 3, 4, 5]


def test_a_file_ends_with_the_batch_that_fills_it_by_bytes(tmp_path: Path) -> None:
    batches = [sized_batch(b"x" * 100, offset=offset) for offset in range(3)]
    with opened(tmp_path, file_bytes=batches[0].size_bytes + 1) as bench:
        bench.submit(*batches)
        eventually(lambda: len(bench.answers) == 2)
        assert [row[2] for row in read_rows(tmp_path)] == [0, 1]


def test_a_file_has_the_order_of_the_partition_whatever_failed_and_came_again(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        bench.finish(make_batch(b"3", b"4", offset=30), make_batch(b"1", b"2", offset=10))
        assert [row[2:4] for row in read_rows(tmp_path)] == [(10, b"1"), (11, b"2"), (30, b"3"), (31, b"4")]


def test_a_file_ends_by_age_although_nothing_more_comes(tmp_path: Path) -> None:
    with opened(tmp_path, file_age=0.2) as bench:
        bench.submit(make_batch(b"1", lane=1), make_batch(b"2", partition=4, lane=2))
        assert bench.files == []
        eventually(lambda: bench.answers == [None, None])
        assert sorted(row[:3] for row in read_rows(tmp_path)) == [("orders", 3, 10), ("orders", 4, 10)]


def test_without_an_end_nothing_is_written_or_acknowledged(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        bench.submit(make_batch(b"1", lane=1), make_batch(b"2", partition=4, lane=2))
        bench.sink.flush(LaneId(2))
        eventually(lambda: len(bench.answers) == 1)
        assert [row[:2] for row in read_rows(tmp_path)] == [("orders", 4)]


def test_a_lane_that_is_gone_is_not_written_any_more_and_its_batches_are_answered(tmp_path: Path) -> None:
    with opened(tmp_path, file_age=0.3) as bench:
        bench.submit(make_batch(b"1", lane=1), make_batch(b"2", partition=4, lane=2))
        bench.sink.on_event(InputClosed(LaneId(1), CloseReason.LOST))
        eventually(lambda: len(bench.answers) == 2)
        assert [type(answer) for answer in bench.answers] == [TransientError, type(None)]
        assert [row[:2] for row in read_rows(tmp_path)] == [("orders", 4)]


def test_a_lane_that_has_stalled_keeps_its_file(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        bench.submit(make_batch(b"1"))
        bench.sink.on_event(InputClosed(LANE, CloseReason.STALLED))
        bench.submit(make_batch(b"2", offset=11))
        bench.sink.flush(LANE)
        eventually(lambda: bench.answers == [None, None])
        assert len(bench.files) == 1


def test_what_is_held_back_at_the_end_is_not_written(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        bench.submit(make_batch(b"1"))
    assert [type(answer) for answer in bench.answers] == [TransientError]
    assert bench.files == []


# Where files go, and their names.


def test_files_are_laid_out_by_topic_and_day_of_the_record(tmp_path: Path) -> None:
    records = [
        Record(timestamp_ms=TIMESTAMP_MS),
        Record(timestamp_ms=TIMESTAMP_MS + DAY_MS),
        Record(timestamp_ms=None),
        Record(timestamp_ms=TIMESTAMP_MS),
        Record(timestamp_ms=2**60),
    ]
    with opened(tmp_path) as bench:
        bench.finish(make_batch(*records, offset=7, topic_id="AbCdEfGhIjKl"))
        names = sorted(str(path.relative_to(tmp_path)) for path in bench.files)
    assert names == [
        "orders/date=2025-12-31/orders-3-000000000007-000000000010-2-AbCdEfGh.parquet",
        "orders/date=2026-01-01/orders-3-000000000008-000000000008-1-AbCdEfGh.parquet",
        "orders/date=__HIVE_DEFAULT_PARTITION__/orders-3-000000000009-000000000011-2-AbCdEfGh.parquet",
    ]


def test_a_layout_may_have_hours_partitions_and_the_day_of_writing(tmp_path: Path) -> None:
    before = datetime.now(UTC).date().isoformat()
    layout = "{topic}/{partition}/day={record_date}/hour={record_hour}/{date}"
    with opened(tmp_path, layout=layout) as bench:
        bench.finish(make_batch(Record(), Record(timestamp_ms=None)))
        parents = sorted(str(path.parent.relative_to(tmp_path)) for path in bench.files)
    after = datetime.now(UTC).date().isoformat()
    hive = "__HIVE_DEFAULT_PARTITION__"
    expected = ["orders/3/day=2025-12-31/hour=23/", f"orders/3/day={hive}/hour={hive}/"]
    assert parents in ([place + day for place in expected] for day in (before, after))


def test_rows_that_are_written_again_replace_their_own_file_and_no_other(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        first = make_batch(b"1", b"2", b"3")
        bench.finish(first)
        bench.finish(first)
        assert len(bench.files) == 1
        bench.finish(first.select([0, 2]))  # the same range, but not the same rows
        bench.finish(make_batch(b"1", b"2", b"3", topic_id="id-2"))  # the topic was made again
        assert len(bench.files) == 3


# Columns.


def test_records_come_back_byte_for_byte(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        bench.finish(make_batch(*NASTY))
    expected = [(record.value, record.key, record.headers or []) for record in NASTY]
    assert sorted(row[2:] for row in read_rows(tmp_path)) == [
        (offset, *record) for offset, record in enumerate(expected, start=10)
    ]


def test_records_have_these_columns(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        bench.finish(make_batch(b"1", offset=0))
        table = bench.table()
    assert {field.name: str(field.type) for field in table.schema} == {
        "topic": "string",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[ms, tz=UTC]",
        "timestamp_type": "int8",
        "key": "binary",
        "value": "binary",
        "headers": "list<element: struct<name: string, value: binary>>",
    }
    (path,) = bench.files
    assert pq.ParquetFile(path).metadata.row_group(0).column(2).compression == "ZSTD"


def test_values_with_fields_have_a_column_for_each_and_where_they_are_from(tmp_path: Path) -> None:
    with opened(tmp_path, "json") as bench:
        bench.finish(objects({"id": 1, "tags": ["a"], "at": {"x": 1.5}}, {"id": 2, "note": "n"}, None, {}))
        table = bench.table()
    assert table.column_names == [
        *("id", "tags", "at", "note"),
        *("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_timestamp_type", "kafka_key"),
        *("kafka_headers", "kafka_tombstone"),
    ]
    rows = table.to_pylist()
    assert [(row["id"], row["tags"], row["at"], row["note"], row["kafka_tombstone"]) for row in rows] == [
        (1, ["a"], {"x": 1.5}, None, False),
        (2, None, None, "n", False),
        (None, None, None, None, True),
        (None, None, None, None, False),
    ]
    assert [row["kafka_offset"] for row in rows] == [0, 1, 2, 3]


def test_only_tombstones_are_written_too(tmp_path: Path) -> None:
    with opened(tmp_path, "json") as bench:
        bench.finish(objects(None, None))
        assert bench.table().column("kafka_tombstone").to_pylist() == [True, True]


@pytest.mark.parametrize("value_format", ["bytes", "string"])
def test_other_formats_have_records(tmp_path: Path, value_format: str) -> None:
    with opened(tmp_path, value_format) as bench:
        bench.finish(make_batch(b"1"))
        assert "value" in bench.table().column_names


def test_columns_can_be_chosen_whatever_the_format(tmp_path: Path) -> None:
    with opened(tmp_path / "a", "json", columns="record") as bench:
        bench.finish(objects({"id": 1}))
        assert bench.table().column("value").to_pylist() == ['{"id":1}']
    with opened(tmp_path / "b", columns="fields") as bench, pytest.raises(ConfigError, match="CONNECTOR_VALUE_FORMAT"):
        bench.submit(make_batch(b'{"id": 1}'))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"a": 1}, {"a": 2, "b": "new"}, [{"a": 1, "b": None}, {"a": 2, "b": "new"}]),
        ({"a": 1}, {"a": 1.5}, [{"a": 1.0}, {"a": 1.5}]),
        ({"a": None, "b": 1}, {"a": "text"}, [{"a": None, "b": 1}, {"a": "text", "b": None}]),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, [{"a": {"x": 1, "y": None}}, {"a": {"x": None, "y": 2}}]),
        ({"a": []}, {"a": [1]}, [{"a": []}, {"a": [1]}]),
    ],
)
def test_batches_whose_types_go_together_share_a_file(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    with opened(tmp_path, "json") as bench:
        bench.finish(objects(first), objects(second, offset=1))
        table = bench.table()
    wanted = [name for name in table.column_names if not name.startswith("kafka_")]
    assert table.select(wanted).to_pylist() == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, "text"),
        (True, 1),
        (2**60, 1.5),  # which no number with a fraction holds exactly
        ({"x": 1}, [1]),
    ],
)
def test_a_type_that_does_not_go_into_a_file_begins_another_and_every_value_stays_what_it_is(
    tmp_path: Path, first: Any, second: Any
) -> None:
    with opened(tmp_path, "json") as bench:
        bench.finish(objects({"a": first}), objects({"a": second}, offset=1))
        assert bench.answers == [None, None]
        found = [pq.ParquetFile(path).read().column("a").to_pylist() for path in bench.files]
    assert sorted(found, key=str) == sorted([[first], [second]], key=str)


def test_types_of_a_schema_are_not_mixed(tmp_path: Path) -> None:
    one, other = objects({"a": 1}), objects({"a": 1.5}, offset=1)
    other.avro_records = {"value": ()}
    with opened(tmp_path, "avro") as bench:
        bench.finish(one, other)
        assert len(bench.files) == 2


def test_what_parquet_has_no_type_for_is_text_or_left_out(tmp_path: Path) -> None:
    with opened(tmp_path, "json") as bench:
        bench.finish(objects({"empty": {}, "nothing": None, "inner": {"e": {}, "n": 1}}, {"empty": None}))
        table = bench.table()
    assert "nothing" not in table.column_names
    assert table.column("empty").to_pylist() == ["{}", None]
    assert table.column("inner").to_pylist() == ['{"e":{},"n":1}', None]


@pytest.mark.parametrize("value", [[1], "text", 1, "", 0, [], False])
def test_a_value_without_fields_is_poison(tmp_path: Path, value: Any) -> None:
    with opened(tmp_path, "json") as bench, pytest.raises(PoisonError, match="no object"):
        bench.submit(objects(value))


def test_a_field_with_the_name_of_a_column_of_its_own_is_poison(tmp_path: Path) -> None:
    with opened(tmp_path, "json") as bench:
        with pytest.raises(PoisonError, match=r"orders\[3\]@0 .* kafka_offset"):
            bench.submit(objects({"kafka_offset": 1}))
        with pytest.raises(PoisonError, match="two columns would have the name extra"):
            bench.submit(objects({"extra": 1}, extra=["x"]))
        bench.finish(objects({"offset": 5}, extra=["x"]))
        assert bench.table().select(["offset", "extra", "kafka_offset"]).to_pylist() == [
            {"offset": 5, "extra": "x", "kafka_offset": 0}
        ]


# Failures.


def test_a_disk_that_fails_fails_every_batch_of_the_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    batches = [make_batch(b"1"), make_batch(b"2", offset=11)]
    with opened(tmp_path) as bench:
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", full)
            bench.finish(*batches)
        assert [type(answer) for answer in bench.answers] == [TransientError] * 2
        assert "No space left" in str(bench.answers[0])
        assert bench.files == []
        assert list((tmp_path / ".incomplete").iterdir()) == []
        bench.finish(*batches)
        assert bench.answers[2:] == [None, None]
        assert [row[2] for row in read_rows(tmp_path)] == [10, 11]


def test_a_folder_that_cannot_be_used_is_an_error_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="CONNECTOR_SINK_PATH"), opened(tmp_path / "file" / "lake"):
        pass


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    left, written = (tmp_path / ".incomplete" / name for name in ("left.part", "written.part"))
    left.write_bytes(b"half")
    with written.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with opened(tmp_path):
            assert not left.exists()
            assert written.exists()


def test_a_file_that_is_not_finished_has_no_name_that_readers_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    with opened(tmp_path, layout="") as bench:
        real = os.fsync

        def look(descriptor: Any) -> None:
            seen.append(sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()))
            real(descriptor)

        with monkeypatch.context() as watched:
            watched.setattr(os, "fsync", look)
            bench.finish(make_batch(b"1"))
        assert len(bench.files) == 1
    before = seen[0]
    assert len(before) == 1
    assert before[0].startswith(".incomplete/")
    assert not before[0].endswith(".parquet")


# Settings.


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"path": ""}, "neither a folder nor a bucket"),
        ({"path": "s3:///x"}, "neither a folder nor a bucket"),
        ({"path": "/x", "layout": "/{topic}"}, "not a path below"),
        ({"path": "/x", "layout": "a/../b"}, "not a path below"),
        ({"path": "/x", "layout": "{group}"}, "unknown placeholder"),
        ({"path": "/x", "file_age": 0}, "greater than 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        ParquetSettings(**given)


def test_settings_that_do_not_go_together_are_problems() -> None:
    assert ParquetSettings(path="/x").problems(4) == []
    assert ParquetSettings(path="s3://bucket/a/b/").problems(1) == []
    assert ParquetSettings(path="s3://bucket/a/b/").bucket == ("bucket", "a/b")
    assert ParquetSettings(path="s3://bucket").bucket == ("bucket", "")
    (only_for_s3,) = ParquetSettings(path="/x", region="eu-1").problems(1)
    assert only_for_s3.startswith("CONNECTOR_SINK_REGION: only for a bucket")
    for half in ({"access_key_id": "me"}, {"secret_access_key": Secret("s")}):
        (problem,) = ParquetSettings(path="s3://bucket", **half).problems(1)
        assert "go together" in problem
