"""The environment, and a file of variables if wanted, to a checked `Config`; all problems at once.

Called once by a command, before any thread starts. Rules:

- What `connector.config.environment` says of files and layers. A setting whose own name ends in `_FILE` is read as
  itself. Both `<NAME>` and `<NAME>_FILE` are a contradiction.
- An unknown `CONNECTOR_*` name is an error, save the ones that Kubernetes makes for a service called `connector`
  (`CONNECTOR_PORT*`, `CONNECTOR_SERVICE_*`) and `CONNECTOR_TEST_*`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from connector.api.errors import ConfigError
from connector.api.sink import SinkContext
from connector.config.display import MASK, is_secret, mask_credentials
from connector.config.environment import FILE_SUFFIX, PREFIX, Reading, find_reading, read_layers, read_value
from connector.config.fields import broken_rule, plain_value
from connector.config.later import LATER_NAMES, LATER_VALUES
from connector.config.memory import LEAST_BYTES, Shares, divide
from connector.config.preflight import (
    KAFKA_PREFIX,
    client_refusals,
    contradictions,
    kafka_name,
    notes,
    property_name,
    property_problems,
)
from connector.config.settings import ConnectorSettings, environment_name
from connector.config.transform_list import TransformChoice, parse_transforms
from connector.plugins.loader import SINK, TRANSFORM, Plugins
from connector.source import client_config
from connector.source.client_config import ClientSettings, probe_client
from connector.telemetry.masking import mask, register_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic.fields import FieldInfo

    from connector.api.settings import Settings
    from connector.api.sink import Sink
    from connector.api.transform import Transform

SINK_PREFIX = PREFIX + "SINK_"
TRANSFORM_PREFIX = PREFIX + "TRANSFORM_"
_NOT_OURS = re.compile(r"CONNECTOR_(PORT|SERVICE_|TEST_).*")
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class TransformConfig:
    """A transform of `CONNECTOR_TRANSFORMS` and its settings."""

    name: str
    plugin: str
    transform: type[Transform[Any]]
    settings: Settings


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a process needs to start, checked. `origins` has a variable's name for what was not default."""

    settings: ConnectorSettings
    sink: type[Sink[Any]]
    sink_settings: Settings
    transforms: tuple[TransformConfig, ...]
    client: ClientSettings
    origins: Mapping[str, str]
    plugins: Plugins
    texts: Mapping[str, str] = field(repr=False)  # what was read, secrets too: a reloaded plugin reads its own again
    notes: tuple[str, ...] = ()

    def shares(self, brokers: int) -> Shares:
        """Divide the memory budget for a cluster with so many brokers.

        Raises:
            ConfigError: The budget is too small for them.
        """
        return divide(self.settings.memory_budget, brokers)


def load(environ: Mapping[str, str], env_file: Path | None = None) -> Config:
    """Read and check all settings.

    Args:
        environ: The environment.
        env_file: A file of variables.

    Raises:
        ConfigError: Its message has a line for each problem.
    """
    return _Loading().run(environ, env_file)


def load_connection(environ: Mapping[str, str], env_file: Path | None = None) -> ClientSettings:
    """Read and check how to connect, and `CONNECTOR_DLQ_TOPIC`; no other setting has to be there, or is looked at.

    Args:
        environ: The environment.
        env_file: As for `load`.

    Raises:
        ConfigError: Its message has a line for each problem.
    """
    return _Loading().connection(environ, env_file)


def plugins_of(environ: Mapping[str, str], env_file: Path | None = None) -> Plugins:
    """Return the plugins that these settings give access to, whatever else is wrong with the settings."""
    loading = _Loading()
    return loading.plugins(read_layers(environ, env_file, loading.problems))


