"""One byte budget, and how it is divided between the client's prefetch, its fetches under way, and the lanes.

`CONNECTOR_MEMORY_BUDGET` bounds what records may occupy (INV-11). Pure, save that the default looks at the limit of
the container. Called at start.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from connector.api.errors import ConfigError

_MIB = 2**20
STANDARD_BYTES = 256 * _MIB
LEAST_BYTES = 16 * _MIB
_LEAST_PER_BROKER_BYTES = 4 * _MIB
_LEAST_FETCH_BYTES = _MIB  # the client refuses less than its message.max.bytes, 1000000
_MOST_FETCH_BYTES = 16 * _MIB  # more gains nothing: a fetch asks for 1 MiB of each partition
_CGROUP_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2, version 1


@dataclass(frozen=True, slots=True)
class Shares:
    """The parts of the budget, in bytes: `client_queue + brokers * fetch_max + lanes` is never more than the whole."""

    client_queue_bytes: int
    fetch_max_bytes: int  # for each broker
    lanes_bytes: int  # buffers of all lanes and the batches made from them


def least_budget_bytes(brokers: int) -> int:
    """Return the smallest budget that works with so many brokers."""
    return max(LEAST_BYTES, _LEAST_PER_BROKER_BYTES * brokers)


def divide(budget_bytes: int, brokers: int) -> Shares:
    """Divide the budget: an eighth for the client's queue, about an eighth for fetches, the rest for the lanes.

    The client's part is small because its limits count compressed bytes; the lanes count what records really occupy.

    Args:
        budget_bytes: The whole.
        brokers: How many brokers the cluster has; the client fetches from each of them at the same time.

    Raises:
        ConfigError: The budget is too small for so many brokers.
    """
    least = least_budget_bytes(brokers)
    if budget_bytes < least:
        raise ConfigError(
            f"A memory budget of {budget_bytes / _MIB:g}MiB is too small for {brokers} broker(s), from which the "
            f"client fetches at the same time. Set CONNECTOR_MEMORY_BUDGET to {least // _MIB}MiB or more."
        )
    client_queue = budget_bytes // 8
    fetch_max = min(_MOST_FETCH_BYTES, max(_LEAST_FETCH_BYTES, budget_bytes // 8 // max(1, brokers)))
    return Shares(client_queue, fetch_max, budget_bytes - client_queue - brokers * fetch_max)


def default_budget_bytes(root: Path = Path("/")) -> int:
    """Return the smaller of 256 MiB and 40 % of the container's memory limit, or of the machine's memory."""
    limit = container_limit_bytes(root)
    return min(STANDARD_BYTES, (_machine_bytes() if limit is None else limit) * 2 // 5)


def container_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the container's memory limit; None where there is none, or none below the machine's memory."""
    limits: list[int] = []
    for name in _CGROUP_LIMITS:
        try:
            text = (root / name).read_text().strip()
        except OSError:  # this system has no such file
            continue
        if text.isdecimal():  # version 2 says "max" where there is none
            limits.append(int(text))
    # Version 1 writes a number beyond all memory where there is none.
    return min((limit for limit in limits if limit < _machine_bytes()), default=None)


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
