"""What a reset would do: from where to where, what is skipped and what repeated, or why it is refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from connector.api.errors import ExitCode, FatalError
from connector.api.sink import StoredPosition
from connector.api.types import Offset
from connector.source.position import Committed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from connector.offsets.state import GroupState, Key, LogRange, PartitionState


class Edge(Enum):
    """An end of the log as the target of a reset."""

    EARLIEST = "earliest"
    LATEST = "latest"


Target: TypeAlias = "Edge | datetime | Offset"
"""What `--to` says: an end of the log, a time, or an offset for every partition."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where one partition is to go. `topic_id` is that of the topic that a saved position belongs to, if known."""

    position: Offset
    note: str = ""
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One partition from where it is to where it shall be."""

    state: PartitionState
    log: LogRange
    to: Offset
    note: str = ""

    @property
    def skipped(self) -> int | None:
        """Offsets that would have been read without it, as many records at most; None: not known before a start."""
        return None if self.state.start is None else max(0, self.to - self.state.start)

    @property
    def repeated(self) -> int | None:
        """Offsets that would not have been read without it; None: not known before a start."""
        return None if self.state.start is None else max(0, self.state.start - self.to)

    @property
    def committed(self) -> Committed:
        """What the group is given: a position with the facts of its topic, as the connector itself commits it."""
        return Committed(self.to, self.state.facts)

    @property
    def stored(self) -> StoredPosition:
        """What the sink is given."""
        return StoredPosition(self.to, self.state.facts.topic_id if self.state.facts else None)


class RefusedResetError(FatalError):
    """A reset that was not begun."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, reasons: Iterable[str]) -> None:
        super().__init__("\n  - ".join(("refused, nothing was changed", *reasons)))


@dataclass(frozen=True, slots=True)
class Scope:
    """Which partitions are meant: of these topics, and these partitions of each; none named: all."""

    topics: frozenset[str] = frozenset()
    partitions: frozenset[int] = frozenset()

    def takes(self, key: Key) -> bool:
        """Whether this one is meant."""
        topic, partition = key
        return (not self.topics or topic in self.topics) and (not self.partitions or partition in self.partitions)

    def check(self, keys: Collection[Key]) -> None:
        """See that everything that was named is among these partitions.

        Raises:
            RefusedResetError: It is not.
        """
        topics = {topic for topic, _ in keys}
        if unknown := sorted(self.topics - topics):
            known = ", ".join(sorted(topics)) or "none"
            raise RefusedResetError(
                f"--topic {topic}: there is no such topic here; there are: {known}" for topic in unknown
            )
        partitions = {partition for topic, partition in keys if not self.topics or topic in self.topics}
        if missing := sorted(self.partitions - partitions):
            raise RefusedResetError(f"--partition {partition}: none of the topics has it" for partition in missing)


def parse_target(text: str) -> Target:
    """Read what `--to` says. A time without a zone is UTC.

    Raises:
        ValueError: It is none of these.
    """
    if text.isascii() and text.isdecimal():
        return Offset(int(text))
    try:
        return Edge(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not earliest, latest, an offset, or a time such as 2026-01-31T00:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def wanted_at(states: Iterable[PartitionState], target: Edge | Offset) -> dict[Key, Wanted]:
    """Return the target for each partition that has a log."""
    wanted = {}
    for state in states:
        if isinstance(target, Edge):
            if state.log is not None:
                wanted[state.key] = Wanted(state.log.start if target is Edge.EARLIEST else state.log.end)
        else:
            wanted[state.key] = Wanted(target)
    return wanted


def wanted_at_time(states: Iterable[PartitionState], found: Mapping[Key, Offset | None]) -> dict[Key, Wanted]:
    """Return the first offset at or after a time, as it was found; where there is none, the end."""
    wanted = {}
    for state in states:
        if state.log is None:
            continue
        offset = found[state.key]
        if offset is None or offset > state.log.end:
            wanted[state.key] = Wanted(state.log.end, "no record at that time or later: the end")
        else:
            wanted[state.key] = Wanted(max(offset, state.log.start))
    return wanted


def plan_moves(states: Iterable[PartitionState], wanted: Mapping[Key, Wanted]) -> tuple[Move, ...]:
    """Return what a reset would do.

    Args:
        states: What was read, of every partition that is wanted or not.
        wanted: Where to.

    Raises:
        RefusedResetError: A position that is not in the log of its partition, or not of this topic; a topic or
            partition that does not exist. Nothing of the reset is done then.
    """
    known = {state.key: state for state in states}
    moves: list[Move] = []
    problems: list[str] = []
    for key, want in sorted(wanted.items()):
        state = known.get(key)
        problem = _problem(state, want)
        if problem is not None:
            problems.append(f"{key[0]}[{key[1]}]: {problem}")
        elif state is not None and state.log is not None:
            moves.append(Move(state, state.log, want.position, _note(state, want)))
    if problems:
        raise RefusedResetError(problems)
    return tuple(moves)


def refuse_members(group_id: str, group: GroupState) -> RefusedResetError:
    """Return the refusal while the group has members, who would go on from where they are."""
    return RefusedResetError(
        [
            f"the group {group_id} has members, who would go on from where they are: stop them",
            *(f"member {member}" for member in group.members),
            f"the group is {group.state}; a member that was killed, or is static, stays until its session times out",
        ]
    )


def _problem(state: PartitionState | None, want: Wanted) -> str | None:
    if state is None or state.facts is None:
        return "the topic does not exist, or it may not be described (ACL: Describe on the topic)"
    if state.log is None:
        return state.note
    if want.topic_id is not None and state.facts.topic_id is not None and want.topic_id != state.facts.topic_id:
        return "the topic was made again since the position was saved, so that it means nothing"
    if want.position not in state.log:
        return f"{want.position} is not in the log, which goes from {state.log.start} to {state.log.end}"
    return None


def _note(state: PartitionState, want: Wanted) -> str:
    notes = [want.note, state.note]
    committed = state.committed.position if state.committed is not None else None
    if state.stored is not None and state.position not in (None, committed):
        notes.append(f"from: the sink's; the group's is {'-' if committed is None else committed}")
    return "; ".join(filter(None, notes))
