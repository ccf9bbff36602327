"""`mask` hides what its paths name, wherever it is, and changes nothing else."""

from __future__ import annotations

import copy
import hashlib
import hmac
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from connector import Batch, RecordErrors, SinkContext
from connector.testing import Record, make_batch
from tests.unit.transforms.test_expression import documents, json_batch
from transforms.mask import MaskSettings, MaskTransform

KEY = "0123456789abcdef"


def masked(batch: Batch, fields: str, **more: Any) -> Batch:
    model = MaskSettings.model_validate({"fields": tuple(fields.split(",")), **more})
    transform = MaskTransform(model, SinkContext("g"))
    transform.open()
    result = transform.apply(batch)
    assert result.metadata == batch.metadata
    return result


def hash_of(data: bytes) -> str:
    return hmac.new(KEY.encode(), data, hashlib.sha256).hexdigest()


def ends(value: Any, path: tuple[str, ...]) -> list[Any]:
    """Return what is at the end of a path through objects, and through arrays wherever they are; nothing of nulls."""
    if isinstance(value, list) and path:
        return [end for each in value for end in ends(each, path)]
    if path:
        return ends(value[path[0]], path[1:]) if isinstance(value, dict) and path[0] in value else []
    return [] if value is None else [value]


def without(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, list) and path:
        return [without(each, path) for each in value]
    if path and isinstance(value, dict) and path[0] in value:
        return value | {path[0]: without(value[path[0]], path[1:])}
    return value if path else None


@settings(deadline=None)
@given(values=st.lists(documents.filter(lambda value: not isinstance(value, str)), max_size=5), data=st.data())
def test_all_that_a_path_reaches_is_replaced_and_nothing_else_is_changed(
    values: list[Any], data: st.DataObject
) -> None:
    path = tuple(data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3)))
    before = copy.deepcopy(values)
    result = list(masked(json_batch(*values), ".".join(["value", *path]), text="MASKED").column("value"))
    assert values == before, "the batch may come again"
    for old, new in zip(values, result, strict=True):
        assert ends(new, path) == ["MASKED"] * len(ends(old, path))
        assert without(new, path) == without(old, path)


@settings(deadline=None)
@given(value=documents.filter(lambda value: value is not None))
def test_equal_values_have_equal_hashes_whatever_the_order_of_their_fields(value: Any) -> None:
    shuffled = dict(reversed(value.items())) if isinstance(value, dict) else value
    first, second = masked(json_batch([value], [shuffled]), "value[*]", hash_key=KEY).column("value")
    assert first == second
    assert len(first[0]) == 64


def test_a_hash_is_that_of_the_text_the_bytes_or_the_json_so_that_it_can_be_made_elsewhere() -> None:
    batch = json_batch({"a": "größe", "b": 5, "c": {"y": 1, "x": True}}, key=[b"k"])
    result = masked(batch, "value.a,value.b,value.c,key", hash_key=KEY)
    assert result.column("value") == [
        {"a": hash_of("größe".encode()), "b": hash_of(b"5"), "c": hash_of(b'{"x":true,"y":1}')}
    ]
    assert result.column("key") == [hash_of(b"k")]


def test_null_stays_null_and_a_missing_field_stays_missing() -> None:
    values = [{"a": None}, {}, {"a": {"b": None}}, None, 5, [], [None]]
    for fields in ("value.a.b", "value.*.b", "value.a[*].b"):
        assert masked(json_batch(*values), fields).column("value") == values
    assert masked(json_batch(None, 0, ""), "value").column("value") == [None, "***", "***"]


def test_arrays_are_gone_through_and_at_the_end_they_go_as_a_whole_unless_each_element_is_meant() -> None:
    value = {"cards": [{"number": "1"}, {"number": "2"}, [{"number": "3"}]], "tags": ["x", None], "one": "y"}
    for fields in ("value.cards.number", "value.cards[*].number", "value.cards[].number"):
        (result,) = masked(json_batch(value), fields).column("value")
        assert result["cards"] == [{"number": "***"}, {"number": "***"}, [{"number": "***"}]]
    (result,) = masked(json_batch(value), "value.tags").column("value")
    assert result["tags"] == "***"
    (result,) = masked(json_batch(value), "value.tags[*],value.one[*]").column("value")
    assert (result["tags"], result["one"]) == (["***", None], "***")


