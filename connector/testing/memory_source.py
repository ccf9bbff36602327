"""`MemorySource`: a `Source` without Kafka, for tests of the runtime and of sinks, and the example of how to write one.

Topics are lists of records, the group's positions a dictionary. A test plays the group: `append`, `assign`, `add`,
`revoke`, `lose` and the others are queued for the source's own thread and take effect there, one after the other, as
rebalance callbacks do on a consumer thread. What a source owes the runtime, and where it is kept here:

- ids are never used again and only grow, so that a late acknowledgement cannot hit a new lane (`_mint`);
- a lane is closed before `LanesRevoked` is sent; only when the barrier's `wait` has returned are its positions
  committed, synchronously, then the lane is fenced and dropped, and last the barrier is settled (`_revoke`);
- lost lanes are fenced at once; their barrier has no parties, and nothing is committed (`_lose`);
- a lane's start goes through the lane as an empty chunk, so that it is committed where it is not yet (`_feed`);
- a lane that is full is fed again when it calls back, from whatever thread: the call only queues a step (`_feed`);
- in a bounded run `CommitReady` comes first, `LanesRetired` after the commit, and `Drained` after every end of the
  group is committed, then again and again (`_announce`);
- nobody waits for the source's thread, which may itself wait at a barrier: commands are queued steps.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import count
from queue import Empty, Queue, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from connector.api.barrier import DrainBarrier
from connector.api.errors import FatalError, InvariantError
from connector.api.intents import Intents
from connector.api.source_event import (
    CommitReady,
    CommitResult,
    Drained,
    Idle,
    LanesAdded,
    LanesAssigned,
    LanesRetired,
    LanesRevoked,
    RevokeReason,
    SourceEvent,
)
from connector.api.types import LaneId, Offset, PartitionId
from connector.lane.lane import Chunk, Lane, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka import Message

    from connector.api.sink import StoredPosition

Key: TypeAlias = tuple[str, int]
"""Topic and partition."""

_CHUNK_RECORDS = 500


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit that reached the group: what was asked for, and the error code, empty when it was stored."""

    positions: Mapping[Key, Offset]
    is_synchronous: bool
    code: str = ""


@dataclass(slots=True, eq=False)
class _Held:
    lane: Lane
    key: Key
    next_offset: Offset | None = None  # None: its start is not known yet
    is_ended: bool = False
    is_announced: bool = False
    is_retired: bool = False


