"""`SinkPositions`: the positions that the configured sink holds, read and reset for a command. One thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connector.api.errors import ConnectorError, FatalError
from connector.sink.plugin import call_plugin
from connector.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from connector.api.sink import Sink, StoredPosition
    from connector.offsets.state import Key


class SinkPositions:
    """The sink, seen from outside a run.

    Args:
        name: As in `CONNECTOR_SINK`.
        sink: An instance of its own, which is never opened.
    """

    def __init__(self, name: str, sink: Sink[Any]) -> None:
        self.name = name
        self._sink = sink
        self._metrics = Metrics()  # of the calls, which nobody reads

    @property
    def are_held(self) -> bool:
        """Whether the sink holds positions, so that lanes start from them."""
        return self._sink.holds_positions

    @property
    def are_resettable(self) -> bool:
        """Whether they can be read and reset."""
        return self.are_held and self._sink.resets_positions

    def read(self) -> Mapping[Key, StoredPosition]:
        """Return the positions of the group; none if the sink holds none, or cannot tell.

        Raises:
            FatalError: The sink cannot be asked.
        """
        if not self.are_resettable:
            return {}
        found: Mapping[Key, StoredPosition] = self._call("read its positions", self._sink.read_positions)
        return found

    def reset(self, positions: Mapping[Key, StoredPosition]) -> None:
        """Set positions, all of them or none, and refuse whoever claimed them before.

        Raises:
            FatalError: The sink could not; nothing is set.
        """
        self._call("reset its positions", self._sink.reset_positions, positions)

    def close(self) -> None:
        """Let the sink go."""
        self._sink.close()

    def _call(self, doing: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call_plugin(self._metrics, f"the sink {self.name}", None, function, *arguments)
        except FatalError:
            raise
        except ConnectorError as error:
            raise FatalError(f"the sink {self.name} could not {doing}: {error}") from error
