from __future__ import annotations

from dataclasses import replace

import pytest

from connector.admin.health import Limits, liveness, readiness
from connector.telemetry.status import RunState, Status

NOW = 10_000.0
LIMITS = Limits(drain_seconds=20.0, controller_seconds=30.0)
HEALTHY = Status(
    state=RunState.RUNNING,
    is_ready=True,
    reason="",
    group_id="g",
    group_protocol="consumer",
    epoch=1,
    controller_seen=NOW,
    source_seen=NOW,
)


def test_a_process_whose_threads_turn_is_live() -> None:
    assert liveness(HEALTHY, NOW, LIMITS) == (True, "live")


def test_a_controller_that_is_silent_too_long_is_not_live_and_is_named() -> None:
    assert liveness(replace(HEALTHY, controller_seen=NOW - 30), NOW, LIMITS).ok
    ok, reason = liveness(replace(HEALTHY, controller_seen=NOW - 31), NOW, LIMITS)
    assert not ok
    assert reason == "not live: the controller was last seen 31s ago; more than 30s is too long"


def test_the_consumer_thread_may_be_silent_for_a_drain_and_its_commit_but_not_longer() -> None:
    assert liveness(replace(HEALTHY, source_seen=NOW - 80), NOW, LIMITS).ok
    ok, reason = liveness(replace(HEALTHY, source_seen=NOW - 81), NOW, LIMITS)
    assert not ok
    assert "consumer thread" in reason


def test_threads_that_have_not_started_are_not_dead() -> None:
    assert liveness(replace(HEALTHY, state=RunState.STARTING, controller_seen=0.0, source_seen=0.0), NOW, LIMITS).ok


@pytest.mark.parametrize("state", [RunState.STOPPED, RunState.FAILED])
def test_a_process_that_is_about_to_end_is_not_killed_for_its_silence(state: RunState) -> None:
    assert liveness(replace(HEALTHY, state=state, controller_seen=1.0, source_seen=1.0), NOW, LIMITS).ok


def test_readiness_is_what_the_controller_says_with_its_reason() -> None:
    assert readiness(HEALTHY) == (True, "ready")
    assert readiness(replace(HEALTHY, is_ready=False, reason="no assignment yet")) == (
        False,
        "not ready: no assignment yet",
    )
    assert readiness(replace(HEALTHY, is_ready=False, state=RunState.DRAINING)) == (False, "not ready: draining")
