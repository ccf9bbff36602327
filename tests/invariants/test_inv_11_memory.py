"""INV-11: memory stays in budget: a lane that is full is paused, and resumed at half."""

from __future__ import annotations

import pytest

from connector.lane.lane import RECORD_OVERHEAD_BYTES
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver, MemoryDriver

A, B = ("t", 0), ("t", 1)
VALUE = b"x" * 100
RECORD_BYTES = RECORD_OVERHEAD_BYTES + len(VALUE)
FETCH_RECORDS = 1000
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.mark.invariant(11)
@every_protocol
def test_a_full_lane_is_paused_and_resumed_at_half_at_its_next_offset(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, lanes_bytes=10 * RECORD_BYTES), Destination()
    destination.hang()
    driver.assign(A)
    with Engine(driver, destination) as engine:
        driver.append(A, range(12), VALUE)
        destination.wait_hanging()
        driver.append(A, range(12, 40), VALUE)
        (lane,) = engine.controller.fleet.lanes.values()
        engine.until(lambda: A in driver.fake.paused)
        engine.until(lambda: lane.is_paused)
        assert driver.fake.wait_served()
        taken = lane.held_bytes // RECORD_BYTES
        assert taken < 40, "nothing was taken while it was paused"
        destination.gate.set()
        engine.until_written(A, range(40))
        engine.until_committed(A, 40)
        engine.until(lambda: not driver.fake.paused and not lane.is_paused)
        again = [
            at
            for call in driver.fake.calls
            if call.name in ("assign", "incremental_assign")
            for _, partition, at in call.partitions
            if partition == 0
        ]
        assert again[1] == taken, "re-assigned where it stopped"


@pytest.mark.invariant(11)
@every_protocol
def test_a_lane_holds_no_more_than_its_share_and_one_fetch(protocol: str) -> None:
    budget = 400 * RECORD_BYTES
    driver, destination = KafkaDriver(protocol, lanes_bytes=budget), Destination()
    most = 0

    def measure(_: object) -> None:
        nonlocal most
        most = max(most, *(lane.held_bytes for lane in list(engine.controller.fleet.lanes.values())))

    destination.behave = measure
    driver.append(A, range(5000), VALUE)
    driver.append(B, range(5000), VALUE)
    driver.assign(A, B)
    engine = Engine(driver, destination)
    with engine:
        engine.until_written(A, range(5000))
        engine.until_written(B, range(5000))
        assert {lane.high_bytes for lane in engine.controller.fleet.lanes.values()} == {budget // 2}
    assert 0 < most <= budget // 2 + FETCH_RECORDS * RECORD_BYTES


@pytest.mark.invariant(11)
@every_protocol
def test_one_lane_that_is_full_pauses_no_other(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, lanes_bytes=20 * RECORD_BYTES), Destination()
    destination.hang(partition=0)
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2) as engine:
        driver.append(A, range(30), VALUE)
        destination.wait_hanging()
        engine.until(lambda: driver.fake.paused == {A})
        driver.append(B, range(8), VALUE)
        engine.until_written(B, range(8))
        assert driver.fake.paused == {A}
        destination.gate.set()
        engine.until_written(A, range(30))


@pytest.mark.invariant(11)
@every_protocol
def test_a_pause_is_never_remembered_a_partition_that_returns_flows(protocol: str) -> None:
    driver = KafkaDriver(protocol, lanes_bytes=10 * RECORD_BYTES, drain_timeout=0.05)
    destination = Destination()
    destination.hang()
    driver.assign(A)
    with Engine(driver, destination, drain_timeout=0.05) as engine:
        driver.append(A, range(12), VALUE)
        destination.wait_hanging()
        engine.until(lambda: A in driver.fake.paused)
        for _ in range(2):
            driver.revoke(A)
            driver.assign(A)
        assert driver.fake.wait_served()
        destination.gate.set()
        engine.until(lambda: destination.offsets(A)[-1:] == [11])
        driver.append(A, [12])
        engine.until_committed(A, 13)
        engine.until(lambda: not driver.fake.paused)


@pytest.mark.invariant(11)
def test_the_source_in_memory_stops_at_the_high_mark_and_goes_on_at_the_low_one() -> None:
    driver, destination = MemoryDriver(lane_bytes=100 * RECORD_BYTES), Destination()
    destination.hang()
    driver.append(A, range(3000), VALUE)
    driver.assign(A)
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        (lane,) = engine.controller.fleet.lanes.values()
        assert lane.held_bytes <= 600 * RECORD_BYTES
        assert lane.is_paused
        destination.gate.set()
        engine.until_written(A, range(3000))
        engine.until(lambda: not lane.is_paused)


@pytest.mark.invariant(11)
def test_bytes_of_everything_that_ends_are_given_back() -> None:
    driver = KafkaDriver()
    driver.append(A, range(500), VALUE)
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_committed(A, 500)
        engine.until(lambda: [lane.held_bytes for lane in engine.controller.fleet.lanes.values()] == [0])
