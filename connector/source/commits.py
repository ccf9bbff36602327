"""Asynchronous commits: one outstanding, explicit lists, only lanes that are still held.

Belongs to the consumer thread; never called inside a rebalance callback, where the commit is synchronous. Which
positions are committed is the checkpointer's decision.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from connector.api.source_event import CommitResult
from connector.source.rebalance import commit_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from connector.api.types import Offset, PartitionId
    from connector.source.assignment import Assignment, Held, Key
    from connector.source.client import KafkaClient
    from connector.telemetry.metrics import Metrics
    from connector.telemetry.stopwatch import Stopwatch


class Commits:
    """Sends commits and reports what became of them.

    Args:
        assignment: The lanes held now.
        report: Takes each result.
        on_committed: Called with each lane that moved.
        metrics: Where it counts how long a commit takes.
        watch: The consumer thread's.
        sink_commits: The sink has committed what is wanted, in its own transaction: nothing goes out.
    """

    def __init__(
        self,
        assignment: Assignment,
        report: Callable[[CommitResult], None],
        on_committed: Callable[[Held], None],
        metrics: Metrics,
        watch: Stopwatch,
        *,
        sink_commits: bool = False,
    ) -> None:
        self._assignment = assignment
        self._report = report
        self._on_committed = on_committed
        self._metrics = metrics
        self._watch = watch
        self._sink_commits = sink_commits
        self._wanted: dict[PartitionId, Offset] = {}
        self._outstanding: dict[Key, tuple[PartitionId, Offset]] | None = None
        self._sent = 0.0  # when that one was sent, time.monotonic()

    def want(self, positions: Mapping[PartitionId, Offset]) -> None:
        """Commit these when it is their turn."""
        self._wanted |= positions

    def send(self, client: KafkaClient) -> None:
        """Commit what is wanted, if no commit is outstanding."""
        if not self._wanted or self._outstanding is not None:
            return
        outstanding: dict[Key, tuple[PartitionId, Offset]] = {}
        entries: list[TopicPartition] = []
        for partition, position in self._wanted.items():
            held = self._assignment.by_partition(partition)
            if held is not None:
                outstanding[held.key] = (partition, position)
                entries.append(commit_entry(held, position))
        self._wanted = {}
        if not entries:
            return
        self._outstanding, self._sent = outstanding, time.monotonic()
        if self._sink_commits:  # a commit of ours could overtake its next one, and lead back
            self._settle({})
            return
        try:
            with self._watch.during("commit"):
                client.commit(offsets=entries, asynchronous=True)
        except KafkaException as error:
            self._settle(dict.fromkeys(outstanding, error.args[0].name()))

    def refuse(self, code: str) -> None:
        """Report everything wanted as failed: the client is dead."""
        wanted, self._wanted = self._wanted, {}
        if wanted:
            self._report(CommitResult({}, dict.fromkeys(wanted, code)))

    def on_commit(self, error: KafkaError | None, partitions: Iterable[TopicPartition]) -> None:
        """Callback of the client, inside poll, consume or close."""
        if self._outstanding is None:
            return
        if error is not None:
            self._settle(dict.fromkeys(self._outstanding, error.name()))
        else:
            self._settle({(p.topic, p.partition): p.error.name() for p in partitions if p.error is not None})

    def _settle(self, errors: Mapping[Key, str]) -> None:
        """Only lanes that are still held move; a late answer changes nothing else."""
        outstanding, self._outstanding = self._outstanding or {}, None
        if not self._sink_commits:
            self._metrics.commit_seconds.observe(time.monotonic() - self._sent)
        committed: dict[PartitionId, Offset] = {}
        failed: dict[PartitionId, str] = {}
        for key, (partition, position) in outstanding.items():
            held = self._assignment.by_partition(partition)
            if key in errors:
                failed[partition] = errors[key]
                continue
            committed[partition] = position
            if held is not None:
                held.lane.committed = position
                self._on_committed(held)
        self._report(CommitResult(committed, failed))
