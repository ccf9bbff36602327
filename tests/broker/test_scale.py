"""A group grows beyond its partitions and shrinks again while records flow."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.oracle import ends, judge, wait_until_committed, written_to_files
from tests.support.process import wait_until
from tests.support.scenario import Scenario, Traffic, held, wait_until_copy, wait_until_ready

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


@pytest.mark.invariant(5)
def test_scaling_out_beyond_the_partitions_and_in_again_loses_and_repeats_nothing(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=3)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path)
    copies = [scenario.copy(f"{n}") for n in range(4)]
    with ExitStack() as stack:
        stack.enter_context(copies[0])
        wait_until_copy(copies[0], "it holds all", lambda: len(held(copies[0])) == 3)
        traffic = stack.enter_context(Traffic(kafka, [topic]))
        for copy in copies[1:]:
            stack.enter_context(copy)
        for copy in copies:
            wait_until_ready(copy)
        wait_until(
            lambda: sorted(len(held(copy)) for copy in copies) == [0, 1, 1, 1],
            timeout=60,
            what="three copies hold a partition each",
        )
        [idle] = [copy for copy in copies if not held(copy)]
        assert "stands by" in wait_until_ready(idle)
        others = [copy for copy in copies if copy is not idle]
        codes = [copy.terminate() for copy in others]
        wait_until_copy(idle, "it holds all", lambda: len(held(idle)) == 3)
        assert "consuming" in wait_until_ready(idle)
        traffic.stop()
        wait_until_committed(kafka, scenario.group, [topic])
        codes.append(idle.terminate())
    verdict = judge(written_to_files(scenario.files), ends(kafka, [topic]))
    assert codes == [0, 0, 0, 0]
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
    assert sum(map(sum, ends(kafka, [topic]).values())) == traffic.produced
    written_at_last = written_to_files([path for path in scenario.files if path.stem == idle.name])
    assert {partition for _, partition, _ in written_at_last} == {0, 1, 2}
