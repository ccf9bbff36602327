"""Makes the parts of a run from its configuration: sinks, transforms, pipelines, and the source's settings.

The configuration is replaced when a plugin is reloaded, so a pipeline that is made later has the newest version.
"""

from __future__ import annotations

import logging
import platform
from functools import partial
from typing import TYPE_CHECKING, Any

from connector.api.sink import SinkContext
from connector.dlq.flood import FloodLimit
from connector.dlq.writer import DeadLetterWriter, OnTooLarge, WriterSettings
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.decode import Format
from connector.pipeline.rejects import OnPoison, Rejects
from connector.pipeline.screen import Screen, Tombstones
from connector.pipeline.worker import Pipeline, PipelineSettings, Plugins
from connector.plugins.loader import SINK
from connector.sink.retry import Backoff
from connector.source.client_config import admin_properties, client_properties, ignored_topics, is_eager, protocols
from connector.source.cluster import matches
from connector.source.position import StartPolicies
from connector.source.settings import ClientPlan, SourceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from connector.api.event import Event
    from connector.api.settings import Secret
    from connector.api.sink import Sink
    from connector.api.transform import Transform
    from connector.config.load import Config, TransformConfig
    from connector.config.settings import ConnectorSettings
    from connector.pipeline.decode import Schemas
    from connector.pipeline.messages import Report
    from connector.pipeline.registry import Registry
    from connector.source.membership import Membership
    from connector.telemetry.metrics import Metrics


class Workshop:
    """Makes parts. `config` is replaced as a whole, by the first pipeline in which a new version runs; any thread reads
    it. The schema registry is one for all pipelines.

    Raises:
        ConfigError: The settings of the schema registry cannot be used.
    """

    def __init__(
        self, config: Config, metrics: Metrics, report: Callable[[Report], None], membership: Membership
    ) -> None:
        self.config = config
        self._membership = membership
        self._metrics = metrics
        self._report = report
        self._registry = _registry(config, metrics)

    def make_pipeline(self, number: int, incarnation: int, notices: Sequence[Event]) -> Pipeline:
        """Return a pipeline; nothing of it connects before it starts."""
        config = self.config
        names = [each.name for each in config.transforms]
        transforms = [(name, partial(self._make_transform, config, name, number)) for name in names]
        return Pipeline(
            number=number,
            incarnation=incarnation,
            plugins=Plugins(partial(self._make_sink, config, number), transforms),
            rejects=self._make_rejects(),
            settings=_pipeline_settings(self.config, self._registry),
            metrics=self._metrics,
            report=self._report,
            notices=notices,
        )

    def make_plugin(self, config: Config, operator_id: str, number: int) -> Callable[[], Sink[Any] | Transform[Any]]:
        """Return what makes a pipeline's instance of the sink (`sink`) or of a transform, of this configuration."""
        if operator_id == SINK.noun:
            return partial(self._make_sink, config, number)
        return partial(self._make_transform, config, operator_id, number)

    def adopt(self, config: Config) -> None:
        """Take a configuration whose new plugin runs, so that a pipeline that is made later has it too."""
        self.config = config

    def holds_positions(self) -> bool:
        """Whether the sink holds positions. Makes an instance that is never opened."""
        return self._make_sink(self.config, 0).holds_positions

    def commits_positions(self) -> bool:
        """Whether the sink commits the group's positions. Makes an instance that is never opened."""
        return self._make_sink(self.config, 0).commits_positions

    def close(self) -> None:
        """Let go what all pipelines share. Does not wait."""
        if self._registry is not None:
            self._registry.close()

    def _make_sink(self, config: Config, number: int) -> Sink[Any]:
        return config.sink(config.sink_settings, self._context(number))

    def _make_transform(self, config: Config, name: str, number: int) -> Transform[Any]:
        found: TransformConfig = next(each for each in config.transforms if each.name == name)
        return found.transform(found.settings, self._context(number))

    def _context(self, number: int) -> SinkContext:
        settings = self.config.settings
        return SinkContext(
            group_id=settings.group_id,
            pipeline=number,
            pipelines=settings.pipelines,
            host=platform.node(),
            tombstones="delete" if settings.tombstones == "delete" else "write",
            value_format=settings.value_format,
            connection=_connection(self.config),
            group_commit=self._membership.group_commit,
            subscribes=partial(_subscribes, settings.topics, ignored_topics(self.config.client)),
        )

    def _make_rejects(self) -> Rejects:
        settings = self.config.settings
        flood = FloodLimit(
            max_ratio=settings.dlq_max_ratio, window=settings.dlq_window, max_consecutive=settings.dlq_max_consecutive
        )
        writer = None
        if settings.on_poison == "dlq" and settings.dlq_topic is not None:
            writer = DeadLetterWriter(
                WriterSettings(settings.dlq_topic, OnTooLarge(settings.dlq_on_too_large)),
                _connection(self.config),
                self._metrics,
            )
        return Rejects(OnPoison(settings.on_poison), settings.group_id, self._metrics, flood, writer)


