"""When a pipeline tries again: backoff for each lane, and one circuit breaker for its sink.

Belongs to one pipeline and is called on its thread; it sets no timers itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from connector.api.errors import FatalError, TransientError
from connector.pipeline.messages import Retry, RetryStage
from connector.sink.breaker import Breaker
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.sink.retry import Backoff
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)


class Recovery:
    """Counts failures and says when the next try is."""

    def __init__(self, backoff: Backoff, metrics: Metrics, pipeline: int) -> None:
        self._pipeline = pipeline
        self._backoff = backoff
        self._breaker = Breaker(backoff)
        self._metrics = metrics
        self._last_error = ""  # of whatever lane: why the breaker is open

    @property
    def opens_until(self) -> float | None:
        """Until when the breaker is open, time.monotonic(); None: it is closed."""
        return self._breaker.retry_at

    def failed(self, before: int, error: TransientError, doing: str, stage: RetryStage = "sink") -> Retry:
        """Note a failure of a batch, or of opening the sink, after so many before; return when to try again.

        Raises:
            FatalError: `CONNECTOR_RETRY_LIMIT` is used up.
        """
        failures = before + 1
        if stage == "sink":
            self._last_error = str(error)
        if self._backoff.is_exhausted(failures):
            raise FatalError(
                f"{doing} failed {failures} times (last error: {error}): CONNECTOR_RETRY_LIMIT is used up. Raise it or "
                "leave it unset to go on trying."
            ) from error
        delay = self._backoff.delay(failures, error.retry_after)
        if stage == "sink":
            self._metrics.sink_retries.inc()
            log.warning("sink_retry_scheduled", **_fields(self._pipeline, doing, failures, error, delay))
        else:
            self._metrics.decode_retries.inc()
            log.warning("decode_retry_scheduled", **_fields(self._pipeline, doing, failures, error, delay))
        return Retry(failures, str(error), time.monotonic() + delay, stage)

    def note_failure(self, error: TransientError) -> None:
        """The sink failed transiently, for whatever lane."""
        self._last_error = str(error)
        if self._breaker.failed(time.monotonic(), error.retry_after):
            self._metrics.breaker_opens.inc()
            seconds = (self._breaker.retry_at or 0.0) - time.monotonic()
            log.warning(
                "breaker_opened", pipeline=self._pipeline, error=self._last_error, open_seconds=round(seconds, 3)
            )

    def note_success(self) -> bool:
        """The sink works; true if that has closed the breaker: nobody needs to wait for the rest of a backoff."""
        was_open = self._breaker.succeeded()
        if was_open:
            log.info("breaker_closed", pipeline=self._pipeline)
        return was_open

    def obstacle(self, before: Retry | None, probe: Callable[[], None]) -> Retry | None:
        """Return why nothing may be tried now, and until when; None: go on. Half open, the sink is asked first."""
        now = time.monotonic()
        reason = before.error if before else f"the circuit breaker is open: {self._last_error}"
        if self._breaker.allows(now):
            if not self._breaker.is_open:
                return None
            try:
                probe()
                self._breaker.begin_probe(now)
                return None
            except TransientError as error:
                self.note_failure(error)
                reason = str(error)
        return Retry(before.failures if before else 0, reason, self._breaker.retry_at or now)


def _fields(pipeline: int, step: str, attempts: int, error: TransientError, delay: float) -> dict[str, object]:
    return {
        "pipeline": pipeline,
        "step": step,
        "attempts": attempts,
        "error_class": type(error).__name__,
        "error": str(error),
        "delay_seconds": round(delay, 3),
    }
