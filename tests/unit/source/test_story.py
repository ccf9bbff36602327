from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.source.story import Callback, Rebalanced, RebalanceStory, Release

A, B, C = ("t", 0), ("t", 1), ("t", 2)
COMMITTED = Release(drain_seconds=0.5, drained=1, committed=1)


def revoked(*keys: tuple[str, int], at: float = 0.0, protocol: str = "classic", took: float = 1.0) -> Callback:
    return Callback(at, at + took, protocol, 1, is_assignment=False, kept=(C,), revoked=keys, release=COMMITTED)


def lost(*keys: tuple[str, int], at: float = 0.0, protocol: str = "classic") -> Callback:
    return Callback(at, at + 0.1, protocol, -1, is_assignment=False, kept=(), lost=keys)


def assigned(*keys: tuple[str, int], at: float = 0.0, protocol: str = "classic", took: float = 0.25) -> Callback:
    return Callback(at, at + took, protocol, 2, is_assignment=True, kept=(C,), gained=keys)


def test_a_revocation_and_the_assignment_that_answers_it_are_one_story() -> None:
    story = RebalanceStory()
    assert story.add(revoked(A, at=10)) == []
    [told] = story.add(assigned(B, at=13))
    assert told == Rebalanced(
        number=1,
        protocol="classic",
        generation=2,
        gained=(B,),
        revoked=(A,),
        lost=(),
        kept=(C,),
        release=COMMITTED,
        callback_seconds=1.25,
        total_seconds=3.25,
    )
    assert story.finish() == []


def test_a_loss_and_the_assignment_after_the_member_came_back_are_one_story() -> None:
    story = RebalanceStory()
    assert story.add(lost(A, B)) == []
    [told] = story.add(assigned(A, at=0.6))
    assert (told.lost, told.gained, told.generation) == ((A, B), (A,), 2)


def test_an_assignment_alone_is_a_story_an_empty_one_too() -> None:
    story = RebalanceStory()
    assert [told.gained for told in story.add(assigned(A))] == [(A,)]
    [empty] = story.add(assigned(at=9))
    assert (empty.number, empty.moves_lanes) == (2, False)


@pytest.mark.parametrize(("protocol", "patience"), [("consumer", 5.0), ("classic", 30.0)])
def test_a_revocation_that_nothing_answers_is_told_alone_and_its_late_answer_too(
    protocol: str, patience: float
) -> None:
    story = RebalanceStory()
    story.add(revoked(A, protocol=protocol))
    assert story.overdue(1 + patience - 0.1) == []
    [alone] = story.overdue(1 + patience)
    assert (alone.number, alone.revoked, alone.gained) == (1, (A,), ())
    assert story.overdue(1000) == []
    [answer] = story.add(assigned(B, at=1000, protocol=protocol))
    assert (answer.number, answer.revoked, answer.gained) == (2, (), (B,))


def test_a_second_revocation_ends_the_story_of_the_first() -> None:
    story = RebalanceStory()
    story.add(revoked(A))
    [first] = story.add(revoked(B, at=2))
    [second] = story.add(assigned(at=4))
    assert (first.number, first.revoked, second.number, second.revoked) == (1, (A,), 2, (B,))


def test_the_latest_story_is_known_before_it_is_complete() -> None:
    assert RebalanceStory().latest is None
    story = RebalanceStory()
    story.add(revoked(A))
    assert story.latest is not None
    assert (story.latest.number, story.latest.revoked) == (1, (A,))
    [told] = story.add(assigned(B, at=2))
    assert story.latest == told


@pytest.mark.parametrize(
    ("callback", "costs"),
    [
        (assigned(A), False),
        (revoked(A), False),
        (lost(A), True),
        *(
            (Callback(0, 1, "classic", 1, is_assignment=False, kept=(), revoked=(A,), release=release), True)
            for release in (Release(not_drained=1), Release(timed_out=1), Release(codes=("ILLEGAL_GENERATION",)))
        ),
    ],
)
def test_a_story_that_may_repeat_records_says_so(callback: Callback, *, costs: bool) -> None:
    story = RebalanceStory()
    [told] = [*story.add(callback), *story.finish()]
    assert told.costs is costs


@dataclass(frozen=True)
class Step:
    kind: str
    gap: float
    seconds: float
    keys: tuple[tuple[str, int], ...]


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["assigned", "revoked", "lost", "tick"]),
        st.floats(0, 40),
        st.floats(0, 20),
        st.lists(st.tuples(st.just("t"), st.integers(0, 9)), max_size=3).map(tuple),
    ),
    max_size=30,
)


@given(steps, st.sampled_from(["classic", "consumer"]))
def test_every_callback_is_in_one_story_whatever_the_order_and_the_gaps(taken: list[Step], protocol: str) -> None:
    story, now = RebalanceStory(), 0.0
    told: list[Rebalanced] = []
    expected: Counter[tuple[str, tuple[str, int]]] = Counter()
    spent, assignments = 0.0, 0
    for step in taken:
        now += step.gap
        if step.kind == "tick":
            told += story.overdue(now)
            continue
        keys = {"assigned": "gained", "revoked": "revoked", "lost": "lost"}[step.kind]
        is_assignment = step.kind == "assigned"
        fields = {keys: step.keys}
        told += story.add(
            Callback(now, now + step.seconds, protocol, 1, is_assignment=is_assignment, kept=(), **fields)  # type: ignore[arg-type]
        )
        now += step.seconds
        spent += step.seconds
        assignments += is_assignment
        expected.update((keys, key) for key in step.keys)
    told += story.finish()
    actual = Counter(
        (kind, key) for each in told for kind in ("gained", "revoked", "lost") for key in getattr(each, kind)
    )
    assert actual == expected
    assert [each.number for each in told] == list(range(1, len(told) + 1))
    assert sum(each.callback_seconds for each in told) == pytest.approx(spent)
    assert all(each.total_seconds >= each.callback_seconds - 1e-6 for each in told)
    assert len(told) >= assignments, "no two assignments share a story"
