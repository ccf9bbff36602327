"""Does what a plan says: the group's positions first, then the sink's, then reads both back.

In this order because only the broker can say, in the same step, that the group has no member: it refuses a commit from
outside otherwise. So nothing is changed when a member joined at the last moment. If the sink then fails, or the command
dies, lanes start where the sink stands, as if nothing had been done, and the same command again completes it. A member
that joins after the broker's word is refused by the sink (its owner token is gone), claims again, and starts at the new
position (ADR-0012).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from connector.api.errors import ExitCode, FatalError
from connector.offsets.plan import refuse_members

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from connector.api.sink import StoredPosition
    from connector.offsets.plan import Move
    from connector.offsets.state import GroupState, Key
    from connector.source.position import Committed

_HAS_MEMBERS = frozenset({"UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "STALE_MEMBER_EPOCH"})


class Group(Protocol):
    """What is asked of `connector.offsets.group.GroupClient`."""

    def describe(self) -> GroupState: ...
    def commit(self, positions: Mapping[Key, Committed]) -> dict[Key, str]: ...
    def committed(self, keys: Collection[Key]) -> dict[Key, Committed]: ...


class Stored(Protocol):
    """What is asked of `connector.offsets.sink_positions.SinkPositions`."""

    @property
    def are_held(self) -> bool: ...
    def reset(self, positions: Mapping[Key, StoredPosition]) -> None: ...
    def read(self) -> Mapping[Key, StoredPosition]: ...


class IncompleteResetError(FatalError):
    """Some positions are not as they were to be set; each is named."""

    exit_code = ExitCode.DEADLINE


class SinkNotResetError(FatalError):
    """The group's positions are set, those that the sink holds are not."""


def apply_moves(group_id: str, moves: Sequence[Move], group: Group, stored: Stored) -> None:
    """Set the positions, and see that they are set.

    Raises:
        RefusedResetError: The group has members; nothing was changed.
        SinkNotResetError: See there.
        IncompleteResetError: See there.
        FatalError: The cluster does not answer.
    """
    state = group.describe()
    if not state.is_empty:
        raise refuse_members(group_id, state)
    refused = group.commit({move.state.key: move.committed for move in moves})
    if len(refused) == len(moves) and _HAS_MEMBERS.issuperset(refused.values()):
        raise refuse_members(group_id, group.describe())
    problems = [f"{_name(key)}: the broker refused the position: {code}" for key, code in sorted(refused.items())]
    accepted = [move for move in moves if move.state.key not in refused]
    if stored.are_held and accepted:
        _reset_sink(accepted, stored)
    problems += _differences(accepted, group, stored)
    if problems:
        raise IncompleteResetError(
            "\n  - ".join((f"{len(problems)} of {len(moves)} positions are not set as planned", *problems))
        )


def _reset_sink(moves: Sequence[Move], stored: Stored) -> None:
    try:
        stored.reset({move.state.key: move.stored for move in moves})
    except FatalError as error:
        raise SinkNotResetError(
            f"the group's positions are set, those in the sink are not: {error}. Lanes start where the sink stands, as "
            "if nothing had been done. Give the same command again when the sink is there."
        ) from error


def _differences(moves: Sequence[Move], group: Group, stored: Stored) -> list[str]:
    """Read back, and return what is not as it was set."""
    committed = group.committed([move.state.key for move in moves])
    in_sink = stored.read() if stored.are_held else None
    problems: list[str] = []
    for move in moves:
        key = move.state.key
        if committed.get(key) != move.committed:
            found = committed[key].position if key in committed else "none"
            problems.append(f"{_name(key)}: the group's position is {found} after it was set to {move.to}")
        if in_sink is not None and in_sink.get(key) != move.stored:
            found = in_sink[key].next_offset if key in in_sink else "none"
            problems.append(f"{_name(key)}: the sink's position is {found} after it was set to {move.to}")
    return problems


def _name(key: Key) -> str:
    return f"{key[0]}[{key[1]}]"
