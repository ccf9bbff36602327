"""Every built-in sink has a page of the same form, with the settings that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connector.config.reference import sink_names, sink_page

DIRECTORY = Path(__file__).parents[2] / "docs" / "sinks"
GUARANTEES = ["acknowledged when", "delivery", "a repeat", "order", "a tombstone", "several writers"]
every_sink = pytest.mark.parametrize("name", sink_names())


def page(name: str) -> str:
    return (DIRECTORY / f"{name}.md").read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", page(name), re.DOTALL | re.MULTILINE)
    assert found, f"docs/sinks/{name}.md has no section {heading!r}"
    return found[1]


def test_there_is_a_page_for_every_built_in_sink_and_no_other() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.md")} - {"README"} == set(sink_names())


@every_sink
def test_the_list_of_sinks_leads_to_the_page(name: str) -> None:
    assert f"| [`{name}`]({name}.md) |" in page("README")


@every_sink
def test_a_page_has_the_settings_that_the_code_has(name: str) -> None:
    assert page(name) == sink_page(name, page(name)), f"docs/sinks/{name}.md is old; write it anew: make docs"


@every_sink
def test_a_page_answers_the_same_questions_in_the_same_order(name: str) -> None:
    assert re.findall(r"^\| ([a-z][\w ]*) \|", section(name, "Guarantees"), re.MULTILINE) == GUARANTEES
    assert section(name, "When something fails").strip()


def test_a_page_without_a_place_for_the_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        sink_page("null", "# A page without marks\n")
