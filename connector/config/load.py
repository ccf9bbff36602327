"""The environment, and a file of variables if wanted, to a checked `Config`; all problems at once.

Called once by a command, before any thread starts. Rules:

- `<NAME>_FILE` names a file that holds the value (one trailing line break is cut off). A setting whose own name ends in
  `_FILE` is read as itself. Both `<NAME>` and `<NAME>_FILE` are a contradiction.
- The environment wins over the file of variables, setting by setting.
- An empty value counts as unset, since `${NAME:-}` in a compose file leaves one behind.
- An unknown `CONNECTOR_*` name is an error, save the ones that Kubernetes makes for a service called `connector`
  (`CONNECTOR_PORT*`, `CONNECTOR_SERVICE_*`) and `CONNECTOR_TEST_*`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from connector.api.errors import ConfigError
from connector.config.display import MASK, is_secret, mask_credentials
from connector.config.fields import broken_rule, plain_value
from connector.config.later import LATER_VALUES, later_name
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
from connector.config.settings import PREFIX, ConnectorSettings, environment_name
from connector.sink.loader import load_sink
from connector.source import client_config
from connector.source.client_config import ClientSettings, probe_client
from connector.telemetry.logs import mask, register_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic.fields import FieldInfo

    from connector.api.settings import Settings
    from connector.api.sink import Sink

SINK_PREFIX = PREFIX + "SINK_"
_NOT_OURS = re.compile(r"CONNECTOR_(PORT|SERVICE_|TEST_).*")
_FILE = "_FILE"
_SHOWN_CHARACTERS = 100
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


@dataclass(frozen=True, slots=True)
class Reading:
    """A value as text, and where it was read: `environment`, the path of a file, or the line of a file."""

    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a process needs to start, checked. `origins` has a variable's name for what was not default."""

    settings: ConnectorSettings
    sink: type[Sink[Any]]
    sink_settings: Settings
    client: ClientSettings
    origins: Mapping[str, str]
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
        env_file: Lines of `NAME=value`; `#` begins a comment line, `export ` before the name and one pair of quotes
            around the value are taken off. Names that do not begin with `CONNECTOR_` are left alone.

    Raises:
        ConfigError: Its message has a line for each problem.
    """
    return _Loading().run(environ, env_file)


class _Loading:
    """One run of `load`. Collects problems, so that all are told at once."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def run(self, environ: Mapping[str, str], env_file: Path | None) -> Config:
        layers = [self._file_layer(env_file)] if env_file is not None else []
        layers.append({name: Reading(value, "environment") for name, value in environ.items()})
        layers = [
            {name: reading for name, reading in layer.items() if name.startswith(PREFIX) and reading.value}
            for layer in layers
        ]
        sink = self._sink(layers)
        sink_fields = None if sink is None else {environment_name(name, SINK_PREFIX) for name in _fields(sink)}
        readings = self._resolve(layers, sink_fields)
        self._register_secrets(readings, sink)

        texts = {name: reading.value for name, reading in readings.items()}
        properties = {property_name(name): text for name, text in texts.items() if name.startswith(KAFKA_PREFIX)}
        settings, wrong = self._core_settings({name: text for name, text in texts.items() if name in _CORE})
        wrong |= self._properties(properties)
        client = _client_settings(settings, properties)
        self._together(settings, client, wrong)
        sink_settings = self._sink_settings(sink, texts, settings.pipelines)
        warnings = () if self.problems else self._client_together(settings, client)
        if self.problems or sink is None or sink_settings is None:
            raise ConfigError("\n".join(self.problems))
        return Config(
            settings,
            sink,
            sink_settings,
            client,
            MappingProxyType({name: reading.origin for name, reading in readings.items()}),
            (*notes(settings, client), *warnings),
        )

    def _file_layer(self, path: Path) -> dict[str, Reading]:
        """Read a file of variables."""
        layer: dict[str, Reading] = {}
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            self.problems.append(f"--env-file {path} cannot be read: {_reason(error)}.")
            return layer
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            found = _LINE.fullmatch(text)
            if found is not None and not found[1].startswith(PREFIX):
                continue
            if found is None:
                self.problems.append(f"{path}:{number} is not NAME=value. Correct it, or begin the line with #.")
            elif found[1] in layer:
                first = layer[found[1]].origin
                self.problems.append(f"{path}:{number} sets {found[1]} again, after {first}. Remove one of them.")
            else:
                layer[found[1]] = Reading(_unquote(found[2].strip()), f"{path}:{number}")
        return layer

    def _sink(self, layers: list[dict[str, Reading]]) -> type[Sink[Any]] | None:
        """Find the sink first, because its settings decide which other names exist."""
        name = "CONNECTOR_SINK"
        chosen = Reading(ConnectorSettings.model_fields["sink"].default, "default")
        try:
            for layer in reversed(layers):
                if name in layer:
                    chosen = layer[name]
                    break
                if name + _FILE in layer:
                    chosen = _read_file(name, layer[name + _FILE])
                    break
            return load_sink(chosen.value)
        except ConfigError as error:
            self.problems.append(str(error))
            return None

    def _resolve(self, layers: list[dict[str, Reading]], sink_fields: set[str] | None) -> dict[str, Reading]:
        """Return one reading for each setting; a later layer wins."""
        readings: dict[str, Reading] = {}
        for layer in layers:
            for name, reading in layer.items():
                base = name.removesuffix(_FILE)
                if name.startswith(SINK_PREFIX) and sink_fields is None:
                    continue  # which names exist is not known without the sink
                if _is_setting(name, sink_fields):
                    readings[name] = reading
                elif name.endswith(_FILE) and _is_setting(base, sink_fields):
                    if base in layer:
                        self.problems.append(
                            f"{base} and {name} are both set, and only one counts. Remove one of them."
                        )
                        continue
                    try:
                        readings[base] = _read_file(base, reading)
                    except ConfigError as error:
                        self.problems.append(str(error))
                elif not _NOT_OURS.fullmatch(name):
                    self.problems.append(_unknown(name, sink_fields or set()))
        return readings

    def _register_secrets(self, readings: dict[str, Reading], sink: type[Sink[Any]] | None) -> None:
        secret = {environment_name(name, SINK_PREFIX) for name, field in _fields(sink).items() if is_secret(field)}
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

    def _sink_settings(self, sink: type[Sink[Any]] | None, texts: Mapping[str, str], pipelines: int) -> Settings | None:
        if sink is None or self._validate(sink.settings_type, texts, SINK_PREFIX):
            return None
        made = sink.settings_type.model_validate(_values(sink.settings_type, texts, SINK_PREFIX))
        self.problems += map(_foreign, made.problems(pipelines))
        return made


