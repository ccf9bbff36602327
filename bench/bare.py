"""The bare loop: what the client gives a Python program at most, one process, nothing done with the records.

Run as a process of its own: `python -m bench.bare BOOTSTRAP GROUP TOPIC RECORDS [latency]`. It has the connector's
tuned client settings, polls for the first record and consumes what is there, and prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Consumer

from bench.measure import Measured
from connector.source.client_config import ClientSettings, client_properties

QUEUE_BYTES = 32 * 2**20
FETCH_BYTES = 16 * 2**20


def main(bootstrap: str, group: str, topic: str, records: int, *, measures_latency: bool) -> Measured:
    """Consume so many records of a topic as a new group."""
    settings = ClientSettings(bootstrap, group)
    properties = client_properties(settings, "consumer", queue_bytes=QUEUE_BYTES, fetch_max_bytes=FETCH_BYTES)
    consumer = Consumer({**properties, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    measured = Measured()
    while measured.records < records:
        first = consumer.poll(0.05)
        if first is None:
            continue
        messages = [first, *consumer.consume(999, 0)]
        measured.take(messages, time.time_ns() if measures_latency else None)
    consumer.close()
    return measured


if __name__ == "__main__":
    bootstrap_, group_, topic_, records_, *rest = sys.argv[1:]
    print(json.dumps(main(bootstrap_, group_, topic_, int(records_), measures_latency="latency" in rest).report()))
