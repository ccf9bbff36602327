"""Settings that are right one by one and wrong together, found before anything starts; and what is worth a note.

Pure, save that the client judges its properties, offline, and that files which they name must be there. Called once,
by `load`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from connector.api.settings import format_duration
from connector.config.display import format_size
from connector.config.environment import PREFIX
from connector.config.memory import divide
from connector.pipeline.decode import Format
from connector.source.client_config import (
    CLASSIC_ONLY,
    CONSUMER_ONLY,
    MAX_POLL_INTERVAL,
    ClientSettings,
    client_properties,
    is_secret,
    nearest_property,
    probe_client,
    protocols,
    refusal,
)
from connector.source.position import StartPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from connector.config.settings import ConnectorSettings

KAFKA_PREFIX = PREFIX + "KAFKA_"
_SAFE_TOKEN_CHARACTERS = 16
COMMIT_RESERVE_SECONDS = 60.0
"""Kept free of `max.poll.interval.ms` for the commit after a drain: without a coordinator it blocks 45 s."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What does not fit together. `names` are the variables involved: nothing is said when one is wrong by itself."""

    names: frozenset[str]
    message: str


def kafka_name(property_name: str) -> str:
    """Return the environment variable of a client property."""
    return KAFKA_PREFIX + property_name.upper().replace(".", "_")


def property_name(environment_name: str) -> str:
    """Return the client property of an environment variable."""
    return environment_name.removeprefix(KAFKA_PREFIX).lower().replace("_", ".")


def drain_budget_seconds(client: ClientSettings) -> float:
    """Return how long a drain may take at most.

    The group waits `max.poll.interval.ms` for a member to give partitions up: sent when joining by the classic
    protocol (KIP-62), in the heartbeat by the consumer protocol (KIP-848).
    """
    return client.max_poll_interval_ms / 1000 - COMMIT_RESERVE_SECONDS


def contradictions(settings: ConnectorSettings, client: ClientSettings) -> Iterator[Contradiction]:
    """Yield what does not fit together, each with the way out."""
    yield from _drain(settings, client)
    yield from _sizes(settings)
    yield from _times(settings)
    yield from _protocol(settings, client)
    yield from _dead_letters(settings)
    yield from _registry(settings)


def _drain(settings: ConnectorSettings, client: ClientSettings) -> Iterator[Contradiction]:
    names = frozenset({"CONNECTOR_DRAIN_TIMEOUT", kafka_name(MAX_POLL_INTERVAL)})
    interval = client.properties.get(MAX_POLL_INTERVAL)
    if interval is not None and not interval.strip().isdecimal():
        return  # the client itself says what is wrong with it
    most = drain_budget_seconds(client)
    if settings.drain_timeout <= most:
        return
    reserve = f"{COMMIT_RESERVE_SECONDS:g}s are kept for the commit"
    limit = f"{MAX_POLL_INTERVAL}={client.max_poll_interval_ms / 1000:g}s"
    if most > 0:
        yield Contradiction(
            names,
            f"CONNECTOR_DRAIN_TIMEOUT={settings.drain_timeout:g}s does not fit into {limit}, which leaves {most:g}s "
            f"for a drain ({reserve}). Set it to {most:g}s or less, or raise {kafka_name(MAX_POLL_INTERVAL)}.",
        )
    else:
        least = settings.drain_timeout + COMMIT_RESERVE_SECONDS
        yield Contradiction(
            names,
            f"CONNECTOR_DRAIN_TIMEOUT={settings.drain_timeout:g}s does not fit into {limit}, which leaves nothing for "
            f"a drain ({reserve}). Set {kafka_name(MAX_POLL_INTERVAL)} to {least * 1000:.0f} or more.",
        )


def _sizes(settings: ConnectorSettings) -> Iterator[Contradiction]:
    lanes_bytes = divide(settings.memory_budget, brokers=1).lanes_bytes
    wanted = settings.pipelines * settings.batch_bytes
    if wanted > lanes_bytes:
        yield Contradiction(
            frozenset({"CONNECTOR_BATCH_BYTES", "CONNECTOR_PIPELINES", "CONNECTOR_MEMORY_BUDGET"}),
            f"CONNECTOR_BATCH_BYTES={format_size(settings.batch_bytes)} in CONNECTOR_PIPELINES={settings.pipelines} "
            f"does not fit into CONNECTOR_MEMORY_BUDGET={format_size(settings.memory_budget)}, which leaves "
            f"{lanes_bytes // 2**20}MiB for batches. Set CONNECTOR_BATCH_BYTES to "
            f"{format_size(max(1, lanes_bytes // settings.pipelines // 2**10 * 2**10))} or less, or raise the budget.",
        )


