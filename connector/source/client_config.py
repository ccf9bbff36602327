"""Settings to librdkafka properties: forced, tuned, refused and why; and which group protocols to try.

Pure, save `probe_client`, which builds a client that is given no broker and closes it at once. Called at start by
`connector.config` and by whoever builds the consumer and the admin client.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from confluent_kafka import Consumer, KafkaException

from connector.lane.lane import RECORD_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

Value: TypeAlias = str | int | bool
GroupProtocol: TypeAlias = Literal["consumer", "classic"]
ProtocolChoice: TypeAlias = Literal["auto", "consumer", "classic"]
AssignmentStrategy: TypeAlias = Literal["cooperative-sticky", "range", "roundrobin"]

DEFAULT_STRATEGY: AssignmentStrategy = "cooperative-sticky"
DEFAULT_MAX_POLL_INTERVAL_MS = 300_000  # librdkafka's own default
MAX_POLL_INTERVAL = "max.poll.interval.ms"
BLACKLIST = "topic.blacklist"


def format_value(value: Value) -> str:
    """Write a property's value the way the client reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Preset:
    """The value that the connector gives a property, and why."""

    value: Value
    why: str


FORCED: Mapping[str, Preset] = MappingProxyType(
    {
        "enable.auto.commit": Preset(False, "positions are committed when the sink holds the records, never before"),
        "enable.auto.offset.store": Preset(False, "positions are committed when the sink holds the records"),
        "auto.offset.reset": Preset("error", "where a partition starts is decided by cause: set CONNECTOR_START"),
        "isolation.level": Preset(
            "read_committed", "ends and lag are measured to the last stable offset, and aborted records are not data"
        ),
        "enable.partition.eof": Preset(False, "ends are found by position, which knows gaps: set CONNECTOR_STOP"),
        "statistics.interval.ms": Preset(1000, "the metrics are made from the client's statistics"),
    }
)
"""Properties with one right value, which no setting changes."""

TUNED: Mapping[str, Preset] = MappingProxyType(
    {
        "client.id": Preset("sluiceway", "how the copies are called in the broker's logs and quotas"),
        "fetch.queue.backoff.ms": Preset(
            2, "the client's own 1000 lets the fetcher sleep a second whenever its queue is full"
        ),
        "fetch.wait.max.ms": Preset(
            100, "a partition that was just assigned waits for the fetch under way, which the client lets take 500"
        ),
        "topic.metadata.refresh.interval.ms": Preset(
            30_000, "new topics and partitions are found within this time; the client's own is 300000"
        ),
    }
)
"""Properties whose default differs from the client's. `CONNECTOR_KAFKA_<PROPERTY>` changes them."""

DERIVED: Mapping[str, str] = MappingProxyType(
    {
        "queued.max.messages.kbytes": "follows CONNECTOR_MEMORY_BUDGET: set that",
        "queued.min.messages": "follows CONNECTOR_MEMORY_BUDGET: set that",
        "fetch.max.bytes": "follows CONNECTOR_MEMORY_BUDGET: set that",
    }
)
"""Properties that are computed from the memory budget."""

_OWN_NAME = "has a name of its own: set {}"
_CALLBACK = "is program code, which an environment variable cannot hold: remove it"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "bootstrap.servers": _OWN_NAME.format("CONNECTOR_BOOTSTRAP_SERVERS"),
        "metadata.broker.list": _OWN_NAME.format("CONNECTOR_BOOTSTRAP_SERVERS"),
        "group.id": _OWN_NAME.format("CONNECTOR_GROUP_ID"),
        "group.protocol": _OWN_NAME.format("CONNECTOR_GROUP_PROTOCOL"),
        "partition.assignment.strategy": _OWN_NAME.format("CONNECTOR_ASSIGNMENT_STRATEGY"),
        "log.level": _OWN_NAME.format("CONNECTOR_LOG_LEVEL"),
        **{name: f"is always {format_value(preset.value)}: {preset.why}" for name, preset in FORCED.items()},
        **DERIVED,
        "auto.commit.enable": "is always false: positions are committed when the sink holds the records",
        "auto.commit.interval.ms": "has no effect, since the client never commits by itself: set "
        "CONNECTOR_COMMIT_INTERVAL",
        "offset.store.method": "would keep positions outside the group: remove it",
        "offset.store.path": "would keep positions outside the group: remove it",
        "offset.store.sync.interval.ms": "would keep positions outside the group: remove it",
        "message.max.bytes": "limits what a producer sends; what is fetched follows CONNECTOR_MEMORY_BUDGET: set that",
        "max.poll.records": "is of share groups: set CONNECTOR_BATCH_ROWS",
        "share.acknowledgement.mode": "is of share groups, where records have no position to commit: remove it",
        "plugin.library.paths": "would load foreign code into the process: remove it",
        "interceptors": _CALLBACK,
        "opaque": _CALLBACK,
        "logger": _CALLBACK,
        "default.topic.config": "is a table: set each of its properties by its own name",
    }
)
"""Properties that would break a promise or do nothing, with the reason and the way out. See `refusal`."""

