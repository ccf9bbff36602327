"""A real schema registry, and records that the client library's own serializers have written."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from connector import TransientError
from connector.pipeline.decode import Decoded, Format, PendingError, UndecodableError, UnknownSchemaError, decode
from connector.pipeline.registry import Registry, RegistrySettings
from connector.telemetry.metrics import Metrics
from connector.testing import make_batch
from tests.support.connector import ConnectorProcess
from tests.support.engine import eventually
from tests.support.group import group_settings
from tests.support.oracle import wait_until_committed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from connector import PoisonError
    from tests.support.kafka import Kafka

pytestmark = pytest.mark.registry

DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#"}
MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop",
    "fields": [
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "currency", "type": "string"},
    ],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "shop.Money"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
LATER_ORDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
VALUE = {
    "id": 7,
    "price": {"amount": Decimal("12.50"), "currency": "EUR"},
    "at": datetime(2026, 1, 31, 1, 2, 3, 4000, UTC),
}


@pytest.fixture
def client(registry: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry, "timeout": 10}) as client:
        yield client


@contextmanager
def _schemas(url: str, grace: float = 30) -> Iterator[Registry]:
    made = Registry(RegistrySettings({"url": url}, unknown_grace=grace), Metrics())
    try:
        yield made
    finally:
        made.close()
        made._thread.join(10)


def _decode(schemas: Registry, format_: Format, *values: bytes | None) -> tuple[Sequence[Any], dict[int, PoisonError]]:
    found: list[Decoded] = []

    def has_come() -> bool:
        try:
            found.append(decode(make_batch(*values), "value", format_, schemas))
        except PendingError:
            return False
        return True

    eventually(has_come, "the registry has answered")
    return found[-1].values, found[-1].problems


def _subject() -> str:
    return f"subject-{uuid.uuid4().hex[:12]}"


def _register_orders(client: SchemaRegistryClient) -> tuple[str, list[Schema]]:
    money, orders = _subject(), _subject()
    client.register_schema(money, Schema(json.dumps(MONEY), "AVRO"))
    references = [SchemaReference("shop.Money", money, 1)]
    versions = [Schema(json.dumps(each), "AVRO", references) for each in (ORDER, LATER_ORDER)]
    for version in versions:
        client.register_schema(orders, version)
    return orders, versions


def _write(client: SchemaRegistryClient, schema: Schema, subject: str, value: Any) -> bytes:
    conf = {"auto.register.schemas": False, "subject.name.strategy": lambda *_: subject}
    serializer = AvroSerializer(client, schema, conf=conf)
    written = serializer(value, SerializationContext("orders", MessageField.VALUE))
    assert isinstance(written, bytes)
    return written


def test_avro_of_an_evolving_schema_with_references_is_what_the_client_itself_reads(
    registry: str, client: SchemaRegistryClient
) -> None:
    subject, (first, second) = _register_orders(client)
    later = {**VALUE, "note": "ä"}
    written = [_write(client, first, subject, VALUE), _write(client, second, subject, later)]
    with _schemas(registry) as schemas:
        values, problems = _decode(schemas, Format.AVRO, *written, None, written[0][:-1])
    assert (values, list(problems)) == ([VALUE, later, None, None], [3])
    assert str(problems[3]).endswith("it ends too early in the field at")
    own = AvroDeserializer(client)
    assert [own(each) for each in written] == values[:2]


def test_json_with_a_schema_and_references_is_validated(registry: str, client: SchemaRegistryClient) -> None:
    money, orders = _subject(), _subject()
    client.register_schema(money, Schema(json.dumps({**DRAFT, "type": "object", "required": ["cents"]}), "JSON"))
    schema = {
        **DRAFT,
        "title": "O",
        "type": "object",
        "properties": {"price": {"$ref": "money.json"}},
        "required": ["id"],
    }
    registered = Schema(json.dumps(schema), "JSON", [SchemaReference("money.json", money, 1)])
    client.register_schema(orders, registered)
    conf = {"auto.register.schemas": False, "subject.name.strategy": lambda *_: orders, "validate": False}
    serializer = JSONSerializer(registered, client, conf=conf)
    context = SerializationContext("orders", MessageField.VALUE)
    good, bad = {"id": 1, "price": {"cents": 5}}, {"id": 2, "price": {}}
    written = [serializer(each, context) for each in (good, bad)]
    with _schemas(registry) as schemas:
        values, problems = _decode(schemas, Format.JSON_SCHEMA, *written)
        assert (values, list(problems)) == ([good, None], [1])
        assert "at $.price: 'cents' is a required property" in str(problems[1])
        _, problems = _decode(schemas, Format.AVRO, written[0])
        assert "is of the format json-schema" in str(problems[0])


def test_protobuf_is_told_to_be_what_it_is(registry: str, client: SchemaRegistryClient) -> None:
    schema_id = client.register_schema(_subject(), Schema('syntax = "proto3"; message M { int32 a = 1; }', "PROTOBUF"))
    with _schemas(registry) as schemas:
        _, problems = _decode(schemas, Format.AVRO, b"\x00" + schema_id.to_bytes(4, "big") + b"\x00\x08\x01")
    assert isinstance(problems[0], UndecodableError)
    assert "is of the type PROTOBUF" in str(problems[0])


@pytest.mark.parametrize("schema_id", [2_000_000_000, 4_294_967_295])
def test_an_id_that_it_does_not_have_is_unknown_first_for_now_and_then_for_good(registry: str, schema_id: int) -> None:
    value = b"\x00" + schema_id.to_bytes(4, "big") + b"payload"
    with _schemas(registry) as schemas, pytest.raises(TransientError, match=f"does not have schema {schema_id}"):
        _decode(schemas, Format.AVRO, value)
    with _schemas(registry, grace=0) as schemas:
        _, problems = _decode(schemas, Format.AVRO, value)
        assert isinstance(problems[0], UnknownSchemaError)


def test_a_path_that_is_not_its_api_is_no_unknown_schema(registry: str) -> None:
    url = registry.rpartition("/")[0] + "/v77"
    with _schemas(url, grace=0) as schemas:

        def is_told() -> bool:
            with pytest.raises(TransientError) as failed:
                schemas.find([1])
            return "HTTP 404, which is not its word for a missing schema" in str(failed.value)

        eventually(is_told, "its answer, for which a cold server takes seconds")


@pytest.mark.kafka
@pytest.mark.timeout(180)
def test_a_run_writes_avro_keys_and_values_and_keeps_what_is_none_as_dead_letters(
    kafka: Kafka, registry: str, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    subject, (first, second) = _register_orders(client)
    keys = _subject()
    key_schema = Schema('{"type": "string"}', "AVRO")
    client.register_schema(keys, key_schema)
    topic, letters = kafka.create_topic(), kafka.create_topic()
    written = [
        _write(client, first, subject, VALUE),
        _write(client, second, subject, {**VALUE, "note": "n"}),
        b"no avro",
        None,
    ]
    kafka.produce(topic, written, keys=[_write(client, key_schema, keys, f"key-{number}") for number in range(4)])
    settings = {
        **group_settings(kafka, "consumer", f"avro-{topic}", [topic]),
        "CONNECTOR_KEY_FORMAT": "avro",
        "CONNECTOR_VALUE_FORMAT": "avro",
        "CONNECTOR_REGISTRY_URL": registry,
        "CONNECTOR_ON_POISON": "dlq",
        "CONNECTOR_DLQ_TOPIC": letters,
        "CONNECTOR_SINK": "file",
        "CONNECTOR_SINK_PATH": str(tmp_path / "out.jsonl"),
    }
    with ConnectorProcess("copy", tmp_path, settings) as copy:
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        assert copy.terminate() == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    as_json = {"id": 7, "price": {"amount": "12.50", "currency": "EUR"}, "at": "2026-01-31T01:02:03.004000Z"}
    assert [(line["key"], line["value"]) for line in lines] == [
        ("key-0", as_json),
        ("key-1", {**as_json, "note": "n"}),
        ("key-3", None),
    ]
    assert kafka.end_offsets(letters) == {0: 1}
    assert len({event["schema"] for event in copy.events("schema_found")}) == 3
