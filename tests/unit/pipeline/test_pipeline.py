"""A pipeline thread: batches, retries, poison, decoding, and that it hears of everything whatever its sink does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message

from connector import (
    ExitCode,
    FatalError,
    InvariantError,
    Offset,
    PoisonError,
    RefusedError,
    StoredPosition,
    TransientError,
)
from connector.api.event import CloseReason, InputClosed
from connector.lane.lane import Chunk
from connector.pipeline.batcher import Batcher, BatchLimits
from connector.pipeline.decode import Format
from connector.pipeline.messages import Acked, Claimed, Delivered, Failed, Refused
from connector.pipeline.rejects import OnPoison
from connector.pipeline.screen import Screen
from connector.pipeline.worker import PipelineSettings
from connector.sink.retry import Backoff
from connector.testing.client import records
from tests.support.pipeline import OnePipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from connector import Batch

LONG = BatchLimits(linger_seconds=60)
SLOW_RETRY = Backoff(initial=60, maximum=60)
NO_LINGER = PipelineSettings(limits=BatchLimits(linger_seconds=0.0))


def _fails(times: int, error: Exception, partition: int = 0) -> Callable[[Batch], None]:
    left = [times]

    def behave(batch: Batch) -> None:
        if batch.metadata.partition == partition and left[0] > 0:
            left[0] -= 1
            raise error

    return behave


def _refuses(bad: Sequence[int]) -> Callable[[Batch], None]:
    def behave(batch: Batch) -> None:
        if found := sorted(set(bad) & set(batch.column("offset"))):
            raise PoisonError(f"cannot write {found}")

    return behave


def _reasons(bench: OnePipeline) -> dict[str, float]:
    reasons = ("rows", "bytes", "linger", "drain", "end")
    found = {reason: bench.metrics.batches.labels(reason)._value.get() for reason in reasons}
    return {reason: number for reason, number in found.items() if number}


# What ends a batch.


def test_rows_end_a_batch_and_what_is_over_begins_the_next() -> None:
    with OnePipeline(PipelineSettings(limits=BatchLimits(rows=4, linger_seconds=60))).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(10))
        bench.until_written(lane, range(8))
        assert bench.sizes() == [4, 4]
        bench.put(lane, [10, 11])
        bench.until_written(lane, range(12))
        assert (bench.sizes(), _reasons(bench)) == ([4, 4, 4], {"rows": 3})


def test_bytes_end_a_batch() -> None:
    with OnePipeline(PipelineSettings(limits=BatchLimits(size_bytes=1000, linger_seconds=60))).running() as bench:
        lane = bench.lane()
        bench.put(lane, [0], b"x" * 700)  # 400 bytes more for the record itself
        bench.until_written(lane, [0])
        bench.put(lane, [1])
        bench.put(lane, [2], b"x" * 700)
        bench.until_written(lane, range(3))
        assert (bench.sizes(), _reasons(bench)) == ([1, 2], {"bytes": 2})


def test_linger_ends_a_batch_without_any_new_record() -> None:
    with OnePipeline(PipelineSettings(limits=BatchLimits(linger_seconds=0.05))).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(3))
        started = time.monotonic()
        bench.until_written(lane, range(3))
        assert time.monotonic() - started >= 0.02
        assert (bench.sizes(), _reasons(bench)) == ([3], {"linger": 1})


def test_the_end_of_a_lane_ends_a_batch() -> None:
    with OnePipeline(PipelineSettings(limits=LONG)).running() as bench:
        lane = bench.lane()
        bench.put_messages(lane, records("t", 0, range(3)), is_last=True)
        bench.until_written(lane, range(3))
        assert _reasons(bench) == {"end": 1}


def test_a_position_without_records_is_acknowledged_at_once_and_never_seen_by_the_sink() -> None:
    with OnePipeline(PipelineSettings(limits=LONG)).running() as bench:
        lane = bench.lane(start=7)
        bench.until(lambda: len(bench.find(Acked)) == 1)
        lane.put(Chunk([], Offset(20)))
        bench.until(lambda: len(bench.find(Acked)) == 2)
        assert [report.next_offset for report in bench.find(Delivered)] == [7, 20]
        assert bench.destination.events == []


def test_a_batcher_knows_why_it_must_go_and_gives_out_what_it_has() -> None:
    batcher = Batcher(BatchLimits(rows=2, size_bytes=100, linger_seconds=5))
    assert batcher.reason(0.0) is None
    with pytest.raises(ValueError, match="no batch"):
        batcher.clear()
    batcher.add(Chunk([], Offset(3), taken=0.25), now=1.0)
    batcher.add(Chunk(records("t", 0, [3]), Offset(4), 10, taken=0.5), now=1.0)
    assert (batcher.reason(5.9), batcher.reason(6.0), batcher.room) == (None, "linger", 1)
    messages, size, position, since = batcher.clear()
    assert (len(messages), size, position, since, batcher.room) == (1, 10, 4, 0.5, 2)
    assert batcher.reason(100.0) is None


def test_a_batch_says_where_it_stands() -> None:
    with OnePipeline().running() as bench:
        lane = bench.lane(start=5)
        bench.put(lane, [5, 9])
        bench.until_written(lane, [5, 9])
        metadata = bench.destination.batches[0].metadata
        assert (metadata.lane, metadata.epoch, metadata.topic, metadata.partition) == (lane.id, 1, "t", 0)
        assert (metadata.sequence, metadata.first_offset, metadata.next_offset) == (1, 5, 10)


# Retries.


def test_a_retry_keeps_the_batch_and_the_order_and_acknowledges_once() -> None:
    with OnePipeline().running() as bench:
        bench.destination.behave = _fails(3, TransientError("down"))
        lane = bench.lane()
        bench.put(lane, range(5))
        bench.put(lane, range(5, 8))
        bench.until_written(lane, range(8))
        bench.until(lambda: [report.sequence for report in bench.find(Acked)] == [*range(len(bench.find(Delivered)))])
        assert bench.metrics.sink_retries._value.get() == 3
        assert bench.pipeline.retries == {}
        first = [event.metadata.sequence for _, event in bench.destination.events[:4]]  # type: ignore[union-attr]
        assert first == [1, 1, 1, 1]


def test_the_other_lanes_go_on_while_one_retries_and_the_status_tells_of_it() -> None:
    with OnePipeline(PipelineSettings(limits=BatchLimits(linger_seconds=0.0), backoff=SLOW_RETRY)).running() as bench:
        bench.destination.behave = _fails(1, TransientError("down"), partition=0)
        blocked, other = bench.lane(0), bench.lane(1)
        bench.put(blocked, range(3))
        bench.until(lambda: blocked.id in bench.pipeline.retries)
        bench.put(other, range(3))
        bench.until_written(other, range(3))
        retry = bench.pipeline.retries[blocked.id]
        assert (retry.failures, retry.error) == (1, "down")
        assert 40 < retry.at - time.monotonic() < 61


def test_the_limit_of_retries_is_fatal_and_says_so() -> None:
    backoff = Backoff(initial=0.01, maximum=0.01, limit=3)
    with OnePipeline(PipelineSettings(limits=BatchLimits(linger_seconds=0.0), backoff=backoff)).running() as bench:
        bench.destination.behave = _fails(100, TransientError("down"))
        bench.put(bench.lane(), range(3))
        bench.until(lambda: bool(bench.find(Failed)))
        error = bench.find(Failed)[0].error
        assert error.exit_code is ExitCode.SINK
        assert "failed 4 times (last error: down)" in str(error)


def test_backoff_grows_to_its_cap_and_takes_at_most_a_fifth_away() -> None:
    backoff = Backoff(initial=0.1, maximum=1.0)
    for failures, most in ((1, 0.1), (2, 0.2), (3, 0.4), (10, 1.0), (5000, 1.0)):
        assert all(0.8 * most <= backoff.delay(failures) <= most for _ in range(20))
    assert not backoff.is_exhausted(10**6)


# Lanes that leave.


@pytest.mark.invariant(2)
def test_a_lane_in_backoff_is_tried_once_more_and_arrives_at_once_not_drained() -> None:
    with OnePipeline(PipelineSettings(limits=BatchLimits(linger_seconds=0.0), backoff=SLOW_RETRY)).running() as bench:
        bench.destination.behave = _fails(100, TransientError("down"))
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until(lambda: lane.id in bench.pipeline.retries)
        started = time.monotonic()
        assert bench.stop(lane).wait(5)
        assert time.monotonic() - started < 2
        assert bench.metrics.sink_retries._value.get() == 2
        assert bench.metrics.drains.labels("not_drained")._value.get() == 1
        assert [report.sequence for report in bench.find(Acked)] == [0], "the start alone"
        assert bench.pipeline.retries == {}


def test_a_lane_in_backoff_whose_sink_is_back_is_drained_by_that_attempt() -> None:
    with OnePipeline(PipelineSettings(limits=BatchLimits(linger_seconds=0.0), backoff=SLOW_RETRY)).running() as bench:
        bench.destination.behave = _fails(1, TransientError("down"))
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until(lambda: lane.id in bench.pipeline.retries)
        assert bench.stop(lane).wait(5)
        bench.until_written(lane, range(3))
        assert bench.metrics.drains.labels("drained")._value.get() == 1


@pytest.mark.invariant(5)
def test_what_lingers_is_written_before_the_pipeline_arrives() -> None:
    with OnePipeline(PipelineSettings(limits=LONG)).running() as bench:
        lane, kept = bench.lane(0), bench.lane(1)
        bench.put(lane, range(3))
        bench.put(kept, range(3))
        bench.until(lambda: not lane.has_chunks)
        assert bench.stop(lane).wait(5)
        assert bench.destination.offsets(("t", 0)) == [0, 1, 2]
        assert bench.destination.offsets(("t", 1)) == [], "the other one lingers on"
        assert bench.find(Acked)[-1].lane == lane.id


@pytest.mark.invariant(7)
def test_a_hanging_sink_misses_the_barrier_and_its_late_write_is_reported_as_it_is() -> None:
    with OnePipeline().running() as bench:
        bench.destination.hang()
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.destination.wait_hanging()
        barrier = bench.stop(lane, timeout=0.05)
        assert not barrier.wait(0.05)
        lane.fence()
        bench.destination.gate.set()
        bench.until(lambda: barrier.remaining == 0, "it arrives all the same")
        assert len(bench.find(Acked)) == 2, "the controller counts it as late"
        bench.until(lambda: (0, InputClosed(lane.id, CloseReason.REVOKED)) in bench.destination.events)


@pytest.mark.invariant(6)
def test_a_lost_lane_in_backoff_is_never_written_again() -> None:
    with OnePipeline().running() as bench:
        bench.destination.behave = _fails(10**6, TransientError("down"), partition=0)
        lane, other = bench.lane(0), bench.lane(1)
        bench.put(lane, range(3))
        bench.until(lambda: bench.metrics.sink_retries._value.get() > 2)
        lane.fence()  # the source fences before anybody is told
        bench.put(other, [0])
        bench.until_written(other, [0])
        attempts = len(bench.destination.events)
        bench.drop(lane)
        bench.until(lambda: (0, InputClosed(lane.id, CloseReason.LOST)) in bench.destination.events)
        assert len(bench.destination.events) <= attempts + 2
        assert bench.destination.offsets(("t", 0)) == []


def test_lanes_that_are_not_known_are_arrived_for() -> None:
    with OnePipeline().running() as bench:
        lane = bench.lane()
        assert bench.stop(lane).wait(5)
        assert bench.stop(lane).wait(5)


def test_after_the_deadline_of_a_drain_nothing_new_is_tried() -> None:
    with OnePipeline(PipelineSettings(limits=LONG)).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until(lambda: not lane.has_chunks)
        assert bench.stop(lane, timeout=-1).wait(5)
        assert bench.destination.written == []
        assert len(bench.find(Delivered)) == 1


# Poison.


@pytest.mark.invariant(8)
@pytest.mark.parametrize("bad", [[0], [250], [499], [7, 8, 400], [*range(0, 500, 50)]])
def test_bad_records_are_found_in_a_batch_and_all_others_written_in_order(bad: list[int]) -> None:
    with OnePipeline(NO_LINGER, OnPoison.SKIP).running() as bench:
        bench.destination.behave = _refuses(bad)
        lane = bench.lane()
        bench.put(lane, range(500))
        bench.until(lambda: len(bench.find(Acked)) == 2)
        assert bench.destination.offsets(("t", 0)) == [offset for offset in range(500) if offset not in bad]
        assert bench.metrics.skipped_records.labels("t", "write", "PoisonError")._value.get() == len(bad)
        assert bench.metrics.written_records.labels("t")._value.get() == 500 - len(bad)
        assert lane.held_bytes == 0
        ends = [batch.metadata.next_offset for batch in bench.destination.batches]
        assert ends == sorted(ends)


def test_a_transient_error_in_the_middle_of_the_search_repeats_nothing_that_was_written() -> None:
    with OnePipeline(NO_LINGER, OnPoison.SKIP).running() as bench:
        failures = iter([None, None, TransientError("down"), None, TransientError("down")])
        refuse = _refuses([3])

        def behave(batch: Batch) -> None:
            if (error := next(failures, None)) is not None:
                raise error
            refuse(batch)

        bench.destination.behave = behave
        lane = bench.lane()
        bench.put(lane, range(10))
        bench.until_written(lane, [0, 1, 2, 4, 5, 6, 7, 8, 9])
        bench.until(lambda: len(bench.find(Acked)) == 2)


def test_a_bad_record_under_fail_ends_with_5_and_names_the_record() -> None:
    with OnePipeline().running() as bench:
        bench.destination.behave = _refuses([3])
        lane = bench.lane()
        bench.put(lane, range(10))
        bench.until(lambda: bool(bench.find(Failed)))
        error = bench.find(Failed)[0].error
        assert error.exit_code is ExitCode.POISON
        assert "t[0]@3" in str(error)
        assert "CONNECTOR_ON_POISON=skip" in str(error)
        assert len(bench.find(Acked)) == 1, "the batch is not done"
        assert bench.stop(lane).wait(5), "barriers are still answered"


# Decoding.


def _values(bench: OnePipeline, column: str) -> list[object]:
    return [value for batch in bench.destination.batches for value in batch.column(column)]


@pytest.mark.parametrize(
    ("format_", "values", "decoded", "bad"),
    [
        (Format.BYTES, [b"\xff", b"", None], [b"\xff", b"", None], 0),
        (Format.STRING, [b"\xc3\xa4", b"", None], ["ä", "", None], 0),
        (Format.STRING, [b"a", b"\xff\xfe", b"b"], ["a", "b"], 1),
        (Format.JSON, [b'{"a": 1}', b"null", None], [{"a": 1}, None, None], 0),
        (Format.JSON, [b"1", b"", b"{", b"\xff", b"2"], [1, 2], 3),
        (Format.JSON, [b"{"], [], 1),
    ],
)
@pytest.mark.parametrize("column", ["key", "value"])
def test_null_empty_and_undecodable_are_three_things(
    column: str, format_: Format, values: list[bytes | None], decoded: list[object], bad: int
) -> None:
    settings = PipelineSettings(
        limits=BatchLimits(linger_seconds=0.0),
        screen=Screen(format_ if column == "key" else Format.BYTES, format_ if column == "value" else Format.BYTES),
    )
    with OnePipeline(settings, OnPoison.SKIP).running() as bench:
        lane = bench.lane()
        messages = [
            Message(topic="t", partition=0, offset=offset, key=key, value=value)
            for offset, (key, value) in enumerate((each, b"v") if column == "key" else (b"k", each) for each in values)
        ]
        bench.put_messages(lane, messages)
        bench.until(lambda: len(bench.find(Acked)) == 2)
        assert _values(bench, column) == decoded
        skipped = bench.metrics.skipped_records.labels("t", "decode", "UndecodableError")._value.get()
        assert (skipped, bench.find(Delivered)[-1].next_offset) == (bad, len(values))


def test_an_undecodable_record_under_fail_ends_with_5() -> None:
    with OnePipeline(
        PipelineSettings(limits=BatchLimits(linger_seconds=0.0), screen=Screen(value_format=Format.JSON))
    ).running() as bench:
        bench.put(bench.lane(), [0], b"{")
        bench.until(lambda: bool(bench.find(Failed)))
        assert bench.find(Failed)[0].error.exit_code is ExitCode.POISON
        assert "value is not json" in str(bench.find(Failed)[0].error)


# Sinks that refuse, break, or do not open.


def test_a_refused_write_lets_the_lane_go_and_tells_the_controller() -> None:
    with OnePipeline().running() as bench:
        bench.destination.behave = _fails(1, RefusedError("claimed by another"), partition=0)
        lane, other = bench.lane(0), bench.lane(1)
        bench.put(lane, range(3))
        bench.until(lambda: bench.find(Refused) == [Refused(lane.id)])
        assert (0, InputClosed(lane.id, CloseReason.LOST)) in bench.destination.events
        bench.put(other, range(3))
        bench.until_written(other, range(3))
        assert bench.destination.offsets(("t", 0)) == []


@pytest.mark.parametrize("error", [ValueError("a bug"), FatalError("disk gone"), KeyError("x")])
def test_what_a_sink_must_not_raise_is_fatal_and_barriers_are_still_answered(error: Exception) -> None:
    with OnePipeline().running() as bench:
        bench.destination.behave = _fails(1, error, partition=0)
        lane, other = bench.lane(0), bench.lane(1)
        bench.put(lane, range(3))
        bench.until(lambda: bool(bench.find(Failed)))
        failure = bench.find(Failed)[0]
        assert (failure.pipeline, failure.error.exit_code) == (0, ExitCode.SINK)
        bench.put(other, range(3))
        assert bench.stop(lane, other).wait(5)
        assert bench.destination.written == []
        assert len(bench.find(Failed)) == 1


def test_a_bug_of_ours_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = OnePipeline()
    monkeypatch.setattr(bench.pipeline, "_flush", None)
    with bench.running():
        lane = bench.lane()
        bench.until(lambda: bool(bench.find(Failed)))
        assert isinstance(bench.find(Failed)[0].error, InvariantError)
        assert bench.stop(lane).wait(5)


def test_a_sink_that_does_not_open_is_tried_again_and_its_lanes_wait() -> None:
    bench = OnePipeline()
    bench.destination.open_errors = [TransientError("refused")] * 3
    with bench.running():
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until(lambda: bench.pipeline.open_retry is not None or bench.pipeline.is_open)
        bench.until_written(lane, range(3))
        assert bench.pipeline.is_open
        assert bench.pipeline.open_retry is None
        assert bench.metrics.sink_retries._value.get() == 3


def test_a_sink_that_is_not_open_is_not_ready_and_its_lanes_leave_without_a_wait() -> None:
    bench = OnePipeline(PipelineSettings(limits=LONG, backoff=SLOW_RETRY))
    bench.destination.open_errors = [TransientError("refused")]
    with bench.running():
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until(lambda: bench.pipeline.open_retry is not None)
        assert not bench.pipeline.is_open
        assert bench.stop(lane).wait(5)
        assert bench.find(Delivered) == []
    assert bench.is_stopped()


def test_a_sink_that_cannot_be_opened_at_all_is_fatal() -> None:
    bench = OnePipeline()
    bench.destination.open_errors = [FatalError("no such table")]
    with bench.running():
        bench.until(lambda: bool(bench.find(Failed)))
        assert bench.stop(bench.lane()).wait(5)


def test_a_sink_is_asked_for_its_position_again_until_it_answers_and_nothing_is_taken_before() -> None:
    bench = OnePipeline()
    bench.destination.stored = {("t", 0): StoredPosition(Offset(4))}
    bench.destination.claim_errors = [TransientError("down")] * 2
    with bench.running():
        lane = bench.lane(awaits_sink=True)
        bench.until(lambda: bench.find(Claimed) == [Claimed(lane.id, StoredPosition(Offset(4)))])
        assert len(bench.destination.claims) == 3
        lane.put(Chunk([], Offset(4)))
        bench.put(lane, [4, 5])
        bench.until_written(lane, [4, 5])
