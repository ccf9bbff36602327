"""One transform instance of a pipeline: calls the plugin. On the pipeline's thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connector.api.batch import Batch
from connector.api.errors import ConnectorError
from connector.sink.plugin import CrashError, call_plugin
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from connector.api.transform import Transform
    from connector.telemetry.metrics import Metrics
    from connector.telemetry.stopwatch import Stopwatch

log = get_logger(__name__)


class TransformRunner:
    """Calls a transform. Only `ConnectorError`s come out: what a plugin raises besides is a crash."""

    def __init__(self, name: str, transform: Transform[Any], metrics: Metrics, watch: Stopwatch) -> None:
        self.name = name
        self._transform = transform
        self._metrics = metrics
        self._watch = watch

    def open(self) -> None:
        """Let the transform prepare."""
        self._call(self._transform.open)

    def apply(self, batch: Batch) -> Batch:
        """Return what goes on."""
        result = self._call(self._transform.apply, batch)
        # A forgotten `return`, say, must not drop records in silence.
        if not isinstance(result, Batch) or len(result) > len(batch) or result.metadata != batch.metadata:
            what = f"{len(result)} records of {len(batch)}" if isinstance(result, Batch) else type(result).__name__
            raise CrashError(
                f"The transform {self.name} returned {what}; it returns the batch, or what select and with_column make "
                "of it.",
                self.name,
            )
        return result

    def close(self) -> None:
        """Let the transform go."""
        try:
            self._call(self._transform.close)
        except ConnectorError as error:
            log.warning("transform_close_failed", operator=self.name, error=str(error))

    def _call(self, function: Any, *arguments: Any) -> Any:
        with self._watch.during("transform"):
            return call_plugin(self._metrics, type(self._transform).__name__, self.name, function, *arguments)