def reload_plugin(config: Config, operator_id: str) -> Config:
    """Import the newest version of the sink (`sink`) or of a transform, by its name, and check its settings again.

    Runs the plugin's code, and may take long. What was made of `config` goes on as it is.

    Raises:
        ConfigError: No such operator, its code cannot be imported, or it does not take the settings that are set.
    """
    loading = _Loading()
    if operator_id == SINK.noun:
        sink = config.plugins.reload(SINK, config.settings.sink)
        loading.dropped(config.sink, sink, config.texts, SINK_PREFIX)
        settings = loading.sink_settings(sink, config.texts, config.settings)
        if loading.problems or settings is None:
            raise ConfigError("\n".join(loading.problems))
        return replace(config, sink=sink, sink_settings=settings)
    for index, old in enumerate(config.transforms):
        if old.name == operator_id:
            transform, prefix = config.plugins.reload_transform(old.plugin), transform_prefix(old.name)
            loading.dropped(old.transform, transform, config.texts, prefix)
            settings = loading.plugin_settings(transform, config.texts, prefix, config.settings.pipelines)
            if loading.problems or settings is None:
                raise ConfigError("\n".join(loading.problems))
            new = TransformConfig(old.name, old.plugin, transform, settings)
            return replace(config, transforms=(*config.transforms[:index], new, *config.transforms[index + 1 :]))
    known = ", ".join([SINK.noun, *(each.name for each in config.transforms)])
    raise ConfigError(f"There is no {operator_id!r} to reload. There are: {known}.")


def transform_prefix(name: str) -> str:
    """Return how the environment variables of a transform's settings begin."""
    return environment_name(name.replace("-", "_"), TRANSFORM_PREFIX) + "_"


