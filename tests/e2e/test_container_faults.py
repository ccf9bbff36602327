"""Containers are killed, stopped, replaced and scaled under load, and servers are away: each record is there once.

The table has no key, so a record that comes twice would be a row more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.scenario import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.containers import KafkaContainer, PostgresContainer
    from tests.support.copies import ContainerCopy, Stand

    RecordProperty = Callable[[str, object], None]

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

EXACT = "lost 0: (), repeated 0: []"
OUTAGE_SECONDS = 30


def _load(stand: Stand) -> Traffic:
    return Traffic(stand.kafka, [stand.topic], portion=200)


def _end(stand: Stand, traffic: Traffic, *copies: ContainerCopy) -> None:
    """End the load, let everything be written, stop the copies, and see that nothing is lost or there twice."""
    traffic.stop()
    stand.wait_until_committed()
    assert [copy.stop() for copy in copies] == [0] * len(copies)
    assert str(stand.verdict()) == EXACT


def test_killed_and_started_again_under_load_it_loses_nothing_and_repeats_nothing(
    stand: Stand, record_property: RecordProperty
) -> None:
    with _load(stand) as traffic:
        copy = stand.copy()
        for _ in range(3):
            stand.wait_for_more_rows(stand.rows())
            copy.kill()
            copy.start()
        stand.wait_for_more_rows(stand.rows())
        _end(stand, traffic, copy)
    record_property("rows", traffic.produced)


def test_stopped_under_load_it_ends_with_0_and_the_positions_are_the_rows(
    stand: Stand, record_property: RecordProperty
) -> None:
    with _load(stand):
        copy = stand.copy()
        stand.wait_for_more_rows(5000)
        started = time.monotonic()
        assert copy.stop(30) == 0
        record_property("seconds to stop", round(time.monotonic() - started, 1))
        rows = stand.rows_by_partition()
    assert sum(stand.kafka.end_offsets(stand.topic).values()) > sum(rows.values())
    assert stand.positions() == rows
    assert stand.kafka.committed(stand.group, stand.topic) == rows
    assert stand.verdict().repeated == {}
    record_property("rows", sum(rows.values()))


def test_both_copies_are_replaced_one_after_the_other_under_load(stand: Stand, record_property: RecordProperty) -> None:
    with _load(stand) as traffic:
        copies = [stand.copy(), stand.copy()]
        stand.wait_until_shared(copies)
        for number, old in enumerate(copies):
            assert old.stop(30) == 0
            copies[number] = stand.copy()
            stand.wait_until_shared(copies)
            stand.wait_for_more_rows(stand.rows())
        _end(stand, traffic, *copies)
    record_property("rows", traffic.produced)


def test_two_copies_become_four_and_then_one_under_load(stand: Stand, record_property: RecordProperty) -> None:
    with _load(stand) as traffic:
        copies = [stand.copy(), stand.copy()]
        stand.wait_until_shared(copies)
        copies += [stand.copy(), stand.copy()]
        stand.wait_until_shared(copies)
        stand.wait_for_more_rows(stand.rows())
        for copy in copies[1:]:
            assert copy.stop(30) == 0
        stand.wait_until_shared(copies[:1])
        stand.wait_for_more_rows(stand.rows())
        _end(stand, traffic, copies[0])
    record_property("rows", traffic.produced)


def test_a_broker_that_is_started_again_costs_no_restart_and_no_record(
    stand: Stand, kafka_container: KafkaContainer, record_property: RecordProperty
) -> None:
    with _load(stand) as traffic:
        copy = stand.copy()
        stand.wait_for_more_rows()
        kafka_container.stop()
        kafka_container.start()
        back = time.monotonic()
        before = stand.rows()
        copy.wait_for("it writes again", lambda: stand.rows() > before)
        record_property("seconds until it writes again", round(time.monotonic() - back, 1))
        _end(stand, traffic, copy)
    assert len(copy.events("run_started")) == 1
    record_property("rows", traffic.produced)


def test_a_database_that_is_away_for_30_s_costs_no_restart_and_no_record(
    stand: Stand, postgres_container: PostgresContainer, record_property: RecordProperty
) -> None:
    with _load(stand) as traffic:
        copy = stand.copy()
        stand.wait_for_more_rows()
        postgres_container.stop()
        stopped = time.monotonic()
        while time.monotonic() < stopped + OUTAGE_SECONDS:
            assert copy.get("/livez").status_code == 200
            time.sleep(1)
        postgres_container.start()
        back = time.monotonic()
        before = stand.rows()
        copy.wait_for("it writes again", lambda: stand.rows() > before)
        record_property("seconds until it writes again", round(time.monotonic() - back, 1))
        assert copy.state["Health"]["Status"] == "healthy"
        _end(stand, traffic, copy)
    assert len(copy.events("run_started")) == 1
    record_property("rows", traffic.produced)
