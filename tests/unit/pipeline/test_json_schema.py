"""JSON payloads that are held to a schema: what breaks it is refused by the schema's words, not by the record's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connector.pipeline.json_schema import json_schema_decoder

ADDRESS = {"$id": "http://shop.example/address.json", "type": "object", "properties": {"city": {"type": "string"}}}
CUSTOMER = {
    "$id": "http://shop.example/customer.json",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "address": {"$ref": "address.json"},
        "friends": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["id"],
    "additionalProperties": False,
}
SECRET = "Adele-4711"


def _decode(value: Any, schema: Any = CUSTOMER, references: tuple[tuple[str, Any], ...] = ()) -> Any:
    decoder = json_schema_decoder(json.dumps(schema), [(name, json.dumps(each)) for name, each in references])
    return decoder.decode(value if isinstance(value, bytes) else json.dumps(value).encode())


def test_a_value_that_keeps_to_its_schema_comes_out_as_it_is() -> None:
    value = {"id": 1, "name": "x", "friends": [{"id": 2}], "address": {"city": "X"}}
    assert _decode(value, references=(("address.json", ADDRESS),)) == value
    assert _decode(b"null", True) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"name": "x"}, r"at \$: 'id' is a required property"),
        ({"id": SECRET}, r"at \$\.id: type integer"),
        ({"id": 1, "name": SECRET}, r"at \$\.name: pattern \^\[a-z\]\+\$"),
        ({"id": 1, SECRET: 1}, r"at \$: additionalProperties False"),
        ({"id": 1, "friends": [{"id": 1}, {"id": SECRET}]}, r"at \$\.friends\[1\]\.id: type integer"),
        ([SECRET], r"at \$: type object"),
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
    ],
)
def test_what_breaks_the_schema_is_named_by_field_and_rule_and_no_data_is_told(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        _decode(value)
    assert SECRET not in str(refused.value)


def test_a_reference_is_found_by_the_name_that_it_was_registered_with_relative_or_whole() -> None:
    bad = {"id": 1, "address": {"city": 5}}
    for name in ("address.json", "http://shop.example/address.json"):
        with pytest.raises(ValueError, match=r"at \$\.address\.city: type string"):
            _decode(bad, references=((name, ADDRESS),))


def test_a_reference_that_was_not_registered_is_not_fetched_from_anywhere() -> None:
    with pytest.raises(ValueError, match=r"refers to address\.json"):
        _decode({"id": 1, "address": {}})


@pytest.mark.parametrize("draft", ["draft-07", "2020-12"])
def test_a_schema_may_refer_to_the_drafts_themselves(draft: str) -> None:
    url = (
        "http://json-schema.org/draft-07/schema#"
        if draft == "draft-07"
        else f"https://json-schema.org/draft/{draft}/schema"
    )
    schema = {"$schema": url, "$ref": url}
    assert _decode({"type": "object"}, schema) == {"type": "object"}
    with pytest.raises(ValueError, match="type"):
        _decode({"type": 5}, schema)


def test_nesting_without_end_is_refused() -> None:
    value = b'{"id":1,"friends":[' * 400 + b'{"id":1}' + b"]}" * 400
    with pytest.raises(ValueError, match="nested too deeply"):
        _decode(value)


def test_a_long_rule_is_shown_shortened() -> None:
    with pytest.raises(ValueError, match="enum") as refused:
        _decode("x", {"enum": [f"symbol-{number}" for number in range(1000)]})
    assert len(str(refused.value)) < 200