class _Loading:
    """One run of `load`. Collects problems, so that all are told at once."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def run(self, environ: Mapping[str, str], env_file: Path | None) -> Config:
        layers = read_layers(environ, env_file, self.problems)
        plugins = self.plugins(layers)
        sink = self._sink(layers, plugins)
        transforms = self._transforms(layers, plugins)
        names = _PluginNames.of(sink, transforms)
        readings = self._resolve(layers, names)
        self._register_secrets(readings, names)
        self.problems += names.collisions

        texts = {name: reading.value for name, reading in readings.items()}
        properties = {property_name(name): text for name, text in texts.items() if name.startswith(KAFKA_PREFIX)}
        settings, wrong = self._core_settings({name: text for name, text in texts.items() if name in _CORE})
        wrong |= self._properties(properties)
        client = _client_settings(settings, properties)
        self._together(settings, client, wrong)
        sink_settings = self.sink_settings(sink, texts, settings)
        configured = [
            TransformConfig(choice.name, choice.plugin, transform, made)
            for choice, transform in (transforms or {}).items()
            if (made := self.plugin_settings(transform, texts, transform_prefix(choice.name), settings.pipelines))
        ]
        warnings = () if self.problems else self._client_together(settings, client)
        if self.problems or sink is None or sink_settings is None:
            raise ConfigError("\n".join(self.problems))
        return Config(
            settings,
            sink,
            sink_settings,
            tuple(configured),
            client,
            MappingProxyType({name: reading.origin for name, reading in readings.items()}),
            plugins,
            MappingProxyType(texts),
            (*notes(settings, client), *warnings),
        )

    def connection(self, environ: Mapping[str, str], env_file: Path | None) -> ClientSettings:
        layers = [
            {
                name: reading
                for name, reading in layer.items()
                if name.startswith(KAFKA_PREFIX) or name.removesuffix(FILE_SUFFIX) in _CONNECTION
            }
            for layer in read_layers(environ, env_file, self.problems)
        ]
        names = _PluginNames.of(None, None)
        readings = self._resolve(layers, names)
        self._register_secrets(readings, names)
        texts = {name: reading.value for name, reading in readings.items()}
        properties = {property_name(name): text for name, text in texts.items() if name.startswith(KAFKA_PREFIX)}
        core = {name: text for name, text in texts.items() if name in _CORE}
        settings, _ = self._core_settings({"CONNECTOR_GROUP_ID": "unknown", "CONNECTOR_TOPICS": "unknown", **core})
        self._properties(properties)
        client = _client_settings(settings, properties)
        if not self.problems:
            self._client_together(settings, client)
        if self.problems:
            raise ConfigError("\n".join(self.problems))
        return client

    def plugins(self, layers: list[dict[str, Reading]]) -> Plugins:
        """Find the directory of plugins first; what is wrong with it is told with the other settings."""
        with suppress(ConfigError):
            directory = find_reading(layers, "CONNECTOR_PLUGIN_DIR")
            if directory is not None and Path(directory.value).is_dir():
                return Plugins(Path(directory.value))
        return Plugins()

    def _sink(self, layers: list[dict[str, Reading]], plugins: Plugins) -> type[Sink[Any]] | None:
        """Find the sink before its settings, because it decides which names exist."""
        try:
            chosen = find_reading(layers, SINK.setting)
            return plugins.load(SINK, chosen.value if chosen else ConnectorSettings.model_fields["sink"].default)
        except ConfigError as error:
            self.problems.append(str(error))
            return None

    def _transforms(
        self, layers: list[dict[str, Reading]], plugins: Plugins
    ) -> dict[TransformChoice, type[Transform[Any]]] | None:
        """Find the transforms likewise; None when one is missing, or the list is wrong, which is told later."""
        found: dict[TransformChoice, type[Transform[Any]]] = {}
        try:
            chosen = find_reading(layers, TRANSFORM.setting)
            choices = parse_transforms(chosen.value) if chosen else ()
        except (ConfigError, ValueError):
            return None
        for choice in choices:
            try:
                found[choice] = plugins.load_transform(choice.plugin)
            except ConfigError as error:
                self.problems.append(str(error))
        return found if len(found) == len(choices) else None

    def _resolve(self, layers: list[dict[str, Reading]], plugin: _PluginNames) -> dict[str, Reading]:
        """Return one reading for each setting; a later layer wins."""
        readings: dict[str, Reading] = {}
        for layer in layers:
            for name, reading in layer.items():
                base = name.removesuffix(FILE_SUFFIX)
                if name.startswith(plugin.unknown_prefixes):
                    continue  # which names exist is not known without the plugin
                if _is_setting(name, plugin):
                    readings[name] = reading
                elif name.endswith(FILE_SUFFIX) and _is_setting(base, plugin):
                    if base in layer:
                        self.problems.append(
                            f"{base} and {name} are both set, and only one counts. Remove one of them."
                        )
                        continue
                    try:
                        readings[base] = read_value(base, reading)
                    except ConfigError as error:
                        self.problems.append(str(error))
                elif not _NOT_OURS.fullmatch(name):
                    self.problems.append(_unknown(name, plugin))
        return readings

    def _register_secrets(self, readings: dict[str, Reading], plugin: _PluginNames) -> None:
        fields = {environment_name(name): field for name, field in ConnectorSettings.model_fields.items()}
        secret = {name for name, field in {**fields, **plugin.fields}.items() if is_secret(field)}
        for name, reading in readings.items():
            is_property = name.startswith(KAFKA_PREFIX) and client_config.is_secret(property_name(name))
            if is_property or name in secret:
                register_secret(reading.value)

    def _core_settings(self, texts: dict[str, str]) -> tuple[ConnectorSettings, set[str]]:
        """Return the settings and the names of those that are wrong, which stand at a default or a placeholder."""
        later = {name for name, text in texts.items() if (name, text) in LATER_VALUES}
        for name in sorted(later):
            self.problems.append(f"{name}={texts[name]} is not in this version. {LATER_VALUES[name, texts[name]]}")
        known = {name: text for name, text in texts.items() if name not in later}
        wrong = later | self._validate(ConnectorSettings, known, PREFIX)
        kept = {
            field: texts[name]
            for field in ConnectorSettings.model_fields
            if (name := environment_name(field)) in texts and name not in wrong
        }
        placeholders = {field: value for field, value in _PLACEHOLDERS.items() if environment_name(field) in wrong}
        return ConnectorSettings.model_validate(kept | placeholders), wrong

    def _validate(self, model: type[Settings], texts: Mapping[str, str], prefix: str) -> set[str]:
        """Collect what is wrong with single fields; return the names of those."""
        wrong: set[str] = set()
        try:
            model.model_validate(_values(model, texts, prefix))
        except ValidationError as error:
            for found in error.errors(include_url=False):
                field_name = str(found["loc"][0]) if found["loc"] else ""
                field = model.model_fields.get(field_name)
                name = environment_name(field_name, prefix) if field is not None else prefix + "*"
                if name not in wrong:
                    self.problems.append(f"{name}{_shown(name, texts, field)} {_foreign(broken_rule(found, field))}")
                wrong.add(name)
        return wrong

    def _properties(self, properties: dict[str, str]) -> set[str]:
        found = property_problems(properties)
        self.problems += map(_foreign, found.values())
        return {kafka_name(name) for name in found}

    def _together(self, settings: ConnectorSettings, client: ClientSettings, wrong: set[str]) -> None:
        self.problems += [
            contradiction.message
            for contradiction in contradictions(settings, client)
            if not contradiction.names & wrong
        ]

    def _client_together(self, settings: ConnectorSettings, client: ClientSettings) -> Iterable[str]:
        shares = divide(settings.memory_budget, brokers=1)
        problems, warnings = client_refusals(client, shares.client_queue_bytes, shares.fetch_max_bytes)
        self.problems += map(_foreign, problems)
        return map(_foreign, warnings)

    def sink_settings(
        self, sink: type[Sink[Any]] | None, texts: Mapping[str, str], settings: ConnectorSettings
    ) -> Settings | None:
        """Return the settings of the sink, or None with a problem told.

        Under `CONNECTOR_TOMBSTONES=delete` an instance, which is never opened, is asked whether it deletes.
        """
        made = self.plugin_settings(sink, texts, SINK_PREFIX, settings.pipelines)
        if sink is not None and made is not None and settings.tombstones == "delete":
            found = made.delete_problems()
            context = SinkContext(settings.group_id, pipelines=settings.pipelines, tombstones="delete")
            if not found and not sink(made, context).deletes:
                cannot = f"the sink {settings.sink} cannot delete. Set it to write, ignore or fail."
                found = [f"CONNECTOR_TOMBSTONES=delete: {cannot}"]
            self.problems += map(_foreign, found)
        return made

    def plugin_settings(
        self, plugin: type[Sink[Any] | Transform[Any]] | None, texts: Mapping[str, str], prefix: str, pipelines: int
    ) -> Settings | None:
        """Return the settings of a plugin, or None with a problem told."""
        if plugin is None or self._validate(plugin.settings_type, texts, prefix):
            return None
        made = plugin.settings_type.model_validate(_values(plugin.settings_type, texts, prefix))
        self.problems += map(_foreign, made.problems(pipelines))
        return made

    def dropped(
        self,
        old: type[Sink[Any] | Transform[Any]],
        new: type[Sink[Any] | Transform[Any]],
        texts: Mapping[str, str],
        prefix: str,
    ) -> None:
        """Tell which settings that are set a new version of a plugin does not have any more."""
        for name in old.settings_type.model_fields.keys() - new.settings_type.model_fields.keys():
            if (variable := environment_name(name, prefix)) in texts:
                self.problems.append(f"{variable}: the new version has no such setting. Keep it, or start anew.")


@dataclass(frozen=True, slots=True)
class _PluginNames:
    """Which variables the chosen plugins have; nothing is known of names with an `unknown` prefix, without plugin."""

    fields: Mapping[str, FieldInfo]
    unknown_prefixes: tuple[str, ...]
    collisions: tuple[str, ...]

    @classmethod
    def of(
        cls, sink: type[Sink[Any]] | None, transforms: Mapping[TransformChoice, type[Transform[Any]]] | None
    ) -> _PluginNames:
        """Collect the names of the sink and the transforms that were found."""
        fields: dict[str, FieldInfo] = {}
        if sink is not None:
            fields |= {environment_name(name, SINK_PREFIX): each for name, each in _fields_of(sink)}
        collisions = []
        for choice, transform in (transforms or {}).items():
            prefix = transform_prefix(choice.name)
            own = {environment_name(name, prefix): each for name, each in _fields_of(transform)}
            collisions += [
                f"{name} is a setting of two transforms in CONNECTOR_TRANSFORMS. Give one of them another name."
                for name in fields.keys() & own.keys()
            ]
            fields |= own
        unknown = [(SINK_PREFIX, sink), (TRANSFORM_PREFIX, transforms)]
        return cls(fields, tuple(prefix for prefix, found in unknown if found is None), tuple(collisions))


_CORE = frozenset(environment_name(field) for field in ConnectorSettings.model_fields)
_CONNECTION = frozenset({"CONNECTOR_BOOTSTRAP_SERVERS", "CONNECTOR_DLQ_TOPIC"})
_PLACEHOLDERS = {
    "bootstrap_servers": "unknown",
    "group_id": "unknown",
    "topics": "unknown",
    "memory_budget": LEAST_BYTES,
}


def _fields_of(plugin: type[Sink[Any] | Transform[Any]]) -> Iterable[tuple[str, FieldInfo]]:
    return plugin.settings_type.model_fields.items()


def _values(model: type[Settings], texts: Mapping[str, str], prefix: str) -> dict[str, Any]:
    return {
        name: plain_value(field, texts[variable])
        for name, field in model.model_fields.items()
        if (variable := environment_name(name, prefix)) in texts
    }


def _client_settings(settings: ConnectorSettings, properties: Mapping[str, str]) -> ClientSettings:
    return ClientSettings(
        bootstrap_servers=",".join(settings.bootstrap_servers),
        group_id=settings.group_id,
        group_protocol=settings.group_protocol,
        assignment_strategy=settings.assignment_strategy
        if "assignment_strategy" in settings.model_fields_set
        else None,
        properties=MappingProxyType(dict(properties)),
        dlq_topic=settings.dlq_topic,
    )


def _is_setting(name: str, plugin: _PluginNames) -> bool:
    if name.startswith(KAFKA_PREFIX):
        # Any other name is judged with the properties; here it decides who reads the file, the client or we.
        return not name.endswith(FILE_SUFFIX) or not probe_client({property_name(name): ""}).is_unknown
    return name in _CORE or name in plugin.fields


def _unknown(name: str, plugin: _PluginNames) -> str:
    instead = LATER_NAMES.get(name)
    if instead is not None:
        return f"{name} is not in this version. {instead}"
    prefix = next((each for each in (SINK_PREFIX, TRANSFORM_PREFIX) if name.startswith(each)), PREFIX)
    known = sorted(_CORE if prefix == PREFIX else (each for each in plugin.fields if each.startswith(prefix)))
    # Without the prefix, which would make any two names look alike.
    endings = [each.removeprefix(prefix) + suffix for each in known for suffix in ("", FILE_SUFFIX)]
    nearest = get_close_matches(name.removeprefix(prefix), endings, n=1, cutoff=0.75)
    meant = f"Did you mean {prefix}{nearest[0]}? " if nearest else ""
    if prefix == SINK_PREFIX:
        has = f"It has {', '.join(known)}. " if known else "It has none. "
        return f"{name}: the sink has no such setting. {meant or has}Correct or remove it."
    if prefix == TRANSFORM_PREFIX:
        has = f"There are {', '.join(known)}. " if known else ""
        return f"{name}: no transform in CONNECTOR_TRANSFORMS has such a setting. {meant or has}Correct or remove it."
    return f"{name}: there is no such setting. {meant}Correct or remove it."


def _foreign(text: str) -> str:
    """Mask secrets in what a plugin or the client says; it may quote any value."""
    return str(mask(mask_credentials(text)))


def _shown(name: str, texts: Mapping[str, str], field: FieldInfo | None) -> str:
    """Return `=value` for an error, never a secret; nothing when the variable is not set."""
    if name not in texts:
        return ""
    if field is not None and is_secret(field):
        return f"={MASK}"
    text = mask_credentials(texts[name])
    return "=" + (text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