REFUSED_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "test.mock.*": "would replace the cluster by an imitation inside this process: remove it",
        "*.cb": _CALLBACK,
    }
)

CLASSIC_ONLY = ("session.timeout.ms", "heartbeat.interval.ms", "group.protocol.type")
CONSUMER_ONLY = ("group.remote.assignor",)

_CONNECTION = re.compile(
    r"client\.id|client\.dns\.lookup|debug|retry\.backoff\..*|log\.connection\.close"
    r"|(security|ssl|sasl|enable\.ssl|enable\.sasl|https|socket|broker|connections|reconnect|api\.version"
    r"|metadata\.recovery|enable\.metrics)\..*"
)
_SECRET = re.compile(
    r".*(password|secret|passphrase|key\.pem)|sasl\.oauthbearer\.(config|extensions)|sasl\.jaas\.config"
)
_KNOWN = [
    "allow.auto.create.topics",
    "client.dns.lookup",
    "client.rack",
    "debug",
    "enable.ssl.certificate.verification",
    "fetch.min.bytes",
    "group.instance.id",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "sasl.mechanism",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "session.timeout.ms",
    "socket.keepalive.enable",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "topic.blacklist",
]  # those that people set; only to suggest the nearest one


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What the client's properties are made from.

    `assignment_strategy` is None when it was not set, which leaves `auto` free. `properties` are the
    `CONNECTOR_KAFKA_*` ones, by librdkafka's names, already checked by `connector.config`. `dlq_topic` is a topic that
    no pattern may subscribe to.
    """

    bootstrap_servers: str
    group_id: str
    group_protocol: ProtocolChoice = "auto"
    assignment_strategy: AssignmentStrategy | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    dlq_topic: str | None = None

    @property
    def max_poll_interval_ms(self) -> int:
        """How long the group waits for a member that does not poll: the only limit on a drain."""
        return int(self.properties.get(MAX_POLL_INTERVAL, DEFAULT_MAX_POLL_INTERVAL_MS))


def protocols(settings: ClientSettings) -> tuple[GroupProtocol, ...]:
    """Return the group protocols to try, in order.

    `auto` is `consumer` (KIP-848), then `classic` if the broker is older; a property or strategy of the classic
    protocol decides for `classic` at once.
    """
    match settings.group_protocol:
        case "consumer":
            return ("consumer",)
        case "classic":
            return ("classic",)
        case "auto":
            is_classic = settings.assignment_strategy is not None or any(
                name in settings.properties for name in CLASSIC_ONLY
            )
            return ("classic",) if is_classic else ("consumer", "classic")


def is_eager(settings: ClientSettings, protocol: GroupProtocol) -> bool:
    """Whether a rebalance takes all partitions away first, so that every assignment is a full new set."""
    return protocol == "classic" and (settings.assignment_strategy or DEFAULT_STRATEGY) != "cooperative-sticky"


def client_properties(
    settings: ClientSettings, protocol: GroupProtocol, *, queue_bytes: int, fetch_max_bytes: int
) -> dict[str, Value]:
    """Return the consumer's properties.

    Args:
        settings: Where they come from.
        protocol: One of `protocols(settings)`.
        queue_bytes: What the client may hold prefetched, each record's own cost included.
        fetch_max_bytes: What one broker may send at a time; a response is taken whole, beyond the queue's limit.
    """
    dropped = CONSUMER_ONLY if protocol == "classic" else ()  # `auto` on an older broker
    properties: dict[str, Value] = {name: preset.value for name, preset in TUNED.items()}
    properties |= {name: value for name, value in settings.properties.items() if name not in dropped}
    properties |= {name: preset.value for name, preset in FORCED.items()}
    properties |= {
        "bootstrap.servers": settings.bootstrap_servers,
        "group.id": settings.group_id,
        "group.protocol": protocol,
        # The client counts keys and values only. Half the share for them, half for as many records as that pays for:
        # then records of any size stay within the share.
        "queued.max.messages.kbytes": max(1, queue_bytes // 2 // 1024),
        "queued.min.messages": max(1, queue_bytes // 2 // RECORD_OVERHEAD_BYTES),
        "fetch.max.bytes": fetch_max_bytes,
    }
    if ignored := ignored_topics(settings):
        properties[BLACKLIST] = ",".join(ignored)
    if protocol == "classic":
        properties["partition.assignment.strategy"] = settings.assignment_strategy or DEFAULT_STRATEGY
    return properties


def ignored_topics(settings: ClientSettings) -> tuple[str, ...]:
    """Return patterns of topics that the client is blind for: the user's `topic.blacklist`, and the dead letter topic.

    Under the consumer protocol (KIP-848) the broker matches our patterns and assigns the partitions of such a topic all
    the same; the client passes them over, and the member that has them gets as many fewer of the others.
    """
    ignored = tuple(filter(None, settings.properties.get(BLACKLIST, "").split(",")))
    if settings.dlq_topic is not None:
        ignored += (f"^{settings.dlq_topic}$".replace(".", "[.]"),)
    return ignored


def admin_properties(settings: ClientSettings) -> dict[str, Value]:
    """Return the properties of an admin client: how to connect and who we are, nothing of a consumer.

    Topics are never created through it, whatever `allow.auto.create.topics` says.
    """
    return {
        "client.id": TUNED["client.id"].value,
        **{name: value for name, value in settings.properties.items() if _CONNECTION.fullmatch(name)},
        "bootstrap.servers": settings.bootstrap_servers,
    }


def refusal(name: str) -> str | None:
    """Return why this property may not be set, with the way out, or None when it may."""
    if name.startswith("test.mock."):
        return REFUSED_PATTERNS["test.mock.*"]
    if name.endswith(".cb"):
        return REFUSED_PATTERNS["*.cb"]
    return REFUSED.get(name)


def is_secret(name: str) -> bool:
    """Whether the value of this property must never be shown."""
    return _SECRET.fullmatch(name) is not None


def nearest_property(name: str) -> str | None:
    """Return the property that was probably meant, or None."""
    return next(iter(get_close_matches(name, [*_KNOWN, *TUNED, *REFUSED], n=1, cutoff=0.8)), None)


@dataclass(frozen=True, slots=True)
class ClientProbe:
    """What the client says of properties. `error` is None when it takes them."""

    error: str | None
    is_unknown: bool = False  # it knows no such property
    is_contradiction: bool = False  # each property is right, together they are not
    warnings: tuple[str, ...] = ()


def probe_client(properties: Mapping[str, Value]) -> ClientProbe:
    """Let the client itself judge properties, without a connection: it gets no broker to connect to.

    The client reads files that properties name. Token requests of OAUTHBEARER are left out, since it would send
    them while it is built.
    """
    offline = {name: value for name, value in properties.items() if name != "bootstrap.servers"}
    if "OAUTHBEARER" in (offline.get("sasl.mechanism"), offline.get("sasl.mechanisms")):
        offline = {name: value for name, value in offline.items() if not name.startswith("sasl.")}
        offline.pop("security.protocol", None)
    log = _Recorder()
    try:
        # An empty group.id together with a logger aborts the process.
        client = Consumer({**offline, "group.id": "probe", "logger": log.logger})
    except KafkaException as error:
        text = error.args[0].str().strip()
        return ClientProbe(
            text.removeprefix("Failed to create consumer: "),
            is_unknown=text.startswith("No such configuration property"),
            is_contradiction=text.startswith("Failed to create consumer"),
            warnings=log.warnings(),
        )
    client.close()
    return ClientProbe(None, warnings=log.warnings())


class _Recorder(logging.Handler):
    """Keeps what a client says about its properties, instead of printing it."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self.logger = logging.Logger("connector.client_probe")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    def warnings(self) -> tuple[str, ...]:
        return tuple(
            line.partition("[thrd:app]: ")[2].removeprefix("Configuration property ")
            for line in self._lines
            if line.startswith("CONFWARN")
        )
