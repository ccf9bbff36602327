"""A plugin file as a sink under `connector run`, and what an operator does to it: reload, parameters, pause, stop."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.oracle import ends, judge, wait_until_committed, written_to_files
from tests.support.process import wait_until
from tests.support.scenario import TOKEN, Scenario, Traffic, ask, metric, wait_until_copy, wait_until_ready

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.connector import ConnectorProcess
    from tests.support.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

PLUGIN = """
import json
from connector import Field, Input, Settings, Sink

VERSION = "one"


class Wishes(Settings):
    colour: str = "red"
    size: int = Field(1, ge=0)


class DiarySettings(Settings):
    path: str = Field(description="File; the pipeline's number is added.")


class DiarySink(Sink[DiarySettings]):
    params_type = Wishes

    def open(self):
        self.file = open(f"{self.settings.path}-{self.context.pipeline}.jsonl", "a")

    def close(self):
        self.note(kind="close")
        self.file.close()

    def on_event(self, event):
        match event:
            case Input(data=batch):
                for topic, partition, offset in batch.rows("topic", "partition", "offset"):
                    self.note(kind="Input", topic=topic, partition=partition, offset=offset)
            case _:
                self.note(kind=type(event).__name__, text=repr(event))

    def note(self, **entry):
        self.file.write(json.dumps({"version": VERSION, "topic": "", "partition": -1, "offset": -1, **entry}) + "\\n")
        self.file.flush()
