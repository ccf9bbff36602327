"""The rebalance callbacks: what happens, in which order, when partitions come, leave or are lost.

Every method runs on the consumer thread; the callbacks inside `poll`, `consume` or `close`. When `on_revoke` returns,
the client gives the partitions up by itself, so the drain and the commit belong inside. Callbacks never raise: an
exception would come out of `consume()` as an unrelated SystemError. What goes wrong is handed to `fail`.

A revocation is close, drain, commit, fence, drop, finish, in this order (INV-5). Lost means fenced at once (INV-6).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from connector.api.barrier import DrainBarrier
from connector.api.errors import FatalError, InvariantError
from connector.api.source_event import CommitResult, LanesAdded, LanesAssigned, LanesRevoked, RevokeReason
from connector.commit.outcome import Outcome, error_for, outcome_of
from connector.lane.lane import Chunk, Lane
from connector.source.assignment import Assignment, Held, Wait
from connector.source.position import Cause, encode_metadata
from connector.source.rebalance_report import RebalanceReport
from connector.source.story import Release
from connector.telemetry.logs import get_logger
from connector.telemetry.partition_list import partition_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from connector.api.sink import StoredPosition
    from connector.api.source_event import SourceEvent
    from connector.api.types import Offset, PartitionId
    from connector.source.assignment import Key
    from connector.source.client import KafkaClient
    from connector.source.membership import Membership
    from connector.source.position import TopicFacts
    from connector.source.starts import Found, Starts
    from connector.telemetry.metrics import Metrics
    from connector.telemetry.stopwatch import Stopwatch

log = get_logger(__name__)

_RETRY_SECONDS = 1.0
_COMMIT_TRIES = 3
_COMMIT_RETRY_SECONDS = 0.2


class Rebalance:
    """Turns the client's callbacks into lanes and source events.

    Args:
        assignment: The lanes held now.
        starts: Finds where lanes start.
        emit: Takes a source event for the controller.
        report: Takes the result of a synchronous commit.
        fail: Takes the error that ends the process.
        metrics: Counts rebalances, drains and starts.
        watch: The consumer thread's.
        asks_sink: The sink holds positions, so each lane waits until its pipeline has asked for its own.
        drain_timeout: How long a revocation waits for the sinks, in seconds.
        membership: Where a sink that commits positions looks who this member is; None: the source commits.
    """

    def __init__(
        self,
        *,
        assignment: Assignment,
        starts: Starts,
        emit: Callable[[SourceEvent[Lane]], None],
        report: Callable[[CommitResult], None],
        fail: Callable[[FatalError], None],
        metrics: Metrics,
        watch: Stopwatch,
        asks_sink: bool,
        drain_timeout: float,
        membership: Membership | None = None,
    ) -> None:
        self.assignment = assignment
        self.is_closing = False
        self.has_joined = False  # an assignment, perhaps an empty one, has come since the client was made or lost all
        self.ends: Mapping[Key, Offset] | None = None  # of a bounded run
        self.protocol = ""  # the group protocol of the client
        self.is_eager = False  # the assignor gives the whole set anew at each rebalance (`range`, `roundrobin`)
        self._starts = starts
        self._emit = emit
        self._report = report
        self._fail = fail
        self._metrics = metrics
        self._watch = watch
        self.report = RebalanceReport(assignment, metrics, watch)
        self._asks_sink = asks_sink
        self._drain_timeout = drain_timeout
        self._membership = membership

    # Callbacks of the client.

    def on_assign(self, client: KafkaClient, partitions: Sequence[TopicPartition]) -> None:
        """Partitions came: the full new set (eager), or more (cooperative, KIP-848); an empty list is common."""
        try:
            keys = [(partition.topic, partition.partition) for partition in partitions]
            if self.is_closing:
                self._decline(client, keys)
                return
            with self.report.callback("assigned", client, self.protocol):
                self._assigned(client, keys)
        except FatalError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a callback must not raise; the error ends the process
            self._fail(_bug("on_assign", error))

    def on_revoke(self, client: KafkaClient, partitions: Sequence[TopicPartition]) -> None:
        """Partitions leave and we still own them: drain, then commit. Partitions that we do not hold are not ours to
        answer for, and the client answers an empty list or an error event by itself."""
        try:
            leaving = self._known(partitions)
            if leaving and not self.is_closing:
                self._publish(client)  # a cooperative group has a new generation by now, and the drain commits with it
                with self.report.callback("revoked", client, self.protocol) as measured:
                    measured.release = release = self.release(client, leaving)
                drain_seconds = round(release.drain_seconds, 3)
                log.debug("lanes_revoked", partitions=_names(leaving), lanes=len(leaving), drain_seconds=drain_seconds)
        except Exception as error:  # noqa: BLE001 - a callback must not raise; the error ends the process
            self._fail(_bug("on_revoke", error))

    def on_lost(self, client: KafkaClient, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are somebody else's already."""
        try:
            gone = self._known(partitions)
            if gone:
                with self.report.callback("lost", client, self.protocol):
                    self.abandon(client, gone)
                log.debug("lanes_lost", partitions=_names(gone), lanes=len(gone))
            self.has_joined = bool(len(self.assignment))
        except Exception as error:  # noqa: BLE001 - a callback must not raise; the error ends the process
            self._fail(_bug("on_lost", error))

    # Steps.

    def release(self, client: KafkaClient, leaving: Sequence[Held]) -> Release:
        """Close, drain, commit, fence, drop. Blocks up to the drain timeout and a synchronous commit."""
        started = time.monotonic()
        for held in leaving:
            held.lane.close()
        barrier = DrainBarrier(parties=len(leaving) + 1)
        self._emit(LanesRevoked(tuple(held.lane.id for held in leaving), barrier))
        with self._watch.during("rebalance"):
            is_drained = barrier.wait(self._drain_timeout)
        seconds = time.monotonic() - started
        timed_out, not_drained = max(0, barrier.remaining - 1), barrier.not_drained
        self._metrics.drain_seconds.observe(seconds)
        if not is_drained:
            self._metrics.drains.labels("timed_out").inc()
            log.warning(
                "drain_timed_out",
                partitions=_names(leaving),
                lanes=len(leaving),
                timed_out=timed_out,
                timeout_seconds=self._drain_timeout,
                meaning="what was not durable by now is not committed; the next owner reads it again",
            )
        try:
            # Commit before the lanes are dropped and the callback returns: afterwards the generation is stale (INV-5).
            committed, codes = self.commit_now(client, barrier.positions)
        finally:  # whatever goes wrong, nobody goes on waiting for this revocation
            self._drop(client, leaving)
            barrier.settle()
        drained = len(leaving) - not_drained - timed_out
        return Release(seconds, drained, not_drained, timed_out, committed, codes)

    def abandon(self, client: KafkaClient, gone: Sequence[Held]) -> None:
        """Fence and drop at once: no drain, no commit, no waiting (INV-6)."""
        self._drop(client, gone)
        self._emit(LanesRevoked(tuple(held.lane.id for held in gone), DrainBarrier(0), RevokeReason.LOST))

    def begin(self, client: KafkaClient, keys: Sequence[Key], starts: Mapping[Key, Found]) -> list[Held]:
        """Make lanes for partitions that the client is about to be given, or has; `starts` are decided already."""
        # The sink is asked first, by the lane's pipeline; what the group says is read when the answer has come.
        undecided = [] if self._asks_sink else [key for key in keys if key not in starts]
        found = self._find(client, undecided, {})
        lanes: list[Held] = []
        for key in keys:
            facts = self._facts(key, {**found, **starts})
            held = self.assignment.mint(key, facts, awaits_sink=self._asks_sink)
            held.decided = starts.get(key)
            if self._asks_sink:
                held.wait = Wait.SINK
            elif held.decided is not None:
                self.start(held, held.decided.start, held.decided.cause)
            elif key in found:
                held.lane.committed = found[key].committed
                self.start(held, found[key].start, found[key].cause)
            else:
                held.wait = Wait.POSITION
                held.retry_at = time.monotonic() + _RETRY_SECONDS
            lanes.append(held)
        return lanes

    def start(self, held: Held, start: Offset, cause: Cause) -> None:
        """Let a lane flow from here. The position goes through the lane like records do, so that it is committed when
        it is not yet: a `latest` start is pinned before the first record comes."""
        held.wait = None
        held.lane.awaits_sink = False
        held.next_offset = start
        held.end = None if self.ends is None else self.ends.get(held.key, _ZERO)
        held.is_ended = held.end is not None and start >= held.end
        held.lane.put(Chunk([], start, is_last=held.is_ended))
        self._metrics.starts.labels(cause.value).inc()
        log.debug(
            "lane_started",
            lane=held.lane.id,
            topic=held.key[0],
            partition=held.key[1],
            position=start,
            cause=cause.value,
        )

    def find_again(self, client: KafkaClient, waiting: Mapping[Key, StoredPosition | None]) -> None:
        """Decide the starts of lanes that waited for the sink's answer or for the group's position, and let them flow.

        Lanes of partitions whose read fails go on waiting.
        """
        lanes = [held for key in waiting if (held := self.assignment.get(*key)) is not None]
        stored = {key: position for key, position in waiting.items() if position is not None}
        found = self._find(client, [held.key for held in lanes], stored)
        ready: list[Held] = []
        for held in lanes:
            answer = found.get(held.key)
            if answer is None:
                held.wait = Wait.POSITION
                held.stored = waiting[held.key]
                held.retry_at = time.monotonic() + _RETRY_SECONDS
                continue
            held.facts = answer.facts
            held.lane.topic_id = answer.facts.topic_id
            if held.decided is None:
                held.lane.committed = answer.committed
            ready.append(held)
        self._publish(client)
        for held in ready:
            decided = held.decided or found[held.key]
            self.start(held, decided.start, decided.cause)
        self.point(client, ready)

    def replace(self, client: KafkaClient, leaving: Sequence[Held], starts: Mapping[Key, Found]) -> None:
        """Bring partitions that are ours back as new lanes, after their old lanes were released or abandoned."""
        keys = [held.key for held in leaving]
        lanes = self.begin(client, keys, starts)
        self._publish(client)
        self._emit(LanesAdded(tuple(held.lane for held in lanes)))
        self.point(client, lanes)

    def point(self, client: KafkaClient, lanes: Sequence[Held]) -> None:
        """Let the client fetch these lanes from their next offset, or not at all while they wait.

        Re-assigning gives the first record after a millisecond or two, where a plain resume can cost a second. Eager
        groups know only the whole set.
        """
        if not lanes:
            return
        targets = [_target(held) for held in lanes]
        client.resume([TopicPartition(*held.key) for held in lanes])
        if self.is_eager:
            client.assign([_target(held) for held in self.assignment])
            self._pause(client, self.assignment)
        else:
            client.incremental_unassign([TopicPartition(*held.key) for held in lanes])
            client.incremental_assign(targets)
            self._pause(client, lanes)

    def commit_now(self, client: KafkaClient, positions: Mapping[PartitionId, Offset]) -> tuple[int, tuple[str, ...]]:
        """Commit synchronously, and report it. Only positions above the committed ones of lanes that are held.

        Returns how many were committed, and the error codes of those that were not in the end.
        """
        wanted: dict[Key, tuple[Held, PartitionId, Offset]] = {}
        for partition, position in positions.items():
            held = self.assignment.by_partition(partition)
            if held is not None and (held.lane.committed is None or position > held.lane.committed):
                wanted[held.key] = (held, partition, position)
        total = len(wanted)
        failed: dict[Key, str] = {}
        for attempt in range(1, _COMMIT_TRIES + 1):
            if not wanted:
                break
            errors = self._try_commit(client, wanted)
            committed = {entry[1]: entry[2] for key, entry in wanted.items() if key not in errors}
            for key, (held, _, position) in wanted.items():
                if key not in errors:
                    held.lane.committed = position
            refused = {wanted[key][1]: code for key, code in errors.items()}
            self._report(CommitResult(committed, refused, synchronous=True))
            for code in set(errors.values()):
                if (error := error_for(code)) is not None:
                    self._fail(error)
            is_last = attempt == _COMMIT_TRIES
            again = {key for key, code in errors.items() if outcome_of(code) is Outcome.RETRY and not is_last}
            failed |= {key: code for key, code in errors.items() if key not in again}
            wanted = {key: wanted[key] for key in again}
            if wanted:
                time.sleep(_COMMIT_RETRY_SECONDS)
        return total - len(failed), tuple(sorted(set(failed.values())))

    # Parts of the steps.

    def _assigned(self, client: KafkaClient, keys: list[Key]) -> None:
        stale = list(self.assignment) if self.is_eager else [h for k in keys if (h := self.assignment.get(*k))]
        if stale:  # no revocation came before: they may have been anybody's meanwhile
            self.abandon(client, stale)
        is_full_set = self.is_eager or not self.has_joined
        self.has_joined = True
        try:
            lanes = self.begin(client, keys, {})
        except FatalError:
            self._give(client, [])
            raise
        self._give(client, [_target(held) for held in lanes])
        client.resume([TopicPartition(*held.key) for held in lanes])  # a pause outlives revocation and return
        self._pause(client, lanes)
        granted = tuple(held.lane for held in lanes)
        self._publish(client)
        self._metrics.rebalances.labels("assigned" if is_full_set else "added").inc()
        self._emit(LanesAssigned(granted) if is_full_set else LanesAdded(granted))
        log.debug("lanes_assigned", partitions=_names(lanes), lanes=len(lanes), is_full_set=is_full_set)

    def _decline(self, client: KafkaClient, keys: Sequence[Key]) -> None:
        """Read nothing any more: an eager group can assign once more while we leave, when others leave too."""
        self._give(client, [TopicPartition(topic, partition, OFFSET_END) for topic, partition in keys])
        client.pause([TopicPartition(*key) for key in keys])

    def _give(self, client: KafkaClient, targets: list[TopicPartition]) -> None:
        if self.is_eager:
            client.assign(targets)
        else:
            client.incremental_assign(targets)

    def _pause(self, client: KafkaClient, lanes: Iterable[Held]) -> None:
        """Pause what must not flow now. Only reasons of this moment count, none is remembered."""
        stopped = [TopicPartition(*held.key) for held in lanes if not held.is_flowing]
        if stopped:
            client.pause(stopped)

    def _find(self, client: KafkaClient, keys: Sequence[Key], stored: Mapping[Key, StoredPosition]) -> dict[Key, Found]:
        if not keys:
            return {}
        try:
            return self._starts.find(client, keys, stored)
        except KafkaException as error:
            log.warning(
                "positions_not_read",
                error=error.args[0].str(),
                partitions=partition_list(keys),
                lanes=len(keys),
                meaning="the lanes wait and the positions are read again",
            )
            return {}

    def _facts(self, key: Key, found: Mapping[Key, Found]) -> TopicFacts:
        return found[key].facts if key in found else self._starts.known_facts(*key)

    def _known(self, partitions: Sequence[TopicPartition]) -> list[Held]:
        lanes = (self.assignment.get(partition.topic, partition.partition) for partition in partitions)
        return [held for held in lanes if held is not None]

    def _drop(self, client: KafkaClient, lanes: Sequence[Held]) -> None:
        # The client would keep a pause beyond the revocation, and the partition could come back paused.
        paused = [TopicPartition(*held.key) for held in lanes if not held.is_flowing]
        if paused:
            client.resume(paused)
        for held in lanes:
            held.lane.fence()
            self.assignment.drop(held)
        self._publish(client)

    def _publish(self, client: KafkaClient) -> None:
        """Tell sinks that commit positions of each change of the lanes: before it shows anywhere else."""
        if self._membership is not None:
            self._membership.publish(client, self.assignment)

    def _try_commit(
        self, client: KafkaClient, wanted: Mapping[Key, tuple[Held, PartitionId, Offset]]
    ) -> dict[Key, str]:
        """Commit once; return the error code of each partition that failed."""
        if self._membership is not None:
            return {}  # the sink has committed it, in the transaction of the records
        offsets = [commit_entry(held, position) for held, _, position in wanted.values()]
        started = time.monotonic()
        try:
            with self._watch.during("commit"):
                answers = client.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException as error:
            return dict.fromkeys(wanted, error.args[0].name())
        finally:
            self._metrics.commit_seconds.observe(time.monotonic() - started)
        return {(answer.topic, answer.partition): answer.error.name() for answer in answers if answer.error is not None}


def commit_entry(held: Held, position: Offset) -> TopicPartition:
    """Return what is committed for a lane: the position, and the facts of its topic as metadata."""
    return TopicPartition(held.key[0], held.key[1], position, encode_metadata(held.facts))


_ZERO: Offset = 0  # type: ignore[assignment]  # a partition that was created after the start of a bounded run ends at 0

_PLACEHOLDER = 0  # a fetch in the moment before the pause may find it below the log: `Lookout` sees through that


def _target(held: Held) -> TopicPartition:
    # A lane that waits is paused at a placeholder. Never at OFFSET_END: the client looks that up, and an answer that
    # comes late moves the lane on from the offset that it was assigned at meanwhile, over records that nobody has read.
    offset = _PLACEHOLDER if held.next_offset is None or held.wait is not None else held.next_offset
    return TopicPartition(held.key[0], held.key[1], offset)


def _names(lanes: Sequence[Held]) -> list[str]:
    return partition_list(held.key for held in lanes)


def _bug(where: str, error: Exception) -> InvariantError:
    failure = InvariantError(f"{where} failed: {type(error).__name__}: {error}. This is a bug in Sluiceway.")
    failure.__cause__ = error
    return failure
