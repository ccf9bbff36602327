"""INV-2: the consumer thread is always free to poll, and no wait closes a circle through it."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

import pytest

from connector import ExitCode, TransientError
from connector.api.source_event import LanesRevoked
from connector.lane.lane import RECORD_OVERHEAD_BYTES
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.worker import PipelineSettings
from connector.sink.retry import Backoff
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver, MemoryDriver, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector import Batch
    from connector.testing.client import Key
    from tests.support.engine import Driver

A, B = ("t", 0), ("t", 1)
KEYS: list[Key] = [("t", partition) for partition in range(4)]
QUICK = PipelineSettings(
    limits=BatchLimits(rows=50, linger_seconds=0.001), backoff=Backoff(initial=0.001, maximum=0.004)
)
_STEPS = 300


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


@pytest.mark.invariant(2)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_consumer_thread_takes_its_turns_while_every_sink_hangs(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol), Destination()
    driver.append(A, range(3))
    driver.assign(A)
    destination.hang()
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        turns = {driver.kafka_source.seen}
        engine.until(lambda: turns.add(driver.kafka_source.seen) or len(turns) > 3)  # type: ignore[func-returns-value]
        driver.append(A, range(3, 2000))
        engine.until(lambda: next(iter(engine.controller.fleet.lanes.values())).held_bytes > 1990 * 400)


@pytest.mark.invariant(2)
def test_the_controller_listens_while_the_source_waits_in_a_revocation() -> None:
    driver, destination = MemoryDriver(), Destination()
    driver.append(A, range(3))
    driver.assign(A)
    destination.hang()
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        driver.revoke(A)
        engine.until(lambda: bool(engine.events(LanesRevoked)))
        engine.controller.request_stop()
        engine.until(lambda: engine.controller.state.value == "draining")
        destination.gate.set()
        assert engine.join().code is ExitCode.COMPLETED


class _Chaos:
    """A sink with delays and failures, and a group that takes and gives partitions at random."""

    def __init__(self, seed: int, *, is_rough: bool) -> None:
        self.is_rough = is_rough  # the sink fails, and lanes are lost
        self.random = random.Random(seed)
        self.destination = Destination()
        self.destination.behave = self._behave
        self._lock = threading.Lock()  # Guards random, which several pipelines use; leaf lock.

    def _behave(self, _: Batch) -> None:
        with self._lock:
            dice = self.random.random()
        if dice < 0.15 and self.is_rough:
            raise TransientError("down")
        if dice < 0.5:
            time.sleep(dice / 200)  # the sink's own time, not a wait of the test

    def drive(self, driver: Driver, engine: Engine, is_served: Callable[[], bool], *, is_eager: bool) -> dict[Key, int]:
        """Append, take, give and lose; return how many records each partition has."""
        counts = dict.fromkeys(KEYS, 0)
        held: set[Key] = set()
        for _ in range(_STEPS):
            with self._lock:
                key, size = self.random.choice(KEYS), self.random.randrange(1, 60)
                dice = self.random.random()
                chosen = {each for each in KEYS if self.random.random() < 0.6}
            driver.append(key, range(counts[key], counts[key] + size))
            counts[key] += size
            if dice < 0.3:
                held = self._rebalance(driver, held, chosen, is_lost=self.is_rough and dice < 0.08, is_eager=is_eager)
            if dice > 0.7:  # else several steps are served by one call
                eventually(is_served, "the steps are served")
        self._rebalance(driver, held, set(KEYS), is_lost=False, is_eager=is_eager)
        for key in KEYS:
            engine.until_committed(key, counts[key])
        return counts

    @staticmethod
    def _rebalance(driver: Driver, held: set[Key], chosen: set[Key], *, is_lost: bool, is_eager: bool) -> set[Key]:
        if is_lost:
            if held:
                driver.lose(*held)
            leaving = held
        else:
            leaving = held if is_eager else held - chosen
            if leaving:
                driver.revoke(*leaving)
        coming = chosen if is_eager or is_lost else chosen - held
        if is_eager or coming:
            (driver.assign if is_eager or is_lost or not held else driver.add)(*sorted(coming))
        return chosen


@pytest.mark.invariant(2)
@pytest.mark.invariant(8)
@pytest.mark.invariant(9)
@pytest.mark.parametrize("is_rough", [True, False])
@pytest.mark.parametrize("name", ["memory", *PROTOCOLS])
def test_random_rebalances_lose_nothing_repeat_only_what_was_not_drained_and_always_end(
    name: str, is_rough: bool
) -> None:
    chaos = _Chaos(len(name), is_rough=is_rough)
    driver: MemoryDriver | KafkaDriver
    if name == "memory":
        driver = MemoryDriver(lane_bytes=50_000)
        is_served = driver.memory._steps.empty
    else:
        driver = KafkaDriver(name, lanes_bytes=200_000)
        is_served = driver.fake.wait_served
    with Engine(driver, chaos.destination, pipelines=2, settings=QUICK) as engine:
        counts = chaos.drive(driver, engine, is_served, is_eager=name == "range")
        chaos.destination.behave = lambda _: None
        report = engine.stop()
        assert report.code is ExitCode.COMPLETED, report
    for key, count in counts.items():
        assert set(chaos.destination.offsets(key)) == set(range(count)), "nothing is lost"
        assert driver.committed(key) == count
    if not is_rough:
        assert len(chaos.destination.written) == len(set(chaos.destination.written)), "a drained lane is not read again"
    by_lane: dict[int, list[int]] = {}
    for batch in chaos.destination.batches:
        by_lane.setdefault(batch.metadata.lane, []).extend(batch.column("offset"))
    for offsets in by_lane.values():
        assert offsets == sorted(set(offsets)), "each lane is in order"
