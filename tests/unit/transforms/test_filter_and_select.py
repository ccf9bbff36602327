"""`filter` leaves out, `select` reshapes; positions, order and tombstones stay what they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from connector import Batch, RecordErrors, SinkContext
from connector.testing import Record, make_batch
from tests.unit.transforms.test_expression import documents, json_batch
from transforms.filter import FilterSettings, FilterTransform
from transforms.select import SelectSettings, SelectTransform


def filtered(batch: Batch, expression: str) -> list[int]:
    transform = FilterTransform(FilterSettings(expression=expression), SinkContext("g"))
    transform.open()
    result = transform.apply(batch)
    assert result.metadata == batch.metadata  # the position covers what was left out (INV-8)
    return [*result.column("offset")]


def selected(batch: Batch, **more: Any) -> list[Any]:
    transform = SelectTransform(SelectSettings.model_validate(more), SinkContext("g"))
    transform.open()
    result = transform.apply(batch)
    assert result.metadata == batch.metadata
    return [*result.column("value")]


@settings(deadline=None)
@given(values=st.lists(documents.filter(lambda value: not isinstance(value, str)), max_size=8))
def test_a_filter_and_its_opposite_divide_the_records_between_them_in_order(values: list[Any]) -> None:
    batch = json_batch(*values)
    kept, dropped = filtered(batch, "value.a == `1`"), filtered(batch, "!(value.a == `1`)")
    assert sorted(kept + dropped) == list(range(len(values)))
    assert (kept, dropped) == (sorted(kept), sorted(dropped))


def test_a_tombstone_is_a_record_whose_value_is_null() -> None:
    batch = json_batch({"a": 1}, None, {"a": 2})
    assert filtered(batch, "value.a == `1`") == [0]
    assert filtered(batch, "value.a == `1` || value == `null`") == [0, 1]


def test_key_headers_and_place_can_be_asked_for() -> None:
    batch = make_batch(Record(b"1", b"eu-1"), Record(b"2", b"us-1", [("test", b"yes")]), Record(b"3", None))
    assert filtered(batch, "starts_with(not_null(key, ''), 'eu-')") == [0]
    assert filtered(batch, "headers.test != 'yes'") == [0, 2]
    assert filtered(batch, "offset >= `1` && topic == 'orders' && timestamp > '2025'") == [1, 2]
    assert filtered(batch, "matches(value, '[12]')") == [0, 1]


def test_a_result_becomes_the_value_and_the_batch_that_came_stays_as_it_was() -> None:
    batch = json_batch({"id": 7, "user": {"name": "Ada"}}, [1], 5, False, key=["k0", "k1", "k2", "k3"])
    assert selected(batch, expression="value.user.name || value || `0`") == ["Ada", [1], 5, 0]
    assert selected(batch, expression="{id: value.id, key: key}")[0] == {"id": 7, "key": "k0"}
    assert batch.column("value")[0] == {"id": 7, "user": {"name": "Ada"}}


@settings(deadline=None)
@given(values=st.lists(documents.filter(lambda value: not isinstance(value, str)), max_size=8))
def test_a_select_makes_no_tombstone_and_unmakes_none(values: list[Any]) -> None:
    batch = json_batch(*values)
    results = selected(batch, expression="{a: value.a}")
    assert [value is None for value in results] == [value is None for value in values]
    nulls = {n for n, value in enumerate(values) if value is not None and selected_or_none(value) is None}
    if nulls:
        with pytest.raises(RecordErrors) as refused:
            selected(batch, expression="value.a")
        assert refused.value.errors.keys() == nulls
        assert "would make a tombstone" in str(refused.value.errors[min(nulls)])
    made = selected(batch, expression="value.a", on_null="tombstone")
    assert made == [selected_or_none(value) for value in values]


def selected_or_none(value: Any) -> Any:
    return value.get("a") if isinstance(value, dict) else None


def test_an_expression_is_not_asked_about_tombstones() -> None:
    assert selected(json_batch({"a": [1, 2]}, None), expression="sum(value.a)") == [3, None]


@pytest.mark.parametrize("model", [FilterSettings, SelectSettings])
def test_an_expression_that_cannot_work_is_refused_with_the_settings(model: Any) -> None:
    with pytest.raises(ValidationError, match="unexpected '10' at column 11"):
        model(expression="value.a > 10")
