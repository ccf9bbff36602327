"""What the admin's verbs do to a run: each leaves a message for the thread that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.api.intents import EVERYTHING, Intents, Scope
from connector.config.load import reload_plugin
from connector.pipeline.messages import Replace
from connector.plugins.loader import SINK
from connector.telemetry.logs import set_level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connector.api.event import Event, JsonValue
    from connector.cli.workshop import Workshop
    from connector.config.load import Config
    from connector.runtime.controller import Controller
    from connector.runtime.params import Params


class RunVerbs:
    """The `Verbs` of a run. Called on the threads `verbs` and `admin`; what they change belongs to the main thread."""

    def __init__(self, controller: Controller, workshop: Workshop, params: Params) -> None:
        self._controller = controller
        self._workshop = workshop
        self._params = params
        self._intents = Intents()

    def set_param(self, key: str, value: JsonValue) -> None:
        """Check and store a parameter, then tell every sink."""
        self._tell(self._params.set(key, value))

    def delete_param(self, key: str) -> None:
        """Take a parameter back, then tell every sink."""
        self._tell(self._params.delete(key))

    def params(self) -> Mapping[str, JsonValue]:
        """Return what is set."""
        return self._params.shown()

    def reload(self, operator_id: str) -> None:
        """Import the newest version of a plugin, and let each pipeline take an instance of it between batches."""
        config = reload_plugin(self._workshop.config, operator_id)
        if operator_id == SINK.noun:
            self._params.change_model(config.sink.params_type)
        self._controller.request(lambda: self._replace(operator_id, config))

    def pause(self) -> None:
        """Take no more records."""
        self._hold_back(EVERYTHING, is_held_back=True)

    def resume(self) -> None:
        """Take records again."""
        self._hold_back(EVERYTHING, is_held_back=False)

    def stop(self) -> None:
        """Begin the graceful end."""
        self._controller.request_stop()

    def set_log_level(self, level: str) -> None:
        """Log from this level on."""
        set_level(level)

    def _hold_back(self, scope: Scope, *, is_held_back: bool) -> None:
        intents = self._intents = self._intents.want(scope, is_held_back=is_held_back)
        self._controller.request(lambda: self._controller.hold_back(intents))

    def _tell(self, event: Event) -> None:
        self._controller.request(lambda: self._controller.fleet.tell(event))

    def _replace(self, operator_id: str, config: Config) -> None:
        notices = self._params.all if operator_id == SINK.noun else tuple
        for pipeline in self._controller.fleet.pipelines:
            make = self._workshop.make_plugin(config, operator_id, pipeline.number)
            pipeline.put(Replace(operator_id, make, lambda: self._workshop.adopt(config), notices))
