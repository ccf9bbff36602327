from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from connector.telemetry.repeats import WINDOW_SECONDS, Repeats

HOUR = 3600.0
MANY = 1000  # kinds at a time

arrivals = st.lists(st.tuples(st.integers(0, 4), st.floats(0, 50, allow_nan=False)), max_size=60)


def test_an_hour_of_a_hundred_failures_a_second_is_a_line_for_each_half_minute_that_counts_them_all() -> None:
    repeats: Repeats[float] = Repeats()
    passed: list[tuple[float, int]] = []
    for number in range(360_000):
        now = number / 100
        passed += repeats.admit("sink_retry_scheduled", now, now)
    passed += repeats.finish()
    assert len(passed) == 1 + HOUR / WINDOW_SECONDS
    assert sum(1 + others for _, others in passed) == 360_000


def test_the_first_of_a_kind_passes_at_once_and_kinds_do_not_wait_for_each_other() -> None:
    repeats: Repeats[str] = Repeats()
    assert repeats.admit("a", "first a", 0) == [("first a", 0)]
    assert repeats.admit("b", "first b", 1) == [("first b", 0)]
    assert repeats.admit("a", "second a", 2) == []


def test_what_does_not_come_again_is_told_when_its_window_ends_with_its_newest() -> None:
    repeats: Repeats[int] = Repeats()
    for number in range(5):
        repeats.admit("a", number, float(number))
    ends = repeats.next_end
    assert ends == WINDOW_SECONDS
    assert repeats.pass_overdue(WINDOW_SECONDS - 0.1) == []
    assert repeats.pass_overdue(WINDOW_SECONDS) == [(4, 3)]
    assert repeats.pass_overdue(2 * WINDOW_SECONDS) == [], "nothing came since"
    assert repeats.admit("a", 5, 2 * WINDOW_SECONDS) == [(5, 0)], "a new story"


@given(arrivals)
def test_everything_that_comes_is_passed_or_counted_once_and_no_kind_passes_twice_in_a_window(
    arriving: list[tuple[int, float]],
) -> None:
    repeats: Repeats[tuple[int, float]] = Repeats()
    now, told, came = 0.0, Counter[int](), Counter[int]()
    times: dict[int, list[float]] = {}
    for kind, gap in arriving:
        now += gap
        came[kind] += 1
        for (passed, _), others in repeats.admit(kind, (kind, now), now):
            told[passed] += 1 + others
            times.setdefault(passed, []).append(now)
    for (passed, _), others in repeats.finish():
        told[passed] += 1 + others
    assert told == came
    for passing in times.values():
        assert all(later - earlier >= WINDOW_SECONDS for earlier, later in pairwise(passing))


def test_kinds_without_end_take_bounded_memory_and_are_still_all_counted() -> None:
    repeats: Repeats[int] = Repeats()
    told = 0
    for number in range(20 * MANY):
        for _ in range(2):
            told += sum(1 + others for _, others in repeats.admit(number, number, 0.0))
        assert len(repeats._windows) <= MANY
    assert told + sum(1 + others for _, others in repeats.finish()) == 40 * MANY
