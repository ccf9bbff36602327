"""A batch's way through transforms to the sink: what fails is isolated, each record has one outcome (INV-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from connector import ConfigError, ExitCode, PoisonError, RecordErrors, TransientError
from connector.api.event import Input
from connector.dlq.flood import FloodLimit
from connector.pipeline.messages import Failed
from connector.pipeline.rejects import OnPoison, Rejects
from tests.support.engine import FunctionTransform
from tests.support.pipeline import FakeLetters, OnePipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from connector import Batch, Transform
    from connector.lane.lane import Lane

T0 = ("t", 0)


def _transform(name: str, function: Callable[[Batch], Batch]) -> tuple[str, Callable[[], Transform[Any]]]:
    return name, lambda: FunctionTransform(function)


def _says(*answers: Exception | None) -> Callable[[object], None]:
    """Return what raises these, one each time, and afterwards nothing."""
    left = list(answers)

    def behave(_: object) -> None:
        if left and (error := left.pop(0)) is not None:
            raise error

    return behave


def _tried(bench: OnePipeline) -> list[list[int]]:
    return [list(event.data.column("offset")) for event in bench.told(Input) if isinstance(event, Input)]


def _skipped(bench: OnePipeline, stage: str) -> Any:
    return bench.metrics.skipped_records.labels("t", stage, "PoisonError")._value.get()


def _all_done(bench: OnePipeline, lane: Lane) -> None:
    bench.until(lambda: bench.acked(lane) == [0, 1])


# What the sink says of each record.


@pytest.mark.invariant(8)
def test_only_records_that_failed_transiently_are_tried_again_and_bad_ones_are_rejected_once() -> None:
    with OnePipeline(on_poison=OnPoison.SKIP).running() as bench:
        first = RecordErrors({1: TransientError("busy"), 2: PoisonError("bad"), 4: TransientError("busy")})
        bench.destination.behave = _says(first, RecordErrors({0: TransientError("busy")}), None)
        lane = bench.lane()
        bench.put(lane, range(6))
        _all_done(bench, lane)
        assert _tried(bench) == [[0, 1, 2, 3, 4, 5], [1, 4], [1]]
        assert _skipped(bench, "write") == 1
        assert bench.metrics.written_records.labels("t")._value.get() == 5
        assert lane.held_bytes == 0


def test_a_bad_record_among_others_under_fail_ends_with_5() -> None:
    with OnePipeline().running() as bench:
        bench.destination.behave = _says(RecordErrors({2: PoisonError("bad")}))
        bench.put(bench.lane(), range(4))
        bench.until(lambda: bool(bench.find(Failed)))
        failed = bench.find(Failed)[0]
        assert (failed.error.exit_code, failed.is_crash) == (ExitCode.POISON, False)
        assert "t[0]@2" in str(failed.error)


def test_every_record_may_fail_in_its_own_way() -> None:
    with OnePipeline(on_poison=OnPoison.SKIP).running() as bench:
        bench.destination.behave = _says(RecordErrors({0: PoisonError("a"), 1: PoisonError("b")}))
        lane = bench.lane()
        bench.put(lane, range(2))
        _all_done(bench, lane)
        assert _skipped(bench, "write") == 2
        assert bench.metrics.written_records.labels("t")._value.get() == 0


@pytest.mark.parametrize("bad", [0, 1, 250, 498, 499])
def test_one_bad_record_of_500_is_found_with_a_bounded_number_of_writes(bad: int) -> None:
    def refuse(batch: Batch) -> None:
        if bad in batch.column("offset"):
            raise PoisonError("bad")

    with OnePipeline(on_poison=OnPoison.SKIP).running() as bench:
        bench.destination.behave = refuse
        lane = bench.lane()
        bench.put(lane, range(500))
        _all_done(bench, lane)
        assert bench.destination.offsets(T0) == [offset for offset in range(500) if offset != bad]
        assert len(_tried(bench)) <= 2 * 9 + 1  # 2^9 > 500
        assert _skipped(bench, "write") == 1


# Dead letters.


@pytest.mark.invariant(1)
def test_a_batch_is_done_only_when_its_letters_are_confirmed() -> None:
    letters = FakeLetters()
    bench = OnePipeline(rejects=letters.rejects)
    seen: list[list[int]] = []
    with bench.running():
        bench.destination.behave = _says(RecordErrors({1: PoisonError("bad"), 2: PoisonError("worse")}))
        lane = bench.lane()
        bench.until(lambda: bench.acked(lane) == [0])
        letters.before = lambda: seen.append(bench.acked(lane))
        bench.put(lane, range(4))
        _all_done(bench, lane)
    assert seen == [[0]]
    assert [(letter.origin.offset, letter.origin.stage, letter.origin.message) for letter in letters.confirmed] == [
        (1, "write", "bad"),
        (2, "write", "worse"),
    ]
    assert [letter.value for letter in letters.confirmed] == [b"value"] * 2


def test_a_letter_that_is_not_confirmed_is_tried_again_and_the_position_stays() -> None:
    letters = FakeLetters()
    letters.errors = [TransientError("no broker")] * 7
    bench = OnePipeline(rejects=letters.rejects)
    with bench.running():
        bench.destination.behave = _says(RecordErrors({1: PoisonError("bad")}))
        lane, other = bench.lane(0), bench.lane(1)
        bench.put(lane, range(2))
        bench.retrying(lane, 2)
        assert bench.acked(lane) == [0]
        bench.put(other, range(3))
        bench.until_written(other, range(3))
        _all_done(bench, lane)
        assert len(letters.confirmed) == 1
        assert _tried(bench)[0] == [0, 1], "the batch is written once"
        assert [offsets for offsets in _tried(bench) if offsets == [0, 1]] == [[0, 1]]
        assert bench.metrics.breaker_opens._value.get() == 0, "the sink has not failed"


def test_a_letter_says_how_often_its_record_was_tried() -> None:
    letters = FakeLetters()
    bench = OnePipeline(rejects=letters.rejects)
    with bench.running():
        bench.destination.behave = _says(TransientError("down"), TransientError("down"), PoisonError("bad"))
        bench.put(bench.lane(), range(1))
        bench.until(lambda: bool(letters.confirmed))
        assert letters.confirmed[0].origin.attempts == 3


def test_a_sink_that_holds_positions_writes_on_only_after_the_letters_are_confirmed() -> None:
    letters = FakeLetters()
    bench = OnePipeline(rejects=letters.rejects)
    bench.destination.stored = {T0: None}
    written: list[list[int]] = []

    def behave(batch: Batch) -> None:
        if 3 in batch.column("offset"):
            raise PoisonError("bad")

    with bench.running():
        bench.destination.behave = behave
        lane = bench.lane()
        letters.before = lambda: written.append(bench.destination.offsets(T0))
        letters.errors = [TransientError("no broker")]
        bench.put(lane, range(6))
        _all_done(bench, lane)
    assert written == [[0, 1, 2], [0, 1, 2]], "4 moves the sink's position past the bad record"
    assert bench.destination.offsets(T0) == [0, 1, 2, 4, 5]


def test_letters_that_can_never_be_written_end_the_pipeline() -> None:
    letters = FakeLetters()
    letters.errors = [ConfigError("compacted")]
    with OnePipeline(rejects=letters.rejects).running() as bench:
        bench.destination.behave = _says(PoisonError("bad"))
        bench.put(bench.lane(), range(1))
        bench.until(lambda: bool(bench.find(Failed)))
        assert bench.find(Failed)[0].error.exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize("policy", [OnPoison.SKIP, OnPoison.DLQ])
def test_a_flood_of_bad_records_ends_with_5_under_every_policy(policy: OnPoison) -> None:
    letters = FakeLetters()

    def refuse(_: object) -> None:
        raise PoisonError("no such table")

    bench = OnePipeline(
        rejects=lambda metrics: Rejects(
            policy, "group", metrics, FloodLimit(max_ratio=1, window=100, max_consecutive=5), letters
        )
    )
    with bench.running():
        bench.destination.behave = refuse
        bench.put(bench.lane(), range(20))
        bench.until(lambda: bool(bench.find(Failed)))
        error = bench.find(Failed)[0].error
        assert error.exit_code is ExitCode.POISON
        assert "CONNECTOR_DLQ_MAX_CONSECUTIVE=5" in str(error)
        assert len(letters.confirmed) <= 5


# Transforms.


def _drop_odd(batch: Batch) -> Batch:
    return batch.select([index for index, offset in enumerate(batch.column("offset")) if offset % 2 == 0])


def _shout(batch: Batch) -> Batch:
    return batch.with_column("value", [value.upper() for value in batch.column("value")])


def _filtered(bench: OnePipeline, name: str) -> Any:
    return bench.metrics.filtered_records.labels("t", name)._value.get()


@pytest.mark.invariant(9)
def test_transforms_run_in_order_and_what_they_leave_out_is_counted_by_their_name() -> None:
    transforms = [_transform("even", _drop_odd), _transform("shout", _shout)]
    with OnePipeline(transforms=transforms).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(9), b"word")
        bench.until_written(lane, range(0, 9, 2))
        assert list(bench.destination.batches[0].column("value")) == [b"WORD"] * 5
        assert bench.destination.batches[0].metadata.next_offset == 9
        assert (_filtered(bench, "even"), _filtered(bench, "shout")) == (4, 0)
        _all_done(bench, lane)


@pytest.mark.invariant(8)
def test_a_batch_of_which_everything_is_left_out_is_done_and_the_sink_never_sees_it() -> None:
    with OnePipeline(transforms=[_transform("none", lambda batch: batch.select(()))]).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(4))
        _all_done(bench, lane)
        assert bench.told() == []
        assert _filtered(bench, "none") == 4
        assert lane.held_bytes == 0


def test_a_transform_that_knows_its_bad_records_goes_on_with_the_others_in_order() -> None:
    answers: Sequence[Exception | None] = [RecordErrors({1: PoisonError("bad"), 2: TransientError("registry")})]
    said = _says(*answers)

    def apply(batch: Batch) -> Batch:
        said(batch)
        return batch

    with OnePipeline(on_poison=OnPoison.SKIP, transforms=[_transform("strict", apply)]).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(5))
        bench.until_written(lane, [0, 2, 3, 4])
        _all_done(bench, lane)
        assert _skipped(bench, "strict") == 1
        assert _tried(bench) == [[0, 2, 3, 4]]


def test_a_transform_that_does_not_know_its_bad_record_gets_smaller_batches() -> None:
    def apply(batch: Batch) -> Batch:
        if 3 in batch.column("offset"):
            raise PoisonError("bad")
        return batch

    with OnePipeline(on_poison=OnPoison.SKIP, transforms=[_transform("strict", apply)]).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(8))
        bench.until_written(lane, [0, 1, 2, 4, 5, 6, 7])
        _all_done(bench, lane)
        assert _skipped(bench, "strict") == 1


def test_a_transform_that_fails_transiently_is_tried_again_and_does_not_count_against_the_sink() -> None:
    said = _says(*[TransientError("registry")] * 8)

    def apply(batch: Batch) -> Batch:
        said(batch)
        return batch

    with OnePipeline(transforms=[_transform("registry", apply)]).running() as bench:
        lane = bench.lane()
        bench.put(lane, range(3))
        bench.until_written(lane, range(3))
        assert bench.metrics.breaker_opens._value.get() == 0


@pytest.mark.parametrize(
    "apply",
    [
        lambda _: 1 / 0,
        lambda _: None,
        lambda batch: batch.slice(1, 2),
    ],
)
def test_a_transform_with_a_bug_is_named_as_what_has_failed(apply: Callable[[Batch], Any]) -> None:
    transforms = [_transform("fine", lambda batch: batch), _transform("broken", apply)]
    with OnePipeline(transforms=transforms).running() as bench:
        bench.put(bench.lane(), range(3))
        bench.until(lambda: bool(bench.find(Failed)))
        failed = bench.find(Failed)[0]
        assert (failed.node, failed.is_crash, failed.error.exit_code) == ("broken", True, ExitCode.SINK)
        assert bench.destination.written == []


@pytest.mark.parametrize("broken", ["sink", "strict"])
def test_a_plugin_whose_constructor_raises_has_crashed_and_not_we(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom() -> Any:
        raise ValueError("no such option")

    bench = OnePipeline(transforms=[("strict", boom)] if broken == "strict" else [])
    if broken == "sink":
        monkeypatch.setattr(bench.destination, "make", lambda _: boom())
    with bench.running():
        bench.until(lambda: bool(bench.find(Failed)))
        failed = bench.find(Failed)[0]
        assert (failed.is_crash, failed.error.exit_code) == (True, ExitCode.SINK)
        assert failed.node == ("pipeline-0" if broken == "sink" else "strict")
        assert "ValueError: no such option" in str(failed.error)
        assert bench.stop(bench.lane()).wait(5)
