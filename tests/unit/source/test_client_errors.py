"""Errors of the client: by the code, and by the text where the code only says that it is fatal."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from connector.api.errors import AuthenticationError, ConfigError, FatalError, FencedError
from connector.source.client_errors import fatal_error, lacks_consumer_protocol

CLASSES: list[tuple[str, type[FatalError]]] = [
    ("GROUP_AUTHORIZATION_FAILED", AuthenticationError),
    ("TOPIC_AUTHORIZATION_FAILED", AuthenticationError),
    ("GROUP_MAX_SIZE_REACHED", ConfigError),
    ("UNSUPPORTED_ASSIGNOR", ConfigError),
    ("UNRELEASED_INSTANCE_ID", FencedError),
    ("FENCED_INSTANCE_ID", FencedError),
]


def _heartbeat(name: str) -> str:
    """The text of a fatal error of a KIP-848 heartbeat, as the client writes it."""
    words = KafkaError(getattr(KafkaError, name)).str()
    return f"Fatal error: {words}: ConsumerGroupHeartbeat fatal error: {words}"


@pytest.mark.parametrize(("name", "error"), CLASSES)
def test_the_cause_decides_whether_it_comes_as_a_code_or_in_the_text_of_a_fatal_error(
    name: str, error: type[FatalError]
) -> None:
    assert type(fatal_error(name, "text")) is error
    assert type(fatal_error("_FATAL", _heartbeat(name))) is error


@pytest.mark.parametrize("name", ["UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE"])
def test_a_broker_without_the_consumer_protocol_is_told_from_every_other_end_of_the_heartbeat(name: str) -> None:
    assert lacks_consumer_protocol("_FATAL", _heartbeat(name))
    assert isinstance(fatal_error("_FATAL", _heartbeat(name)), ConfigError)
    assert not any(lacks_consumer_protocol("_FATAL", _heartbeat(other)) for other, _ in CLASSES)


@pytest.mark.parametrize("code", ["_TRANSPORT", "_ALL_BROKERS_DOWN", "UNKNOWN_TOPIC_OR_PART", "REBALANCE_IN_PROGRESS"])
def test_what_the_client_cures_by_itself_ends_nothing(code: str) -> None:
    assert fatal_error(code, "text") is None
