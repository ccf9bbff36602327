"""A dead letter keeps the record byte for byte, and carries one bounded set of headers, however often it dies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.dlq.letter import PREFIX, REPLAYS, letter_of, read_letter
from connector.telemetry.masking import register_secret
from tests.unit.dlq.dead_messages import DeadMessage, dead, in_dlq, replayed

raw = st.none() | st.binary(max_size=30)
names = st.text(max_size=12).filter(lambda name: not name.startswith(PREFIX))
header_lists = st.none() | st.lists(st.tuples(names, raw), max_size=6)


@pytest.mark.invariant(12)
@given(key=raw, value=raw, headers=header_lists)
def test_key_value_and_headers_come_back_as_they_were_from_letter_and_replay(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]] | None
) -> None:
    letter = dead(DeadMessage(key, value, headers))
    read = read_letter(in_dlq(letter))
    assert read == letter
    back = replayed(letter)
    assert (back.key(), back.value()) == (key, value)
    assert back.headers() == [*(headers or []), (REPLAYS, b"1")]


@given(
    topic=st.text(min_size=1),
    partition=st.integers(0, 2**31),
    offset=st.integers(0, 2**63),
    timestamp=st.none() | st.integers(0, 2**50),
    error=st.text(),
    attempts=st.integers(1, 2**31),
)
def test_the_origin_is_read_back_as_it_was_written(
    *, topic: str, partition: int, offset: int, timestamp: int | None, error: str, attempts: int
) -> None:
    stamp = (0, 0) if timestamp is None else (1, timestamp)
    letter = dead(
        DeadMessage(of_topic=topic.encode("utf-8", "ignore").decode(), of_partition=partition, at=offset, stamp=stamp),
        error=error,
        attempts=attempts,
    )
    assert read_letter(in_dlq(letter)) == letter
    assert letter.origin.timestamp_ms == timestamp


def test_the_header_bytes_are_constant_after_five_rounds_of_dying_and_being_replayed() -> None:
    own = [("trace", b"a"), ("trace", b"a"), ("none", None), ("empty", b"")]
    message = DeadMessage(raw_headers=own)
    sizes = set()
    for round_number in range(5):
        letter = dead(message, error="x" * 100_000)
        headers = letter.all_headers()
        sizes.add(sum(len(name) + len(value or b"") for name, value in headers))
        assert headers[: len(own)] == own
        assert len(headers) == len(own) + 10
        assert letter.origin.replays == round_number
        message = replayed(letter)
    assert len(sizes) == 1


def test_a_letter_of_a_letter_has_one_set_of_headers_that_names_the_last_death() -> None:
    again = dead(in_dlq(dead()), error="again")
    names = [name for name, _ in again.all_headers()]
    assert len(names) == len(set(names)) == 10
    assert (again.origin.topic, again.origin.message) == ("orders.dlq", "again")


@given(error=st.text(), stage=st.text(), error_class=st.text(), group=st.text())
def test_our_headers_are_bounded_whatever_the_error_says(error: str, stage: str, error_class: str, group: str) -> None:
    letter = letter_of(
        DeadMessage(),
        stage=stage * 500,
        error_class=error_class * 500,
        error=error * 500,
        attempts=1,
        group=group * 500,
    )
    assert sum(len(name) + len(value or b"") for name, value in letter.all_headers()) < 2500
    assert read_letter(in_dlq(letter)) == letter


def test_a_message_is_cut_between_characters() -> None:
    assert dead(error="ä" * 600).origin.message == "ä" * 500
    assert dead(error="x" + "ä" * 600).origin.message == "x" + "ä" * 499


def test_a_secret_in_an_error_does_not_reach_the_topic() -> None:
    register_secret("hunter-2-in-a-letter")
    assert dead(error="cannot log in with hunter-2-in-a-letter").origin.message == "cannot log in with ***"


def test_a_truncated_letter_says_how_large_the_value_was() -> None:
    letter = dead(DeadMessage(raw_value=b"v" * 5000)).truncated()
    assert letter.value == b"v" * 1024
    assert letter.origin.truncated_bytes == 5000
    assert read_letter(in_dlq(letter)) == letter
    assert dead(replayed(letter)).origin.truncated_bytes is None


def test_a_tombstone_stays_one_when_it_is_truncated() -> None:
    letter = dead(DeadMessage(raw_value=None)).truncated()
    assert (letter.value, letter.origin.truncated_bytes) == (None, 0)


@pytest.mark.parametrize("count", [b"", b"-1", b"many", None, b"9" * 5000])
def test_a_replay_count_that_is_none_counts_from_zero(count: bytes | None) -> None:
    assert dead(DeadMessage(raw_headers=[(REPLAYS, count)])).origin.replays == 0


@pytest.mark.parametrize("missing", range(10))
def test_a_record_without_the_whole_set_is_no_letter(missing: int) -> None:
    headers = dead().all_headers()
    del headers[missing]
    assert read_letter(replace(in_dlq(dead()), raw_headers=headers)) is None


@pytest.mark.parametrize("value", [None, b"x", b"\xff", b"9" * 5000])
def test_a_set_that_was_tampered_with_is_no_letter_and_no_crash(value: bytes | None) -> None:
    headers = [(name, value if name == PREFIX + "offset" else old) for name, old in dead().all_headers()]
    assert read_letter(replace(in_dlq(dead()), raw_headers=headers)) is None


def test_a_record_without_headers_is_no_letter() -> None:
    assert read_letter(DeadMessage(raw_headers=None)) is None
