"""One sink instance and its event stream: calls the plugin, measures it, and gives every error a class.

Belongs to one pipeline and is called on its thread only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from connector.api.errors import ConnectorError, FatalError, PoisonError, RefusedError, TransientError
from connector.api.event import Event, Input, InputClosed, Stop
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from connector.api.batch import Batch
    from connector.api.event import CloseReason, StopCause
    from connector.api.sink import LaneInfo, Sink, StoredPosition
    from connector.api.types import LaneId
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)


class SinkRunner:
    """Calls a sink. Only `ConnectorError`s come out: what a plugin raises besides is a bug in it, and fatal."""

    def __init__(self, sink: Sink[Any], metrics: Metrics) -> None:
        self._sink = sink
        self._metrics = metrics
        self.holds_positions = sink.holds_positions

    def open(self) -> None:
        """Let the sink connect."""
        self._call(self._sink.open)

    def write(self, batch: Batch) -> None:
        """Send one batch; returns when it is durable."""
        started = time.monotonic()
        outcome = "fatal"
        try:
            self._call(self._sink.on_event, Input(batch.metadata.lane, batch.metadata, batch))
            outcome = "ok"
        except TransientError:
            outcome = "transient"
            raise
        except PoisonError:
            outcome = "poison"
            raise
        except RefusedError:
            outcome = "refused"
            raise
        finally:
            self._metrics.sink_write_seconds.labels(outcome).observe(time.monotonic() - started)

    def claim(self, lane: LaneInfo) -> StoredPosition | None:
        """Take ownership of a lane in a sink that holds positions."""
        position: StoredPosition | None = self._call(self._sink.claim, lane)
        return position

    def close_lane(self, lane: LaneId, reason: CloseReason) -> None:
        """Tell the sink that a lane gets no more records."""
        self._tell(InputClosed(lane, reason))

    def stop(self, cause: StopCause) -> None:
        """Send the last event and let go."""
        self._tell(Stop(cause))
        self.close()

    def close(self) -> None:
        """Let the sink go. Its data is durable already, so an error here is told and goes no further."""
        try:
            self._call(self._sink.close)
        except ConnectorError as error:
            log.warning("sink_close_failed", error=str(error))

    def _tell(self, event: Event) -> None:
        # Nothing depends on how a sink takes a notice: the batches before it are durable already.
        try:
            self._call(self._sink.on_event, event)
        except ConnectorError as error:
            log.warning("sink_notice_failed", notice=type(event).__name__, error=str(error))

    def _call(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ConnectorError as error:
            self._metrics.sink_errors.labels(type(error).__name__).inc()
            raise
        except Exception as error:
            self._metrics.sink_errors.labels(type(error).__name__).inc()
            log.exception("sink_bug", sink=type(self._sink).__name__)
            raise FatalError(
                f"{type(self._sink).__name__} raised {type(error).__name__}: {error}. A sink raises TransientError for "
                "what may work later and PoisonError for a record it can never write; anything else is a bug in it."
            ) from error
