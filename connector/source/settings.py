"""What a `KafkaSource` is made from: the subscription, the client's properties, and the policies of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from connector.source.position import StartPolicies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """How the client is made for a cluster with a known number of brokers.

    `protocols` lists group protocols and their client properties in the order to try: `auto` has the consumer protocol
    first and classic after it. `lanes_bytes` is what the lanes share.
    """

    protocols: tuple[tuple[str, Mapping[str, Any]], ...]
    is_eager: bool = False  # of the classic protocol's assignment strategy
    lanes_bytes: int = 128 * 2**20


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What a `KafkaSource` needs. `plan` gets the number of brokers, which the memory budget is divided by."""

    subscription: tuple[str, ...]
    plan: Callable[[int], ClientPlan]
    admin_properties: Mapping[str, Any]
    ignored: tuple[str, ...] = ()  # names and patterns of topics that the client leaves out (`topic.blacklist`)
    policies: StartPolicies = field(default_factory=StartPolicies)
    asks_sink: bool = False
    drain_timeout: float = 20.0
    startup_timeout: float = 60.0
    fails_on_missing_topic: bool = False
    is_bounded: bool = False
    stop_time: datetime | None = None  # of a bounded run; None: the ends seen at start
