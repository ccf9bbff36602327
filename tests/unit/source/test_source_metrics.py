"""Where the consumer thread's time goes, what rebalances cost, and what the client's statistics say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from connector.source.client_statistics import ClientStatistics
from connector.source.position import TopicFacts
from connector.telemetry.metrics import Metrics
from tests.support.engine import Engine, KafkaDriver

if TYPE_CHECKING:
    from collections.abc import Mapping

A, B, C = ("t", 0), ("t", 1), ("t", 2)
ROUND_TRIP = "client_broker_round_trip_seconds"


def shown(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"connector_{name}", labels)


def seconds(metrics: Metrics) -> Mapping[str, float]:
    activities = ("poll", "route", "commit", "rebalance", "other")
    return {each: shown(metrics, "source_seconds_total", activity=each) or 0.0 for each in activities}


def test_the_activities_of_the_consumer_thread_add_up_to_its_life() -> None:
    started = time.perf_counter()
    driver = KafkaDriver()
    made = time.perf_counter()
    with Engine(driver) as engine:
        driver.append(A, range(1000))
        driver.assign(A, B)
        engine.until_committed(A, 1000)
        driver.revoke(B)
        engine.until(lambda: len(engine.controller.fleet.lanes) == 1)
        least = time.perf_counter() - made
        spent = seconds(driver.metrics)
        assert least <= sum(spent.values()) <= time.perf_counter() - started
        engine.until(lambda: (now := seconds(driver.metrics))["poll"] > 0.5 * sum(now.values()), "it waits for Kafka")
    assert all(spent.values()), spent


def test_a_drain_is_time_of_the_rebalance_while_it_goes_on() -> None:
    driver = KafkaDriver()
    driver.append(A, [0])
    driver.assign(A)
    with Engine(driver) as engine:
        engine.destination.hang()
        engine.destination.wait_hanging()
        driver.revoke(A)
        engine.until(lambda: seconds(driver.metrics)["rebalance"] > 0.2)
        assert shown(driver.metrics, "rebalance_seconds_count") == 1  # of the assignment: this one is not over
        engine.destination.gate.set()
        engine.until(lambda: shown(driver.metrics, "rebalance_seconds_count") == 2)
    assert (shown(driver.metrics, "rebalance_seconds_sum") or 0) > 0.2


def test_a_drain_outside_of_a_rebalance_is_its_time_too_and_no_callback() -> None:
    driver = KafkaDriver(topics={"t": 1})
    driver.append(A, [0])
    driver.assign(A)
    with Engine(driver) as engine:
        engine.destination.hang()
        engine.destination.wait_hanging()
        driver.cluster.topics["t"] = TopicFacts(1, "id of its successor")
        driver.cluster.look()
        engine.until(lambda: seconds(driver.metrics)["rebalance"] > 0.2)
        assert shown(driver.metrics, "rebalance_seconds_count") == 1


def test_lanes_that_are_brought_back_after_a_crash_are_not_counted_as_taken_by_the_group() -> None:
    driver = KafkaDriver("cooperative-sticky")
    driver.append(A, [0])
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_committed(A, 1)
        [lane] = engine.controller.fleet.lanes
        driver.source.restart_lanes({lane: None})
        engine.until(lambda: bool(engine.controller.fleet.lanes) and lane not in engine.controller.fleet.lanes)
        assert [shown(driver.metrics, "rebalances_total", event=each) for each in ("revoked", "lost")] == [0, 0]
        driver.lose()
        engine.until(lambda: shown(driver.metrics, "rebalances_total", event="lost") == 1)
        driver.assign(B)
        engine.until(lambda: bool(engine.controller.fleet.lanes))
        driver.revoke(B)
        engine.until(lambda: shown(driver.metrics, "rebalances_total", event="revoked") == 1)


def last_rebalance(metrics: Metrics) -> tuple[float | None, ...]:
    changes = ("gained", "revoked", "lost", "kept")
    return tuple(shown(metrics, "last_rebalance_lanes", change=change) for change in changes)


@pytest.mark.parametrize("protocol", ["cooperative-sticky", "consumer"])
def test_the_last_rebalance_is_the_last_callback_that_moved_lanes(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    metrics = driver.metrics
    with Engine(driver) as engine:
        assert last_rebalance(metrics) == (None, None, None, None)
        driver.assign(A, B)
        engine.until(lambda: last_rebalance(metrics) == (2, 0, 0, 0))
        driver.revoke(B)
        driver.add()  # an empty one, which moves nothing
        engine.until(lambda: shown(metrics, "rebalance_seconds_count") == 3)
        assert last_rebalance(metrics) == (0, 1, 0, 1)
        driver.add(C)
        engine.until(lambda: last_rebalance(metrics) == (1, 0, 0, 1))
        assert 0 < (shown(metrics, "last_rebalance_seconds") or 0) < 5
        assert abs((shown(metrics, "last_rebalance_timestamp_seconds") or 0) - time.time()) < 60
        driver.lose()
        engine.until(lambda: last_rebalance(metrics) == (0, 0, 2, 0))


def test_what_an_eager_group_takes_and_then_brings_is_one_rebalance() -> None:
    driver = KafkaDriver("range")
    metrics = driver.metrics
    with Engine(driver) as engine:
        driver.assign(A, B)
        engine.until(lambda: last_rebalance(metrics) == (2, 0, 0, 0))
        driver.revoke()
        engine.until(lambda: last_rebalance(metrics) == (0, 2, 0, 0))
        taking = shown(metrics, "last_rebalance_seconds") or 0
        driver.assign(A)
        engine.until(lambda: last_rebalance(metrics) == (1, 2, 0, 0))
        assert (shown(metrics, "last_rebalance_seconds") or 0) > taking
        driver.assign(A, C)  # nobody has revoked what it replaces
        engine.until(lambda: last_rebalance(metrics) == (2, 0, 1, 0))


def test_each_commit_that_gets_a_result_is_timed_be_it_asynchronous_or_not() -> None:
    driver = KafkaDriver()
    metrics = driver.metrics
    with Engine(driver) as engine:
        driver.append(A, range(3))
        driver.assign(A)
        engine.until_committed(A, 3)
        engine.until(lambda: (shown(metrics, "commit_seconds_count") or 0) >= 1)
        driver.fake.hold_answers()
        driver.append(A, range(3, 5))
        engine.until_committed(A, 5)  # stored, and not answered
        before = shown(metrics, "commit_seconds_count") or 0
        driver.fake.release_answers()
        engine.until(lambda: shown(metrics, "commit_seconds_count") == before + 1)
        driver.fake.fail_commit("COORDINATOR_NOT_AVAILABLE")
        driver.append(A, [5])
        engine.until(lambda: (shown(metrics, "commits_total", outcome="retry", code="COORDINATOR_NOT_AVAILABLE")) == 1)
        assert (shown(metrics, "commit_seconds_count") or 0) >= before + 2
        count = len(driver.commits())
        engine.until(lambda: shown(metrics, "commit_seconds_count") == len(driver.commits()) >= count)


def window(count: int, total: int = 0, p50: int = 0, p99: int = 0, largest: int = 0) -> dict[str, int]:
    return {"cnt": count, "sum": total, "p50": p50, "p99": p99, "max": largest}


def broker(node: int, rtt: dict[str, int], throttle: dict[str, int] | None = None, **facts: Any) -> dict[str, Any]:
    throttled = throttle or window(0)
    return {"nodeid": node, "source": "learned", "state": "UP", "rtt": rtt, "throttle": throttled, **facts}


def test_round_trips_are_seconds_of_the_last_interval_and_sums_since_the_start() -> None:
    metrics = Metrics()
    statistics = ClientStatistics(metrics)
    statistics.show({"brokers": {"one:9092/1": broker(1, window(4, 40_000, 9_000, 20_000))}})
    assert shown(metrics, ROUND_TRIP, broker="1", quantile="0.5") == 0.009
    assert shown(metrics, ROUND_TRIP, broker="1", quantile="0.99") == 0.02
    statistics.show({"brokers": {"one:9092/1": broker(1, window(1, 10_000, 10_000, 10_000))}})
    assert shown(metrics, ROUND_TRIP, broker="1", quantile="0.99") == 0.01
    assert shown(metrics, f"{ROUND_TRIP}_sum", broker="1") == 0.05
    assert shown(metrics, f"{ROUND_TRIP}_count", broker="1") == 5
    statistics.show({"brokers": {"one:9092/1": broker(1, window(0))}})
    assert shown(metrics, ROUND_TRIP, broker="1", quantile="0.99") is None  # nobody has measured a zero
    assert shown(metrics, f"{ROUND_TRIP}_count", broker="1") == 5


def test_only_brokers_of_the_cluster_are_shown_and_one_that_left_is_gone() -> None:
    metrics = Metrics()
    statistics = ClientStatistics(metrics)
    shown_now = {
        "one:9092/1": broker(1, window(1, 1, 1, 1), window(2, 300, 0, 0, 250)),
        "two:9092/2": broker(2, window(0), state="TRY_CONNECT"),
        "three:9092/3": broker(3, window(0), state="INIT"),
        "seed:9092/bootstrap": broker(-1, window(1, 1, 1, 1), source="configured"),
        "GroupCoordinator": broker(1, window(1, 1, 1, 1), source="logical"),
    }
    statistics.show({"brokers": shown_now})
    up = "client_broker_up"
    assert [shown(metrics, up, broker=each) for each in ("1", "2", "3", "-1")] == [1, 0, None, None]
    assert shown(metrics, "client_broker_throttle_seconds", broker="1") == 0.25
    assert shown(metrics, "client_broker_throttle_seconds", broker="2") == 0
    assert shown(metrics, f"{ROUND_TRIP}_count", broker="1") == 1
    statistics.show({"brokers": {"two:9092/2": broker(2, window(0))}})
    assert [shown(metrics, up, broker=each) for each in ("1", "2")] == [None, 1]
    assert shown(metrics, f"{ROUND_TRIP}_count", broker="1") is None


def test_brokers_are_down_not_gone_when_the_client_has_lost_them_all() -> None:
    metrics = Metrics()
    statistics = ClientStatistics(metrics)
    seed = {"seed:9092/bootstrap": broker(-1, window(0), source="configured", state="CONNECT")}
    one, two, idle = broker(1, window(1, 1, 1, 1)), broker(2, window(0)), broker(3, window(0), state="INIT")
    statistics.show({"brokers": seed})
    assert shown(metrics, "client_broker_up", broker="1") is None
    statistics.show({"brokers": {"one:9092/1": one, "two:9092/2": two, "three:9092/3": idle}})
    for _ in range(2):
        statistics.show({"brokers": seed})
        assert [shown(metrics, "client_broker_up", broker=each) for each in ("1", "2", "3")] == [0, 0, None]
        assert shown(metrics, f"{ROUND_TRIP}_count", broker="1") is None
    statistics.show({"brokers": {"one:9092/1": one}})
    assert [shown(metrics, "client_broker_up", broker=each) for each in ("1", "2")] == [1, None]


def test_the_fetch_queue_is_what_any_partition_reports_of_it_and_zero_without_partitions() -> None:
    metrics = Metrics()
    statistics = ClientStatistics(metrics)
    assert shown(metrics, "client_fetch_queue_records") is None
    partition = {"fetchq_cnt": 70, "fetchq_size": 7000}
    topics = {"t": {"partitions": {"0": partition, "1": partition, "-1": {"fetchq_cnt": 0, "fetchq_size": 0}}}}
    statistics.show({"topics": topics})
    assert shown(metrics, "client_fetch_queue_records") == 70
    assert shown(metrics, "client_fetch_queue_bytes") == 7000
    assert shown(metrics, "memory_bytes", part="client_queue") == 7000
    statistics.show({})
    assert shown(metrics, "client_fetch_queue_records") == 0


def test_statistics_of_the_client_reach_the_metrics_with_their_time() -> None:
    driver = KafkaDriver()
    with Engine(driver) as engine:
        driver.assign(A)
        driver.fake.statistics(orjson.dumps({"brokers": {"one:9092/1": broker(1, window(0))}}).decode())
        engine.until(lambda: shown(driver.metrics, "client_broker_up", broker="1") == 1)
        measured = shown(driver.metrics, "client_statistics_timestamp_seconds")
        assert measured is not None
        assert abs(measured - time.time()) < 60
