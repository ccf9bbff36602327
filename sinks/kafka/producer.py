"""`BatchProducer`: hands batches to the Kafka client, and knows what became of each record.

One thread owns it, the sink's. The client's own queue is empty between two batches. `produce_batch` of the client
knows no headers and takes a dict for each record, so records go one by one; one that arrives costs no callback.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from connector import AuthenticationError, ConfigError, TransientError
from sinks.kafka.outcome import access_error
from sinks.values import convert, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from connector import Batch

_LIST_SECONDS = 5.0
_ROOM_SECONDS = 0.1
_REPORT_SECONDS = 3.0  # the client looks for messages that are out of time once a second
_NO_TIMESTAMP = -1
_ANY_PARTITION = -1
_COLUMNS = ("value", "key", "timestamp_ms", "headers")


class BatchProducer:
    """A producer, made at first use and again after it has failed for good.

    Args:
        properties: The client's.
        timeout: How long the cluster may take to confirm a batch, in seconds: the client's `message.timeout.ms`.
        on_ready: Called with each new client before its first use, here or in `get`.
    """

    def __init__(
        self, properties: Mapping[str, Any], timeout: float, on_ready: Callable[[Producer], None] | None = None
    ) -> None:
        self._properties = {**properties, "error_cb": self._on_error}
        self._timeout = timeout
        self._on_ready = on_ready
        self._producer: Producer | None = None
        self._last_error: KafkaError | None = None

    def get(self) -> Producer:
        """Return the client.

        Raises:
            ConfigError: It refuses its properties.
        """
        if self._producer is None:
            try:
                producer = Producer(self._properties)
            except KafkaException as error:
                raise ConfigError(
                    f"The Kafka client refuses its properties: {error.args[0].str()}. Change CONNECTOR_SINK_PROPERTIES."
                ) from error
            if self._on_ready is not None:
                self._on_ready(producer)
            self._producer = producer
        return self._producer

    def drop(self) -> None:
        """Let the client go, with what it still has."""
        self._producer = None

    def reach(self) -> str:
        """Ask the cluster for its id.

        Raises:
            AuthenticationError: It refuses the credentials.
            TransientError: It does not answer.
        """
        self._last_error = None
        try:
            # All topics, since asking a producer for one by name can create it.
            found = self.get().list_topics(timeout=_LIST_SECONDS).cluster_id
        except KafkaException as error:
            self._serve(lambda: self.get().poll(0))
            cause = self._last_error or error.args[0]
            raise self.denial() or TransientError(
                f"the sink's cluster does not answer ({cause.name()}: {cause.str()})"
            ) from error
        return str(found)

    def send(self, batch: Batch, topic: str, partition: int | None, *, with_origin: bool) -> dict[int, KafkaError]:
        """Send a batch, wait for the answers, and return by index why records have not arrived; all others have.

        Raises:
            AuthenticationError: The cluster refuses the credentials.
            TransientError: Nobody knows which have arrived.
            PoisonError: A decoded value has no bytes.
        """
        failures: dict[int, KafkaError] = {}
        self.queue(batch, topic, partition, failures, with_origin=with_origin)
        producer = self.get()
        left = self._serve(lambda: producer.flush(self._timeout + _REPORT_SECONDS))
        if failures and (denied := self.denial()) is not None:
            raise denied
        if left:
            self.drop()
            cause = self._last_error
            raise TransientError(
                f"the producer for {topic} has failed and is made anew ({cause.name()}: {cause.str()})"
                if cause is not None
                else f"{left} record(s) for {topic} were not answered for"
            )
        return failures

    def queue(
        self, batch: Batch, topic: str, partition: int | None, failures: dict[int, KafkaError], *, with_origin: bool
    ) -> None:
        """Hand a batch to the client in its order; `failures` gets what is not delivered by index, now and later.

        Raises:
            KafkaException: The transaction has failed already, of one of its first records perhaps.
            PoisonError: A decoded value has no bytes.
            TransientError: The client's queue stays full, or it has failed for good and is made anew.
        """
        columns = {name: batch.column(name) for name in _COLUMNS}
        for name in ("key", "value"):
            if name in batch.decoded:
                columns[name] = convert(batch, columns[name], to_bytes)
        if with_origin:
            columns["headers"] = _with_origin(batch, columns["headers"])
        deadline = time.monotonic() + self._timeout
        self._last_error = None
        producer = self.get()
        where = _ANY_PARTITION if partition is None else partition
        for index, (value, key, timestamp, headers) in enumerate(zip(*columns.values(), strict=True)):
            failed = partial(_note, failures, index)
            at = _NO_TIMESTAMP if timestamp is None else timestamp
            while True:
                try:
                    producer.produce(topic, value, key, where, failed, timestamp=at, headers=headers)
                except BufferError:
                    if time.monotonic() > deadline:
                        failures[index] = KafkaError(KafkaError._QUEUE_FULL, "the client's queue is full")
                        break
                    self._serve(lambda: producer.poll(_ROOM_SECONDS))
                except KafkaException as error:
                    if error.args[0].code() == KafkaError._STATE:
                        raise
                    if error.args[0].code() == KafkaError._FATAL:
                        self.drop()
                        raise TransientError(
                            f"the producer for {topic} has failed and is made anew ({error.args[0].str()})"
                        ) from error
                    failures[index] = error.args[0]
                    break
                else:
                    break

    def denial(self) -> AuthenticationError | None:
        """Return the error of credentials or rights that the client has told of, if there is one."""
        return None if self._last_error is None else access_error(self._last_error.name(), self._last_error.str())

    def _serve(self, call: Callable[[], int]) -> int:
        """Let the client call back and return what `call` does, or 1 when the client has failed for good."""
        try:
            return call()
        except (KafkaException, SystemError) as error:
            cause = client_error(error)
            if cause is None:
                raise
            self._last_error = cause
            return 1

    def _on_error(self, error: KafkaError) -> None:
        # Brokers that cannot be reached come after the cause: the credentials say more.
        if self._last_error is None or access_error(error.name(), error.str()) is not None:
            self._last_error = error


def client_error(error: BaseException) -> KafkaError | None:
    """Return what the client says in an exception, None if it is none of the client's.

    That it has failed for good comes as an exception out of a callback; another callback after it makes a SystemError
    of it.
    """
    cause = error.__cause__ if isinstance(error, SystemError) else error
    found: KafkaError | None = cause.args[0] if isinstance(cause, KafkaException) else None
    return found


def cluster_id(connection: Mapping[str, Any]) -> str:
    """Return the id of the cluster that these properties lead to.

    Raises:
        TransientError: It does not answer.
    """
    try:
        return str(AdminClient(dict(connection)).list_topics(timeout=_LIST_SECONDS).cluster_id)
    except KafkaException as error:
        raise TransientError(f"the cluster that is read does not answer ({error.args[0].str()})") from error


def _note(failures: dict[int, KafkaError], index: int, error: KafkaError | None, _: object) -> None:
    if error is not None:
        failures[index] = error


def _with_origin(batch: Batch, headers: Sequence[Any]) -> list[list[tuple[str, bytes | None]]]:
    topic, partition = batch.metadata.topic.encode(), str(batch.metadata.partition).encode()
    fixed: list[tuple[str, bytes | None]] = [
        ("connector.origin.topic", topic),
        ("connector.origin.partition", partition),
    ]
    offsets = batch.column("offset")
    return [
        [*own, *fixed, ("connector.origin.offset", str(offset).encode())]
        for own, offset in zip(headers, offsets, strict=True)
    ]
