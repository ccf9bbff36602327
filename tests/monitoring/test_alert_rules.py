"""Alerts fire when they should and are silent when they should be, by Prometheus' own unit tests of rules."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy/prometheus"


def run_promtool(promtool: str, *arguments: str, directory: Path = DEPLOY) -> str:
    """Return what promtool says against it; nothing, if it has nothing."""
    done = subprocess.run(
        [promtool, *arguments], cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.promtool
def test_promtool_takes_the_configuration_and_the_rules(promtool: str) -> None:
    assert run_promtool(promtool, "check", "config", "prometheus.yml") == ""
    assert run_promtool(promtool, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yml") == ""


@pytest.mark.promtool
def test_alerts_fire_and_are_silent_as_they_should(promtool: str) -> None:
    assert run_promtool(promtool, "test", "rules", "alerts_test.yml") == ""


@pytest.mark.promtool
def test_a_rule_that_is_broken_fails_its_tests(promtool: str, tmp_path: Path) -> None:
    rules = (DEPLOY / "alerts.yml").read_text(encoding="utf-8")
    tests = yaml.safe_load((DEPLOY / "alerts_test.yml").read_text(encoding="utf-8"))
    tests["tests"] = [test for test in tests["tests"] if test["name"] == "the oldest record waits too long"]
    (tmp_path / "alerts.yml").write_text(rules.replace("> 600\n", "> 6000\n"), encoding="utf-8")
    (tmp_path / "alerts_test.yml").write_text(yaml.safe_dump(tests), encoding="utf-8")
    assert "ConnectorRecordsHeld" in run_promtool(promtool, "test", "rules", "alerts_test.yml", directory=tmp_path)


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    expected: defaultdict[str, set[bool]] = defaultdict(set)
    for test in yaml.safe_load((DEPLOY / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]:
        for each in test.get("alert_rule_test", ()):
            expected[each["alertname"]].add(bool(each["exp_alerts"]))
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    assert dict(expected) == {rule["alert"]: {True, False} for group in groups for rule in group["rules"]}
