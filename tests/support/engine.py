"""The engine under test without a broker: a sink that a test steers, sources that it drives, and a controller's thread.

`Engine` runs the real controller and the real pipelines; `KafkaDriver` and `MemoryDriver` drive the two sources alike.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from unittest import mock

from confluent_kafka import KafkaError, KafkaException

from connector import Sink, SinkContext, Transform
from connector.api.settings import Settings
from connector.api.source_event import Idle
from connector.commit.schedule import CommitSchedule
from connector.dlq.flood import FloodLimit
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.rejects import OnPoison, Rejects
from connector.pipeline.worker import Pipeline, PipelineSettings, Plugins
from connector.runtime.controller import Controller, ControllerSettings, ExitReport
from connector.runtime.fleet import Fleet
from connector.runtime.supervisor import Supervisor
from connector.sink.retry import Backoff
from connector.source.cluster import Cluster, ClusterView
from connector.source.consumer import KafkaSource
from connector.source.membership import Membership
from connector.source.position import StartPolicies, TopicFacts
from connector.source.settings import ClientPlan, SourceSettings
from connector.telemetry.metrics import Metrics
from connector.testing.client import FakeClient, Key, records
from connector.testing.memory_source import MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self, TypeAlias

    from connector import Batch, LaneInfo, StoredPosition
    from connector.api.errors import ConnectorError
    from connector.api.event import Event
    from connector.api.source_event import Source, SourceEvent
    from connector.lane.lane import Lane
    from connector.pipeline.messages import Report

    PipelineMaker: TypeAlias = Callable[[int, int, Sequence[Event]], Pipeline]

E = TypeVar("E")

PROTOCOLS = ("range", "cooperative-sticky", "consumer")
WAIT_SECONDS = 10.0
_HANG_SECONDS = 30.0

_PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    "range": {"partition.assignment.strategy": "range"},
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}


class Destination:
    """What all sinks of an engine share: what they were told, and how they behave. Any thread may use it.

    `events` has (pipeline, event) in order, an `Input` once for each attempt; `written` (topic, partition, offset) of
    what was made durable; `behave` may raise or wait before that; `hang` closes the `gate`.
    """

    def __init__(self) -> None:
        self.events: list[tuple[int, Event]] = []
        self.written: list[tuple[str, int, int]] = []
        self.batches: list[Batch] = []  # durable, in order
        self.behave: Callable[[Batch], None] = lambda _: None
        self.gate = threading.Event()
        self.gate.set()
        self.hanging_partition: int | None = None
        self.hanging = threading.Semaphore(0)  # released by each write that begins to hang
        self.open_errors: list[Exception] = []
        self.stored: dict[Key, StoredPosition | None] | None = None  # makes the sink one that holds positions
        self.commits_positions = False  # makes it one that commits them; `behave` does it
        self.claim_errors: list[Exception] = []
        self.claims: list[LaneInfo] = []

    def make(self, pipeline: int) -> Sink[Any]:
        """Return a sink of this destination."""
        return RecordingSink(Settings(), SinkContext(group_id="g", pipeline=pipeline), self)

    def offsets(self, key: Key) -> list[int]:
        """Return the offsets written of one partition, in order."""
        return [offset for topic, partition, offset in list(self.written) if (topic, partition) == key]

    def hang(self, partition: int | None = None) -> None:
        """Let writes hang from now on, or those of one partition, until `gate` is set."""
        self.hanging_partition = partition
        self.gate.clear()

    def wait_hanging(self) -> None:
        """Wait until one more write hangs."""
        assert self.hanging.acquire(timeout=WAIT_SECONDS), "no write began"


class RecordingSink(Sink[Settings]):
    """Writes into a `Destination`."""

    def __init__(self, settings: Settings, context: SinkContext, destination: Destination) -> None:
        super().__init__(settings, context)
        self._destination = destination

    def open(self) -> None:
        if self._destination.open_errors:
            raise self._destination.open_errors.pop(0)

    def on_event(self, event: Event) -> None:
        self._destination.events.append((self.context.pipeline, event))
        super().on_event(event)

    def write(self, batch: Batch) -> None:
        destination = self._destination
        if not destination.gate.is_set() and destination.hanging_partition in (None, batch.metadata.partition):
            destination.hanging.release()
            destination.gate.wait(_HANG_SECONDS)
        destination.behave(batch)
        destination.written.extend(batch.rows("topic", "partition", "offset"))
        destination.batches.append(batch)

    @property
    def holds_positions(self) -> bool:
        return self._destination.stored is not None

    @property
    def commits_positions(self) -> bool:
        return self._destination.commits_positions

    def claim(self, lane: LaneInfo) -> StoredPosition | None:
        self._destination.claims.append(lane)
        if self._destination.claim_errors:
            raise self._destination.claim_errors.pop(0)
        return (self._destination.stored or {}).get((lane.topic, lane.partition))


@dataclass(slots=True)
class Submission:
    """A batch at an asynchronous sink, and how to say what became of it."""

    batch: Batch
    done: Callable[[ConnectorError | None], None]

    @property
    def offsets(self) -> list[int]:
        """Its records."""
        return list(self.batch.column("offset"))


class HeldDestination(Destination):
    """Its sinks acknowledge asynchronously, three batches at a time, when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[Submission] = []
        self.submit_errors: list[Exception] = []

    def make(self, pipeline: int) -> Sink[Any]:
        return HeldSink(Settings(), SinkContext(group_id="g", pipeline=pipeline), self)

    def settle(self, index: int, error: Exception | None = None) -> None:
        """Say, on the test's thread, that a submission is durable, or has failed."""
        submission = self.submitted[index]
        if error is None:
            self.written.extend(submission.batch.rows("topic", "partition", "offset"))
        submission.done(error)  # type: ignore[arg-type]  # a sink with a bug says other things than it should


