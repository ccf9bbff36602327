"""Intents: the most specific counts, a wider one takes the place of the narrower, what changes nothing is equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.api.intents import EVERYTHING, Intent, Intents, Scope

TOPICS = ["a", "b", "never assigned"]
PARTITIONS = [(topic, partition) for topic in TOPICS for partition in (0, 1, 7)]
SCOPES = [EVERYTHING, *map(Scope, TOPICS), *(Scope(*each) for each in PARTITIONS)]
requests = st.lists(st.tuples(st.sampled_from(SCOPES), st.booleans()), max_size=8)


def after(asked: list[tuple[Scope, bool]]) -> Intents:
    intents = Intents()
    for scope, is_held_back in asked:
        intents = intents.want(scope, is_held_back=is_held_back)
    return intents


def held(intents: Intents) -> set[tuple[str, int]]:
    return {each for each in [*PARTITIONS, ("unheard of", 3)] if intents.holds(*each)}


@given(requests)
def test_the_latest_request_that_covers_a_partition_decides(asked: list[tuple[Scope, bool]]) -> None:
    intents = after(asked)
    for topic, partition in PARTITIONS:
        covering = [held for scope, held in asked if scope in (EVERYTHING, Scope(topic), Scope(topic, partition))]
        assert intents.holds(topic, partition) is (covering or [False])[-1]


@given(requests)
def test_the_most_specific_intent_in_force_counts(asked: list[tuple[Scope, bool]]) -> None:
    intents = after(asked)
    by_scope = {Scope(each.topic, each.partition): each.is_held_back for each in intents.in_force}
    for topic, partition in PARTITIONS:
        found = [by_scope[at] for at in (Scope(topic, partition), Scope(topic), EVERYTHING) if at in by_scope]
        assert intents.holds(topic, partition) is (found or [False])[0]


@given(requests, st.sampled_from(SCOPES), st.booleans())
def test_no_intent_beneath_a_request_is_left_and_the_others_stay(
    asked: list[tuple[Scope, bool]], scope: Scope, is_held_back: bool
) -> None:
    before = after(asked)
    new = before.want(scope, is_held_back=is_held_back)
    left = {each for each in new.in_force if scope.covers(Scope(each.topic, each.partition))}
    assert left <= {Intent(*scope, is_held_back)}
    assert set(new.in_force) - left == {
        each for each in before.in_force if not scope.covers(Scope(each.topic, each.partition))
    }


@given(requests, st.sampled_from(SCOPES), st.booleans())
def test_a_request_changes_nothing_exactly_when_it_is_in_effect_already(
    asked: list[tuple[Scope, bool]], scope: Scope, is_held_back: bool
) -> None:
    before = after(asked)
    new = before.want(scope, is_held_back=is_held_back)
    assert new.want(scope, is_held_back=is_held_back) == new
    topics = [scope.topic] if scope.topic is not None else [*TOPICS, "unheard of"]
    partitions = [scope.partition] if scope.partition is not None else [0, 1, 7, 999]
    inside = {before.holds(topic, partition) for topic in topics for partition in partitions}
    assert (new == before) is (inside == {is_held_back})


@given(requests, requests)
def test_equal_intents_hold_the_same_back_and_others_do_not(
    first: list[tuple[Scope, bool]], second: list[tuple[Scope, bool]]
) -> None:
    one, other = after(first), after(second)
    # What was never named stands for all that is to come.
    probes = [*PARTITIONS, *((topic, 999) for topic in TOPICS), ("unheard of", 3)]
    same = all(one.holds(*each) is other.holds(*each) for each in probes)
    assert (one == other) is same


@given(requests)
def test_everything_is_held_back_only_without_exception(asked: list[tuple[Scope, bool]]) -> None:
    intents = after(asked)
    assert intents.holds_everything is (
        held(intents) == {*PARTITIONS, ("unheard of", 3)} and len(intents.in_force) == 1
    )


def test_intents_are_shown_the_wide_ones_first_and_in_words() -> None:
    asked = [
        (Scope("b"), True),
        (Scope("a", 7), False),
        (Scope("a", 0), True),
        (Scope("a"), True),
        (Scope("a", 0), False),
    ]
    intents = after(asked)
    assert intents.in_force == (Intent("a", None, True), Intent("a", 0, False), Intent("b", None, True))
    assert str(intents) == "a held back, a[0] not, b held back"
    everything = intents.want(EVERYTHING, is_held_back=True).want(Scope("a"), is_held_back=False)
    assert str(everything) == "everything held back, a not"
    assert str(Intents()) == "nothing held back"


def test_only_a_scope_inside_is_covered() -> None:
    assert [other for other in SCOPES if Scope("a", 0).covers(other)] == [Scope("a", 0)]
    assert [other for other in SCOPES if Scope("a").covers(other)] == [Scope("a"), *(Scope("a", n) for n in (0, 1, 7))]
    assert all(EVERYTHING.covers(other) for other in SCOPES)
