"""Sends dead letters back: key, value, headers and timestamp as they were, and one header that counts the replays.

Positions are those of the group `<dead letter topic>.replay`, committed when the cluster has confirmed what was sent,
so a replay that was interrupted goes on where it stood and repeats at most the last few. For `connector dlq replay`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from connector.api.errors import ConfigError, FatalError, PoisonFatalError, TransientError, UnreachableError
from connector.dlq.outcome import TOO_LARGE, delivery_error
from connector.dlq.producer import Outgoing
from connector.dlq.reader import LetterFilter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import KafkaError

    from connector.dlq.letter import Letter
    from connector.dlq.producer import ConfirmingProducer
    from connector.dlq.reader import Entry, LetterReader

_CHUNK = 100
PRODUCER_TIMEOUT_SECONDS = 30.0


def replay_group(topic: str) -> str:
    """Return the consumer group that holds how far a dead letter topic is replayed."""
    return f"{topic}.replay"


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is replayed, and where to. `target` None: to where each record came from. `limit` None: all."""

    topic: str
    filter: LetterFilter = field(default_factory=LetterFilter)
    target: str | None = None
    limit: int | None = None
    max_replays: int = 5
    is_dry: bool = False


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """How many letters went to which topic, and how many were passed over for which reason."""

    replayed: Counter[str] = field(default_factory=Counter)
    passed_over: Counter[str] = field(default_factory=Counter)


def replay(plan: ReplayPlan, reader: LetterReader, producer: ConfirmingProducer, report: ReplayReport) -> None:
    """Replay until the end or the limit is reached. The report is right also after an error.

    A letter that does not go stops the replay before its own position is committed. A dry one sends and commits
    nothing.

    Args:
        plan: What to do.
        reader: Started at the first letter to look at.
        producer: Sends them.
        report: Filled in.

    Raises:
        ConfigError: A target does not exist, or is the dead letter topic itself.
        PoisonFatalError: The target does not take a letter for its size.
        AuthenticationError: The credentials are refused, or a right is missing.
        UnreachableError: The cluster does not answer.
    """
    try:
        partitions = producer.topics()
    except TransientError as error:
        raise UnreachableError(f"{error}. Check CONNECTOR_BOOTSTRAP_SERVERS and the cluster.") from error
    while (left := _left(plan, report)) > 0 and (entries := reader.read(min(_CHUNK, left))):
        sent, problem = _select(plan, entries, partitions, report)
        failures: Mapping[int, KafkaError] = {}
        if sent and not plan.is_dry:
            failures = producer.send([record for _, record in sent])
        report.replayed.update(record.topic for index, (_, record) in enumerate(sent) if index not in failures)
        if not plan.is_dry:
            handled = entries if problem is None else entries[: entries.index(problem[0])]
            reader.commit(_positions(handled, [sent[index][0] for index in sorted(failures)]))
        if failures:
            first = min(failures)
            raise _refused(*sent[first], failures[first])
        if problem is not None:
            raise problem[1]


def _left(plan: ReplayPlan, report: ReplayReport) -> int:
    return _CHUNK if plan.limit is None else plan.limit - report.replayed.total()


def _select(
    plan: ReplayPlan, entries: Sequence[Entry], partitions: Mapping[str, int], report: ReplayReport
) -> tuple[list[tuple[Entry, Outgoing]], tuple[Entry, FatalError] | None]:
    """Return what is to be sent, up to the first letter that cannot go, and that one with the reason."""
    sent: list[tuple[Entry, Outgoing]] = []
    for entry in entries:
        letter = entry.letter
        if letter is None:
            report.passed_over["not a dead letter"] += 1
        elif not plan.filter.takes(entry, letter):
            report.passed_over["left out by the filter"] += 1
        elif letter.origin.truncated_bytes is not None:
            report.passed_over["truncated, so that it is not the record"] += 1
        elif letter.origin.replays >= plan.max_replays:
            report.passed_over[f"replayed {plan.max_replays} times before"] += 1
        else:
            target = plan.target or letter.origin.topic
            problem = _wrong_target(plan, entry, target, partitions)
            if problem is not None:
                return sent, (entry, problem)
            sent.append((entry, _outgoing(letter, target, partitions[target])))
    return sent, None


def _wrong_target(plan: ReplayPlan, entry: Entry, target: str, partitions: Mapping[str, int]) -> FatalError | None:
    where = f"{plan.topic}[{entry.partition}]@{entry.offset}"
    if target == plan.topic:
        return ConfigError(f"{where} would go to {target}, the dead letter topic itself. Choose another topic by --to.")
    if target not in partitions:
        return ConfigError(
            f"{where} would go to {target}, which does not exist, or this user may not describe it. Create it, or "
            "choose another topic by --to."
        )
    return None


def _outgoing(letter: Letter, target: str, partitions: int) -> Outgoing:
    origin = letter.origin
    # Whoever chose the partition had a reason, unless the topic has been made again with fewer of them.
    is_home = target == origin.topic and origin.partition < partitions
    return Outgoing(
        target,
        letter.key,
        letter.value,
        letter.replay_headers(),
        partition=origin.partition if is_home else -1,
        timestamp_ms=origin.timestamp_ms or 0,
    )


def _positions(handled: Sequence[Entry], failed: Sequence[Entry]) -> dict[int, int]:
    """Return the position after these for each partition, or that of its first one that failed."""
    positions = {entry.partition: entry.offset + 1 for entry in handled}
    positions |= {entry.partition: entry.offset for entry in reversed(failed)}
    return positions


def _refused(entry: Entry, record: Outgoing, error: KafkaError) -> FatalError:
    what = f"The letter in partition {entry.partition} at offset {entry.offset}"
    if error.name() == TOO_LARGE:
        return PoisonFatalError(
            f"{what} is larger than {record.topic} takes. Raise max.message.bytes of that topic, or choose another by "
            "--to."
        )
    found = delivery_error(record.topic, error.name(), error.str())
    if isinstance(found, FatalError):
        return found
    return UnreachableError(f"{what} was not replayed: {found}. Call it again; it goes on there.")
