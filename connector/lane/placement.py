"""Which pipeline takes which lane: the one that has the fewest. Pure; the controller calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


def place(lanes: Sequence[T], loads: Sequence[int]) -> list[int]:
    """Return a pipeline's number for each lane, given how many lanes each pipeline has already."""
    counts = list(loads)
    chosen = []
    for _ in lanes:
        least = min(range(len(counts)), key=counts.__getitem__)
        counts[least] += 1
        chosen.append(least)
    return chosen
