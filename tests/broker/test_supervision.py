"""A bug in a sink kills a pipeline's thread: a new one begins where the durable prefix ends; no other lane notices."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.oracle import ends, judge, wait_until_committed
from tests.support.process import wait_until
from tests.support.scenario import Scenario, Traffic, held, metric, wait_until_copy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka
    from tests.support.oracle import Place

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

PARTITIONS = 4
PLUGIN = '''
"""Writes down each event with its records; partition 0 meets the bug while the file `bug` is there."""

import json
import time
from pathlib import Path

from connector import Field, Input, Settings, Sink


class DiarySettings(Settings):
    path: str = Field(description="File; the pipeline's number is added.")
    bug: str = Field(description="File that makes partition 0 fail; it is removed by that if `once`.")
    once: bool = True


class DiarySink(Sink[DiarySettings]):
    def open(self):
        self.file = open(f"{self.settings.path}-{self.context.pipeline}.jsonl", "a")

    def close(self):
        self.file.close()

    def on_event(self, event):
        match event:
            case Input(id=lane, metadata=metadata, data=batch):
                offsets = list(batch.column("offset"))
                bug = Path(self.settings.bug)
                if metadata.partition == 0 and bug.exists():
                    if self.settings.once:
                        bug.unlink()
                    self.note("Input", lane, metadata.topic, metadata.partition, offsets[: len(offsets) // 2])
                    self.note("Bug", lane)
                    raise ValueError("a bug in the sink")
                self.note("Input", lane, metadata.topic, metadata.partition, offsets)
            case _:
                self.note(type(event).__name__, getattr(event, "id", None), text=repr(event))

    def note(self, kind, lane=None, topic="", partition=-1, offsets=(), text=""):
        entry = {"kind": kind, "lane": lane, "topic": topic, "partition": partition, "offsets": list(offsets)}
        self.file.write(json.dumps({**entry, "text": text, "at": time.monotonic()}) + "\\n")
        self.file.flush()
'''


@dataclass(frozen=True, slots=True)
class Diary:
    """What one pipeline's sinks have written down, in order."""

    entries: list[dict[str, Any]]

    def kinds(self) -> list[str]:
        """Return the kinds of events, batches in a row as one."""
        kinds = [entry["kind"] for entry in self.entries]
        return [kind for before, kind in pairwise([None, *kinds]) if kind != before]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["kind"] == kind]

    def written(self) -> Counter[Place]:
        return Counter((e["topic"], e["partition"], offset) for e in self.of("Input") for offset in e["offsets"])


def _plugin(directory: Path, *, once: bool) -> dict[str, str]:
    plugins = directory / "plugins"
    plugins.mkdir()
    (plugins / "diary.py").write_text(PLUGIN)
    return {
        "CONNECTOR_PLUGIN_DIR": str(plugins),
        "CONNECTOR_SINK": "diary",
        "CONNECTOR_SINK_BUG": str(directory / "bug"),
        "CONNECTOR_SINK_ONCE": str(once).lower(),
        "CONNECTOR_PIPELINES": "2",
    }


def _diaries(directory: Path) -> list[Diary]:
    paths = sorted(directory.glob("*.jsonl-*.jsonl"))
    return [Diary([json.loads(line) for line in path.read_text().splitlines()]) for path in paths]


