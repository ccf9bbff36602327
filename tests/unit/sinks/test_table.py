"""What a record becomes in a table."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from connector import PoisonError
from sinks.table import RECORD_FIELDS, Column, TableLayout, TableSettings, parse_columns
from tests.unit.sinks.sink_batches import Record, make_batch


def test_by_default_there_is_a_column_for_each_field_and_a_repeated_record_has_its_own_key() -> None:
    layout = TableLayout(TableSettings())
    assert layout.columns == tuple(Column(field, field) for field in RECORD_FIELDS)
    assert layout.keys == ("topic", "partition", "offset")


def test_a_mapping_takes_fields_of_the_record_and_of_its_json_value_and_key() -> None:
    assert parse_columns(" id:id, name : user.name,at:@offset,k:@key,of:@key.user.id") == (
        Column("id", "value", ("id",)),
        Column("name", "value", ("user", "name")),
        Column("at", "offset"),
        Column("k", "key"),
        Column("of", "key", ("user", "id")),
    )


@pytest.mark.parametrize(
    "columns", ["", "id", "id:", ":id", "a:b:c", "a:b..c", "a:@nothing", "a:b,a:c", "a:b,,", "a:@key.", "a:@topic.b"]
)
def test_a_mapping_of_another_form_is_refused(columns: str) -> None:
    with pytest.raises(ValidationError):
        TableSettings(columns=columns)


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        ({"columns": "id:id"}, "Name columns of id, or set CONNECTOR_SINK_MODE=insert"),
        ({"columns": "id:id", "key_columns": "no"}, "names no, which CONNECTOR_SINK_COLUMNS does not have"),
        ({"key_columns": ""}, "is empty"),
        ({"primary_key": False}, "Set CONNECTOR_SINK_MODE=insert"),
        ({"primary_key": False, "mode": "ignore"}, "Set CONNECTOR_SINK_MODE=insert"),
    ],
)
def test_settings_that_leave_no_key_to_find_a_row_by_are_refused(settings: dict[str, object], way_out: str) -> None:
    (problem,) = TableSettings.model_validate(settings).problems(1)
    assert way_out in problem


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"columns": "id:id,v:@value", "key_columns": "id"},
        {"primary_key": False, "mode": "insert"},
        {"primary_key": False, "mode": "insert", "columns": "id:id"},
    ],
)
def test_settings_that_fit_together_are_taken(settings: dict[str, object]) -> None:
    assert TableSettings.model_validate(settings).problems(1) == []


KEYED = {"mode": "upsert", "columns": "topic:@topic,p:@partition,id:@key.id,k:@key,v:@value,n:name"}


@pytest.mark.parametrize("keys", ["id", "k", "topic,k", "id,k"])
def test_a_tombstone_can_delete_where_the_key_of_a_record_tells_its_row(keys: str) -> None:
    settings = TableSettings.model_validate({**KEYED, "key_columns": keys})
    assert (settings.problems(1), settings.delete_problems()) == ([], [])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "KEY_COLUMNS=topic,partition,offset has partition, offset, and only its key tells which row"),
        ({**KEYED, "key_columns": "id,n"}, "has n, and only its key tells which row a tombstone deletes"),
        ({**KEYED, "key_columns": "p,k"}, "has p, and only its key"),
        ({**KEYED, "key_columns": "v"}, "has v, and only its key"),
        ({**KEYED, "key_columns": "topic"}, "KEY_COLUMNS=topic takes nothing from the key"),
        ({**KEYED, "key_columns": "id", "mode": "ignore"}, "Set CONNECTOR_SINK_MODE=upsert, or set CONNECTOR_TOMB"),
        ({"mode": "insert", "primary_key": False}, "CONNECTOR_SINK_MODE=insert do not. Set CONNECTOR_SINK_MODE=upsert"),
    ],
)
def test_settings_under_which_a_tombstone_does_not_tell_its_row_are_refused(
    settings: dict[str, object], problem: str
) -> None:
    (found,) = TableSettings.model_validate(settings).delete_problems()
    assert problem in found
    assert found.endswith("or set CONNECTOR_TOMBSTONES to write, ignore or fail.")


LAYOUT = TableLayout(TableSettings(columns="id:id,name:user.name", key_columns="id"))


def test_a_missing_field_is_null_and_a_tombstone_has_no_fields() -> None:
    batch = make_batch(b'{"id": 1, "user": {"name": "a"}}', b'{"id": 2, "user": 3}', b'{"id": 3}', None)
    assert LAYOUT.json_columns(batch) == {"id": [1, 2, 3, None], "name": ["a", None, None, None]}


def test_a_value_that_a_decoder_has_read_is_not_read_again() -> None:
    batch = make_batch(b"\x00avro", decoded={"value": [{"id": 1}]})
    assert LAYOUT.json_columns(batch)["id"] == [1]


@pytest.mark.parametrize("key", [b"", b"{", b"[1]"])
def test_a_key_that_is_no_json_object_is_poison_and_names_the_record(key: bytes) -> None:
    layout = TableLayout(TableSettings(columns="id:@key.id", key_columns="id"))
    with pytest.raises(PoisonError, match=r"orders\[3\]@11 has a key that is"):
        layout.json_columns(make_batch(Record(key=b"{}"), Record(key=key)))


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"[1]", b"1", b'"text"'])
def test_a_value_that_is_no_json_object_is_poison_and_names_the_record(value: bytes) -> None:
    with pytest.raises(PoisonError, match=r"orders\[3\]@11 has a value that is"):
        LAYOUT.json_columns(make_batch(b"{}", value))


def test_a_key_column_without_a_value_is_poison_and_names_the_record() -> None:
    batch = make_batch(Record(b'{"id": 1}'), Record(b'{"name": "a"}'))
    with pytest.raises(PoisonError, match=r"orders\[3\]@11 has no value for the key column 'id'"):
        LAYOUT.check_keys(batch, dict(LAYOUT.json_columns(batch)))
