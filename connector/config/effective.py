"""What is in effect: every setting and client property with its value, secrets masked, and where it came from.

Pure. Called by `connector check` and `connector config`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.config.display import MASK, format_setting, mask_credentials
from connector.config.environment import PREFIX
from connector.config.load import SINK_PREFIX, transform_prefix
from connector.config.preflight import kafka_name
from connector.config.settings import environment_name
from connector.source.client_config import (
    BLACKLIST,
    DERIVED,
    FORCED,
    TUNED,
    GroupProtocol,
    client_properties,
    format_value,
    is_secret,
)

if TYPE_CHECKING:
    from connector.api.settings import Settings
    from connector.config.load import Config

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting or client property as it counts. `value` is empty for a setting that is off."""

    name: str
    value: str
    origin: str


def effective_settings(config: Config) -> list[Effective]:
    """Return all settings, those of the plugins too, and the client properties that were set, by environment names."""
    return [
        *_of_model(config, config.settings, PREFIX),
        *_of_model(config, config.sink_settings, SINK_PREFIX),
        *(
            each
            for transform in config.transforms
            for each in _of_model(config, transform.settings, transform_prefix(transform.name))
        ),
        *(
            Effective(kafka_name(name), _shown(name, value), config.origins[kafka_name(name)])
            for name, value in config.client.properties.items()
        ),
    ]


def effective_client(config: Config, protocol: GroupProtocol, brokers: int) -> list[Effective]:
    """Return the properties that the Kafka client gets, by its own names."""
    shares = config.shares(brokers)
    properties = client_properties(
        config.client, protocol, queue_bytes=shares.client_queue_bytes, fetch_max_bytes=shares.fetch_max_bytes
    )
    return [
        Effective(name, _shown(name, format_value(value)), _origin(config, name))
        for name, value in sorted(properties.items())
    ]


def _of_model(config: Config, settings: Settings, prefix: str) -> list[Effective]:
    names = {name: environment_name(name, prefix) for name in type(settings).model_fields}
    return [
        Effective(names[name], format_setting(field, getattr(settings, name)), config.origins.get(names[name], DEFAULT))
        for name, field in type(settings).model_fields.items()
    ]


def _shown(name: str, value: str) -> str:
    return MASK if is_secret(name) else mask_credentials(value)


def _origin(config: Config, name: str) -> str:
    if name in config.client.properties:
        return kafka_name(name)
    if name in FORCED:
        return "fixed"
    if name in DERIVED:
        return "CONNECTOR_MEMORY_BUDGET"
    if name in TUNED:
        return "tuned default"
    return {
        "partition.assignment.strategy": "CONNECTOR_ASSIGNMENT_STRATEGY",
        BLACKLIST: "CONNECTOR_DLQ_TOPIC",
    }.get(name, PREFIX + name.upper().replace(".", "_"))
