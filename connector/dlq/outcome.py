"""What a refused or unconfirmed delivery means: later, another setting, missing rights. Pure.

Judged by code, never by `KafkaError.fatal()`. What is not known here may work later.
"""

from __future__ import annotations

from connector.api.errors import AuthenticationError, ConfigError, ConnectorError, TransientError

_CREDENTIALS = frozenset(
    {
        "_AUTHENTICATION",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "ILLEGAL_SASL_STATE",
        "SECURITY_DISABLED",
    }
)
_RIGHTS = {
    "TOPIC_AUTHORIZATION_FAILED": "Write and Describe on the topic",
    "CLUSTER_AUTHORIZATION_FAILED": "IdempotentWrite on the cluster, which brokers before 2.8 ask for",
    "GROUP_AUTHORIZATION_FAILED": "Read on the group",
}
_REFUSED = frozenset({"INVALID_RECORD", "POLICY_VIOLATION", "INVALID_REQUIRED_ACKS", "UNSUPPORTED_FOR_MESSAGE_FORMAT"})
TOO_LARGE = "MSG_SIZE_TOO_LARGE"


def access_error(code: str, text: str) -> AuthenticationError | None:
    """Return the error that no retry cures, credentials or rights, or None.

    Args:
        code: Name of the error code, as `KafkaError.name()` gives it.
        text: The client's own words.
    """
    if code in _CREDENTIALS:
        return AuthenticationError(
            f"The cluster refused the connection ({code}: {text}). Check CONNECTOR_KAFKA_SECURITY_PROTOCOL, "
            "CONNECTOR_KAFKA_SASL_MECHANISM, CONNECTOR_KAFKA_SASL_USERNAME and CONNECTOR_KAFKA_SASL_PASSWORD."
        )
    if code in _RIGHTS:
        return AuthenticationError(f"The cluster refused access ({code}: {text}). Grant the ACL {_RIGHTS[code]}.")
    return None


def delivery_error(topic: str, code: str, text: str) -> ConnectorError:
    """Return what to raise when a record for this topic was not confirmed."""
    refused = access_error(code, f"topic {topic}: {text}")
    if refused is not None:
        return refused
    if code in _REFUSED:
        return ConfigError(
            f"The topic {topic} takes no such record ({code}: {text}). It must be a plain one: cleanup.policy=delete, "
            "without a check of keys or schemas."
        )
    return TransientError(f"topic {topic} did not confirm a record ({code}: {text})")
