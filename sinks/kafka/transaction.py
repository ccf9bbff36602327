"""`Transactions`: a batch and the position of its lane in one Kafka transaction, so that both are there or neither is.

A transaction ends here in one of three ways: committed, aborted, or unknown, when the cluster did not answer the
commit. Then the client is let go. The next one has the same transactional id, and its `init_transactions` waits until
the broker has ended what was open; after that the group's position tells the outcome, so the lane begins again there.

Who commits is checked by the group coordinator, by generation (KIP-447): a member that has been thrown out, or frozen
through a rebalance, is refused, and its records are aborted. The sink's thread owns everything here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, TopicPartition

from connector import FatalError, PoisonError, RefusedError, TransientError
from sinks.kafka.outcome import delivery_error, transaction_error
from sinks.kafka.producer import client_error
from sinks.values import position, span

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError, Producer

    from connector import Batch, LaneId, SinkContext
    from sinks.kafka.producer import BatchProducer

_ABORT_SECONDS = 5.0
_RETRY_SECONDS = 0.1


class Transactions:
    """Writes batches, a transaction for each.

    Args:
        producer: Its client has a transactional id, and `prepare` as its `on_ready`.
        context: Says as whom a lane's position is committed.
        timeout: Of one transaction, in seconds; aborting takes up to 5 more.
    """

    def __init__(self, producer: BatchProducer, context: SinkContext, timeout: float) -> None:
        self._producer = producer
        self._context = context
        self._timeout = timeout
        self._unknown: set[LaneId] = set()  # lanes whose last transaction was perhaps committed

    def prepare(self, client: Producer) -> None:
        """End what the last client with this transactional id has left open.

        Raises:
            AuthenticationError: The right to this transactional id is missing.
            ConfigError: The broker refuses the transaction's timeout.
            TransientError: The transaction coordinator does not answer, or still ends an old transaction.
        """
        try:
            client.init_transactions(self._timeout)
        except KafkaException as error:
            cause = error.args[0]
            raise self._producer.denial() or transaction_error("init", cause.name(), cause.str()) from error

    def forget(self, lane: LaneId) -> None:
        """A lane has left."""
        self._unknown.discard(lane)

    def write(self, batch: Batch, target: str, queue: Callable[[dict[int, KafkaError]], None]) -> None:
        """Commit a batch and the lane's position; what `queue` hands to the client belongs to the transaction.

        Raises:
            FatalError: A right is missing, or a setting has to be changed.
            PoisonError: A record that the topic never takes; nothing is committed.
            RefusedError: The lane is another member's, or nobody knows whether the last transaction was committed.
            TransientError: Nothing is committed, or nobody knows: the next call finds out.
        """
        lane = batch.metadata.lane
        self._context.group_commit(lane)  # raises before anything is begun
        client = self._producer.get()
        if lane in self._unknown:
            self._unknown.discard(lane)
            raise RefusedError(
                f"{span(batch)} was perhaps committed, and the cluster did not say: its transaction has ended by now, "
                "and the lane begins again at the group's position"
            )
        self._begin(client, target)
        is_ending = False
        failures: dict[int, KafkaError] = {}
        deadline = time.monotonic() + self._timeout
        try:
            queue(failures)
            self._send_position(client, batch, deadline)
            is_ending = True
            _insist(client.commit_transaction, deadline)
        except BaseException as error:
            if not self._abort(client) and is_ending:
                self._unknown.add(lane)
            if (cause := client_error(error)) is None:
                raise
            raise self._verdict(batch, target, failures) or transaction_error(
                span(batch), cause.name(), cause.str()
            ) from error

    def _begin(self, client: Producer, target: str) -> None:
        try:
            client.begin_transaction()
        except KafkaException as error:
            self._producer.drop()
            cause = error.args[0]
            raise transaction_error(target, cause.name(), cause.str()) from error

    def _send_position(self, client: Producer, batch: Batch, deadline: float) -> None:
        metadata = batch.metadata
        # Asked for as late as can be: a lane that has left since is refused here, and by the coordinator after that.
        commit = self._context.group_commit(metadata.lane)
        where = TopicPartition(metadata.topic, metadata.partition, metadata.next_offset, commit.metadata)
        _insist(lambda left: client.send_offsets_to_transaction([where], commit.member, left), deadline)

    def _abort(self, client: Producer) -> bool:
        """Return whether the transaction is aborted for sure; the client is let go where it is not."""
        try:
            client.abort_transaction(_ABORT_SECONDS)
        except (KafkaException, SystemError):
            self._producer.drop()
            return False
        return True

    def _verdict(self, batch: Batch, target: str, failures: dict[int, KafkaError]) -> Exception | None:
        """Return what the records that were not delivered mean for the batch, None if that was not the cause."""
        if (denied := self._producer.denial()) is not None:
            return denied
        found = [
            delivery_error(f"{position(batch, index)} to {target}", error.name(), error.str())
            for index, error in sorted(failures.items())
            if not error.name().startswith("_PURGE")  # by the abort
        ]
        for kind in (FatalError, PoisonError, TransientError):  # a poison record is found by halving, whatever else
            if (first := next((error for error in found if isinstance(error, kind)), None)) is not None:
                return first
        return None


def _insist(call: Callable[[float], object], deadline: float) -> None:
    """Make a call until it succeeds, the deadline passes, or it fails for another reason than that it takes longer."""
    while True:
        left = deadline - time.monotonic()
        try:
            call(max(left, _RETRY_SECONDS))
        except KafkaException as error:
            if not error.args[0].retriable() or left <= _RETRY_SECONDS:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return
