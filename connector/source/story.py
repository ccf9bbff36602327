"""The story of a rebalance: the callbacks that belong together, as one value that is told once.

The client tells a rebalance in one callback or in two: a revocation and the assignment that answers it, which is often
empty; a loss, and an assignment after the member has joined again; a revocation alone, as under the consumer protocol
(KIP-848); an assignment alone. A revocation that nothing answers in time is told as it is. Every callback is in exactly
one story.

Pure: no clock, no Kafka. Belongs to the consumer thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.source.assignment import Key

_ANSWER_SECONDS = 30.0  # the others drain first, by default for 20 s at most
_ANSWER_SECONDS_CONSUMER = 5.0  # the broker answers at the next heartbeat, or never


@dataclass(frozen=True, slots=True)
class Release:
    """How lanes were given up: what their drain and their commit came to.

    Every lane is drained, or not drained because its sink was failing, or was still at work when the time was over.
    `committed` counts positions that moved; `codes` are Kafka's errors of those that could not be committed.
    """

    drain_seconds: float = 0.0
    drained: int = 0
    not_drained: int = 0
    timed_out: int = 0
    committed: int = 0
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Callback:
    """What one callback of the client did; times are time.monotonic(). `kept` are lanes that it left alone."""

    started: float
    ended: float
    protocol: str
    generation: int
    is_assignment: bool  # else a revocation or a loss
    kept: tuple[Key, ...]
    gained: tuple[Key, ...] = ()
    revoked: tuple[Key, ...] = ()
    lost: tuple[Key, ...] = ()
    release: Release | None = None


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """One rebalance from its first callback to its last. An eager group takes every lane and brings them anew.

    `generation` is the newest that the client knows: of the group, or the member's epoch (KIP-848). `callback_seconds`
    is how long the callbacks held the consumer thread, `total_seconds` also what lies between them.
    """

    number: int
    protocol: str
    generation: int
    gained: tuple[Key, ...]
    revoked: tuple[Key, ...]
    lost: tuple[Key, ...]
    kept: tuple[Key, ...]
    release: Release | None
    callback_seconds: float
    total_seconds: float

    @property
    def moves_lanes(self) -> bool:
        """Whether any lane came or went."""
        return bool(self.gained or self.revoked or self.lost)

    @property
    def costs(self) -> bool:
        """Whether records may be repeated for it, or positions are not committed."""
        release = self.release
        return bool(self.lost) or (
            release is not None and bool(release.not_drained or release.timed_out or release.codes)
        )


class RebalanceStory:
    """Puts callbacks together, in the order in which they come. `latest` is the newest story, complete or not."""

    def __init__(self) -> None:
        self.latest: Rebalanced | None = None
        self._number = 0
        self._open: Callback | None = None  # a revocation or loss that waits for its answer

    def add(self, callback: Callback) -> Sequence[Rebalanced]:
        """Take one more; returns the stories that are complete by it, oldest first."""
        told = [*self.overdue(callback.started)]
        if not callback.is_assignment:
            told += self.finish()
            self._open = callback
            self.latest = _story(self._number + 1, [callback])
            return told
        callbacks = [self._open, callback] if self._open else [callback]
        self._open = None
        return [*told, self._tell(callbacks)]

    def overdue(self, now: float) -> Sequence[Rebalanced]:
        """Return the story that has waited long enough for its answer, if there is one."""
        if self._open is None:
            return []
        patience = _ANSWER_SECONDS_CONSUMER if self._open.protocol == "consumer" else _ANSWER_SECONDS
        return self.finish() if now - self._open.ended >= patience else []

    def finish(self) -> Sequence[Rebalanced]:
        """Return the story that has no answer yet, if there is one: none will come."""
        if self._open is None:
            return []
        callback, self._open = self._open, None
        return [self._tell([callback])]

    def _tell(self, callbacks: Sequence[Callback]) -> Rebalanced:
        self._number += 1
        self.latest = _story(self._number, callbacks)
        return self.latest


def _story(number: int, callbacks: Sequence[Callback]) -> Rebalanced:
    first, last = callbacks[0], callbacks[-1]
    return Rebalanced(
        number=number,
        protocol=last.protocol,
        generation=last.generation,
        gained=last.gained,
        revoked=first.revoked,
        lost=tuple(key for callback in callbacks for key in callback.lost),
        kept=last.kept,
        release=first.release,
        callback_seconds=sum(callback.ended - callback.started for callback in callbacks),
        total_seconds=last.ended - first.started,
    )
