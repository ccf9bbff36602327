"""What each error code of a commit means: try again, wait for the group to settle, or end the process.

One table, by the code's name as `KafkaError.name()` gives it. A code that is not in it is tried again with backoff and
counted: a commit that does not succeed costs a replay, never a record, so an unknown code is no reason to stop.

Read in librdkafka's handling of OffsetCommit (`rd_kafka_handle_OffsetCommit_error` and the group's handler, which
follow Java's ConsumerCoordinator), in its description of each code, and in KIP-848, KIP-345, KIP-211. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from connector.api.errors import AuthenticationError, ConfigError, FencedError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connector.api.errors import FatalError


class Outcome(Enum):
    """What to do after a failed commit."""

    RETRY = "retry"  # again, with backoff
    WAIT = "wait"  # not until the group has settled: the lane is about to go, or the broker refuses all of it
    FATAL = "fatal"  # will never work: drain and exit


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: the outcome, what the code tells of a commit, and the error that a fatal one ends the process with."""

    outcome: Outcome
    reason: str
    error: type[FatalError] | None = None


_BUG = "This is a bug in Sluiceway; please report it."


def _retry(reason: str) -> Rule:
    return Rule(Outcome.RETRY, reason)


def _wait(reason: str) -> Rule:
    return Rule(Outcome.WAIT, reason)


def _fatal(error: type[FatalError], reason: str) -> Rule:
    return Rule(Outcome.FATAL, reason, error)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        # The coordinator is away or slow. The client itself looks for it again; a position that was written although
        # the answer was lost is written again with the same value.
        "COORDINATOR_LOAD_IN_PROGRESS": _retry("the coordinator reads its log after a move"),
        "COORDINATOR_NOT_AVAILABLE": _retry("the coordinator is away, or its offsets topic lacks replicas"),
        "NOT_COORDINATOR": _retry("the group has moved to another broker"),
        "REQUEST_TIMED_OUT": _retry("the offsets topic's replicas did not answer in time"),
        "NETWORK_EXCEPTION": _retry("the connection broke"),
        "KAFKA_STORAGE_ERROR": _retry("the coordinator's disk failed; the group moves to another broker"),
        "UNKNOWN": _retry("the broker had an internal error"),
        "_WAIT_COORD": _retry("no coordinator was found in time"),
        "_TIMED_OUT": _retry("no answer in time"),
        "_TIMED_OUT_QUEUE": _retry("the request was not sent in time"),
        "_TRANSPORT": _retry("the connection broke"),
        "_ALL_BROKERS_DOWN": _retry("no broker is reachable"),
        "_RESOLVE": _retry("the broker's name does not resolve"),
        "_RETRY": _retry("the client asks for another try"),
        "_IN_PROGRESS": _retry("the client is busy with the commit before"),
        "_PREV_IN_PROGRESS": _retry("the client is busy with the commit before"),
        "_DESTROY_BROKER": _retry("the client has dropped this connection"),
        # The group moves, and this member may keep the partition.
        "REBALANCE_IN_PROGRESS": _retry("the group rebalances; kept partitions are committed after it"),
        # The client hurries its heartbeat to learn the new epoch, but gives a commit of ours back (KIP-848).
        "STALE_MEMBER_EPOCH": _retry("the member's epoch has moved on; the next heartbeat brings the new one"),
        # The member is out. The client rejoins and reports the partitions lost; under the cooperative protocol it may
        # keep them through a rebalance that it is already in, so this is a wait, not an end.
        "ILLEGAL_GENERATION": _wait("the group has gone on to another generation"),
        "UNKNOWN_MEMBER_ID": _wait("the group does not know this member any more"),
        "FENCED_MEMBER_EPOCH": _wait("the coordinator has fenced this member; it joins again (KIP-848)"),
        "GROUP_ID_NOT_FOUND": _wait("the group was deleted; the member joins again"),
        "_ASSIGNMENT_LOST": _wait("the partitions belong to somebody else"),
        "_MAX_POLL_EXCEEDED": _wait("the client has left the group after max.poll.interval.ms"),
        "_OUTDATED": _wait("the assignment has changed since"),
        "_STATE": _wait("the client is between two assignments, or closing"),
        "_UNKNOWN_GROUP": _wait("the client has left the group"),
        "_DESTROY": _wait("the client is closing"),
        # The partition is gone, or there was nothing to commit.
        "UNKNOWN_TOPIC_OR_PART": _wait("the topic was deleted, or the metadata has not caught up"),
        "UNKNOWN_TOPIC_ID": _wait("the topic was deleted and perhaps made again"),
        "_UNKNOWN_TOPIC": _wait("the topic was deleted"),
        "_UNKNOWN_PARTITION": _wait("the partition does not exist any more"),
        "_NO_OFFSET": _wait("there was nothing to commit"),
        # Rights and credentials.
        "GROUP_AUTHORIZATION_FAILED": _fatal(AuthenticationError, "Grant Read on the group."),
        "TOPIC_AUTHORIZATION_FAILED": _fatal(AuthenticationError, "Grant Read on the topic."),
        "CLUSTER_AUTHORIZATION_FAILED": _fatal(AuthenticationError, "Grant the missing right on the cluster."),
        "SASL_AUTHENTICATION_FAILED": _fatal(AuthenticationError, "Check the SASL settings."),
        "_AUTHENTICATION": _fatal(AuthenticationError, "Check the SASL and TLS settings."),
        # The client will never commit again.
        "FENCED_INSTANCE_ID": _fatal(
            FencedError, "Another member has taken over this CONNECTOR_KAFKA_GROUP_INSTANCE_ID (KIP-345)."
        ),
        "_FENCED": _fatal(FencedError, "Another member has taken over this CONNECTOR_KAFKA_GROUP_INSTANCE_ID."),
        "_FATAL": _fatal(FencedError, "The Kafka client has failed for good. Start the process again."),
        # The broker cannot take what is sent.
        "UNSUPPORTED_VERSION": _fatal(
            ConfigError, "The broker is too old for it; set CONNECTOR_GROUP_PROTOCOL=classic."
        ),
        "_UNSUPPORTED_FEATURE": _fatal(
            ConfigError, "The broker is too old for it; set CONNECTOR_GROUP_PROTOCOL=classic."
        ),
        "OFFSET_METADATA_TOO_LARGE": _fatal(InvariantError, f"INV-4: too much metadata in a commit. {_BUG}"),
        "INVALID_COMMIT_OFFSET_SIZE": _fatal(InvariantError, f"INV-4: too many positions in a commit. {_BUG}"),
        "INVALID_REQUEST": _fatal(InvariantError, f"INV-4: the broker takes the commit as malformed. {_BUG}"),
        "INVALID_GROUP_ID": _fatal(InvariantError, f"INV-4: a commit without a usable group id. {_BUG}"),
        "_INVALID_ARG": _fatal(InvariantError, f"INV-4: the client takes the commit as malformed. {_BUG}"),
    }
)


def outcome_of(code: str) -> Outcome:
    """Return what to do after a commit failed with this code; an unknown one is tried again."""
    rule = RULES.get(code)
    return Outcome.RETRY if rule is None else rule.outcome


def error_for(code: str) -> FatalError | None:
    """Return the error that ends the process, None for a code that does not."""
    rule = RULES.get(code)
    if rule is None or rule.error is None:
        return None
    return rule.error(f"A commit was refused for good ({code}). {rule.reason}")
