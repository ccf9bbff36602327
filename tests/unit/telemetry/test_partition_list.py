from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from connector.telemetry.partition_list import partition_list

keys = st.sets(st.tuples(st.sampled_from(["orders", "payments", "a-b.c_d"]), st.integers(0, 30)), max_size=30)


def unfolded(shown: list[str]) -> set[tuple[str, int]]:
    """Read a list that leaves nothing out."""
    found = set()
    for each in shown:
        match = re.fullmatch(r"(.+)\[(.+)\]", each)
        assert match is not None
        for part in match[2].split(","):
            first, _, last = part.partition("-")
            found |= {(match[1], number) for number in range(int(first), int(last or first) + 1)}
    return found


@given(keys)
def test_a_short_list_names_every_partition_once_in_order(partitions: set[tuple[str, int]]) -> None:
    shown = partition_list(partitions)
    assert unfolded(shown) == partitions
    assert shown == sorted(shown)


def test_runs_are_folded() -> None:
    assert partition_list([("b", 1), ("a", 7), ("a", 0), ("a", 2), ("a", 1)]) == ["a[0-2,7]", "b[1]"]
    assert partition_list([]) == []


def test_a_long_list_stays_short_and_says_how_much_it_leaves_out() -> None:
    every_other = [("orders", number) for number in range(0, 10_000, 2)]
    assert partition_list(every_other) == [f"orders[{','.join(str(2 * n) for n in range(20))},…+4980]"]
    many = [(f"topic-{number:03}", 0) for number in range(200)]
    assert len(partition_list(many)) == 21
    assert partition_list(many)[-1] == "…+180 topics"
    everything = [(topic, partition) for topic, _ in many for partition in range(0, 200, 3)]
    assert len(str(partition_list(everything))) < 3000
