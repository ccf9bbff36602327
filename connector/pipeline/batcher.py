"""Collects one lane's records until a batch is full or old enough. Belongs to one pipeline thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from connector.api.record import Message
    from connector.api.types import Offset
    from connector.lane.lane import Chunk


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What ends a batch: rows, bytes, or seconds since its first record, whichever comes first."""

    rows: int = 5000
    size_bytes: int = 8 * 2**20
    linger_seconds: float = 0.2


class Collected(NamedTuple):
    """The records of one batch, their bytes, the position after them, and when the first came into the lane."""

    messages: list[Message]
    size_bytes: int
    next_offset: Offset
    since: float | None  # time.monotonic(); None: there are no records


@dataclass(slots=True)
class Batcher:
    """The records taken and not yet handed to the sink, and the position after them."""

    limits: BatchLimits
    messages: list[Message] = field(default_factory=list)
    size_bytes: int = 0
    next_offset: Offset | None = None  # None: nothing was taken since the last batch
    opened: float = 0.0  # when its first chunk was taken, time.monotonic()
    since: float | None = None  # when its first record came into the lane, time.monotonic()
    is_last: bool = False

    @property
    def room(self) -> int:
        """How many more rows fit."""
        return self.limits.rows - len(self.messages)

    def add(self, chunk: Chunk, now: float) -> None:
        """Append a chunk of at most `room` rows."""
        if self.next_offset is None:
            self.opened = now
        if self.since is None and chunk.messages:
            self.since = chunk.taken
        self.messages.extend(chunk.messages)
        self.size_bytes += chunk.size_bytes
        self.next_offset = chunk.next_offset
        self.is_last = chunk.is_last

    def reason(self, now: float) -> str | None:
        """Return why the batch must go now, the value of a metric label, or None while it may wait."""
        if self.next_offset is None:
            return None
        if self.is_last:
            return "end"
        if len(self.messages) >= self.limits.rows:
            return "rows"
        if self.size_bytes >= self.limits.size_bytes:
            return "bytes"
        # A position without records has nothing to wait for.
        return "linger" if not self.messages or now >= self.opened + self.limits.linger_seconds else None

    def clear(self) -> Collected:
        """Give out what is collected, and begin anew."""
        if self.next_offset is None:
            raise ValueError("there is no batch to give out")
        given = Collected(self.messages, self.size_bytes, self.next_offset, self.since)
        self.messages, self.size_bytes, self.next_offset, self.since, self.is_last = [], 0, None, None, False
        return given
