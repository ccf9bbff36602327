"""A partition that an operator paused, on a real group: it stays paused whatever the group does; the others flow."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from tests.support.kafka import protocol_properties
from tests.support.oracle import ends, judge, wait_until_committed, written_to_files
from tests.support.scenario import TOKEN, Scenario, ask, held, wait_until_copy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.connector import ConnectorProcess
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


@contextmanager
def _stranger(kafka: Kafka, group_protocol: str, group: str, topic: str) -> Iterator[None]:
    """Let a member join that takes half of four partitions, and commits nothing; it leaves at the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "log_level": 0,
            **protocol_properties(group_protocol),
            **({} if group_protocol == "consumer" else {"heartbeat.interval.ms": 500, "session.timeout.ms": 6000}),
        }
    )
    has_joined, is_over = threading.Event(), threading.Event()

    def take_part() -> None:
        consumer.subscribe([topic])
        while not is_over.is_set():
            consumer.poll(0.05)
            if len(consumer.assignment()) == 2:
                has_joined.set()
        consumer.close()

    thread = threading.Thread(target=take_part, name="stranger")
    thread.start()
    try:
        assert has_joined.wait(60), (
            "it gets no share"
        )  # one that leaves in the middle of a rebalance is missed for long
        yield
    finally:
        is_over.set()
        thread.join(60)


def _lane_states(copy: ConnectorProcess) -> dict[int, str]:
    return {lane["partition"]: lane["state"] for lane in copy.status()["lanes"]}


def test_a_paused_partition_stays_paused_through_rebalances_the_others_flow_and_nothing_is_lost(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic, paused = kafka.create_topic(partitions=4), 1
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, {"CONNECTOR_ADMIN_TOKEN": TOKEN})
    everything = {(topic, partition) for partition in range(4)}

    def others_are_committed() -> bool:
        committed = kafka.committed(scenario.group, topic)
        return all(committed[at] == end for at, end in kafka.end_offsets(topic).items() if at != paused)

    kafka.produce(topic, 40)
    with scenario.copy() as copy:
        wait_until_committed(kafka, scenario.group, [topic])
        refused = ask(copy, "POST", "/pause?topic=no-such-topic")
        assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")
        assert f"CONNECTOR_TOPICS={topic}" in refused.json()["detail"]
        answer = ask(copy, "POST", f"/pause?topic={topic}&partition={paused}")
        assert (answer.status_code, answer.json()["changed"]) == (202, True)
        again = ask(copy, "POST", "/pause", {"topic": topic, "partition": paused})
        assert (again.status_code, again.json()["changed"]) == (200, False)
        wait_until_copy(copy, "it is shown", lambda: _lane_states(copy)[paused] == "held_back")

        rebalances = 0
        for turn in range(2):
            with _stranger(kafka, group_protocol, scenario.group, topic):
                wait_until_copy(copy, "it has given some up", lambda: len(held(copy)) == 2)
                kafka.produce(topic, 400)
            wait_until_copy(copy, "it has all again", lambda: held(copy) == everything)
            rebalances += 2
            wait_until_copy(copy, f"the others flow after {rebalances} rebalances", others_are_committed)
            assert kafka.committed(scenario.group, topic)[paused] == 10
            assert _lane_states(copy) == {at: "held_back" if at == paused else "flowing" for at in range(4)}
            assert copy.status()["intents"] == [{"topic": topic, "partition": paused, "is_held_back": True}]
            assert copy.get("/readyz").status_code == 200
            assert len(copy.events("lanes_revoked")) > turn
        before = written_to_files(scenario.files)
        assert max(offset for _, partition, offset in before if partition == paused) == 9

        assert ask(copy, "POST", f"/resume?topic={topic}").json()["changed"]
        wait_until_committed(kafka, scenario.group, [topic])
        assert [(line["changed"], line["before"], line["after"]) for line in copy.events("admin_verb_done")] == [
            (True, "nothing held back", f"{topic}[1] held back"),
            (False, f"{topic}[1] held back", f"{topic}[1] held back"),
            (True, f"{topic}[1] held back", "nothing held back"),
        ]
        assert copy.terminate() == 0
    verdict = judge(written_to_files(scenario.files), ends(kafka, [topic]))
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
