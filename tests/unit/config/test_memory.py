"""The memory budget: the shares stay within it, and the default follows the container."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.api.errors import ConfigError
from connector.config.memory import (
    STANDARD_BYTES,
    container_limit_bytes,
    default_budget_bytes,
    divide,
    least_budget_bytes,
)

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


@pytest.mark.invariant(11)
@given(brokers=st.integers(1, 500), extra=st.integers(0, 2**34))
def test_shares_never_exceed_the_budget_and_leave_more_than_half_to_the_lanes(brokers: int, extra: int) -> None:
    budget = least_budget_bytes(brokers) + extra
    shares = divide(budget, brokers)
    assert shares.client_queue_bytes + brokers * shares.fetch_max_bytes + shares.lanes_bytes <= budget
    assert shares.lanes_bytes > budget // 2
    assert shares.fetch_max_bytes >= MIB  # the client refuses less than its message.max.bytes
    assert shares.client_queue_bytes >= MIB


@given(brokers=st.integers(1, 500), missing=st.integers(1, 16 * MIB))
def test_a_budget_that_is_too_small_is_refused_and_the_one_that_the_error_names_is_taken(
    brokers: int, missing: int
) -> None:
    with pytest.raises(ConfigError) as refused:
        divide(least_budget_bytes(brokers) - missing, brokers)
    named = re.search(r"CONNECTOR_MEMORY_BUDGET to (\d+)MiB", str(refused.value))
    assert named
    divide(int(named[1]) * MIB, brokers)


@pytest.mark.parametrize("file", ["sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"])
def test_the_default_budget_is_two_fifths_of_a_small_container(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(f"{100 * MIB}\n")
    assert default_budget_bytes(tmp_path) == 40 * MIB


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n", f"{64 * 2**30}\n"])
def test_the_default_budget_is_the_standard_one_without_a_tight_limit(tmp_path: Path, limit: str) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(limit)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert default_budget_bytes(tmp_path) == min(STANDARD_BYTES, physical * 2 // 5)


def test_the_default_budget_needs_no_cgroup_files(tmp_path: Path) -> None:
    assert 0 < default_budget_bytes(tmp_path) <= STANDARD_BYTES


@pytest.mark.parametrize("file", ["sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(
    ("text", "limit"),
    [(f"{100 * MIB}\n", 100 * MIB), ("max\n", None), ("9223372036854771712\n", None)],  # version 1 has no word for none
)
def test_the_containers_limit_is_known_or_absent(tmp_path: Path, file: str, text: str, limit: int | None) -> None:
    assert container_limit_bytes(tmp_path) is None
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert container_limit_bytes(tmp_path) == limit
