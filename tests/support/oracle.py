"""Judges a run: what was written, where a repeat cannot hide, against what the topics hold and the group committed."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg import sql

from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.kafka import Kafka

Place = tuple[str, int, int]  # topic, partition, offset


def written_to_files(paths: Iterable[Path]) -> Counter[Place]:
    """Return how often each record stands in files of the sink `file`. A partial last line is not written yet."""
    found: Counter[Place] = Counter()
    for path in paths:
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                record = json.loads(line)
                found[record["topic"], record["partition"], record["offset"]] += 1
    return found


def written_in_order(path: Path) -> list[Place]:
    """Return the records of one file of the sink `file`, in its order; none if there is no file yet."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    records = (json.loads(line) for line in lines if line.endswith(b"\n"))
    return [(record["topic"], record["partition"], record["offset"]) for record in records]


def written_to_table(dsn: str, table: str = "records") -> Counter[Place]:
    """Return how often each record stands in a table without a key, which the sink `postgres` has made."""
    query = sql.SQL('SELECT topic, partition, "offset", count(*) FROM {} GROUP BY 1, 2, 3').format(
        sql.Identifier(table)
    )
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        rows = connection.execute(query).fetchall()
    return Counter({(topic, partition, offset): count for topic, partition, offset, count in rows})


def beyond(repeated: Mapping[Place, int], allowed: Counter[Place]) -> dict[Place, int]:
    """Return the repeats that nothing explains: `allowed` says how often each record may be there once more."""
    return {place: count for place, count in repeated.items() if count > allowed[place]}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is lost and what is there more than once."""

    lost: tuple[Place, ...]
    repeated: Mapping[Place, int]  # how often it is there beside the first time

    def __str__(self) -> str:
        return f"lost {len(self.lost)}: {self.lost[:5]}, repeated {len(self.repeated)}: {list(self.repeated)[:5]}"


def judge(written: Counter[Place], produced: Mapping[str, Sequence[int]]) -> Verdict:
    """Compare what was written with the ends of topics that have no gaps: `produced` has each partition's end."""
    expected = {
        (topic, partition, offset)
        for topic, ends in produced.items()
        for partition, end in enumerate(ends)
        for offset in range(end)
    }
    lost = tuple(sorted(expected - written.keys()))
    return Verdict(lost, {place: count - 1 for place, count in written.items() if count > 1})


def ends(kafka: Kafka, topics: Iterable[str]) -> dict[str, list[int]]:
    """Return the end offsets of topics, by partition."""
    return {topic: [end for _, end in sorted(kafka.end_offsets(topic).items())] for topic in topics}


def wait_until_committed(kafka: Kafka, group: str, topics: Sequence[str], *, timeout: float = 120) -> None:
    """Wait until the group's committed positions are the ends."""

    def is_done() -> bool:
        return all(kafka.committed(group, topic) == kafka.end_offsets(topic) for topic in topics)

    wait_until(is_done, timeout=timeout, what=f"{group} has committed the ends of {', '.join(topics)}")


@dataclass(slots=True)
class CommittedSampler:
    """Samples a group's committed positions from a thread of its own; `went_back` lists each step backwards."""

    kafka: Kafka
    group: str
    topics: Sequence[str]
    went_back: list[str] = field(default_factory=list)
    samples: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _last: dict[tuple[str, int], int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="sampler")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            for topic, partition, position in self._positions():
                before = self._last.get((topic, partition), -1)
                if position < before:
                    self.went_back.append(f"{topic}[{partition}] from {before} to {position}")
                self._last[topic, partition] = position
            self.samples += 1

    def _positions(self) -> Iterator[tuple[str, int, int]]:
        for topic in self.topics:
            for partition, position in self.kafka.committed(self.group, topic).items():
                if position is not None:
                    yield topic, partition, position
