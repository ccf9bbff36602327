"""`SinkContract`: what every sink owes the runtime, as tests that a plugin author inherits.

    class TestMySink(SinkContract[MySettings]):
        sink_type = MySink

        def make_settings(self, tmp_path):
            return MySettings(path=f"{tmp_path}/records")

        def read_back(self, settings):
            return [(topic, partition, offset) for topic, partition, offset in ...]

Each check is a test whose name states the property. One about an ability that the sink does not declare passes.
Checks of durability run the sink in a process of its own, a fork, which is killed with SIGKILL the moment the sink has
acknowledged, so neither `close` nor a buffer nor a rollback of the process can help. What the operating system holds
survives that: no test can see a missing fsync.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeAlias, TypeVar, cast

from connector.api.errors import ConnectorError, PoisonError, RecordErrors, RefusedError, TransientError
from connector.api.event import (
    CloseReason,
    Error,
    Event,
    Input,
    InputClosed,
    InputRecovered,
    NodeFailed,
    NodeRestarted,
    Stop,
    StopCause,
)
from connector.api.settings import Settings
from connector.api.sink import GroupCommit, LaneInfo, Sink, SinkContext, StoredPosition
from connector.api.types import LaneId, Offset
from connector.testing.batches import Record, make_batch
from connector.testing.faults import FaultSwitch, kill_this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from connector.api.batch import Batch

S = TypeVar("S", bound=Settings)

Row: TypeAlias = "tuple[Any, ...]"
"""topic, partition, offset and, as far as the destination keeps them, value, key, headers as (name, value) pairs."""

_TOPIC = "contract"
_GROUP = "contract"
_DEADLINE_SECONDS = 60.0
_ATTEMPTS = 20
_BIG_BYTES = 2**20  # over what Kafka takes by default, once the rest of the value is added
_ACKNOWLEDGED = b"acknowledged"


@dataclass(frozen=True, slots=True)
class _LaterEvent:
    """An event that a later version may send."""


class SinkContract(Generic[S]):
    """Subclass it under a name that begins with `Test`, and let pytest find it.

    Every test gets settings of its own, whose destination has to be empty: a file under `tmp_path`, a new schema. If
    that takes fixtures, request them in an autouse fixture of the subclass and keep what `make_settings` needs.
    """

    sink_type: ClassVar[type[Sink[Any]]]
    bad_value: ClassVar[bytes | None] = None
    """A value that the destination refuses for good, if there is one: the check of poison records needs it."""

    def make_settings(self, tmp_path: Path) -> S:
        """Return settings of a sink whose destination is empty."""
        raise NotImplementedError(f"{type(self).__name__} has to define make_settings(self, tmp_path)")

    def read_back(self, settings: S) -> Iterable[Row] | None:
        """Return what the destination holds, in the order in which it was stored, if the destination has one.

        A row has topic, partition and offset, and may go on with value, key and headers, which are compared then. None:
        the sink keeps nothing that could be read, and only its calls are checked.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define read_back(self, settings)")

    def make_sink(self, settings: S, context: SinkContext) -> Sink[S]:
        """Return a new instance, not opened yet."""
        return self.sink_type(settings, context)

    def make_value(self, partition: int, offset: int) -> bytes:
        """Return a value that the destination takes; override it if it has to be more than any JSON object."""
        return b'{"partition": %d, "offset": %d}' % (partition, offset)

    def outage(self, settings: S) -> AbstractContextManager[object] | None:
        """Return a context in which the destination is down, to have outages checked; it was written to before."""
        return None

    def group_commit(self, lane: LaneId) -> GroupCommit:
        """Return what a sink that commits positions commits a lane with: as a member of a group, which has it now."""
        raise NotImplementedError(f"{type(self).__name__} has to define group_commit(self, lane)")

    def former_group_commit(self, lane: LaneId) -> GroupCommit:
        """Return the same, of a generation that is over, so that the group's coordinator refuses it."""
        raise NotImplementedError(f"{type(self).__name__} has to define former_group_commit(self, lane)")

    def committed(self, settings: S) -> Mapping[tuple[str, int], int]:
        """Return the positions that the group of `group_commit` has, by topic and partition."""
        raise NotImplementedError(f"{type(self).__name__} has to define committed(self, settings)")

    # Life.

    def test_close_is_allowed_before_open_and_twice(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        self.make_sink(settings, self._context()).close()
        sink = self.make_sink(settings, self._context())
        sink.open()
        sink.close()
        sink.close()

    def test_open_is_allowed_again(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        batch = self._batch()
        with self._session(settings) as session:
            session.sink.open()
            session.write(batch)
        self._check(settings, batch)

    def test_making_an_instance_touches_nothing(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        first, second = self._batch(), self._batch(offset=3)
        with self._session(settings) as session:
            session.write(first)
            self.make_sink(settings, self._context())  # as at start, to ask whether it holds positions
            session.write(second)
        self._check(settings, first, second)

    def test_every_setting_is_described(self) -> None:
        for name, field in self.sink_type.settings_type.model_fields.items():
            if not field.description:
                _fail(f"the setting {name} has no description, which `connector sinks` prints")

    # Durability.

    def test_what_is_acknowledged_survives_a_crash(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        batches = [self._batch(offset=offset) for offset in (0, 3)]
        self._crash(settings, lambda session: session.write(*batches))
        self._check(settings, *batches)

    def test_what_is_acknowledged_survives_close_and_a_new_start(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        first, second = self._batch(), self._batch(offset=3)
        for batch in (first, second):
            with self._session(settings) as session:
                session.write(batch)
        self._check(settings, first, second)

    def test_a_crash_in_the_middle_of_a_batch_loses_nothing(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        first, second = self._batch(), self._batch(offset=3)
        interrupted = FaultSwitch(kill_this_process).put_into(second, 1)
        self._crash(settings, lambda session: session.write(first, interrupted))
        with self._session(settings) as session:
            session.replay(first)
            session.replay(second)
        self._check(settings, first, second, may_repeat=not self._is_idempotent(settings))

    # Replays and retries.

    def test_a_replay_loses_nothing_and_leaves_one_copy_if_idempotent(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        batch, more = self._batch(), self._batch(offset=3)
        with self._session(settings) as session:
            session.write(batch)
            session.replay(batch)
        with self._session(settings) as session:
            session.replay(batch)
            session.replay(more)
        self._check(settings, batch, more, may_repeat=not self._is_idempotent(settings))

    def test_a_batch_that_failed_midway_is_written_by_the_next_try(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        first, second = self._batch(), self._batch(offset=3)
        switch = FaultSwitch()
        with self._session(settings) as session:
            session.write(first)
            left = session.attempt(switch.put_into(second, 1))
            left = [again for batch in left for again in session.attempt(batch)]
            switch.is_on = False
            session.write(*left)
        self._check(settings, first, second, may_repeat=not self._is_idempotent(settings))

    def test_an_outage_is_transient_and_loses_nothing(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        first, second = self._batch(), self._batch(offset=3)
        outage = self.outage(settings)
        if outage is None:
            return
        with self._session(settings) as session:
            session.write(first)
            with outage:
                with contextlib.suppress(TransientError):
                    session.sink.probe()
                left = session.attempt(second)
                if not left:
                    _fail("a batch was acknowledged during the outage")
            session.sink.probe()
            for batch in left:
                session.deliver(batch)
        self._check(settings, first, second, may_repeat=not self._is_idempotent(settings))

    def test_a_probe_of_a_healthy_destination_raises_and_writes_nothing(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        batch = self._batch()
        with self._session(settings) as session:
            session.sink.probe()
            session.write(batch)
            session.sink.probe()
        self._check(settings, batch)

    # Order and events.

    def test_a_lane_keeps_its_order(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        batches = [
            self._batch(partition=partition, lane=partition + 1, offset=offset)
            for offset in range(0, 30, 3)
            for partition in (0, 1)
        ]
        with self._session(settings) as session:
            session.write(*batches)
        self._check(settings, *batches)
        self._check_order(settings)

    def test_control_events_after_the_last_batch_leave_everything_written(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        written = []
        for life, cause in enumerate(StopCause):
            batches = {
                reason: self._batch(partition=number, lane=number + 1, offset=10 * life)
                for number, reason in enumerate(CloseReason)
            }
            stalled = batches[CloseReason.STALLED].metadata
            recovered = self._batch(partition=stalled.partition, lane=stalled.lane, offset=10 * life + 3)

            def live(
                session: _Session,
                cause: StopCause = cause,
                batches: dict[CloseReason, Batch] = batches,
                recovered: Batch = recovered,
            ) -> None:
                for reason, batch in batches.items():
                    session.write(batch)
                    session.tell(InputClosed(batch.metadata.lane, reason))
                session.tell(InputRecovered(recovered.metadata.lane))
                session.write(recovered)
                session.tell(Stop(cause))

            self._crash(settings, live)
            written += [*batches.values(), recovered]
        self._check(settings, *written)

    def test_a_lane_that_closes_leaves_the_others_untouched(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        leaving, kept = self._batch(partition=0, lane=1), self._batch(partition=1, lane=2)
        more, returned = self._batch(partition=1, lane=2, offset=3), self._batch(partition=0, lane=3, offset=3)

        def live(session: _Session) -> None:
            session.write(leaving)
            session.write(kept)
            session.tell(InputClosed(leaving.metadata.lane))
            session.write(more)
            session.write(returned)  # the partition has come back, as a new lane

        self._crash(settings, live)
        self._check(settings, leaving, kept, more, returned)

    def test_events_that_do_not_concern_it_are_ignored(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        first, second = self._batch(), self._batch(offset=3)
        events: tuple[Event, ...] = (
            cast("Event", _LaterEvent()),
            InputClosed(LaneId(99), CloseReason.LOST),  # a lane that never wrote anything here
            InputRecovered(LaneId(99)),
            NodeFailed((LaneId(1),), "a failure", "source"),
            NodeRestarted("source"),
            Error("something unexpected"),
        )
        with self._session(settings) as session:
            session.write(first)
            for event in events:
                session.tell(event)
            session.write(second)
        self._check(settings, first, second)

    # Records.

    def test_null_empty_and_undecodable_are_written_as_they_are_or_refused(self, tmp_path: Path) -> None:
        records = (
            Record(value=None, key=None),
            Record(value=b"", key=b"", headers=[("h", b""), ("h", None), ("", b"1")]),
            Record(value=b"\xff\xfe", key=b"\x80", headers=[("h", b"\xc3\x28")]),
            Record(value=b"a\x00b\n", key=b"\x00\n", headers=[("h", b"\x00")], timestamp_ms=None),
            Record(value="ä\u2028\U0001f600".encode(), key="ü".encode(), headers=[("é", b"1"), ("a", b"2")]),
        )
        self._check_refusals(self.make_settings(tmp_path), make_batch(*records, topic=_TOPIC))

    def test_decoded_values_are_written_or_refused(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        decoded = [{"a": [1, 2.5, None, True]}, "text", "", 1, []]
        records = [Record(b"{}", key=f"{number}".encode()) for number in range(len(decoded))]
        keys = [record.key.decode() for record in records if record.key is not None]
        batch = make_batch(*records, topic=_TOPIC, decoded={"value": decoded, "key": keys})
        self._check_refusals(settings, batch)

    def test_a_big_record_is_written_or_refused(self, tmp_path: Path) -> None:
        values = [self.make_value(0, 0), self.make_value(0, 1) + b" " * _BIG_BYTES, self.make_value(0, 2)]
        records = [Record(value, key=f"{number}".encode()) for number, value in enumerate(values)]
        self._check_refusals(self.make_settings(tmp_path), make_batch(*records, topic=_TOPIC))

    def test_a_bad_record_is_the_only_one_that_is_left_out(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if self.bad_value is None:
            return
        good = self._batch(count=5)
        records = [Record(message.value(), message.key()) for message in good.messages]
        records[3] = Record(self.bad_value, b"bad")
        batch = make_batch(*records, topic=_TOPIC)
        with self._session(settings) as session:
            refused = session.deliver(batch)
        if refused != {3}:
            _fail(f"of a batch whose record 3 has the bad value, the refused records are {sorted(refused)}")
        self._check(settings, batch, refused=refused, may_repeat=not self._is_idempotent(settings))

    def test_a_tombstone_deletes_what_its_key_names(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        context = self._context(tombstones="delete")
        if not self.make_sink(settings, context).deletes:
            return
        first = self._batch()
        one, two = b"one", b"two"
        values = [self.make_value(0, offset) for offset in range(9)]
        second = make_batch(
            Record(None, first.messages[1].key()),
            Record(values[4], one),
            Record(values[5], two),
            Record(None, one),  # ends what came before it in its own batch
            Record(None, two),
            Record(values[8], two),  # and is ended by what comes after it
            topic=_TOPIC,
            offset=3,
        )
        with self._session(settings, context) as session:
            session.write(first, second)
            session.replay(first)
            session.replay(second)
        gone = {1, 3, 4, 5, 6, 7}
        self._check(settings, first, second, refused=gone, may_repeat=not self._is_idempotent(settings))

    # Asynchronous acknowledgement.

    def test_every_batch_in_flight_is_acknowledged_once(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        in_flight = self.sink_type.max_in_flight
        if in_flight == 1:
            return
        batches = [self._batch(offset=3 * number) for number in range(min(in_flight, 10))]
        with self._session(settings) as session:
            answers = [session.submit(batch) for batch in batches]
            session.flush(*batches)
            errors = [_first(each) for each in answers]
        for number, (each, error) in enumerate(zip(answers, errors, strict=True)):
            if error is not None:
                _fail(f"batch {number} of {len(batches)} in flight was not written: {error!r}")
            if not each.empty():
                _fail(f"batch {number} of {len(batches)} in flight was acknowledged more than once")
        self._check(settings, *batches)

    def test_batches_in_flight_keep_their_order_and_are_durable(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        in_flight = self.sink_type.max_in_flight
        if in_flight == 1:
            return
        batches = [self._batch(offset=3 * number) for number in range(min(in_flight, 10))]

        def live(session: _Session) -> None:
            answers = [session.submit(batch) for batch in batches]
            session.flush(*batches)
            for answer in answers:
                _raise(_first(answer))

        self._crash(settings, live)
        self._check(settings, *batches)
        self._check_order(settings)

    def test_what_is_held_back_is_durable_after_a_flush(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if self.sink_type.max_in_flight == 1:
            return
        batches = [self._batch(partition=number % 2, lane=1 + number % 2, offset=3 * number) for number in range(4)]

        def live(session: _Session) -> None:
            answers = [session.submit(batch) for batch in batches]
            session.flush(*batches)
            for answer in answers:
                _raise(_first(answer))

        self._crash(settings, live)
        self._check(settings, *batches)

    def test_a_flush_of_one_lane_waits_for_no_other(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if self.sink_type.max_in_flight == 1:
            return
        leaving, kept = self._batch(partition=0, lane=1), self._batch(partition=1, lane=2)
        with self._session(settings) as session:
            session.flush(leaving)  # of which there is nothing yet
            others = session.submit(kept)
            answer = session.submit(leaving)
            session.flush(leaving)
            _raise(_first(answer))
            session.flush(kept)
            _raise(_first(others))
        self._check(settings, leaving, kept)

    def test_a_lane_that_closes_has_every_batch_answered(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if self.sink_type.max_in_flight == 1:
            return
        for lane, reason in enumerate((CloseReason.LOST, CloseReason.REVOKED), start=1):
            batch = self._batch(lane=lane, offset=10 * lane)
            with self._session(settings) as session:
                answer = session.submit(batch)
                session.tell(InputClosed(batch.metadata.lane, reason))
                _first(answer)  # durable or not, both are right

    # Transactional positions.

    def test_a_position_comes_back_as_it_was_stored(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._holds_positions(settings):
            return
        lane = LaneInfo(LaneId(1), _TOPIC, 0, "id-1")
        batch = self._batch(next_offset=17)  # behind a gap, as compaction and transactions leave them
        with self._session(settings) as session:
            _expect(session.claim(lane), None, "the position of a partition that nobody has written")
            session.write(batch)
        stored = StoredPosition(batch.metadata.next_offset, "id-1")
        with self._session(settings) as session:
            _expect(session.claim(lane), stored, "the position after one batch")
            session.write(self._batch(offset=17))
        self._check(settings, batch, self._batch(offset=17))
        with self._session(settings, self._context(group_id="another")) as session:
            _expect(session.claim(lane), None, "the position of another group")

    def test_a_former_owner_is_refused_and_writes_nothing(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._holds_positions(settings):
            return
        first, second = self._batch(), self._batch(offset=3)
        with self._session(settings) as former, self._session(settings) as owner:
            former.write(first)
            owner.claim(_lane_of(first))
            try:
                former.write(second)
            except RefusedError:
                pass
            else:
                _fail("a sink whose lane was claimed by another instance since did not raise RefusedError")
        self._check(settings, first)
        with self._session(settings) as session:
            stored = session.claim(_lane_of(first))
            _expect(stored, StoredPosition(first.metadata.next_offset, "id-1"), "the position after a refused write")
            session.write(second)
        self._check(settings, first, second)

    def test_records_and_position_are_stored_together_or_not_at_all(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._holds_positions(settings):
            return
        first, second, third = (self._batch(offset=offset) for offset in (0, 3, 6))
        self._crash(settings, lambda session: session.write(first))
        self._check_agreement(settings, first)
        interrupted = FaultSwitch(kill_this_process).put_into(second, 1)
        self._crash(settings, lambda session: session.write(interrupted))
        self._check_agreement(settings, first, second)
        with self._session(settings) as session:
            session.replay(second)
            session.attempt(FaultSwitch().put_into(third, 1))
        self._check_agreement(settings, first, second, third)

    # Positions that the sink commits.

    def test_the_position_of_a_batch_is_committed_when_it_is_acknowledged(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._commits_positions(settings):
            return
        first, second = self._batch(next_offset=17), self._batch(offset=17)  # behind a gap
        other = self._batch(partition=1, lane=2)
        self._crash(settings, lambda session: session.write(first, other))
        self._expect_committed(settings, {(_TOPIC, 0): 17, (_TOPIC, 1): 3}, "after a batch of each of two lanes")
        with self._session(settings) as session:
            session.write(second)
            session.write(make_batch(topic=_TOPIC, offset=20, next_offset=25))
        self._expect_committed(settings, {(_TOPIC, 0): 25, (_TOPIC, 1): 3}, "after an empty batch up to 25")
        self._check(settings, first, second, other)

    def test_a_lane_that_has_left_writes_and_commits_nothing(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._commits_positions(settings):
            return
        first, second = self._batch(), self._batch(offset=3)
        has_left = False

        def commit(lane: LaneId) -> GroupCommit:
            if has_left:
                raise RefusedError("the lane has left")
            return self.group_commit(lane)

        with self._session(settings, self._context(group_commit=commit)) as session:
            session.write(first)
            has_left = True
            self._expect_refusal(session, second, RefusedError, "whose lane has left")
        self._expect_committed(settings, {(_TOPIC, 0): 3}, "after the write of a lane that has left")
        self._check(settings, first)

    def test_a_former_generation_writes_and_commits_nothing(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._commits_positions(settings):
            return
        first, second = self._batch(), self._batch(offset=3)
        is_over = False

        def commit(lane: LaneId) -> GroupCommit:
            return self.former_group_commit(lane) if is_over else self.group_commit(lane)

        context = self._context(group_commit=commit)
        with self._session(settings, context) as session:
            session.write(first)
            is_over = True
            self._expect_refusal(session, second, (RefusedError, TransientError), "of a former generation")
            self._expect_committed(settings, {(_TOPIC, 0): 3}, "after the write of a former generation")
            self._check(settings, first)
            is_over = False
            session.write(second)
        self._check(settings, first, second)

    def test_records_and_committed_position_are_there_together_or_not_at_all(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._commits_positions(settings):
            return
        first, second, third = (self._batch(offset=offset) for offset in (0, 3, 6))
        self._crash(settings, lambda session: session.write(first))
        self._check_committed_records(settings, first)
        interrupted = FaultSwitch(kill_this_process).put_into(second, 1)
        self._crash(settings, lambda session: session.write(interrupted))
        with self._session(settings) as session:
            self._check_committed_records(settings, first, second)
            session.replay(second)
            session.attempt(FaultSwitch().put_into(third, 1))
        self._check_committed_records(settings, first, second, third)

    # Positions that a command reads and sets.

    def test_positions_are_read_without_a_claim(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._resets_positions(settings):
            return
        first, second = self._batch(), self._batch(offset=3)
        _expect(self._read_positions(settings), {}, "what is read of positions before anything was written")
        with self._session(settings) as session:
            session.claim(LaneInfo(LaneId(2), _TOPIC, 1, "id-1"))
            session.write(first)
            stored = {(_TOPIC, 0): StoredPosition(first.metadata.next_offset, "id-1")}
            _expect(self._read_positions(settings), stored, "what is read of positions after one batch")
            _expect(self._read_positions(settings, "another"), {}, "what is read of another group's positions")
            session.write(second)
        self._check(settings, first, second)

    def test_a_lane_starts_where_its_position_was_reset_to(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._resets_positions(settings):
            return
        written, other = self._batch(), self._batch(partition=1, lane=2)
        with self._session(settings) as session:
            session.write(written, other)
        with self._session(settings, self._context(group_id="another")) as session:
            session.claim(_lane_of(written))
            session.write(self._batch(offset=100))
        wanted = {
            (_TOPIC, 0): StoredPosition(Offset(50), "id-2"),
            (_TOPIC, 7): StoredPosition(Offset(0), None),  # which nobody has written
        }
        _run_and_kill(lambda: self.make_sink(settings, self._context()).reset_positions(wanted))
        expected = {**wanted, (_TOPIC, 1): StoredPosition(other.metadata.next_offset, "id-1")}
        _expect(self._read_positions(settings), expected, "what is read of positions after a reset")
        elsewhere = {(_TOPIC, 0): StoredPosition(Offset(103), "id-1")}
        _expect(
            self._read_positions(settings, "another"), elsewhere, "what a reset leaves of another group's positions"
        )
        with self._session(settings) as session:
            for lane, (topic, partition) in enumerate(expected, start=1):
                claimed = session.claim(LaneInfo(LaneId(lane), topic, partition, "id-2"))
                _expect(claimed, expected[topic, partition], f"the position of {topic}[{partition}] after a reset")
            session.write(self._batch(offset=50))
        self._check(settings, written, other, self._batch(offset=100), self._batch(offset=50))

    def test_a_writer_is_refused_after_a_reset_until_it_claims_again(self, tmp_path: Path) -> None:
        settings = self.make_settings(tmp_path)
        if not self._resets_positions(settings):
            return
        first, second = self._batch(), self._batch(offset=3)
        position = {(_TOPIC, 0): StoredPosition(first.metadata.next_offset, "id-1")}
        with self._session(settings) as session:
            session.write(first)
            # To where it stands: nothing but the owner tells that there was a reset.
            self._reset_positions(settings, position)
            try:
                session.write(second)
            except RefusedError:
                pass
            else:
                _fail("a sink that had claimed its lane before a reset did not raise RefusedError")
            self._check(settings, first)
            _expect(session.claim(_lane_of(first)), position[_TOPIC, 0], "the position at the claim after a reset")
            session.write(second)
        self._check(settings, first, second)

    # How the checks work.

    def _batch(
        self, *, partition: int = 0, offset: int = 0, count: int = 3, lane: int = 1, next_offset: int | None = None
    ) -> Batch:
        """Return records that every destination takes, each with a key of its own."""
        records = [
            Record(self.make_value(partition, number), key=f"{partition}-{number}".encode(), headers=[("h", b"1")])
            for number in range(offset, offset + count)
        ]
        return make_batch(
            *records, topic=_TOPIC, partition=partition, offset=offset, lane=lane, next_offset=next_offset
        )

    @contextlib.contextmanager
    def _session(self, settings: S, context: SinkContext | None = None) -> Iterator[_Session]:
        sink = self.make_sink(settings, context or self._context())
        try:
            sink.open()
            yield self._session_of(sink, settings)
        finally:
            sink.close()

    def _crash(self, settings: S, live: Callable[[_Session], object]) -> None:
        """Let an instance live in a process of its own, which is killed when `live` returns, without `close`."""

        def run() -> None:
            sink = self.make_sink(settings, self._context())
            sink.open()
            live(self._session_of(sink, settings))

        _run_and_kill(run)

    def _is_idempotent(self, settings: S) -> bool:
        """Whether no repeat may be seen. Positions keep repeats out too."""
        sink = self.make_sink(settings, self._context())
        return sink.is_idempotent or sink.holds_positions or sink.commits_positions

    def _context(self, **fields: Any) -> SinkContext:
        return SinkContext(**{"group_id": _GROUP, "group_commit": self.group_commit, **fields})

    def _session_of(self, sink: Sink[S], settings: S) -> _Session:
        return _Session(sink, lambda: self.committed(settings))

    def _commits_positions(self, settings: S) -> bool:
        return self.make_sink(settings, self._context()).commits_positions

    def _expect_committed(self, settings: S, positions: Mapping[tuple[str, int], int], when: str) -> None:
        _expect(dict(self.committed(settings)), dict(positions), f"what is committed {when}")

    def _expect_refusal(
        self, session: _Session, batch: Batch, kinds: type[Exception] | tuple[type[Exception], ...], what: str
    ) -> None:
        try:
            session.write(batch)
        except kinds:
            return
        _fail(f"the write of a batch {what} was acknowledged")

    def _check_committed_records(self, settings: S, *batches: Batch) -> None:
        """See that what is stored is exactly what lies below the committed position."""
        position = self.committed(settings).get((_TOPIC, 0), 0)
        self._check(settings, *(batch for batch in batches if batch.metadata.next_offset <= position))

    def _holds_positions(self, settings: S) -> bool:
        return self.make_sink(settings, self._context()).holds_positions

    def _resets_positions(self, settings: S) -> bool:
        return self._holds_positions(settings) and self.make_sink(settings, self._context()).resets_positions

    def _read_positions(self, settings: S, group: str = _GROUP) -> Mapping[tuple[str, int], StoredPosition]:
        """Read positions as a command does: with an instance that is never opened."""
        with contextlib.closing(self.make_sink(settings, self._context(group_id=group))) as sink:
            return sink.read_positions()

    def _reset_positions(self, settings: S, positions: Mapping[tuple[str, int], StoredPosition]) -> None:
        with contextlib.closing(self.make_sink(settings, self._context())) as sink:
            sink.reset_positions(positions)

    def _check_refusals(self, settings: S, batch: Batch) -> None:
        """See that each record is either stored, as it is, or refused as poison."""
        with self._session(settings) as session:
            refused = session.deliver(batch)
        self._check(settings, batch, refused=refused, may_repeat=not self._is_idempotent(settings))

    def _check_agreement(self, settings: S, *batches: Batch) -> None:
        """See that what is stored is exactly what lies below the stored position."""
        with self._session(settings) as session:
            stored = session.claim(_lane_of(batches[0]))
        position = 0 if stored is None else stored.next_offset
        self._check(settings, *(batch for batch in batches if batch.metadata.next_offset <= position))

    def _check_order(self, settings: S) -> None:
        seen: dict[tuple[str, int], int] = {}
        for topic, partition, offset, *_ in self.read_back(settings) or ():
            if offset <= seen.get((topic, partition), -1):
                _fail(f"{topic}[{partition}]@{offset} is stored after @{seen[topic, partition]}: its lane has an order")
            seen[topic, partition] = offset

    def _check(self, settings: S, *batches: Batch, refused: Iterable[int] = (), may_repeat: bool = False) -> None:
        """See that the destination holds these batches but for the refused offsets, and nothing else."""
        read = self.read_back(settings)
        if read is None:
            return
        rows = [_checked_row(row) for row in read]
        expected = {key: contents for batch in batches for key, contents in _contents(batch) if key[2] not in refused}
        found = Counter(row[:3] for row in rows)
        if lost := expected.keys() - found.keys():
            _fail(f"lost: {_names(lost)}")
        if strange := found.keys() - expected.keys():
            _fail(f"stored, though they should not be: {_names(strange)}")
        if not may_repeat and (repeated := [key for key, number in found.items() if number > 1]):
            _fail(f"stored more than once: {_names(repeated)}")
        for row in rows:
            contents = expected[row[:3]]
            if contents is not None and (stored := row[3:]) != contents[: len(stored)]:
                _fail(f"{_names([row[:3]])} is stored as {_short(stored)}, and was {_short(contents)}")


class _Session:
    """One open instance, called as the runtime calls it: one thread, lanes claimed before they write."""

    def __init__(self, sink: Sink[Any], committed: Callable[[], Mapping[tuple[str, int], int]]) -> None:
        self.sink = sink
        self._committed = committed
        self._claimed: set[LaneId] = set()

    def tell(self, event: Event) -> None:
        """Send an event other than a batch."""
        self.sink.on_event(event)

    def claim(self, lane: LaneInfo) -> StoredPosition | None:
        """Claim a lane."""
        self._claimed.add(lane.id)
        return self.sink.claim(lane)

    def submit(self, batch: Batch) -> SimpleQueue[ConnectorError | None]:
        """Begin to write a batch; the answers come into the queue."""
        self._claim_first(batch)
        answers: SimpleQueue[ConnectorError | None] = SimpleQueue()
        self.sink.submit(batch, answers.put)
        return answers

    def flush(self, *batches: Batch) -> None:
        """Ask for the lanes of these batches to be finished, as a drain does."""
        for lane in dict.fromkeys(batch.metadata.lane for batch in batches):
            self.sink.flush(lane)

    def write(self, *batches: Batch) -> None:
        """Write batches one after the other, and raise what the sink says of one."""
        for batch in batches:
            if self.sink.max_in_flight > 1:
                answer = self.submit(batch)
                self.flush(batch)
                _raise(_first(answer))
            else:
                self._claim_first(batch)
                self.sink.on_event(Input(batch.metadata.lane, batch.metadata, batch))

    def attempt(self, batch: Batch) -> list[Batch]:
        """Write a batch once and return what has to be tried again."""
        try:
            self.write(batch)
        except TransientError:
            return [batch]
        except RecordErrors as errors:
            return [each for each, _ in _failed(batch, errors)]
        return []

    def deliver(self, batch: Batch) -> set[int]:
        """Write a batch, halving it where a record is poison; return the offsets of those."""
        refused: set[int] = set()
        parts = [batch]
        for _ in range(_ATTEMPTS + 2 * len(batch)):
            if not parts:
                return refused
            part = parts.pop(0)
            try:
                self.write(part)
            except TransientError:
                parts.insert(0, part)
            except RecordErrors as errors:
                for each, error in reversed(_failed(part, errors)):
                    if isinstance(error, PoisonError):
                        refused.add(each.metadata.first_offset)
                    else:
                        parts.insert(0, each)
            except PoisonError:
                middle = len(part) // 2
                if middle:
                    parts[:0] = [part.slice(0, middle), part.slice(middle, len(part))]
                else:
                    refused.add(part.metadata.first_offset)
        return _fail(f"a batch of {len(batch)} records was not taken within {_ATTEMPTS} tries")

    def replay(self, batch: Batch) -> None:
        """Deliver what was delivered before, from the stored or committed position if the sink moves one."""
        if self.sink.commits_positions:
            where = batch.metadata.topic, batch.metadata.partition
            if self._committed().get(where, 0) >= batch.metadata.next_offset:
                return
        if self.sink.holds_positions:
            stored = self.claim(_lane_of(batch))
            if stored is not None and stored.next_offset >= batch.metadata.next_offset:
                return
        self.deliver(batch)

    def _claim_first(self, batch: Batch) -> None:
        if self.sink.holds_positions and batch.metadata.lane not in self._claimed:
            self.claim(_lane_of(batch))


def _run_and_kill(run: Callable[[], None]) -> None:
    """Run something in a fork of this process that is killed when it returns; raise what it raises.

    A fork, since neither settings nor sinks nor the classes of a test need to be known to a new process.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns where other threads run. The child needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run_as_child(run, writer)
    os.close(writer)
    try:
        said = _read_all(reader, time.monotonic() + _DEADLINE_SECONDS)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if said not in (b"", _ACKNOWLEDGED):  # nothing: it was killed midway by a fault
        _fail(f"in the process that was to crash after the acknowledgement:\n{said.decode(errors='replace')}")


def _run_as_child(run: Callable[[], None], writer: int) -> None:
    gc.disable()  # what the parent has left must not be finalised here, where it may be a shared connection
    said = _ACKNOWLEDGED
    try:
        run()
    except BaseException:  # noqa: BLE001 - the parent reports it
        said = traceback.format_exc().encode()
    finally:
        os.write(writer, said)
        kill_this_process()


def _read_all(reader: int, deadline: float) -> bytes:
    said = b""
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            _fail(f"the sink did not return within {_DEADLINE_SECONDS:g} s")
        chunk = os.read(reader, 65536)
        if not chunk:
            return said
        said += chunk


def _first(answers: SimpleQueue[ConnectorError | None]) -> ConnectorError | None:
    try:
        return answers.get(timeout=_DEADLINE_SECONDS)
    except Empty:
        return _fail(f"a submitted batch was not acknowledged within {_DEADLINE_SECONDS:g} s")


def _raise(error: ConnectorError | None) -> None:
    if error is not None:
        raise error


def _lane_of(batch: Batch) -> LaneInfo:
    metadata = batch.metadata
    return LaneInfo(metadata.lane, metadata.topic, metadata.partition, metadata.topic_id)


def _failed(batch: Batch, errors: RecordErrors) -> list[tuple[Batch, ConnectorError]]:
    """Return each failed record, as a batch of its own, and its error."""
    if wrong := errors.errors.keys() - range(len(batch)):
        _fail(f"RecordErrors names the records {sorted(wrong)} of a batch of {len(batch)}")
    return [(batch.slice(index, index + 1), errors.errors[index]) for index in sorted(errors.errors)]


def _contents(batch: Batch) -> Iterator[tuple[Row, Row | None]]:
    """Yield topic, partition, offset with value, key, headers; None if decoded, which each sink stores in its way."""
    for topic, partition, offset, *contents in batch.rows("topic", "partition", "offset", "value", "key", "headers"):
        yield (topic, partition, offset), None if batch.decoded else tuple(contents)


def _checked_row(row: Row) -> Row:
    if not 3 <= len(row) <= 6:
        _fail(f"read_back returned {row!r}; a row is topic, partition, offset, and maybe value, key, headers")
    return tuple(row)


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        _fail(f"{what} is {found}, and should be {expected}")


def _names(keys: Iterable[Row]) -> str:
    return ", ".join(f"{topic}[{partition}]@{offset}" for topic, partition, offset in sorted(keys))


def _short(contents: Row) -> str:
    text = repr(contents)
    return text if len(text) < 200 else f"{text[:200]}…"


def _fail(text: str) -> NoReturn:
    raise AssertionError(text)