_CORE = frozenset(environment_name(field) for field in ConnectorSettings.model_fields)
_PLACEHOLDERS = {
    "bootstrap_servers": "unknown",
    "group_id": "unknown",
    "topics": "unknown",
    "memory_budget": LEAST_BYTES,
}


def _fields(sink: type[Sink[Any]] | None) -> dict[str, FieldInfo]:
    return {} if sink is None else sink.settings_type.model_fields


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
    )


def _is_setting(name: str, sink_fields: set[str] | None) -> bool:
    if name.startswith(KAFKA_PREFIX):
        # Any other name is judged with the properties; here it decides who reads the file, the client or we.
        return not name.endswith(_FILE) or not probe_client({property_name(name): ""}).is_unknown
    return name in _CORE or name in (sink_fields or ())


def _unknown(name: str, sink_fields: set[str]) -> str:
    instead = later_name(name)
    if instead is not None:
        return f"{name} is not in this version. {instead}"
    is_sinks = name.startswith(SINK_PREFIX)
    prefix, known = (SINK_PREFIX, sorted(sink_fields)) if is_sinks else (PREFIX, sorted(_CORE))
    # Without the prefix, which would make any two names look alike.
    endings = [each.removeprefix(prefix) + suffix for each in known for suffix in ("", _FILE)]
    nearest = get_close_matches(name.removeprefix(prefix), endings, n=1, cutoff=0.75)
    meant = f"Did you mean {prefix}{nearest[0]}? " if nearest else ""
    if is_sinks:
        has = f"It has {', '.join(known)}. " if known else "It has none. "
        return f"{name}: the sink has no such setting. {meant or has}Correct or remove it."
    return f"{name}: there is no such setting. {meant}Correct or remove it."


def _read_file(name: str, path: Reading) -> Reading:
    """Read the value of a setting from a file.

    Raises:
        ConfigError: It cannot be read, or is empty.
    """
    try:
        content = Path(path.value).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}{_FILE}={path.value} cannot be read: {_reason(error)}.") from error
    value = content.removesuffix("\n").removesuffix("\r")
    if not value:
        raise ConfigError(f"{name}{_FILE}={path.value} is empty. Write the value into the file.")
    return Reading(value, path.value)


def _foreign(text: str) -> str:
    """Mask secrets in what a plugin or the client says; it may quote any value."""
    return str(mask(mask_credentials(text)))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


def _unquote(text: str) -> str:
    is_quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if is_quoted else text


def _shown(name: str, texts: Mapping[str, str], field: FieldInfo | None) -> str:
    """Return `=value` for an error, never a secret; nothing when the variable is not set."""
    if name not in texts:
        return ""
    if field is not None and is_secret(field):
        return f"={MASK}"
    text = mask_credentials(texts[name])
    return "=" + (text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
