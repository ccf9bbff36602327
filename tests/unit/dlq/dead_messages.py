"""Records as the client gives them, and letters of them, for the tests of dead letters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from connector.dlq.letter import Letter, letter_of

if TYPE_CHECKING:
    from connector.dlq.letter import Header


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A `Message` without a client."""

    raw_key: bytes | None = b"key"
    raw_value: bytes | None = b"value"
    raw_headers: list[Header] | None = field(default_factory=list)
    of_topic: str = "orders"
    of_partition: int = 3
    at: int = 42
    stamp: tuple[int, int] = (1, 1_700_000_000_000)

    def topic(self) -> str:
        return self.of_topic

    def partition(self) -> int:
        return self.of_partition

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def headers(self) -> list[Header] | None:
        return self.raw_headers

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def error(self) -> Any:
        return None

    def __len__(self) -> int:
        return len(self.raw_value or b"")


def dead(message: DeadMessage | None = None, *, error: str = "violates a constraint", attempts: int = 1) -> Letter:
    """Return the letter of a record."""
    return letter_of(
        DeadMessage() if message is None else message,
        stage="write",
        error_class="PoisonError",
        error=error,
        attempts=attempts,
        group="billing",
    )


def in_dlq(letter: Letter) -> DeadMessage:
    """Return the letter as it is read from the dead letter topic."""
    return DeadMessage(letter.key, letter.value, letter.all_headers(), "orders.dlq", 0, 7)


def replayed(letter: Letter) -> DeadMessage:
    """Return the letter as it is read from its own topic after a replay."""
    return DeadMessage(letter.key, letter.value, letter.replay_headers())
