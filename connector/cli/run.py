"""`connector run`: puts the parts together, runs them, and turns the end into an exit code.

Signals: the first SIGTERM or SIGINT begins a graceful end, a second changes nothing, a third ends the process at once.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
import signal
import sys
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer

from connector import __version__
from connector.admin.health import Limits
from connector.admin.server import AdminServer
from connector.api.sink import SinkContext
from connector.commit.schedule import CommitSchedule
from connector.config.effective import effective_settings
from connector.config.load import load
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.decode import Format
from connector.pipeline.worker import Pipeline, PipelineSettings
from connector.runtime.controller import Controller, ControllerSettings, ExitReport, ExitState
from connector.runtime.snapshot import StatusBoard
from connector.sink.retry import Backoff
from connector.source.client_config import admin_properties, client_properties, is_eager, protocols
from connector.source.consumer import ClientPlan, KafkaSource, SourceSettings
from connector.source.position import StartPolicies
from connector.telemetry.logs import configure, flush, get_logger
from connector.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from connector.api.sink import Sink
    from connector.config.load import Config
    from connector.pipeline.messages import Report

log = get_logger(__name__)

_SIGNALS_THAT_KILL = 3
_ADMIN_STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """The assembled parts of one run."""

    controller: Controller
    board: StatusBoard
    metrics: Metrics


def assemble(config: Config) -> Run:
    """Make every part of a run; nothing connects or starts yet."""
    settings, metrics = config.settings, Metrics()
    metrics.memory_budget_bytes.set(settings.memory_budget)
    reports: SimpleQueue[Report] = SimpleQueue()
    pipelines = [
        Pipeline(number, _sink_maker(config, number), _pipeline_settings(config), metrics, reports.put)
        for number in range(settings.pipelines)
    ]
    board = StatusBoard(settings.group_id, metrics)
    controller = Controller(
        source=KafkaSource(_source_settings(config), metrics, Consumer),
        pipelines=pipelines,
        reports=reports,
        schedule=CommitSchedule(settings.commit_interval),
        metrics=metrics,
        settings=ControllerSettings(settings.drain_timeout, settings.shutdown_timeout),
        publish=board.publish,
    )
    return Run(controller, board, metrics)


def run(env_file: Path | None = None) -> int:
    """Run until the end; returns the exit code.

    Raises:
        ConfigError: The settings cannot be used, or the admin address cannot be bound.
    """
    report = execute(load(os.environ, env_file))
    sys.stdout.flush()
    flush(1.0)
    if not _is_clean(report):
        # A thread may hang in a sink or in the client's close: it must not keep the process (exit code 6).
        os._exit(report.code)
    return report.code


def execute(config: Config) -> ExitReport:
    """Run with this configuration until the end.

    Raises:
        ConfigError: The admin address cannot be bound.
    """
    settings = config.settings
    configure(settings.log_level, settings.log_format)
    parts = assemble(config)
    admin = AdminServer(
        str(settings.admin_address),
        status=lambda: parts.board.latest,
        metrics=parts.metrics,
        config_view=lambda: {each.name: each.value for each in effective_settings(config)},
        limits=Limits(drain_seconds=settings.drain_timeout),
    )
    admin.start()
    _watch_signals(parts.controller)
    for note in config.notes:
        log.info("note", text=note)
    log.info("starting", version=__version__, group=settings.group_id, sink=settings.sink, admin_port=admin.port)
    # What exists by now lives until the end. Records are many and short-lived: look for cycles among them less often.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    report = parts.controller.run()
    admin.stop(_ADMIN_STOP_SECONDS)
    _tell(report)
    return report


def _is_clean(report: ExitReport) -> bool:
    return report.state in (ExitState.COMPLETED, ExitState.STOPPED)


def _tell(report: ExitReport) -> None:
    if report.error is not None:
        log.error("exit", state=report.state.value, code=int(report.code), reason=str(report.error))
        return
    if report.state is ExitState.INCOMPLETE:
        log.error(
            "exit",
            state=report.state.value,
            code=int(report.code),
            uncommitted_partitions=report.uncommitted,
            reason="work was left uncommitted at CONNECTOR_SHUTDOWN_TIMEOUT; it is read again after the next start",
        )
        return
    log.info("exit", state=report.state.value, code=int(report.code))


def _watch_signals(controller: Controller) -> None:
    received = 0

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received >= _SIGNALS_THAT_KILL:
            os._exit(128 + number)
        controller.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _sink_maker(config: Config, number: int) -> Any:
    context = SinkContext(
        group_id=config.settings.group_id, pipeline=number, pipelines=config.settings.pipelines, host=platform.node()
    )

    def make() -> Sink[Any]:
        return config.sink(config.sink_settings, context)

    return make


def _pipeline_settings(config: Config) -> PipelineSettings:
    settings = config.settings
    return PipelineSettings(
        limits=BatchLimits(settings.batch_rows, settings.batch_bytes, settings.batch_linger),
        backoff=Backoff(settings.retry_initial, settings.retry_max, settings.retry_limit),
        key_format=Format(settings.key_format),
        value_format=Format(settings.value_format),
        skips_poison=settings.on_poison == "skip",
    )


def _source_settings(config: Config) -> SourceSettings:
    settings = config.settings

    def plan(brokers: int) -> ClientPlan:
        shares = config.shares(brokers)
        names = protocols(config.client)
        return ClientPlan(
            protocols=tuple(
                (
                    name,
                    {
                        **client_properties(
                            config.client,
                            name,
                            queue_bytes=shares.client_queue_bytes,
                            fetch_max_bytes=shares.fetch_max_bytes,
                        ),
                        "logger": logging.getLogger("librdkafka"),
                    },
                )
                for name in names
            ),
            is_eager=is_eager(config.client, names[-1]),
            lanes_bytes=shares.lanes_bytes,
        )

    return SourceSettings(
        subscription=settings.topics,
        plan=plan,
        admin_properties={**admin_properties(config.client), "logger": logging.getLogger("librdkafka")},
        ignored=tuple(filter(None, config.client.properties.get("topic.blacklist", "").split(","))),
        policies=StartPolicies(
            new_group=settings.start,
            new_partition=settings.start_new_partition,
            on_expired=settings.start_on_expired,
            on_out_of_range=settings.start_on_out_of_range,
            on_recreated=settings.start_on_recreated,
        ),
        asks_sink=config.sink(config.sink_settings, SinkContext(settings.group_id)).holds_positions,
        drain_timeout=settings.drain_timeout,
        startup_timeout=settings.startup_timeout,
        fails_on_missing_topic=settings.missing_topic == "fail",
        is_bounded=settings.stop is not None,
        stop_time=None if settings.stop == "end" else settings.stop,
    )
