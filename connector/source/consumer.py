"""`KafkaSource`: the consumer thread, owner of the Kafka client and of every call on it.

The thread polls, routes records into lanes, serves commands, and never waits for a pipeline or the controller, save in
a revocation, which waits for the drain (INV-2). Nobody waits for it: commands are one-way messages, and what became of
them comes back as source events and commit results. The client lets one thread at a time in and is unfair about it, so
a call from another thread could starve for ever.
"""

from __future__ import annotations

import time
from collections import deque
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from connector.api.errors import (
    AuthenticationError,
    ConfigError,
    FatalError,
    FencedError,
    InvariantError,
    UnreachableError,
)
from connector.api.settings import format_duration
from connector.api.source_event import CommitResult, Drained, Idle, LanesAssigned, SourceEvent
from connector.source.assignment import Assignment, Held, Key, Wait
from connector.source.bounded import BoundedRun, read_ends
from connector.source.client import generation
from connector.source.client_errors import fatal_error, lacks_consumer_protocol
from connector.source.cluster import Cluster, ClusterView, client_subscription
from connector.source.commands import Close, Command, Commit, HoldBack, Restart, Resume, StartLane
from connector.source.commits import Commits
from connector.source.lookout import Lookout
from connector.source.position import Cause
from connector.source.rebalance import Rebalance
from connector.source.router import Router
from connector.source.settings import ClientPlan, SourceSettings
from connector.source.starts import Found, Starts
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from connector.api.intents import Intents
    from connector.api.sink import StoredPosition
    from connector.api.types import LaneId, Offset, PartitionId
    from connector.lane.lane import Lane
    from connector.source.client import KafkaClient
    from connector.source.membership import Membership
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)

POLL_SECONDS = 0.05  # reaction time to commands
_CONSUME_RECORDS = 1000
_LOOK_SECONDS = 1.0  # how often positions, waiting lanes and topics are looked at


