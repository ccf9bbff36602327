"""`FakeClient`: a Kafka consumer without a broker, that plays a script and does what the real one does.

A test pushes steps from its own thread (`assign_partitions`, `revoke_partitions`, `messages`, …); the thread under test
serves them inside its next `poll`, `consume` or `close`, as it would serve the real client. What the real one does was
measured, and is held by tests/client against a real broker:

- one thread at a time; a second one inside is a violation, as is `poll` or `consume` inside a callback, where the real
  client aborts the process; an exception in a callback comes out as `SystemError`;
- one call may hold a revocation, an assignment and records of the new assignment; what it had collected of partitions
  that leave is purged; `position()` is the next offset after what earlier calls returned;
- when `on_revoke` or `on_lost` returns, the client un-assigns by itself, and where `on_assign` did not assign, it does;
- a pause outlives revocation and return, and has no effect on a partition that is not assigned yet;
- `close()` runs `on_revoke` inside itself, where `committed()` fails;
- after a fatal error, one message tells of it, then nothing comes, and every other call raises it.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, and missing in its __all__
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from connector.source.client import RebalanceCallback

Key: TypeAlias = tuple[str, int]
"""Topic and partition."""

_CLOSED = "Consumer closed"


def records(topic: str, partition: int, offsets: Iterable[int], value: bytes = b"value") -> list[Message]:
    """Return records with these offsets, for `FakeClient.messages`."""
    return [Message(topic=topic, partition=partition, offset=offset, value=value) for offset in offsets]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the client, or the begin or end (`…_done`) of a callback, with topic, partition and offset of each
    partition it was about. `inside` is the callback in which a call was made."""

    name: str
    partitions: tuple[tuple[str, int, int], ...] = ()
    inside: str | None = None


class _Answer(TopicPartition):
    """A partition with an error, which the client library's own class does not let anybody else set."""

    error: KafkaError | None = None


@dataclass(slots=True)
class _Fetch:
    """An assigned partition."""

    assigned_at: int  # as given, -1 or -2 for an end of the log
    start: int | None  # None: has no valid position, so nothing is fetched
    next_offset: int | None = None
    position: int = OFFSET_INVALID  # after what earlier calls returned

    def __post_init__(self) -> None:
        self.next_offset = self.start

    def rewind(self) -> None:
        """Go back to what was not returned yet."""
        self.next_offset = self.start if self.position == OFFSET_INVALID else self.position

    def settle(self) -> None:
        """What was fetched is returned now."""
        if self.next_offset is not None and self.next_offset != self.start:
            self.position = self.next_offset