class HeldSink(RecordingSink):
    """Keeps what is submitted."""

    max_in_flight = 3

    def __init__(self, settings: Settings, context: SinkContext, destination: HeldDestination) -> None:
        super().__init__(settings, context, destination)
        self._held = destination

    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        if self._held.submit_errors:
            raise self._held.submit_errors.pop(0)
        self._held.submitted.append(Submission(batch, done))


class FunctionTransform(Transform[Settings]):
    """A transform from a function."""

    def __init__(self, function: Callable[[Batch], Batch]) -> None:
        super().__init__(Settings(), SinkContext(group_id="g"))
        self._function = function
        self.is_closed = False

    def apply(self, batch: Batch) -> Batch:
        return self._function(batch)

    def close(self) -> None:
        self.is_closed = True


class Driver(Protocol):
    """A source and the group around it. The steps are queued and take effect in order."""

    metrics: Metrics

    @property
    def source(self) -> Source[Lane]: ...
    def append(self, key: Key, offsets: Sequence[int], value: bytes = b"value") -> None: ...
    def assign(self, *keys: Key) -> None: ...
    def add(self, *keys: Key) -> None: ...
    def revoke(self, *keys: Key) -> None: ...
    def lose(self, *keys: Key) -> None: ...
    def committed(self, key: Key) -> int | None: ...
    def commits(self) -> list[tuple[bool, dict[Key, int]]]: ...  # (synchronous, positions), failed ones too
    def fail_commits(self, code: str, times: int = 1) -> None: ...


class StubCluster(Cluster):
    """A cluster whose facts a test sets."""

    def __init__(self, topics: Mapping[str, TopicFacts], subscription: Sequence[str]) -> None:
        self.topics = dict(topics)
        self.facts_error = ""
        self.failure = None
        self.last_error = "no answer yet"
        self.unfetched = ()
        self.ends = {}
        self.view: ClusterView | None = None
        self._subscription = tuple(subscription)
        self.look()

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def look(self) -> None:
        """Take a new view, as the watching thread does every half minute."""
        named = [entry for entry in self._subscription if not entry.startswith("^")]
        self.view = ClusterView(dict(self.topics), tuple(name for name in named if name not in self.topics), (), 1)

    def facts(self, topics: Sequence[str], timeout: float) -> dict[str, TopicFacts]:
        if self.facts_error:
            raise KafkaException(KafkaError(getattr(KafkaError, self.facts_error)))
        return {name: self.topics[name] for name in topics if name in self.topics}


