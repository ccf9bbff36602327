"""What the cluster says of the subscribed topics: ids, partition counts, which are missing.

An own thread asks at start and every 30 seconds, since an unknown topic in a subscription is not reported at all under
the consumer protocol (KIP-848). Every 10 seconds it asks for the ends of partitions that the client does not fetch now,
whose lag would stand still otherwise. The admin client has no gate, so the consumer thread may ask here as well, inside
a rebalance callback too.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # the library does not say that it exports it

from connector.api.errors import AuthenticationError, FatalError
from connector.api.types import Offset
from connector.source.client_errors import fatal_error
from connector.source.position import TopicFacts
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from connector.source.assignment import Key

T = TypeVar("T")

log = get_logger(__name__)

_REFRESH_SECONDS = 30.0
_RETRY_SECONDS = 1.0
_ENDS_SECONDS = 10.0
_REQUEST_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The subscribed topics at one moment. `denied` holds those that we may not describe."""

    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    brokers: int = 1


def matches(subscription: Sequence[str], topic: str) -> bool:
    """Whether a topic is subscribed, by name or by a pattern that begins with `^`."""
    return any(re.search(entry, topic) if entry.startswith("^") else entry == topic for entry in subscription)


def client_subscription(subscription: Sequence[str], group_protocol: str) -> list[str]:
    """Return what the client subscribes to, so that a pattern means the same under each group protocol.

    The classic protocol's client searches a topic's name for the pattern, as `matches` does. Under the consumer
    protocol the broker matches it, and the whole name at that (KIP-848, RE2J).
    """
    if group_protocol == "classic":
        return list(subscription)
    return [f"^.*({entry}).*" if entry.startswith("^") else entry for entry in subscription]


class Cluster:
    """Watches the subscribed topics. `view` is replaced as a whole by the watching thread; anybody may read it."""

    def __init__(self, properties: Mapping[str, Any], subscription: Sequence[str], ignored: Sequence[str] = ()) -> None:
        callbacks: dict[str, Any] = {"error_cb": self._on_error}
        self._admin = AdminClient({**properties, **callbacks})
        self._subscription = tuple(subscription)
        self._ignored = tuple(ignored)
        self._stop = threading.Event()
        self._asked_for_ids = threading.Event()  # the first question for topic ids is answered, well or not
        self._has_ids = True
        self.view: ClusterView | None = None
        self.failure: FatalError | None = None  # the credentials are wrong
        self.last_error = "no answer yet"
        self.unfetched: Sequence[Key] = ()  # whose ends are asked for; replaced as a whole by the consumer thread
        self.ends: Mapping[Key, tuple[Offset, float]] = {}  # last stable offset, and when it was read, time.monotonic()
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; the thread ends by itself after the request that it is in."""
        self._stop.set()

    def facts(self, topics: Sequence[str], timeout: float) -> dict[str, TopicFacts]:
        """Return fresh facts of these topics, within `timeout` seconds; topics that do not exist are left out.

        Raises:
            KafkaException: The cluster did not answer.
        """
        deadline = time.monotonic() + timeout
        self._asked_for_ids.wait(timeout)
        left = max(0.1, deadline - time.monotonic())
        if not topics:
            return {}
        if self._has_ids:
            return self._described(topics, left)
        listed = self._admin.list_topics(timeout=left).topics
        return {name: TopicFacts(len(listed[name].partitions)) for name in topics if name in listed}

    def _described(
        self, topics: Sequence[str], timeout: float, denied: list[str] | None = None
    ) -> dict[str, TopicFacts]:
        # Described, not listed by name: a listing through this client would create a topic that does not exist.
        answers = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout)
        found: dict[str, TopicFacts] = {}
        for name, answer in answers.items():
            try:
                described = take_answer(answer, timeout)
            except KafkaException as error:
                if denied is not None and error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    denied.append(name)
                elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                found[name] = TopicFacts(len(described.partitions), str(described.topic_id))
        return found

    def _run(self) -> None:
        next_look = 0.0
        while not self._stop.is_set():
            try:
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + _RETRY_SECONDS
                    self._look()
                    next_look = time.monotonic() + _REFRESH_SECONDS
                self._read_ends()
            except KafkaException as error:
                log.debug("cluster_not_reached", error=error.args[0].str())
            self._admin.poll(0)  # serves _on_error
            self._stop.wait(min(_ENDS_SECONDS, max(0.0, next_look - time.monotonic())))

    def _read_ends(self) -> None:
        asked = {TopicPartition(*key): OffsetSpec.latest() for key in self.unfetched}  # type: ignore[no-untyped-call]
        if not asked:
            self.ends = {}
            return
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_REQUEST_SECONDS
        )
        read = time.monotonic()
        ends = {where: take_answer(answer, _REQUEST_SECONDS).offset for where, answer in answers.items()}
        self.ends = {(where.topic, where.partition): (Offset(end), read) for where, end in ends.items()}

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = f"{error.name()}: {error.str()}"
        failure = fatal_error(error.name(), error.str())
        if isinstance(failure, AuthenticationError):
            self.failure = failure

    def _look(self) -> None:
        listed = self._admin.list_topics(timeout=_REQUEST_SECONDS)
        brokers = len(listed.brokers)
        named = [entry for entry in self._subscription if not entry.startswith("^")]
        absent = [name for name in named if name not in listed.topics]
        facts = {
            name: TopicFacts(len(topic.partitions))
            for name, topic in listed.topics.items()
            if matches(self._subscription, name) and not matches(self._ignored, name)
        }
        if self.view is None or not self._has_ids:
            # Counts are there at once; the ids may take until a time-out, where there are none.
            self.view = ClusterView(facts, tuple(absent), (), brokers)
        denied: list[str] = []
        try:
            described = self._described([*facts, *absent], _REQUEST_SECONDS, denied) if facts or absent else {}
            self._has_ids = True
            self.view = ClusterView(
                facts | described, tuple(name for name in absent if name not in denied), tuple(denied), brokers
            )
        except KafkaException as error:
            if self._has_ids:
                log.warning(
                    "topic_ids_not_read",
                    error=error.args[0].str(),
                    meaning="a topic that is deleted and made again is not noticed until the cluster gives topic ids",
                )
            self._has_ids = False
            self.view = ClusterView(facts, tuple(absent), (), brokers)
        finally:
            self._asked_for_ids.set()


def take_answer(answer: Future[T], timeout: float) -> T:
    """Return an answer of the admin client, which gives itself up after `timeout` seconds.

    Raises:
        KafkaException: An error, or no answer.
    """
    try:
        return answer.result(timeout + 1)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the admin client did not answer")) from error
