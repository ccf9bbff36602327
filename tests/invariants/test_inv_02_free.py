"""INV-2: the consumer thread is always free to poll."""

from __future__ import annotations

import pytest

from connector.lane.lane import RECORD_OVERHEAD_BYTES
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver

A, B = ("t", 0), ("t", 1)


@pytest.mark.invariant(2)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_sink_that_hangs_pauses_its_partition_and_the_consumer_thread_polls_and_commits_on(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, lanes_bytes=8 * RECORD_OVERHEAD_BYTES), Destination()
    destination.hang(A[1])
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2) as engine:
        driver.append(A, range(50))
        destination.wait_hanging()
        engine.until(lambda: A in driver.fake.paused, "the full lane is paused")
        for round_ in range(3):
            seen = driver.source.seen
            driver.append(B, [round_])
            engine.until_written(B, range(round_ + 1))
            engine.until_committed(B, round_ + 1)
            engine.until(lambda: driver.source.seen > seen, "the consumer thread turns")  # noqa: B023  # waited for here
        assert destination.offsets(A) == []
        destination.gate.set()
        engine.until_written(A, range(50))
