"""The lines `rebalanced` of all copies, read together, tell where each partition was at any time."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.oracle import wait_until_committed
from tests.support.process import wait_until
from tests.support.scenario import Scenario, Traffic, held

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.support.connector import ConnectorProcess
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

PARTITIONS = 6
INFO = {"CONNECTOR_LOG_LEVEL": "info"}


def test_the_lines_of_a_copy_that_comes_and_goes_tell_the_whole_story(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, INFO)
    first, second = scenario.copy("first"), scenario.copy("second")
    with first, Traffic(kafka, [topic], portion=200) as traffic:
        wait_until(lambda: len(held(first)) == PARTITIONS, timeout=60, what="the first copy has everything")
        with second:
            wait_until(lambda: len(held(first)) == len(held(second)) == 3, timeout=60, what="each has half")
            wait_until(lambda: _lanes(first) == _lanes(second) == 3, timeout=60, what="and each says so")
            assert second.terminate() == 0
            wait_until(lambda: _lanes(first) == PARTITIONS, timeout=60, what="the first has everything again")
        traffic.stop()
        wait_until_committed(kafka, scenario.group, [topic])
        assert first.terminate() == 0
    for copy in (first, second):
        lines = copy.events("rebalanced")
        print(group_protocol, copy.name, *lines, sep="\n  ")
        _assert_they_follow_from_each_other(lines)
        assert {line["group_protocol"] for line in lines} == {"consumer" if group_protocol == "consumer" else "classic"}
        assert {line["level"] for line in lines} == {"info"}
        assert [line["generation"] for line in lines] == sorted(line["generation"] for line in lines)
    given_up = next(line for line in first.events("rebalanced") if line["revoked"])
    assert given_up["revoked_lanes"] == given_up["drained"] == (PARTITIONS if group_protocol == "range" else 3)
    assert given_up["commit_result"] == "ok"
    assert 0 < given_up["committed_positions"] <= given_up["revoked_lanes"]
    assert given_up["callback_seconds"] >= given_up["drain_seconds"] > 0


def _lanes(copy: ConnectorProcess) -> int:
    lines = copy.events("rebalanced")
    return lines[-1]["lanes"] if lines else 0


def _assert_they_follow_from_each_other(lines: Iterable[Mapping[str, Any]]) -> None:
    now: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        assert line["number"] == number
        now.subtract(_unfolded(line["revoked"]))
        now.subtract(_unfolded(line["lost"]))
        assert set(now.elements()) == set(_unfolded(line["kept"]))
        now.update(_unfolded(line["gained"]))
        assert set(now.values()) <= {0, 1}
        assert now.total() == line["lanes"]
        for change in ("gained", "revoked", "lost", "kept"):
            assert len(_unfolded(line[change])) == line[f"{change}_lanes"]


def _unfolded(partitions: list[str]) -> list[str]:
    return list(chain.from_iterable(map(_numbers, partitions)))


def _numbers(partitions: str) -> list[str]:
    parts = [part.split("-") for part in partitions.rstrip("]").rpartition("[")[2].split(",")]
    return [str(number) for part in parts for number in range(int(part[0]), int(part[-1]) + 1)]
