"""How long to wait before the next try: capped exponential backoff with jitter. Pure, but for the jitter."""

from __future__ import annotations

from dataclasses import dataclass

from tenacity import RetryCallState, wait_exponential, wait_random

LONGEST_ASKED_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays of a retry; seconds. The jitter takes up to a fifth away, so that copies do not try in step.

    `limit` is how many retries there are before the error is fatal; None: no limit.
    """

    initial: float = 0.1
    maximum: float = 30.0
    limit: int | None = None

    def delay(self, failures: int, asked: float | None = None) -> float:
        """Return how long to wait after so many failures in a row, at least 1.

        Args:
            failures: In a row.
            asked: What the other side asks for. It knows better, also than `maximum`, save when it asks for ages.
        """
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]  # only the number is read
        state.attempt_number = failures
        delay = wait_exponential(multiplier=self.initial, max=self.maximum)(state)
        return max(delay * (1 - wait_random(0, 0.2)(state)), min(asked or 0.0, LONGEST_ASKED_SECONDS))

    def is_exhausted(self, failures: int) -> bool:
        """Whether so many failures in a row are more than the limit allows."""
        return self.limit is not None and failures > self.limit
