"""The status snapshot: what every lane and pipeline does and why. The controller makes one, the admin thread reads it.

Frozen, so that no lock is needed: the controller replaces the whole snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.api.intents import Intent


class RunState(Enum):
    """Where the process stands."""

    STARTING = "starting"  # no assignment yet
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class LaneState(Enum):
    """What a lane does now."""

    STARTING = "starting"  # waits for the position it starts at
    FLOWING = "flowing"
    PAUSED = "paused"  # its share of the memory budget is full
    HELD_BACK = "held_back"  # by an operator
    RETRYING = "retrying"  # after a transient error of the sink: see last_error and next_try_seconds
    AWAITING_SCHEMA = "awaiting_schema"  # the schema registry does not give what its records name; likewise
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane. Positions and lag are None where they were never measured; zero is a measurement."""

    lane: int
    topic: str
    partition: int
    pipeline: int
    state: LaneState
    watermark: int | None
    committed: int | None
    end_offset: int | None
    lag: int | None
    lag_age_seconds: float | None
    held_bytes: int
    sink_bytes: int  # of these: in batches that are under way
    oldest_held_seconds: float | None  # how long its oldest record that is not durable has been held; None: none is
    watermark_age_seconds: float | None  # how long the oldest unfinished batch has been out; None: none is out
    attempts: int = 0
    last_error: str | None = None
    next_try_seconds: float | None = None
    reason: str | None = None  # why it takes no records, where that is somebody's decision


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline and its sink."""

    pipeline: int
    lanes: int
    is_open: bool
    attempts: int = 0
    last_error: str | None = None
    restarts: int = 0  # after crashes of a plugin
    breaker_opens_seconds: float | None = None  # until the next probe; None: the circuit breaker is closed


@dataclass(frozen=True, slots=True)
class Status:
    """The whole process. `is_ready` means that it consumes, or would as soon as there is something to consume."""

    state: RunState
    is_ready: bool
    reason: str  # why it is not ready, or what it waits for
    group_id: str
    group_protocol: str
    epoch: int
    lanes: tuple[LaneStatus, ...] = ()
    pipelines: tuple[PipelineStatus, ...] = ()
    missing_topics: tuple[str, ...] = ()
    intents: tuple[Intent, ...] = ()  # what an operator holds back, the wide ones first
    last_error: str | None = None
    controller_seen: float = 0.0  # time.monotonic() of the controller's last turn
    source_seen: float = 0.0  # time.monotonic() of the consumer thread's last turn
