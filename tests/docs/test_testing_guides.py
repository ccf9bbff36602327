"""The tests in the guides are what a plugin author copies: they pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDES = Path(__file__).parents[2] / "docs" / "guides"

LINES_SINK = """
from pathlib import Path
from connector import Field, Settings, Sink


class LinesSettings(Settings):
    path: str = Field(description="File to append to.")


class LinesSink(Sink[LinesSettings]):
    def open(self):
        Path(self.settings.path).touch()

    def write(self, batch):
        lines = [f"{topic} {partition} {offset}" for topic, partition, offset, _ in
                 batch.rows("topic", "partition", "offset", "value")]
        with open(self.settings.path, "a") as file:
            file.write("".join(line + chr(10) for line in lines))
"""


def blocks(guide: str) -> list[str]:
    found: list[str] = re.findall(r"```python\n(.*?)```", (GUIDES / guide).read_text(encoding="utf-8"), re.DOTALL)
    return found


def passed(directory: Path) -> int:
    """Run the test files of a folder, which all have to pass, and return how many tests did."""
    arguments = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(arguments, cwd=directory, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout
    found = re.search(r"(\d+) passed in", done.stdout)
    assert found is not None
    return int(found[1])


def test_the_examples_of_the_guide_to_testing_pass(tmp_path: Path) -> None:
    (tmp_path / "lines_sink.py").write_text(LINES_SINK)
    for number, block in enumerate(blocks("testing.md")):
        (tmp_path / f"test_{number}.py").write_text(block)
    assert passed(tmp_path) > 20


def test_the_sink_of_the_guide_keeps_the_contract(tmp_path: Path) -> None:
    sink, tests = blocks("write-a-sink.md")
    (tmp_path / "webhook_sink.py").write_text(sink)
    (tmp_path / "test_webhook_sink.py").write_text(tests)
    assert passed(tmp_path) > 20
