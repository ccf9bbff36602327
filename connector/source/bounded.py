"""A bounded run (`CONNECTOR_STOP`): where it ends, which lanes have ended, and when the whole group has.

Belongs to the consumer thread. A lane has ended when it holds everything up to its end; it retires when that is
committed, and stays assigned and paused. The run is over when the group has committed every end, whoever read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition

from connector.api.source_event import CommitReady, Drained, LanesRetired, SourceEvent
from connector.source.starts import committed_positions, log_ends, offsets_at
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from connector.api.types import Offset
    from connector.lane.lane import Lane
    from connector.source.assignment import Assignment, Held, Key
    from connector.source.client import KafkaClient

log = get_logger(__name__)

_READ_SECONDS = 5.0


def read_ends(client: KafkaClient, keys: Sequence[Key], stop_time: datetime | None) -> dict[Key, Offset]:
    """Return where each partition ends: its last stable offset, or the first offset at or after a time.

    Raises:
        KafkaException: A read failed.
    """
    ends = {key: log_ends(client, key, _READ_SECONDS)[1] for key in keys}
    if stop_time is None or not keys:
        return ends
    at = offsets_at(client, keys, stop_time, _READ_SECONDS)
    return {key: end if (found := at[key]) is None else min(found, end) for key, end in ends.items()}


class BoundedRun:
    """Watches a bounded run come to its end, once the ends are known."""

    def __init__(self, assignment: Assignment, emit: Callable[[SourceEvent[Lane]], None]) -> None:
        self._assignment = assignment
        self._emit = emit
        self.is_drained = False

    def announce(self) -> None:
        """Tell of lanes that have ended since the last call, and retire those that were committed there before."""
        ended = [held for held in self._assignment if held.is_ended and not held.is_announced]
        if not ended:
            return
        for held in ended:
            held.is_announced = True
        self._emit(CommitReady(tuple(held.lane.partition_id for held in ended)))
        self._retire(ended)

    def on_committed(self, held: Held) -> None:
        """A lane was committed: retire it, if that was its end."""
        if held.is_announced:
            self._retire([held])

    def look_at_group(self, client: KafkaClient, ends: Mapping[Key, Offset]) -> None:
        """End the run if the group has committed every end. Until then a member with nothing to do stands by.

        Raises:
            KafkaException: The committed positions could not be read; ask again later.
        """
        if self.is_drained or any(not held.is_retired for held in self._assignment):
            return
        asked = {key: end for key, end in ends.items() if end > 0}
        committed = committed_positions(client, [TopicPartition(*key) for key in asked], _READ_SECONDS)
        if all(key in committed and committed[key].position >= end for key, end in asked.items()):
            self.is_drained = True
            self._emit(Drained())

    def _retire(self, lanes: Iterable[Held]) -> None:
        finished = [held for held in lanes if not held.is_retired and _is_committed_to_its_end(held)]
        if finished:
            for held in finished:
                held.is_retired = True
            self._emit(LanesRetired(tuple(held.lane.id for held in finished)))


def _is_committed_to_its_end(held: Held) -> bool:
    committed, position = held.lane.committed, held.next_offset
    return held.is_ended and committed is not None and position is not None and committed >= position