class KafkaSource:
    """A consumer group member as a `Source`.

    The controller's thread calls the public methods; everything with an underscore runs on the consumer thread.
    """

    def __init__(
        self,
        settings: SourceSettings,
        metrics: Metrics,
        client_factory: Callable[[dict[str, Any]], KafkaClient],
        cluster: Cluster | None = None,
        membership: Membership | None = None,
    ) -> None:
        """Prepare; nothing connects before `start`. With a `membership` the sink commits, and asks it as whom."""
        self._settings = settings
        self._metrics = metrics
        self._client_factory = client_factory
        self._cluster = cluster or Cluster(settings.admin_properties, settings.subscription, settings.ignored)
        self._commands: deque[Command] = deque()
        # Not a SimpleQueue: in CPython 3.11 its get waits without end, when a signal handler of the main thread runs
        # beyond the timeout.
        self._events: Queue[SourceEvent[Lane] | FatalError] = Queue()
        self._results: deque[CommitResult] = deque()
        self._membership = membership
        self._watch = metrics.source_seconds.start()
        self._assignment = Assignment()
        self._starts = Starts(self._cluster, settings.subscription, settings.policies, metrics)
        self._rebalance = Rebalance(
            assignment=self._assignment,
            starts=self._starts,
            emit=self._events.put,
            report=self._results.append,
            fail=self._fail,
            metrics=metrics,
            watch=self._watch,
            asks_sink=settings.asks_sink,
            drain_timeout=settings.drain_timeout,
            membership=membership,
        )
        self._router = Router(self._assignment, metrics, self._ask_resume)
        self._bounded = BoundedRun(self._assignment, self._events.put) if settings.is_bounded else None
        on_committed = self._bounded.on_committed if self._bounded else _ignore
        self._commits = Commits(
            self._assignment,
            self._results.append,
            on_committed,
            metrics,
            self._watch,
            sink_commits=membership is not None,
        )
        self._lookout = Lookout(
            assignment=self._assignment,
            rebalance=self._rebalance,
            starts=self._starts,
            cluster=self._cluster,
            metrics=metrics,
        )
        self._client: KafkaClient | None = None
        self._plan = ClientPlan(())
        self._failure: FatalError | None = None
        self._client_is_dead = False
        self._next_look = 0.0
        self._is_closing = False
        self.protocol = ""  # the group protocol in use
        self.seen = time.monotonic()  # the thread's last turn
        self.is_closed = False
        self._thread = Thread(target=self._run, name="source", daemon=True)

    # Called by the controller.

    def start(self) -> None:
        """Begin: connect, look at the topics, join the group."""
        self._thread.start()

    def poll_events(self, timeout: float) -> SourceEvent[Lane]:
        """Return the next event, or `Idle` after `timeout` seconds; `Drained` again and again once the run is over.

        Raises:
            FatalError: The client has failed; raised once, the thread still serves commands until `close`.
        """
        try:
            event = self._events.get(timeout=timeout)
        except Empty:
            return Drained() if self._bounded is not None and self._bounded.is_drained else Idle()
        if isinstance(event, FatalError):
            raise event
        return event

    def commit(self, positions: Mapping[PartitionId, Offset]) -> None:
        """Ask for an asynchronous commit; see `poll_results`."""
        self._commands.append(Commit(dict(positions)))

    def poll_results(self) -> Sequence[CommitResult]:
        """Return what became of commits since the last call."""
        results = []
        while self._results:
            results.append(self._results.popleft())
        return results

    def start_lane(self, lane: LaneId, stored: StoredPosition | None) -> None:
        """Give the position that the sink holds."""
        self._commands.append(StartLane(lane, stored))

    def restart_lanes(self, positions: Mapping[LaneId, Offset | None]) -> None:
        """Fence lanes and bring their partitions back as new ones."""
        self._commands.append(Restart(dict(positions)))

    def hold_back(self, intents: Intents) -> None:
        """Hold back what these intents say, and let the rest flow."""
        self._commands.append(HoldBack(intents))

    def close(self) -> None:
        """Leave the group; `is_closed` tells when. Drain and commit first: lanes that are still held are dropped."""
        self._commands.append(Close())

    @property
    def missing_topics(self) -> tuple[str, ...]:
        """Subscribed topics that do not exist."""
        view = self._cluster.view
        return view.missing if view else ()

    # The consumer thread.

    def _run(self) -> None:
        try:
            self._cluster.start()
            self._begin()
            while not self._is_closing and self._failure is None:
                self._turn()
        except FatalError as error:
            self._fail(error)
        except KafkaException as error:
            code, text = error.args[0].name(), error.args[0].str()
            self._client_is_dead = code == "_FATAL"
            self._fail(fatal_error(code, text) or FencedError(f"The Kafka client failed ({code}: {text})."))
        except Exception as error:  # whatever it is, the controller must hear of it
            log.exception("source_crashed")
            bug = InvariantError(f"the consumer thread failed: {type(error).__name__}: {error}. This is a bug.")
            bug.__cause__ = error
            self._fail(bug)
        while not self._is_closing:
            self._turn_after_failure()
        self._leave()
        self._watch.stop()

    def _connect(self, protocol: int) -> None:
        self.protocol, properties = self._plan.protocols[protocol]
        self._rebalance.protocol = self.protocol
        self._rebalance.is_eager = self._plan.is_eager and self.protocol == "classic"
        callbacks = {
            "on_commit": self._guarded(self._commits.on_commit),
            "error_cb": self._guarded(self._on_error),
            "stats_cb": self._guarded(self._lookout.on_statistics),
        }
        try:
            self._client = self._client_factory({**properties, **callbacks})
        except KafkaException as error:
            raise ConfigError(
                f"The Kafka client refuses its properties: {error.args[0].str()}. Change the CONNECTOR_KAFKA_* setting "
                "that this names."
            ) from error

    def _begin(self) -> None:
        """Wait for the cluster, then join the group."""
        deadline = time.monotonic() + self._settings.startup_timeout
        view = self._wait_for_cluster(deadline)
        if view is None:
            return
        if view.missing and self._settings.fails_on_missing_topic:
            raise ConfigError(
                f"Topics that do not exist: {', '.join(view.missing)}. Create them, correct CONNECTOR_TOPICS, or set "
                "CONNECTOR_MISSING_TOPIC=wait to start without them."
            )
        self._plan = self._settings.plan(view.brokers)
        self._assignment.lanes_bytes = self._plan.lanes_bytes
        self._connect(0)
        self._starts.remember(view.topics)
        if self._bounded is not None:
            keys = [(topic, index) for topic, facts in view.topics.items() for index in range(facts.partitions)]
            self._read_ends(keys, deadline)
        self._subscribe()

    def _wait_for_cluster(self, deadline: float) -> ClusterView | None:
        """Return the first view of the cluster, or None when the source is closed before there is one."""
        while not self._is_closing:
            self.seen = time.monotonic()
            if self._cluster.failure is not None:
                raise self._cluster.failure
            if self._cluster.view is not None:
                return self._cluster.view
            if self.seen > deadline:
                waited = format_duration(self._settings.startup_timeout)
                raise UnreachableError(
                    f"No Kafka cluster within CONNECTOR_STARTUP_TIMEOUT={waited} (last error: "
                    f"{self._cluster.last_error}). Check CONNECTOR_BOOTSTRAP_SERVERS, the network, and the security "
                    "settings."
                )
            self._serve_commands()
            time.sleep(POLL_SECONDS)
        return None

    def _read_ends(self, keys: Sequence[Key], deadline: float) -> None:
        while not self._is_closing:
            try:
                self._rebalance.ends = read_ends(self._get_client(), keys, self._settings.stop_time)
                return
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise UnreachableError(
                        f"The ends of the subscribed partitions could not be read: {error.args[0].str()}. "
                        "Check that every partition has a leader."
                    ) from error
            self._poll()
            self._serve_commands()

    def _subscribe(self) -> None:
        client, rebalance = self._get_client(), self._rebalance
        client.subscribe(
            client_subscription(self._settings.subscription, self.protocol),
            on_assign=lambda _, partitions: rebalance.on_assign(client, partitions),
            on_revoke=lambda _, partitions: rebalance.on_revoke(client, partitions),
            on_lost=lambda _, partitions: rebalance.on_lost(client, partitions),
        )

    def _turn(self) -> None:
        self.seen = time.monotonic()
        self._serve_commands()
        is_idle = not self._poll()
        client, now = self._get_client(), time.monotonic()
        self._refresh_membership(client)
        is_time = now >= self._next_look
        if is_time or (is_idle and self._bounded is not None):
            self._lookout.look_at_positions(client)
        if self._bounded is not None:
            self._bounded.announce()
        if is_time:
            self._next_look = now + _LOOK_SECONDS
            self._look_around(client)
        self._commits.send(client)

    def _refresh_membership(self, client: KafkaClient) -> None:
        if self._membership is not None:
            self._membership.refresh(client)

    def _look_around(self, client: KafkaClient) -> None:
        self._rebalance.report.tell_overdue()
        try:
            self._lookout.look_at_waiting(client)
            self._lookout.look_at_topics(client)
            self._look_at_membership(client)
            if self._bounded is not None and self._rebalance.ends is not None and self._rebalance.has_joined:
                self._bounded.look_at_group(client, self._rebalance.ends)
        except KafkaException as error:
            code, text = error.args[0].name(), error.args[0].str()
            if fatal_error(code, text) is not None:
                raise
            log.warning("cluster_read_failed", code=code, error=text)

    def _look_at_membership(self, client: KafkaClient) -> None:
        """Report an empty lane set for a member that stands by: the consumer protocol calls nothing back when a member
        has joined and there is no partition for it."""
        view = self._cluster.view
        if self._rebalance.has_joined or self.protocol == "classic" or view is None or not view.topics:
            return
        if generation(client) > 0:
            self._rebalance.has_joined = True
            self._events.put(LanesAssigned(()))
            log.info("joined_without_partitions", group_protocol=self.protocol)

    def _turn_after_failure(self) -> None:
        """Nothing is read any more; commands are served, and callbacks, while the client still can."""
        self.seen = time.monotonic()
        self._serve_commands()
        if self._client is None or self._client_is_dead:
            self._commits.refuse("_FATAL")
            time.sleep(POLL_SECONDS)
            return
        try:
            with self._watch.during("poll"):
                self._client.poll(POLL_SECONDS)
            self._refresh_membership(self._client)
            self._commits.send(self._client)
        except KafkaException:
            self._client_is_dead = True

    def _poll(self) -> bool:
        """Take what the client has; false if that was nothing within the poll time."""
        client = self._get_client()
        with self._watch.during("poll"):
            # `consume(n, t)` would wait for n records or the whole time; this pair returns with what is there.
            first = client.poll(POLL_SECONDS)
            if first is None:
                return False
            lane = self._lane_of(first)
            messages = client.consume(_CONSUME_RECORDS - 1, 0)
        # Of lanes that a rebalance inside `consume` replaced, the client purges what it collected there, not what
        # `poll` gave out before. The new lane starts at or below that record and gets it again, in its place.
        if self._lane_of(first) is lane:
            messages.insert(0, first)
        failed: list[Message] = []
        with self._watch.during("route"):
            if any(map(Message.error, messages)):
                failed = [message for message in messages if message.error() is not None]
                messages = [message for message in messages if message.error() is None]
            self._router.route(client, messages)
        for message in failed:
            self._on_message_error(message)
        return True

    def _lane_of(self, message: Message) -> Held | None:
        topic, partition = message.topic(), message.partition()
        return None if topic is None or partition is None else self._assignment.get(topic, partition)

    # Commands.

    def _serve_commands(self) -> None:
        answers: dict[Key, StoredPosition | None] = {}
        while self._commands:
            match self._commands.popleft():
                case Commit(positions):
                    self._commits.want(positions)
                case StartLane(lane, stored):
                    held = self._assignment.by_lane(lane)
                    if held is not None and held.wait is Wait.SINK:
                        answers[held.key] = stored
                case Restart(restarts):
                    self._restart(restarts)
                case Resume(lane):
                    self._resume(lane)
                case HoldBack(intents):
                    self._hold_back(intents)
                case Close():
                    self._is_closing = True
        if answers and self._failure is None:
            self._rebalance.find_again(self._get_client(), answers)

    def _resume(self, lane: LaneId) -> None:
        held = self._assignment.by_lane(lane)
        if held is not None and held.is_paused and self._failure is None:
            held.is_paused = held.lane.is_paused = False
            if held.is_flowing:
                self._rebalance.point(self._get_client(), [held])

    def _hold_back(self, intents: Intents) -> None:
        """Pause lanes, or let them flow again; lanes that come are minted so. The member stays in the group."""
        if self._failure is not None:
            return
        self._assignment.intents = intents
        changed = [held for held in self._assignment if held.lane.is_held_back is not intents.holds(*held.key)]
        flowing = [held for held in changed if held.is_flowing]
        if flowing:
            self._get_client().pause([TopicPartition(*held.key) for held in flowing])
        for held in changed:
            held.lane.is_held_back = not held.lane.is_held_back
        # A lane that is full, or waits for its start, still does not flow.
        if released := [held for held in changed if held.is_flowing]:
            self._rebalance.point(self._get_client(), released)

    def _restart(self, positions: Mapping[LaneId, Offset | None]) -> None:
        lanes = [held for lane in positions if (held := self._assignment.by_lane(lane)) is not None]
        if lanes and self._failure is None:
            # A sink that holds positions knows better, and one that commits them may have done so without a word.
            known = {} if self._settings.asks_sink or self._membership is not None else positions
            starts = {
                held.key: Found(at, Cause.RESTARTED, None, held.facts)
                for held in lanes
                if (at := known.get(held.lane.id)) is not None
            }
            self._rebalance.abandon(self._get_client(), lanes)
            self._rebalance.replace(self._get_client(), lanes, starts)

    def _ask_resume(self, lane: Lane) -> None:
        """Called by a pipeline's thread when a paused lane is low again."""
        self._commands.append(Resume(lane.id))

    # Errors of the client.

    def _on_error(self, error: KafkaError) -> None:
        """Callback of the client, inside poll, consume or close."""
        self._metrics.client_errors.labels(error.name()).inc()
        log.warning("client_error_received", code=error.name(), error=error.str())
        failure = fatal_error(error.name(), error.str())
        if isinstance(failure, AuthenticationError):
            self._fail(failure)

    def _on_message_error(self, message: Message) -> None:
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is None:
            return
        code, text = error.name(), error.str()
        self._metrics.client_errors.labels(code).inc()
        if code == "_AUTO_OFFSET_RESET" and topic is not None and partition is not None:
            self._lookout.on_out_of_range(self._get_client(), topic, partition, text)
            return
        if self._can_fall_back(code, text):
            log.info(
                "group_protocol_fell_back", meaning="the broker does not know the consumer group protocol (KIP-848)"
            )
            self._get_client().close()
            self._connect(len(self._plan.protocols) - 1)
            self._subscribe()
            return
        self._client_is_dead = self._client_is_dead or code == "_FATAL"
        failure = fatal_error(code, text)
        if failure is not None:
            raise failure
        log.warning("client_error_received", code=code, error=text)

    def _can_fall_back(self, code: str, text: str) -> bool:
        is_last = self.protocol == self._plan.protocols[-1][0]
        return lacks_consumer_protocol(code, text) and not self._rebalance.has_joined and not is_last

    def _guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Keep what a callback raises out of the client, where it would surface as an unrelated SystemError."""

        def call(*arguments: Any) -> None:
            try:
                with self._watch.during("other"):  # not the poll that it is called in
                    callback(*arguments)
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends the process in an orderly way
                bug = InvariantError(f"{callback.__name__} failed: {type(error).__name__}: {error}. This is a bug.")
                bug.__cause__ = error
                self._fail(bug)

        return call

    def _fail(self, error: FatalError) -> None:
        """Hand the first error to the controller, which drains and closes."""
        if self._failure is None:
            self._failure = error
            self._events.put(error)

    def _leave(self) -> None:
        """Close the client, whose callbacks find no lanes. The controller has drained and committed, or given up."""
        self._rebalance.is_closing = True
        self._rebalance.report.finish()
        for held in self._assignment:
            held.lane.fence()
            self._assignment.drop(held)
        self._cluster.stop()
        if self._client is not None:
            try:
                self._client.close()
            except (KafkaException, RuntimeError) as error:
                log.warning("client_close_failed", error=str(error))
        self.is_closed = True

    def _get_client(self) -> KafkaClient:
        if self._client is None:
            raise InvariantError("INV-2: the Kafka client is used before it was made. This is a bug in Sluiceway.")
        return self._client


def _ignore(_: Held) -> None:
    """Nothing follows a commit in a run without an end."""
