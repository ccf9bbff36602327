"""Positions as JSON or CSV, and back: what `offsets show` writes, `offsets reset --from-file` takes. Pure.

Only `topic`, `partition` and `position` have to be there, so a file may be written by hand too. `topic_id` keeps a
position from being given to another topic of the same name.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from connector.api.types import Offset
from connector.offsets.plan import RefusedResetError, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from connector.offsets.state import Key, PartitionState, Reading

_COLUMNS = (
    *("topic", "partition", "position", "topic_id", "committed", "sink_position"),
    *("log_start", "log_end", "lag", "note"),
)


@dataclass(frozen=True, slots=True)
class SavedPositions:
    """What a file holds. `without` are partitions that had no position, so that a start policy decided."""

    wanted: Mapping[Key, Wanted]
    without: tuple[Key, ...]


def json_document(reading: Reading) -> str:
    """Return everything that was read; what is absent is null."""
    document = {
        "group": reading.group_id,
        "state": reading.group.state,
        "protocol": reading.group.protocol,
        "members": [asdict(member) for member in reading.group.members],
        "missing_topics": reading.missing,
        "denied_topics": reading.denied,
        "partitions": [{**_row(state), "metadata": _metadata(state)} for state in reading.partitions],
    }
    return json.dumps(document, indent=2) + "\n"


def csv_document(reading: Reading) -> str:
    """Return a line for each partition, under a header; what is absent is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(state) for state in reading.partitions)
    return text.getvalue()


def read_document(text: str) -> SavedPositions:
    """Read what either of them wrote.

    Raises:
        RefusedResetError: It is neither, or a line of it cannot be used.
    """
    entries = _json_entries(text) if text.lstrip().startswith("{") else _csv_entries(text)
    wanted: dict[Key, Wanted] = {}
    without: list[Key] = []
    problems: list[str] = []
    for where, entry in entries:
        try:
            key, position = (_text(entry, "topic"), _number(entry, "partition")), entry.get("position")
            if key in wanted or key in without:
                raise ValueError(f"{key[0]}[{key[1]}] is there twice")  # noqa: TRY301 - all problems are told together
            if position in (None, ""):
                without.append(key)
            else:
                topic_id = entry.get("topic_id") or None
                wanted[key] = Wanted(Offset(_number(entry, "position")), "from the file", topic_id)
        except ValueError as error:
            problems.append(f"{where}: {error}")
    if problems:
        raise RefusedResetError(problems)
    return SavedPositions(wanted, tuple(without))


def _row(state: PartitionState) -> dict[str, Any]:
    return {
        "topic": state.topic,
        "partition": state.partition,
        "position": state.position,
        "topic_id": state.facts.topic_id if state.facts else None,
        "committed": state.committed.position if state.committed else None,
        "sink_position": state.stored.next_offset if state.stored else None,
        "log_start": state.log.start if state.log else None,
        "log_end": state.log.end if state.log else None,
        "lag": state.lag,
        "note": state.note,
    }


def _metadata(state: PartitionState) -> dict[str, Any] | None:
    """Return what our commit says of its topic; None: another program committed."""
    return asdict(state.committed.facts) if state.committed and state.committed.facts else None


def _json_entries(text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    try:
        entries = json.loads(text).get("partitions")
    except json.JSONDecodeError as error:
        raise RefusedResetError([f"line {error.lineno} of the file is no JSON: {error.msg}"]) from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RefusedResetError(["the file is not what `connector offsets show --json` writes: no list of partitions"])
    return ((f"partitions[{number}]", entry) for number, entry in enumerate(entries))


def _csv_entries(text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in ("topic", "partition", "position") if name not in (rows.fieldnames or ())]
    if missing:
        raise RefusedResetError([f"the first line of the file has to name its columns; missing: {', '.join(missing)}"])
    return [(f"line {rows.line_num}", row) for row in rows]


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is missing")
    return value


def _number(entry: Mapping[str, Any], name: str) -> int:
    value = str(entry.get(name)).strip()
    if not (value.isascii() and value.isdecimal()):
        raise ValueError(f"{name} is no whole number: {value}")
    return int(value)
