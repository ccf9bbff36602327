"""What the controller and a pipeline tell each other. One-way, in order; nobody waits for an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from connector.api.barrier import DrainBarrier
    from connector.api.errors import ConnectorError, FatalError
    from connector.api.event import CloseReason, Event, StopCause
    from connector.api.sink import Sink, StoredPosition
    from connector.api.transform import Transform
    from connector.api.types import Epoch, LaneId, Offset
    from connector.lane.lane import Lane


@dataclass(frozen=True, slots=True)
class AddLanes:
    """These lanes are this pipeline's now."""

    lanes: tuple[Lane, ...]
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class StopLanes:
    """Flush these lanes, wait until the sink holds it, arrive at the barrier once for each lane, and forget them.

    After `deadline` (time.monotonic()) nothing new is tried.
    """

    lanes: tuple[LaneId, ...]
    barrier: DrainBarrier
    deadline: float


@dataclass(frozen=True, slots=True)
class DropLanes:
    """Forget these lanes, as they are: lost, or at their end with nothing left."""

    lanes: tuple[LaneId, ...]
    reason: CloseReason


@dataclass(frozen=True, slots=True)
class StallLane:
    """This lane gets no records although there are some: tell the sink, and tell it when they come."""

    lane: LaneId


@dataclass(frozen=True, slots=True)
class Notice:
    """An event for the sink, given to it at its turn; before its first batch, if it is not open yet."""

    event: Event


@dataclass(frozen=True, slots=True)
class Replace:
    """Put a new instance of a plugin in the old one's place, between batches; if `make` fails, the old one stays."""

    operator_id: str
    make: Callable[[], Sink[Any] | Transform[Any]]
    adopted: Callable[[], None] = lambda: None  # called, on the pipeline's thread, when the new instance runs
    notices: Callable[[], Sequence[Event]] = tuple  # for the new instance before anything else; asked when it runs


@dataclass(frozen=True, slots=True)
class Finish:
    """Stop the sink and end the thread. The lanes have been stopped before."""

    cause: StopCause


@dataclass(frozen=True, slots=True)
class Settled:
    """What an asynchronous sink says of a part of a batch; put in from whatever thread the sink uses."""

    lane: LaneId
    sequence: int
    ticket: int
    error: ConnectorError | None


Command: TypeAlias = AddLanes | StopLanes | DropLanes | StallLane | Notice | Replace | Finish | Settled


@dataclass(frozen=True, slots=True)
class Opened:
    """The pipeline's sink and transforms are open."""

    pipeline: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch goes to the sink. Sent before its `Acked`."""

    lane: LaneId
    sequence: int
    next_offset: Offset


@dataclass(frozen=True, slots=True)
class Acked:
    """The batch is durable, or every record of it ended in another counted outcome."""

    lane: LaneId
    sequence: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The sink was asked for the position that it holds for a lane."""

    lane: LaneId
    stored: StoredPosition | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The sink refused a lane's batch, since another owner has claimed its partition. The pipeline has forgotten it."""

    lane: LaneId


@dataclass(frozen=True, slots=True)
class Failed:
    """The pipeline cannot go on. It still answers at barriers, and to `Finish`.

    `node` is what failed: the pipeline or a transform. A crash may be cured by a new start, a declared error is not.
    """

    pipeline: int
    error: FatalError
    node: str
    is_crash: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """The thread has ended and the sink is closed."""

    pipeline: int
    incarnation: int


Report: TypeAlias = Opened | Delivered | Acked | Claimed | Refused | Failed | Finished

RetryStage: TypeAlias = Literal["decode", "sink"]
"""Who has failed: the schema registry, or the sink (or a transform, or the dead letter topic)."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A transient error that is being retried, for the status."""

    failures: int
    error: str
    at: float  # of the next try, time.monotonic()
    stage: RetryStage = "sink"
