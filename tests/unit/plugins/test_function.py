"""A plain function as a transform: what it may return, and that it meets each record once, whatever others do."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import PoisonError, RecordErrors, SinkContext, TransientError
from connector.plugins.function import make_transform
from connector.testing import Record, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector import Batch, Transform


def transform_of(function: Callable[..., Any]) -> Transform[Any]:
    made = make_transform("keep", function)
    transform = made(made.settings_type(), SinkContext("g"))
    transform.open()
    return transform


def applied(function: Callable[..., Any], batch: Batch) -> Batch:
    result = transform_of(function).apply(batch)
    assert result.metadata == batch.metadata
    return result


def errors_of(function: Callable[..., Any], batch: Batch) -> dict[int, str]:
    with pytest.raises(RecordErrors) as refused:
        applied(function, batch)
    assert all(isinstance(error, PoisonError) for error in refused.value.errors.values())
    return {index: str(error) for index, error in refused.value.errors.items()}


def test_a_function_sees_a_record_as_a_sink_does() -> None:
    seen: list[dict[str, Any]] = []

    def look(record: dict[str, Any]) -> bool:
        seen.append(record)
        return True

    batch = make_batch(
        Record(b"v", b"k", [("a", b"1"), ("a", None)]),
        Record(None, None, (), None),
        decoded={"value": [{"n": 1}, None]},
    )
    assert applied(look, batch) is batch
    assert seen == [
        {
            "topic": "orders",
            "partition": 0,
            "offset": 0,
            "timestamp": datetime(2025, 12, 31, 23, 59, 59, 123000, UTC),
            "key": b"k",
            "value": {"n": 1},
            "headers": [("a", b"1"), ("a", None)],
        },
        dict.fromkeys(("timestamp", "key", "value")) | {"topic": "orders", "partition": 0, "offset": 1, "headers": []},
    ]


@given(answers=st.lists(st.booleans(), max_size=8))
def test_true_keeps_and_false_leaves_out_in_order(answers: list[bool]) -> None:
    result = applied(lambda record: answers[record["offset"]], make_batch(*[b"v"] * len(answers)))
    assert list(result.column("offset")) == [index for index, answer in enumerate(answers) if answer]


def test_a_record_that_is_returned_goes_on_with_its_new_content() -> None:
    def change(record: dict[str, Any]) -> Any:
        if record["offset"] == 1:
            return {**record, "key": None, "value": {"n": 1}}
        if record["offset"] == 2:
            record["headers"].append(("seen", b"yes"))
            return record
        return record["offset"] != 3

    batch = make_batch(b"0", b"1", Record(b"2", b"k", [("a", b"1")]), b"3", b"4")
    result = applied(change, batch)
    assert list(result.column("offset")) == [0, 1, 2, 4]
    assert result.column("value") == [b"0", {"n": 1}, b"2", b"4"]
    assert list(result.column("key")) == [b"key", None, b"k", b"key"]
    assert list(result.column("headers")) == [[], [], [("a", b"1"), ("seen", b"yes")], []]
    assert batch.messages[2].headers() == [("a", b"1")], "a dead letter has the headers that came"


def test_columns_that_no_record_has_changed_stay_as_the_client_has_them() -> None:
    result = applied(lambda record: {**record, "key": b"new"}, make_batch(b"1", b"2"))
    assert set(result.decoded) == {"key"}


def test_a_value_that_is_changed_in_place_is_changed_once_however_often_the_batch_comes() -> None:
    def count(record: dict[str, Any]) -> Any:
        if record["value"] is None:
            raise KeyError("status")
        record["value"]["n"] += 1
        return record

    transform = transform_of(count)
    batch = make_batch(*[b"x"] * 4, decoded={"value": [{"n": 0}, None, {"n": 10}, {"n": 20}]})
    with pytest.raises(RecordErrors) as refused:
        transform.apply(batch)
    assert list(refused.value.errors) == [1]
    assert list(transform.apply(batch.select([0, 2, 3])).column("value")) == [{"n": 1}, {"n": 11}, {"n": 21}]
    other = make_batch(b"x", lane=2, decoded={"value": [{"n": 5}]})
    assert list(transform.apply(other).column("value")) == [{"n": 6}], "a record of another lane is another record"


def test_an_error_that_may_pass_is_no_poison_and_what_was_done_is_not_done_again() -> None:
    calls: list[int] = []

    def ask(record: dict[str, Any]) -> bool:
        calls.append(record["offset"])
        if calls == [0, 1]:
            raise TransientError("the service is away")
        return True

    transform = transform_of(ask)
    batch = make_batch(b"1", b"2", b"3")
    with pytest.raises(TransientError, match="away"):
        transform.apply(batch)
    assert transform.apply(batch) is batch
    assert calls == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda _: None, "the function returned None; it returns the record, True or False"),
        (lambda _: 1, "the function returned a int; it returns"),
        (lambda r: r["value"], "the function returned a bytes"),
        (
            lambda r: {"value": 1},
            "'headers', 'key', 'offset', 'partition', 'timestamp', 'topic' is missing or too much",
        ),
        (lambda r: {**r, "vlaue": 1}, "'vlaue' is missing or too much"),
        (lambda r: {**r, "offset": 5}, "changed topic, partition, offset or timestamp"),
        (lambda r: {**r, "headers": {"a": b"1"}}, "headers that are no list of (name, bytes or None)"),
        (lambda r: {**r, "headers": [("a", "text")]}, "headers that are no list"),
        (lambda r: r["no such field"], "KeyError: 'no such field' (test_function.py, line "),
        (lambda r: 1 / 0, "ZeroDivisionError: division by zero (test_function.py, line "),
    ],
)
def test_what_a_function_may_not_do_is_poison_of_that_record_alone(result: Callable[..., Any], words: str) -> None:
    found = errors_of(lambda record: True if record["offset"] == 0 else result(record), make_batch(b"1", b"2"))
    assert list(found) == [1]
    assert words in found[1]


def two(record: Any, other: Any) -> bool:
    return bool(record and other)


async def later(record: Any) -> bool:
    return bool(record)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (5, "is a int, not a function"),
        (dict, "is a type, not a function"),
        (two, "cannot be called with one argument"),
        (later, "is asynchronous"),
        (lambda: True, "cannot be called with one argument"),
    ],
)
def test_what_cannot_be_called_with_a_record_is_refused_at_start(target: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_transform("keep", target)


def test_anything_that_is_called_with_one_record_will_do() -> None:
    assert len(applied(functools.partial(two, other=False), make_batch(b"1"))) == 0
