"""What a demo shows while it works: a live picture on a terminal, else at most one block of plain lines a second."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from connector.cli.demo.copies import Copy, Happening

_LIVE_SECONDS = 0.25
_PLAIN_SECONDS = 1.0
_SHOWN_HAPPENINGS = 8


@dataclass(frozen=True, slots=True)
class View:
    """What there is to show. `began` is a Unix time."""

    began: float
    records: int
    produced: int
    written: int
    copies: Sequence[Copy]
    happenings: Sequence[Happening]
    step: str

    @property
    def rate(self) -> float:
        """Records written a second, by all copies."""
        return sum(copy.rate for copy in self.copies)


class Display(Protocol):
    """A context manager that is shown views, as often as there are any."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, view: View) -> None:
        """Show this, unless the last one was shown a moment ago."""


def make_display() -> Display:
    """Return the one that fits standard output."""
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()


class LiveDisplay:
    """Redraws itself in place, and is gone at the end, when the summary says it all."""

    def __init__(self) -> None:
        self._live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)
        self._next = 0.0

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, view: View) -> None:
        """Redraw, four times a second."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LIVE_SECONDS
            self._live.update(_picture(view), refresh=True)


class PlainDisplay:
    """Prints lines."""

    def __init__(self) -> None:
        self._next = 0.0
        self._told = 0  # happenings

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, view: View) -> None:
        """Print where things stand and what happened since, once a second."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PLAIN_SECONDS
        copies = ", ".join(f"copy {copy.number} {copy.state} ({len(copy.lanes)})" for copy in view.copies)
        head = f"{time.time() - view.began:5.1f} s  produced {view.produced:,}  written {view.written:,}"
        print(f"{head}  {view.rate:,.0f}/s  {copies}")
        for happening in view.happenings[self._told :]:
            print(f"         {describe(happening)}")
        sys.stdout.flush()
        self._told = len(view.happenings)


def describe(happening: Happening) -> str:
    """Say it in a line."""
    line = f"copy {happening.copy} {happening.what:<7}  {fold_lanes(happening.lanes)}"
    return f"{line:<50}  {duration(happening)}".rstrip()


def duration(happening: Happening) -> str:
    """Say how long it took, if that is known."""
    if happening.seconds is None:
        return ""
    done = "drained, committed, gone" if happening.what == "stopped" else "drained, committed"
    return f"{done} in {happening.seconds * 1000:,.0f} ms"


def fold_lanes(lanes: Iterable[str]) -> str:
    """Write `orders[0]`, `orders[2]`, `payments[1]` as `orders[0 2] payments[1]`."""
    topics: dict[str, list[str]] = {}
    for lane in lanes:
        topic, _, number = lane.removesuffix("]").partition("[")
        topics.setdefault(topic, []).append(number)
    return " ".join(f"{topic}[{' '.join(numbers)}]" for topic, numbers in topics.items())


def _picture(view: View) -> Group:
    bars = Table.grid(padding=(0, 2))
    for name, count in (("produced", view.produced), ("written", view.written)):
        bars.add_row(name, ProgressBar(total=view.records, completed=count, width=40), f"{count:,} of {view.records:,}")
    copies = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("copy", "state", "partitions", "records/s", "written"):
        copies.add_column(title, justify="right" if title in ("records/s", "written") else "left", min_width=10)
    for copy in view.copies:
        copies.add_row(
            str(copy.number),
            Text(copy.state, style="green" if copy.lanes else "dim"),
            Text(fold_lanes(sorted(copy.lanes)) or "-"),
            f"{copy.rate:,.0f}",
            f"{copy.written:,}",
        )
    happenings = [
        Text(f"{happening.at - view.began:5.1f} s  {describe(happening)}", no_wrap=True, overflow="ellipsis")
        for happening in view.happenings[-_SHOWN_HAPPENINGS:]
    ]
    head = Text(f"{time.time() - view.began:.1f} s, {view.rate:,.0f} records/s: {view.step}", style="bold")
    return Group(head, bars, Text(), copies, Text(), *happenings)
