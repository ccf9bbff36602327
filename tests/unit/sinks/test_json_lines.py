"""The lines that `file` and `stdout` write: no record loses anything, and one record is one line."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import PoisonError
from sinks.json_lines import to_lines
from tests.unit.sinks.sink_batches import NASTY, TIMESTAMP_MS, Record, make_batch, restore

_content = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)


def test_a_record_has_the_documented_keys_in_order() -> None:
    line = to_lines(make_batch(Record(b"v", b"k", [("n", b"h")])), "record")
    assert line == (
        b'{"topic":"orders","partition":3,"offset":10,"timestamp":"2025-12-31T23:59:59.123Z",'
        b'"key":"k","value":"v","headers":[["n","h"]]}\n'
    )


@pytest.mark.invariant(12)
@given(
    records=st.lists(
        st.builds(
            Record, _content, _content, st.lists(st.tuples(st.text(min_size=1, max_size=5), _content), max_size=3)
        )
        | st.sampled_from(NASTY),
        min_size=1,
        max_size=5,
    )
)
def test_key_value_and_headers_come_back_byte_for_byte_whatever_they_are(records: list[Record]) -> None:
    lines = bytes(to_lines(make_batch(*records), "record")).split(b"\n")
    assert lines.pop() == b""
    for record, line in zip(records, lines, strict=True):
        read = json.loads(line)
        assert restore(read["key"]) == record.key
        assert restore(read["value"]) == record.value
        assert [(name, restore(content)) for name, content in read["headers"]] == (record.headers or [])


@pytest.mark.invariant(12)
def test_null_and_empty_differ() -> None:
    nothing, empty = map(json.loads, to_lines(make_batch(Record(None, None), Record(b"", b"")), "record").splitlines())
    assert (nothing["key"], nothing["value"]) == (None, None)
    assert (empty["key"], empty["value"]) == ("", "")


def test_a_record_without_a_timestamp_has_null() -> None:
    assert json.loads(to_lines(make_batch(Record(timestamp_ms=None)), "record"))["timestamp"] is None


@given(st.integers(0, 253_402_300_799_999))
def test_a_timestamp_keeps_its_milliseconds(timestamp_ms: int) -> None:
    text = json.loads(to_lines(make_batch(Record(timestamp_ms=timestamp_ms)), "record"))["timestamp"]
    read = datetime.fromisoformat(text)
    assert round((read - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000) == timestamp_ms
    assert len(text) == len("2025-12-31T23:59:59.123Z")


def test_a_timestamp_after_the_year_9999_is_poison_and_names_the_record() -> None:
    with pytest.raises(PoisonError, match=r"orders\[3\]@11 has the timestamp"):
        to_lines(make_batch(b"", Record(timestamp_ms=TIMESTAMP_MS * 1_000_000)), "record")


def test_a_decoded_value_is_embedded_as_json() -> None:
    decoded = {"value": [{"a": [1, None]}, None, {"raw": b"\xff", "sum": Decimal("1.10")}]}
    batch = make_batch(b"1", None, b"3", decoded=decoded)
    assert [json.loads(line)["value"] for line in to_lines(batch, "record").splitlines()] == [
        {"a": [1, None]},
        None,
        {"raw": {"base64": "/w=="}, "sum": "1.10"},
    ]


@pytest.mark.parametrize("line_format", ["record", "value"])
def test_a_decoded_value_that_json_cannot_express_is_poison_and_names_the_record(line_format: str) -> None:
    batch = make_batch(b"", b"", decoded={"value": [{}, {"n": 2**70}]})
    with pytest.raises(PoisonError, match=r"orders\[3\]@11"):
        to_lines(batch, line_format)  # type: ignore[arg-type]


def test_format_value_is_the_bytes_of_each_value_and_null_and_empty_are_empty_lines() -> None:
    assert to_lines(make_batch(b"\xff", None, b"", b"x"), "value") == b"\xff\n\n\nx\n"


def test_format_value_writes_what_a_decoder_made_as_json_and_strings_as_they_are() -> None:
    batch = make_batch(b"", b"", b"", None, decoded={"value": [{"a": "\n"}, "ä", 1, None]})
    assert to_lines(batch, "value") == '{"a":"\\n"}\nä\n1\n\n'.encode()


def test_format_value_refuses_a_line_break_and_names_the_record_and_the_way_out() -> None:
    with pytest.raises(PoisonError, match=r"orders\[3\]@12 has a line break .* CONNECTOR_SINK_FORMAT=record"):
        to_lines(make_batch(b"", None, b"a\nb"), "value")


@pytest.mark.parametrize("line_format", ["record", "value"])
def test_an_empty_batch_is_no_line(line_format: str) -> None:
    assert to_lines(make_batch(), line_format) == b""  # type: ignore[arg-type]
