"""What an error of the producer means: later, never for this record, or missing rights. Pure.

Judged by code. What is not known here may work later.
"""

from __future__ import annotations

from connector import AuthenticationError, ConfigError, FatalError, PoisonError, TransientError

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
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Write and Describe on the transactional id",
    "GROUP_AUTHORIZATION_FAILED": "Read on the group",
}
_POISON = frozenset(
    {
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "POLICY_VIOLATION",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    }
)
_ADVICE = {
    "UNKNOWN_TOPIC_OR_PART": "Create the topic.",
    "_UNKNOWN_TOPIC": "Create the topic.",
    "_UNKNOWN_PARTITION": "Give the topic as many partitions as the one that is read has, or set "
    "CONNECTOR_SINK_PARTITION=key.",
    "NOT_ENOUGH_REPLICAS": "Fewer replicas are in sync than min.insync.replicas asks for.",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "Fewer replicas are in sync than min.insync.replicas asks for.",
}
_REBALANCE = frozenset(
    {
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
        "STALE_MEMBER_EPOCH",
        "FENCED_MEMBER_EPOCH",
        "FENCED_INSTANCE_ID",
    }
)
_FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"})
TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})


def access_error(code: str, text: str) -> AuthenticationError | None:
    """Return the error that no retry cures, credentials or rights, or None.

    Args:
        code: Name of the error code, as `KafkaError.name()` gives it.
        text: The client's own words.
    """
    if code in _CREDENTIALS:
        return AuthenticationError(
            f"The sink's cluster refused the connection ({code}: {text}). Check CONNECTOR_SINK_PROPERTIES, or where "
            "CONNECTOR_SINK_BOOTSTRAP_SERVERS is not set, the CONNECTOR_KAFKA_* settings."
        )
    if code in _RIGHTS:
        return AuthenticationError(f"The sink's cluster refused access ({code}: {text}). Grant {_RIGHTS[code]}.")
    return None


def transaction_error(what: str, code: str, text: str) -> TransientError | FatalError:
    """Return what to raise when a transaction could not be begun or committed; `what` names its records."""
    if (denied := access_error(code, f"{what}: {text}")) is not None:
        return denied
    if code == "INVALID_TRANSACTION_TIMEOUT":
        return ConfigError(
            f"The broker refuses CONNECTOR_SINK_TRANSACTION_TIMEOUT ({text}). Set it to no more than its "
            "transaction.max.timeout.ms."
        )
    if code in _REBALANCE:
        return TransientError(f"{what}: the group has rebalanced meanwhile, the transaction is aborted ({code})")
    if code in _FENCED:
        return TransientError(
            f"{what}: the broker has ended the transaction ({code}: {text}). It took longer than "
            "CONNECTOR_SINK_TRANSACTION_TIMEOUT, or another producer has the same CONNECTOR_SINK_TRANSACTIONAL_ID."
        )
    return TransientError(f"{what}: the transaction did not succeed ({code}: {text})")


def delivery_error(what: str, code: str, text: str) -> TransientError | PoisonError | FatalError:
    """Return what to raise for records that were not delivered; `what` names them and their topic."""
    if (denied := access_error(code, f"{what}: {text}")) is not None:
        return denied
    if code == "TOPIC_EXCEPTION":
        return ConfigError(f"{what}: {text}. Set CONNECTOR_SINK_TOPIC to a template that makes names Kafka allows.")
    problem = f"{what} was not delivered ({code}: {text})"
    if code in _POISON:
        return PoisonError(problem)
    return TransientError(f"{problem}. {_ADVICE[code]}" if code in _ADVICE else problem)