"""


class Platform:
    """A group whose sink is the plugin file `diary.py`."""

    def __init__(self, kafka: Kafka, group_protocol: str, directory: Path, topic: str, **settings: str) -> None:
        self._directory = directory
        self.plugin = directory / "plugins" / "diary.py"
        self.plugin.parent.mkdir()
        self.plugin.write_text(PLUGIN)
        more = {
            "CONNECTOR_PLUGIN_DIR": str(self.plugin.parent),
            "CONNECTOR_SINK": "diary",
            "CONNECTOR_ADMIN_TOKEN": TOKEN,
            "CONNECTOR_PIPELINES": "2",
            **settings,
        }
        self.scenario = Scenario(kafka, group_protocol, [topic], directory, more)

    def entries(self) -> list[list[dict[str, Any]]]:
        """Return what each pipeline's sinks have written down, in order; a batch is an entry for each record."""
        paths = sorted(self._directory.glob(f"{self.scenario.group}-*.jsonl-*.jsonl"))
        return [
            [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            for path in paths
        ]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the entries of one kind, of all pipelines."""
        return [entry for entries in self.entries() for entry in entries if entry["kind"] == kind]

    def verdict(self, kafka: Kafka) -> tuple[int, int]:
        """Return how many records are lost, and how many are there more than once."""
        paths = self._directory.glob(f"{self.scenario.group}-*.jsonl-*.jsonl")
        written = written_to_files(paths)
        found = judge(written, ends(kafka, self.scenario.topics))
        return len(found.lost), sum(1 for place in found.repeated if place[0])


def _lag(copy: ConnectorProcess) -> int:
    return sum(lane["lag"] or 0 for lane in copy.status()["lanes"])


def test_a_reloaded_sink_takes_over_between_batches_and_a_broken_version_leaves_the_old_one_running(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=4)
    platform = Platform(kafka, group_protocol, tmp_path, topic)
    reload = {"operator_id": "sink"}
    with platform.scenario.copy() as copy, Traffic(kafka, [topic], portion=100) as traffic:
        wait_until_copy(copy, "both write", lambda: len(e := platform.entries()) == 2 and all(e))
        assert ask(copy, "POST", "/reload", reload, token=None).status_code == 401
        assert ask(copy, "POST", "/reload", reload, token="wrong").status_code == 401

        platform.plugin.write_text("import nothing_that_is_installed\n")
        answer = ask(copy, "POST", "/reload", reload)
        assert answer.status_code == 422
        assert "nothing_that_is_installed" in answer.text

        platform.plugin.write_text(PLUGIN.replace('"one"', '"unopened"').replace("self.file = open", "self.fiel.open"))
        assert ask(copy, "POST", "/reload", reload).status_code == 202
        assert "fiel" in copy.wait_for_event("plugin_reload_failed", count=2)[-1]["error"]
        wait_until_copy(copy, "the sinks are told", lambda: len(platform.of("Error")) == 2)

        platform.plugin.write_text(PLUGIN.replace('"one"', '"two"'))
        assert ask(copy, "POST", "/reload", reload).status_code == 202
        copy.wait_for_event("plugin_reloaded", count=2)
        wait_until_copy(
            copy,
            "both new ones write",
            lambda: all(
                entries[-1]["version"] == "two" and entries[-1]["kind"] == "Input" for entries in platform.entries()
            ),
        )
        traffic.stop()
        wait_until_committed(kafka, platform.scenario.group, [topic])
        assert (copy.events("lanes_revoked"), copy.events("pipeline_failed")) == ([], [])
        assert copy.terminate() == 0
    assert platform.verdict(kafka) == (0, 0)
    for entries in platform.entries():
        versions = [entry["version"] for entry in entries]
        assert versions == sorted(versions)  # the old version is done before the new one begins
        assert set(versions) == {"one", "two"}
        old = [entry["kind"] for entry in entries if entry["version"] == "one"]
        assert old[-2:] == ["Reload", "close"]
        assert [e["kind"] for e in entries if e["version"] == "two"][-2:] == ["Stop", "close"]


def test_parameters_are_checked_told_to_every_sink_and_survive_a_restart(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=4)
    kafka.produce(topic, 40)
    platform = Platform(kafka, group_protocol, tmp_path, topic, CONNECTOR_STATE_DIR=str(tmp_path / "state"))
    copy = platform.scenario.copy()
    with copy:
        wait_until_copy(copy, "both write", lambda: len(e := platform.entries()) == 2 and all(e))
        assert ask(copy, "PUT", "/params/colour", "blue", token=None).status_code == 401
        answers = [ask(copy, "PUT", f"/params/{key}", value) for key, value in (("colour", "blue"), ("size", 7))]
        assert [answer.status_code for answer in answers] == [200, 200]
        refused = [ask(copy, "PUT", f"/params/{key}", value) for key, value in (("size", -1), ("colours", "x"))]
        assert [answer.status_code for answer in refused] == [422, 422]
        assert "Did you mean colour?" in refused[1].text
        assert ask(copy, "DELETE", "/params/size").status_code == 200
        assert ask(copy, "GET", "/params").json() == {"colour": "blue"}
        wait_until_copy(copy, "they are told", lambda: len(platform.of("ParamDeleted")) == 2)
        assert copy.terminate() == 0
    before = [[entry["kind"] for entry in entries] for entries in platform.entries()]
    assert [kinds.count("ParamUpdate") for kinds in before] == [2, 2]

    with copy:
        assert copy.events("run_started")
        wait_until(lambda: len(copy.events("run_started")) == 2, timeout=30, what="it is started again")
        kafka.produce(topic, 40)
        wait_until_committed(kafka, platform.scenario.group, [topic])
        assert ask(copy, "GET", "/params").json() == {"colour": "blue"}
        assert copy.terminate() == 0
    for entries, kinds in zip(platform.entries(), before, strict=True):
        after = entries[len(kinds) :]
        assert [entry["kind"] for entry in after[:2]] == ["ParamUpdate", "Input"]
        assert "'blue'" in after[0]["text"]
    assert platform.verdict(kafka) == (0, 0)


def test_a_paused_copy_takes_nothing_and_stays_in_the_group_until_it_is_resumed_and_the_verb_stop_ends_it_cleanly(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=4)
    kafka.produce(topic, 40)
    platform = Platform(kafka, group_protocol, tmp_path, topic)
    with platform.scenario.copy() as copy:
        wait_until_committed(kafka, platform.scenario.group, [topic])
        assert [ask(copy, "POST", f"/{verb}", token=None).status_code for verb in ("pause", "resume", "stop")] == [
            401
        ] * 3
        assert ask(copy, "POST", "/pause").status_code == 202
        wait_until_copy(copy, "it says so", lambda: "paused by an operator" in copy.get("/readyz").text)
        kafka.produce(topic, 40)
        wait_until_copy(copy, "it sees what it leaves", lambda: _lag(copy) == 40)
        assert len(platform.of("Input")) == 40
        assert ask(copy, "POST", "/resume").status_code == 202
        wait_until_committed(kafka, platform.scenario.group, [topic])
        wait_until_ready(copy)
        assert ask(copy, "POST", "/stop").status_code == 202
        assert copy.wait() == 0
        assert copy.events("lanes_revoked") == []
    assert platform.verdict(kafka) == (0, 0)
    assert [entries[-2]["text"] for entries in platform.entries()] == ["Stop(cause=<StopCause.MANUAL: 'manual'>)"] * 2


def test_without_a_token_no_verb_works(kafka: Kafka, tmp_path: Path) -> None:
    scenario = Scenario(kafka, "consumer", [kafka.create_topic()], tmp_path)
    with scenario.copy() as copy:
        assert ask(copy, "POST", "/stop").status_code == 404
        assert ask(copy, "GET", "/params").status_code == 404
        assert copy.is_running
        assert copy.terminate() == 0


def test_ignored_tombstones_are_counted_and_committed_and_the_others_are_written(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [b"a", None, b"", None], keys=[b"k"] * 4)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, {"CONNECTOR_TOMBSTONES": "ignore"})
    with scenario.copy() as copy:
        wait_until_committed(kafka, scenario.group, [topic])
        assert metric(copy, "connector_filtered_records_total", topic=topic, transform="tombstones") == 2
        assert copy.terminate() == 0
    assert sorted(written_to_files(scenario.files)) == [(topic, 0, 0), (topic, 0, 2)]


def test_a_tombstone_under_fail_ends_it_with_5_and_is_not_committed(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [b"a", None, b"b"], keys=[b"k"] * 3)
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, {"CONNECTOR_TOMBSTONES": "fail"})
    with scenario.copy() as copy:
        assert copy.wait(40) == 5
    [last] = copy.events("run_ended")
    assert f"{topic}[0]@1" in last["reason"]
    assert "CONNECTOR_TOMBSTONES=fail" in last["reason"]
    assert (kafka.committed(scenario.group, topic)[0] or 0) <= 1


def test_a_filter_lets_through_what_matches_and_commits_and_counts_the_rest(
    kafka: Kafka, group_protocol: str, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=4)
    kafka.produce(topic, [b'{"user": {"country": "%s"}}' % (b"AT" if n % 3 == 0 else b"DE") for n in range(600)])
    settings = {
        "CONNECTOR_VALUE_FORMAT": "json",
        "CONNECTOR_TRANSFORMS": "filter",
        "CONNECTOR_TRANSFORM_FILTER_EXPRESSION": "matches(value.user.country, 'A.')",
    }
    scenario = Scenario(kafka, group_protocol, [topic], tmp_path, settings)
    with scenario.copy() as copy:
        wait_until_committed(kafka, scenario.group, [topic])
        assert metric(copy, "connector_filtered_records_total", topic=topic, transform="filter") == 400
        assert metric(copy, "connector_written_records_total", topic=topic) == 200
        assert copy.terminate() == 0
    [file] = scenario.files
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 200
    assert all("AT" in json.dumps(line["value"]) for line in lines)
