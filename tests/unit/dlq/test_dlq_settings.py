"""Settings of dead letters: what contradicts is refused, and the dead letter topic is never subscribed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from connector.api.errors import ConfigError
from connector.config.load import Config, load, load_connection
from connector.source.client_config import (
    ClientSettings,
    GroupProtocol,
    admin_properties,
    client_properties,
    ignored_topics,
    probe_client,
)
from connector.telemetry.masking import mask

if TYPE_CHECKING:
    from pathlib import Path

REQUIRED = {"CONNECTOR_BOOTSTRAP_SERVERS": "b:9092", "CONNECTOR_GROUP_ID": "g", "CONNECTOR_TOPICS": "orders,^pay.*"}


def loaded(**names: str) -> Config:
    return load(REQUIRED | {f"CONNECTOR_{name}": value for name, value in names.items()})


def problems(**names: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        loaded(**names)
    return str(refused.value).splitlines()


def test_a_topic_and_the_policy_are_all_that_is_needed() -> None:
    settings = loaded(ON_POISON="dlq", DLQ_TOPIC="pay.dlq").settings
    assert (settings.on_poison, settings.dlq_topic, settings.dlq_on_too_large) == ("dlq", "pay.dlq", "fail")
    assert (settings.dlq_max_ratio, settings.dlq_window, settings.dlq_max_consecutive) == (0.5, 1000, 200)


def test_the_policy_without_a_topic_is_refused() -> None:
    assert problems(ON_POISON="dlq") == ["CONNECTOR_ON_POISON=dlq needs a topic. Set CONNECTOR_DLQ_TOPIC."]


def test_a_topic_that_gets_nothing_is_refused() -> None:
    [line] = problems(DLQ_TOPIC="pay.dlq")
    assert line.startswith("CONNECTOR_DLQ_TOPIC=pay.dlq gets nothing under CONNECTOR_ON_POISON=fail.")


def test_a_topic_that_is_subscribed_by_name_is_refused() -> None:
    [line] = problems(ON_POISON="dlq", DLQ_TOPIC="orders")
    assert line.startswith("CONNECTOR_DLQ_TOPIC=orders is in CONNECTOR_TOPICS too")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DLQ_TOPIC", "^pay.*"),
        ("DLQ_TOPIC", "a,b"),
        ("DLQ_ON_TOO_LARGE", "cut"),
        ("DLQ_MAX_RATIO", "0"),
        ("DLQ_MAX_RATIO", "1.5"),
        ("DLQ_WINDOW", "0"),
        ("DLQ_MAX_CONSECUTIVE", "-1"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    [line] = problems(ON_POISON="dlq", **({"DLQ_TOPIC": "pay.dlq"} | {name: value}))
    assert line.startswith(f"CONNECTOR_{name}={value} ")


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_pattern_that_matches_the_topic_does_not_subscribe_it(protocol: GroupProtocol) -> None:
    client = loaded(ON_POISON="dlq", DLQ_TOPIC="pay.dlq", KAFKA_TOPIC_BLACKLIST="^tmp[.]").client
    properties = client_properties(client, protocol, queue_bytes=2**25, fetch_max_bytes=2**24)
    assert properties["topic.blacklist"] == ",".join(ignored_topics(client))
    *users, ours = ignored_topics(client)
    assert users == ["^tmp[.]"]
    assert [name for name in ("pay.dlq", "payxdlq", "pay.dlq2", "my.pay.dlq") if re.search(ours, name)] == ["pay.dlq"]
    assert probe_client(properties).error is None
    assert "topic.blacklist" not in admin_properties(client)


def test_without_a_dead_letter_topic_the_client_gets_no_such_property() -> None:
    properties = client_properties(ClientSettings("b", "g"), "consumer", queue_bytes=2**25, fetch_max_bytes=2**24)
    assert "topic.blacklist" not in properties


def test_the_commands_need_nothing_but_how_to_connect(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret-of-the-dlq-commands\n")
    (tmp_path / "prod.env").write_text(
        "CONNECTOR_BOOTSTRAP_SERVERS=b:9092\nCONNECTOR_DLQ_TOPIC=pay.dlq\nCONNECTOR_SINK=not-installed-here\n"
        f"CONNECTOR_KAFKA_SASL_PASSWORD_FILE={tmp_path / 'password'}\n"
    )
    client = load_connection({"CONNECTOR_BOOTSTRAP_SERVERS": "c:9092"}, tmp_path / "prod.env")
    assert (client.bootstrap_servers, client.dlq_topic) == ("c:9092", "pay.dlq")
    assert client.properties == {"sasl.password": "secret-of-the-dlq-commands"}
    assert mask("secret-of-the-dlq-commands") == "***"


def test_all_problems_of_a_connection_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        load_connection({"CONNECTOR_DLQ_TOPIC": "a b", "CONNECTOR_KAFKA_GROUP_ID": "x"})
    assert len(str(refused.value).splitlines()) == 3
