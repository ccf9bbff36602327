"""`connector run`: puts the parts together, runs them, and turns the end into an exit code.

Signals: the first SIGTERM or SIGINT begins a graceful end, a second changes nothing, a third ends the process at once.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from confluent_kafka import Consumer

from connector import __version__
from connector.admin.health import Limits
from connector.admin.server import AdminServer
from connector.cli.verbs import RunVerbs
from connector.cli.workshop import Workshop, source_settings
from connector.commit.schedule import CommitSchedule
from connector.config.effective import effective_settings
from connector.config.load import load
from connector.config.memory import container_limit_bytes
from connector.runtime.controller import Controller, ControllerSettings, ExitReport, ExitState
from connector.runtime.fleet import Fleet
from connector.runtime.params import Params
from connector.runtime.snapshot import StatusBoard
from connector.runtime.supervisor import Supervisor
from connector.sink.retry import Backoff
from connector.source.consumer import KafkaSource
from connector.source.membership import Membership
from connector.telemetry.logs import configure, flush, get_logger
from connector.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import FrameType

    from connector.api.event import Event
    from connector.config.load import Config
    from connector.pipeline.messages import Report
    from connector.pipeline.worker import Pipeline

log = get_logger(__name__)

_SIGNALS_THAT_KILL = 3
_ADMIN_STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """The assembled parts of one run."""

    controller: Controller
    board: StatusBoard
    metrics: Metrics
    verbs: RunVerbs
    workshop: Workshop


def assemble(config: Config) -> Run:
    """Make every part of a run; nothing connects or starts yet.

    Raises:
        ConfigError: The sink's runtime parameters, the directory that they are stored in, or the settings of the schema
            registry cannot be used.
    """
    settings = config.settings
    metrics = Metrics(partition_limit=settings.metrics_partitions, topic_limit=settings.metrics_topics)
    metrics.memory_budget_bytes.set(settings.memory_budget)
    if (limit := container_limit_bytes()) is not None:
        metrics.memory_limit_bytes.set(limit)
    reports: SimpleQueue[Report] = SimpleQueue()
    membership = Membership()
    workshop = Workshop(config, metrics, reports.put, membership)
    params = Params(config.sink.params_type, settings.state_dir)
    board = StatusBoard(settings.group_id, metrics)
    source = source_settings(config, asks_sink=workshop.holds_positions())

    def make_pipeline(number: int, incarnation: int, notices: Sequence[Event]) -> Pipeline:
        return workshop.make_pipeline(number, incarnation, (*params.all(), *notices))

    controller = Controller(
        source=KafkaSource(source, metrics, Consumer, membership=membership if workshop.commits_positions() else None),
        fleet=Fleet(make_pipeline, settings.pipelines),
        supervisor=Supervisor(Backoff(settings.retry_initial, settings.retry_max)),
        reports=reports,
        schedule=CommitSchedule(settings.commit_interval),
        metrics=metrics,
        settings=ControllerSettings(settings.drain_timeout, settings.shutdown_timeout, settings.lane_idle_timeout),
        publish=board.publish,
    )
    return Run(controller, board, metrics, RunVerbs(controller, workshop, params), workshop)


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
        ConfigError: Something of it cannot be used, or the admin address cannot be bound.
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
        verbs=parts.verbs,
        token=settings.admin_token.get_secret_value() if settings.admin_token else None,
        hosts=settings.admin_hosts,
    )
    admin.start()
    _watch_signals(parts.controller)
    for note in config.notes:
        log.info("settings_noted", note=note)
    log.info("run_started", version=__version__, group=settings.group_id, sink=settings.sink)
    # What exists by now lives until the end. Records are many and short-lived: look for cycles among them less often.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    report = parts.controller.run()
    parts.workshop.close()
    admin.stop(_ADMIN_STOP_SECONDS)
    flush(0.0)  # counts of repeats come before the last line
    _tell(report)
    return report


def _is_clean(report: ExitReport) -> bool:
    return report.state in (ExitState.COMPLETED, ExitState.STOPPED)


def _tell(report: ExitReport) -> None:
    reason = None if report.error is None else str(report.error)
    if report.state is ExitState.INCOMPLETE:
        reason = "not everything taken was delivered and committed in time; it is read again after the next start"
    log.log(
        logging.INFO if _is_clean(report) else logging.ERROR,
        "run_ended",
        state=report.state.value,
        exit_code=int(report.code),
        uncommitted_partitions=report.uncommitted,
        reason=reason,
    )


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