class MemorySource:
    """A source that a test drives.

    `committed` is where the group stands, `commits` every commit in order; both are replaced or appended to by the
    source's thread and may be read by any.

    Args:
        asks_sink: The sink holds positions: lanes wait for `start_lane`.
        drain_timeout: How long a revocation waits at its barrier, in seconds.
        lane_bytes: The high mark of each lane.
    """

    protocol = "memory"
    missing_topics: Sequence[str] = ()

    def __init__(self, *, asks_sink: bool = False, drain_timeout: float = 10.0, lane_bytes: int = 2**20) -> None:
        self.committed: Mapping[Key, Offset] = {}
        self.commits: list[Commit] = []
        self.is_closed = False
        self.seen = 0.0
        self._asks_sink = asks_sink
        self._drain_timeout = drain_timeout
        self._lane_bytes = lane_bytes
        self._steps: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._intents = Intents()
        # Not a SimpleQueue: in CPython 3.11 its get waits without end, when a signal handler of the main thread runs
        # beyond the timeout.
        self._events: Queue[SourceEvent[Lane] | FatalError] = Queue()
        self._results: deque[CommitResult] = deque()
        self._log: dict[Key, list[Message]] = {}
        self._held: dict[LaneId, _Held] = {}
        self._replaced: dict[LaneId, _Held] = {}  # by the last assignment: the runtime may still commit them
        self._ids = count(1)
        self._ends: Mapping[Key, Offset] | None = None
        self._commit_codes: deque[str] = deque()
        self._is_drained = False
        self._is_closing = False
        self._thread = Thread(target=self._run, name="source", daemon=True)

    # The protocol: called by the controller.

    def start(self) -> None:
        """Begin with the steps that are queued."""
        self._thread.start()

    def poll_events(self, timeout: float) -> SourceEvent[Lane]:
        """Return the next event, `Idle` after `timeout` seconds, or, once the run is over, `Drained` instead of it.

        Raises:
            FatalError: What `fail` was given.
        """
        try:
            event = self._events.get(timeout=timeout)
        except Empty:
            return Drained() if self._is_drained else Idle()
        if isinstance(event, FatalError):
            raise event
        return event

    def commit(self, positions: Mapping[PartitionId, Offset]) -> None:
        """Commit these, so far as their lanes are held by then."""
        asked = dict(positions)
        self._steps.put(lambda: self._commit(asked, is_synchronous=False))

    def poll_results(self) -> Sequence[CommitResult]:
        """Return what became of commits since the last call."""
        return [self._results.popleft() for _ in range(len(self._results))]

    def start_lane(self, lane: LaneId, stored: StoredPosition | None) -> None:
        """Let a lane begin at the position of the sink, or of the group where the sink has none."""
        self._steps.put(lambda: self._start(lane, stored.next_offset if stored else None))

    def restart_lanes(self, positions: Mapping[LaneId, Offset | None]) -> None:
        """Bring these partitions back as new lanes."""
        asked = dict(positions)
        self._steps.put(lambda: self._restart(asked))

    def hold_back(self, intents: Intents) -> None:
        """Hold back what these intents say, and let the rest flow."""
        self._steps.put(lambda: self._hold_back(intents))

    def close(self) -> None:
        """Leave; `is_closed` tells when."""
        self._steps.put(self._close)

    # What a test does: each call is a step, queued.

    def append(self, messages: Iterable[Message]) -> None:
        """Append records to the logs, in order of their offsets."""
        appended = list(messages)
        self._steps.put(lambda: self._append(appended))

    def assign(self, *keys: Key) -> None:
        """`LanesAssigned` with these as the full set. Lanes of before take nothing more and are the runtime's to drain
        and commit; what they have in flight now is read twice, unless they were revoked first."""
        self._steps.put(lambda: self._assign(keys))

    def add(self, *keys: Key) -> None:
        """`LanesAdded` with these."""
        self._steps.put(lambda: self._emit(LanesAdded(self._begin(keys, {}))))

    def revoke(self, *keys: Key) -> None:
        """`LanesRevoked` with these, or everything; the step ends when the lanes are drained, committed and dropped."""
        self._steps.put(lambda: self._revoke(self._find(keys)))

    def lose(self, *keys: Key) -> None:
        """`LanesRevoked(LOST)` with these, or everything."""
        self._steps.put(lambda: self._lose(self._find(keys)))

    def end(self) -> None:
        """Make the run a bounded one, that ends at what the logs hold now."""
        self._steps.put(self._fix_ends)

    def fail_commits(self, code: str, times: int = 1) -> None:
        """Let the next commits fail with this error code."""
        self._steps.put(lambda: self._commit_codes.extend([code] * times))

    def fail(self, error: FatalError) -> None:
        """Let `poll_events` raise this."""
        self._steps.put(lambda: self._events.put(error))

    # The source's thread.

    def _run(self) -> None:
        while not self._is_closing:
            self.seen = time.monotonic()
            try:
                self._steps.get()()
                self._announce()
            except Exception as error:  # noqa: BLE001 - whatever it is, the controller must hear of it
                self._events.put(InvariantError(f"the source's thread failed: {type(error).__name__}: {error}"))
        self.is_closed = True

    def _emit(self, event: SourceEvent[Lane]) -> None:
        self._events.put(event)

    def _find(self, keys: Sequence[Key]) -> list[_Held]:
        return [held for held in self._held.values() if not keys or held.key in keys]

    # Lanes come and go.

    def _mint(self, key: Key) -> _Held:
        number = next(self._ids)
        lane = Lane(
            LaneId(number),
            PartitionId(number),
            *key,
            awaits_sink=self._asks_sink,
            committed=self.committed.get(key),
            high_bytes=self._lane_bytes,
        )
        lane.is_held_back = self._intents.holds(*key)
        self._held[lane.id] = held = _Held(lane, key)
        return held

    def _assign(self, keys: Sequence[Key]) -> None:
        for held in self._held.values():
            held.lane.close()
        self._replaced, self._held = self._held, {}
        self._emit(LanesAssigned(self._begin(keys, {})))

    def _begin(self, keys: Sequence[Key], starts: Mapping[Key, Offset | None]) -> tuple[Lane, ...]:
        """Make lanes. What they are fed is in them before the runtime hears of them, which lanes allow."""
        begun = [self._mint(key) for key in keys]
        for held in begun:
            if not self._asks_sink:
                self._start(held.lane.id, starts.get(held.key))
        return tuple(held.lane for held in begun)

    def _start(self, lane: LaneId, at: Offset | None) -> None:
        held = self._held.get(lane)
        if held is None or held.next_offset is not None:
            return
        held.lane.awaits_sink = False
        held.next_offset = self.committed.get(held.key, Offset(0)) if at is None else at
        held.lane.put(Chunk([], held.next_offset))
        self._feed(held)

    def _revoke(self, leaving: Sequence[_Held]) -> None:
        if not leaving:
            return
        for held in leaving:
            held.lane.close()
        barrier = DrainBarrier(parties=len(leaving) + 1)
        self._emit(LanesRevoked(tuple(held.lane.id for held in leaving), barrier))
        barrier.wait(self._drain_timeout)
        self._commit(barrier.positions, is_synchronous=True)
        self._drop(leaving)
        barrier.settle()

    def _lose(self, gone: Sequence[_Held]) -> None:
        if gone:
            self._drop(gone)
            self._emit(LanesRevoked(tuple(held.lane.id for held in gone), DrainBarrier(0), RevokeReason.LOST))

    def _restart(self, positions: Mapping[LaneId, Offset | None]) -> None:
        old = [self._held[lane] for lane in positions if lane in self._held]
        starts = {held.key: positions[held.lane.id] for held in old}
        self._lose(old)
        if old:
            self._emit(LanesAdded(self._begin(list(starts), starts)))

    def _drop(self, leaving: Iterable[_Held]) -> None:
        for held in leaving:
            held.lane.fence()
            del self._held[held.lane.id]

    def _close(self) -> None:
        self._drop(self._find(()))
        self._is_closing = True

    # Records.

    def _append(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._log.setdefault((message.topic() or "", message.partition() or 0), []).append(message)
        for held in list(self._held.values()):
            self._feed(held)

    def _feed(self, held: _Held) -> None:
        """Put what the log has into a lane, until it is full or at its end."""
        if held.next_offset is None or held.is_ended:
            return
        end = self._end_of(held)
        if held.lane.is_held_back and (end is None or held.next_offset < end):
            return
        log = self._log.get(held.key, [])
        index = bisect_left(log, held.next_offset, key=_offset)
        stop = len(log) if end is None else bisect_left(log, end, key=_offset)
        while index < stop and not (held.lane.is_full and held.lane.call_when_low(self._ask_feed)):
            messages = log[index : min(stop, index + _CHUNK_RECORDS)]
            held.next_offset = Offset(_offset(messages[-1]) + 1)
            held.lane.put(Chunk(messages, held.next_offset, size_bytes(messages)))
            index += len(messages)
        held.lane.is_paused = index < stop
        if end is not None and index >= stop:
            held.is_ended = True
            held.next_offset = Offset(max(end, held.next_offset))
            held.lane.put(Chunk([], held.next_offset, is_last=True))

    def _hold_back(self, intents: Intents) -> None:
        self._intents = intents
        for held in list(self._held.values()):
            held.lane.is_held_back = intents.holds(*held.key)
            self._feed(held)

    def _ask_feed(self, lane: Lane) -> None:
        self._steps.put(lambda: self._feed_again(lane.id))

    def _feed_again(self, lane: LaneId) -> None:
        if lane in self._held:
            self._feed(self._held[lane])

    # Commits.

    def _commit(self, positions: Mapping[PartitionId, Offset], *, is_synchronous: bool) -> None:
        lanes = self._replaced | self._held
        wanted = {
            partition: (lanes[LaneId(partition)], position)  # minted with the same number
            for partition, position in positions.items()
            if LaneId(partition) in lanes
        }
        if not wanted:
            return
        code = self._commit_codes.popleft() if self._commit_codes else ""
        by_key = {held.key: position for held, position in wanted.values()}
        if not code:
            self.committed = {**self.committed, **by_key}
            for held, position in wanted.values():
                held.lane.committed = position
        self.commits.append(Commit(by_key, is_synchronous, code))
        committed = {} if code else {partition: position for partition, (_, position) in wanted.items()}
        self._results.append(CommitResult(committed, dict.fromkeys(wanted, code) if code else {}, is_synchronous))

    # The end of a bounded run.

    def _fix_ends(self) -> None:
        self._ends = {key: Offset(_offset(log[-1]) + 1) for key, log in self._log.items()}
        for held in list(self._held.values()):
            self._feed(held)

    def _end_of(self, held: _Held) -> Offset | None:
        return None if self._ends is None else self._ends.get(held.key, Offset(0))

    def _announce(self) -> None:
        if self._ends is None or self._is_drained:
            return
        decided = [held for held in self._held.values() if held.is_ended and not held.is_announced]
        if decided:
            self._emit(CommitReady(tuple(held.lane.partition_id for held in decided)))
        for held in decided:
            held.is_announced = True
        finished = [
            held
            for held in self._held.values()
            if held.is_ended and not held.is_retired and self._is_committed(held.key, held.next_offset)
        ]
        if finished:
            self._emit(LanesRetired(tuple(held.lane.id for held in finished)))
        for held in finished:
            held.is_retired = True
        is_done = all(self._is_committed(key, end) for key, end in self._ends.items())
        if is_done and all(held.is_retired for held in self._held.values()):
            self._is_drained = True
            self._emit(Drained())

    def _is_committed(self, key: Key, position: Offset | None) -> bool:
        return position is not None and self.committed.get(key, -1) >= position


def _offset(message: Message) -> Offset:
    offset = message.offset()
    return Offset(-1 if offset is None else offset)  # a record in a log has one; the client's types allow for none
