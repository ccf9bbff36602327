"""Settings of the sink `kafka`, and the producer's properties that they make."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict

from connector import Duration, Field, Secret, Settings
from sinks.template import placeholders

if TYPE_CHECKING:
    from connector import SinkContext

_FIXED = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # a key goes where Java's clients send it
    "delivery.report.only.error": True,  # else each record that arrives costs a call of Python
}
_TUNED = {
    "compression.type": "lz4",
    # The broker decides what is too large: it knows the topic's limit.
    "message.max.bytes": 1_000_000_000,
    "topic.metadata.propagation.max.ms": 5_000,  # a topic that is missing is told before the time for a batch is over
    "topic.metadata.refresh.interval.ms": 30_000,  # the client's own 300000 would miss a new partition for so long
}
_OWN_NAME = {
    "bootstrap.servers": "CONNECTOR_SINK_BOOTSTRAP_SERVERS",
    "metadata.broker.list": "CONNECTOR_SINK_BOOTSTRAP_SERVERS",
    "partitioner": "CONNECTOR_SINK_PARTITION",
    "message.timeout.ms": "CONNECTOR_SINK_TIMEOUT",
    "delivery.timeout.ms": "CONNECTOR_SINK_TIMEOUT",
    "transactional.id": "CONNECTOR_SINK_TRANSACTIONAL_ID",
    "transaction.timeout.ms": "CONNECTOR_SINK_TRANSACTION_TIMEOUT",
}
_ALWAYS = ("acks", "request.required.acks", "enable.idempotence", "delivery.report.only.error", "queuing.strategy")
_UNIQUE = uuid.uuid4().hex[:12]  # of this process
_ID_NAMES = ("group", "host", "pipeline", "unique")
_NEVER = ("plugin.library.paths", "logger", "opaque", "interceptors")


def parse_properties(text: str) -> dict[str, str]:
    """Return the client properties of `name=value` pairs, one a line or, on a single line, with commas between them.

    Raises:
        ValueError: A part without a name, or a property that would break a promise or has a setting of its own.
    """
    parts = text.splitlines() if "\n" in text.strip() else text.split(",")
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, parts)):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name:
            raise ValueError("has a part that is no pair; write name=value pairs, one a line or with commas between")
        if name in _OWN_NAME:
            raise ValueError(f"has {name}, which has a name of its own: set {_OWN_NAME[name]}")
        if name in _ALWAYS:
            raise ValueError(f"has {name}, which is fixed: a batch is done when every replica in sync has it, in order")
        if name in _NEVER or name.endswith((".cb", "_cb")) or name.startswith("test.mock."):
            raise ValueError(f"has {name}, which is program code or would replace the cluster: remove it")
        found[name] = value
    return found


def _check_properties(properties: Secret | None) -> Secret | None:
    if properties is not None:
        parse_properties(properties.get_secret_value())
    return properties


def _check_id(template: str) -> str:
    if "pipeline" not in placeholders(template, _ID_NAMES):
        raise ValueError("lacks {pipeline}: two pipelines with one id would end each other's transactions")
    return template


def _check_topic(template: str) -> str:
    placeholders(template, ("topic",))
    if not template.strip():
        raise ValueError("is empty; name a topic")
    return template


class KafkaSettings(Settings):
    """Settings of the sink `kafka`."""

    model_config = ConfigDict(hide_input_in_errors=True)  # properties may hold a password

    topic: Annotated[str, AfterValidator(_check_topic)] = Field(
        description="Topic to write to, a template: {topic} is the topic that a record comes from"
    )
    bootstrap_servers: str | None = Field(
        default=None,
        description="Brokers of another cluster, host:port with commas between them. Unset: the cluster that is read, "
        "with its connection properties",
    )
    properties: Annotated[Secret | None, AfterValidator(_check_properties)] = Field(
        default=None,
        description="Properties of the producer, as name=value with commas between them or one a line; with "
        "CONNECTOR_SINK_BOOTSTRAP_SERVERS also how to connect there",
    )
    partition: Literal["key", "same"] = Field(
        default="key",
        description="`key`: by the record's key, as Java's clients choose, any without one; `same`: the number of the "
        "partition that a record comes from",
    )
    origin_headers: bool = Field(
        default=False,
        description="Add the headers connector.origin.topic, connector.origin.partition and connector.origin.offset, "
        "by which a repeat can be told",
    )
    timeout: Duration = Field(
        default=15.0,
        ge=1.0,
        description="How long the cluster may take to confirm a batch; keep it below CONNECTOR_DRAIN_TIMEOUT",
    )
    transactional: bool = Field(
        default=False,
        description="Write each batch in a transaction that commits the position of its partition too: exactly once, "
        "for those who read with isolation.level=read_committed. Only within the cluster that is read",
    )
    transactional_id: Annotated[str, AfterValidator(_check_id)] = Field(
        default="{group}-{host}-{pipeline}-{unique}",
        description="Of the producer, a template: {group}, {host}, {pipeline} (number), {unique} (of the process). No "
        "two running pipelines may have the same one",
    )
    transaction_timeout: Duration = Field(
        default=30.0,
        ge=1.0,
        description="After this time the broker ends a transaction that a killed process has left open",
    )

    def problems(self, pipelines: int) -> list[str]:
        """Return what does not go together."""
        if not self.transactional:
            return []
        found = []
        if self.bootstrap_servers is not None:
            found.append(
                "CONNECTOR_SINK_TRANSACTIONAL=true does not go with CONNECTOR_SINK_BOOTSTRAP_SERVERS: one transaction "
                "cannot span two clusters, and the group's positions are in the one that is read. Unset one of them."
            )
        if self.timeout >= self.transaction_timeout:
            found.append(
                f"CONNECTOR_SINK_TIMEOUT={self.timeout:g}s must be below "
                f"CONNECTOR_SINK_TRANSACTION_TIMEOUT={self.transaction_timeout:g}s: else the broker ends transactions "
                "that are still under way."
            )
        return found


def producer_properties(settings: KafkaSettings, context: SinkContext) -> dict[str, Any]:
    """Return the properties of the sink's producer: to another cluster nothing of the source's goes along."""
    given = parse_properties(settings.properties.get_secret_value()) if settings.properties is not None else {}
    if settings.bootstrap_servers is None:
        connection = dict(context.connection)
    else:
        connection = {"client.id": "sluiceway", "bootstrap.servers": settings.bootstrap_servers}
    transactional = {}
    if settings.transactional:
        transactional = {
            "transactional.id": settings.transactional_id.format(
                group=context.group_id, host=context.host, pipeline=context.pipeline, unique=_UNIQUE
            ),
            "transaction.timeout.ms": int(settings.transaction_timeout * 1000),
        }
    return {
        **connection,
        **transactional,
        "logger": logging.getLogger("librdkafka"),
        **_TUNED,
        **given,
        **_FIXED,
        "message.timeout.ms": int(settings.timeout * 1000),
    }