class KafkaDriver:
    """A `KafkaSource` over a `FakeClient`. `fake` is the client in use; `clients` has those before it too."""

    def __init__(
        self,
        protocol: str = "cooperative-sticky",
        *,
        topics: Mapping[str, int] | None = None,
        subscription: Sequence[str] | None = None,
        protocols: Sequence[str] = (),
        ends: Mapping[Key, int] | None = None,
        policies: StartPolicies | None = None,
        asks_sink: bool = False,
        drain_timeout: float = 5.0,
        startup_timeout: float = 5.0,
        fails_on_missing_topic: bool = False,
        lanes_bytes: int = 2**24,
        sink_commits: bool = False,
    ) -> None:
        self.metrics = Metrics()
        self.membership = Membership()
        counts = {"t": 4} if topics is None else topics
        names = tuple(counts if subscription is None else subscription)
        self.cluster = StubCluster({name: TopicFacts(n, f"id of {name}") for name, n in counts.items()}, names)
        self.clients: list[FakeClient] = []
        self.next_client = FakeClient()
        tried = tuple(protocols or [protocol])
        plan = ClientPlan(
            tuple(("consumer" if each == "consumer" else "classic", self._properties(each)) for each in tried),
            is_eager=tried[-1] == "range",
            lanes_bytes=lanes_bytes,
        )
        self.kafka_source = KafkaSource(
            SourceSettings(
                subscription=names,
                plan=lambda _: plan,
                admin_properties={},
                policies=policies or StartPolicies(),
                asks_sink=asks_sink,
                drain_timeout=drain_timeout,
                startup_timeout=startup_timeout,
                fails_on_missing_topic=fails_on_missing_topic,
                is_bounded=ends is not None,
            ),
            self.metrics,
            self._make_client,
            self.cluster,
            self.membership if sink_commits else None,
        )
        if ends is not None:
            self.fake.watermarks = {key: (0, end) for key, end in ends.items()}

    @staticmethod
    def _properties(protocol: str) -> dict[str, Any]:
        return {"auto.offset.reset": "error", **_PROPERTIES[protocol]}

    def _make_client(self, properties: dict[str, Any]) -> FakeClient:
        client = self.next_client.configure(properties)
        self.clients.append(client)
        self.next_client = FakeClient()
        return client

    @property
    def source(self) -> Source[Lane]:
        return self.kafka_source

    @property
    def fake(self) -> FakeClient:
        """The newest client; before the first is made, the one that will be."""
        return self.clients[-1] if self.clients else self.next_client

    def append(self, key: Key, offsets: Sequence[int], value: bytes = b"value") -> None:
        self.fake.messages(records(*key, offsets, value))

    def assign(self, *keys: Key) -> None:
        self.fake.assign_partitions(*keys)

    def add(self, *keys: Key) -> None:
        self.fake.assign_partitions(*keys)

    def revoke(self, *keys: Key) -> None:
        self.fake.revoke_partitions(*keys)

    def lose(self, *keys: Key) -> None:
        self.fake.lose_partitions(*keys)

    def committed(self, key: Key) -> int | None:
        stored = self.fake.stored.get(key)
        return None if stored is None else stored.offset

    def commits(self) -> list[tuple[bool, dict[Key, int]]]:
        return [
            (call.name == "commit_sync", {(topic, partition): at for topic, partition, at in call.partitions})
            for call in list(self.fake.calls)
            if call.name in ("commit_sync", "commit_async")
        ]

    def fail_commits(self, code: str, times: int = 1) -> None:
        self.fake.fail_commit(code, times)

    def next_event(self, kind: type[E]) -> E:
        """Return the next event that is not `Idle`, which must be of this kind; for tests that play the controller."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            event = self.kafka_source.poll_events(0.05)
            if not isinstance(event, Idle):
                assert isinstance(event, kind), event
                return event
        raise TimeoutError(f"no {kind.__name__}")

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Run the source alone, with the test in the controller's place."""
        with _quick():
            self.kafka_source.start()
            try:
                yield self
            finally:
                self.kafka_source.close()
                eventually(lambda: self.kafka_source.is_closed, "the source is closed")
        for client in self.clients:
            assert client.violations == []


