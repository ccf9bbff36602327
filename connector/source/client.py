"""`KafkaClient`: the part of `confluent_kafka.Consumer` that the source uses, so that a fake can stand in for it.

Every call is made on the consumer thread: the client lets one thread in at a time, and the others wait without any
fairness (INV-2). `connector.testing.client.FakeClient` is the other implementation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload

from confluent_kafka import TopicPartition

from connector.api.errors import InvariantError

if TYPE_CHECKING:
    from confluent_kafka import Message

RebalanceCallback: TypeAlias = Callable[[Any, list[TopicPartition]], None]
"""The first argument is the client itself, whose exact type the client library and the fake do not share."""


_MAGIC = b"CGMDv2:"  # rd_kafka_consumer_group_metadata_write


def generation(client: KafkaClient) -> int:
    """Return the generation, or member epoch (KIP-848), that the group has given this member; none yet: 0 or less.

    The client tells it nowhere else: under the consumer protocol a member that gets no partition sees no callback, its
    id is its own from the start, and its state in the statistics stays `init`.
    """
    return generation_of(client.consumer_group_metadata())


def generation_of(metadata: bytes) -> int:
    """Return the generation in a client's group metadata; none: 0 or less."""
    start = len(_MAGIC)
    if not metadata.startswith(_MAGIC):
        raise InvariantError(f"the Kafka client's group metadata has another form: {metadata!r}. This is a bug.")
    return int.from_bytes(metadata[start : start + 4], sys.byteorder, signed=True)


class KafkaClient(Protocol):
    """A consumer group member. Timeouts are seconds, -1 is no limit. A failed call raises `KafkaException`.

    `poll`, `consume` and `close` run the rebalance callbacks, `on_commit`, `error_cb` and `stats_cb` inside themselves.
    Those must not raise, and must call neither `poll` nor `consume`.
    """

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group; assignments come as callbacks."""

    def poll(self, timeout: float = -1) -> Message | None:
        """Return the next message, an error among them, or None after the timeout."""

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to so many messages; waits until they are there or the whole timeout has passed."""

    def assign(self, partitions: list[TopicPartition], /) -> None:
        """Replace the assignment (eager protocols)."""

    def unassign(self) -> None:
        """Give the whole assignment up."""

    def incremental_assign(self, partitions: list[TopicPartition], /) -> None:
        """Add to the assignment (cooperative and consumer protocols)."""

    def incremental_unassign(self, partitions: list[TopicPartition], /) -> None:
        """Take from the assignment; `_INVALID_ARG` for a partition that is not in it."""

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""

    def pause(self, partitions: list[TopicPartition], /) -> None:
        """Fetch these no more; what was prefetched is dropped. Outlives revocation and return."""

    def resume(self, partitions: list[TopicPartition], /) -> None:
        """Fetch these again."""

    def seek(self, partition: TopicPartition, /) -> None:
        """Move a partition that is being fetched."""

    def position(self, partitions: list[TopicPartition], /) -> list[TopicPartition]:
        """Return the next offset after what was returned, with markers and holes passed; -1001 if there is none."""

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return the group's committed positions with their metadata; -1001 where there is none, or with an error."""

    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[False]) -> list[TopicPartition]: ...
    def commit(
        self, *, offsets: list[TopicPartition], asynchronous: Literal[True, False] = True
    ) -> list[TopicPartition] | None:
        """Commit these positions. Synchronously it returns one answer for each, and raises if all failed; else the
        answers come to `on_commit`."""

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Return the first offset and the end of the log: asked for, the last stable offset; cached, the high one."""

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return the first offset at or after the time in milliseconds that is given as offset; -1: at the end."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return the metadata of one topic or all: a `ClusterMetadata`, which the client library does not export."""

    def consumer_group_metadata(self) -> bytes:
        """Return group, generation and member in the client library's own serial form; see `generation`."""

    def close(self) -> None:
        """Leave the group; `on_revoke` runs inside."""
