"""Which errors of the Kafka client end the process, and what the operator is told. The others are the client's to cure.

Pure. Judged by code, never by `KafkaError.fatal()`, which is false on the one message that tells of a fatal error.
"""

from __future__ import annotations

from confluent_kafka import KafkaError

from connector.api.errors import AuthenticationError, ConfigError, FatalError, FencedError

_RIGHTS = {
    "TOPIC_AUTHORIZATION_FAILED": "the right to read the topic (ACL: Read and Describe on the topic)",
    "GROUP_AUTHORIZATION_FAILED": "the right to use the group (ACL: Read on the group)",
    "CLUSTER_AUTHORIZATION_FAILED": "a right on the cluster",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "a right on the transactional id",
}
_CREDENTIALS = {
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
    "SECURITY_DISABLED",
}
_GROUP = {
    "INCONSISTENT_GROUP_PROTOCOL": (
        "other members of the group use another protocol or assignment strategy: give all of them the same "
        "CONNECTOR_GROUP_PROTOCOL and CONNECTOR_ASSIGNMENT_STRATEGY, or use another CONNECTOR_GROUP_ID"
    ),
    "INVALID_GROUP_ID": "set another CONNECTOR_GROUP_ID",
    "GROUP_ID_NOT_FOUND": "set another CONNECTOR_GROUP_ID",
    "INVALID_SESSION_TIMEOUT": "set CONNECTOR_KAFKA_SESSION_TIMEOUT_MS within the limits of the broker",
    "GROUP_MAX_SIZE_REACHED": "the group is full: raise the broker's group.max.size or run fewer copies",
    "UNSUPPORTED_ASSIGNOR": "set another CONNECTOR_KAFKA_GROUP_REMOTE_ASSIGNOR, or remove it",
}
_FENCED = {"_FATAL", "_FENCED", "FENCED_INSTANCE_ID", "UNRELEASED_INSTANCE_ID"}


def fatal_error(code: str, text: str) -> FatalError | None:
    """Return the error that ends the process, or None for what the client cures by itself.

    Args:
        code: Name of the error code, as `KafkaError.name()` gives it.
        text: The client's own words.
    """
    if code in _CREDENTIALS:
        return AuthenticationError(
            f"The cluster refused the connection ({code}: {text}). Check CONNECTOR_KAFKA_SECURITY_PROTOCOL, "
            "CONNECTOR_KAFKA_SASL_MECHANISM, CONNECTOR_KAFKA_SASL_USERNAME and CONNECTOR_KAFKA_SASL_PASSWORD."
        )
    for name, right in _RIGHTS.items():
        if _is(name, code, text):
            return AuthenticationError(f"The cluster refused access ({code}: {text}). Grant {right}.")
    for name, cure in _GROUP.items():
        if _is(name, code, text):
            return ConfigError(f"The group cannot be joined ({code}: {text}): {cure}.")
    if lacks_consumer_protocol(code, text):
        return ConfigError(
            f"The broker does not know the consumer group protocol (KIP-848) ({text}). Set "
            "CONNECTOR_GROUP_PROTOCOL=classic, or auto, which finds out."
        )
    if code in _FENCED:
        return FencedError(
            f"The Kafka client has failed for good ({code}: {text}). Another member may use the same "
            "CONNECTOR_KAFKA_GROUP_INSTANCE_ID; it must be unique. Start the process again."
        )
    return None


def lacks_consumer_protocol(code: str, text: str) -> bool:
    """Whether the broker does not know the consumer group protocol (KIP-848), so that `auto` falls back to classic.

    Any other end of the heartbeat must not: in classic a second member with the same instance id would take the group
    over from the first.
    """
    is_unknown = any(_is(name, code, text) for name in ("UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE"))
    return code == "_FATAL" and "ConsumerGroupHeartbeat" in text and is_unknown


def _is(name: str, code: str, text: str) -> bool:
    """Whether this is the error of that name. A fatal error of the heartbeat names its cause only in the text."""
    return code == name or (code == "_FATAL" and KafkaError(getattr(KafkaError, name)).str() in text)
