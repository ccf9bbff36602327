"""The event stream that a sink receives, one instance on one thread, in order.

Names and fields are those of the specification. A sink ignores events that it does not know (`case _: pass`), since
variants are added in later versions. Per lane, control events are barriers: `InputClosed` and `Stop` come after the
lane's last `Input` (INV-10).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from connector.api.batch import Batch, BatchMetadata
    from connector.api.types import LaneId

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"


class CloseReason(Enum):
    """Why a lane gets no more records."""

    REVOKED = "revoked"  # another member takes the partition
    LOST = "lost"  # another member has it already; what is not written yet must not be written any more
    END = "end"  # a bounded run reached the partition's end
    STALLED = "stalled"  # no records for CONNECTOR_LANE_IDLE_TIMEOUT although there are some; it may recover


class StopCause(Enum):
    """Why the stream ends."""

    MANUAL = "manual"  # a signal, an operator, or a fatal error elsewhere
    ALL_INPUTS_CLOSED = "all_inputs_closed"  # a bounded run is done


@dataclass(frozen=True, slots=True)
class Input:
    """A batch of one lane. When `on_event` returns, the batch is durable."""

    id: LaneId
    metadata: BatchMetadata
    data: Batch


@dataclass(frozen=True, slots=True)
class InputClosed:
    """This lane gets no more records; its partition may come back, as a new lane with another id."""

    id: LaneId
    reason: CloseReason = CloseReason.REVOKED


@dataclass(frozen=True, slots=True)
class InputRecovered:
    """A stalled lane has records again; its next `Input` follows."""

    id: LaneId


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """Something before this sink failed: `source`, a transform by its name, or `pipeline-N`, to its replacement.

    Cannot be lost: it comes before the next `Input`, or before `Stop`.
    """

    affected_input_ids: tuple[LaneId, ...]
    error: str
    source_node_id: str


@dataclass(frozen=True, slots=True)
class NodeRestarted:
    """The replacement of a failed node runs; its lanes come back as new ones, from what is durable."""

    id: str


@dataclass(frozen=True, slots=True)
class ParamUpdate:
    """A runtime parameter was set: checked against the sink's `params_type`, and stored, before this is sent."""

    key: str
    value: JsonValue


@dataclass(frozen=True, slots=True)
class ParamDeleted:
    """A runtime parameter was taken back; its default is in force again."""

    key: str


@dataclass(frozen=True, slots=True)
class Reload:
    """A plugin is being replaced between batches: the sink (`sink`) or a transform, by its name.

    The instance that is replaced gets it as its last event but `close`. None, which means everything, is refused.
    """

    operator_id: str | None


@dataclass(frozen=True, slots=True)
class Error:
    """Something unexpected that ends nothing; worth a line in a log."""

    message: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The last event. `close` follows."""

    cause: StopCause


Event: TypeAlias = (
    Input
    | InputClosed
    | InputRecovered
    | NodeFailed
    | NodeRestarted
    | ParamUpdate
    | ParamDeleted
    | Reload
    | Stop
    | Error
)
