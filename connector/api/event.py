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


class CloseReason(Enum):
    """Why a lane gets no more records."""

    REVOKED = "revoked"  # another member takes the partition
    LOST = "lost"  # another member has it already; what is not written yet must not be written any more
    END = "end"  # a bounded run reached the partition's end


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
class Stop:
    """The last event. `close` follows."""

    cause: StopCause


Event: TypeAlias = Input | InputClosed | Stop
