"""`LetterReader`: reads a dead letter topic from a position to the ends that it has now. For `connector dlq`.

It is no member of a group, but reads and commits the positions of one. What arrives meanwhile is not read, so letters
that die again during a replay wait for the next one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_END, OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from connector.api.errors import ConfigError, FatalError, UnreachableError
from connector.dlq.letter import read_letter
from connector.dlq.outcome import access_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from connector.dlq.letter import Letter

_ANSWER_SECONDS = 10.0
_SILENCE_SECONDS = 30.0
_POLL_SECONDS = 0.2
_PREFETCH_KBYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a dead letter topic. `died_ms` is when it was written there; `letter` None: nobody of us wrote it."""

    partition: int
    offset: int
    died_ms: int
    letter: Letter | None


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters are meant; None: any. `since_ms` is the first and `until_ms` the end of when they died."""

    error_class: str | None = None
    topic: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, entry: Entry, letter: Letter) -> bool:
        """Whether this one is meant."""
        return (
            self.error_class in (None, letter.origin.error_class)
            and self.topic in (None, letter.origin.topic)
            and (self.since_ms is None or entry.died_ms >= self.since_ms)
            and (self.until_ms is None or entry.died_ms < self.until_ms)
        )


class LetterReader:
    """One pass over a topic, on one thread. Every call raises what `_failure` makes of the client's error."""

    def __init__(self, properties: Mapping[str, Any], topic: str, group: str) -> None:
        """Make the client; nothing is asked yet.

        Args:
            properties: How to connect: `connector.source.client_config.admin_properties`.
            topic: The dead letter topic.
            group: Whose positions `start_committed` and `commit` mean.

        Raises:
            ConfigError: The client refuses the properties.
        """
        self._topic = topic
        self._last_error: KafkaError | None = None
        self._ends: dict[int, int] = {}  # of the partitions that are not read to their end yet
        try:
            self._client = Consumer(
                {
                    **properties,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",  # what retention has deleted is gone either way
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "queued.max.messages.kbytes": _PREFETCH_KBYTES,
                    "error_cb": self._on_error,
                }
            )
        except KafkaException as error:
            raise ConfigError(f"CONNECTOR_KAFKA_*: the Kafka client refuses these: {error.args[0].str()}") from error

    def start(self, since_ms: int | None = None) -> None:
        """Begin at the oldest letter, or the first of that time."""
        partitions = self._partitions()
        if since_ms is None:
            self._begin(dict.fromkeys(partitions, 0))
            return
        asked = [TopicPartition(self._topic, partition, since_ms) for partition in partitions]
        try:
            found = self._client.offsets_for_times(asked, timeout=_ANSWER_SECONDS)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error
        self._begin({where.partition: where.offset for where in found if where.offset != OFFSET_END})

    def start_committed(self) -> None:
        """Begin where the group stands, at the oldest letter where it has no position."""
        asked = [TopicPartition(self._topic, partition) for partition in self._partitions()]
        try:
            found = self._client.committed(asked, timeout=_ANSWER_SECONDS)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error
        for where in found:
            if where.error is not None:
                raise self._failure(where.error)
        self._begin({where.partition: 0 if where.offset == OFFSET_INVALID else where.offset for where in found})

    def read(self, most: int) -> Sequence[Entry]:
        """Return the next letters, at least one, or none when everything is read."""
        deadline = time.monotonic() + _SILENCE_SECONDS
        while self._ends:
            found: list[Entry] = []
            for message in self._client.consume(most, _POLL_SECONDS):
                error = message.error()
                if error is not None:
                    self._take_error(error, message.partition())
                    continue
                partition, offset = int(message.partition() or 0), int(message.offset() or 0)
                end = self._ends.get(partition, 0)
                if offset >= end - 1:
                    self._ends.pop(partition, None)
                if offset < end:
                    found.append(Entry(partition, offset, message.timestamp()[1], read_letter(message)))
            if found:
                return found
            if time.monotonic() > deadline:
                raise self._failure(KafkaError(KafkaError._TIMED_OUT, f"nothing came within {_SILENCE_SECONDS:g}s"))
        return ()

    def commit(self, positions: Mapping[int, int]) -> None:
        """Commit the next offset to read of each of these partitions; returns when the cluster has it."""
        if not positions:
            return
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in positions.items()]
        try:
            answers = self._client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error
        for answer in answers:
            if answer.error is not None:
                raise self._failure(answer.error)

    def close(self) -> None:
        """Let the client go."""
        self._client.close()

    def _partitions(self) -> Sequence[int]:
        try:
            listed = self._client.list_topics(timeout=_ANSWER_SECONDS).topics
        except KafkaException as error:
            raise self._failure(error.args[0]) from error
        if self._topic not in listed:
            raise ConfigError(
                f"The dead letter topic {self._topic} does not exist, or this user may not describe it. Correct "
                "CONNECTOR_DLQ_TOPIC or --topic, or grant the ACL Read and Describe on the topic."
            )
        return sorted(listed[self._topic].partitions)

    def _begin(self, starts: Mapping[int, int]) -> None:
        assigned = []
        for partition, start in starts.items():
            where = TopicPartition(self._topic, partition)
            try:
                low, end = self._client.get_watermark_offsets(where, timeout=_ANSWER_SECONDS)
            except KafkaException as error:
                raise self._failure(error.args[0]) from error
            if max(start, low) < end:
                self._ends[partition] = end
                assigned.append(TopicPartition(self._topic, partition, max(start, low)))
        self._client.assign(assigned)

    def _take_error(self, error: KafkaError, partition: int | None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._ends.pop(int(partition or 0), None)
        elif access_error(error.name(), error.str()) is not None or error.name() == "_FATAL":
            raise self._failure(error)
        # Any other is the client's to cure; if it cannot, silence ends the pass.

    def _failure(self, error: KafkaError) -> FatalError:
        message = self._client.poll(0)  # serves _on_error; a refusal by the group's coordinator comes as a message
        if message is not None and (refused := message.error()) is not None:
            self._on_error(refused)
        seen = self._last_error or error
        return access_error(seen.name(), seen.str()) or UnreachableError(
            f"The dead letter topic {self._topic} cannot be read ({seen.name()}: {seen.str()}). Check "
            "CONNECTOR_BOOTSTRAP_SERVERS and the cluster, and call it again."
        )

    def _on_error(self, error: KafkaError) -> None:
        if access_error(error.name(), error.str()) is not None:
            self._last_error = error
