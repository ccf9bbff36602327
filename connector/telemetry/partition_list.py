"""Lists of partitions as a log line shows them: `orders[0-3,7]`, and never thousands of numbers. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MOST_TOPICS = 20
_MOST_RANGES = 20  # of one topic


def partition_list(partitions: Iterable[tuple[str, int]]) -> list[str]:
    """Return one text for each topic, in order; what goes beyond the limits is counted: `orders[0,2,4,…+97]`."""
    topics = [(topic, [key[1] for key in keys]) for topic, keys in groupby(sorted(partitions), lambda key: key[0])]
    shown = [f"{topic}[{_numbers(numbers)}]" for topic, numbers in topics[:_MOST_TOPICS]]
    rest = len(topics) - len(shown)
    return [*shown, f"…+{rest} topics"] if rest else shown


def _numbers(numbers: Sequence[int]) -> str:
    ranges = list(_ranges(numbers))
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:_MOST_RANGES]]
    rest = sum(last - first + 1 for first, last in ranges[_MOST_RANGES:])
    return ",".join([*shown, f"…+{rest}"] if rest else shown)


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of consecutive numbers."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield members[0], members[-1]
