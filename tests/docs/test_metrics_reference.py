from __future__ import annotations

from pathlib import Path

from connector.telemetry.metrics import Metrics
from connector.telemetry.metrics_page import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_page_of_metrics_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "docs/reference/metrics.md is old; write it anew: python -m connector.config.reference docs/reference"
    )


def test_every_metric_of_ours_that_is_served_has_its_row() -> None:
    served = {family.name for family in Metrics().registry.collect() if family.name.startswith("connector")}
    rows = {line.split("`")[1].removesuffix("_total") for line in reference().splitlines() if line.startswith("| `")}
    assert {name.removesuffix("_info") for name in rows} == served
