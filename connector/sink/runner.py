"""One sink instance and its event stream: calls the plugin and measures it.

Belongs to one pipeline and is called on its thread only.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Any

from connector.api.errors import ConnectorError, FatalError, PoisonError, RecordErrors, RefusedError, TransientError
from connector.api.event import Event, Input, InputClosed, Stop
from connector.sink.plugin import CrashError, call_plugin, crash
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.api.batch import Batch
    from connector.api.event import CloseReason, StopCause
    from connector.api.sink import LaneInfo, Sink, StoredPosition
    from connector.api.types import LaneId
    from connector.telemetry.metrics import Metrics
    from connector.telemetry.stopwatch import Stopwatch

log = get_logger(__name__)


class SinkRunner:
    """Calls a sink. Only `ConnectorError`s come out: what a plugin raises besides is a crash."""

    def __init__(self, sink: Sink[Any], metrics: Metrics, watch: Stopwatch) -> None:
        self.sink = sink
        self._metrics = metrics
        self._watch = watch
        self.holds_positions = sink.holds_positions
        self.commits_positions = sink.commits_positions
        self.max_in_flight = sink.max_in_flight
        self.in_flight = 0  # batches, or parts of them, at an asynchronous sink
        self.is_leaving = False  # its replacement waits until nothing is in flight

    @property
    def has_room(self) -> bool:
        """Whether the sink takes one more batch."""
        return not self.is_leaving and (self.max_in_flight <= 1 or self.in_flight < self.max_in_flight)

    @property
    def moves_positions(self) -> bool:
        """Whether a write moves the position that a lane starts from, in the transaction of the records."""
        return self.holds_positions or self.commits_positions

    def open(self) -> None:
        """Let the sink connect."""
        self._call(self.sink.open)

    def probe(self) -> None:
        """Ask whether the destination is there.

        Raises:
            TransientError: It is not.
        """
        self._call(self.sink.probe)

    def write(self, batch: Batch) -> None:
        """Send one batch; returns when it is durable."""
        started = time.monotonic()
        outcome = "fatal"
        try:
            self._call(self.sink.on_event, Input(batch.metadata.lane, batch.metadata, batch))
            outcome = "ok"
        except ConnectorError as error:
            outcome = _outcome(error)
            raise
        finally:
            self._metrics.sink_write_seconds.labels(outcome).observe(time.monotonic() - started)

    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        """Let an asynchronous sink begin; `done` is called once, from any thread, also with what `submit` raises."""
        started = time.monotonic()
        said = Lock()  # taken by the first word, whichever thread it comes from; others change nothing

        def settle(error: BaseException | None = None) -> None:
            if not said.acquire(blocking=False):
                log.warning("batch_settled_twice", plugin=type(self.sink).__name__, error=str(error))
                return
            self._metrics.sink_write_seconds.labels(_outcome(error)).observe(time.monotonic() - started)
            if error is not None and not isinstance(error, ConnectorError):
                error = crash(self._metrics, type(self.sink).__name__, None, error)
            done(error)

        self.in_flight += 1
        try:
            with self._watch.during("sink"):
                self.sink.submit(batch, settle)
        except Exception as error:  # noqa: BLE001 - whatever it is, `settle` gives it its class
            settle(error)

    def flush(self, lane: LaneId) -> None:
        """Let an asynchronous sink finish what it has of a lane.

        Raises:
            FatalError: What the sink declares, or a crash: what became of a batch it says by `done`.
        """
        try:
            self._call(self.sink.flush, lane)
        except FatalError:
            raise
        except ConnectorError as error:
            name = f"{type(self.sink).__name__}.flush"
            raise CrashError(f"{name} raised {type(error).__name__}: {error}. It says so by `done`.") from error

    def settled(self, error: ConnectorError | None) -> None:
        """Note that an asynchronous sink is done with a part."""
        self.in_flight -= 1
        if error is not None:
            self._metrics.sink_errors.labels(type(error).__name__).inc()

    def claim(self, lane: LaneInfo) -> StoredPosition | None:
        """Take ownership of a lane in a sink that holds positions."""
        position: StoredPosition | None = self._call(self.sink.claim, lane)
        return position

    def close_lane(self, lane: LaneId, reason: CloseReason) -> None:
        """Tell the sink that a lane gets no more records."""
        self.tell(InputClosed(lane, reason))

    def stop(self, cause: StopCause) -> None:
        """Send the last event and let go."""
        self.tell(Stop(cause))
        self.close()

    def close(self) -> None:
        """Let the sink go. Its data is durable already, so an error here is told and goes no further."""
        try:
            self._call(self.sink.close)
        except ConnectorError as error:
            log.warning("sink_close_failed", plugin=type(self.sink).__name__, error=str(error))

    def tell(self, event: Event) -> None:
        """Give the sink an event that carries no records. Nothing depends on how it takes it: batches are durable."""
        try:
            self._call(self.sink.on_event, event)
        except ConnectorError as error:
            plugin = type(self.sink).__name__
            log.warning("sink_notice_failed", plugin=plugin, notice=type(event).__name__, error=str(error))

    def _call(self, function: Any, *arguments: Any) -> Any:
        with self._watch.during("sink"):
            return call_plugin(self._metrics, type(self.sink).__name__, None, function, *arguments)


def _outcome(error: BaseException | None) -> str:
    match error:
        case None:
            return "ok"
        case TransientError():
            return "transient"
        case PoisonError() | RecordErrors():
            return "poison"
        case RefusedError():
            return "refused"
        case _:
            return "fatal"