def _times(settings: ConnectorSettings) -> Iterator[Contradiction]:
    if settings.retry_initial > settings.retry_max:
        yield Contradiction(
            frozenset({"CONNECTOR_RETRY_INITIAL", "CONNECTOR_RETRY_MAX"}),
            f"CONNECTOR_RETRY_INITIAL={format_duration(settings.retry_initial)} is more than CONNECTOR_RETRY_MAX="
            f"{format_duration(settings.retry_max)}. The wait grows from the first to the second; exchange them.",
        )
    start, stop = settings.start, settings.stop
    if isinstance(start, datetime) and isinstance(stop, datetime) and start >= stop:
        yield Contradiction(
            frozenset({"CONNECTOR_START", "CONNECTOR_STOP"}),
            f"CONNECTOR_START={start.isoformat()} is not before CONNECTOR_STOP={stop.isoformat()}, so that a new group "
            "would take nothing. Set an earlier start or a later stop.",
        )


def _protocol(settings: ConnectorSettings, client: ClientSettings) -> Iterator[Contradiction]:
    protocol = frozenset({"CONNECTOR_GROUP_PROTOCOL"})
    if settings.group_protocol == "consumer":
        for name in CLASSIC_ONLY:
            if name in client.properties:
                yield Contradiction(
                    protocol | {kafka_name(name)},
                    f"{kafka_name(name)} is of the classic protocol; under CONNECTOR_GROUP_PROTOCOL=consumer the "
                    f"broker decides it (group configuration consumer.{name}). Remove it, or set "
                    "CONNECTOR_GROUP_PROTOCOL=classic.",
                )
        if client.assignment_strategy is not None:
            yield Contradiction(
                protocol | {"CONNECTOR_ASSIGNMENT_STRATEGY"},
                f"CONNECTOR_ASSIGNMENT_STRATEGY={client.assignment_strategy} is of the classic protocol; under "
                "CONNECTOR_GROUP_PROTOCOL=consumer the broker assigns. Remove it "
                "(CONNECTOR_KAFKA_GROUP_REMOTE_ASSIGNOR names one of the broker's), or set "
                "CONNECTOR_GROUP_PROTOCOL=classic.",
            )
    if "consumer" not in protocols(client):
        for name in CONSUMER_ONLY:
            if name in client.properties:
                yield Contradiction(
                    protocol | {kafka_name(name)},
                    f"{kafka_name(name)} is of the consumer protocol, and this group uses classic "
                    f"({_why_classic(client)}). Remove it, or set CONNECTOR_GROUP_PROTOCOL=consumer.",
                )


def _dead_letters(settings: ConnectorSettings) -> Iterator[Contradiction]:
    topic = settings.dlq_topic
    if settings.on_poison == "dlq" and topic is None:
        yield Contradiction(
            frozenset({"CONNECTOR_ON_POISON", "CONNECTOR_DLQ_TOPIC"}),
            "CONNECTOR_ON_POISON=dlq needs a topic. Set CONNECTOR_DLQ_TOPIC.",
        )
    if settings.on_poison != "dlq" and topic is not None:
        yield Contradiction(
            frozenset({"CONNECTOR_ON_POISON", "CONNECTOR_DLQ_TOPIC"}),
            f"CONNECTOR_DLQ_TOPIC={topic} gets nothing under CONNECTOR_ON_POISON={settings.on_poison}. Set that to "
            "dlq, or remove the topic.",
        )
    if topic in settings.topics:
        yield Contradiction(
            frozenset({"CONNECTOR_DLQ_TOPIC", "CONNECTOR_TOPICS"}),
            f"CONNECTOR_DLQ_TOPIC={topic} is in CONNECTOR_TOPICS too, so that dead letters would go round in a circle. "
            "Take it out there; connector dlq replay sends letters back.",
        )


def _registry(settings: ConnectorSettings) -> Iterator[Contradiction]:
    formats = {
        "CONNECTOR_KEY_FORMAT": Format(settings.key_format),
        "CONNECTOR_VALUE_FORMAT": Format(settings.value_format),
    }
    asking = [name for name, format_ in formats.items() if format_.needs_schemas]
    if not asking:
        if settings.registry_url:
            yield Contradiction(
                frozenset({"CONNECTOR_REGISTRY_URL", *formats}),
                f"CONNECTOR_REGISTRY_URL={','.join(settings.registry_url)} is asked by no format. Set "
                "CONNECTOR_KEY_FORMAT or CONNECTOR_VALUE_FORMAT to avro or json-schema, or remove it.",
            )
        return
    what = f"{asking[0]}={formats[asking[0]].value}"
    if not settings.registry_url:
        yield Contradiction(
            frozenset({*asking, "CONNECTOR_REGISTRY_URL"}),
            f"{what} needs a schema registry. Set CONNECTOR_REGISTRY_URL.",
        )
    if missing := [name for name in ("authlib", "fastavro", "jsonschema") if find_spec(name) is None]:
        yield Contradiction(frozenset(asking), f"{what} needs {', '.join(missing)}: pip install 'sluiceway[registry]'.")
    yield from _registry_access(settings)


