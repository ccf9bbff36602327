"""Orders and payments as a shop would send them, at a steady pace, from a thread of their own."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka import Producer

from connector.api.errors import FatalError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from confluent_kafka import KafkaError, Message

ORDERS, PAYMENTS = TOPICS = ("orders", "payments")
_TICK_SECONDS = 0.02
_SLOW_SECONDS = 1.0  # from the mark, in time at the full pace: from there on the pace sinks with the distance
_FLUSH_SECONDS = 30.0
_CITIES = ("Lisbon", "Kraków", "Nairobi", "Osaka", "Quito", "Tromsø")


class Traffic:
    """Produces `records` records: half orders, half payments. A context manager: leaving it stops the thread.

    The run is steered by marks: production slows down as it comes near one, and does not pass it. So records are
    flowing, however slow the machine is, when something that was waited for happens.
    """

    def __init__(self, bootstrap_servers: str, *, records: int, records_per_second: float) -> None:
        self.records = records
        self.acknowledged = 0  # by the broker; written by the thread
        self.failure: str | None = None
        self._rate = records_per_second
        self._mark = 0
        self._stopped = Event()
        self._properties: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,  # the embedded broker keeps 5 MiB of a partition, and small batches compress badly
            "compression.type": "lz4",
            "enable.idempotence": True,
            "queue.buffering.max.messages": records + 1,  # all of them: `produce` never finds the queue full
            "log_level": 3,
        }
        self._thread = Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def allow(self, share: float) -> None:
        """Move the mark to this share of the records, from 0 to 1."""
        self._mark = round(self.records * share)

    @property
    def is_done(self) -> bool:
        """Whether the broker has everything."""
        return self.acknowledged == self.records

    def check(self) -> None:
        """See that it goes on.

        Raises:
            FatalError: Production has failed.
        """
        if self.failure is not None:
            raise FatalError(f"producing to the embedded broker failed: {self.failure}")

    # The thread.

    def _run(self) -> None:
        try:
            self._produce()
        except Exception as error:  # noqa: BLE001  # whatever it is, the main thread must hear of it
            self.failure = f"{type(error).__name__}: {error}"

    def _produce(self) -> None:
        producer = Producer(self._properties)  # and gone with the thread, before the broker is
        made, last = 0, time.monotonic()
        while made < self.records and not self._stopped.wait(_TICK_SECONDS):
            now = time.monotonic()
            room = self._mark - made
            pace = self._rate if self._mark == self.records else min(self._rate, room / _SLOW_SECONDS)
            count = min(room, max(1, round(pace * (now - last))))
            self._send(producer, made, count)
            made, last = made + count, now
        if self._stopped.is_set():
            producer.purge()
        producer.flush(_FLUSH_SECONDS)
        if made == self.records and self.failure is None and self.acknowledged < self.records:
            self.failure = f"{self.records - self.acknowledged} records are not acknowledged after {_FLUSH_SECONDS:g}s"

    def _send(self, producer: Producer, first: int, count: int) -> None:
        time_text = datetime.now(UTC).isoformat(timespec="milliseconds")
        for number in range(first, first + count):
            topic, key, document = make_record(number, time_text)
            producer.produce(topic, orjson.dumps(document), key, on_delivery=self._on_delivery)
        producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        elif not self._stopped.is_set():
            self.failure = error.str()


def make_record(number: int, time_text: str) -> tuple[str, str, dict[str, Any]]:
    """Return topic, key and document of the record with this number: an order, then the payment for it."""
    sale = number // 2
    order, customer = f"o-{sale:07}", f"c-{sale * 7919 % 5000:04}"
    lines: list[dict[str, Any]] = [
        {"sku": f"sku-{(sale * 31 + line * 17) % 800:03}", "quantity": 1 + (sale + line) % 3, "cents": 495 + sale % 97}
        for line in range(1 + sale % 3)
    ]
    cents = sum(line["quantity"] * line["cents"] for line in lines)
    if number % 2 == 0:
        city = _CITIES[sale % len(_CITIES)]
        return ORDERS, customer, {
            "order": order, "customer": customer, "city": city, "lines": lines, "cents": cents, "placed_at": time_text,
        }  # fmt: skip
    method = ("card", "transfer", "wallet")[sale % 3]
    return PAYMENTS, order, {
        "payment": f"p-{sale:07}", "order": order, "method": method, "cents": cents, "paid_at": time_text,
    }  # fmt: skip