def source_settings(config: Config, *, asks_sink: bool) -> SourceSettings:
    """Return what the source needs. `asks_sink`: the sink holds positions."""
    settings = config.settings
    return SourceSettings(
        subscription=settings.topics,
        plan=partial(_plan, config),
        admin_properties=_connection(config),
        ignored=ignored_topics(config.client),
        policies=start_policies(settings),
        asks_sink=asks_sink,
        drain_timeout=settings.drain_timeout,
        startup_timeout=settings.startup_timeout,
        fails_on_missing_topic=settings.missing_topic == "fail",
        is_bounded=settings.stop is not None,
        stop_time=None if settings.stop == "end" else settings.stop,
    )


def start_policies(settings: ConnectorSettings) -> StartPolicies:
    """Return `CONNECTOR_START*`."""
    return StartPolicies(
        new_group=settings.start,
        new_partition=settings.start_new_partition,
        on_expired=settings.start_on_expired,
        on_out_of_range=settings.start_on_out_of_range,
        on_recreated=settings.start_on_recreated,
    )


def _plan(config: Config, brokers: int) -> ClientPlan:
    shares = config.shares(brokers)
    names = protocols(config.client)
    properties = {
        name: client_properties(
            config.client, name, queue_bytes=shares.client_queue_bytes, fetch_max_bytes=shares.fetch_max_bytes
        )
        for name in names
    }
    logger = {"logger": logging.getLogger("librdkafka")}
    return ClientPlan(
        protocols=tuple((name, {**properties[name], **logger}) for name in names),
        is_eager=is_eager(config.client, names[-1]),
        lanes_bytes=shares.lanes_bytes,
    )


def _pipeline_settings(config: Config, schemas: Schemas | None) -> PipelineSettings:
    settings = config.settings
    return PipelineSettings(
        limits=BatchLimits(settings.batch_rows, settings.batch_bytes, settings.batch_linger),
        backoff=Backoff(settings.retry_initial, settings.retry_max, settings.retry_limit),
        screen=Screen(
            Format(settings.key_format), Format(settings.value_format), Tombstones(settings.tombstones), schemas
        ),
    )


def _registry(config: Config, metrics: Metrics) -> Registry | None:
    """Return the schema registry, if a format needs one; its client is imported only then (half a second)."""
    settings = config.settings
    if not (Format(settings.key_format).needs_schemas or Format(settings.value_format).needs_schemas):
        return None
    from connector.pipeline.registry import Registry, RegistrySettings  # noqa: PLC0415

    properties = {
        "url": ",".join(settings.registry_url),
        "ssl.ca.location": _path(settings.registry_ssl_ca_location),
        "ssl.certificate.location": _path(settings.registry_ssl_certificate_location),
        "ssl.key.location": _path(settings.registry_ssl_key_location),
        "ssl.key.password": _secret(settings.registry_ssl_key_password),
    }
    if settings.registry_user is not None:
        properties["basic.auth.user.info"] = f"{settings.registry_user}:{_secret(settings.registry_password)}"
    if settings.registry_token is not None:
        properties["bearer.auth.credentials.source"] = "STATIC_TOKEN"
        properties["bearer.auth.token"] = _secret(settings.registry_token)
        properties["bearer.auth.logical.cluster"] = ""
    made = {name: value for name, value in properties.items() if value is not None}
    return Registry(RegistrySettings(made, settings.registry_timeout, settings.registry_unknown_grace), metrics)


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _secret(secret: Secret | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _subscribes(subscription: Sequence[str], ignored: Sequence[str], topic: str) -> bool:
    return matches(subscription, topic) and not matches(ignored, topic)


def _connection(config: Config) -> Mapping[str, Any]:
    return {**admin_properties(config.client), "logger": logging.getLogger("librdkafka")}
