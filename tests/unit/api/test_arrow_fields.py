"""The fields of decoded objects as Arrow columns: typed by the schemas they were written with, or by the data."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from connector import PoisonError
from connector.pipeline.avro import avro_decoder
from connector.testing import make_batch

if TYPE_CHECKING:
    from connector import Batch

ID = UUID("0f0c9c0c-4f3f-4b3d-9c3a-3d5b5a5c5d5e")
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def _record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def _batch(values: list[Any], *schemas: Any) -> Batch:
    batch = make_batch(*[b""] * len(values), decoded={"value": values})
    records = [record for schema in schemas for record in avro_decoder(json.dumps(schema), []).avro_records]
    batch.avro_records = {"value": records} if records else {}
    return batch


@pytest.mark.parametrize(
    ("kind", "value", "arrow", "as_arrow"),
    [
        ("int", 1, pa.int32(), 1),
        ("long", 2**63 - 1, pa.int64(), 2**63 - 1),
        ("float", 1.5, pa.float32(), 1.5),
        ("boolean", True, pa.bool_(), True),
        ("string", "ä", pa.string(), "ä"),
        ("bytes", b"\xff", pa.binary(), b"\xff"),
        (["null", "long"], 5, pa.int64(), 5),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(2), b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", pa.string(), "A"),
        ({"type": "array", "items": ["null", "string"]}, ["a", None], pa.list_(pa.string()), ["a", None]),
        ({"type": "map", "values": "int"}, {"a": 1}, pa.map_(pa.string(), pa.int32()), [("a", 1)]),
        (_record(("a", "int")) | {"name": "S"}, {"a": 1}, pa.struct([("a", pa.int32())]), {"a": 1}),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("1.5"),
            pa.decimal128(9, 2),
            Decimal("1.50"),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2},
            Decimal("1.5"),
            pa.decimal256(50, 2),
            Decimal("1.50"),
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 99}, Decimal("1.5"), pa.string(), '"1.5"'),
        ({"type": "bytes", "logicalType": "decimal", "precision": 1, "scale": 9}, b"\x01", pa.binary(), b"\x01"),
        ({"type": "string", "logicalType": "uuid"}, ID, pa.string(), str(ID)),
        ({"type": "int", "logicalType": "date"}, date(2026, 1, 31), pa.date32(), date(2026, 1, 31)),
        ({"type": "long", "logicalType": "time-micros"}, time(1, 2, 3, 4), pa.time64("us"), time(1, 2, 3, 4)),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            datetime(2026, 1, 31, tzinfo=UTC),
            pa.timestamp("us", tz="UTC"),
            datetime(2026, 1, 31, tzinfo=UTC),
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            datetime(2026, 1, 31),  # noqa: DTZ001
            pa.timestamp("ms"),
            datetime(2026, 1, 31),  # noqa: DTZ001
        ),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 5, pa.int64(), 5),
        (["int", "string"], 5, pa.string(), "5"),
        (["int", "string"], "x", pa.string(), "x"),
        (NODE, {"next": {"next": None}}, pa.struct([("next", pa.string())]), {"next": '{"next":null}'}),
    ],
)
def test_each_type_of_avro_has_a_column_type_whatever_the_data(
    kind: Any, value: Any, arrow: Any, as_arrow: Any
) -> None:
    schema = _record(("field", kind))
    column = _batch([{"field": value}, None], schema).fields_to_arrow().column("field")
    assert (column.type, column.to_pylist()) == (arrow, [as_arrow, None])
    assert _batch([None, None], schema).fields_to_arrow().column("field").type == arrow


def test_schemas_of_one_batch_share_their_columns_and_what_does_not_agree_is_text() -> None:
    first = _record(("id", "int"), ("gone", "string"), ("kind", "int"))
    second = _record(("id", "long"), ("kind", "string"), ("new", {"type": "array", "items": "int"}))
    values = [{"id": 1, "gone": "x", "kind": 1}, None, {"id": 2**40, "kind": "a", "new": [1]}]
    table = _batch(values, first, second).fields_to_arrow()
    assert table.schema.names == ["id", "gone", "kind", "new"]
    assert table.to_pydict() == {
        "id": [1, None, 2**40],
        "gone": ["x", None, None],
        "kind": ["1", None, "a"],
        "new": [None, None, [1]],
    }


def test_a_union_of_records_has_the_columns_of_all_its_branches() -> None:
    union = [_record(("a", "int")), "null", _record(("b", "string")) | {"name": "S"}]
    table = _batch([{"a": 1}, {"b": "x"}, None], union).fields_to_arrow()
    assert table.to_pydict() == {"a": [1, None, None], "b": [None, "x", None]}


def test_without_schemas_the_values_decide_and_json_text_is_what_all_have_in_common() -> None:
    values = [{"a": 1, "b": {"c": [1]}, "d": 1}, None, {"a": 1.5, "d": "x"}, {"e": None, "big": 2**64 - 1}]
    table = _batch(values).fields_to_arrow()
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    assert (kinds["a"], kinds["d"], kinds["e"], kinds["big"]) == (pa.float64(), pa.string(), pa.null(), pa.string())
    assert table.column("b").to_pylist() == [{"c": [1]}, None, None, None]
    assert table.column("d").to_pylist() == ["1", None, '"x"', None]
    assert table.column("big").to_pylist()[3] == str(2**64 - 1)


@pytest.mark.parametrize(
    ("values", "words"),
    [([{"a": 1}, "text"], "no object"), ([b"raw"], "no object"), ([None], "no columns"), ([{}], "no columns")],
)
def test_what_has_no_fields_is_poison(values: list[Any], words: str) -> None:
    with pytest.raises(PoisonError, match=words):
        _batch(values).fields_to_arrow()


def test_a_value_that_does_not_fit_its_type_is_poison_and_never_cut() -> None:
    schema = _record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}))
    with pytest.raises(PoisonError, match="the field d does not fit"):
        _batch([{"d": Decimal("123456.78")}], schema).fields_to_arrow()


def test_a_batch_keeps_its_types_when_it_is_cut_and_loses_them_with_the_column_that_had_them() -> None:
    batch = _batch([{"a": 1}, {"a": 2}], _record(("a", "int")))
    for part in (batch.slice(0, 1), batch.select([1]), batch.with_column("other", [1, 2])):
        assert part.fields_to_arrow().schema.types == [pa.int32()]
    replaced = batch.with_column("value", [{"b": "x"}, {"b": "y"}]).fields_to_arrow()
    assert replaced.to_pydict() == {"b": ["x", "y"]}


def test_values_of_avro_have_a_text_in_the_plain_arrow_form_too() -> None:
    value = {"d": Decimal("1.50"), "b": b"\xff", "t": datetime(2026, 1, 31, tzinfo=UTC), "u": ID}
    [text] = _batch([value]).to_arrow().column("value").to_pylist()
    assert json.loads(text) == {"d": "1.50", "b": {"base64": "/w=="}, "t": "2026-01-31T00:00:00Z", "u": str(ID)}
