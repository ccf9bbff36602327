"""A broker that asks its clients for a password and lets each do only what it was granted."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # typed, but without an __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.support.jvm import JvmBroker, start_jvm_broker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PASSWORD = "c0rrect-h0rse"


@contextlib.contextmanager
def protected_broker(users: Iterable[str], rights: Iterable[AclBinding]) -> Iterator[JvmBroker]:
    """Run one with these users, whose password is `PASSWORD`; on its internal listener everything is allowed."""
    entries = " ".join(f'user_{name}="{PASSWORD}"' for name in users)
    properties = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {entries};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with start_jvm_broker(properties) as broker:
        admin = AdminClient({"bootstrap.servers": broker.internal_servers})
        for answer in admin.create_acls([*rights], request_timeout=30).values():
            answer.result(30)
        yield broker


def allow(user: str, operation: str, kind: str, name: str = "*", *, is_prefix: bool = False) -> AclBinding:
    """Return the right to do this with one resource, with all of its kind (`*`), or with those whose name begins so."""
    return AclBinding(
        ResourceType[kind.upper()],
        name,
        ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[operation.upper()],
        AclPermissionType.ALLOW,
    )


def as_user(broker: JvmBroker, name: str, password: str = PASSWORD) -> dict[str, str]:
    """Return the settings with which the connector connects as a user."""
    return {
        "CONNECTOR_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "CONNECTOR_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "CONNECTOR_KAFKA_SASL_MECHANISM": "PLAIN",
        "CONNECTOR_KAFKA_SASL_USERNAME": name,
        "CONNECTOR_KAFKA_SASL_PASSWORD": password,
    }
