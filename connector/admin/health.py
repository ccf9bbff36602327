"""Whether the process lives and whether it consumes. Pure: a status snapshot and a time in, a verdict out.

Live means that restarting would not help: the threads that everything depends on still turn. Ready means consuming. A
sink that is down for hours is neither dead nor a reason for a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from connector.telemetry.status import RunState, Status

_COMMIT_SECONDS = 60.0  # kept for the commit after a drain: without a coordinator it blocks for 45 s


class Verdict(NamedTuple):
    """What a probe answers, and why."""

    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """For how long, in seconds, each thread may show no sign of life.

    The controller never blocks. The consumer thread is silent inside a revoke callback, for a drain and its commit.
    """

    drain_seconds: float = 20.0  # CONNECTOR_DRAIN_TIMEOUT
    controller_seconds: float = 30.0

    @property
    def source_seconds(self) -> float:
        """How long a revoke callback may take."""
        return self.drain_seconds + _COMMIT_SECONDS


def liveness(status: Status, now: float, limits: Limits) -> Verdict:
    """Judge whether both threads still turn. `now` is `time.monotonic()`; a thread never seen has not started yet."""
    if status.state in {RunState.STOPPED, RunState.FAILED}:
        return Verdict(ok=True, reason=f"live: {status.state.value}, the process is about to end")
    for name, seen, limit in (
        ("controller", status.controller_seen, limits.controller_seconds),
        ("consumer thread", status.source_seen, limits.source_seconds),
    ):
        silent = now - seen
        if seen and silent > limit:
            return Verdict(
                ok=False,
                reason=f"not live: the {name} was last seen {silent:.0f}s ago; more than {limit:.0f}s is too long",
            )
    return Verdict(ok=True, reason="live")


def readiness(status: Status) -> Verdict:
    """Judge whether the process consumes, or would as soon as there is something to consume."""
    if status.is_ready:
        return Verdict(ok=True, reason=f"ready: {status.reason}" if status.reason else "ready")
    return Verdict(ok=False, reason=f"not ready: {status.reason or status.state.value}")
