from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

import connector
from connector.api.event import CloseReason, Event, StopCause
from connector.config.event_stream_page import REASONS, TEXTS, event_stream_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "event-stream.md"


def test_the_page_of_the_event_stream_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == event_stream_page(), (
        "docs/reference/event-stream.md is old; write it anew: python -m connector.config.reference docs/reference"
    )


def test_every_event_is_public_and_has_its_row_with_its_fields() -> None:
    assert set(TEXTS) == set(get_args(Event))
    for event in get_args(Event):
        assert event.__name__ in connector.__all__
        (row,) = [line for line in event_stream_page().splitlines() if line.startswith(f"| `{event.__name__}` |")]
        assert row.split(" | ")[1] == ", ".join(f"`{field.name}`" for field in fields(event))


def test_every_reason_and_cause_is_explained() -> None:
    assert set(REASONS) == {*CloseReason, *StopCause}
