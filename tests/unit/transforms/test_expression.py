"""Expressions of filter and select: what they see, what is refused at start, and what one record can do to them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import jmespath
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import PoisonError, RecordErrors
from connector.api.arrow_fields import AvroRecord
from connector.testing import Record, make_batch
from sinks.json_lines import to_lines
from transforms.expression import FIELDS, Expression, is_true

if TYPE_CHECKING:
    from connector import Batch

scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3)
names = st.sampled_from(["a", "b", "c", "d.e"])
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
EXPRESSIONS = [
    "value",
    "value.a",
    "value.a.b || value.b",
    "value.a[].b",
    "value.*.a",
    "value.a[?b > `1`].c",
    "{x: value.a, y: [value.b, key]}",
    "value.a == `1` && value.b != 'x'",
    "!(value.a)",
    "!value && !!key",
    "value.a[1:]",
    "not_null(value.a, value.b, 'none')",
    "@",
    "*",
    "value | [0]",
]


def json_batch(*values: Any, **more: Any) -> Batch:
    return make_batch(*(Record(orjson.dumps(value)) for value in values), decoded={"value": list(values), **more})


@settings(deadline=None)
@given(values=st.lists(documents, max_size=4), expression=st.sampled_from(EXPRESSIONS))
def test_the_result_is_that_of_jmespath_over_the_whole_record(values: list[Any], expression: str) -> None:
    opens = "value." in expression or "value[" in expression
    batch = json_batch(*(None if opens and isinstance(value, str) else value for value in values))
    lines = [orjson.loads(line) for line in to_lines(batch, "record").splitlines()]
    expected = [jmespath.search(expression, {**line, "headers": dict(line["headers"])}) for line in lines]
    found = Expression(expression).search(batch)
    if expression == "*":  # the values of an object have no order
        found, expected = ([sorted(map(str, each)) for each in lists] for lists in (found, expected))
    assert found == expected


def test_a_record_is_seen_as_stdout_shows_it_with_headers_as_an_object() -> None:
    headers = [("a", b"1"), ("b", None), ("a", b"2"), ("c", b"\xff")]
    batch = make_batch(Record(b"v", b"\xff", headers), Record(None, None, (), None))
    assert Expression("@").search(batch) == [
        {
            "topic": "orders",
            "partition": 0,
            "offset": 0,
            "timestamp": "2025-12-31T23:59:59.123Z",
            "key": {"base64": "/w=="},
            "value": "v",
            "headers": {"a": "2", "b": None, "c": {"base64": "/w=="}},
        },
        {**dict.fromkeys(FIELDS), "topic": "orders", "partition": 0, "offset": 1, "headers": {}},
    ]
    assert Expression("headers.a").search(batch) == ["2", None]
    assert Expression("'same'").search(batch) == ["same", "same"]


def test_values_of_avro_are_seen_as_json_has_them() -> None:
    value = {
        "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "price": Decimal("12.50"),
        "id": UUID(int=7),
        "raw": b"text",
    }
    batch = make_batch(b"x", decoded={"value": [value]})
    batch.avro_records = {"value": [AvroRecord({"name": "r", "fields": []}, {})]}
    (found,) = Expression("value").search(batch)
    assert found == {
        "day": "2026-01-31",
        "at": "2026-01-31T12:00:00Z",
        "price": "12.50",
        "id": "00000000-0000-0000-0000-000000000007",
        "raw": "text",
    }
    assert Expression("value.day >= '2026-01-01' && to_number(value.price) > `12`").search(batch) == [True]


@pytest.mark.parametrize("result", [None, False, "", [], {}, 0, 0.0, True, "x", [None], {"a": None}])
def test_truth_is_that_of_jmespath(result: Any) -> None:
    assert is_true(result) is (jmespath.search("result && `true`", {"result": result}) is True)


def test_matches_needs_the_whole_text_and_null_does_not_match() -> None:
    batch = json_batch({"a": "paid"}, {"a": "paid out"}, {"a": None}, {})
    assert Expression("matches(value.a, 'pai.')").search(batch) == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("value.amount > 10", "unexpected '10' at column 16; a number is written in backquotes"),
        ("value.", "it ends too early"),
        ("contains(value", "it ends too early"),
        ("", "cannot be empty"),
        ("value.a == 'x", "Unclosed ' delimiter at column 12"),
        ("value # x", "at column 7"),
        ("status == 'paid'", "reads 'status', which is no field of a record; there are topic, partition"),
        ('value.status == "paid"', "reads 'paid', which is no field of a record"),
        ("values.a", "did you mean value?"),
        ("value.a || colour", "reads 'colour'"),
        ("to_upper(value)", "calls to_upper(), which is no function of JMESPath"),
        ("value.items[?start_with(@, 'a')]", "did you mean starts_with?"),
        ("starts_with(value)", "calls starts_with() with 1 argument(s); it takes 2"),
        ("merge()", "it takes at least 1"),
        ("length(key, value)", "it takes 1"),
        ("!value.a", "has a ! before a path, which takes only the first name; write !(value.name)"),
        ("key && value.items[?!a.b]", "has a ! before a path"),
        ("!value[]", "has a ! before a path"),
        ("matches(key, value)", "a pattern that is not written out"),
        ("matches(key, '[')", "which is no regular expression: unterminated character set"),
        ("(" * 2000 + "value" + ")" * 2000, "is nested too deeply"),
        ("value" + " " * 5000, "has 5005 characters; write 4096 at most"),
    ],
)
def test_what_cannot_work_whatever_the_record_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Expression(text)


@pytest.mark.parametrize("text", ["value.items[?sku == 'a' && price > `1`]", "value.{status: status, n: length(@)}"])
def test_fields_of_a_part_of_the_record_are_free(text: str) -> None:
    Expression(text)


def errors_of(text: str, batch: Batch) -> dict[int, str]:
    with pytest.raises(RecordErrors) as refused:
        Expression(text).search(batch)
    assert all(isinstance(error, PoisonError) for error in refused.value.errors.values())
    return {index: str(error) for index, error in refused.value.errors.items()}


def test_records_that_an_expression_cannot_take_are_named_and_not_quoted() -> None:
    batch = json_batch({"a": [1, 2]}, {"a": "SECRET"}, {"a": ["SECRET", 1]}, {"a": None})
    found = errors_of("sum(value.a)", batch)
    assert sorted(found) == [1, 2, 3]
    assert found[1] == "sum() takes array-number, and was given string"
    assert errors_of("value.a > `1`", json_batch({"a": "SECRET"})) == {
        0: "the expression fails with TypeError: values of these types do not go together"
    }
    assert "SECRET" not in str(found)


@pytest.mark.parametrize("expression", ["value.a", "value.a == 'x' || key", "value[0]", "value.*", "length(value.a[])"])
def test_a_part_of_text_or_bytes_is_poison_and_not_null_for_ever(expression: str) -> None:
    found = errors_of(expression, make_batch(b'{"a": [1]}', b"\xff"))
    assert found[0].startswith("the value is bytes, and the expression reads a part of it. Set CONNECTOR_VALUE_FORMAT")
    assert sorted(found) == [0, 1]
    assert "is text" in errors_of(expression, make_batch(b"x", decoded={"value": ["x"]}))[0]
    assert Expression("value").search(make_batch(b"x")) == ["x"]


def test_a_timestamp_that_no_calendar_has_is_poison() -> None:
    with pytest.raises(PoisonError, match="9999"):
        Expression("timestamp").search(make_batch(Record(timestamp_ms=10**17)))
