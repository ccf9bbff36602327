"""Bytes to values: the id of a schema in front or in a header, and what has none; null, empty and undecodable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message

from connector.api.batch import Batch, BatchMetadata
from connector.api.types import Epoch, LaneId, Offset
from connector.pipeline.decode import Format, UndecodableError, decode
from tests.support.registry import KNOWN_GUID as GUID
from tests.support.registry import FakeSchemas, framed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from connector.pipeline.decode import Part, SchemaId


def _batch(part: Part, entries: Sequence[bytes | None], headers: Mapping[int, list[tuple[str, Any]]]) -> Batch:
    messages = [
        Message(topic="t", partition=0, offset=index, headers=headers.get(index), **{part: entry})  # type: ignore[arg-type]
        for index, entry in enumerate(entries)
    ]
    return Batch(BatchMetadata(LaneId(1), Epoch(1), 0, "t", 0, Offset(0), Offset(len(messages))), messages)


@pytest.mark.invariant(12)
@pytest.mark.parametrize("part", ["key", "value"])
def test_null_empty_and_what_has_no_schema_stay_apart_and_each_says_why(part: Part) -> None:
    entries = [None, framed(1, b"a"), framed(1, b""), b"", b"\x00\x00\x00\x01", b"{}", framed(GUID, b"b"), b"\x01short"]
    found = decode(_batch(part, entries, {}), part, Format.AVRO, FakeSchemas())
    values, problems = found.values, found.problems
    assert values == [None, "A", "", None, None, None, "B", None]
    assert list(problems) == [3, 4, 5, 7]
    assert all(isinstance(problem, UndecodableError) for problem in problems.values())
    texts = [str(problem) for problem in problems.values()]
    assert all(text.startswith(f"{part} is not avro: no schema id is in front") for text in texts)
    assert ["0 byte(s), is empty" in texts[0], "begins with 00" in texts[1], "begins with 7b" in texts[2]] == [True] * 3


@pytest.mark.parametrize(("part", "name"), [("key", "__key_schema_id"), ("value", "__value_schema_id")])
@pytest.mark.parametrize("schema_id", [1, GUID])
def test_an_id_in_the_header_of_that_part_leaves_all_of_the_rest_to_the_payload(
    part: Part, name: str, schema_id: SchemaId
) -> None:
    header = (name, framed(schema_id, b""))
    other = ("__key_schema_id" if part == "value" else "__value_schema_id", framed(9, b""))
    headers = {0: [("x", b"y"), other, header], 1: [header], 2: [header], 3: [(name, b"")], 4: [other]}
    entries = [b"abc", b"", None, b"abc", framed(1, b"x")]
    found = decode(_batch(part, entries, headers), part, Format.AVRO, FakeSchemas())
    assert found.values == ["ABC", "", None, None, "X"]
    assert ["its header" in str(problem) for problem in found.problems.values()] == [True]


def test_schemas_are_asked_for_once_a_batch_and_not_at_all_for_nothing() -> None:
    schemas = FakeSchemas()
    decode(_batch("value", [framed(1, b"a")] * 5 + [framed(GUID, b"a")], {}), "value", Format.AVRO, schemas)
    decode(_batch("value", [None, b""], {}), "value", Format.AVRO, schemas)
    assert schemas.asked == [{1, GUID}]


def test_poison_names_the_part_and_the_schema() -> None:
    entries = [framed(1, b"1"), framed(2, b"a"), framed(7, b"a")]
    found = decode(_batch("key", entries, {}), "key", Format.AVRO, FakeSchemas())
    assert [f"{type(each).__name__}: {each}" for each in found.problems.values()] == [
        "UndecodableError: key is not of schema 1: it has other things than letters",
        "UndecodableError: key is not avro: schema 2 is of the format json-schema",
        "UnknownSchemaError: key cannot be decoded: no schema 7",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 18446744073709551616.0),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b" null ", None),
        (b"NaN", UndecodableError),
        (b"1e400", UndecodableError),
        (b"", UndecodableError),
        (b'"\\ud800"', UndecodableError),
        (b'"\xff"', UndecodableError),
        (b"\xef\xbb\xbf{}", UndecodableError),
        (b"{} {}", UndecodableError),
    ],
)
def test_json_at_its_edges_is_what_the_guide_says(text: bytes, value: Any) -> None:
    found = decode(_batch("value", [text], {}), "value", Format.JSON, None)
    if value is UndecodableError:
        assert isinstance(found.problems[0], UndecodableError)
    else:
        assert (found.values, type(found.values[0]), found.problems) == ([value], type(value), {})


@pytest.mark.parametrize("text", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_text_is_strict_utf_8(text: bytes) -> None:
    assert list(decode(_batch("value", [text], {}), "value", Format.STRING, None).problems) == [0]
