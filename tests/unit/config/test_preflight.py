"""Settings that contradict each other are refused with the value, the rule and the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connector.api.errors import ConfigError
from connector.config.load import load

if TYPE_CHECKING:
    from pathlib import Path

REQUIRED = {"CONNECTOR_BOOTSTRAP_SERVERS": "b:9092", "CONNECTOR_GROUP_ID": "g", "CONNECTOR_TOPICS": "t"}


def notes(**names: str) -> tuple[str, ...]:
    return load(REQUIRED | {f"CONNECTOR_{name}": value for name, value in names.items()}).notes


def problems(**names: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        notes(**names)
    return str(refused.value).splitlines()


def test_a_drain_that_does_not_fit_into_the_poll_interval_is_refused_with_what_fits() -> None:
    [line] = problems(DRAIN_TIMEOUT="400s")
    assert line == (
        "CONNECTOR_DRAIN_TIMEOUT=400s does not fit into max.poll.interval.ms=300s, which leaves 240s for a drain "
        "(60s are kept for the commit). Set it to 240s or less, or raise CONNECTOR_KAFKA_MAX_POLL_INTERVAL_MS."
    )
    assert notes(DRAIN_TIMEOUT="240s", SHUTDOWN_TIMEOUT="240s") == ()


def test_a_poll_interval_that_leaves_nothing_for_a_drain_is_refused_with_one_that_does() -> None:
    [line] = problems(KAFKA_MAX_POLL_INTERVAL_MS="60000")
    assert line == (
        "CONNECTOR_DRAIN_TIMEOUT=20s does not fit into max.poll.interval.ms=60s, which leaves nothing for a drain "
        "(60s are kept for the commit). Set CONNECTOR_KAFKA_MAX_POLL_INTERVAL_MS to 80000 or more."
    )
    assert notes(KAFKA_MAX_POLL_INTERVAL_MS="80000") == ()


def test_batches_that_do_not_fit_into_the_memory_budget_are_refused_with_a_size_that_does() -> None:
    [line] = problems(MEMORY_BUDGET="16MiB", PIPELINES="4")
    assert line.startswith("CONNECTOR_BATCH_BYTES=8MiB in CONNECTOR_PIPELINES=4 does not fit into")
    fitting = line.partition("Set CONNECTOR_BATCH_BYTES to ")[2].partition(" ")[0]
    assert notes(MEMORY_BUDGET="16MiB", PIPELINES="4", BATCH_BYTES=fitting) == ()


def test_a_first_wait_above_the_longest_is_refused() -> None:
    [line] = problems(RETRY_INITIAL="1m")
    assert line.startswith("CONNECTOR_RETRY_INITIAL=1m is more than CONNECTOR_RETRY_MAX=30s.")


def test_a_start_that_is_not_before_the_stop_is_refused() -> None:
    [line] = problems(START="2026-02-01", STOP="2026-02-01")
    assert "is not before CONNECTOR_STOP" in line


@pytest.mark.parametrize("name", ["SESSION_TIMEOUT_MS", "HEARTBEAT_INTERVAL_MS", "GROUP_PROTOCOL_TYPE"])
def test_classic_properties_are_refused_under_the_consumer_protocol(name: str) -> None:
    [line] = problems(GROUP_PROTOCOL="consumer", **{f"KAFKA_{name}": "6000"})
    assert line.startswith(f"CONNECTOR_KAFKA_{name} is of the classic protocol")


def test_a_strategy_is_refused_under_the_consumer_protocol() -> None:
    [line] = problems(GROUP_PROTOCOL="consumer", ASSIGNMENT_STRATEGY="cooperative-sticky")
    assert line.startswith("CONNECTOR_ASSIGNMENT_STRATEGY=cooperative-sticky is of the classic protocol")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({"GROUP_PROTOCOL": "classic"}, "CONNECTOR_GROUP_PROTOCOL=classic"),
        ({"ASSIGNMENT_STRATEGY": "range"}, "CONNECTOR_ASSIGNMENT_STRATEGY is set"),
        ({"KAFKA_SESSION_TIMEOUT_MS": "6000"}, "CONNECTOR_KAFKA_SESSION_TIMEOUT_MS is set"),
    ],
)
def test_a_remote_assignor_is_refused_where_the_group_is_classic(names: dict[str, str], why: str) -> None:
    [line] = problems(KAFKA_GROUP_REMOTE_ASSIGNOR="uniform", **names)
    assert f"({why})" in line


def test_properties_that_the_client_refuses_together_are_told_in_its_words() -> None:
    [line] = problems(KAFKA_SESSION_TIMEOUT_MS="400000")
    assert line.startswith("CONNECTOR_KAFKA_*: the Kafka client refuses these together: ")
    assert "session.timeout.ms" in line


def test_a_property_of_producers_is_refused_because_it_would_do_nothing() -> None:
    [line] = problems(KAFKA_ACKS="1")
    assert line == "CONNECTOR_KAFKA_ACKS: acks is of producers, and a consumer ignores it. Remove it."


def test_a_file_that_a_property_names_must_be_there(tmp_path: Path) -> None:
    [line] = problems(KAFKA_SECURITY_PROTOCOL="ssl", KAFKA_SSL_CA_LOCATION=str(tmp_path / "ca.pem"))
    assert line == (
        f"CONNECTOR_KAFKA_SSL_CA_LOCATION={tmp_path}/ca.pem cannot be read. Put the file there, or correct the path."
    )
    assert notes(KAFKA_SECURITY_PROTOCOL="ssl", KAFKA_SSL_CA_LOCATION="probe") == ()


def test_a_contradiction_is_not_told_when_one_of_its_settings_is_wrong_by_itself() -> None:
    assert len(problems(RETRY_INITIAL="1m", RETRY_MAX="x")) == 1
    assert len(problems(DRAIN_TIMEOUT="400s", KAFKA_MAX_POLL_INTERVAL_MS="long")) == 1
    assert len(problems(GROUP_PROTOCOL="consumer", KAFKA_SESSION_TIMEOUT_MS="long")) == 1


def test_contradictions_are_told_together_with_wrong_values_elsewhere() -> None:
    lines = problems(DRAIN_TIMEOUT="400s", RETRY_INITIAL="1m", LOG_LEVEL="loud", TOPICS="")
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"ASSIGNMENT_STRATEGY": "range"}, "uses the classic protocol, because CONNECTOR_ASSIGNMENT_STRATEGY is set"),
        ({"SHUTDOWN_TIMEOUT": "5s"}, "CONNECTOR_SHUTDOWN_TIMEOUT=5s ends a shutdown before"),
        ({"STOP": "end", "START": "latest"}, "a group without positions takes nothing"),
        ({"KAFKA_GROUP_INSTANCE_ID": "copy-1"}, "another one for each copy"),
        ({"ADMIN_TOKEN": "fifteen-letters"}, "CONNECTOR_ADMIN_TOKEN has fewer than 16 characters and could be guessed"),
        ({"KAFKA_SASL_USERNAME": "me"}, "`sasl.username` only applies when"),
    ],
)
def test_what_is_allowed_and_may_surprise_is_noted(names: dict[str, str], words: str) -> None:
    [note] = notes(**names)
    assert words in note
    assert names.get("ADMIN_TOKEN", "***") not in note


def test_a_token_of_16_characters_is_not_noted() -> None:
    assert notes(ADMIN_TOKEN="sixteen-letters!") == ()


# The schema registry.

AVRO = {"VALUE_FORMAT": "avro", "REGISTRY_URL": "http://one:8081, https://two/path"}


def test_formats_with_schemas_need_a_registry() -> None:
    assert problems(KEY_FORMAT="json-schema") == [
        "CONNECTOR_KEY_FORMAT=json-schema needs a schema registry. Set CONNECTOR_REGISTRY_URL."
    ]
    settings = load(REQUIRED | {f"CONNECTOR_{name}": value for name, value in AVRO.items()}).settings
    assert settings.registry_url == ("http://one:8081", "https://two/path")


def test_a_registry_that_no_format_asks_is_refused() -> None:
    [line] = problems(REGISTRY_URL="http://one:8081")
    assert line.startswith("CONNECTOR_REGISTRY_URL=http://one:8081 is asked by no format.")


def test_packages_that_are_missing_are_told_with_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.config.preflight.find_spec", lambda name: None if name == "fastavro" else object())
    assert problems(**AVRO) == ["CONNECTOR_VALUE_FORMAT=avro needs fastavro: pip install 'sluiceway[registry]'."]


@pytest.mark.parametrize("url", ["https://me:pass-word-1@host", "https://pass-word-1@host", "http://:pass-word-1@host"])
def test_credentials_in_the_url_of_the_registry_are_refused_and_not_shown(url: str) -> None:
    [line] = problems(VALUE_FORMAT="avro", REGISTRY_URL=url)
    assert "CONNECTOR_REGISTRY_PASSWORD" in line
    assert "pass-word-1" not in line
    assert "@host" in line


@pytest.mark.parametrize("url", ["host:8081", "http://", "ftp://host", "http://host/?a=b", "http://host/#a", ",x"])
def test_what_is_no_address_of_a_registry_is_refused(url: str) -> None:
    [line] = problems(VALUE_FORMAT="avro", REGISTRY_URL=url)
    assert line.startswith(f"CONNECTOR_REGISTRY_URL={url} has")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"REGISTRY_USER": "me"}, "Set CONNECTOR_REGISTRY_PASSWORD too."),
        ({"REGISTRY_PASSWORD": "pass-word-2"}, "Set CONNECTOR_REGISTRY_USER too."),
        (
            {"REGISTRY_USER": "me", "REGISTRY_PASSWORD": "pass-word-2", "REGISTRY_TOKEN": "token-3"},
            "are both set, and only one is sent",
        ),
        ({"REGISTRY_TOKEN": "to ken-3"}, "has characters that a header cannot carry"),
        ({"REGISTRY_SSL_KEY_PASSWORD": "pass-word-2"}, "is for a certificate"),
        ({"REGISTRY_SSL_KEY_LOCATION": __file__}, "is for a certificate"),
    ],
)
def test_half_of_the_access_to_a_registry_is_refused_without_a_secret_in_the_text(
    names: dict[str, str], words: str
) -> None:
    [line] = problems(**AVRO, **names)
    assert words in line
    assert "word-2" not in line
    assert "ken-3" not in line