def _registry_access(settings: ConnectorSettings) -> Iterator[Contradiction]:
    user, password, token = "CONNECTOR_REGISTRY_USER", "CONNECTOR_REGISTRY_PASSWORD", "CONNECTOR_REGISTRY_TOKEN"
    if (settings.registry_user is None) != (settings.registry_password is None):
        missing = user if settings.registry_user is None else password
        yield Contradiction(frozenset({user, password}), f"{user} and {password} go together. Set {missing} too.")
    if settings.registry_user is not None and settings.registry_token is not None:
        yield Contradiction(
            frozenset({user, token}), f"{user} and {token} are both set, and only one is sent. Remove one of them."
        )
    certificate = "CONNECTOR_REGISTRY_SSL_CERTIFICATE_LOCATION"
    if settings.registry_ssl_certificate_location is None:
        for field in ("registry_ssl_key_location", "registry_ssl_key_password"):
            if getattr(settings, field) is not None:
                name = PREFIX + field.upper()
                yield Contradiction(
                    frozenset({name, certificate}), f"{name} is for a certificate. Set {certificate}, or remove it."
                )


def _why_classic(client: ClientSettings) -> str:
    if client.group_protocol == "classic":
        return "CONNECTOR_GROUP_PROTOCOL=classic"
    if client.assignment_strategy is not None:
        return "CONNECTOR_ASSIGNMENT_STRATEGY is set"
    return f"{next(kafka_name(name) for name in CLASSIC_ONLY if name in client.properties)} is set"


def property_problems(properties: Mapping[str, str]) -> dict[str, str]:
    """Return what is wrong with each client property by itself, by the property's name."""
    found = {name: _property_problem(name, value) for name, value in properties.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def _property_problem(name: str, value: str) -> str | None:
    variable = kafka_name(name)
    reason = refusal(name)
    if reason is not None:
        return f"{variable} is refused: {name} {reason}."
    probe = probe_client({name: value})
    if probe.is_unknown:
        nearest = nearest_property(name)
        meant = f"Did you mean {kafka_name(nearest)}? " if nearest else ""
        return f"{variable}: the Kafka client has no property {name}. {meant}Correct or remove it."
    if probe.error is not None and not probe.is_contradiction:
        shown = "***" if is_secret(name) else value
        return f"{variable}={shown} is refused by the Kafka client: {probe.error}. Correct or remove it."
    if name.endswith((".location", ".file")) and value != "probe" and not os.access(value, os.R_OK):
        return f"{variable}={value} cannot be read. Put the file there, or correct the path."
    if any("producer property" in warning for warning in probe.warnings):
        return f"{variable}: {name} is of producers, and a consumer ignores it. Remove it."
    return None


def client_refusals(client: ClientSettings, queue_bytes: int, fetch_max_bytes: int) -> tuple[list[str], list[str]]:
    """Let the client judge all its properties together; return problems and warnings."""
    problems: dict[str, None] = {}  # in order, once each: `auto` asks for two protocols
    warnings: dict[str, None] = {}
    for protocol in protocols(client):
        probe = probe_client(
            client_properties(client, protocol, queue_bytes=queue_bytes, fetch_max_bytes=fetch_max_bytes)
        )
        if probe.error is not None:
            problems[
                f"CONNECTOR_KAFKA_*: the Kafka client refuses these together: {probe.error}. Change one of them."
            ] = None
        warnings |= dict.fromkeys(f"The Kafka client says: {warning}" for warning in probe.warnings)
    return list(problems), list(warnings)


def notes(settings: ConnectorSettings, client: ClientSettings) -> Iterator[str]:
    """Yield what is allowed and may still surprise."""
    if client.group_protocol == "auto" and protocols(client) == ("classic",):
        yield f"The group uses the classic protocol, because {_why_classic(client)}."
    if settings.shutdown_timeout < settings.drain_timeout:
        yield (
            f"CONNECTOR_SHUTDOWN_TIMEOUT={format_duration(settings.shutdown_timeout)} ends a shutdown before "
            f"CONNECTOR_DRAIN_TIMEOUT={format_duration(settings.drain_timeout)}, which then bounds rebalances only."
        )
    if settings.admin_token and len(settings.admin_token.get_secret_value()) < _SAFE_TOKEN_CHARACTERS:
        yield (
            f"CONNECTOR_ADMIN_TOKEN has fewer than {_SAFE_TOKEN_CHARACTERS} characters and could be guessed; the "
            "admin server does not slow guesses down. `openssl rand -hex 16` makes a good one."
        )
    if settings.stop is not None and settings.start is StartPolicy.LATEST:
        yield "CONNECTOR_START=latest in a bounded run: a group without positions takes nothing and ends at once."
    if "group.instance.id" in client.properties:
        yield (
            "CONNECTOR_KAFKA_GROUP_INSTANCE_ID must be another one for each copy, and the partitions of a stopped copy "
            "wait for its session timeout, since a static member does not leave (KIP-345)."
        )
