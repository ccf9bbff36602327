"""`KafkaSink`: writes batches to topics of the cluster that is read, or of another one.

A batch is done when every record of it is confirmed by all replicas in sync. Records of a partition keep their order.
What fails is known record by record: one that the topic never takes is poison, everything else comes again.

With `transactional` a batch and the position of its lane are one transaction: exactly once.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from connector import (
    CloseReason,
    ConfigError,
    FatalError,
    Input,
    InputClosed,
    PoisonError,
    RecordErrors,
    Sink,
    TransientError,
)
from sinks.kafka.outcome import TOO_LARGE, delivery_error
from sinks.kafka.producer import BatchProducer, cluster_id
from sinks.kafka.settings import KafkaSettings, producer_properties
from sinks.kafka.transaction import Transactions
from sinks.template import placeholders
from sinks.values import position

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from connector import Batch, Event, SinkContext


class KafkaSink(Sink[KafkaSettings]):
    """Produces records to Kafka."""

    def __init__(self, settings: KafkaSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        prepare = self._prepare if settings.transactional else None
        self._producer = BatchProducer(producer_properties(settings, context), settings.timeout, prepare)
        self._transactions = Transactions(self._producer, context, settings.timeout)
        self._targets: dict[str, str] = {}  # by the topic that is read
        self._may_loop = True  # it writes to the cluster that is read

    @property
    def commits_positions(self) -> bool:
        """Whether the position of a lane is in the transaction of its records."""
        return self.settings.transactional

    def open(self) -> None:
        """Reach the cluster, and end what a producer with the same transactional id has left open.

        Raises:
            AuthenticationError: It refuses the credentials.
            ConfigError: The client refuses its properties, or the topic is one that this connector reads.
            TransientError: It does not answer.
        """
        found = self._producer.reach()
        if self.settings.bootstrap_servers is not None:
            self._may_loop = found == cluster_id(self.context.connection)
        if not placeholders(self.settings.topic, ("topic",)):
            self._target("")

    def probe(self) -> None:
        """Ask the cluster for its metadata."""
        self._producer.reach()

    def on_event(self, event: Event) -> None:
        """Write batches; forget a lane that is gone, which one that has only stalled is not."""
        match event:
            case Input(data=batch):
                self.write(batch)
            case InputClosed(id=lane, reason=reason) if reason is not CloseReason.STALLED:
                self._transactions.forget(lane)
            case _:
                pass

    def write(self, batch: Batch) -> None:
        """Send the batch and wait until all of it is confirmed, or its transaction is committed.

        Raises:
            AuthenticationError: The cluster refuses the credentials, or a right is missing.
            ConfigError: The topic is one that this connector reads, or no topic can be called so.
            PoisonError: A record that the topic never takes, in a transaction, of which nothing is written.
            RecordErrors: Some records were not confirmed; a record whose time ran out may have arrived nevertheless.
            RefusedError: The lane is another member's, or its last transaction was perhaps committed.
            TransientError: The client has failed, and nobody knows which records have arrived; a transaction failed.
        """
        topic = self._target(batch.metadata.topic)
        if self.settings.transactional:
            self._transactions.write(batch, topic, partial(self._queue, batch, topic))
        elif batch:
            self._write_plainly(batch, topic)

    def close(self) -> None:
        """Let the client go; nothing is outstanding between two batches."""
        self._producer.drop()

    def _prepare(self, client: Producer) -> None:
        self._transactions.prepare(client)

    def _write_plainly(self, batch: Batch, topic: str) -> None:
        failures = self._send(batch, topic)
        if len(batch) > 1:
            self._send_alone(batch, topic, failures)
        errors: dict[int, TransientError | PoisonError] = {}
        for index, failure in sorted(failures.items()):
            error = delivery_error(f"{position(batch, index)} to {topic}", failure.name(), failure.str())
            if isinstance(error, FatalError):
                raise error
            errors[index] = error
        if errors:
            raise RecordErrors(errors)

    def _target(self, topic: str) -> str:
        """Return the topic that records of a topic go to.

        Raises:
            ConfigError: This connector reads it: each record would come back for ever.
        """
        target = self._targets.get(topic)
        if target is None:
            target = self.settings.topic.format(topic=topic)
            if self._may_loop and self.context.subscribes(target):
                raise ConfigError(
                    f"CONNECTOR_SINK_TOPIC={self.settings.topic} leads to the topic {target}, which CONNECTOR_TOPICS "
                    "reads: each record would come back for ever. Write to another topic, or leave it out by "
                    "CONNECTOR_KAFKA_TOPIC_BLACKLIST."
                )
            self._targets[topic] = target
        return target

    def _queue(self, batch: Batch, topic: str, failures: dict[int, KafkaError]) -> None:
        """Hand a batch to the client as part of a transaction.

        Raises:
            KafkaException: Some of it cannot be delivered.
        """
        with_origin = self.settings.origin_headers
        self._producer.queue(batch, topic, self._partition(batch), failures, with_origin=with_origin)
        if failures:
            raise KafkaException(next(iter(failures.values())))

    def _partition(self, batch: Batch) -> int | None:
        return batch.metadata.partition if self.settings.partition == "same" else None

    def _send(self, batch: Batch, topic: str) -> dict[int, KafkaError]:
        with_origin = self.settings.origin_headers
        return self._producer.send(batch, topic, self._partition(batch), with_origin=with_origin)

    def _send_alone(self, batch: Batch, topic: str, failures: dict[int, KafkaError]) -> None:
        """Send again, each for itself, what was refused for its size, and note in `failures` what becomes of it.

        The broker judges what the client put together as one batch: alone, a record may fit.
        """
        deadline = time.monotonic() + self.settings.timeout
        too_large = [index for index, error in sorted(failures.items()) if error.name() in TOO_LARGE]
        for index in too_large:
            if index != too_large[0] and time.monotonic() > deadline:
                # After each refusal an idempotent producer may need a second to begin anew.
                failures[index] = KafkaError(KafkaError._TIMED_OUT, "no time left to send it alone")
                continue
            del failures[index]
            if alone := self._send(batch.slice(index, index + 1), topic):
                failures[index] = alone[0]
