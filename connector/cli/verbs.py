"""What the admin's verbs do to a run: each leaves a message for the thread that does it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from connector.admin.verbs import Change
from connector.api.errors import ConfigError
from connector.api.intents import Intents
from connector.config.load import reload_plugin
from connector.pipeline.messages import Replace
from connector.plugins.loader import SINK
from connector.source.client_config import ignored_topics
from connector.source.cluster import matches
from connector.telemetry.logs import set_level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from connector.api.event import Event, JsonValue
    from connector.api.intents import Scope
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
        self._intents = Intents()  # belongs to the thread `admin`

    def set_param(self, key: str, value: JsonValue) -> Change:
        """Check and store a parameter, then tell every sink."""
        return self._change_param(key, lambda: self._params.set(key, value))

    def delete_param(self, key: str) -> Change:
        """Take a parameter back, then tell every sink."""
        return self._change_param(key, lambda: self._params.delete(key))

    def params(self) -> Mapping[str, JsonValue]:
        """Return what is set."""
        return self._params.shown()

    def reload(self, operator_id: str) -> Change:
        """Import the newest version of a plugin, and let each pipeline take an instance of it between batches."""
        config = reload_plugin(self._workshop.config, operator_id)
        if operator_id == SINK.noun:
            self._params.change_model(config.sink.params_type)
        self._controller.request(lambda: self._replace(operator_id, config))
        return Change(operator_id, None, None)

    def pause(self, scope: Scope) -> Change:
        """Take no more records of it, also of partitions that come later."""
        return self._hold_back(scope, is_held_back=True)

    def resume(self, scope: Scope) -> Change:
        """Take its records again."""
        return self._hold_back(scope, is_held_back=False)

    def stop(self) -> Change:
        """Begin the graceful end."""
        was_stopping = self._controller.is_stopping
        self._controller.request_stop()
        return Change("", "stopping" if was_stopping else "running", "stopping", is_change=not was_stopping)

    def set_log_level(self, level: str) -> Change:
        """Log from this level on."""
        before, after = set_level(level), level.lower()
        return Change("", before, after, is_change=after != before)

    def _change_param(self, key: str, change: Callable[[], Event | None]) -> Change:
        before = self._params.shown()
        event = change()
        if event is not None:
            self._tell(event)
        after = self._params.shown()
        return Change(key, _only(key, before), _only(key, after), is_change=event is not None)

    def _hold_back(self, scope: Scope, *, is_held_back: bool) -> Change:
        if scope.topic is not None:
            self._check_subscribed(scope.topic)
        before, intents = self._intents, self._intents.want(scope, is_held_back=is_held_back)
        if intents != before:
            self._intents = intents
            self._controller.request(lambda: self._controller.hold_back(intents))
        return Change(str(scope), str(before), str(intents), is_change=intents != before)

    def _check_subscribed(self, topic: str) -> None:
        config = self._workshop.config
        topics = config.settings.topics
        if matches(topics, topic) and not matches(ignored_topics(config.client), topic):
            return
        nearest = get_close_matches(topic, topics, n=1)
        meant = f" Did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(
            f"The topic {topic} is not one that is read here: CONNECTOR_TOPICS={','.join(topics)}.{meant}"
        )

    def _tell(self, event: Event) -> None:
        self._controller.request(lambda: self._controller.fleet.tell(event))

    def _replace(self, operator_id: str, config: Config) -> None:
        notices = self._params.all if operator_id == SINK.noun else tuple
        for pipeline in self._controller.fleet.pipelines:
            make = self._workshop.make_plugin(config, operator_id, pipeline.number)
            pipeline.put(Replace(operator_id, make, lambda: self._workshop.adopt(config), notices))


def _only(key: str, params: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return one parameter, if it is set: its name stays with the value, since a name alone may tell a secret."""
    return {key: params[key]} if key in params else {}
