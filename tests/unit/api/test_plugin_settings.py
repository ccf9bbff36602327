"""Durations, sizes, secrets, and what a plugin's settings refuse."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from connector import Duration, Field, Secret, Settings, Size
from connector.api.settings import format_duration, parse_duration, parse_size


class _Settings(Settings):
    wait: Duration = 1.0
    limit: Size = 1
    password: Secret = Field(default=Secret("default"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30.0), ("5m", 300.0), ("2h", 7200.0), ("7d", 604800.0), ("0", 0.0), (" 1.5 s ", 1.5)],
)
def test_a_duration_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "5 minutes", "1h30m", "1e3s"])
def test_what_is_not_a_duration_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(ValueError, match="write a number and a unit, as in 500ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("8MB", 8_000_000), ("64MiB", 64 * 2**20), ("1.5KiB", 1536), ("2 gib", 2 * 2**30), ("7B", 7)],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "64M", "1TiB", "ten"])
def test_what_is_not_a_size_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(ValueError, match="as in 64MiB"):
        parse_size(text)


def test_values_that_are_no_text_pass() -> None:
    assert parse_duration(timedelta(seconds=90)) == 90.0
    assert parse_duration(2.5) == 2.5
    assert parse_size(10) == 10


@given(seconds=st.integers(0, 999_999) | st.integers(1, 999).map(lambda milliseconds: milliseconds / 1000))
def test_a_written_duration_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize(("seconds", "text"), [(0.5, "500ms"), (30, "30s"), (90, "90s"), (300, "5m"), (7200, "2h")])
def test_durations_are_written_as_a_person_would(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_settings_parse_their_fields_and_mask_secrets() -> None:
    settings = _Settings.model_validate({"wait": "250ms", "limit": "1KiB", "password": "hunter2"})
    assert (settings.wait, settings.limit) == (0.25, 1024)
    assert "hunter2" not in repr(settings)
    assert settings.password.get_secret_value() == "hunter2"
    assert settings.problems(pipelines=1) == []


@pytest.mark.parametrize("values", [{"unknown": 1}, {"wait": -1.0}, {"limit": "-1"}, {"wait": "soon"}])
def test_settings_refuse_unknown_fields_and_wrong_values(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        _Settings.model_validate(values)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        _Settings().wait = 2.0
