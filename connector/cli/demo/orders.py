"""Orders for a real Kafka, at a steady pace until it is stopped: the producer of docker-compose.yml.

`python -m connector.cli.demo.orders --bootstrap-servers kafka:9092 --topic orders --rate 200`
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING

import orjson
from confluent_kafka import Producer

from connector.cli.demo.traffic import make_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import KafkaError, Message

_TICK_SECONDS = 0.05
_WAIT_SECONDS = 30.0


class Orders:
    """Produces orders in one thread. `sent` counts what was produced, `failed` what the cluster did not take."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.sent = 0
        self.failed = 0
        self._topic = topic
        # Numbers go on behind those of an earlier run: microseconds pass faster than orders come.
        self._first = int(time.time() * 1_000_000)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 20,
                "partitioner": "murmur2_random",
            }
        )

    def send(self, count: int) -> None:
        """Produce so many orders; blocks while the client's queue is full."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        for _ in range(count):
            _, key, order = make_record(2 * (self._first + self.sent), now)
            while True:
                try:
                    self._producer.produce(self._topic, orjson.dumps(order), key, on_delivery=self._on_delivery)
                    break
                except BufferError:  # the cluster is slow or away: wait for it
                    self._producer.poll(_TICK_SECONDS)
            self.sent += 1
        self._producer.poll(0)

    def finish(self) -> None:
        """Wait until the cluster has everything, or has not taken it for 30 s."""
        left = self._producer.flush(_WAIT_SECONDS)  # on a line of its own: meanwhile the callback counts too
        self.failed += left

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.failed += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Produce until SIGTERM or SIGINT, or `--records`; 1 if the cluster did not take everything."""
    parser = argparse.ArgumentParser(prog="orders", description="Produces orders as a shop would send them.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--rate", type=float, default=200.0, help="orders a second")
    parser.add_argument("--records", type=int, help="end after so many")
    options = parser.parse_args(arguments)
    stopped = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    print(f"orders: {options.rate:g} a second to {options.topic}", flush=True)
    orders, due, last = Orders(options.bootstrap_servers, options.topic), 0.0, time.monotonic()
    while not stopped.is_set() and (options.records is None or orders.sent < options.records):
        now = time.monotonic()
        due, last = min(due + (now - last) * options.rate, options.rate), now  # no burst after an outage
        count = int(due) if options.records is None else min(int(due), options.records - orders.sent)
        orders.send(count)
        due -= count
        stopped.wait(_TICK_SECONDS)
    orders.finish()
    print(f"orders: {orders.sent} produced, {orders.failed} of them not taken by the cluster", flush=True)
    return 1 if orders.failed else 0


if __name__ == "__main__":
    sys.exit(main())
