"""`Intents`: what an operator wants held back: everything, a topic, or a partition. Immutable and pure.

For a partition the most specific intent counts: its own, else its topic's, else the one for everything. An intent takes
the place of the narrower ones beneath it, so in effect the latest that covers a partition decides. Partitions need not
be assigned, or exist: they are held back when they come. The admin's verbs make each value; the controller and the
consumer thread get it whole, and keep the newest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Scope(NamedTuple):
    """What an intent is for: everything, a topic, or a partition, which has a topic."""

    topic: str | None = None
    partition: int | None = None

    def __str__(self) -> str:
        if self.topic is None:
            return "everything"
        return self.topic if self.partition is None else f"{self.topic}[{self.partition}]"

    @property
    def wider(self) -> Scope | None:
        """The scope around it; None: it is everything."""
        if self.partition is not None:
            return Scope(self.topic)
        return EVERYTHING if self.topic is not None else None

    def covers(self, other: Scope) -> bool:
        """Whether the other is this one, or beneath it."""
        return self.topic in (None, other.topic) and self.partition in (None, other.partition)


EVERYTHING = Scope()


@dataclass(frozen=True, slots=True)
class Intent:
    """One intent in force, as the status shows it. `topic` is None for everything, `partition` for a whole topic."""

    topic: str | None
    partition: int | None
    is_held_back: bool


@dataclass(frozen=True, slots=True)
class Intents:
    """The intents in force. Equal values hold the same partitions back: one that changes nothing is not kept."""

    _by_scope: Mapping[Scope, bool] = field(default_factory=dict)

    def want(self, scope: Scope, *, is_held_back: bool) -> Intents:
        """Return the intents with one more."""
        kept = {each: intent for each, intent in self._by_scope.items() if not scope.covers(each)}
        without = Intents(kept)
        return without if without._holds(scope) is is_held_back else Intents({**kept, scope: is_held_back})

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a partition is held back."""
        return self._holds(Scope(topic, partition))

    @property
    def holds_everything(self) -> bool:
        """Whether everything is held back, without exception."""
        return self._by_scope == {EVERYTHING: True}

    @property
    def in_force(self) -> tuple[Intent, ...]:
        """The intents, the wide ones first."""
        wide_first = sorted(
            self._by_scope, key=lambda at: (at.topic or "", -1 if at.partition is None else at.partition)
        )
        return tuple(Intent(*scope, self._by_scope[scope]) for scope in wide_first)

    def __str__(self) -> str:
        """For the log: `nothing held back`, or `orders held back, orders[3] not`."""
        if not self._by_scope:
            return "nothing held back"
        return ", ".join(
            f"{Scope(each.topic, each.partition)} {'held back' if each.is_held_back else 'not'}"
            for each in self.in_force
        )

    def _holds(self, scope: Scope) -> bool:
        at: Scope | None = scope
        while at is not None:
            if at in self._by_scope:
                return self._by_scope[at]
            at = at.wider
        return False
