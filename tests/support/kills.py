"""Copies of a group are killed under load, at random moments."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.group import committed_positions, wait_until_committed_beyond
from tests.support.oracle import CommittedSampler, wait_until_committed
from tests.support.process import wait_until
from tests.support.scenario import Traffic, held

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.connector import ConnectorProcess
    from tests.support.kafka import Kafka

SEED = random.randrange(2**32)  # in the message of a failure
_RANDOM = random.Random(SEED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen: committed positions that went back, and how many records were produced."""

    went_back: list[str]
    produced: int


def kill_under_load(
    kafka: Kafka,
    topics: Sequence[str],
    group: str,
    copies: Sequence[ConnectorProcess],
    on_kill: Callable[[ConnectorProcess], None],
    *,
    rounds: int,
    value: bytes = b"x" * 100,
    pause: float = 0.1,
) -> Outcome:
    """Run the copies, kill two at random moments in each round, start them again, and end them when all is committed.

    Args:
        on_kill: Called with the copy when it is dead; nobody has its partitions yet.
        value: Of every record.
        pause: Between two portions of 200 records, in seconds; there are 600 of them, which have to last.
    """
    moments = threading.Event()  # never set: its wait is the random moment
    with ExitStack() as stack:
        for copy in copies:
            stack.enter_context(copy)
        wait_until(lambda: all(held(copy) for copy in copies), timeout=60, what="every copy has partitions")
        sampler = stack.enter_context(CommittedSampler(kafka, group, topics))
        traffic = stack.enter_context(Traffic(kafka, topics, portion=200, pause=pause, value=value))
        for _ in range(rounds):
            wait_until_committed_beyond(kafka, group, committed_positions(kafka, group, topics))
            victims = _RANDOM.sample(copies, 2)
            for victim in victims:  # the second dies in the rebalance that the first one's end has begun, or before it
                moments.wait(_RANDOM.uniform(0, 1.5))
                victim.kill()
                on_kill(victim)
            for victim in victims:
                starts = len(victim.events("admin_started"))
                victim.start()
                victim.wait_for_event("admin_started", count=starts + 1)  # from here on SIGTERM is a graceful end
        wait_until_committed_beyond(kafka, group, committed_positions(kafka, group, topics))
        traffic.stop()
        wait_until_committed(kafka, group, topics)
        codes = [copy.terminate() for copy in copies]
    assert codes == [0] * len(copies)
    assert sampler.samples > 0
    return Outcome(sampler.went_back, traffic.produced)