class MemoryDriver:
    """A `MemorySource`."""

    def __init__(self, *, drain_timeout: float = 5.0, asks_sink: bool = False, lane_bytes: int = 2**22) -> None:
        self.metrics = Metrics()
        self.memory = MemorySource(drain_timeout=drain_timeout, asks_sink=asks_sink, lane_bytes=lane_bytes)

    @property
    def source(self) -> Source[Lane]:
        return self.memory

    def append(self, key: Key, offsets: Sequence[int], value: bytes = b"value") -> None:
        self.memory.append(records(*key, offsets, value))

    def assign(self, *keys: Key) -> None:
        self.memory.assign(*keys)

    def add(self, *keys: Key) -> None:
        self.memory.add(*keys)

    def revoke(self, *keys: Key) -> None:
        self.memory.revoke(*keys)

    def lose(self, *keys: Key) -> None:
        self.memory.lose(*keys)

    def committed(self, key: Key) -> int | None:
        return self.memory.committed.get(key)

    def commits(self) -> list[tuple[bool, dict[Key, int]]]:
        return [(commit.is_synchronous, dict(commit.positions)) for commit in list(self.memory.commits)]

    def fail_commits(self, code: str, times: int = 1) -> None:
        self.memory.fail_commits(code, times)


def make_driver(name: str, *, ends: Mapping[Key, Sequence[int]] | None = None, drain_timeout: float = 5.0) -> Driver:
    """Return a driver by name: `memory` or a group protocol. With `ends` the run is bounded, over these offsets."""
    if name == "memory":
        memory = MemoryDriver(drain_timeout=drain_timeout)
        if ends is not None:
            for key, offsets in ends.items():
                memory.append(key, offsets)
            memory.memory.end()
        return memory
    counts = None if ends is None else {key: offsets[-1] + 1 if offsets else 0 for key, offsets in ends.items()}
    topics = {"t": 4} if ends is None else {"t": len(ends)}
    kafka = KafkaDriver(name, topics=topics, ends=counts, drain_timeout=drain_timeout)
    for key, offsets in (ends or {}).items():
        kafka.append(key, offsets)
    return kafka


def make_rejects(metrics: Metrics, on_poison: OnPoison = OnPoison.FAIL) -> Rejects:
    """Return what ends poison records, without a limit to how many."""
    return Rejects(on_poison, "group", metrics, FloodLimit(max_ratio=1, window=1000, max_consecutive=0))


