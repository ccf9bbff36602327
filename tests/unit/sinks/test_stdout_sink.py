"""The sink `stdout`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sinks.stdout import StdoutSettings, StdoutSink
from tests.unit.sinks.sink_batches import CONTEXT, make_batch

if TYPE_CHECKING:
    import pytest

_ROOT = Path(__file__).parents[3]
_WRITE_FOR_EVER = """
import sys
from tests.unit.sinks.sink_batches import CONTEXT, make_batch
from connector import FatalError
from sinks.stdout import StdoutSettings, StdoutSink
sink = StdoutSink(StdoutSettings(), CONTEXT)
try:
    for _ in range(10_000):
        sink.write(make_batch(*[b"x" * 100] * 100))
except FatalError as error:
    print(error, file=sys.stderr)
    sys.exit(int(error.exit_code))
"""


def test_lines_are_out_when_write_returns(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sink = StdoutSink(StdoutSettings(), CONTEXT)
    sink.open()
    sink.write(make_batch(b"a", b"b"))
    assert [json.loads(line)["value"] for line in capfdbinary.readouterr().out.splitlines()] == ["a", "b"]


def test_format_value_writes_the_value_alone(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    StdoutSink(StdoutSettings(format="value"), CONTEXT).write(make_batch(b"\xff", b"b"))
    assert capfdbinary.readouterr().out == b"\xff\nb\n"


def test_a_broken_pipe_is_fatal_with_one_clear_line_and_its_own_exit_code() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WRITE_FOR_EVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": str(_ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read().decode() == (
            "cannot write to standard output: the reader has gone away. What was not written comes again at the next "
            "start.\n"
        )
        assert process.wait(timeout=30) == 7
