"""One line tells a rebalance, whichever callbacks the client makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from connector import TransientError
from connector.source import story
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver

if TYPE_CHECKING:
    from connector import Batch

A, B, C = ("t", 0), ("t", 1), ("t", 2)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
MOVES = ("number", "lanes", "gained", "revoked", "lost", "kept")


class Lines:
    """The lines `rebalanced` so far, with their levels."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "connector.source")
        self._caplog = caplog

    @property
    def all(self) -> list[dict[str, Any]]:
        return [
            {**record.msg, "level": record.levelname}
            for record in list(self._caplog.records)
            if isinstance(record.msg, dict) and record.msg["event"] == "rebalanced"
        ]

    def moves(self) -> list[tuple[Any, ...]]:
        return [tuple(line[name] for name in MOVES) for line in self.all]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


@pytest.mark.parametrize("protocol", ["cooperative-sticky", "consumer"])
def test_what_is_revoked_and_what_is_brought_instead_is_one_line(protocol: str, lines: Lines) -> None:
    driver = KafkaDriver(protocol)
    driver.append(B, range(3))
    driver.assign(A, B)
    with Engine(driver, commit_interval=60) as engine:
        engine.until_written(B, range(3))
        driver.revoke(B)
        driver.add()
        engine.until(lambda: len(lines.all) == 2)
        driver.add(C)
        engine.until(lambda: len(lines.all) == 3)
    assert lines.moves() == [
        (1, 2, ["t[0-1]"], [], [], []),
        (2, 1, [], ["t[1]"], [], ["t[0]"]),
        (3, 2, ["t[2]"], [], [], ["t[0]"]),
    ]
    first, second, _ = lines.all
    assert (first["level"], first["commit_result"], first["drained"]) == ("INFO", "none", 0)
    assert (second["level"], second["commit_result"], second["committed_positions"]) == ("INFO", "ok", 1)
    assert (second["drained"], second["not_drained"], second["timed_out"]) == (1, 0, 0)
    assert (second["group_protocol"], second["generation"]) == (
        "consumer" if protocol == "consumer" else "classic",
        1,
    )
    assert second["callback_seconds"] >= second["drain_seconds"] >= 0
    assert [line[f"{each}_lanes"] for line in lines.all for each in ("gained", "revoked", "lost", "kept")] == [
        *(2, 0, 0, 0),
        *(0, 1, 0, 1),
        *(1, 0, 0, 1),
    ]


def test_an_eager_group_takes_all_and_brings_the_new_set_in_one_line(lines: Lines) -> None:
    driver = KafkaDriver("range")
    driver.assign(A, B)
    with Engine(driver) as engine:
        engine.until(lambda: len(engine.controller.fleet.lanes) == 2)
        driver.revoke()
        driver.assign(A)
        engine.until(lambda: len(lines.all) == 2)
    assert lines.moves()[1] == (2, 1, ["t[0]"], ["t[0-1]"], [], [])


def test_a_revocation_without_an_answer_is_told_after_a_while(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "_ANSWER_SECONDS_CONSUMER", 0.1)
    driver = KafkaDriver("consumer")
    driver.assign(A, B)
    with Engine(driver) as engine:
        engine.until(lambda: len(engine.controller.fleet.lanes) == 2)
        driver.revoke(B)
        engine.until(lambda: len(lines.all) == 2)
    assert lines.moves()[1] == (2, 1, [], ["t[1]"], [], ["t[0]"])


@every_protocol
def test_a_revocation_without_an_answer_is_told_when_the_member_leaves(protocol: str, lines: Lines) -> None:
    driver = KafkaDriver(protocol)
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until(lambda: len(engine.controller.fleet.lanes) == 1)
        driver.revoke()
        engine.until(lambda: not engine.controller.fleet.lanes)
        engine.stop()
    assert lines.moves() == [(1, 1, ["t[0]"], [], [], []), (2, 0, [], ["t[0]"], [], [])]


@every_protocol
def test_lost_lanes_are_a_warning_with_what_came_after(protocol: str, lines: Lines) -> None:
    driver = KafkaDriver(protocol)
    driver.assign(A, B)
    with Engine(driver) as engine:
        engine.until(lambda: len(engine.controller.fleet.lanes) == 2)
        driver.lose()
        driver.assign(B)
        engine.until(lambda: len(lines.all) == 2)
    assert lines.moves()[1] == (2, 1, ["t[1]"], [], ["t[0-1]"], [])
    assert lines.all[1]["level"] == "WARNING"


@every_protocol
def test_lanes_whose_sink_fails_are_a_warning_and_counted_as_not_drained(protocol: str, lines: Lines) -> None:
    def fail(batch: Batch) -> None:
        if batch.metadata.partition == 0:
            raise TransientError("down")

    driver, destination = KafkaDriver(protocol), Destination()
    destination.behave = fail
    driver.append(A, range(3))
    driver.append(B, range(3))
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2) as engine:
        engine.until_written(B, range(3))
        engine.until(lambda: bool(engine.controller.fleet.pipelines[0].retries))
        driver.revoke(A, B)
        driver.assign()
        engine.until(lambda: len(lines.all) == 2)
    line = lines.all[1]
    assert (line["drained"], line["not_drained"], line["timed_out"]) == (1, 1, 0)
    assert line["level"] == "WARNING"


@every_protocol
def test_lanes_that_do_not_finish_in_time_are_a_warning_and_counted(protocol: str, lines: Lines) -> None:
    driver, destination = KafkaDriver(protocol, drain_timeout=0.1), Destination()
    driver.append(A, range(3))
    driver.append(B, range(3))
    destination.hang(partition=0)
    driver.assign(A, B)
    with Engine(driver, destination, drain_timeout=0.1, pipelines=2) as engine:
        destination.wait_hanging()
        engine.until_written(B, range(3))
        driver.revoke(A, B)
        driver.assign()
        engine.until(lambda: len(lines.all) == 2)
        destination.gate.set()
    line = lines.all[1]
    assert (line["drained"], line["not_drained"], line["timed_out"]) == (1, 0, 1)
    assert line["drain_seconds"] >= 0.1
    assert line["level"] == "WARNING"


@every_protocol
def test_a_commit_that_is_refused_is_told_by_its_code(protocol: str, lines: Lines) -> None:
    driver = KafkaDriver(protocol)
    driver.assign(A)
    with Engine(driver, commit_interval=60) as engine:
        engine.until(lambda: driver.committed(A) is not None)  # the start; what comes now waits for the revocation
        driver.append(A, range(3))
        engine.until_written(A, range(3))
        driver.fail_commits("ILLEGAL_GENERATION")
        driver.revoke(A)
        driver.assign()
        engine.until(lambda: len(lines.all) == 2)
    line = lines.all[1]
    assert (line["commit_result"], line["committed_positions"], line["level"]) == ("ILLEGAL_GENERATION", 0, "WARNING")
