"""`connector offsets show` and `connector offsets reset`: a group's positions, in Kafka and in the sink."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING

from connector.api.sink import SinkContext
from connector.cli.table import print_table
from connector.cli.workshop import start_policies
from connector.config.load import load
from connector.offsets.apply import apply_moves
from connector.offsets.document import SavedPositions, csv_document, json_document, read_document
from connector.offsets.group import GroupClient
from connector.offsets.plan import (
    RefusedResetError,
    Scope,
    Target,
    parse_target,
    plan_moves,
    refuse_members,
    wanted_at,
    wanted_at_time,
)
from connector.offsets.sink_positions import SinkPositions
from connector.source.client_config import admin_properties, ignored_topics
from connector.telemetry.logs import configure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from connector.config.load import Config
    from connector.offsets.plan import Move, Wanted
    from connector.offsets.state import GroupState, Key, PartitionState, Reading

_ABSENT = "-"
_ANSWER_SECONDS = 15.0


class Form(Enum):
    """How `show` writes."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Choice:
    """What `reset` is to do, as it was typed: one of `to` and `file`."""

    to: str | None
    file: Path | None
    scope: Scope

    def target(self) -> Target | SavedPositions:
        """Return where to.

        Raises:
            RefusedResetError: Neither or both are given, or what is given cannot be read.
        """
        if (self.to is None) == (self.file is None):
            raise RefusedResetError(["give one of --to and --from-file"])
        if self.to is not None:
            try:
                return parse_target(self.to)
            except ValueError as error:
                raise RefusedResetError([f"--to {self.to} {error}"]) from error
        try:
            return read_document(self.file.read_text(encoding="utf-8-sig") if self.file else "")
        except (OSError, UnicodeDecodeError) as error:
            raise RefusedResetError([f"--from-file {self.file} cannot be read: {error}"]) from error


@dataclass(frozen=True, slots=True)
class _Session:
    """What both commands work with, once the configuration is loaded."""

    group_id: str
    group: GroupClient
    sink: SinkPositions


def show(env_file: Path | None, form: Form) -> None:
    """Print where the group stands; changes nothing.

    Raises:
        ConfigError: The settings are wrong.
        FatalError: The cluster or the sink does not answer, or refuses us.
    """
    with _session(env_file) as session:
        reading = session.group.read(session.sink.read())
    if session.sink.are_held and not session.sink.are_resettable:
        print(
            f"connector: the sink {session.sink.name} holds positions, which count, but does not tell them. Those here "
            "are the group's.",
            file=sys.stderr,
        )
    match form:
        case Form.JSON:
            print(json_document(reading), end="")
        case Form.CSV:
            print(csv_document(reading), end="")
        case Form.TABLE:
            _print_reading(reading, has_sink=session.sink.are_resettable)


def reset(env_file: Path | None, choice: Choice, *, is_executed: bool) -> None:
    """Print what a reset would do, and do it if `is_executed`.

    Raises:
        ConfigError: The settings are wrong.
        RefusedResetError: It cannot be done; nothing was changed.
        FatalError: The cluster or the sink does not answer, or refuses us, or has done only a part: the text says what.
    """
    target = choice.target()
    with _session(env_file) as session:
        sink = session.sink
        if sink.are_held and not sink.are_resettable:
            reason = f"the sink {sink.name} holds positions, which count, and has no way to reset them"
            raise RefusedResetError([f"{reason}; setting the group's alone would change nothing"])
        in_file = {topic for topic, _ in target.wanted} if isinstance(target, SavedPositions) else set()
        reading = session.group.read(sink.read(), choice.scope.topics | in_file)
        moves = plan_moves(reading.partitions, _wanted(session.group, reading, choice.scope, target))
        if not moves:
            raise RefusedResetError(["there is nothing to set: no partition is left"])
        _print_moves(moves)
        if not is_executed:
            if not reading.group.is_empty:
                raise refuse_members(session.group_id, reading.group)
            print("Nothing was changed. --execute sets these positions.")
            return
        apply_moves(session.group_id, moves, session.group, sink)
        also = f" and of the sink {sink.name}" if sink.are_held else ""
        print(f"Set, and read back: {_count(len(moves), 'position')} of the group {session.group_id}{also}.")


