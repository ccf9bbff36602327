"""A record as the client gives it. Null, empty and undecodable stay three things in key, value and header (INV-12)."""

from __future__ import annotations

from typing import Any, Protocol


class Message(Protocol):
    """The part of `confluent_kafka.Message` that records are read through. `len(message)` is the size of the value."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(
        self,
    ) -> Any: ...  # list of (name, bytes | None), in order with duplicates, or None; typed so by the client
    def timestamp(self) -> tuple[int, int]: ...  # (type, milliseconds); type 0 or -1 ms: there is none
    def error(self) -> Any: ...  # KafkaError or None, a type of the client library
    def __len__(self) -> int: ...
