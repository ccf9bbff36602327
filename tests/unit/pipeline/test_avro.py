"""Avro payloads to values: every type, what is malformed and where, references, and schemas that contain themselves."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.pipeline.avro import avro_decoder
from tests.support.registry import avro

ID = UUID("0f0c9c0c-4f3f-4b3d-9c3a-3d5b5a5c5d5e")
MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop",
    "fields": [{"name": "cents", "type": "long"}, {"name": "currency", "type": "string"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": MONEY},
        {"name": "tip", "type": ["null", "Money"], "default": "wrong, and of no matter to a reader"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def _decode(schema: Any, payload: bytes) -> Any:
    return avro_decoder(json.dumps(schema), []).decode(payload)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("null", None),
        ("boolean", True),
        ("long", -(2**63)),
        ("double", 1.5),
        ("string", "ä"),
        ("string", ""),
        ({"type": "fixed", "name": "F", "size": 2}, b"\xff\x00"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ({"type": "map", "values": "int"}, {"a": 1}),
        (["null", "string"], None),
        (["null", "string"], "x"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, Decimal("-12.50")),
        ({"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 6}, Decimal(7)),
        ({"type": "string", "logicalType": "uuid"}, ID),
        ({"type": "int", "logicalType": "date"}, date(2026, 1, 31)),
        ({"type": "int", "logicalType": "time-millis"}, time(23, 59, 59, 999000)),
        ({"type": "long", "logicalType": "time-micros"}, time(23, 59, 59, 999999)),
        ({"type": "long", "logicalType": "timestamp-millis"}, datetime(2026, 1, 31, 1, 2, 3, 4000, UTC)),
        ({"type": "long", "logicalType": "timestamp-micros"}, datetime(1900, 1, 31, 1, 2, 3, 4, UTC)),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, datetime(2026, 1, 31, 1, 2, 3, 4)),  # noqa: DTZ001
    ],
)
def test_every_type_has_its_python_value(schema: Any, value: Any) -> None:
    decoded = _decode(schema, avro(schema, value))
    assert (decoded, type(decoded)) == (value, type(value))
    if isinstance(value, datetime):
        assert decoded.tzinfo == value.tzinfo


def test_a_uuid_of_sixteen_bytes_is_a_uuid() -> None:
    assert _decode({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, ID.bytes) == ID


@pytest.mark.parametrize("payload", [b"", b"\x00", b"plain \xff"])
def test_a_schema_of_bytes_is_the_payload_as_it_is(payload: bytes) -> None:
    assert _decode("bytes", payload) == payload
    assert _decode({"type": "bytes"}, payload) == payload


@given(number=st.integers(-(10**40), 10**40), scale=st.integers(0, 30))
def test_a_decimal_keeps_every_digit_also_more_than_its_schema_promises(number: int, scale: int) -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": max(1, scale), "scale": scale}
    data = number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
    decoded = _decode(schema, avro("bytes", data))
    assert decoded.as_tuple().exponent == -scale
    assert int("".join(map(str, decoded.as_tuple().digits))) == abs(number)


def test_a_decimal_whose_schema_is_not_valid_is_bytes() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": -1}
    assert _decode(schema, avro("bytes", b"\x01")) == b"\x01"


VALUE = {"id": 7, "price": {"cents": 1250, "currency": "EUR"}, "tip": {"cents": 1, "currency": "EUR"}, "tags": ["a"]}
PAYLOAD = avro(json.loads(json.dumps(ORDER).replace('"default"', '"doc"')), VALUE)


def test_a_record_is_a_dict_and_defaults_do_not_matter() -> None:
    assert _decode(ORDER, PAYLOAD) == VALUE


@pytest.mark.parametrize("end", range(len(PAYLOAD)))
def test_a_truncated_record_is_refused_at_every_length_and_the_field_is_named(end: int) -> None:
    fields = ["id", "price.cents", "price.currency", "tip", "tip.cents", "tip.currency", "tags"]
    with pytest.raises(ValueError, match=r"^ends too early in the field") as refused:
        _decode(ORDER, PAYLOAD[:end])
    assert str(refused.value).split()[-1] in fields
    if end == 0:
        assert "field id" in str(refused.value)
    if end == 3:
        assert "field price.currency" in str(refused.value)
    if end == len(PAYLOAD) - 1:
        assert "field tags" in str(refused.value)


def test_what_follows_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has 2 byte\(s\) after its end"):
        _decode(ORDER, PAYLOAD + b"\x00\x00")


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ("string", b"\x02\xff"),
        ("long", b"\xff" * 20),
        (["null", "string"], b"\x08"),
        ({"type": "string", "logicalType": "uuid"}, b"\x02x"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "array", "items": "string"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ],
)
def test_bytes_that_are_something_else_are_refused(schema: Any, payload: bytes) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": schema}]}
    with pytest.raises(ValueError, match=r"field b$"):
        _decode(record, payload)


@given(payload=st.binary(max_size=60))
def test_whatever_the_bytes_are_a_value_or_a_refusal_comes_out(payload: bytes) -> None:
    with suppress(ValueError):
        _decode(ORDER, payload)


def _nested(levels: int) -> bytes:
    return b"\x02" * levels + b"\x00"


def test_a_schema_that_contains_itself_is_read_as_deep_as_the_stack_goes_and_refused_beyond() -> None:
    decoder = avro_decoder(json.dumps(NODE), [])
    assert decoder.is_recursive
    value = decoder.decode(_nested(100))
    for _ in range(100):
        value = value["next"]
    assert value == {"next": None}
    with pytest.raises(ValueError, match="nested too deeply"):
        decoder.decode(_nested(500_000))  # the compiled reader would end the process
    with pytest.raises(ValueError, match="ends too early"):
        decoder.decode(_nested(500)[:-1])


def test_a_type_that_is_used_twice_does_not_contain_itself() -> None:
    assert not avro_decoder(json.dumps(ORDER), []).is_recursive


def test_references_between_schemas_are_resolved_also_when_two_lead_to_the_same() -> None:
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "price", "type": "shop.Money"}]}
    whole = {
        "type": "record",
        "name": "shop.Whole",
        "fields": [{"name": "line", "type": "shop.Line"}, {"name": "sum", "type": "shop.Money"}],
    }
    money = json.dumps(MONEY)
    references = [("shop.Money", money), ("shop.Line", json.dumps(line)), ("again", money)]
    decoder = avro_decoder(json.dumps(whole), references)
    payload = avro(MONEY, VALUE["price"]) * 2
    assert decoder.decode(payload) == {"line": {"price": VALUE["price"]}, "sum": VALUE["price"]}
    with pytest.raises(ValueError, match=r"field line\.price\.currency$"):
        decoder.decode(payload[:3])


def test_a_union_of_referenced_types_is_a_schema_too() -> None:
    decoder = avro_decoder(json.dumps(["shop.Money", "null"]), [("shop.Money", json.dumps(MONEY))])
    assert decoder.decode(b"\x00" + avro(MONEY, VALUE["price"])) == VALUE["price"]
    assert decoder.decode(b"\x02") is None
