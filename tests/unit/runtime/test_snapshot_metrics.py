"""The gauges that follow the lanes: bounded in number, gone with their partition, and true."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest import mock

from connector import TransientError
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.decode import Format
from connector.pipeline.screen import Screen
from connector.pipeline.worker import PipelineSettings
from connector.runtime.snapshot import StatusBoard
from connector.sink.retry import Backoff
from tests.support.engine import Engine, KafkaDriver, MemoryDriver
from tests.support.registry import FakeSchemas, framed

if TYPE_CHECKING:
    from connector import Batch
    from connector.telemetry.metrics import Metrics

A, B, C = ("t", 0), ("t", 1), ("u", 0)
LAG = "connector_consumer_lag_records"
NEVER_AGAIN = PipelineSettings(limits=BatchLimits(linger_seconds=0.0), backoff=Backoff(initial=60, maximum=60))


def watched(driver: KafkaDriver | MemoryDriver, settings: PipelineSettings | None = None) -> Engine:
    return Engine(driver, settings=settings, publish=StatusBoard("g", driver.metrics).publish)


def shown(driver: KafkaDriver | MemoryDriver, name: str, **labels: str) -> float | None:
    return driver.metrics.registry.get_sample_value(f"connector_{name}", labels)


def series(metrics: Metrics, name: str) -> set[str]:
    """Return the partitions that have a series of this gauge."""
    text = metrics.render("")[0].decode()
    return {found[1] for line in text.splitlines() if (found := re.match(rf'{name}{{partition="(\d+)"', line))}


def test_5000_partitions_have_a_bounded_number_of_series_and_the_next_one_takes_the_room_of_one_that_left() -> None:
    driver = MemoryDriver()
    with Engine(driver) as engine:
        empty = len(driver.metrics.render("")[0].splitlines())
        board = StatusBoard("g", driver.metrics)
        driver.assign(*(("t", number) for number in range(5000)))
        engine.until(lambda: len(engine.controller.fleet.lanes) == 5000)
        board.publish(engine.controller)
        assert series(driver.metrics, "connector_watermark_age_seconds") == {str(number) for number in range(500)}
        assert shown(driver, "partition_series_omitted") == 4500
        assert shown(driver, "assigned_lanes") == 5000
        # Four gauges for each partition at most, and what a topic and a pipeline bring.
        assert len(driver.metrics.render("")[0].splitlines()) - empty < 4 * 500 + 100
        driver.lose(*(("t", number) for number in range(10)))
        engine.until(lambda: len(engine.controller.fleet.lanes) == 4990)
        board.publish(engine.controller)
        assert series(driver.metrics, "connector_watermark_age_seconds") == {str(number) for number in range(10, 510)}
        assert shown(driver, "partition_series_omitted") == 4490


def test_the_topics_lag_is_the_sum_of_what_is_known_also_of_partitions_without_series() -> None:
    driver = KafkaDriver(topics={"t": 3})
    driver.metrics.partition_limit = 1
    driver.append(A, range(2))
    driver.assign(A, B, ("t", 2))
    with watched(driver) as engine:
        engine.until_committed(A, 2)
        engine.until_committed(B, 0)
        assert shown(driver, "topic_lag_records", topic="t") is None
        ends = '"0": {"ls_offset": 10}, "1": {"ls_offset": 5}, "2": {"ls_offset": -1}'
        driver.fake.statistics(f'{{"topics": {{"t": {{"partitions": {{{ends}}}}}}}}}')
        engine.until(lambda: shown(driver, "topic_lag_records", topic="t") == 8 + 5)
        assert series(driver.metrics, LAG) == {"0"}
        assert shown(driver, "consumer_lag_records", topic="t", partition="0") == 8


def test_a_partition_that_left_has_no_series_whenever_the_status_is_taken() -> None:
    driver = KafkaDriver()
    driver.append(A, range(3))
    driver.append(B, range(3))
    driver.assign(A, B)
    with mock.patch("connector.runtime.controller._PUBLISH_SECONDS", 0.0), watched(driver) as engine:
        engine.until_committed(A, 3)
        engine.until_committed(B, 3)
        for name in ("committed_position", "watermark_age_seconds"):
            engine.until(lambda: {"0", "1"} == series(driver.metrics, f"connector_{name}"))  # noqa: B023
        driver.revoke(A)
        engine.until(lambda: len(engine.controller.fleet.lanes) == 1)
        driver.append(B, range(3, 6))
        engine.until_committed(B, 6)  # and a publication after it
        engine.until(lambda: shown(driver, "committed_position", topic="t", partition="1") == 6)
        for name in ("committed_position", "watermark_age_seconds"):
            assert series(driver.metrics, f"connector_{name}") == {"1"}
    assert series(driver.metrics, "connector_watermark_age_seconds") == set()


def test_lanes_are_counted_by_what_they_do_and_each_is_counted_once() -> None:
    driver = MemoryDriver()
    with watched(driver, NEVER_AGAIN) as engine:

        def fail_one(batch: Batch) -> None:
            if batch.metadata.partition == 1:
                raise TransientError("down")

        engine.destination.behave = fail_one
        driver.append(A, [0])
        driver.append(B, [0])
        driver.assign(A, B, C)
        engine.until(lambda: shown(driver, "lanes", state="retrying") == 1)
        engine.until(lambda: shown(driver, "lanes", state="flowing") == 2)
        states = ("starting", "flowing", "paused", "held_back", "retrying", "awaiting_schema", "draining")
        assert sum(shown(driver, "lanes", state=state) or 0 for state in states) == 3


def test_a_lane_whose_schema_cannot_be_had_is_not_one_whose_sink_fails() -> None:
    schemas = FakeSchemas()
    schemas.find = mock.Mock(side_effect=TransientError("the registry is down"))  # type: ignore[method-assign]
    screen = Screen(value_format=Format.AVRO, schemas=schemas)
    driver = MemoryDriver()
    with watched(driver, replace(NEVER_AGAIN, screen=screen)) as engine:
        driver.append(A, [0], framed(1, b"a"))
        driver.assign(A)
        engine.until(lambda: shown(driver, "lanes", state="awaiting_schema") == 1)
        assert shown(driver, "lanes", state="retrying") == 0


def test_what_a_failing_sink_does_not_take_ages_by_topic_and_is_memory_of_the_sink() -> None:
    driver = MemoryDriver()
    with watched(driver, NEVER_AGAIN) as engine:

        def fail(batch: Batch) -> None:
            if batch.metadata.topic == "t":
                raise TransientError("down")

        engine.destination.behave = fail
        driver.append(A, range(10))
        driver.append(C, range(10))
        driver.assign(A, C)
        engine.until_committed(C, 10)
        engine.until(lambda: (shown(driver, "oldest_unacknowledged_seconds", topic="t") or 0) > 0.3)
        assert shown(driver, "oldest_unacknowledged_seconds", topic="u") == 0
        engine.until(lambda: (shown(driver, "memory_bytes", part="sink") or 0) > 0)
        assert shown(driver, "memory_bytes", part="lanes") == 0
        taken = shown(driver, "memory_bytes", part="sink")
        driver.append(A, range(10, 20))
        engine.until(lambda: shown(driver, "memory_bytes", part="lanes") == taken)  # they wait behind what has failed
        assert shown(driver, "memory_bytes", part="sink") == taken
        assert shown(driver, "memory_bytes", part="client_queue") is None
