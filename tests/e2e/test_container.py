"""One copy in a container, as the guide runs it: first records, health, secrets, refusals, memory, plugins."""

from __future__ import annotations

import json
import os
import re
import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from connector.cli.new_sink import new_sink
from tests.support.copies import TABLE
from tests.support.docker import docker
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.containers import KafkaContainer
    from tests.support.copies import ContainerCopy, Stand

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
RECORD_BYTES = 100_000
BACKLOG_RECORDS = 10_000
PLUGIN = """
from connector import Batch, Field, Settings, Sink


class LinesSettings(Settings):
    path: str = Field(description="Where lines are added.")


class LinesSink(Sink[LinesSettings]):
    def write(self, batch: Batch) -> None:
        with open(self.settings.path, "a") as file:
            file.writelines(f"{partition} {offset}\\n" for partition, offset in batch.rows("partition", "offset"))
"""


def test_first_records_arrive_through_a_read_only_file_system_and_the_copy_turns_healthy(
    stand: Stand, record_property: Callable[[str, object], None]
) -> None:
    stand.kafka.produce(stand.topic, 1000)
    started = time.monotonic()
    copy = stand.copy()
    wait_until(lambda: stand.rows() == 1000, timeout=60, what="all records are there")
    record_property("seconds to the first rows", round(time.monotonic() - started, 1))
    assert copy.run("id", "-u").strip() == "10001"
    assert "connector" in copy.run("cat", "/proc/1/cmdline")
    assert "Read-only file system" in copy.run("sh", "-c", "touch /opt/venv/x /tmp/x 2>&1 || true")
    copy.wait_for("it is healthy", lambda: copy.state["Health"]["Status"] == "healthy")
    record_property("to healthy", round(time.monotonic() - started, 1))
    assert copy.stop() == 0
    assert str(stand.verdict()) == "lost 0: (), repeated 0: []"


def test_secrets_in_files_are_in_no_log_no_answer_and_no_inspection(
    stand: Stand, kafka_container: KafkaContainer
) -> None:
    stand.kafka.produce(stand.topic, 100)
    token = secrets.token_hex(16)
    password = psycopg.conninfo.conninfo_to_dict(stand.dsn)["password"]
    copy = stand.copy(
        {
            "CONNECTOR_LOG_LEVEL": "debug",
            "CONNECTOR_BOOTSTRAP_SERVERS": "kafka:9095",
            "CONNECTOR_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "CONNECTOR_KAFKA_SASL_MECHANISM": "PLAIN",
            "CONNECTOR_KAFKA_SASL_USERNAME": "connector",
            "CONNECTOR_KAFKA_SASL_PASSWORD_FILE": "/run/secrets/kafka",
            "CONNECTOR_ADMIN_TOKEN_FILE": "/run/secrets/token",
        },
        mounts={**stand.secret("kafka", kafka_container.sasl_password), **stand.secret("token", token)},
    )
    wait_until(lambda: stand.rows() == 100, timeout=60, what="all records are there")
    stand.wait_until_committed()
    shown = {path: copy.get(path).text for path in ("/", "/config", "/status", "/metrics", "/readyz")}
    assert "CONNECTOR_SINK_DSN" in shown["/config"]
    assert copy.stop() == 0
    shown |= {"log": copy.log(), "inspect": json.dumps(copy.inspect())}
    assert copy.events("run_ended")
    for secret in (token, str(password), kafka_container.sasl_password):
        assert [place for place, text in shown.items() if secret in text] == []


def _reason(copy: ContainerCopy, secret: str) -> str:
    """Return what the one line about the end says of a copy that has to end with 3, and never shows its secret."""
    assert copy.wait(60) == 3, copy.log()
    assert secret not in copy.log()
    [line] = copy.events("run_ended")
    assert (line["level"], line["exit_code"]) == ("error", 3)
    return str(line["reason"])


def test_a_wrong_password_of_the_database_ends_it_with_3_and_one_line_that_says_so(stand: Stand) -> None:
    wrong = psycopg.conninfo.make_conninfo(stand.inner_dsn, password="not-the-password")
    settings = {"CONNECTOR_SINK_DSN_FILE": "/run/secrets/wrong"}
    copy = stand.copy(settings, mounts=stand.secret("wrong", wrong))
    reason = _reason(copy, "not-the-password")
    assert 'password authentication failed for user "test"' in reason
    assert "CONNECTOR_SINK_DSN" in reason


