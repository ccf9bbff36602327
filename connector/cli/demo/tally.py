"""What was lost and what was written twice: the database compared with the broker, offset by offset."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition

from connector.api.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_BROKER_SECONDS = 10.0
_BUSY_SECONDS = 10.0
TABLE = "records"


@dataclass(frozen=True, slots=True)
class PartitionTally:
    """One partition: offsets `0` to `end` were produced; `rows` and `distinct` count its rows and their offsets."""

    topic: str
    partition: int
    end: int
    committed: int
    rows: int
    distinct: int

    @property
    def lost(self) -> int:
        """Offsets without a row."""
        return self.end - self.distinct

    @property
    def duplicated(self) -> int:
        """Rows beyond the first of their offset."""
        return self.rows - self.distinct

    @property
    def lag(self) -> int:
        """Offsets that the group would still read."""
        return self.end - self.committed


def count_rows(database: Path) -> int:
    """Return how many rows there are by now; quick, and disturbs no writer."""
    if not database.exists():
        return 0
    with contextlib.closing(sqlite3.connect(database, timeout=_BUSY_SECONDS)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (TABLE,)).fetchall():
            return 0
        # Rows are only ever added, so the newest one's number is their count.
        rows = connection.execute("SELECT coalesce(max(rowid), 0) FROM records").fetchall()
        return int(rows[0][0])


def read_ends(bootstrap_servers: str, group: str, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return end offset and committed position of every partition.

    Raises:
        FatalError: The broker does not answer, or has thrown records away.
    """
    # A consumer that never subscribes is no member: it reads the group's positions and disturbs nothing.
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "log_level": 3})
    found = {}
    try:
        metadata = consumer.list_topics(timeout=_BROKER_SECONDS).topics
        partitions = [TopicPartition(topic, number) for topic in topics for number in metadata[topic].partitions]
        for each in consumer.committed(partitions, timeout=_BROKER_SECONDS):
            start, end = consumer.get_watermark_offsets(each, timeout=_BROKER_SECONDS)
            if start:
                raise FatalError(
                    f"the embedded broker has thrown {start} records of {each.topic}[{each.partition}] away, since it "
                    "keeps 5 MiB of a partition. Run the demo with fewer --records."
                )
            found[each.topic, each.partition] = (end, max(0, each.offset))  # negative: nothing is committed
    except KafkaException as error:
        raise FatalError(f"the embedded broker does not answer: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return found


def tally(database: Path, ends: dict[tuple[str, int], tuple[int, int]]) -> list[PartitionTally]:
    """Compare the rows with the partitions. The table has no primary key, so no repeat is folded away."""
    with contextlib.closing(sqlite3.connect(database, timeout=_BUSY_SECONDS)) as connection:
        counted = {
            (topic, partition): (rows, distinct)
            for topic, partition, rows, distinct in connection.execute(
                'SELECT topic, partition, count(*), count(DISTINCT "offset") FROM records GROUP BY topic, partition'
            )
        }
    return [
        PartitionTally(topic, partition, end, committed, *counted.get((topic, partition), (0, 0)))
        for (topic, partition), (end, committed) in ends.items()
    ]