@contextlib.contextmanager
def _session(env_file: Path | None) -> Iterator[_Session]:
    config = load(os.environ, env_file)
    configure("error")
    settings = config.settings
    properties = {"log_level": 0, **admin_properties(config.client)}  # an error says what the client would
    with (
        contextlib.closing(SinkPositions(settings.sink, config.sink(config.sink_settings, _context(config)))) as sink,
        contextlib.closing(
            GroupClient(
                properties,
                settings.group_id,
                settings.topics,
                ignored=ignored_topics(config.client),
                policies=start_policies(settings),
                timeout=min(settings.startup_timeout, _ANSWER_SECONDS),
            )
        ) as group,
    ):
        yield _Session(settings.group_id, group, sink)


def _context(config: Config) -> SinkContext:
    settings = config.settings
    return SinkContext(
        group_id=settings.group_id,
        pipelines=settings.pipelines,
        host=platform.node(),
        tombstones="delete" if settings.tombstones == "delete" else "write",
        value_format=settings.value_format,
    )


def _wanted(
    group: GroupClient, reading: Reading, scope: Scope, target: Target | SavedPositions
) -> Mapping[Key, Wanted]:
    """Return where each partition is to go that the reset is about."""
    if isinstance(target, SavedPositions):
        scope.check([*target.wanted, *target.without])
        without = [key for key in target.without if scope.takes(key)]
        if without:
            print(f"Left as they are, since the file has no position for them: {_names(without)}.")
        return {key: wanted for key, wanted in target.wanted.items() if scope.takes(key)}
    for topic in reading.missing:
        print(f"Left out: {topic} of CONNECTOR_TOPICS, which does not exist.")
    for topic in reading.denied:
        print(f"Left out: {topic} of CONNECTOR_TOPICS, which may not be described.")
    # A topic that is named need not be of CONNECTOR_TOPICS.
    states = [state for state in reading.partitions if scope.topics or state.topic in reading.subscribed]
    scope.check([state.key for state in states])
    states = [state for state in states if scope.takes(state.key)]
    if isinstance(target, datetime):
        return wanted_at_time(states, group.offsets_at([state.key for state in states if state.log], target))
    return wanted_at(states, target)


def _print_reading(reading: Reading, *, has_sink: bool) -> None:
    _print_group(reading.group_id, reading.group)
    if reading.partitions:
        print()
        rows = [_row(state, has_sink=has_sink) for state in reading.partitions]
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    for topic in reading.missing:
        print(f"{topic} of CONNECTOR_TOPICS does not exist.")
    for topic in reading.denied:
        print(f"{topic} of CONNECTOR_TOPICS may not be described: grant the ACL Describe on the topic.")


def _print_group(group_id: str, group: GroupState) -> None:
    if group.state == "dead":
        print(f"Group {group_id}: there is none yet.")
        return
    print(f"Group {group_id}: {group.state}, {group.protocol} protocol, {_count(len(group.members), 'member')}")
    for member in group.members:
        print(f"  {member}: {_count(len(member.partitions), 'partition')}")


def _row(state: PartitionState, *, has_sink: bool) -> dict[str, str]:
    facts = state.committed.facts if state.committed else None
    return {
        "topic": state.topic,
        "partition": str(state.partition),
        "committed": _shown(state.committed.position if state.committed else None),
        "metadata": f"{_count(facts.partitions, 'partition')}, id {facts.topic_id or _ABSENT}" if facts else _ABSENT,
        **({"sink": _shown(state.stored.next_offset if state.stored else None)} if has_sink else {}),
        "log start": _shown(state.log.start if state.log else None),
        "log end": _shown(state.log.end if state.log else None),
        "lag": _shown(state.lag),
        "note": state.note,
    }


def _print_moves(moves: Sequence[Move]) -> None:
    print_table(
        ("topic", "partition", "from", "to", "skipped", "repeated", "note"),
        [
            (
                move.state.topic,
                str(move.state.partition),
                _shown(move.state.position),
                str(move.to),
                _shown(move.skipped),
                _shown(move.repeated),
                move.note,
            )
            for move in moves
        ],
    )
    skipped, repeated = (
        sum(filter(None, each)) for each in zip(*((m.skipped, m.repeated) for m in moves), strict=True)
    )
    unknown = sum(move.state.start is None for move in moves)
    print(f"\n{_count(len(moves), 'partition')}: {_count(skipped, 'offset')} skipped, {repeated} repeated.")
    if unknown:
        print(f"For {_count(unknown, 'partition')} neither is known, since no position says where it would start.")
    print("Compacted and transactional logs have gaps: there may be fewer records than offsets.")


def _shown(number: int | None) -> str:
    return _ABSENT if number is None else str(number)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _names(keys: Sequence[Key]) -> str:
    return ", ".join(f"{topic}[{partition}]" for topic, partition in keys)
