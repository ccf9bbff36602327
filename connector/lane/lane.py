"""`Lane`: one assigned partition for one assignment, a bounded buffer between two threads.

The consumer thread makes it, puts chunks in, closes and fences it; one pipeline thread takes chunks out and releases
their bytes when the sink holds them. A lane is never used again: when its partition returns, it is a new lane.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from connector.api.record import Message
    from connector.api.types import LaneId, Offset, PartitionId

RECORD_OVERHEAD_BYTES = 400
"""What a record costs beside its value: the client's message, its Python object, key and list slot; measured."""


@dataclass(slots=True)
class Chunk:
    """Records in order and the position after them. Without records it only moves the position (a start, a gap).

    `is_last` ends the lane: a bounded run has nothing more for it. `taken` is when it came into the lane,
    time.monotonic().
    """

    messages: Sequence[Message]
    next_offset: Offset
    size_bytes: int = 0
    is_last: bool = False
    taken: float = 0.0


def size_bytes(messages: Sequence[Message]) -> int:
    """Return what these records count in the memory budget, without a Python call for each."""
    return sum(map(len, messages)) + RECORD_OVERHEAD_BYTES * len(messages)


class Lane:
    """A bounded buffer of one partition's records, with a high mark where it asks to be paused and a low one to resume.

    Args:
        awaits_sink: The start is not known until the lane's sink has been asked for the position it holds.
        committed: The group's committed position, None if there is none; commits below it are not needed.
        high_bytes: This lane's share of the memory budget; the low mark is half of it.
    """

    def __init__(
        self,
        lane_id: LaneId,
        partition_id: PartitionId,
        topic: str,
        partition: int,
        *,
        topic_id: str | None = None,
        awaits_sink: bool = False,
        committed: Offset | None = None,
        high_bytes: int = 64 * 2**20,
    ) -> None:
        self.id = lane_id
        self.partition_id = partition_id
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.awaits_sink = awaits_sink
        self.high_bytes = high_bytes
        # What the consumer thread knows, each replaced as a whole; the controller reads it for the status.
        self.committed = committed
        self.end_offset: Offset | None = None  # last stable offset
        self.end_seen: float | None = None  # when the broker last told it, time.monotonic()
        self.is_paused = False
        self.is_held_back = False  # by an operator: nothing more comes into it
        self.sink_bytes = 0  # in batches that are not durable; of the pipeline thread, and read for the status
        self._last_put = time.monotonic()  # when records, or its start, came last
        self._next_offset: Offset | None = None  # after what came last
        self._chunks: deque[Chunk] = deque()
        self._held_bytes = 0  # buffered, or taken and not yet released
        self._out_since: float | None = None  # when the oldest taken record that is not durable came into the lane
        self._is_closed = False
        self._is_fenced = False
        self._wants_resume: Callable[[Lane], None] | None = None
        self._on_ready: Callable[[Lane], None] | None = None
        # Guards every field above that starts with an underscore; taken by the consumer, controller and one pipeline
        # thread; leaf lock: the callbacks are called after it is let go.
        self._changed = threading.Condition(threading.Lock())

    def __repr__(self) -> str:
        return f"Lane({self.id}, {self.topic}[{self.partition}])"

    @property
    def held_bytes(self) -> int:
        """Bytes buffered here or taken by the pipeline and not durable yet."""
        return self._held_bytes

    @property
    def is_full(self) -> bool:
        """Whether the high mark is reached: the consumer thread pauses the partition."""
        return self._held_bytes >= self.high_bytes

    @property
    def awaits_release(self) -> bool:
        """Whether nothing more comes before bytes are released: it is full, or paused until the low mark is reached."""
        with self._changed:
            return self._held_bytes >= self.high_bytes or self._wants_resume is not None

    @property
    def is_closed(self) -> bool:
        """Whether the lane takes no more work, since it is being drained or is gone."""
        return self._is_closed

    @property
    def is_fenced(self) -> bool:
        """Whether acks of this lane are late: they only count (INV-7)."""
        return self._is_fenced

    @property
    def held_since(self) -> float | None:
        """When the oldest record came, time.monotonic(), that is buffered or taken and not durable; None: none is."""
        with self._changed:
            if self._out_since is not None:
                return self._out_since
            return next((chunk.taken for chunk in self._chunks if chunk.messages), None)

    def is_stalled(self, now: float, timeout: float) -> bool:
        """Whether no records came for so many seconds although the log has some. Idle without lag is healthy."""
        end, position = self.end_offset, self._next_offset
        behind = end is not None and position is not None and end > position
        return behind and not self.is_paused and not self._is_closed and now - self._last_put > timeout

    # Called by the consumer thread.

    def put(self, chunk: Chunk) -> bool:
        """Append a chunk, never blocking; true when the lane is full now. A closed lane drops it."""
        with self._changed:
            if self._is_closed:
                return False
            was_empty = not self._chunks
            self._chunks.append(chunk)
            self._last_put = chunk.taken = time.monotonic()
            self._next_offset = chunk.next_offset
            self._held_bytes += chunk.size_bytes
            full = self._held_bytes >= self.high_bytes
            on_ready = self._on_ready if was_empty else None
            self._changed.notify()
        if on_ready is not None:
            on_ready(self)
        return full

    def call_when_low(self, wants_resume: Callable[[Lane], None]) -> bool:
        """Ask to be called, once, when the low mark is reached; false if it is already, then nothing is called."""
        with self._changed:
            if self._held_bytes <= self.high_bytes // 2:
                return False
            self._wants_resume = wants_resume
            on_ready = None if self._chunks else self._on_ready
        if on_ready is not None:  # everything is taken already: whoever has it should know that no more comes
            on_ready(self)
        return True

    def close(self) -> None:
        """Take no more chunks and give none out. What was not taken is for the next owner."""
        with self._changed:
            self._is_closed = True
            self._chunks.clear()
            self._wants_resume = None
            self._changed.notify_all()

    def fence(self) -> None:
        """Close, and let later acks only count."""
        self.close()
        self._is_fenced = True

    # Called by the pipeline thread.

    def attach(self, on_ready: Callable[[Lane], None]) -> None:
        """Be told, from the consumer thread, whenever an empty lane gets a chunk, or is paused while it is empty; now,
        if it holds a chunk already."""
        with self._changed:
            self._on_ready = on_ready
            waiting = bool(self._chunks)
        if waiting:
            on_ready(self)

    def take(self, max_records: int, timeout: float = 0.0) -> Chunk | None:
        """Return the oldest chunk, at most `max_records` of it, or None when there is none within `timeout` seconds."""
        with self._changed:
            if not self._chunks and timeout > 0:
                self._changed.wait_for(lambda: self._chunks or self._is_closed, timeout)
            if not self._chunks:
                return None
            chunk = self._chunks.popleft()
            if self._out_since is None and chunk.messages:
                self._out_since = chunk.taken
            if len(chunk.messages) <= max_records:
                return chunk
            head, tail = chunk.messages[:max_records], chunk.messages[max_records:]
            head_bytes = size_bytes(head)
            next_offset: Offset = tail[0].offset()  # type: ignore[assignment]  # a consumed message has an offset
            tail_bytes = chunk.size_bytes - head_bytes
            self._chunks.appendleft(Chunk(tail, chunk.next_offset, tail_bytes, chunk.is_last, chunk.taken))
            return Chunk(head, next_offset, head_bytes, taken=chunk.taken)

    @property
    def has_chunks(self) -> bool:
        """Whether `take` would return something now."""
        return bool(self._chunks)

    def release(self, released_bytes: int, out_since: float | None = None) -> None:
        """Give back the bytes of taken records: the sink holds them, or they are dropped.

        `out_since` is when the oldest of those that are still out came into the lane; None: none is out.
        """
        with self._changed:
            self._held_bytes -= released_bytes
            self._out_since = out_since
            wants_resume = self._wants_resume if self._held_bytes <= self.high_bytes // 2 else None
            if wants_resume is not None:
                self._wants_resume = None
        if wants_resume is not None:
            wants_resume(self)
