"""Calls into plugins: every error that comes out has a class. Used on the thread of the pipeline that owns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connector.api.errors import ConnectorError, FatalError
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)


class CrashError(FatalError):
    """A plugin raised what it should not: a bug in it. Its pipeline is started anew, up to a limit.

    `node` is the transform that failed; None: the sink, which is the pipeline's own.
    """

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


def call_plugin(metrics: Metrics, name: str, node: str | None, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call and return. `name` is what messages call the plugin; `node` a transform's name, None for the sink.

    Raises:
        ConnectorError: What the plugin declares, or a `CrashError` for anything else.
    """
    try:
        return function(*arguments)
    except ConnectorError as error:
        metrics.sink_errors.labels(type(error).__name__).inc()
        raise
    except Exception as error:
        raise crash(metrics, name, node, error) from error


def crash(metrics: Metrics, name: str, node: str | None, error: BaseException) -> CrashError:
    """Count and log an error that a plugin should not raise, and return what it means."""
    metrics.sink_errors.labels(type(error).__name__).inc()
    log.error("plugin_crashed", plugin=name, error_class=type(error).__name__, exc_info=error)
    return CrashError(
        f"{name} raised {type(error).__name__}: {error}. A plugin raises TransientError for what may work later and "
        "PoisonError for a record that never will; anything else is a bug in it.",
        node,
    )
