"""Orders of rebalance events, of which a real broker gives some only by luck."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_END, TopicPartition

from connector import ExitCode, InvariantError
from connector.api.event import InputClosed
from connector.api.source_event import LanesAdded, LanesAssigned, LanesRevoked, RevokeReason
from connector.testing.client import FakeClient
from tests.support.engine import PROTOCOLS, Destination, Engine, KafkaDriver, together

if TYPE_CHECKING:
    from connector.testing.client import Key

A, B, C, D = ("t", 0), ("t", 1), ("t", 2), ("t", 3)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
not_eager = pytest.mark.parametrize("protocol", ["cooperative-sticky", "consumer"])


def callback(fake: FakeClient, name: str, *keys: Key) -> None:
    """Let a rebalance callback come with these partitions, whatever the client holds."""
    partitions = [TopicPartition(*key) for key in keys]
    fake._push(lambda: fake._run_callback(name, getattr(fake, f"_{name}"), fake, partitions))


# Empty and strange events.


@every_protocol
def test_an_empty_first_assignment_is_answered_and_the_next_one_flows(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))
    driver.assign()
    with Engine(driver) as engine:
        engine.until(lambda: engine.controller.has_joined)
        driver.assign(A)
        engine.until_committed(A, 3)
        full_sets = [len(event.lanes) for event in engine.events(LanesAssigned)]
        assert full_sets + [len(event.lanes) for event in engine.events(LanesAdded)] == [0, 1]
        assert len(engine.events(LanesAdded)) == (0 if protocol == "range" else 1)


@not_eager
def test_an_empty_assignment_takes_nothing_from_lanes_that_flow(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol), Destination()
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver, destination) as engine:
        engine.until_written(A, range(3))
        driver.assign()
        driver.append(A, [3, 4])
        driver.assign()
        engine.until_written(A, range(5))
        assert not engine.events(LanesRevoked)
        assert not [event for _, event in destination.events if isinstance(event, InputClosed)]


@not_eager
def test_what_was_revoked_before_is_not_remembered_at_later_assignments(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(B, [0])
    driver.assign(A, B)
    with Engine(driver) as engine:
        engine.until_written(B, [0])
        with together(driver.fake):
            driver.revoke(B)
            driver.assign()
            driver.assign(B)
            driver.append(B, [1])
            driver.assign()
        engine.until_written(B, [0, 1])


@every_protocol
def test_a_rebalance_error_event_is_a_revocation_of_nothing_and_costs_no_wait(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    with Engine(driver) as engine:
        callback(driver.fake, "on_revoke")
        driver.append(A, range(3))
        driver.assign(A)
        engine.until_written(A, range(3))
        callback(driver.fake, "on_lost")
        driver.append(A, [3])
        engine.until_written(A, range(4))
        assert not engine.events(LanesRevoked)
        assert engine.controller.error is None


@every_protocol
def test_a_revocation_names_partitions_that_are_not_ours_and_only_ours_are_answered_for(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_written(A, range(3))
        callback(driver.fake, "on_revoke", A, B, ("gone", 7))
        engine.until(lambda: len(engine.events(LanesRevoked)) == 1)
        assert len(engine.events(LanesRevoked)[0].lanes) == 1
        engine.until_committed(A, 3)
        callback(driver.fake, "on_revoke", A, B)
        assert driver.fake.wait_served()
        assert len(engine.events(LanesRevoked)) == 1


@not_eager
def test_a_revocation_of_one_partition_leaves_the_others_flowing_and_committing(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    for key in (A, B, C):
        driver.append(key, range(3))
    driver.assign(A, B, C)
    with Engine(driver) as engine:
        engine.until_committed(C, 3)
        driver.revoke(B)
        engine.until(lambda: len(engine.events(LanesRevoked)) == 1)
        driver.append(A, [3])
        driver.append(C, [3])
        engine.until_committed(A, 4)
        engine.until_committed(C, 4)
        assert len(engine.controller.fleet.lanes) == 2


@every_protocol
def test_an_assignment_without_a_revocation_before_it_fences_what_could_have_been_anybodys(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until_committed(A, 3)
        if protocol == "range":
            driver.assign(A)
        else:  # the client refuses to be given it twice, so it is no part of its assignment any more
            driver.fake._push(lambda: driver.fake._unassign([A]))
            driver.assign(A)
        driver.append(A, [3])
        engine.until_written(A, range(4))
        assert [event.reason for event in engine.events(LanesRevoked)] == [RevokeReason.LOST]


# Closing.


@every_protocol
def test_a_revocation_from_inside_close_finds_no_lanes_and_commits_nothing(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))
    driver.assign(A, B)
    with Engine(driver, commit_interval=60) as engine:
        engine.until_written(A, range(3))
        assert engine.stop().code is ExitCode.COMPLETED
    names = driver.fake.names("commit_async", "commit_sync", "close", "on_revoke", "on_revoke_done")
    assert names[-3:] == ["close", "on_revoke", "on_revoke_done"]
    assert "commit_sync" not in names
    assert driver.committed(A) == 3


@every_protocol
def test_an_assignment_from_inside_close_is_answered_and_nothing_of_it_is_read(protocol: str) -> None:
    class Leaving(FakeClient):
        def close(self) -> None:
            self.assign_partitions(B)
            super().close()

    driver = KafkaDriver(protocol)
    driver.next_client = Leaving()
    driver.append(A, range(3))
    driver.append(B, range(3))
    driver.assign(A)
    destination = Destination()
    with Engine(driver, destination) as engine:
        engine.until_written(A, range(3))
        assert engine.stop().code is ExitCode.COMPLETED
    assert destination.offsets(B) == []
    given = [call for call in driver.fake.calls if call.inside == "on_assign" and call.name.endswith("assign")]
    assert given[-1].partitions == ((*B, OFFSET_END),)
    assert driver.fake.is_closed


# Rebalances in quick succession.


@every_protocol
def test_a_partition_that_returns_before_its_work_is_done_stays_assigned_and_flows(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol), Destination()
    driver.append(A, range(3))
    destination.hang()
    driver.assign(A)
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        driver.revoke(A)
        driver.assign(A)
        driver.append(A, [3, 4])
        engine.until(lambda: len(engine.events(LanesRevoked)) == 1)
        destination.gate.set()
        engine.until_written(A, range(5))
        engine.until_committed(A, 5)
        assert list(driver.fake.assigned) == [A]


@every_protocol
def test_work_that_outlasts_its_drain_does_not_harm_the_lane_that_came_back(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, drain_timeout=0.05), Destination()
    driver.append(A, [100])
    driver.fake.watermarks[A] = (100, 101)
    destination.hang()
    driver.assign(A)
    with Engine(driver, destination, drain_timeout=0.05) as engine:
        destination.wait_hanging()
        driver.revoke(A)
        driver.assign(A)
        engine.until(lambda: bool(driver.fake.assigned) and len(engine.controller.fleet.lanes) == 1)
        engine.until(lambda: len(driver.fake.names("on_assign_done")) == 2)
        destination.gate.set()
        engine.until_written(A, [100, 100])  # by the lane of before, then by the new one
        engine.until_committed(A, 101)
        assert len({batch.metadata.lane for batch in destination.batches}) == 2


@every_protocol
def test_records_of_before_and_after_a_rebalance_in_one_consume_are_each_written_once(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))  # the first comes out of poll, then consume holds the whole rebalance
    driver.assign(A)
    driver.revoke(A)
    driver.assign(A)
    driver.append(A, [3, 4])
    with Engine(driver) as engine:
        engine.until_committed(A, 5)
        engine.until_written(A, range(5))


@every_protocol
def test_a_record_polled_just_before_a_rebalance_does_not_make_the_new_lane_skip_what_is_below_it(
    protocol: str,
) -> None:
    driver, destination = KafkaDriver(protocol, drain_timeout=0.05), Destination()
    driver.append(A, range(3))
    destination.hang()
    driver.assign(A)
    with Engine(driver, destination, drain_timeout=0.05) as engine:
        destination.wait_hanging()
        with together(driver.fake):
            driver.append(A, [3])
            driver.revoke(A)
            driver.assign(A)
        assert driver.fake.wait_served()
        driver.append(A, [4])
        destination.gate.set()
        engine.until_committed(A, 5)
        new = [offset for batch in destination.batches if batch.metadata.lane > 1 for offset in batch.column("offset")]
        assert new == [0, 1, 2, 3, 4]


@every_protocol
def test_many_rebalances_in_one_call_lose_and_repeat_nothing(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.assign(A)
    with Engine(driver) as engine:
        engine.until(lambda: engine.controller.has_joined)
        for round_ in range(5):
            with together(driver.fake):
                driver.append(A, [round_ * 2])
                driver.revoke(A)
                driver.assign(A)
                driver.append(A, [round_ * 2 + 1])
        engine.until_committed(A, 10)
        engine.until_written(A, range(10))


# A commit that is under way.


@not_eager
@pytest.mark.invariant(7)
def test_an_outstanding_commit_at_a_revocation_settles_late_and_only_lanes_that_are_held(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.fake.hold_answers()
    driver.assign(A, B)
    with Engine(driver) as engine:
        assert driver.fake.wait_until(lambda: "commit_async" in [call.name for call in driver.fake.calls])
        driver.append(A, range(3))
        driver.append(B, range(3))
        engine.until_written(A, range(3))
        engine.until_written(B, range(3))
        driver.revoke(A)
        engine.until_committed(A, 3)
        driver.assign(A)
        engine.until(lambda: len(engine.controller.fleet.lanes) == 2 and len(engine.events(LanesAdded)) == 1)
        new, kept = engine.events(LanesAdded)[0].lanes[0], engine.events(LanesAssigned)[0].lanes[1]
        assert new.committed == 3
        driver.fake.release_answers()
        engine.until_committed(B, 3)
        engine.until(lambda: kept.committed == 3)
        assert new.committed == 3
        positions = [positions[A] for _, positions in driver.commits() if A in positions]
        assert positions == sorted(positions)


@every_protocol
def test_no_commit_but_the_revocations_own_is_sent_while_a_rebalance_is_served(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol), Destination()
    driver.append(A, range(3))
    driver.append(B, range(3))
    destination.hang(partition=1)
    driver.assign(A, B)
    with Engine(driver, destination, pipelines=2) as engine:
        destination.wait_hanging()
        engine.until_written(A, range(3))
        driver.revoke(A, B)
        engine.until(lambda: len(engine.events(LanesRevoked)) == 1)
        driver.append(A, [3])
        destination.gate.set()
        engine.until_committed(B, 3)
        assert driver.fake.wait_served()
    inside = [call.name for call in driver.fake.calls if call.inside == "on_revoke" and call.name.startswith("commit")]
    assert inside == ["commit_sync"]


# A member that was out and does not know it.


@every_protocol
def test_a_zombie_whose_revocation_is_not_told_as_a_loss_commits_nothing_and_does_not_spin(protocol: str) -> None:
    driver = KafkaDriver(protocol)
    driver.append(A, range(3))
    driver.assign(A)
    with Engine(driver, commit_interval=60) as engine:
        engine.until(lambda: driver.committed(A) is not None)
        before = driver.committed(A) or 0
        engine.until_written(A, range(3))
        driver.append(A, [3])
        engine.until_written(A, range(4))
        driver.fake._is_member = False  # the group has gone on, and the client has not told
        driver.revoke(A)
        engine.until(lambda: any(event.barrier.is_settled for event in engine.events(LanesRevoked)))
        assert driver.committed(A) == before
        assert [is_synchronous for is_synchronous, _ in driver.commits()].count(True) == 1
        driver.assign(A)
        engine.until_written(A, [*range(4), *range(before, 4)])
        assert engine.stop().code is ExitCode.COMPLETED
        assert driver.committed(A) == 4


@every_protocol
def test_lost_partitions_cost_no_wait_even_while_the_sink_hangs(protocol: str) -> None:
    driver, destination = KafkaDriver(protocol, drain_timeout=60), Destination()
    driver.append(A, range(3))
    destination.hang()
    driver.assign(A)
    with Engine(driver, destination) as engine:
        destination.wait_hanging()
        driver.lose()
        driver.assign(B)
        engine.until(lambda: list(driver.fake.assigned) == [B])
        assert "commit_sync" not in driver.fake.names()
        destination.gate.set()


# Callbacks never raise.


@every_protocol
@pytest.mark.parametrize("step", ["assign", "revoke", "lose", "commit", "statistics"])
def test_an_error_in_a_callback_ends_the_run_in_an_orderly_way(
    protocol: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    driver = KafkaDriver(protocol)
    source = driver.kafka_source
    driver.append(A, range(3))
    if step == "assign":
        driver.fake.fail_next("assign" if protocol == "range" else "incremental_assign", "_STATE")
    elif step == "commit":
        monkeypatch.setattr(source._commits, "_settle", fail)
    driver.assign(A)
    # Only a commit without an answer, or of a lane that is gone, may wait until the deadline.
    with Engine(driver, shutdown_timeout=0.5 if step in ("lose", "commit") else 60) as engine:
        if step in ("revoke", "lose"):
            engine.until_written(A, range(3))
            monkeypatch.setattr(source._rebalance, "commit_now" if step == "revoke" else "abandon", fail)
            (driver.revoke if step == "revoke" else driver.lose)(A)
        elif step == "statistics":
            driver.fake.statistics("no JSON")
        report = engine.join()
        assert isinstance(report.error, InvariantError)
        assert report.code is ExitCode.BUG
        assert "bug" in str(report.error)
