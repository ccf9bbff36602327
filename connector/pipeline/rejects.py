"""What becomes of poison records: `CONNECTOR_ON_POISON` = fail, skip or dlq. Each is counted, none is silent (INV-8).

Belongs to one pipeline and is called on its thread.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from connector.api.errors import PoisonError, PoisonFatalError
from connector.dlq.letter import Letter, letter_of
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from connector.api.batch import Batch
    from connector.dlq.flood import FloodLimit
    from connector.dlq.writer import DeadLetterWriter
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)


class OnPoison(Enum):
    """`CONNECTOR_ON_POISON`."""

    FAIL = "fail"
    SKIP = "skip"
    DLQ = "dlq"


class Rejects:
    """Ends poison records by policy, and stops when they come as a flood.

    Args:
        policy: What happens to them.
        group_id: Who gives them up, for the letter.
        metrics: Where they are counted.
        flood: Ends the run when too many are rejected.
        writer: Writes dead letters, under `dlq`.
    """

    def __init__(
        self,
        policy: OnPoison,
        group_id: str,
        metrics: Metrics,
        flood: FloodLimit,
        writer: DeadLetterWriter | None = None,
    ) -> None:
        self._policy = policy
        self._group_id = group_id
        self._metrics = metrics
        self._flood = flood
        self._writer = writer

    def open(self) -> None:
        """See that dead letters can be written.

        Raises:
            ConfigError: There is no such topic.
            AuthenticationError: It may not be written to.
            TransientError: The cluster does not answer.
        """
        if self._writer is not None:
            self._writer.check()

    def close(self) -> None:
        """Let the producer of dead letters go."""
        if self._writer is not None:
            self._writer.close()

    def note_written(self, records: int) -> None:
        """Count records that were written: the flood limit is a share of all."""
        self._flood.note_written(records)

    def reject(self, batch: Batch, index: int, stage: str, error: PoisonError, attempts: int = 1) -> Letter | None:
        """End one record; returns the letter that has to be confirmed before the record counts as done.

        Raises:
            PoisonFatalError: Under `fail`, or because too many records are rejected.
        """
        message, error_class = batch.messages[index], type(error).__name__
        where = f"{message.topic()}[{message.partition()}]@{message.offset()}"
        if self._policy is OnPoison.FAIL:
            raise PoisonFatalError(
                f"Poison record {where} ({stage}: {error}). Correct the destination or the format settings, or set "
                "CONNECTOR_ON_POISON=skip to count such records and go on, or dlq to keep them in a topic."
            ) from error
        self._flood.note_dead(1)
        flood = self._flood.is_flooded()
        if flood is not None:
            self._metrics.dead_letter_floods.labels(self._flood.limit).inc()
            raise PoisonFatalError(f"Too many poison records ({flood}), the last of them {where} ({stage}: {error}).")
        if self._policy is OnPoison.SKIP:
            self._metrics.skipped_records.labels(batch.metadata.topic, stage, error_class).inc()
            log.warning(
                "record_skipped",
                topic=message.topic(),
                partition=message.partition(),
                offset=message.offset(),
                stage=stage,
                error_class=error_class,
                error=str(error),
            )
            return None
        return letter_of(
            message, stage=stage, error_class=error_class, error=str(error), attempts=attempts, group=self._group_id
        )

    def confirm(self, letters: list[Letter]) -> None:
        """Write letters and take those that are confirmed out of the list.

        Raises:
            TransientError: The cluster did not confirm all.
            FatalError: A letter can never be written.
        """
        if self._writer is not None:
            self._writer.write(letters)
