"""`connector demo`: what the connector does, seen live, on a machine that has nothing but Python.

An embedded broker in this process, and the real command in processes of its own: two copies consume as one group, a
third joins and one of the first leaves while records flow. Then every offset is looked for in what they wrote.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from connector.api.errors import FatalError
from connector.cli.demo.copies import Fleet
from connector.cli.demo.display import View, make_display
from connector.cli.demo.folder import claim
from connector.cli.demo.summary import print_next_steps, print_rebalances, print_verdict
from connector.cli.demo.tally import count_rows, read_ends, tally
from connector.cli.demo.traffic import TOPICS, Traffic
from connector.testing.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from connector.cli.demo.display import Display
    from connector.cli.demo.folder import Folder

_DEFAULT_FOLDER = Path("sluiceway-demo")
_GROUP = "sluiceway-demo"
_PARTITIONS = 4  # of each topic
_FLOW_SECONDS = 10.0  # of production at the full pace
_LEAST_RATE = 5000.0  # records a second, so that a few records are not drawn out
_LOOK_SECONDS = 0.1
_STEP_SECONDS = 60.0  # more than any step takes on a machine that is hopelessly busy
_FAILED = 1
_INTERRUPTED = 128 + signal.SIGINT


def demo(*, records: int, directory: Path | None) -> int:
    """Run the demo and return the exit code: 0 only if nothing was lost, nothing written twice and every end clean.

    Raises:
        ConfigError: The directory cannot be used, or the Kafka client has no embedded broker.
    """
    try:
        with _interrupted_by_signals(), claim(directory or _DEFAULT_FOLDER) as folder:
            return _demo(records, folder)
    except KeyboardInterrupt:
        print("connector demo: interrupted; its copies have ended.", file=sys.stderr)
        return _INTERRUPTED


def _demo(records: int, folder: Folder) -> int:
    began = time.time()
    with EmbeddedBroker() as broker:
        for topic in TOPICS:
            broker.create_topic(topic, _PARTITIONS)
        settings = _settings(broker.bootstrap_servers, folder)
        folder.keep_settings(settings)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTOR_")}
        rate = max(_LEAST_RATE, records / _FLOW_SECONDS)
        print(
            f"Embedded Kafka broker on {broker.bootstrap_servers}: topics {' and '.join(TOPICS)}, {_PARTITIONS} "
            f"partitions each.\nCopies of `connector run`, one consumer group, move {records:,} records into "
            f"{folder.database}.\n"
        )
        try:
            with (
                Fleet(folder.log, environment | settings) as fleet,
                Traffic(broker.bootstrap_servers, records=records, records_per_second=rate) as traffic,
                make_display() as display,
            ):
                flow_seconds = _Play(records, folder, fleet, traffic, display, began).perform()
            partitions = tally(folder.database, read_ends(broker.bootstrap_servers, _GROUP, TOPICS))
        except FatalError as error:
            print(f"connector demo: {error}\nAll logs are in {folder.path}.", file=sys.stderr)
            return _FAILED
    is_whole = print_verdict(partitions, flow_seconds=flow_seconds, total_seconds=time.time() - began)
    print_rebalances(fleet.happenings, began)
    print_next_steps(folder)
    return 0 if is_whole else _FAILED


@dataclass(slots=True)
class _Play:
    """The steps of a demo. They follow what has happened, not the clock, and each is shown while it lasts."""

    records: int
    folder: Folder
    fleet: Fleet
    traffic: Traffic
    display: Display
    began: float  # a Unix time
    written: int = 0

    def perform(self) -> float:
        """Let copies come and go while records flow, until all is written and every copy has ended.

        Returns the seconds from the first record to the last row.

        Raises:
            FatalError: A copy or the production has failed, or a step takes for ever.
        """
        fleet, traffic = self.fleet, self.traffic
        flowing_since = time.monotonic()
        traffic.allow(0.25)
        first, second = fleet.start_copy(), fleet.start_copy()
        self.wait("two copies start, records pile up", lambda: bool(first.lanes and second.lanes))
        traffic.allow(0.5)
        self.wait("two copies share the partitions", lambda: self.written > 0.2 * self.records)
        third = fleet.start_copy()
        self.wait("a third copy joins", lambda: bool(third.lanes))
        traffic.allow(0.8)
        self.wait("three copies share the partitions", lambda: self.written > 0.65 * self.records)
        first.stop()
        self.wait("copy 1 is stopped and gives its partitions up", lambda: first.exit_code is not None)
        self.wait("the others take over", lambda: fleet.lanes == len(TOPICS) * _PARTITIONS)
        traffic.allow(1.0)
        self.wait("two copies share the partitions", lambda: traffic.is_done)
        self.wait("the last records are written", lambda: self.written >= self.records)
        flow_seconds = time.monotonic() - flowing_since
        second.stop()
        third.stop()
        self.wait("all copies end", lambda: all(copy.exit_code is not None for copy in fleet.copies))
        return flow_seconds

    def wait(self, step: str, until: Callable[[], bool]) -> None:
        """Look at everything again and again, and show it, until this is so."""
        deadline = time.monotonic() + _STEP_SECONDS
        while not until():
            if time.monotonic() > deadline:
                raise FatalError(f"nothing came of it within {_STEP_SECONDS:g}s: {step}.")
            time.sleep(_LOOK_SECONDS)
            self.traffic.check()
            self.fleet.look()
            self.written = count_rows(self.folder.database)
            self.display.show(
                View(
                    began=self.began,
                    step=step,
                    records=self.records,
                    produced=self.traffic.acknowledged,
                    written=self.written,
                    copies=self.fleet.copies,
                    happenings=self.fleet.happenings,
                )
            )


def _settings(bootstrap_servers: str, folder: Folder) -> dict[str, str]:
    """Return what each copy is configured with."""
    return {
        "CONNECTOR_BOOTSTRAP_SERVERS": bootstrap_servers,
        "CONNECTOR_GROUP_ID": _GROUP,
        "CONNECTOR_TOPICS": ",".join(TOPICS),
        "CONNECTOR_GROUP_PROTOCOL": "consumer",
        # The embedded broker wakes no idle fetch when new records come.
        "CONNECTOR_KAFKA_FETCH_WAIT_MAX_MS": "10",
        "CONNECTOR_KEY_FORMAT": "string",
        "CONNECTOR_VALUE_FORMAT": "string",
        "CONNECTOR_SINK": "sqlite",
        "CONNECTOR_SINK_PATH": str(folder.database.absolute()),
        # Without a primary key a record that is written twice has two rows, and is found.
        "CONNECTOR_SINK_PRIMARY_KEY": "false",
        "CONNECTOR_SINK_MODE": "insert",
        "CONNECTOR_ADMIN_ADDRESS": "127.0.0.1:0",
        "CONNECTOR_LOG_FORMAT": "json",
        "CONNECTOR_LOG_LEVEL": "debug",  # tells each callback of a rebalance at once
    }


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does: its copies first."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
