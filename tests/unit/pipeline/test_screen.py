"""What a batch loses first: records that cannot be decoded, and tombstones by their policy (INV-12)."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from connector import ExitCode
from connector.api.batch import Batch, BatchMetadata
from connector.api.types import Epoch, LaneId, Offset
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.decode import Format
from connector.pipeline.messages import Failed
from connector.pipeline.screen import Screen, Tombstones
from connector.pipeline.worker import PipelineSettings
from tests.support.engine import FunctionTransform
from tests.support.pipeline import FakeLetters, OnePipeline

VALUES = [b"1", None, b"{", b"", None, b"2"]


def _messages(values: list[bytes | None]) -> list[Message]:
    return [Message(topic="t", partition=0, offset=i, key=b"k", value=value) for i, value in enumerate(values)]


def _batch(values: list[bytes | None]) -> Batch:
    metadata = BatchMetadata(LaneId(1), Epoch(1), 0, "t", 0, Offset(0), Offset(len(values)))
    return Batch(metadata, _messages(values))


@pytest.mark.invariant(12)
@pytest.mark.parametrize(
    ("policy", "kept", "poison", "ignored"),
    [
        (Tombstones.WRITE, [0, 1, 2, 3, 4, 5], {}, set()),
        (Tombstones.DELETE, [0, 1, 2, 3, 4, 5], {}, set()),
        (Tombstones.IGNORE, [0, 2, 3, 5], {}, {1, 4}),
        (Tombstones.FAIL, [0, 2, 3, 5], {1: "tombstones", 4: "tombstones"}, set()),
    ],
)
def test_tombstones_go_by_their_policy_and_an_empty_value_is_none(
    policy: Tombstones, kept: list[int], poison: dict[int, str], ignored: set[int]
) -> None:
    screened = Screen(tombstones=policy).look(_batch(VALUES))
    assert list(screened.rest().column("offset")) == kept
    assert {index: stage for index, (stage, _) in screened.poison.items()} == poison
    assert screened.ignored == ignored


@pytest.mark.parametrize("policy", list(Tombstones))
def test_undecodable_records_and_tombstones_of_one_batch_end_each_in_one_way(policy: Tombstones) -> None:
    screened = Screen(value_format=Format.JSON, tombstones=policy).look(_batch(VALUES))
    stages = {index: stage for index, (stage, _) in screened.poison.items()}
    assert stages.pop(2) == stages.pop(3) == "decode"
    is_fail = policy is Tombstones.FAIL
    assert stages == (dict.fromkeys((1, 4), "tombstones") if is_fail else {})
    tombstones = [1, 4] if policy in (Tombstones.WRITE, Tombstones.DELETE) else []
    rest = screened.rest()
    assert list(rest.column("offset")) == sorted([0, 5, *tombstones])
    assert list(rest.column("value")) == ([1, None, None, 2] if tombstones else [1, 2])
    assert rest.metadata.next_offset == 6


def test_a_record_with_a_bad_key_and_no_value_is_rejected_once() -> None:
    batch = _batch([None, b"1"])
    batch.messages = [Message(topic="t", partition=0, offset=0, key=b"\xff", value=None), batch.messages[1]]
    screened = Screen(key_format=Format.STRING, tombstones=Tombstones.FAIL).look(batch)
    assert list(screened.poison) == [0]


def test_an_ignored_tombstone_with_a_bad_key_is_ignored_and_not_counted_twice() -> None:
    batch = _batch([None, b"1"])
    batch.messages = [Message(topic="t", partition=0, offset=0, key=b"\xff", value=None), batch.messages[1]]
    screened = Screen(key_format=Format.STRING, tombstones=Tombstones.IGNORE).look(batch)
    assert not screened.poison
    assert screened.ignored == {0}


def _settings(policy: Tombstones) -> PipelineSettings:
    return PipelineSettings(
        limits=BatchLimits(linger_seconds=0.0), screen=Screen(value_format=Format.JSON, tombstones=policy)
    )


@pytest.mark.invariant(8)
def test_every_record_of_a_mixed_batch_is_counted_once_and_the_position_moves_past_all() -> None:
    letters = FakeLetters()
    with OnePipeline(_settings(Tombstones.IGNORE), rejects=letters.rejects).running() as bench:
        lane = bench.lane()
        bench.put_messages(lane, _messages(VALUES))
        bench.until(lambda: bench.acked(lane) == [0, 1])
        assert bench.destination.offsets(("t", 0)) == [0, 5]
        assert [letter.origin.offset for letter in letters.confirmed] == [2, 3]
        assert [letter.value for letter in letters.confirmed] == [b"{", b""]
        assert bench.metrics.filtered_records.labels("t", "tombstones")._value.get() == 2
        assert lane.held_bytes == 0


def test_trailing_tombstones_that_are_ignored_are_done() -> None:
    with OnePipeline(_settings(Tombstones.IGNORE)).running() as bench:
        lane = bench.lane()
        bench.put_messages(lane, _messages([None] * 50))
        bench.until(lambda: bench.acked(lane) == [0, 1])
        assert bench.told() == []


def test_a_tombstone_under_fail_ends_with_5_and_says_why() -> None:
    with OnePipeline(_settings(Tombstones.FAIL)).running() as bench:
        bench.put_messages(bench.lane(), _messages([b"1", None]))
        bench.until(lambda: bool(bench.find(Failed)))
        error = bench.find(Failed)[0].error
        assert error.exit_code is ExitCode.POISON
        assert "t[0]@1" in str(error)
        assert "CONNECTOR_TOMBSTONES=fail" in str(error)


# One definition: a tombstone is a record whose value is null, whatever made it so.

NULLS: dict[str, tuple[Format, bytes | None, bool]] = {
    "no value, bytes": (Format.BYTES, None, True),
    "no value, string": (Format.STRING, None, True),
    "no value, json": (Format.JSON, None, True),
    "null, json": (Format.JSON, b" null ", True),
    "null, bytes": (Format.BYTES, b"null", False),
    "null, string": (Format.STRING, b"null", False),
    "empty, bytes": (Format.BYTES, b"", False),
    "empty, string": (Format.STRING, b"", False),
    "empty text, json": (Format.JSON, b'""', False),
}


@pytest.mark.invariant(12)
@pytest.mark.parametrize("is_made", [False, True], ids=["came so", "made by a transform"])
@pytest.mark.parametrize("policy", list(Tombstones))
@pytest.mark.parametrize("name", NULLS)
def test_every_policy_means_the_same_records_whatever_made_their_value_null(
    name: str, policy: Tombstones, is_made: bool
) -> None:
    value_format, value, is_tombstone = NULLS[name]
    if is_made:
        value, is_tombstone = b'"v"', True

    def apply(batch: Batch) -> Batch:
        values = [None if offset == 1 else each for offset, each in batch.rows("offset", "value")]
        return batch.with_column("value", values) if is_made else batch

    letters = FakeLetters()
    settings = PipelineSettings(
        limits=BatchLimits(linger_seconds=0.0), screen=Screen(value_format=value_format, tombstones=policy)
    )
    transforms = [("make", lambda: FunctionTransform(apply)), ("last", lambda: FunctionTransform(lambda batch: batch))]
    with OnePipeline(settings, rejects=letters.rejects, transforms=transforms).running() as bench:
        lane = bench.lane()
        bench.put_messages(lane, _messages([b"1", value, b"2"]))
        bench.until(lambda: bench.acked(lane) == [0, 1])
        reaches = not is_tombstone or policy in (Tombstones.WRITE, Tombstones.DELETE)
        assert bench.destination.offsets(("t", 0)) == ([0, 1, 2] if reaches else [0, 2])
        written = {o: v for batch in bench.destination.batches for o, v in batch.rows("offset", "value")}
        assert (written.get(1, b"") is None) == (reaches and is_tombstone)
        filtered = [bench.metrics.filtered_records.labels("t", each)._value.get() for each in ("make", "tombstones")]
        assert filtered == [0, is_tombstone and policy is Tombstones.IGNORE]
        dead = [(letter.origin.offset, letter.value) for letter in letters.confirmed]
        assert dead == ([(1, value)] if is_tombstone and policy is Tombstones.FAIL else [])


def test_a_tombstone_that_a_transform_makes_under_fail_ends_with_5_and_is_named() -> None:
    transforms = [("make", lambda: FunctionTransform(lambda batch: batch.with_column("value", [None] * len(batch))))]
    with OnePipeline(_settings(Tombstones.FAIL), transforms=transforms).running() as bench:
        bench.put_messages(bench.lane(), _messages([b"1"]))
        bench.until(lambda: bool(bench.find(Failed)))
        error = bench.find(Failed)[0].error
        assert error.exit_code is ExitCode.POISON
        assert "CONNECTOR_TOMBSTONES=fail" in str(error)
