"""The connector with a `null` sink that keeps time: `connector run` in every other way.

Run as a process of its own, configured by the environment like the command; it prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.measure import Measured
from connector.cli.run import execute
from connector.config.load import load
from sinks.null import NullSink

if TYPE_CHECKING:
    from connector import Batch

MEASURED = Measured()
MEASURES_LATENCY = "latency" in sys.argv


class TimedNullSink(NullSink):
    """Drops records and notes when."""

    def write(self, batch: Batch) -> None:
        super().write(batch)
        # Noted before anything is done with the batch, as the bare loop does.
        MEASURED.take(batch.messages, time.time_ns() if MEASURES_LATENCY else None)


if __name__ == "__main__":
    report = execute(replace(load(os.environ), sink=TimedNullSink))
    print(json.dumps(MEASURED.report()), flush=True)
    sys.exit(report.code)