def test_a_crashed_pipeline_replays_its_lanes_from_the_watermark_and_no_other_lane_notices(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    # The restart comes late enough to see that the others go on meanwhile.
    settings = {**_plugin(tmp_path, once=True), "CONNECTOR_RETRY_INITIAL": "3s"}
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, settings)
    with scenario.copy() as copy, Traffic(kafka, [topic], portion=200) as traffic:
        wait_until_copy(
            copy, "both write", lambda: len(d := _diaries(tmp_path)) == 2 and all(each.of("Input") for each in d)
        )
        (tmp_path / "bug").touch()
        copy.wait_for_event("pipeline_failed")
        wait_until_copy(copy, "it is started anew", lambda: any(d.of("NodeRestarted") for d in _diaries(tmp_path)))
        assert metric(copy, "connector_pipeline_restarts_total") == 1
        traffic.stop()
        wait_until_committed(kafka, scenario.group, [topic])
        assert copy.events("lanes_revoked") == []
        assert copy.terminate() == 0
    diaries = _diaries(tmp_path)
    crashed = next(diary for diary in diaries if diary.of("Bug"))
    other = next(diary for diary in diaries if diary is not crashed)
    [bug], [failed], [restarted] = crashed.of("Bug"), crashed.of("NodeFailed"), crashed.of("NodeRestarted")

    # Lost is nothing; twice is only what the crash left half done.
    half_done = crashed.entries[crashed.entries.index(bug) - 1]
    verdict = judge(crashed.written() + other.written(), ends(kafka, [topic]))
    allowed = {(topic, half_done["partition"], offset): 1 for offset in half_done["offsets"]}
    print(f"{group_protocol}: {traffic.produced} records, down {restarted['at'] - bug['at']:.2f}s, {verdict}")
    assert verdict.lost == ()
    assert verdict.repeated == allowed

    # The replacement hears of the failure before its first batch, and its lanes are new ones.
    assert crashed.kinds() == ["Input", "Bug", "NodeFailed", "NodeRestarted", "Input", "InputClosed", "Stop"]
    assert "a bug in the sink" in failed["text"]
    old, new = (
        {entry["lane"] for entry in crashed.of("Input") if (entry["at"] < bug["at"]) is b} for b in (True, False)
    )
    assert len(old) == len(new) == PARTITIONS // 2
    assert max(old) < min(new)

    # The other pipeline's lanes stay what they are, and went on in between.
    assert other.kinds() == ["Input", "InputClosed", "Stop"]  # closed at the end
    assert len({entry["lane"] for entry in other.of("Input")}) == PARTITIONS // 2
    meanwhile = [entry["lane"] for entry in other.of("Input") if bug["at"] < entry["at"] < restarted["at"]]
    assert len(set(meanwhile)) == PARTITIONS // 2


def test_a_rebalance_between_a_crash_and_the_restart_spends_no_drain_timeout_and_loses_nothing(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    settings = {**_plugin(tmp_path, once=True), "CONNECTOR_RETRY_INITIAL": "12s", "CONNECTOR_DRAIN_TIMEOUT": "20s"}
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, settings)
    first, second = scenario.copy("first"), scenario.copy("second")
    with first, Traffic(kafka, [topic], portion=200) as traffic:
        wait_until_copy(
            first, "both write", lambda: len(d := _diaries(tmp_path)) == 2 and all(each.of("Input") for each in d)
        )
        (tmp_path / "bug").touch()
        first.wait_for_event("pipeline_failed")
        with second:
            wait_until(lambda: len(held(first)) == len(held(second)) == 2, timeout=40, what="both hold two")
            drains = [entry["drain_seconds"] for entry in first.events("lanes_revoked")]
            assert not any(diary.of("NodeRestarted") for diary in _diaries(tmp_path)), "too late to prove anything"
            wait_until_copy(first, "it is started anew", lambda: any(d.of("NodeRestarted") for d in _diaries(tmp_path)))
            traffic.stop()
            wait_until_committed(kafka, scenario.group, [topic])
            assert (first.terminate(), second.terminate()) == (0, 0)
    diaries = _diaries(tmp_path)
    crashed = next(diary for diary in diaries if diary.of("Bug"))
    half_done = crashed.entries[crashed.entries.index(crashed.of("Bug")[0]) - 1]
    verdict = judge(sum((diary.written() for diary in diaries), Counter()), ends(kafka, [topic]))
    print(f"{group_protocol}: {traffic.produced} records, drains {drains} s, {verdict}")
    assert verdict.lost == ()
    assert verdict.repeated == {(topic, half_done["partition"], offset): 1 for offset in half_done["offsets"]}
    assert drains
    assert sum(drains) < 5


def test_a_sink_that_crashes_again_and_again_ends_it_with_7_after_five_restarts(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    kafka.produce(topic, 400)
    (tmp_path / "bug").touch()
    retries = {"CONNECTOR_RETRY_INITIAL": "50ms", "CONNECTOR_RETRY_MAX": "100ms"}
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, {**_plugin(tmp_path, once=False), **retries})
    with scenario.copy() as copy:
        assert copy.wait(40) == 7
    [last] = copy.events("run_ended")
    assert "a bug in the sink" in last["reason"]
    assert copy.count("pipeline_restart_scheduled") == 5
    # What the healthy pipeline had is written and committed all the same; of partition 0 nothing is.
    committed = kafka.committed(scenario.group, topic)
    assert not committed[0]
    verdict = judge(sum((diary.written() for diary in _diaries(tmp_path)), Counter()), ends(kafka, [topic]))
    assert {place[1] for place in verdict.lost} <= {0}
