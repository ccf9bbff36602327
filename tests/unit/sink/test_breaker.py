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


def test_a_destination_that_asks_for_time_has_it_at_once_and_no_longer_than_five_minutes() -> None:
    breaker = Breaker(Backoff(initial=1, maximum=4), threshold=3)
    assert breaker.failed(100.0, 60.0)
    assert breaker.retry_at == 160.0
    assert not breaker.allows(159.9)
    assert breaker.failed(160.0, 86_400.0)
    assert breaker.retry_at == 460.0
    assert breaker.succeeded()
    assert not breaker.failed(500.0, 0.0), "no time is not asked for"


def test_what_is_asked_for_is_the_least_and_the_backoff_counts_where_it_is_longer() -> None:
    backoff = Backoff(initial=10, maximum=30)
    assert 8 <= backoff.delay(1, 2.0) <= 10
    assert backoff.delay(5, 31.0) == 31.0
    assert backoff.delay(1, None) <= 10