class _ObservedController(Controller):
    """Keeps every event it obeys, save `Idle`, with the epoch before it."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.obeyed: list[SourceEvent[Lane]] = []

    def _handle(self, event: SourceEvent[Lane], now: float) -> None:
        if not isinstance(event, Idle):
            self.obeyed.append(event)
        super()._handle(event, now)


class Engine:
    """A run in a thread of its own: `with Engine(driver, destination) as engine`. Leaving it stops the run in time."""

    def __init__(
        self,
        driver: Driver,
        destination: Destination | None = None,
        *,
        pipelines: int = 1,
        settings: PipelineSettings | None = None,
        on_poison: OnPoison = OnPoison.FAIL,
        lane_idle_timeout: float = 300.0,
        commit_interval: float = 0.02,
        drain_timeout: float = 5.0,
        shutdown_timeout: float = 5.0,
        transforms: Sequence[tuple[str, Callable[[], Transform[Any]]]] = (),
        publish: Callable[[Controller], None] = lambda _: None,
        maker: Callable[[Callable[[Report], None]], PipelineMaker] | None = None,
    ) -> None:
        self.driver = driver
        self.destination = destination or Destination()
        reports: SimpleQueue[Any] = SimpleQueue()
        self.settings = settings or PipelineSettings(
            limits=BatchLimits(linger_seconds=0.005), backoff=Backoff(initial=0.02, maximum=0.05)
        )

        def make_pipeline(number: int, incarnation: int, notices: Sequence[Event]) -> Pipeline:
            return Pipeline(
                number=number,
                incarnation=incarnation,
                plugins=Plugins(self._sink_maker(number), transforms),
                rejects=make_rejects(driver.metrics, on_poison),
                settings=self.settings,
                metrics=driver.metrics,
                report=reports.put,
                notices=notices,
            )

        self.controller = _ObservedController(
            source=driver.source,
            fleet=Fleet(maker(reports.put) if maker is not None else make_pipeline, pipelines),
            supervisor=Supervisor(Backoff(initial=0.02, maximum=0.05), limit=3),
            reports=reports,
            schedule=CommitSchedule(commit_interval, tight_interval=0.01),
            metrics=driver.metrics,
            settings=ControllerSettings(drain_timeout, shutdown_timeout, lane_idle_timeout),
            publish=publish,
        )
        self.pipelines = self.controller.fleet.pipelines
        self.report: ExitReport | None = None
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._stack = contextlib.ExitStack()

    def _sink_maker(self, number: int) -> Callable[[], Sink[Any]]:
        return lambda: self.destination.make(number)

    def _run(self) -> None:
        self.report = self.controller.run()

    def __enter__(self) -> Self:
        self._stack.enter_context(_quick())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.destination.gate.set()
        try:
            self.stop()
        finally:
            self._stack.close()
        if isinstance(self.driver, KafkaDriver):
            for client in self.driver.clients:
                assert client.violations == []

    def events(self, kind: type[E]) -> list[E]:
        """Return the events of one kind that the controller obeyed."""
        return [event for event in list(self.controller.obeyed) if isinstance(event, kind)]

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait until this holds."""
        try:
            eventually(condition, what)
        except TimeoutError as error:
            raise TimeoutError(
                f"{error}; written {self.destination.written[-10:]}, commits {self.driver.commits()[-5:]}, "
                f"events {self.controller.obeyed[-10:]}, error {self.controller.error!r}"
            ) from None

    def until_written(self, key: Key, offsets: Sequence[int]) -> None:
        """Wait until exactly these are written of a partition."""
        self.until(lambda: self.destination.offsets(key) == list(offsets), f"{key} holds {list(offsets)[-10:]}")

    def until_committed(self, key: Key, position: int) -> None:
        """Wait until the group stands there."""
        self.until(lambda: self.driver.committed(key) == position, f"{key} is committed at {position}")

    def join(self) -> ExitReport:
        """Wait for the end of the run."""
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), f"the run does not end; {self.controller.state}"
        assert self.report is not None, "the controller raised"
        return self.report

    def stop(self) -> ExitReport:
        """End the run as SIGTERM does."""
        self.controller.request_stop()
        return self.join()


def eventually(condition: Callable[[], bool], what: str = "") -> None:
    """Wait until this holds, asking every 2 ms.

    Raises:
        TimeoutError: It did not within `WAIT_SECONDS`.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_SECONDS:g}s: {what}")
        time.sleep(0.002)


@contextlib.contextmanager
def _quick() -> Iterator[None]:
    """Let the loops of the engine turn more often, so that tests are quick."""
    with contextlib.ExitStack() as stack:
        for name, seconds in (
            ("connector.runtime.controller._POLL_SECONDS", 0.005),
            ("connector.source.consumer.POLL_SECONDS", 0.005),
            ("connector.source.consumer._LOOK_SECONDS", 0.02),
            ("connector.source.rebalance._RETRY_SECONDS", 0.02),
            ("connector.source.rebalance._COMMIT_RETRY_SECONDS", 0.01),
            ("connector.source.lookout._RETRY_SECONDS", 0.02),
            ("connector.commit.schedule._RETRY_INITIAL_SECONDS", 0.02),
            ("connector.commit.schedule._FINAL_RETRY_SECONDS", 0.02),
        ):
            stack.enter_context(mock.patch(name, seconds))
        yield


@contextlib.contextmanager
def together(fake: FakeClient) -> Iterator[None]:
    """Let everything that is pushed meanwhile be served by one call of the client."""
    release, entered = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert release.wait(WAIT_SECONDS)

    fake._push(wait)
    assert entered.wait(WAIT_SECONDS)
    yield
    release.set()
