"""The table of `docs/guides/acls.md`: each feature works with exactly its rights, and each of them is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.command import connector_command
from tests.support.connector import ConnectorProcess, protocol_settings
from tests.support.kafka import Kafka
from tests.support.process import tail
from tests.support.protected import PASSWORD, allow, as_user, protected_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.jvm import JvmBroker

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

PAGE = Path(__file__).parents[2] / "docs/guides/acls.md"
ROW = re.compile(
    r"\| (?P<feature>.+?) \| (?P<kind>topic|group|transactional ids that begin with) `(?P<name>\S+)` "
    r"\| (?P<operation>\w+) \| (?P<outcome>.+) \|"
)
PREFIXED = {"transactional ids that begin with": "transactional_id"}
RUN = "`run`"
ADDED_TO_RUN = {
    "dead letters": {
        "CONNECTOR_VALUE_FORMAT": "json",
        "CONNECTOR_ON_POISON": "dlq",
        "CONNECTOR_DLQ_TOPIC": "orders.dlq",
    },
    "sink `kafka`": {"CONNECTOR_SINK": "kafka", "CONNECTOR_SINK_TOPIC": "orders.copy"},
    "sink `kafka`, transactional": {
        "CONNECTOR_SINK": "kafka",
        "CONNECTOR_SINK_TOPIC": "orders.copy",
        "CONNECTOR_SINK_TRANSACTIONAL": "true",
    },
}
COMMANDS = {
    "`offsets show`": ("offsets", "show"),
    "`offsets reset`": ("offsets", "reset", "--to", "earliest", "--execute"),
    "`dlq show`": ("dlq", "show"),
    "`dlq replay`": ("dlq", "replay"),
}


@dataclass(frozen=True, slots=True)
class Right:
    """A row of the table."""

    feature: str
    kind: str
    name: str
    operation: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Case:
    """A user, what it may do, and what is tried."""

    user: str
    feature: str
    rights: tuple[Right, ...]
    missing: Right | None = None

    def __str__(self) -> str:
        name = re.sub(r"\W+", "-", self.feature).strip("-")
        return name if self.missing is None else f"{name}-without-{self.missing.operation}-on-{self.missing.name}"


def _cases() -> list[Case]:
    page = PAGE.read_text(encoding="utf-8")
    table = [Right(**found.groupdict()) for found in ROW.finditer(page)]
    assert len(table) == page.count("\n| ") - 1, "every row of the table but its head"
    cases: list[Case] = []
    for feature in dict.fromkeys(right.feature for right in table):
        own = [right for right in table if right.feature == feature]
        base = [right for right in table if right.feature == RUN and feature in ADDED_TO_RUN]
        cases.append(Case(f"user{len(cases)}", feature, (*base, *own)))
        for right in own:
            rest = (each for each in (*base, *own) if each is not right)
            cases.append(Case(f"user{len(cases)}", feature, tuple(rest), right))
    return cases


CASES = _cases()


@pytest.fixture(scope="module")
def broker() -> Iterator[JvmBroker]:
    """A broker on which each case's user may do what its rights say, with records, dead letters and a position."""
    bindings = [
        allow(
            case.user,
            right.operation,
            PREFIXED.get(right.kind, right.kind),
            right.name,
            is_prefix=right.kind in PREFIXED,
        )
        for case in CASES
        for right in case.rights
    ]
    with protected_broker([case.user for case in CASES], bindings) as started:
        kafka = Kafka(started.internal_servers)
        for topic in ("orders", "orders.dlq", "orders.copy"):
            kafka.create_topic(topic)
        kafka.produce("orders", [b"no JSON"] * 3)
        yield started


def _settings(broker: JvmBroker, case: Case) -> dict[str, str]:
    return {
        **protocol_settings("consumer"),
        **as_user(broker, case.user),
        "CONNECTOR_GROUP_ID": "first",
        "CONNECTOR_TOPICS": "orders",
        "CONNECTOR_STOP": "end",
        "CONNECTOR_SINK": "null",
    }


def _set_back(broker: JvmBroker, tmp_path: Path, *, has_letters: bool) -> None:
    """Let the group stand at the beginning, and have dead letters that nobody has replayed."""
    base = {"CONNECTOR_BOOTSTRAP_SERVERS": broker.internal_servers, "CONNECTOR_TOPICS": "orders"}
    kafka = Kafka(broker.internal_servers)
    reset = connector_command(
        {**base, "CONNECTOR_GROUP_ID": "first"}, "offsets", "reset", "--to", "earliest", "--execute"
    )
    assert reset.returncode == 0, reset.stdout + reset.stderr
    if has_letters:
        before = kafka.end_offsets("orders.dlq")[0]
        settings = {
            **base,
            **ADDED_TO_RUN["dead letters"],
            "CONNECTOR_SINK": "null",
            "CONNECTOR_GROUP_ID": f"letters-{before}",
            "CONNECTOR_STOP": "end",
        }
        with ConnectorProcess("letters", tmp_path, settings) as copy:
            assert copy.wait() == 0
        assert kafka.end_offsets("orders.dlq")[0] > before


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_feature_works_with_its_rights_and_misses_each_as_the_page_says(
    broker: JvmBroker, case: Case, tmp_path: Path
) -> None:
    _set_back(broker, tmp_path, has_letters=case.feature.startswith("`dlq"))
    settings = _settings(broker, case)
    kafka = Kafka(broker.internal_servers)
    outcome = "exit 0" if case.missing is None else case.missing.outcome
    if (command := COMMANDS.get(case.feature)) is not None:
        topic = {"CONNECTOR_DLQ_TOPIC": "orders.dlq"} if command[0] == "dlq" else {}
        done = connector_command({**settings, **topic}, *command)
        said = done.stdout + done.stderr
        assert f"exit {done.returncode}" == outcome[: len("exit N")], said
    else:
        ends = {name: kafka.end_offsets(name)[0] for name in ("orders.dlq", "orders.copy")}
        with ConnectorProcess("copy", tmp_path, {**settings, **ADDED_TO_RUN.get(case.feature, {})}) as copy:
            assert f"exit {copy.wait()}" == outcome[: len("exit N")], tail(copy.log)
            said = copy.events("run_ended")[-1]["reason"] or ""
        if case.missing is None:
            assert kafka.committed("first", "orders") == kafka.end_offsets("orders")
            grown = {name for name, end in ends.items() if kafka.end_offsets(name)[0] > end}
            assert grown == {right.name for right in case.rights if right.name in ends}
    _says_which(said, case.missing)
    assert PASSWORD not in said


def _says_which(said: str, missing: Right | None) -> None:
    """What is missing is in the line: the right, or the topic that looks as if it did not exist."""
    if missing is None:
        return
    if "exit 3" in missing.outcome:
        assert "Grant" in said or "Read on the" in said, said
        assert missing.kind.split()[0] in said, said
    else:
        assert missing.name in said, said
