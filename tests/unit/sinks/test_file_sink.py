"""The sink `file`: what it acknowledged is on disk once, in whole lines, whatever happens."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from connector import CloseReason, ConfigError, InputClosed, LaneId, PoisonError, SinkContext, TransientError
from sinks.file import FileSettings, FileSink
from tests.unit.sinks.sink_batches import CONTEXT, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector import Batch

JUST_BEFORE_MIDNIGHT = 1_767_225_599.0  # 2025-12-31T23:59:59Z


class Clock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now = JUST_BEFORE_MIDNIGHT

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_sink(clock: Clock) -> Iterator[Callable[..., FileSink]]:
    with contextlib.ExitStack() as stack:

        def make(path: Path | str, context: SinkContext = CONTEXT, **settings: Any) -> FileSink:
            sink = FileSink(FileSettings(path=str(path), **settings), context, clock)
            stack.callback(sink.close)
            sink.open()
            return sink

        yield make


def values(path: Path) -> list[str]:
    """The values in a file of whole lines."""
    content = path.read_bytes()
    assert content.endswith(b"\n") or not content
    return [json.loads(line)["value"] for line in content.splitlines()]


def finished(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != "out.jsonl")


def open_descriptors(directory: Path) -> set[str]:
    paths = {link.resolve() for link in Path("/proc/self/fd").iterdir()}
    return {path.name for path in paths if directory in path.parents}


# Acknowledged means on disk


_ROOT = Path(__file__).parents[3]
_WRITE_AND_DIE = """
import os, signal, sys
from tests.unit.sinks.sink_batches import CONTEXT, make_batch
from sinks.file import FileSettings, FileSink
sink = FileSink(FileSettings(path=sys.argv[1]), CONTEXT)
sink.open()
for number in range(20):
    sink.write(make_batch(b"%d" % number, offset=number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_right_after_the_ack_loses_nothing(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _WRITE_AND_DIE, str(tmp_path / "out.jsonl")],
        env={"PYTHONPATH": str(_ROOT)},
        check=False,
    )
    assert result.returncode == -signal.SIGKILL
    assert values(tmp_path / "out.jsonl") == [str(number) for number in range(20)]


def test_data_and_a_new_directory_entry_are_synced_before_write_returns(
    tmp_path: Path, make_sink: Callable[..., FileSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink(tmp_path / "a" / "out.jsonl")
    synced: list[tuple[str, int]] = []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synced.append((name, 0 if stat.S_ISDIR(status.st_mode) else status.st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    sink.write(make_batch(b"1"))
    assert synced == [("a", 0), ("out.jsonl", (tmp_path / "a" / "out.jsonl").stat().st_size)]


def test_a_partial_tail_is_cut_off_at_the_next_open_and_the_log_says_how_much(
    tmp_path: Path, make_sink: Callable[..., FileSink]
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"value":"1"}\n{"val')
    with capture_logs() as logs:
        make_sink(path).write(make_batch(b"2"))
    assert values(path) == ["1", "2"]
    assert logs == [
        {"event": "file_tail_cut", "log_level": "warning", "path": str(path), "cut_bytes": 5, "kept_bytes": 14}
    ]


@pytest.mark.parametrize("kept", [b"", b'{"value":"1"}\n'])
def test_a_partial_tail_longer_than_any_search_block_is_cut_off(
    tmp_path: Path, make_sink: Callable[..., FileSink], kept: bytes
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(kept + b"x" * 3_000_000)
    make_sink(path).write(make_batch(b"2"))
    assert path.read_bytes().startswith(kept)
    assert values(path)[-1] == "2"


@contextlib.contextmanager
def _file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Let the kernel write a part and then fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_short_write_is_transient_and_leaves_nothing_so_that_the_retry_does_not_repeat(
    tmp_path: Path, make_sink: Callable[..., FileSink]
) -> None:
    path = tmp_path / "out.jsonl"
    sink = make_sink(path)
    sink.write(make_batch(b"1"))
    size = path.stat().st_size
    batch = make_batch(*[b"%d" % number for number in range(2, 100)])
    with _file_size_limit(size + 1000), pytest.raises(TransientError, match="cannot write to"):
        sink.write(batch)
    assert path.stat().st_size == size
    sink.write(batch)
    assert values(path) == [str(number) for number in range(1, 100)]


def test_a_failed_sync_is_transient_and_the_retry_writes_the_data_again(
    tmp_path: Path, make_sink: Callable[..., FileSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink(tmp_path / "out.jsonl")
    sink.write(make_batch(b"1"))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        patch.setattr(os, "ftruncate", fail)  # the disk refuses everything for a while
        with pytest.raises(TransientError):
            sink.write(make_batch(b"2"))
    sink.write(make_batch(b"2"))
    assert values(tmp_path / "out.jsonl") == ["1", "2"]


def test_a_poison_record_leaves_the_file_as_it_was(tmp_path: Path, make_sink: Callable[..., FileSink]) -> None:
    sink = make_sink(tmp_path / "out.jsonl", format="value")
    sink.write(make_batch(b"1"))
    with pytest.raises(PoisonError):
        sink.write(make_batch(b"2", b"3\n"))
    assert (tmp_path / "out.jsonl").read_bytes() == b"1\n"


def test_a_large_record_is_written_whole(tmp_path: Path, make_sink: Callable[..., FileSink]) -> None:
    make_sink(tmp_path / "out.jsonl").write(make_batch(b"x" * 20_000_000))
    assert values(tmp_path / "out.jsonl") == ["x" * 20_000_000]


# Paths


def test_the_path_names_topic_partition_pipeline_host_and_utc_date(
    tmp_path: Path, make_sink: Callable[..., FileSink]
) -> None:
    context = SinkContext("group", pipeline=2, pipelines=4, host="h")
    make_sink(f"{tmp_path}/{{topic}}/{{partition}}-{{pipeline}}-{{host}}-{{date}}.jsonl", context).write(
        make_batch(b"1")
    )
    assert values(tmp_path / "orders" / "3-2-h-2025-12-31.jsonl") == ["1"]


def test_at_midnight_utc_a_lane_goes_on_in_the_file_of_the_new_date(
    tmp_path: Path, make_sink: Callable[..., FileSink], clock: Clock
) -> None:
    sink = make_sink(f"{tmp_path}/{{date}}.jsonl")
    sink.write(make_batch(b"1"))
    clock.now += 1
    sink.write(make_batch(b"2"))
    assert values(tmp_path / "2025-12-31.jsonl") == ["1"]
    assert values(tmp_path / "2026-01-01.jsonl") == ["2"]
    assert open_descriptors(tmp_path) == {"2026-01-01.jsonl"}


@pytest.mark.parametrize(
    ("path", "pipelines", "is_refused"),
    [
        ("out.jsonl", 1, False),
        ("out.jsonl", 2, True),
        ("{topic}.jsonl", 2, True),
        ("{partition}-{host}-{date}", 2, True),
        ("{pipeline}", 2, False),
        ("{topic}/{partition}", 2, False),
    ],
)
def test_a_path_that_two_pipelines_would_share_is_refused(path: str, pipelines: int, is_refused: bool) -> None:
    problems = FileSettings(path=path).problems(pipelines)
    assert len(problems) == is_refused
    assert all("Put {pipeline}, or both {topic} and {partition}, into it" in problem for problem in problems)


@pytest.mark.parametrize("path", ["{tpoic}", "{}", "{topic!r}", "{partition:03}", "{topic", "", "logs/", "{topic.x}"])
def test_a_path_that_makes_no_sense_is_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        FileSettings(path=path)


def test_an_unknown_placeholder_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"{tpoic}.*{topic}, {partition}, {pipeline}, {host}, {date}"):
        FileSettings(path="{tpoic}")


@pytest.mark.parametrize("at", ["a directory", "below a file", "a device"])
def test_a_path_that_cannot_be_a_file_is_a_configuration_error_with_the_way_out(
    tmp_path: Path, make_sink: Callable[..., FileSink], at: str
) -> None:
    (tmp_path / "file").touch()
    path = {"a directory": tmp_path, "below a file": tmp_path / "file" / "x", "a device": Path("/dev/null")}[at]
    with pytest.raises(ConfigError, match="CONNECTOR_SINK_PATH"):
        make_sink(path).write(make_batch(b"1"))


def test_missing_rights_are_found_at_open(tmp_path: Path, make_sink: Callable[..., FileSink]) -> None:
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may write everywhere
    try:
        with pytest.raises(ConfigError, match=r"Permission denied\. Give this user the right to write there"):
            make_sink(tmp_path / "out.jsonl")
    finally:
        os.seteuid(user)


# One writer for each file


def test_a_second_writer_is_refused_until_the_first_has_closed(
    tmp_path: Path, make_sink: Callable[..., FileSink]
) -> None:
    path = tmp_path / "out.jsonl"
    first, second = make_sink(path), make_sink(path)
    first.write(make_batch(b"1"))
    with pytest.raises(TransientError, match="another process on this host has"):
        second.write(make_batch(b"2"))
    first.close()
    second.write(make_batch(b"2"))
    assert values(path) == ["1", "2"]


def test_a_file_is_closed_with_the_last_lane_that_writes_to_it(
    tmp_path: Path, make_sink: Callable[..., FileSink]
) -> None:
    sink = make_sink(f"{tmp_path}/{{topic}}.jsonl")
    sink.write(make_batch(b"1", partition=1, lane=1))
    sink.write(make_batch(b"2", partition=2, lane=2))
    sink.write(make_batch(b"3", topic="other", lane=3))
    sink.on_event(InputClosed(LaneId(1)))
    sink.on_event(InputClosed(LaneId(3), CloseReason.LOST))
    sink.on_event(InputClosed(LaneId(9)))
    assert open_descriptors(tmp_path) == {"orders.jsonl"}
    sink.on_event(InputClosed(LaneId(2)))
    assert open_descriptors(tmp_path) == set()
    assert values(tmp_path / "orders.jsonl") == ["1", "2"]


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_file_that_somebody_moved_or_deleted_is_made_anew(
    tmp_path: Path, make_sink: Callable[..., FileSink], is_moved: bool
) -> None:
    path = tmp_path / "out.jsonl"
    sink = make_sink(path)
    sink.write(make_batch(b"1"))
    if is_moved:
        path.rename(tmp_path / "moved")
    else:
        path.unlink()
    sink.write(make_batch(b"2"))
    assert values(path) == ["2"]


# Rotation


def test_a_file_is_finished_before_the_batch_that_would_make_it_too_large(
    tmp_path: Path, make_sink: Callable[..., FileSink]
) -> None:
    sink = make_sink(tmp_path / "out.jsonl", rotate_bytes="4", format="value")
    for batch in (make_batch(b"1"), make_batch(b"2"), make_batch(b"3"), make_batch(b"larger"), make_batch(b"4")):
        sink.write(batch)
    assert (tmp_path / "out.jsonl").read_bytes() == b"4\n"
    assert {name: (tmp_path / name).read_bytes() for name in finished(tmp_path)} == {
        "out.20251231T235959Z.jsonl": b"1\n2\n",
        "out.20251231T235959Z-2.jsonl": b"3\n",
        "out.20251231T235959Z-3.jsonl": b"larger\n",
    }


def test_a_file_is_finished_before_the_first_batch_after_the_interval(
    tmp_path: Path, make_sink: Callable[..., FileSink], clock: Clock
) -> None:
    sink = make_sink(tmp_path / "out.jsonl", rotate_interval="10s")
    for value, seconds in ((b"1", 9.0), (b"2", 1.0), (b"3", 0.0)):
        sink.write(make_batch(value))
        clock.now += seconds
    assert values(tmp_path / "out.jsonl") == ["3"]
    assert [values(tmp_path / name) for name in finished(tmp_path)] == [["1", "2"]]


def test_a_file_that_has_the_finished_name_already_is_not_overwritten(
    tmp_path: Path, make_sink: Callable[..., FileSink]
) -> None:
    taken = tmp_path / "out.20251231T235959Z.jsonl"
    taken.write_bytes(b"mine\n")
    sink = make_sink(tmp_path / "out.jsonl", rotate_bytes=2, format="value")
    sink.write(make_batch(b"1"))
    sink.write(make_batch(b"2"))
    assert taken.read_bytes() == b"mine\n"
    assert (tmp_path / "out.20251231T235959Z-2.jsonl").read_bytes() == b"1\n"
    assert (tmp_path / "out.jsonl").read_bytes() == b"2\n"


def test_a_rotation_that_fails_is_transient_and_neither_loses_nor_repeats(
    tmp_path: Path, make_sink: Callable[..., FileSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink(tmp_path / "out.jsonl", rotate_bytes=2, format="value")
    sink.write(make_batch(b"1"))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    batch: Batch = make_batch(b"2")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(TransientError, match="No space left"):
            sink.write(batch)
    sink.write(batch)
    assert [(tmp_path / name).read_bytes() for name in [*finished(tmp_path), "out.jsonl"]] == [b"1\n", b"2\n"]