def test_a_wrong_password_of_kafka_ends_it_with_3_and_one_line_that_says_so(stand: Stand) -> None:
    copy = stand.copy(
        {
            "CONNECTOR_BOOTSTRAP_SERVERS": "kafka:9095",
            "CONNECTOR_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "CONNECTOR_KAFKA_SASL_MECHANISM": "PLAIN",
            "CONNECTOR_KAFKA_SASL_USERNAME": "connector",
            "CONNECTOR_KAFKA_SASL_PASSWORD_FILE": "/run/secrets/kafka",
        },
        mounts=stand.secret("kafka", "not-the-password"),
    )
    reason = _reason(copy, "not-the-password")
    assert "Invalid username or password" in reason
    assert "CONNECTOR_KAFKA_SASL_PASSWORD" in reason


def test_a_backlog_of_1_gb_of_100_kb_records_passes_through_256_mb(
    stand: Stand, record_property: Callable[[str, object], None]
) -> None:
    noise = os.urandom(RECORD_BYTES + BACKLOG_RECORDS)  # no compression makes it less
    for first in range(0, BACKLOG_RECORDS, 500):
        stand.kafka.produce(stand.topic, (noise[n : n + RECORD_BYTES] for n in range(first, first + 500)))
    started = time.monotonic()
    copy = stand.copy()
    copy.wait_for("the backlog is in", lambda: stand.rows() == BACKLOG_RECORDS, timeout=240)
    seconds = time.monotonic() - started
    peak = re.search(r"VmHWM:\s+(\d+) kB", copy.run("cat", "/proc/1/status"))
    assert peak is not None
    record_property("MB/s", round(RECORD_BYTES * BACKLOG_RECORDS / 1e6 / seconds))
    record_property("largest RSS, MiB", int(peak[1]) // 1024)
    assert copy.stop() == 0
    assert not copy.state["OOMKilled"]
    assert str(stand.verdict()) == "lost 0: (), repeated 0: []"
    with psycopg.connect(stand.dsn) as connection:
        [(stored,)] = connection.execute(f"SELECT sum(length(value)) FROM {TABLE}").fetchall()
    assert stored == RECORD_BYTES * BACKLOG_RECORDS


@pytest.fixture
def writable(tmp_path: Path) -> Path:
    """A folder that the user of the image may write to."""
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def image_with_a_sink(image: str, tmp_path: Path) -> Iterator[str]:
    """The guide's Dockerfile, with a package of `connector new-sink` for its `my-sink`."""
    guide = (ROOT / "docs" / "guides" / "deploy.md").read_text()
    found = re.search(r"```dockerfile\n(FROM sluiceway\n.*?)```", guide, re.DOTALL)
    assert found is not None
    new_sink("web-hook", tmp_path / "package")
    recipe = found[1].replace("FROM sluiceway\n", f"FROM {image}\nCOPY package /package\n")
    recipe = recipe.replace("pip install --no-cache-dir my-sink", "pip install --no-cache-dir /package")
    recipe = recipe.replace("CONNECTOR_SINK=my-sink", "CONNECTOR_SINK=web-hook")
    (tmp_path / "Dockerfile").write_text(recipe)
    name = f"{image}-web-hook"
    docker("build", "--quiet", "-t", name, str(tmp_path), timeout=240)
    yield name
    docker("rmi", "--force", name)


def test_an_image_with_a_package_of_new_sink_writes_through_it(
    stand: Stand, image_with_a_sink: str, writable: Path
) -> None:
    stand.kafka.produce(stand.topic, 200)
    copy = stand.copy(
        {"CONNECTOR_STOP": "end"},
        sink={"CONNECTOR_SINK_PATH": "/data/records.db"},  # which one, the image says
        image=image_with_a_sink,
        mounts={writable: "/data:rw"},
    )
    assert copy.wait(60) == 0, copy.log()
    with closing(sqlite3.connect(writable / "records.db")) as database:
        values = [int(value) for (value,) in database.execute("SELECT value FROM records")]
    assert sorted(values) == list(range(200))


def test_a_file_in_a_mounted_folder_is_a_sink(stand: Stand, writable: Path, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "lines.py").write_text(PLUGIN)
    stand.kafka.produce(stand.topic, 200)
    copy = stand.copy(
        {"CONNECTOR_STOP": "end", "CONNECTOR_PLUGIN_DIR": "/plugins"},
        sink={"CONNECTOR_SINK": "lines", "CONNECTOR_SINK_PATH": "/data/lines"},
        mounts={plugins: "/plugins", writable: "/data:rw"},
    )
    assert copy.wait(60) == 0, copy.log()
    lines = (writable / "lines").read_text().splitlines()
    assert sorted(lines) == sorted(f"{partition} {offset}" for partition in range(4) for offset in range(50))