class FakeClient:
    """A `KafkaClient` that is made first and configured by the source: `client_factory=fake.configure`.

    Methods of the first part belong to the thread under test, all others to the test. `calls` has every call in order,
    without `poll` and `consume`; `violations` what the real client would not have survived; `stored` what the group has
    committed, with metadata.
    """

    def __init__(self, properties: Mapping[str, Any] | None = None) -> None:
        self.properties: Mapping[str, Any] = properties or {}
        self.topics: list[str] = []
        self.calls: list[Call] = []
        self.violations: list[str] = []
        self.stored: dict[Key, TopicPartition] = {}
        self.committed_errors: dict[Key, str] = {}  # `committed` answers so for these partitions
        self.watermarks: dict[Key, tuple[int, int]] = {}  # where they are not those of the script's messages
        self.partition_counts: dict[str, int] = {}  # for `list_topics`
        self.paused: set[Key] = set()
        self.is_closed = False
        self._assigned: dict[Key, _Fetch] = {}
        self._log: dict[Key, list[tuple[int, Message | None]]] = {}  # None: an offset that holds no record
        self._errors: deque[Message] = deque()
        self._collected: list[Message] = []
        self._on_assign: RebalanceCallback | None = None
        self._on_revoke: RebalanceCallback | None = None
        self._on_lost: RebalanceCallback | None = None
        self._answers: deque[tuple[KafkaError | None, list[TopicPartition]]] = deque()
        self._answers_are_held = False
        self._commit_codes: deque[tuple[str, Key | None]] = deque()
        self._failures: dict[str, deque[str]] = {}
        self._is_member = False
        self._is_dead = False
        self._is_closing = False
        self._callback: str | None = None
        self._has_assigned = False
        self._inside: int | None = None
        self._depth = 0
        self._script: deque[Callable[[], None]] = deque()
        self._is_serving = False
        # Guards calls, _script, _is_serving, _answers, _answers_are_held and the gate (_inside, _depth); taken by the
        # thread under test and the test's; leaf lock: steps and callbacks run after it is let go.
        self._changed = threading.Condition(threading.Lock())

    # Called by the thread under test.

    def configure(self, properties: dict[str, Any]) -> Self:
        """Take the properties, with `on_commit`, `error_cb` and `stats_cb` among them, and return itself."""
        self.properties = properties
        return self

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Keep the callbacks; the first one comes when the script says so."""
        with self._call("subscribe"):
            self.topics = list(topics)
            self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost

    def poll(self, timeout: float = -1) -> Message | None:
        """Serve the script up to the next message."""
        found = self._consume("poll", 1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Serve the script until so many messages are there, or the whole timeout has passed."""
        return self._consume("consume", num_messages, timeout)

    def assign(self, partitions: list[TopicPartition], /) -> None:
        """Replace the assignment."""
        with self._call("assign", partitions):
            self._refuse_method("assign", is_allowed=self.is_eager)
            self._unassign(list(self._assigned))
            self._assign(partitions)

    def unassign(self) -> None:
        """Give the whole assignment up."""
        with self._call("unassign"):
            self._unassign(list(self._assigned))

    def incremental_assign(self, partitions: list[TopicPartition], /) -> None:
        """Add to the assignment."""
        with self._call("incremental_assign", partitions):
            self._refuse_method("incremental_assign", is_allowed=not self.is_eager)
            for where in partitions:
                if _key(where) in self._assigned:
                    raise _failure("_CONFLICT", f"{where.topic} [{where.partition}] is already part of the assignment")
            self._assign(partitions)

    def incremental_unassign(self, partitions: list[TopicPartition], /) -> None:
        """Take from the assignment."""
        with self._call("incremental_unassign", partitions):
            self._refuse_method("incremental_unassign", is_allowed=not self.is_eager)
            self._unassign_incrementally([_key(where) for where in partitions])

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        with self._call("assignment"):
            return [TopicPartition(*key, fetch.assigned_at) for key, fetch in self._assigned.items()]

    def pause(self, partitions: list[TopicPartition], /) -> None:
        """Deliver nothing of these, so far as they are assigned."""
        with self._call("pause", partitions):
            for key in map(_key, partitions):
                if key in self._assigned:
                    self.paused.add(key)
                    self._rewind(key)

    def resume(self, partitions: list[TopicPartition], /) -> None:
        """Deliver these again."""
        with self._call("resume", partitions):
            self.paused.difference_update(map(_key, partitions))

    def seek(self, partition: TopicPartition, /) -> None:
        """Move a partition that has a valid position."""
        with self._call("seek", [partition]):
            fetch = self._assigned.get(_key(partition))
            if fetch is None or fetch.next_offset is None:
                raise _failure("_STATE", "Failed to seek: Erroneous state")
            self._purge(_key(partition))
            self._assigned[_key(partition)] = _Fetch(fetch.assigned_at, partition.offset)

    def position(self, partitions: list[TopicPartition], /) -> list[TopicPartition]:
        """Return the next offset after what earlier calls returned."""
        with self._call("position", partitions):
            return [
                TopicPartition(*key, self._assigned[key].position if key in self._assigned else OFFSET_INVALID)
                for key in map(_key, partitions)
            ]

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return what is `stored`."""
        with self._call("committed", partitions):
            if self._is_closing:
                raise _failure("_TIMED_OUT", "no answer while the client is closing")
            return [self._committed(_key(where)) for where in partitions]

    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[False]) -> list[TopicPartition]: ...
    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool = True) -> list[TopicPartition] | None:
        """Store positions of assigned partitions, unless the script says otherwise."""
        with self._call("commit_async" if asynchronous else "commit_sync", offsets):
            code, only = self._commit_codes.popleft() if self._commit_codes else ("", None)
            answers: list[TopicPartition] = [
                self._commit_one(where, code if only in (None, _key(where)) else "") for where in offsets
            ]
            errors = [answer.error for answer in answers if answer.error is not None]
            error = errors[-1] if len(errors) == len(answers) and errors else None
            if not answers:
                error = _error("_NO_OFFSET")
            if asynchronous:
                with self._changed:
                    self._answers.append((error, answers))
                return None
            if error is not None:
                raise KafkaException(error)
            return answers

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Return `watermarks`, or the first and next offset of the script's messages."""
        with self._call("get_watermark_offsets", [partition]):
            return self._ends(_key(partition))

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Look the times up in the script's messages."""
        with self._call("offsets_for_times", partitions):
            return [TopicPartition(*_key(where), self._offset_at(_key(where), where.offset)) for where in partitions]

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return `partition_counts` as metadata; an unknown topic that is asked for by name has an error."""
        with self._call("list_topics"):
            cluster = ClusterMetadata()
            for name in self.partition_counts if topic is None else [topic]:
                metadata = cluster.topics[name] = TopicMetadata()
                metadata.topic = name
                if name not in self.partition_counts:
                    metadata.error = _error("UNKNOWN_TOPIC_OR_PART")
                metadata.partitions = {
                    index: PartitionMetadata() for index in range(self.partition_counts.get(name, 0))
                }
            return cluster

    def consumer_group_metadata(self) -> bytes:
        """Return the generation within the serial form: 1 while it is a member."""
        with self._call("consumer_group_metadata"):
            generation = 1 if self._is_member else -1
            return b"CGMDv2:" + generation.to_bytes(4, sys.byteorder, signed=True) + b"group\0fake-member\0\1"

    def close(self) -> None:
        """Revoke everything, serve what is left of the script, and revoke again."""
        if self.is_closed:
            return
        with self._call("close", raises_when_dead=False):
            self._is_closing = True
            while not self._is_dead:
                self._revoke(None)
                self.release_answers()
                self._serve_answers()
                if not self._serve_step():
                    break
            self.is_closed = True

    # Called by the test: steps of the script, served in order.

    def assign_partitions(self, *keys: Key) -> None:
        """`on_assign` with these; none is an empty assignment."""
        self._push(lambda: self._grant(keys))

    def revoke_partitions(self, *keys: Key) -> None:
        """`on_revoke` with these; none is everything that is assigned by then."""
        self._push(lambda: self._revoke(keys or None))

    def lose_partitions(self, *keys: Key) -> None:
        """`on_lost` with these; none is everything that is assigned by then. Until the next assignment commits fail."""
        self._push(lambda: self._lose(keys or None))

    def messages(self, messages: Sequence[Message]) -> None:
        """Append records to the log, in order of their offsets; delivered where they are assigned and not paused."""
        self._push(lambda: self._extend(messages))

    def skip_to(self, key: Key, position: int) -> None:
        """The log goes on at this position without a record before it: markers, aborted or compacted records."""
        self._push(lambda: self._append(key, position - 1, None))

    def error(self, code: str, text: str = "", key: Key | None = None) -> None:
        """A message with an error; `_FATAL` is the last thing that this client delivers."""
        self._push(lambda: self._deliver_error(code, text, key))

    def client_error(self, code: str, text: str = "") -> None:
        """`error_cb` with this error."""
        self._push(lambda: self._run_callback("error_cb", self.properties.get("error_cb"), _error(code, text)))

    def statistics(self, text: str) -> None:
        """`stats_cb` with this JSON."""
        self._push(lambda: self._run_callback("stats_cb", self.properties.get("stats_cb"), text))

    # Called by the test: how calls are answered.

    def fail_commit(self, code: str, times: int = 1, only: Key | None = None) -> None:
        """Let the next commits fail, or one partition of them; an empty code lets one pass."""
        self._commit_codes.extend([(code, only)] * times)

    def fail_next(self, method: str, code: str, times: int = 1) -> None:
        """Let the next calls of this method raise."""
        self._failures.setdefault(method, deque()).extend([code] * times)

    def hold_answers(self) -> None:
        """Keep the answers of asynchronous commits back; they are stored, but `on_commit` does not come."""
        with self._changed:
            self._answers_are_held = True

    def release_answers(self) -> None:
        """Let `on_commit` come in the next `poll` or `consume`."""
        with self._changed:
            self._answers_are_held = False
            self._changed.notify_all()

    # Called by the test: what it sees.

    @property
    def is_eager(self) -> bool:
        """Whether the properties choose an eager protocol, as the client's defaults do."""
        protocol = self.properties.get("group.protocol", "classic")
        strategy = self.properties.get("partition.assignment.strategy", "range,roundrobin")
        return bool(protocol == "classic" and strategy != "cooperative-sticky")

    @property
    def assigned(self) -> dict[Key, int]:
        """What is assigned, with the offset it was assigned at."""
        return {key: fetch.assigned_at for key, fetch in list(self._assigned.items())}

    def names(self, *only: str) -> list[str]:
        """Return the names of the calls in order, or of these among them."""
        return [call.name for call in list(self.calls) if not only or call.name in only]

    def wait_until(self, predicate: Callable[[], bool], timeout: float = 10.0) -> bool:
        """Wait until this holds, looked at after every call and step; false if it does not in time."""
        with self._changed:
            return self._changed.wait_for(predicate, timeout)

    def wait_served(self, timeout: float = 10.0) -> bool:
        """Wait until the whole script is served, callbacks included."""
        return self.wait_until(lambda: not self._script and not self._is_serving, timeout)

    # The gate.

    @contextmanager
    def _call(
        self, name: str, partitions: Iterable[TopicPartition] = (), *, raises_when_dead: bool = True
    ) -> Iterator[None]:
        with self._changed:
            if self._inside not in (None, threading.get_ident()):
                raise self._violation(f"{name} from a second thread while another is inside the client")
            self._inside = threading.get_ident()
            self._depth += 1
        try:
            if self.is_closed:
                raise RuntimeError(_CLOSED)
            if name not in ("poll", "consume"):
                where = tuple((each.topic, each.partition, each.offset) for each in partitions)
                self._note(Call(name, where, self._callback))
                if self._is_dead and raises_when_dead:
                    raise _failure("_FATAL", "the client has failed")
            if self._failures.get(name):
                raise _failure(self._failures[name].popleft())
            yield
        finally:
            with self._changed:
                self._depth -= 1
                if self._depth == 0:
                    self._inside = None
                self._changed.notify_all()

    def _note(self, call: Call) -> None:
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()

    def _violation(self, text: str) -> AssertionError:
        self.violations.append(text)
        return AssertionError(text)

    def _push(self, step: Callable[[], None]) -> None:
        with self._changed:
            self._script.append(step)
            self._changed.notify_all()

    # Serving.

    def _consume(self, name: str, limit: int, timeout: float) -> list[Message]:
        deadline = None if timeout < 0 else time.monotonic() + timeout
        with self._call(name):
            if self._callback is not None:
                raise self._violation(f"{name} inside {self._callback}, where the client aborts the process")
            self._collected = []
            while True:
                self._serve_answers()
                self._fetch(limit)
                if len(self._collected) >= limit:
                    break
                if not self._serve_step() and not self._wait_for_work(deadline):
                    break
            for fetch in self._assigned.values():
                fetch.settle()
            returned, self._collected = self._collected, []
            return returned

    def _serve_step(self) -> bool:
        with self._changed:
            if not self._script:
                return False
            step = self._script.popleft()
            self._is_serving = True
        try:
            step()
        finally:
            with self._changed:
                self._is_serving = False
                self._changed.notify_all()
        return True

    def _wait_for_work(self, deadline: float | None) -> bool:
        timeout = None if deadline is None else deadline - time.monotonic()
        with self._changed:
            return bool(
                self._changed.wait_for(lambda: self._script or (self._answers and not self._answers_are_held), timeout)
            )

    def _serve_answers(self) -> None:
        while True:
            with self._changed:
                if not self._answers or self._answers_are_held:
                    return
                error, answers = self._answers.popleft()
            self._run_callback("on_commit", self.properties.get("on_commit"), error, answers)

    def _fetch(self, limit: int) -> None:
        while self._errors and len(self._collected) < limit:
            self._collected.append(self._errors.popleft())
        if self._is_dead:
            return
        for key, fetch in self._assigned.items():
            if key in self.paused or fetch.next_offset is None:
                continue
            log = self._log.get(key, [])
            for offset, message in log[bisect_left(log, fetch.next_offset, key=lambda entry: entry[0]) :]:
                if message is not None:
                    if len(self._collected) >= limit:
                        break
                    self._collected.append(message)
                fetch.next_offset = offset + 1

    def _run_callback(self, name: str, callback: Callable[..., None] | None, *arguments: Any) -> None:
        if callback is None:
            return
        partitions = next((each for each in arguments if isinstance(each, list)), [])
        where = tuple((each.topic, each.partition, each.offset) for each in partitions)
        self._note(Call(name, where))
        outer, self._callback = self._callback, name
        try:
            callback(*arguments)
        except Exception as error:
            # The client library leaves the exception set and returns a result.
            raise SystemError(f"a callback of the client raised: {error}") from error
        finally:
            self._callback = outer
            self._note(Call(f"{name}_done"))

    # Rebalances.

    def _grant(self, keys: Sequence[Key]) -> None:
        self._is_member = True
        partitions = [TopicPartition(*key) for key in keys]
        self._has_assigned = False
        self._run_callback("on_assign", self._on_assign, self, partitions)
        if not self._has_assigned:
            if self.is_eager:
                self._unassign(list(self._assigned))
            self._assign(partitions)

    def _revoke(self, keys: Sequence[Key] | None) -> None:
        leaving = list(self._assigned) if keys is None else list(keys)
        if leaving or keys is not None:
            self._run_callback("on_revoke", self._on_revoke, self, [TopicPartition(*key) for key in leaving])
            self._give_up(leaving)

    def _lose(self, keys: Sequence[Key] | None) -> None:
        leaving = list(self._assigned) if keys is None else list(keys)
        self._is_member = False
        name, callback = ("on_lost", self._on_lost) if self._on_lost else ("on_revoke", self._on_revoke)
        self._run_callback(name, callback, self, [TopicPartition(*key) for key in leaving])
        self._give_up(leaving)

    def _give_up(self, leaving: list[Key]) -> None:
        if self.is_eager:
            self._unassign(list(self._assigned))
        else:
            self._unassign_incrementally(leaving)

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._has_assigned = True
        for where in partitions:
            self._assigned[_key(where)] = self._start(_key(where), where.offset)

    def _start(self, key: Key, offset: int) -> _Fetch:
        if offset >= 0:
            return _Fetch(offset, offset)
        low, high = self._ends(key)
        if offset in (OFFSET_BEGINNING, OFFSET_END):
            return _Fetch(offset, low if offset == OFFSET_BEGINNING else high)
        if key in self.stored:
            return _Fetch(offset, self.stored[key].offset)
        policy = self.properties.get("auto.offset.reset", "latest")
        if policy == "error":
            self._deliver_error("_AUTO_OFFSET_RESET", "no previously committed offset available", key)
            return _Fetch(offset, None)
        return _Fetch(offset, low if policy == "earliest" else high)

    def _unassign(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._purge(key)
            del self._assigned[key]

    def _unassign_incrementally(self, keys: list[Key]) -> None:
        for topic, partition in keys:
            if (topic, partition) not in self._assigned:
                raise _failure("_INVALID_ARG", f"{topic} [{partition}] is not part of the assignment")
        self._unassign(keys)

    def _refuse_method(self, name: str, *, is_allowed: bool) -> None:
        if not is_allowed:
            kind = "EAGER" if self.is_eager else "COOPERATIVE"
            raise _failure("_STATE", f"{name}() is not allowed when the rebalance protocol type is {kind}")

    def _purge(self, key: Key) -> None:
        self._collected = [message for message in self._collected if message.error() or _key_of(message) != key]

    def _rewind(self, key: Key) -> None:
        """Drop what was prefetched, so that it is fetched again."""
        self._assigned[key].rewind()
        self._purge(key)

    # Answers.

    def _commit_one(self, where: TopicPartition, code: str) -> _Answer:
        key = _key(where)
        if not code and key not in self._assigned:
            # The broker knows members and generations, not partitions: who has lost one is in an older generation.
            code = "ILLEGAL_GENERATION"
        if not self._is_member:
            code = "UNKNOWN_MEMBER_ID"
        answer = _Answer(*key, where.offset, where.metadata)
        if code:
            answer.error = _error(code)
        else:
            self.stored[key] = TopicPartition(*key, where.offset, where.metadata)
        return answer

    def _committed(self, key: Key) -> TopicPartition:
        if key in self.committed_errors:
            answer = _Answer(*key)
            answer.error = _error(self.committed_errors[key])
            return answer
        return self.stored.get(key, TopicPartition(*key))

    def _ends(self, key: Key) -> tuple[int, int]:
        if key in self.watermarks:
            return self.watermarks[key]
        log = self._log.get(key, [])
        return (log[0][0], log[-1][0] + 1) if log else (0, 0)

    def _offset_at(self, key: Key, milliseconds: int) -> int:
        for offset, message in self._log.get(key, []):
            if message is not None and message.timestamp()[1] >= milliseconds:
                return offset
        return OFFSET_END

    def _extend(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._append(_key_of(message), message.offset() or 0, message)

    def _append(self, key: Key, offset: int, message: Message | None) -> None:
        self._log.setdefault(key, []).append((offset, message))

    def _deliver_error(self, code: str, text: str, key: Key | None) -> None:
        error = _error(code, text)
        self._errors.append(Message(topic=key[0], partition=key[1], error=error) if key else Message(error=error))
        self._is_dead = self._is_dead or code == "_FATAL"


def _key(where: TopicPartition) -> Key:
    return where.topic, where.partition


def _key_of(message: Message) -> Key:
    return message.topic() or "", -1 if message.partition() is None else message.partition()  # type: ignore[return-value]  # not None


def _error(code: str, text: str = "") -> KafkaError:
    return KafkaError(getattr(KafkaError, code), text or None)


def _failure(code: str, text: str = "") -> KafkaException:
    return KafkaException(_error(code, text))
