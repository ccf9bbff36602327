"""A `KafkaSource` on a real broker under a controller of the test's own, so that a test sees each event as it comes."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from confluent_kafka import Consumer

from connector.api.source_event import (
    CommitReady,
    Drained,
    Idle,
    LanesAdded,
    LanesAssigned,
    LanesRetired,
    LanesRevoked,
    RevokeReason,
    SourceEvent,
)
from connector.source.client_config import (
    AssignmentStrategy,
    ClientSettings,
    admin_properties,
    client_properties,
    is_eager,
    protocols,
)
from connector.source.consumer import KafkaSource
from connector.source.settings import ClientPlan, SourceSettings
from connector.telemetry.metrics import Metrics
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from connector.api.types import LaneId, Offset, PartitionId
    from connector.lane.lane import Lane
    from tests.support.kafka import Kafka

E = TypeVar("E")

_STRATEGIES: Mapping[str, AssignmentStrategy] = {"range": "range", "cooperative-sticky": "cooperative-sticky"}


class SourceMember:
    """A member of a group, and its thread. What it takes counts as durable at once.

    `events` has every event in order, `Idle` once for each row of them; `taken` the offsets that it took, by partition.
    It takes up to `limit` records of each lane. It commits periodically if `commits`. While `gate` is closed it answers
    no revocation.
    """

    def __init__(
        self,
        kafka: Kafka,
        group_protocol: str,
        topic: str,
        group: str,
        *,
        limit: int | None = None,
        commits: bool = True,
        is_bounded: bool = False,
    ) -> None:
        client = ClientSettings(
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group,
            group_protocol="consumer" if group_protocol == "consumer" else "classic",
            assignment_strategy=_STRATEGIES.get(group_protocol),
            properties={} if group_protocol == "consumer" else {"heartbeat.interval.ms": "500"},
        )
        [protocol] = protocols(client)
        properties: dict[str, Any] = {
            **client_properties(client, protocol, queue_bytes=2**24, fetch_max_bytes=2**22),
            "log_level": 2,
        }
        self.limit = limit
        self.commits = commits
        self.gate = threading.Event()
        self.gate.set()
        self.events: list[SourceEvent[Lane]] = []
        self.lanes: dict[LaneId, Lane] = {}
        self.taken: dict[int, list[int]] = {}
        self.source = KafkaSource(
            SourceSettings(
                subscription=(topic,),
                plan=lambda _: ClientPlan(((protocol, properties),), is_eager=is_eager(client, protocol)),
                admin_properties={**admin_properties(client), "log_level": 2},
                is_bounded=is_bounded,
            ),
            Metrics(),
            Consumer,
        )
        self._positions: dict[PartitionId, Offset] = {}
        self._committed: dict[PartitionId, Offset] = {}
        self._counts: dict[LaneId, int] = {}
        self._is_leaving = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="test-controller", daemon=True)

    @contextmanager
    def running(self) -> Iterator[SourceMember]:
        """Join; leave at the end, with everything committed if it `commits`."""
        self._thread.start()
        try:
            yield self
        finally:
            self.leave()

    def leave(self) -> None:
        """Close the source, and wait until it has left."""
        self._is_leaving = True
        self.gate.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the source does not close"
        if self._error is not None:
            raise self._error

    def partitions(self) -> set[int]:
        """Return the partitions that it holds."""
        return {lane.partition for lane in list(self.lanes.values())}

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind so far."""
        return [event for event in list(self.events) if isinstance(event, kind)]

    def until(self, condition: Any, what: str, timeout: float = 60) -> None:
        """Wait until this holds."""

        def is_done() -> bool:
            if self._error is not None:
                raise self._error
            return bool(condition())

        try:
            wait_until(is_done, timeout=timeout, what=what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; events {self.events[-12:]}, taken {_ends(self.taken)}") from None

    # The controller's thread.

    def _run(self) -> None:
        try:
            self.source.start()
            while not self._is_leaving:
                self._turn()
            deadline = time.monotonic() + 10
            while self.commits and self._uncommitted() and time.monotonic() < deadline:
                self._turn()
            self.source.close()
            while not self.source.is_closed:
                self._turn()
        except Exception as error:  # noqa: BLE001 - the test's own thread raises it
            self._error = error

    def _turn(self) -> None:
        event = self.source.poll_events(0.02)
        if not (isinstance(event, Idle) and self.events and isinstance(self.events[-1], Idle)):
            self.events.append(event)
        match event:
            case LanesAssigned(lanes) | LanesAdded(lanes):
                self.lanes |= {lane.id: lane for lane in lanes}
            case LanesRevoked(lanes):
                self._revoke(event)
            case LanesRetired(lanes):
                self._forget(lanes)
            case Idle() | CommitReady() | Drained():
                pass
            case _:
                assert_never(event)
        for lane in list(self.lanes.values()):
            self._take(lane)
        for result in self.source.poll_results():
            self._committed |= result.committed
        if self.commits and (moved := self._uncommitted()):
            self.source.commit(moved)

    def _uncommitted(self) -> dict[PartitionId, Offset]:
        return {partition: at for partition, at in self._positions.items() if self._committed.get(partition) != at}

    def _take(self, lane: Lane) -> None:
        room = 500 if self.limit is None else self.limit - self._counts.get(lane.id, 0)
        while room > 0 and (chunk := lane.take(room)) is not None:
            self.taken.setdefault(lane.partition, []).extend(message.offset() or 0 for message in chunk.messages)
            self._counts[lane.id] = self._counts.get(lane.id, 0) + len(chunk.messages)
            self._positions[lane.partition_id] = chunk.next_offset
            lane.release(chunk.size_bytes)
            room -= len(chunk.messages)

    def _revoke(self, event: LanesRevoked) -> None:
        leaving = [self.lanes[lane] for lane in event.lanes if lane in self.lanes]
        if event.reason is RevokeReason.REVOKED:
            assert self.gate.wait(60), "the test leaves the gate closed"
            for lane in leaving:
                self._take(lane)
            partitions = {lane.partition_id for lane in leaving}
            event.barrier.attach({at: offset for at, offset in self._positions.items() if at in partitions})
            event.barrier.arrive(len(event.lanes))
            event.barrier.arrive()  # as the controller, last
        self._forget(event.lanes)

    def _forget(self, lanes: Sequence[LaneId]) -> None:
        for lane_id in lanes:
            lane = self.lanes.pop(lane_id, None)
            if lane is not None:
                self._positions.pop(lane.partition_id, None)
                self._committed.pop(lane.partition_id, None)


def _ends(taken: Mapping[int, Sequence[int]]) -> dict[int, str]:
    return {partition: f"{len(offsets)}: …{list(offsets[-3:])}" for partition, offsets in taken.items()}
