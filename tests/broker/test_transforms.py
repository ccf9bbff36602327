"""The built-in transforms and a function in a row under `connector run`: what is written, left out, dead, and why."""

from __future__ import annotations

import hashlib
import hmac
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.connector import ConnectorProcess
from tests.support.group import group_settings
from tests.support.oracle import wait_until_committed
from tests.support.scenario import TOKEN, ask, metric

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import Message

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

COUNT = 200
NOT_JSON, FREE, FORBIDDEN, TOMBSTONE = 20, 51, 77, 101
KEY = "0123456789abcdef0123"
RULES = """
def keep(record):
    value = record["value"]
    if value is None:
        return True
    if value["id"] == 77:
        raise LookupError("nobody knows 77")
    value["seen"] = value.get("seen", 0) + 1
    return record if value["id"] % 7 else False
"""


def value_of(number: int) -> bytes | None:
    if number == TOMBSTONE:
        return None
    if number == NOT_JSON:
        return b"{"
    price = "free" if number == FREE else 1.5
    value = {"id": number, "test": number % 10 == 0, "user": {"email": f"{number}@example.org", "name": "Ada"}}
    return json.dumps({**value, "lines": [{"price": price}, {"price": 2}]}).encode()


def hash_of(text: str) -> str:
    return hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest()


def messages(kafka: Kafka, topic: str) -> list[Message[Any, Any]]:
    count = kafka.end_offsets(topic)[0]
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"reader-{topic}", "log_level": 2})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return consumer.consume(count, 20) if count else []
    finally:
        consumer.close()


def headers_of(message: Message[Any, Any]) -> dict[str, Any]:
    return dict(message.headers() or [])


def test_filter_select_mask_and_a_function_in_a_row_end_each_record_in_one_way(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic, dlq = kafka.create_topic(), kafka.create_topic()
    kafka.produce(
        topic,
        [value_of(number) for number in range(COUNT)],
        keys=[b"k%d" % number for number in range(COUNT)],
        headers=[("token", b"secret"), ("source", b"shop")],
    )
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "rules.py").write_text(RULES)
    (tmp_path / "hash-key").write_text(KEY)
    settings = {
        **group_settings(kafka, group_protocol, f"transforms-{topic}", [topic]),
        "CONNECTOR_VALUE_FORMAT": "json",
        "CONNECTOR_SINK": "file",
        "CONNECTOR_SINK_PATH": str(tmp_path / "out.jsonl"),
        "CONNECTOR_PLUGIN_DIR": str(plugins),
        "CONNECTOR_TRANSFORMS": "no-tests=filter,shape=select,hide=mask,rules:keep",
        "CONNECTOR_TRANSFORM_NO_TESTS_EXPRESSION": "!(value.test) && headers.source == 'shop'",
        "CONNECTOR_TRANSFORM_SHAPE_EXPRESSION": "{id: value.id, user: value.user, total: sum(value.lines[].price)}",
        "CONNECTOR_TRANSFORM_HIDE_FIELDS": "value.user.email,headers.token,key",
        "CONNECTOR_TRANSFORM_HIDE_HASH_KEY_FILE": str(tmp_path / "hash-key"),
        "CONNECTOR_ON_POISON": "dlq",
        "CONNECTOR_DLQ_TOPIC": dlq,
        "CONNECTOR_ADMIN_TOKEN": TOKEN,
    }
    dead = {NOT_JSON: "decode", FREE: "shape", FORBIDDEN: "keep"}
    alive = [number for number in range(COUNT) if number not in dead]
    tests = [number for number in alive if number % 10 == 0 and number != TOMBSTONE]
    sevens = [number for number in alive if number % 7 == 0 and number not in tests and number != TOMBSTONE]
    expected = [number for number in alive if number not in tests and number not in sevens]
    with ConnectorProcess("copy", tmp_path, settings) as copy:
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        for name, count in (("no-tests", len(tests)), ("keep", len(sevens))):
            assert metric(copy, "connector_filtered_records_total", topic=topic, transform=name) == count
        for stage in dead.values():
            error = "UndecodableError" if stage == "decode" else "PoisonError"
            assert metric(copy, "connector_dead_letters_total", topic=topic, stage=stage, error=error) == 1
        assert metric(copy, "connector_written_records_total", topic=topic) == len(expected)
        assert copy.get("/config").text.count(KEY) == 0

        (plugins / "rules.py").write_text("def keep(record):\n    return record['offset'] % 2 == 1\n")
        assert ask(copy, "POST", "/reload", {"operator_id": "keep"}).status_code == 202
        copy.wait_for_event("plugin_reloaded")
        kafka.produce(topic, [value_of(1)] * 4, headers=[("source", b"shop")])
        wait_until_committed(kafka, settings["CONNECTOR_GROUP_ID"], [topic])
        assert copy.terminate() == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert [line["offset"] for line in lines] == [*expected, COUNT + 1, COUNT + 3]
    for number, line in zip(expected, lines, strict=False):
        user = {"email": hash_of(f"{number}@example.org"), "name": "Ada"}
        value = {"id": number, "user": user, "total": 3.5, "seen": 1}
        assert line["value"] == (None if number == TOMBSTONE else value)
        assert line["key"] == hash_of(f"k{number}")
        assert line["headers"] == [["token", hash_of("secret")], ["source", "shop"]]
    letters = {int(headers_of(letter)["connector.dlq.offset"]): letter for letter in messages(kafka, dlq)}
    assert letters.keys() == dead.keys()
    for number, letter in letters.items():
        headers = headers_of(letter)
        assert headers["connector.dlq.stage"] == dead[number].encode()
        assert (letter.key(), letter.value(), headers["token"]) == (b"k%d" % number, value_of(number), b"secret")
    reason = headers_of(letters[FORBIDDEN])["connector.dlq.message"]
    assert b"LookupError: nobody knows 77 (rules.py, line 7)" in reason
    log = copy.log.read_text(encoding="utf-8")
    assert KEY not in log


@pytest.mark.parametrize("policy", ["delete", "ignore"])
def test_a_topic_of_changes_is_unwrapped_and_its_deletes_mean_the_same_however_they_are_written(
    kafka: Kafka, policy: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    keys = [b"a", b"b", b"c", b"d"]
    kafka.produce(topic, [b'{"after": {"name": "%b"}}' % key for key in keys], keys=keys)
    kafka.produce(topic, [b'{"op": "d", "after": null}', b"null", None], keys=keys[:3])
    settings = {
        **group_settings(kafka, "consumer", f"changes-{topic}", [topic]),
        "CONNECTOR_STOP": "end",
        "CONNECTOR_VALUE_FORMAT": "json",
        "CONNECTOR_TRANSFORMS": "select",
        "CONNECTOR_TRANSFORM_SELECT_EXPRESSION": "value.after",
        "CONNECTOR_TRANSFORM_SELECT_ON_NULL": "tombstone",
        "CONNECTOR_TOMBSTONES": policy,
        "CONNECTOR_SINK": "sqlite",
        "CONNECTOR_SINK_PATH": str(tmp_path / "rows.db"),
        "CONNECTOR_SINK_MODE": "upsert",
        "CONNECTOR_SINK_COLUMNS": "id:@key,name:name",
        "CONNECTOR_SINK_KEY_COLUMNS": "id",
    }
    with ConnectorProcess("copy", tmp_path, settings) as copy:
        assert copy.wait() == 0
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        rows = database.execute("SELECT id, name FROM records ORDER BY id").fetchall()
    assert rows == [(key, key.decode()) for key in (keys[3:] if policy == "delete" else keys)]
