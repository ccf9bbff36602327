"""First speed marks: the `null` sink against a bare client loop on the same topics. `python -m bench.smoke`.

Throughput: each topic is read from its start by both, in turns. Latency: 1,000 records a second, each with the time it
was produced, are read by both, in turns, with CONNECTOR_BATCH_LINGER=0. Every run is a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Literal

from confluent_kafka import Producer, __version__

from tests.support.kafka import Kafka, running_kafka
from tests.support.process import wait_until

if TYPE_CHECKING:
    from bench.measure import Report

ROUNDS = 5
PARTITIONS = 4
THROUGHPUT = {100: 2_000_000, 1024: 600_000}  # record bytes: records
LATENCY_SECONDS = 8
LATENCY_RATE = 1000
_TIMEOUT = 120


Runner = Callable[[Kafka, str, int, bool], "Report"]


def main() -> int:
    """Run everything and print tables for docs/benchmarks.md."""
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, confluent-kafka {__version__}")
    with running_kafka() as kafka:
        print(f"broker: {kafka.description}\n")
        print("| records | bare loop, k/s | null sink, k/s | ratio | bare loop, CPU s/M | null sink, CPU s/M |")
        print("|---|---|---|---|---|---|")
        for size, count in THROUGHPUT.items():
            _print_throughput(size, *_throughput(kafka, size, count))
        print("\n| 1,000 records/s | p50, ms | p99, ms |\n|---|---|---|")
        runs = _alternate(lambda runner: _paced(kafka, runner))
        for name, reports in zip(("bare loop", "null sink"), runs, strict=True):
            print(f"| {name} | {_median(reports, 'p50_ms'):.2f} | {_median(reports, 'p99_ms'):.2f} |")
    return 0


def _throughput(kafka: Kafka, size: int, count: int) -> tuple[list[Report], list[Report]]:
    topic = kafka.create_topic(partitions=PARTITIONS)
    pool = [os.urandom(size // 2).hex().encode() for _ in range(1000)]  # such values compress to about a half
    kafka.produce(topic, (pool[number % 1000] for number in range(count)), timeout=300)
    runs = _alternate(lambda runner: runner(kafka, topic, count, False))
    kafka.delete_topic(topic)
    return runs


def _alternate(run: Callable[[Runner], Report]) -> tuple[list[Report], list[Report]]:
    """Run both in turns, so that a slow minute of the machine meets both."""
    bare, connected = [], []
    for _ in range(ROUNDS):
        bare.append(run(_bare))
        connected.append(run(_connected))
    return bare, connected


def _bare(kafka: Kafka, topic: str, count: int, latency: bool) -> Report:
    group = f"bare-{uuid.uuid4().hex}"
    words = [kafka.bootstrap_servers, group, topic, str(count), *(["latency"] if latency else [])]
    with _process(["-m", "bench.bare", *words], {}) as process:
        if latency:
            _feed(kafka, group, topic, count)
        return _report(process)


def _connected(kafka: Kafka, topic: str, count: int, latency: bool) -> Report:
    group = f"null-{uuid.uuid4().hex}"
    settings = {
        "CONNECTOR_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "CONNECTOR_GROUP_ID": group,
        "CONNECTOR_TOPICS": topic,
        "CONNECTOR_SINK": "null",
        "CONNECTOR_GROUP_PROTOCOL": "consumer",
        "CONNECTOR_ADMIN_ADDRESS": "127.0.0.1:0",
        "CONNECTOR_LOG_LEVEL": "warning",
        **({"CONNECTOR_BATCH_LINGER": "0"} if latency else {"CONNECTOR_STOP": "end"}),
    }
    with _process(["-m", "bench.connected", *(["latency"] if latency else [])], settings) as process:
        if latency:
            _feed(kafka, group, topic, count)
            wait_until(lambda: kafka.committed(group, topic) == kafka.end_offsets(topic), timeout=30, what="all read")
            process.terminate()
        return _report(process)


def _paced(kafka: Kafka, runner: Runner) -> Report:
    topic = kafka.create_topic(partitions=PARTITIONS)
    report = runner(kafka, topic, LATENCY_SECONDS * LATENCY_RATE, True)
    kafka.delete_topic(topic)
    return report


def _feed(kafka: Kafka, group: str, topic: str, count: int) -> None:
    """Produce so many records at the rate, once the group reads the topic; each value is the time it was produced."""
    wait_until(lambda: _is_reading(kafka, group), timeout=60, what=f"{group} reads")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, "acks": "1"})
    start = time.perf_counter()
    for number in range(count):
        while (wait := start + number / LATENCY_RATE - time.perf_counter()) > 0:
            time.sleep(wait)
        producer.produce(topic, str(time.time_ns()).encode(), partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(30)


def _is_reading(kafka: Kafka, group: str) -> bool:
    return any(member.partitions for member in kafka.describe_group(group).members)


def _process(arguments: list[str], settings: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True
    )


def _report(process: subprocess.Popen[str]) -> Report:
    output, _ = process.communicate(timeout=_TIMEOUT)
    if process.returncode != 0:
        raise RuntimeError(f"a run ended with {process.returncode}: {output}")
    report: Report = json.loads(output.splitlines()[-1])
    return report


def _print_throughput(size: int, bare: list[Report], connected: list[Report]) -> None:
    rates = [median(run["records"] / run["seconds"] for run in runs) for runs in (bare, connected)]
    costs = [median(run["cpu_seconds"] / run["records"] * 1e6 for run in runs) for runs in (bare, connected)]
    print(
        f"| {size} B | {rates[0] / 1000:.0f} | {rates[1] / 1000:.0f} | {rates[1] / rates[0]:.2f} "
        f"| {costs[0]:.2f} | {costs[1]:.2f} |",
        flush=True,
    )


def _median(runs: list[Report], name: Literal["p50_ms", "p99_ms"]) -> float:
    return median(value for run in runs if (value := run[name]) is not None)


if __name__ == "__main__":
    sys.exit(main())
