"""The circuit breaker: opens after failures in a row, lets one probe through at a time, closes on the first success."""

from __future__ import annotations

from connector.sink.breaker import Breaker
from connector.sink.retry import Backoff

STEADY = Backoff(initial=10, maximum=10)


def _opened(threshold: int = 3, backoff: Backoff = STEADY) -> Breaker:
    breaker = Breaker(backoff, threshold)
    for _ in range(threshold):
        breaker.failed(0.0)
    return breaker


def test_it_opens_at_the_threshold_and_not_before() -> None:
    breaker = Breaker(STEADY, threshold=3)
    assert [breaker.failed(0.0) for _ in range(3)] == [False, False, True]
    assert breaker.is_open
    assert not breaker.allows(0.0)


def test_a_success_between_failures_begins_the_count_anew() -> None:
    breaker = Breaker(STEADY, threshold=3)
    for _ in range(10):
        breaker.failed(0.0)
        breaker.failed(0.0)
        assert not breaker.succeeded(), "it was not open"
    assert not breaker.is_open


def test_half_open_it_lets_one_probe_through_and_the_next_only_after_one_more_period() -> None:
    breaker = _opened()
    assert breaker.allows(10.0)
    breaker.begin_probe(10.0)
    assert breaker.is_open
    assert not breaker.allows(10.0), "the probe has not answered"
    assert breaker.allows(20.0), "a probe without an answer blocks nobody for ever"


def test_a_probe_that_fails_opens_it_again_for_longer_up_to_the_cap() -> None:
    breaker = _opened(backoff=Backoff(initial=1, maximum=4))
    periods = []
    now = 100.0
    for _ in range(5):
        assert breaker.failed(now)
        assert breaker.retry_at is not None
        periods.append(breaker.retry_at - now)
        now = breaker.retry_at
    for period, most in zip(periods, (2, 4, 4, 4, 4), strict=True):
        assert 0.8 * most <= period <= most


def test_a_success_closes_it_at_once_and_forgets_how_often_it_was_open() -> None:
    breaker = _opened()
    assert breaker.succeeded()
    assert not breaker.is_open
    assert breaker.allows(0.0)
    assert not breaker.failed(0.0), "the count begins anew"
