"""The Arrow view of a batch: every column, null apart from empty, one schema whatever the records hold."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from connector import Batch, BatchMetadata, ConfigError, Epoch, LaneId, Offset, PoisonError

SCHEMA = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("timestamp_type", pa.int8()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)


def make(*messages: Message, **decoded: Any) -> Batch:
    return Batch(BatchMetadata(LaneId(1), Epoch(1), 0, "orders", 3, Offset(10), Offset(99)), messages, decoded=decoded)


def message(offset: int = 10, **fields: Any) -> Message:
    return Message(topic="orders", partition=3, offset=offset, **fields)


@pytest.mark.invariant(12)
def test_every_column_is_there_and_null_is_not_empty() -> None:
    batch = make(
        message(10, key=None, value=b"", timestamp=(TIMESTAMP_CREATE_TIME, 1_700_000_000_123)),
        message(12, key=b"", value=None, timestamp=(TIMESTAMP_NOT_AVAILABLE, 0)),
        message(2**40, key=b"\xff", value=b"v", timestamp=(TIMESTAMP_LOG_APPEND_TIME, -1)),
    )
    arrow = batch.to_arrow()
    assert arrow.schema.equals(SCHEMA)
    assert arrow.column("topic").to_pylist() == ["orders"] * 3
    assert arrow.column("partition").to_pylist() == [3] * 3
    assert arrow.column("offset").to_pylist() == [10, 12, 2**40]
    assert arrow.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_123, None, None]
    assert arrow.column("timestamp_type").to_pylist() == [1, 0, 2]
    assert arrow.column("key").to_pylist() == [None, b"", b"\xff"]
    assert arrow.column("value").to_pylist() == [b"", None, b"v"]


@pytest.mark.invariant(12)
def test_headers_keep_order_duplicates_null_and_empty() -> None:
    batch = make(
        message(headers=[("a", None), ("a", b""), ("b", b"\xff")]),
        message(),
        message(headers=[("", b"1")]),
    )
    assert batch.to_arrow().column("headers").to_pylist() == [
        [{"name": "a", "value": None}, {"name": "a", "value": b""}, {"name": "b", "value": b"\xff"}],
        [],
        [{"name": "", "value": b"1"}],
    ]


def test_a_header_name_that_is_not_utf_8_is_null_and_its_value_stays() -> None:
    batch = make(message(headers=[("\udcff", b"1"), ("ä", b"2")]))
    assert batch.to_arrow().column("headers").to_pylist() == [
        [{"name": None, "value": b"1"}, {"name": "ä", "value": b"2"}]
    ]


def test_an_empty_batch_has_the_same_schema() -> None:
    arrow = make().to_arrow()
    assert arrow.num_rows == 0
    assert arrow.schema.equals(SCHEMA)


@pytest.mark.parametrize(
    ("decoded", "texts"),
    [
        (["text", "", None], ["text", "", None]),
        ([{"a": [1, None]}, 1.5, "text"], ['{"a":[1,null]}', "1.5", "text"]),
        ([None, None, None], [None, None, None]),
    ],
)
def test_a_decoded_column_is_text_whatever_it_holds(decoded: list[Any], texts: list[str | None]) -> None:
    column = make(*[message(value=b"x")] * 3, value=decoded).to_arrow().column("value")
    assert column.type == pa.string()
    assert column.to_pylist() == texts


def test_a_column_that_a_transform_makes_of_bytes_is_binary() -> None:
    column = make(*[message()] * 3, value=[b"\xff", "text", None]).to_arrow().column("value")
    assert column.type == pa.binary()
    assert column.to_pylist() == [b"\xff", b"text", None]


def test_a_column_that_a_transform_has_added_comes_last() -> None:
    arrow = make(message(), region=["eu"]).to_arrow()
    assert arrow.schema.names == [*SCHEMA.names, "region"]
    assert arrow.column("region").to_pylist() == ["eu"]


def test_a_decoded_value_without_a_form_is_poison() -> None:
    with pytest.raises(PoisonError, match="no form in Arrow"):
        make(message(), value=[{"a": {1, 2}}]).to_arrow()


def test_whatever_speaks_the_capsule_protocol_takes_a_batch() -> None:
    batch = make(message(10, value=b"1"), message(11, value=b"2"))
    table = pa.table(batch)
    assert table.column("value").to_pylist() == [b"1", b"2"]
    wanted = pa.schema([SCHEMA.field("topic").with_type(pa.string()), *list(SCHEMA)[1:]])
    reader = pa.RecordBatchReader.from_stream(make(message(value=None)), schema=wanted)
    assert reader.read_all().schema.equals(wanted)


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    batch = make(message())
    with pytest.raises(ConfigError, match=r"pip install pyarrow, or pip install 'sluiceway\[arrow\]'"):
        batch.to_arrow()
    with pytest.raises(ConfigError, match="pip install pyarrow"):
        batch.__arrow_c_stream__()
    assert batch.column("offset") == [10]


def test_nothing_imports_pyarrow_before_arrow_is_asked_for() -> None:
    code = "import sys, connector, connector.testing; print('pyarrow' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert printed.stdout == "False\n"


def test_ten_thousand_records_take_a_fraction_of_a_second() -> None:
    batch = make(*(message(offset, key=b"key", value=b"v" * 100, headers=[("h", b"1")]) for offset in range(10_000)))
    started = time.monotonic()
    assert batch.to_arrow().num_rows == 10_000
    assert time.monotonic() - started < 1
