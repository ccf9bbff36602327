"""What a sink is: `write` a batch, or `on_event` for the whole stream, and abilities that a sink declares.

Each pipeline makes its own instance and calls every method on the pipeline's thread, so a sink needs no locks. Raise
`TransientError` for what may work later, `PoisonError` for records that never will, `FatalError` to end the process;
any other exception is taken as a bug in the sink and is fatal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin

from connector.api.event import Event, Input
from connector.api.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from connector.api.batch import Batch
    from connector.api.errors import ConnectorError
    from connector.api.types import LaneId, Offset

S = TypeVar("S", bound=Settings)


def _nothing(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """What a position is committed with in a producer's transaction (`send_offsets_to_transaction`, KIP-447).

    It is good for one lane, in one generation of the group: the coordinator refuses it after the next rebalance.
    """

    member: bytes  # the consumer's group metadata, in the client library's own form
    metadata: str  # of the position (`TopicPartition.metadata`): lanes start by it


def _no_member(_: LaneId) -> GroupCommit:
    raise TypeError("this context belongs to no group member, so nothing can be committed with it")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Where a sink instance runs.

    `connection` has the Kafka client properties by which the connector reaches its own cluster, passwords among them,
    for a sink that writes there: how to connect, and nothing of a consumer. `subscribes` says whether this connector
    reads a topic of that cluster.

    `group_commit` is for a sink that commits positions: called with a lane, from the sink's thread, it returns what to
    commit with at this moment. It never blocks; it raises `RefusedError` when the lane is not this member's any more,
    and `TransientError` while the member has no generation.
    """

    group_id: str
    pipeline: int = 0  # number of the pipeline in this process
    pipelines: int = 1
    host: str = "localhost"
    tombstones: Literal["write", "delete"] = "write"  # what a record without a value is to do; others never come
    value_format: str = "bytes"  # CONNECTOR_VALUE_FORMAT: `bytes`, `string`, `json`, …
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    subscribes: Callable[[str], bool] = _nothing
    group_commit: Callable[[LaneId], GroupCommit] = _no_member


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """A lane as a sink sees it when it claims it."""

    id: LaneId
    topic: str
    partition: int
    topic_id: str | None = (
        None  # changes when a topic is deleted and made again; None: the cluster has no ids (KIP-516)
    )


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The next offset to read that a sink holds for a partition, and the id of the topic that it belongs to."""

    next_offset: Offset
    topic_id: str | None = None


class Sink(Generic[S]):
    """Base of every sink. A simple one implements `write`; a full one overrides `on_event`.

    The type argument is the settings model: `class MySink(Sink[MySettings])`.
    """

    settings_type: ClassVar[type[Settings]] = Settings
    params_type: ClassVar[type[Settings] | None] = None
    """Model of the runtime parameters that this sink takes, a field for each key; None: it takes none."""
    max_in_flight: ClassVar[int] = 1
    """Above 1 the sink acknowledges asynchronously: `submit` takes the place of `write`, so many batches at a time."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Sink and isinstance(get_args(base)[0], type):
                cls.settings_type = get_args(base)[0]

    def __init__(self, settings: S, context: SinkContext) -> None:
        self.settings = settings
        self.context = context

    def open(self) -> None:
        """Connect and prepare. Called before any event; again after a `TransientError`, with backoff."""

    def write(self, batch: Batch) -> None:
        """Write one batch; returning means that it is durable. The same batch comes again after a `TransientError`."""
        raise TypeError(f"{type(self).__name__} implements neither write nor on_event")

    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        """Begin to write one batch and return; call `done` once, from any thread, when it is durable or has failed.

        Batches of a lane are submitted in order. An error is what `write` would raise. When `InputClosed` comes for
        the lane, what is not begun of it must not be written any more; `done` follows all the same.
        """
        raise TypeError(f"{type(self).__name__} allows several batches in flight, but does not implement submit")

    def flush(self, lane: LaneId) -> None:
        """Finish what was submitted of a lane and is not done: from now on others wait for it. May return before.

        For a sink that holds batches back, until a file is full, say; others finish by themselves and need not
        implement it. Called on the pipeline's thread when the lane is to be given up, when a bounded run has reached
        its end, when the sink is to be replaced, when what the sink holds is all that the memory budget allows, and
        after an outage for the batch that is the trial. `max_in_flight` has to be more than it ever holds back.
        """

    def probe(self) -> None:
        """Ask whether the destination is there, without writing; raise `TransientError` if it is not.

        Called on the pipeline's thread while the circuit breaker is open, before a batch is risked. By default nothing
        is asked, and the next batch is the probe.
        """

    def on_event(self, event: Event) -> None:
        """Take one event. By default `Input` goes to `write` and the others are ignored."""
        match event:
            case Input(data=batch):
                self.write(batch)
            case _:
                pass

    def close(self) -> None:
        """Let go of everything; called once, also after a failed `open`."""

    @property
    def is_idempotent(self) -> bool:
        """Whether a batch that is written again leaves the destination as it was, so that a replay cannot be seen."""
        return False

    @property
    def deletes(self) -> bool:
        """Whether a record without a value (a tombstone) can delete what its key names: `CONNECTOR_TOMBSTONES=delete`.

        It does so when `context.tombstones` is `delete`; otherwise such a record is written like others. Asked before
        `open`.
        """
        return False

    @property
    def holds_positions(self) -> bool:
        """Whether this sink stores positions with the data in one transaction, so that lanes start from them.

        If so, `claim` is called for every lane, and `write` must store `batch.metadata.next_offset` in its transaction
        and raise `RefusedError` when another owner has claimed the lane since. An empty batch only moves the position,
        past records that were left out.
        """
        return False

    def claim(self, lane: LaneInfo) -> StoredPosition | None:
        """Take ownership of a lane and return the position stored for its partition, or None if there is none."""
        raise TypeError(f"{type(self).__name__} says that it holds positions, but does not implement claim")

    @property
    def commits_positions(self) -> bool:
        """Whether this sink commits the group's positions itself, in the Kafka transaction of its records.

        If so, the connector commits none, and lanes start from the group's positions as ever. `write` must commit
        `batch.metadata.next_offset` with what `context.group_commit(lane)` returns just then. An empty batch only moves
        the position, past records that were left out. When `write` cannot tell whether a transaction was committed, it
        lets it end, and raises `RefusedError`: the lane begins again at the group's position. Not together with
        `holds_positions`, nor with several batches in flight.
        """
        return False

    @property
    def resets_positions(self) -> bool:
        """Whether a command may read the positions that this sink holds, and set them: `connector offsets`.

        If so, it implements `read_positions` and `reset_positions`. They are called on an instance of their own, in
        another process than the writers', which is not opened, since it writes no records. `close` follows.
        """
        return False

    def read_positions(self) -> Mapping[tuple[str, int], StoredPosition]:
        """Return every position that is stored for the group, by topic and partition. Owners stay owners."""
        raise TypeError(f"{type(self).__name__} says that it resets positions, but does not implement read_positions")

    def reset_positions(self, positions: Mapping[tuple[str, int], StoredPosition]) -> None:
        """Store these positions, all of them or none, and leave those of other partitions and groups as they are.

        Each of these partitions has no owner afterwards: a writer that claimed it before is refused (`RefusedError`),
        so that nothing moves the position before the next claim.
        """
        raise TypeError(f"{type(self).__name__} says that it resets positions, but does not implement reset_positions")