def test_odd_names_are_quoted_and_a_star_is_any_name() -> None:
    value = {"a.b": 1, "c d": {"x": 2, "y": 3}, "ä-1": 4}
    (result,) = masked(json_batch(value), 'value."a.b",value."c d".*,value.ä-1').column("value")
    assert result == {"a.b": "***", "c d": {"x": "***", "y": "***"}, "ä-1": "***"}


def test_headers_stay_bytes_with_order_duplicates_and_nulls() -> None:
    headers = [("token", b"\xff"), ("a", b"1"), ("token", None), ("token", b"")]
    batch = make_batch(Record(b"v", b"k", headers), Record(b"v"))
    result = masked(batch, "headers.token")
    assert result.column("headers") == [[("token", b"***"), ("a", b"1"), ("token", None), ("token", b"***")], []]
    assert (result.column("key"), result.column("value")) == ([b"k", b"key"], [b"v", b"v"])
    assert [name for name, content in masked(batch, "headers.*").column("headers")[0] if content == b"***"] == [
        "token",
        "a",
        "token",
    ]
    assert batch.column("headers")[0] == headers


def test_a_key_as_a_whole_is_masked_whatever_its_format() -> None:
    batch = make_batch(Record(b"v", b"k"), Record(b"v", None), Record(b"v", b""))
    assert masked(batch, "key", text="-").column("key") == ["-", None, "-"]


def test_text_and_bytes_get_through_no_mask_of_their_fields() -> None:
    for decoded in ({}, {"value": ["{}", "x", None]}):
        with pytest.raises(RecordErrors) as refused:
            masked(make_batch(b'{"iban": "DE1"}', b"\xff", None, decoded=decoded), "value.iban")
        assert sorted(refused.value.errors) == [0, 1]
        assert "Set CONNECTOR_VALUE_FORMAT to json" in str(refused.value.errors[0])
        assert "DE1" not in str(refused.value.errors[0])


def test_what_is_nested_too_deeply_is_poison_and_no_crash() -> None:
    deep: Any = {"a": "x"}
    for _ in range(3000):
        deep = [deep]
    for batch, more in ((json_batch_of(deep), {}), (json_batch_of({"a": deep}), {"hash_key": KEY})):
        with pytest.raises(RecordErrors) as refused:
            masked(batch, "value.a", **more)
        assert list(refused.value.errors) == [0]


def json_batch_of(value: Any) -> Batch:
    return make_batch(b"x", decoded={"value": [value]})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("iban", "'iban', which begins with none of key, value and headers; write value.iban"),
        ("values.iban", "begins with none of key"),
        ("value.", "which is no path from column 6 on"),
        ("value..a", "from column 6 on"),
        ("value.a[0]", "from column 8 on"),
        ('value."a', "from column 6 on"),
        ("value.a b", "from column 8 on"),
        ("headers", "write headers.name"),
        ("headers.a.b", "write headers.name"),
        ("headers[*]", "write headers.name"),
    ],
)
def test_a_path_that_is_none_is_refused_at_start_with_the_place(fields: str, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        MaskSettings.model_validate({"fields": (fields,)})
    assert words in str(refused.value)


def test_a_key_that_can_be_guessed_is_refused_and_no_key_is_shown() -> None:
    with pytest.raises(ValidationError, match="use 16 random characters or more"):
        MaskSettings.model_validate({"fields": ("value.a",), "hash_key": "short"})
    model = MaskSettings.model_validate({"fields": ("value.a",), "hash_key": KEY})
    assert KEY not in repr(model)
    with pytest.raises(ValidationError, match="names nothing"):
        MaskSettings.model_validate({"fields": ()})


def test_a_masked_batch_is_written_as_json() -> None:
    assert orjson.dumps(masked(json_batch({"a": 1}), "value.a").column("value")) == b'[{"a":"***"}]'
