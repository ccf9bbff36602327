"""`DeadLetterWriter`: brings letters into the dead letter topic and returns when the cluster has confirmed them.

Each pipeline has its own and calls it on its thread, before it reports a batch as done, so that the position of a dead
record is committed only when its letter is safe (INV-1).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from connector.api.errors import ConfigError, PoisonFatalError
from connector.dlq.outcome import TOO_LARGE, delivery_error
from connector.dlq.producer import ConfirmingProducer, Outgoing
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import KafkaError

    from connector.dlq.letter import Letter
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)

_TIMEOUT_SECONDS = 5.0


class OnTooLarge(Enum):
    """`CONNECTOR_DLQ_ON_TOO_LARGE`: a letter that the dead letter topic does not take for its size."""

    FAIL = "fail"
    TRUNCATE = "truncate"  # keep the beginning of its value
    SKIP = "skip"  # count it, log where it is, and pass over it


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Where letters go. `timeout_seconds`: how long the cluster may take to confirm one."""

    topic: str
    on_too_large: OnTooLarge = OnTooLarge.FAIL
    timeout_seconds: float = _TIMEOUT_SECONDS


class DeadLetterWriter:
    """Writes letters; blocks at most a little longer than `timeout_seconds` for all that the cluster takes at once."""

    def __init__(
        self,
        settings: WriterSettings,
        properties: Mapping[str, Any],
        metrics: Metrics,
        make_producer: Callable[[dict[str, Any]], Producer] = Producer,
    ) -> None:
        """Prepare; nothing connects yet.

        Args:
            settings: Where letters go.
            properties: How to connect: `connector.source.client_config.admin_properties`, and a `logger`.
            metrics: Where they are counted.
            make_producer: Makes the producer.
        """
        self._settings = settings
        self._producer = ConfirmingProducer(properties, settings.timeout_seconds, make_producer)
        self._metrics = metrics

    def check(self) -> None:
        """See that the topic is there; called before any record, and again after a `TransientError`.

        Raises:
            ConfigError: There is no such topic.
            AuthenticationError: The credentials are refused.
            TransientError: The cluster does not answer.
        """
        topic = self._settings.topic
        if topic not in self._producer.topics():
            raise ConfigError(
                f"CONNECTOR_DLQ_TOPIC={topic} does not exist, or this user may not describe it. Create it "
                f"(kafka-topics.sh --create --topic {topic}; its retention is how long letters can be replayed), or "
                "grant the ACL Write and Describe on the topic."
            )

    def write(self, letters: list[Letter]) -> None:
        """Return when every letter is confirmed, or was passed over by `CONNECTOR_DLQ_ON_TOO_LARGE=skip`.

        What is settled is taken out of the list, so that a retry with what is left of it repeats nothing. A letter
        whose time ran out may have arrived nevertheless, and is then there twice.

        Raises:
            TransientError: The cluster did not confirm all; those that are left may be tried later.
            PoisonFatalError: A letter is too large for the topic, under `fail`.
            ConfigError: The topic cannot hold letters, or it is the one that the record came from.
            AuthenticationError: The credentials are refused, or the right to write is missing.
        """
        for letter in letters:
            if letter.origin.topic == self._settings.topic:
                raise ConfigError(
                    f"A record of CONNECTOR_DLQ_TOPIC={self._settings.topic} itself cannot be written, and would go "
                    "round in a circle. Take the topic out of CONNECTOR_TOPICS, or set another one."
                )
        failures = self._send(letters)
        left: list[Letter] = []
        problem: tuple[str, str] | None = None
        for index, letter in enumerate(letters):
            error = failures.get(index)
            if error is None:
                self._count(letter)
            elif error.name() != TOO_LARGE:
                left.append(letter)
                problem = problem or (error.name(), error.str())
        too_large = [letters[index] for index, error in failures.items() if error.name() == TOO_LARGE]
        letters[:] = [*too_large, *left]
        while too_large:
            self._settle_too_large(too_large.pop(0))
            del letters[0]
        if problem is not None:
            raise delivery_error(self._settings.topic, *problem)

    def close(self) -> None:
        """Let the producer go; nothing is outstanding between two calls."""
        self._producer.close()

    def _send(self, letters: list[Letter]) -> Mapping[int, KafkaError]:
        # With the time of now, not the record's: the topic's retention is to count from the record's death.
        return self._producer.send(
            [Outgoing(self._settings.topic, letter.key, letter.value, letter.all_headers()) for letter in letters]
        )

    def _settle_too_large(self, letter: Letter) -> None:
        origin = letter.origin
        record = f"{origin.topic}[{origin.partition}]@{origin.offset}"
        size_bytes = len(letter.value or b"")
        match self._settings.on_too_large:
            case OnTooLarge.SKIP:
                self._metrics.skipped_records.labels(origin.topic, "dlq", "TooLargeForDeadLetterTopic").inc()
                log.warning(
                    "dead_letter_skipped",
                    topic=origin.topic,
                    partition=origin.partition,
                    offset=origin.offset,
                    value_bytes=size_bytes,
                    error=origin.message,
                )
                return
            case OnTooLarge.TRUNCATE:
                cut = letter.truncated()
                failures = self._send([cut])
                if not failures:
                    self._count(cut)
                    self._metrics.dead_letters_truncated.labels(origin.topic).inc()
                    log.warning(
                        "dead_letter_truncated",
                        topic=origin.topic,
                        partition=origin.partition,
                        offset=origin.offset,
                        value_bytes=size_bytes,
                        error=origin.message,
                    )
                    return
                if failures[0].name() != TOO_LARGE:
                    raise delivery_error(self._settings.topic, failures[0].name(), failures[0].str())
            case OnTooLarge.FAIL:
                pass
        raise PoisonFatalError(
            f"Poison record {record} ({origin.stage}: {origin.message}) with a value of {size_bytes} bytes is larger "
            f"than CONNECTOR_DLQ_TOPIC={self._settings.topic} takes. Raise max.message.bytes of the topic above that "
            "of the origin's, since a letter has more headers, or set CONNECTOR_DLQ_ON_TOO_LARGE=truncate or skip."
        )

    def _count(self, letter: Letter) -> None:
        origin = letter.origin
        self._metrics.dead_letters.labels(origin.topic, origin.stage, origin.error_class).inc()
        log.warning(
            "record_dead_lettered",
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offset,
            stage=origin.stage,
            error_class=origin.error_class,
            error=origin.message,
        )
