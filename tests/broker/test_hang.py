"""A sink that hangs or fails costs the group nothing: no rebalance, no waiting in one, no record."""

from __future__ import annotations

import fcntl
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from connector.cli.run import assemble
from connector.config.load import load
from tests.support.connector import ConnectorProcess, protocol_settings
from tests.support.engine import Destination
from tests.support.group import group_settings
from tests.support.kafka import GROUP_PROTOCOLS
from tests.support.oracle import ends, judge, wait_until_committed, written_to_files
from tests.support.process import wait_until
from tests.support.scenario import Traffic, held, metric

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from connector import SinkContext
    from connector.runtime.controller import ExitReport
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

MAX_POLL_SECONDS = 6.0


@dataclass
class Member:
    """The only member of a group, in this process: `connector run` refuses such a short `max.poll.interval.ms`."""

    kafka: Kafka
    group_protocol: str
    topic: str
    destination: Destination = field(default_factory=Destination)
    report: ExitReport | None = None

    def __post_init__(self) -> None:
        self.group = f"hang-{self.group_protocol}-{self.topic}"
        config = load(
            {
                **protocol_settings(self.group_protocol),
                "CONNECTOR_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
                "CONNECTOR_GROUP_ID": self.group,
                "CONNECTOR_TOPICS": self.topic,
                "CONNECTOR_SINK": "null",
                "CONNECTOR_COMMIT_INTERVAL": "500ms",
            }
        )
        properties = {**config.client.properties, "max.poll.interval.ms": f"{MAX_POLL_SECONDS * 1000:.0f}"}

        def make_sink(_: object, context: SinkContext) -> Any:
            return self.destination.make(context.pipeline)

        sink_type = cast("Any", make_sink)
        sink_type.params_type = None
        self.parts = assemble(replace(config, client=replace(config.client, properties=properties), sink=sink_type))
        self._thread = threading.Thread(target=self._run, name=self.group)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.destination.gate.set()
        self.parts.controller.request_stop()
        self._thread.join(60)

    def _run(self) -> None:
        self.report = self.parts.controller.run()

    @property
    def rebalances(self) -> dict[str, float]:
        samples = next(iter(self.parts.metrics.rebalances.collect())).samples
        return {s.labels["event"]: s.value for s in samples if s.name.endswith("_total") and s.value}

    @property
    def silent_seconds(self) -> float:
        """For how long the consumer thread has not taken a turn."""
        return time.monotonic() - self.parts.controller.source.seen


@pytest.mark.invariant(2)
def test_a_sink_that_hangs_for_three_poll_intervals_causes_no_rebalance(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=4)
    clock = threading.Event()  # never set: its wait is the time between two looks
    with ExitStack() as stack:
        # With all protocols at once, since most of it is waiting.
        members = [Member(kafka, group_protocol, topic) for group_protocol in GROUP_PROTOCOLS]
        for member in members:
            member.destination.hang()
            stack.enter_context(member)
        traffic = stack.enter_context(Traffic(kafka, [topic], portion=50))
        for member in members:
            assert member.destination.hanging.acquire(timeout=60), f"{member.group}: no write began"
        hangs_until = time.monotonic() + 3 * MAX_POLL_SECONDS
        states = [kafka.describe_group(member.group) for member in members]
        rebalances = [member.rebalances for member in members]
        longest = 0.0
        while not clock.wait(0.1) and time.monotonic() < hangs_until:
            longest = max(longest, *(member.silent_seconds for member in members))
        assert [kafka.describe_group(member.group) for member in members] == states
        assert [member.rebalances for member in members] == rebalances
        for member in members:
            member.destination.gate.set()
        traffic.stop()
        for member in members:
            wait_until_committed(kafka, member.group, [topic])
    print(f"longest time without a turn of a consumer thread: {longest:.2f}s")
    assert longest < MAX_POLL_SECONDS / 2
    assert [(state.state, len(state.members)) for state in states] == [("STABLE", 1)] * len(members)
    for member in members:
        assert member.report is not None
        assert member.report.code == 0
        verdict = judge(Counter(member.destination.written), ends(kafka, [topic]))
        assert (verdict.lost, dict(verdict.repeated)) == ((), {}), f"{member.group}: {verdict}"
        assert member.rebalances == {"assigned": 1}


@pytest.mark.invariant(5)
def test_a_rebalance_does_not_wait_for_a_sink_that_fails(kafka: Kafka, group_protocol: str, tmp_path: Path) -> None:
    topics = [kafka.create_topic(partitions=4)]
    group = f"backoff-{topics[0]}"
    settings = {
        **group_settings(kafka, group_protocol, group, topics),
        "CONNECTOR_SINK": "file",
        "CONNECTOR_DRAIN_TIMEOUT": "20s",
        "CONNECTOR_RETRY_MAX": "1s",
    }
    files = [tmp_path / f"{n}.jsonl" for n in range(2)]
    failing, joining = (
        ConnectorProcess(f"copy-{n}", tmp_path, {**settings, "CONNECTOR_SINK_PATH": str(path)})
        for n, path in enumerate(files)
    )
    with ExitStack() as stack:
        file = stack.enter_context(files[0].open("ab"))
        fcntl.flock(file, fcntl.LOCK_EX)  # another writer has the file: the sink tries again and again
        traffic = stack.enter_context(Traffic(kafka, topics, portion=200))
        stack.enter_context(failing)
        wait_until(
            lambda: [lane["state"] for lane in failing.status()["lanes"]] == ["retrying"] * 4,
            timeout=60,
            what="every lane of the first copy is in backoff",
        )
        stack.enter_context(joining)
        wait_until(lambda: len(held(joining)) == 2, timeout=60, what="the second copy has half of the partitions")
        [revocation] = failing.events("lanes_revoked")
        longest = metric(failing, "connector_drain_seconds_sum")
        fcntl.flock(file, fcntl.LOCK_UN)
        traffic.stop()
        wait_until_committed(kafka, group, topics)
        codes = [copy.terminate() for copy in (failing, joining)]
    assert codes == [0, 0]
    assert revocation["lanes"] == (4 if group_protocol == "range" else 2)
    assert longest is not None
    print(f"{group_protocol}: {longest:.3f}s for the drain of {revocation['lanes']} lanes")
    assert longest < 2
    assert failing.events("drain_timed_out") == []
    verdict = judge(written_to_files(files), ends(kafka, topics))
    assert (verdict.lost, dict(verdict.repeated)) == ((), {}), str(verdict)
