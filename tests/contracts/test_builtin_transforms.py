"""What a transform owes the engine, shown for each built-in one: it may see a record again, and in smaller batches."""

from __future__ import annotations

import copy
import json
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import RecordErrors, SinkContext
from connector.pipeline.avro import avro_decoder
from connector.pipeline.decode import Format
from connector.pipeline.screen import Screen
from connector.plugins.function import make_transform
from connector.plugins.loader import TRANSFORM, Plugins
from connector.testing import Record, make_batch
from tests.support.registry import avro, framed
from transforms.filter import FilterSettings, FilterTransform
from transforms.mask import MaskSettings, MaskTransform
from transforms.select import SelectSettings, SelectTransform

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from connector import Batch, PoisonError, Transform
    from connector.pipeline.decode import Decoder, SchemaId

KEY = "0123456789abcdef"
scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8
)
headers = st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.binary(max_size=3)), max_size=3)
rows = st.lists(st.tuples(st.none() | st.binary(max_size=3), values, headers), max_size=8)


def judge(record: dict[str, Any]) -> Any:
    if record["value"] == {}:
        raise ValueError("nothing to judge")
    return {**record, "key": b"k"} if record["headers"] else record["value"] is not None


def mask(*fields: str, **more: Any) -> Transform[Any]:
    return MaskTransform(MaskSettings.model_validate({"fields": fields, **more}), SinkContext("g"))


MAKERS: dict[str, Callable[[], Transform[Any]]] = {
    "filter": lambda: FilterTransform(FilterSettings(expression="value.a || headers.a"), SinkContext("g")),
    "select": lambda: SelectTransform(
        SelectSettings(expression="{a: value.a, n: sum(value.b[])}", on_null="poison"), SinkContext("g")
    ),
    "mask": lambda: mask("value.a.b", "value.*.c", "headers.a", "key"),
    "mask, hashed": lambda: mask("value.a", "headers.*", hash_key=KEY),
    "a function": lambda: (made := make_transform("judge", judge))(made.settings_type(), SinkContext("g")),
}
every_transform = pytest.mark.parametrize("name", MAKERS)


def make(name: str) -> Transform[Any]:
    transform = MAKERS[name]()
    transform.open()
    return transform


def batch_of(drawn: list[Any]) -> Batch:
    records = [Record(orjson.dumps(value), key, content) for key, value, content in drawn]
    return make_batch(*records, decoded={"value": [value for _, value, _ in drawn]})


def run(transform: Transform[Any], batch: Batch) -> tuple[list[Any], set[int]]:
    """Return what goes on and which offsets are poison, as the engine isolates them."""
    dead: set[int] = set()
    while True:
        try:
            result = transform.apply(batch)
        except RecordErrors as error:
            dead |= {batch.messages[index].offset() or 0 for index in error.errors}
            batch = batch.select([index for index in range(len(batch)) if index not in error.errors])
        else:
            assert result.metadata == batch.metadata
            return list(result.rows("offset", "key", "value", "headers")), dead


def test_each_built_in_transform_is_here() -> None:
    installed = {each.name for each in Plugins().installed() if each.kind is TRANSFORM and each.origin == "sluiceway"}
    assert installed <= {name.partition(",")[0] for name in MAKERS}


@every_transform
@settings(max_examples=40, deadline=None)
@given(drawn=rows)
def test_records_keep_their_order_and_the_batch_that_came_stays_as_it_was(name: str, drawn: list[Any]) -> None:
    batch = batch_of(drawn)
    before = copy.deepcopy(list(batch.rows("offset", "key", "value", "headers")))
    goes_on, dead = run(make(name), batch)
    offsets = [offset for offset, *_ in goes_on]
    assert offsets == sorted(set(offsets) - dead)
    assert list(batch.rows("offset", "key", "value", "headers")) == before
    assert [message.value() for message in batch.messages] == [orjson.dumps(value) for _, value, _ in drawn]


@every_transform
@settings(max_examples=40, deadline=None)
@given(drawn=rows, cut=st.integers(0, 8))
def test_a_record_becomes_the_same_whatever_else_is_in_its_batch(name: str, drawn: list[Any], cut: int) -> None:
    batch, transform = batch_of(drawn), make(name)
    whole = run(transform, batch)
    cut = min(cut, len(batch))
    parts = [run(transform, batch.select(part)) for part in (range(cut), range(cut, len(batch)))]
    assert whole == ([row for goes_on, _ in parts for row in goes_on], parts[0][1] | parts[1][1])


@pytest.mark.invariant(12)
@pytest.mark.parametrize("name", [name for name in MAKERS if name not in ("filter", "a function")])
@settings(max_examples=40, deadline=None)
@given(drawn=rows)
def test_what_changes_values_makes_no_tombstone_and_unmakes_none(name: str, drawn: list[Any]) -> None:
    goes_on, dead = run(make(name), batch_of(drawn))
    assert {offset: value is None for offset, _, value, _ in goes_on} == {
        offset: value is None for offset, (_, value, _) in enumerate(drawn) if offset not in dead
    }


# Values of Avro.

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "iban", "type": ["null", "string"]},
    ],
}


class Orders:
    """Schemas of which each is that of an order."""

    def find(self, ids: Collection[SchemaId]) -> Mapping[SchemaId, Decoder | PoisonError]:
        return dict.fromkeys(ids, avro_decoder(json.dumps(ORDER), []))


def test_transforms_in_a_row_take_what_avro_has_decoded() -> None:
    orders = [
        {"id": n, "day": date(2026, 1, n), "price": Decimal(f"{n}.50"), "iban": "DE1" if n > 1 else None}
        for n in range(1, 5)
    ]
    batch = make_batch(*(framed(7, avro(ORDER, order)) for order in orders), None)
    Screen(value_format=Format.AVRO, schemas=Orders()).look(batch)
    keep = FilterTransform(
        FilterSettings(expression="value.day >= '2026-01-02' && to_number(value.price) < `4`"), SinkContext("g")
    )
    keep.open()
    kept = keep.apply(batch)
    assert list(kept.column("value")) == orders[1:3], "a filter leaves the values as they were decoded"
    hide = mask("value.iban")
    hide.open()
    assert list(hide.apply(kept).column("value")) == [order | {"iban": "***"} for order in orders[1:3]]
    shape = SelectTransform(
        SelectSettings(expression="{id: value.id, price: value.price}", on_null="poison"), SinkContext("g")
    )
    shape.open()
    assert list(shape.apply(kept).column("value")) == [{"id": 2, "price": "2.50"}, {"id": 3, "price": "3.50"}]
