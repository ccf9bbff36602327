"""`ConfirmingProducer`: sends records and waits until the cluster has confirmed each, or says which it has not.

The producer gets how to connect and who we are, and nothing else from the user's settings. One thread owns it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from connector.api.errors import AuthenticationError, ConnectorError, TransientError
from connector.dlq.outcome import TOO_LARGE, access_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from connector.dlq.letter import Header

_LARGEST_MESSAGE_BYTES = 1_000_000_000  # the client's upper limit: the broker decides, which knows the topic's
_BATCH_BYTES = 64 * 1024  # what is refused as too large is then nearly always one record, not a batch of small ones
_REPORT_SECONDS = 3.0  # the client looks for messages that are out of time once a second
_ROOM_SECONDS = 0.1
_LIST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to send. `partition` -1: by key, as Java clients choose; `timestamp_ms` 0: now."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int = -1
    timestamp_ms: int = 0


class ConfirmingProducer:
    """An idempotent producer, made at first use and again after it has failed for good."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        timeout_seconds: float,
        make: Callable[[dict[str, Any]], Producer] = Producer,
    ) -> None:
        """Prepare; nothing connects yet.

        Args:
            properties: How to connect: `connector.source.client_config.admin_properties`.
            timeout_seconds: How long the cluster may take to confirm a record.
            make: Makes the producer.
        """
        self._properties: dict[str, Any] = {
            **properties,
            "acks": "all",
            "enable.idempotence": True,
            # What its producer had compressed below the limit must not grow above it here.
            "compression.type": "zstd",
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "batch.size": _BATCH_BYTES,
            "message.max.bytes": _LARGEST_MESSAGE_BYTES,
            "message.timeout.ms": int(timeout_seconds * 1000),
            "error_cb": self._on_error,
        }
        self._timeout_seconds = timeout_seconds
        self._make = make
        self._producer: Producer | None = None
        self._last_error: KafkaError | None = None

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of every topic that this user may describe.

        Raises:
            AuthenticationError: The credentials are refused.
            TransientError: The cluster does not answer.
        """
        try:
            # All of them, since asking a producer for one by name can create it.
            listed = self._get().list_topics(timeout=_LIST_SECONDS)
        except KafkaException as error:
            raise self._unreachable(error.args[0]) from error
        return {name: len(topic.partitions) for name, topic in listed.topics.items()}

    def send(self, records: Sequence[Outgoing]) -> dict[int, KafkaError]:
        """Send these and return, by index, why some are not confirmed; all others are.

        The order of a partition is kept, save for those that the broker refuses. A record whose time ran out may have
        arrived nevertheless.

        Raises:
            AuthenticationError: The credentials are refused.
        """
        deadline = time.monotonic() + self._timeout_seconds
        failures = self._send_once(records)
        too_large = [index for index, error in failures.items() if error.name() == TOO_LARGE]
        if len(records) > 1:
            # The broker judges what the client put together as one batch: each for itself, one may fit.
            for index in too_large:
                if index != too_large[0] and time.monotonic() > deadline:
                    # After each refusal an idempotent producer may need a second to begin anew.
                    failures[index] = KafkaError(KafkaError._TIMED_OUT, "no time left to send it alone")
                    continue
                del failures[index]
                alone = self._send_once([records[index]])
                if alone:
                    failures[index] = alone[0]
        return failures

    def close(self) -> None:
        """Let the producer go; nothing is outstanding between two calls."""
        self._producer = None

    def _send_once(self, records: Sequence[Outgoing]) -> dict[int, KafkaError]:
        producer = self._get()
        unsettled = dict.fromkeys(range(len(records)))
        failures: dict[int, KafkaError] = {}
        self._last_error = None

        def settle(index: int, error: KafkaError | None, _: object = None) -> None:
            del unsettled[index]
            if error is not None:
                failures[index] = error

        deadline = time.monotonic() + self._timeout_seconds
        for index, record in enumerate(records):
            refused = self._produce(producer, record, partial(settle, index), deadline)
            if refused is not None:
                settle(index, refused)
        fatal = self._serve(lambda: producer.flush(self._timeout_seconds + _REPORT_SECONDS))
        failures |= dict.fromkeys(unsettled, fatal or KafkaError(KafkaError._TIMED_OUT, "no delivery report"))
        if unsettled or any(error.code() == KafkaError._FATAL for error in failures.values()):
            self.close()
        denied = self._denied()
        if failures and denied is not None:
            raise denied
        return failures

    def _produce(
        self, producer: Producer, record: Outgoing, settle: Callable[[KafkaError | None, Any], None], deadline: float
    ) -> KafkaError | None:
        """Hand a record to the client; return why it does not even take it."""
        while True:
            try:
                producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    settle,
                    timestamp=record.timestamp_ms,
                    headers=[*record.headers],
                )
            except BufferError:
                if time.monotonic() > deadline:
                    return KafkaError(KafkaError._QUEUE_FULL, "the client's queue is full")
                self._serve(lambda: producer.poll(_ROOM_SECONDS))
            except KafkaException as error:
                refused: KafkaError = error.args[0]
                return refused
            else:
                return None

    def _get(self) -> Producer:
        if self._producer is None:
            self._producer = self._make(self._properties)
        return self._producer

    def _unreachable(self, error: KafkaError) -> ConnectorError:
        producer = self._get()
        self._serve(lambda: producer.poll(0))
        seen = self._last_error or error
        return self._denied() or TransientError(f"the cluster does not answer ({seen.name()}: {seen.str()})")

    def _serve(self, call: Callable[[], int]) -> KafkaError | None:
        """Let the client call back, and return the error that it has failed of for good, if it has.

        Such an error comes as an exception out of a callback of the client library's own, which makes the next
        callback fail in turn.
        """
        try:
            call()
        except (KafkaException, SystemError) as error:
            cause = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(cause, KafkaException):
                raise
            self.close()
            self._last_error = cause.args[0]
            return self._last_error
        return None

    def _denied(self) -> AuthenticationError | None:
        return None if self._last_error is None else access_error(self._last_error.name(), self._last_error.str())

    def _on_error(self, error: KafkaError) -> None:
        # Brokers that cannot be reached come after the cause: the credentials say more.
        if self._last_error is None or access_error(error.name(), error.str()) is not None:
            self._last_error = error
