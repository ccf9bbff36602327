"""Standard output sink: one line for each record, for pipes and a first look.

All pipelines of a process share the stream, whose own lock keeps the lines of one batch together.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from connector import FatalError, Field, Settings, Sink
from sinks.json_lines import FORMAT_DESCRIPTION, LineFormat, to_lines

if TYPE_CHECKING:
    from connector import Batch


class StdoutSettings(Settings):
    """Settings of the sink `stdout`."""

    format: LineFormat = Field(default="record", description=FORMAT_DESCRIPTION)


class StdoutSink(Sink[StdoutSettings]):
    """Writes lines to standard output; logs go to standard error."""

    def write(self, batch: Batch) -> None:
        """Write the batch and flush.

        Raises:
            PoisonError: A record has no form as one line.
            FatalError: Nobody reads any more, or the write failed; part of a line may be out and cannot be taken back.
        """
        data = to_lines(batch, self.settings.format)
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except OSError as error:
            _discard_output()
            why = "the reader has gone away" if isinstance(error, BrokenPipeError) else str(error)
            raise FatalError(
                f"cannot write to standard output: {why}. What was not written comes again at the next start."
            ) from error


def _discard_output() -> None:
    """Let what the stream still holds go nowhere: the interpreter flushes it at exit and would fail with code 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
