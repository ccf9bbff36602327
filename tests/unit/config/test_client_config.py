"""Client properties: promises are not for sale, tuning is, and the client itself takes what we make."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.lane.lane import RECORD_OVERHEAD_BYTES
from connector.source.client_config import (
    CLASSIC_ONLY,
    DERIVED,
    FORCED,
    REFUSED,
    TUNED,
    AssignmentStrategy,
    ClientSettings,
    GroupProtocol,
    ProtocolChoice,
    admin_properties,
    client_properties,
    is_eager,
    is_secret,
    probe_client,
    protocols,
    refusal,
)

MIB = 2**20


def settings(
    choice: ProtocolChoice = "auto", strategy: AssignmentStrategy | None = None, **properties: str
) -> ClientSettings:
    dotted = {name.replace("_", "."): value for name, value in properties.items()}
    return ClientSettings("broker:9092", "group", choice, strategy, dotted)


def made(of: ClientSettings, protocol: GroupProtocol) -> dict[str, str | int | bool]:
    return client_properties(of, protocol, queue_bytes=32 * MIB, fetch_max_bytes=16 * MIB)


@pytest.mark.parametrize(
    ("protocol", "strategy"),
    [
        ("consumer", None),
        ("classic", None),
        ("classic", "range"),
        ("classic", "roundrobin"),
        ("classic", "cooperative-sticky"),
    ],
)
def test_the_client_takes_the_properties_of_every_protocol_without_a_word(
    protocol: GroupProtocol, strategy: AssignmentStrategy | None
) -> None:
    probe = probe_client(made(settings(strategy=strategy), protocol))
    assert probe.error is None
    assert probe.warnings == ()


def test_every_name_with_a_refusal_is_a_property_that_the_client_knows_or_would_run_code() -> None:
    code = {"log.level", "logger", "interceptors", "opaque", "default.topic.config", "plugin.library.paths"}
    for name in REFUSED.keys() - code:
        assert not probe_client({name: ""}).is_unknown, name


def test_no_property_of_the_user_changes_a_forced_or_derived_one() -> None:
    hostile = ClientSettings(
        "broker:9092", "group", properties=dict.fromkeys((*FORCED, *DERIVED, "group.id", "bootstrap.servers"), "7")
    )
    for protocol in protocols(hostile):
        assert made(hostile, protocol) == made(settings(), protocol)


@pytest.mark.parametrize("name", [*FORCED, *DERIVED, *REFUSED, "test.mock.num.brokers", "error.cb", "oauth.cb"])
def test_properties_that_would_break_a_promise_are_refused_with_a_reason(name: str) -> None:
    assert refusal(name)


@pytest.mark.parametrize("name", [*TUNED, *CLASSIC_ONLY, "sasl.password", "debug", "group.instance.id", "client.rack"])
def test_other_properties_may_be_set_and_count_more_than_our_tuning(name: str) -> None:
    assert refusal(name) is None
    assert made(ClientSettings("broker:9092", "group", properties={name: "7"}), "classic")[name] == "7"


def test_auto_tries_the_consumer_protocol_first_and_classic_after_it() -> None:
    assert protocols(settings()) == ("consumer", "classic")


@pytest.mark.parametrize("name", CLASSIC_ONLY)
def test_auto_is_classic_when_a_classic_property_is_set(name: str) -> None:
    assert protocols(ClientSettings("b", "g", properties={name: "6000"})) == ("classic",)


def test_auto_is_classic_when_a_strategy_is_set_even_the_default_one() -> None:
    assert protocols(settings(strategy="cooperative-sticky")) == ("classic",)


@pytest.mark.parametrize("choice", ["consumer", "classic"])
def test_a_forced_protocol_is_the_only_one(choice: GroupProtocol) -> None:
    assert protocols(settings(choice)) == (choice,)


def test_the_strategy_reaches_the_client_under_classic_only() -> None:
    assert made(settings(), "classic")["partition.assignment.strategy"] == "cooperative-sticky"
    assert made(settings(strategy="range"), "classic")["partition.assignment.strategy"] == "range"
    assert "partition.assignment.strategy" not in made(settings(), "consumer")


def test_a_property_of_the_consumer_protocol_does_not_hinder_the_fall_back_to_classic() -> None:
    remote = settings(group_remote_assignor="uniform")
    assert made(remote, "consumer")["group.remote.assignor"] == "uniform"
    assert "group.remote.assignor" not in made(remote, "classic")


@pytest.mark.parametrize(
    ("protocol", "strategy", "eager"),
    [
        ("consumer", None, False),
        ("classic", None, False),
        ("classic", "cooperative-sticky", False),
        ("classic", "range", True),
        ("classic", "roundrobin", True),
    ],
)
def test_only_range_and_roundrobin_are_eager(
    protocol: GroupProtocol, strategy: AssignmentStrategy | None, eager: bool
) -> None:
    assert is_eager(settings(strategy=strategy), protocol) is eager


@pytest.mark.invariant(11)
@given(queue_bytes=st.integers(MIB, 2**32), record_bytes=st.integers(0, 2**20))
def test_records_of_any_size_stay_within_the_share_of_the_client_queue(queue_bytes: int, record_bytes: int) -> None:
    properties = client_properties(settings(), "consumer", queue_bytes=queue_bytes, fetch_max_bytes=MIB)
    by_bytes = int(properties["queued.max.messages.kbytes"]) * 1024 // max(1, record_bytes)
    records = min(by_bytes, int(properties["queued.min.messages"]))
    assert records * (record_bytes + RECORD_OVERHEAD_BYTES) <= queue_bytes


def test_the_admin_client_gets_how_to_connect_and_nothing_of_the_consumer() -> None:
    properties = admin_properties(
        settings(
            sasl_password="x",
            security_protocol="sasl_ssl",
            ssl_ca_location="/ca",
            socket_timeout_ms="5000",
            session_timeout_ms="6000",
            max_poll_interval_ms="300000",
            allow_auto_create_topics="true",
        )
    )
    assert properties == {
        "client.id": "sluiceway",
        "bootstrap.servers": "broker:9092",
        "sasl.password": "x",
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": "/ca",
        "socket.timeout.ms": "5000",
    }


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.config",
        "sasl.jaas.config",
    ],
)
def test_passwords_and_keys_are_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["sasl.username", "ssl.ca.location", "sasl.oauthbearer.token.endpoint.url", "debug"])
def test_what_is_no_secret_is_shown(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize("mechanism", ["sasl.mechanism", "sasl.mechanisms"])
def test_judging_properties_connects_to_nobody_not_to_a_token_endpoint_either(mechanism: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        port = server.getsockname()[1]
        probe = probe_client(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "security.protocol": "sasl_plaintext",
                mechanism: "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "id",
                "sasl.oauthbearer.client.secret": "not sent",
                "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{port}/token",
            }
        )
        assert probe.error is None
        with pytest.raises(TimeoutError):
            server.accept()
