"""Each check of `SinkContract` lets good sinks pass and can fail: here are sinks that are broken in one way each."""

from __future__ import annotations

import ast
import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connector import (
    Batch,
    CloseReason,
    ConnectorError,
    Field,
    GroupCommit,
    Input,
    InputClosed,
    InputRecovered,
    Offset,
    PoisonError,
    RecordErrors,
    RefusedError,
    Settings,
    Sink,
    Stop,
    StoredPosition,
    TransientError,
)
from connector.testing import SinkContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from connector import Event, LaneId, LaneInfo, SinkContext

FIELDS = ("topic", "partition", "offset", "value", "key", "headers")
BAD = b"bad"
CHECKS = [name for name in vars(SinkContract) if name.startswith("test_")]


class PathSettings(Settings):
    path: str = Field(description="Where the records go.")


class Lines(Sink[PathSettings]):
    """A good sink: appends a line for each record as it reads it, without a buffer."""

    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self.path = Path(settings.path)

    def open(self) -> None:
        self.probe()
        self.path.touch()

    def probe(self) -> None:
        if Path(f"{self.path}.down").exists():
            raise TransientError("the destination is down")

    def write(self, batch: Batch) -> None:
        self.probe()
        if batch.decoded:
            self.append(list(batch.rows(*FIELDS)))
            return
        for message in batch.messages:  # one by one, so that a fault leaves a part
            row = message.topic(), message.partition(), message.offset()
            self.append([(*row, message.value(), message.key(), message.headers() or [])])

    def append(self, rows: list[tuple[Any, ...]]) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{row!r}\n" for row in rows)


class LinesContract(SinkContract[PathSettings]):
    sink_type = Lines

    def make_settings(self, tmp_path: Path) -> PathSettings:
        return PathSettings(path=f"{tmp_path}/records")

    def read_back(self, settings: PathSettings) -> list[tuple[Any, ...]]:
        return [ast.literal_eval(line) for line in Path(settings.path).read_text().splitlines()]

    @contextlib.contextmanager
    def outage(self, settings: PathSettings) -> Iterator[None]:
        switch = Path(f"{settings.path}.down")
        switch.touch()
        yield
        switch.unlink()


class Rows(Sink[PathSettings]):
    """A good sink with positions: records and position in one transaction, the owner checked first."""

    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self.database: sqlite3.Connection | None = None
        self.owners: dict[tuple[str, int], int] = {}

    @property
    def holds_positions(self) -> bool:
        return True

    @property
    def resets_positions(self) -> bool:
        return True

    def open(self) -> None:
        self.close()
        self.database = sqlite3.connect(self.settings.path, isolation_level=None)
        self.database.execute("CREATE TABLE IF NOT EXISTS records (topic, partition, offset, value, key, headers)")
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS positions (group_id, topic, partition, position, topic_id, owner INTEGER, "
            "PRIMARY KEY (group_id, topic, partition))"
        )

    def claim(self, lane: LaneInfo) -> StoredPosition | None:
        key = (self.context.group_id, lane.topic, lane.partition)
        position, topic_id, owner = self.execute(
            "INSERT INTO positions VALUES (?, ?, ?, NULL, NULL, 1) ON CONFLICT DO UPDATE SET owner = owner + 1 "
            "RETURNING position, topic_id, owner",
            *key,
        )[0]
        self.owners[lane.topic, lane.partition] = owner
        return None if position is None else StoredPosition(position, topic_id)

    def read_positions(self) -> dict[tuple[str, int], StoredPosition]:
        self.open()
        query = "SELECT topic, partition, position, topic_id FROM positions WHERE group_id = ? AND position IS NOT NULL"
        rows = self.execute(query, self.context.group_id)
        return {(topic, partition): StoredPosition(position, topic_id) for topic, partition, position, topic_id in rows}

    def reset_positions(self, positions: Mapping[tuple[str, int], StoredPosition]) -> None:
        self.open()
        with self.transaction():
            for (topic, partition), stored in positions.items():
                self.reset(topic, partition, stored)

    def reset(self, topic: str, partition: int, stored: StoredPosition) -> None:
        self.execute(
            "INSERT INTO positions VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET position = excluded.position, "
            "topic_id = excluded.topic_id, owner = owner + 1",
            *(self.context.group_id, topic, partition, stored.next_offset, stored.topic_id),
        )

    def write(self, batch: Batch) -> None:
        with self.transaction():
            self.move(batch, batch.metadata.next_offset)
            self.insert(batch)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def move(self, batch: Batch, position: Offset) -> None:
        metadata = batch.metadata
        moved = self.execute(
            "UPDATE positions SET position = ?, topic_id = ? "
            "WHERE group_id = ? AND topic = ? AND partition = ? AND owner = ? RETURNING owner",
            *(position, metadata.topic_id, self.context.group_id, metadata.topic, metadata.partition),
            self.owners[metadata.topic, metadata.partition],
        )
        if not moved:
            raise RefusedError("another instance has claimed it")

    def insert(self, batch: Batch) -> None:
        for *row, headers in batch.rows(*FIELDS):
            plain = [field if isinstance(field, (str, bytes, int)) else None for field in row]
            self.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", *plain, repr(headers))

    def execute(self, statement: str, *parameters: object) -> list[Any]:
        assert self.database is not None
        return self.database.execute(statement, parameters).fetchall()

    def close(self) -> None:
        if self.database is not None:
            self.database.close()
            self.database = None


class RowsContract(SinkContract[PathSettings]):
    sink_type = Rows

    def make_settings(self, tmp_path: Path) -> PathSettings:
        return PathSettings(path=f"{tmp_path}/records.db")

    def read_back(self, settings: PathSettings) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(settings.path)) as database:
            rows = database.execute("SELECT * FROM records ORDER BY rowid").fetchall()
        return [(*row, ast.literal_eval(headers)) for *row, headers in rows]


class Group:
    """A consumer group in a database that records are written to as well: it commits for one generation only."""

    def __init__(self, path: str) -> None:
        self.path = f"{path}.group.db"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS records (topic, partition, offset, contents)")
            database.execute("CREATE TABLE IF NOT EXISTS positions (topic, partition, at)")
            yield database

    def commit(self, database: sqlite3.Connection, batch: Batch, commit: GroupCommit) -> None:
        if commit.member != b"now":
            raise TransientError("a former generation")
        metadata = batch.metadata
        where = metadata.topic, metadata.partition
        database.execute("DELETE FROM positions WHERE topic = ? AND partition = ?", where)
        database.execute("INSERT INTO positions VALUES (?, ?, ?)", (*where, metadata.next_offset))


class Committing(Sink[PathSettings]):
    """A good sink that commits positions: both in one transaction."""

    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self.group = Group(settings.path)

    @property
    def commits_positions(self) -> bool:
        return True

    def write(self, batch: Batch) -> None:
        with self.group.transaction() as database:
            self.store(database, batch)
            self.group.commit(database, batch, self.context.group_commit(batch.metadata.lane))

    def store(self, database: sqlite3.Connection, batch: Batch) -> None:
        for topic, partition, offset, *contents in batch.rows(*FIELDS):
            database.execute("INSERT INTO records VALUES (?, ?, ?, ?)", (topic, partition, offset, repr(contents)))


class CommittingContract(SinkContract[PathSettings]):
    sink_type = Committing

    def make_settings(self, tmp_path: Path) -> PathSettings:
        return PathSettings(path=str(tmp_path / "records"))

    def read_back(self, settings: PathSettings) -> list[tuple[Any, ...]]:
        with Group(settings.path).transaction() as database:
            rows = database.execute("SELECT * FROM records ORDER BY rowid").fetchall()
        return [(*row, *ast.literal_eval(contents)) for *row, contents in rows]

    def group_commit(self, lane: LaneId) -> GroupCommit:
        return GroupCommit(b"now", "")

    def former_group_commit(self, lane: LaneId) -> GroupCommit:
        return GroupCommit(b"then", "")

    def committed(self, settings: PathSettings) -> dict[tuple[str, int], int]:
        with Group(settings.path).transaction() as database:
            return {(topic, partition): at for topic, partition, at in database.execute("SELECT * FROM positions")}


class Background(Lines):
    """A good sink with several batches in flight."""

    max_in_flight = 5

    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self.pool: ThreadPoolExecutor | None = None

    def open(self) -> None:
        super().open()
        self.pool = self.pool or ThreadPoolExecutor(1)

    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        assert self.pool is not None
        self.pool.submit(self.finish, batch, done)

    def finish(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        try:
            self.write(batch)
        except ConnectorError as error:
            done(error)
        else:
            done(None)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


class HoldsBack(Lines):
    """A good sink that writes what it has of a lane when it is asked to."""

    max_in_flight = 5

    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self.held: dict[LaneId, list[tuple[Batch, Callable[[ConnectorError | None], None]]]] = {}

    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        self.held.setdefault(batch.metadata.lane, []).append((batch, done))

    def flush(self, lane: LaneId) -> None:
        for batch, done in self.held.pop(lane, []):
            try:
                self.write(batch)
            except ConnectorError as error:
                done(error)
            else:
                done(None)

    def on_event(self, event: Event) -> None:
        match event:
            case InputClosed(id=lane):
                for _, done in self.held.pop(lane, []):
                    done(TransientError("the lane is closed"))
            case _:
                super().on_event(event)


class Deleting(Lines):
    """A good sink that lets a tombstone delete what has its key."""

    deletes = True

    def write(self, batch: Batch) -> None:
        for number, (key, value) in enumerate(batch.rows("key", "value")):
            if value is None and self.context.tombstones == "delete":
                kept = [line for line in self.path.read_text().splitlines() if ast.literal_eval(line)[4] != key]
                self.path.write_text("".join(f"{line}\n" for line in kept))
            else:
                super().write(batch.slice(number, number + 1))


class Halved(Lines):
    """A good sink that refuses a batch with a bad record as a whole."""

    def write(self, batch: Batch) -> None:
        if BAD in batch.column("value"):
            raise PoisonError("there is a bad value")
        super().write(batch)


class Named(Lines):
    """A good sink that names the bad records and writes the others."""

    shift = 0

    def write(self, batch: Batch) -> None:
        errors: dict[int, TransientError | PoisonError] = {}
        for number, value in enumerate(batch.column("value")):
            if value == BAD:
                errors[number + self.shift] = PoisonError("a bad value")
            else:
                super().write(batch.slice(number, number + 1))
        if errors:
            raise RecordErrors(errors)


class Keeping(Sink[PathSettings]):
    """A good sink that keeps nothing, and so cannot be read."""

    def write(self, batch: Batch) -> None:
        pass


class KeepingContract(LinesContract):
    def read_back(self, settings: PathSettings) -> Any:
        return None

    def outage(self, settings: PathSettings) -> Any:
        return None


def contract(sink: type[Sink[Any]]) -> SinkContract[Any]:
    """The contract of a sink of this file."""
    base: type[SinkContract[PathSettings]] = KeepingContract if sink is Keeping else LinesContract
    if issubclass(sink, (Rows, Committing)):
        base = RowsContract if issubclass(sink, Rows) else CommittingContract
    bad_value = BAD if issubclass(sink, (Halved, Named)) else None
    made: SinkContract[Any] = type("Contract", (base,), {"sink_type": sink, "bad_value": bad_value})()
    return made


def run(sink: type[Sink[Any]], check: str, tmp_path: Path) -> None:
    tests = contract(sink)
    if check == "test_every_setting_is_described":
        tests.test_every_setting_is_described()
    else:
        getattr(tests, check)(tmp_path)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("sink", [Lines, Rows, Committing, Background, HoldsBack, Deleting, Halved, Named, Keeping])
def test_a_good_sink_passes(sink: type[Sink[Any]], check: str, tmp_path: Path) -> None:
    run(sink, check, tmp_path)


# Broken sinks, each in the order of the checks.


class ClosesWhatIsNotOpen(Lines):
    def open(self) -> None:
        super().open()
        self.file = self.path.open("a")

    def close(self) -> None:
        self.file.close()


class ClosesOnce(Lines):
    is_closed = False

    def close(self) -> None:
        assert not self.is_closed, "closed twice"
        self.is_closed = True


class OpensOnce(Lines):
    def open(self) -> None:
        self.path.touch(exist_ok=False)


class EmptiesWhenMade(Lines):
    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self.path.write_text("")


class SilentSettings(Settings):
    path: str = ""


class Undescribed(Sink[SilentSettings]):
    pass


class WritesAtClose(Lines):
    """Acknowledges what it has only in memory."""

    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self.rows: list[tuple[Any, ...]] = []

    def append(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows += rows

    def close(self) -> None:
        super().append(self.rows)
        self.rows = []


class EmptiesWhenOpened(Lines):
    def open(self) -> None:
        self.path.write_text("")


class NotesBeforeItWrites(Lines):
    """Keeps repeats out, by a note that it makes too early."""

    is_idempotent = True

    def write(self, batch: Batch) -> None:
        note = Path(f"{self.path}-{batch.metadata.partition}-{batch.metadata.first_offset}")
        if not note.exists():
            note.touch()
            super().write(batch)


class SaysIdempotent(Lines):
    is_idempotent = True


class LosesRepeats(Lines):
    """Takes a replay for nothing new, and what comes with it too."""

    last = -1

    def write(self, batch: Batch) -> None:
        if batch.metadata.first_offset > self.last:
            super().write(batch)
            self.last = batch.metadata.first_offset + 100 if self.path.stat().st_size > 400 else self.last


class ForgetsWhatFailed(Lines):
    """Counts a batch as written before it is."""

    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self.seen: set[Offset] = set()

    def write(self, batch: Batch) -> None:
        if batch.metadata.first_offset not in self.seen:
            self.seen.add(batch.metadata.first_offset)
            super().write(batch)


class RaisesItsOwnError(Lines):
    """Lets the error of its destination out as it is."""

    def write(self, batch: Batch) -> None:
        try:
            super().write(batch)
        except TransientError as error:
            raise OSError(str(error)) from error


class SwallowsOutages(Lines):
    def write(self, batch: Batch) -> None:
        with contextlib.suppress(TransientError):
            super().write(batch)


class ProbesByWriting(Lines):
    def probe(self) -> None:
        super().probe()
        if self.path.exists():
            self.append([("probe", 0, 0)])


class ProbesInVain(Lines):
    def open(self) -> None:
        self.path.touch()

    def write(self, batch: Batch) -> None:
        self.append(list(batch.rows(*FIELDS)))

    def probe(self) -> None:
        raise TransientError("always")


class WritesBackwards(Lines):
    def write(self, batch: Batch) -> None:
        self.append(list(batch.rows(*FIELDS))[::-1])


class ReactsBadly(Lines):
    """Does `harm` at `event`."""

    event: type[Any] = Stop
    reason: CloseReason | None = None

    def on_event(self, event: Event) -> None:
        if isinstance(event, self.event) and self.reason in (None, getattr(event, "reason", None)):
            self.harm()
        super().on_event(event)

    def harm(self) -> None:
        self.path.write_text("")


class EmptiesAtStop(ReactsBadly):
    pass


class EmptiesWhenALaneIsLost(ReactsBadly):
    event = InputClosed
    reason = CloseReason.LOST


class ForgetsStalledLanes(ReactsBadly):
    event = InputRecovered

    def harm(self) -> None:
        raise KeyError("a lane that is closed")


class ClosesAllLanesWithOne(ReactsBadly):
    event = InputClosed
    is_closed = False

    def harm(self) -> None:
        self.is_closed = True

    def write(self, batch: Batch) -> None:
        assert not self.is_closed, "a write after close"
        super().write(batch)


class WritesOnePartitionOnce(Lines):
    """Takes a partition that has come back for one that is closed."""

    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, context)
        self.lanes: dict[int, int] = {}

    def write(self, batch: Batch) -> None:
        if self.lanes.setdefault(batch.metadata.partition, batch.metadata.lane) == batch.metadata.lane:
            super().write(batch)


class KnowsAllEvents(Lines):
    def on_event(self, event: Event) -> None:
        if not isinstance(event, (Input, InputClosed, Stop)):
            raise TypeError(f"an unknown event: {event}")
        super().on_event(event)


class TakesNullForEmpty(Lines):
    def append(self, rows: list[tuple[Any, ...]]) -> None:
        super().append([(*row, value or b"", key, headers) for *row, value, key, headers in rows])


class TakesOneHeaderOfAName(Lines):
    def append(self, rows: list[tuple[Any, ...]]) -> None:
        super().append([(*row, list(dict(headers).items())) for *row, headers in rows])


class SkipsNull(Lines):
    def write(self, batch: Batch) -> None:
        self.append([row for row in batch.rows(*FIELDS) if row[3] is not None])


class DecodesEverything(Lines):
    def write(self, batch: Batch) -> None:
        for value in batch.column("value"):
            if value is not None:
                value.decode()
        super().write(batch)


class ExpectsBytes(Lines):
    def append(self, rows: list[tuple[Any, ...]]) -> None:
        super().append([row for row in rows if row[3] is None or len(row[3]) >= 0])


class CutsBigValues(Lines):
    def append(self, rows: list[tuple[Any, ...]]) -> None:
        super().append([(*row, value and value[: 2**20], key, headers) for *row, value, key, headers in rows])


class NamesTheWrongRecord(Named):
    shift = 1


class NamesNoRecord(Named):
    shift = 10


class DropsTheRest(Named):
    """Stops at the bad record, and says that only that one was not written."""

    def write(self, batch: Batch) -> None:
        bad = [number for number, value in enumerate(batch.column("value")) if value == BAD]
        if not bad:
            super().write(batch)
            return
        Lines.write(self, batch.slice(0, bad[0]))
        raise RecordErrors({bad[0]: PoisonError("a bad value")})


class SkipsBadRecords(Halved):
    def write(self, batch: Batch) -> None:
        self.append([row for row in batch.rows(*FIELDS) if row[3] != BAD])


class SaysThatItDeletes(Lines):
    deletes = True

    def write(self, batch: Batch) -> None:
        self.append([row for row in batch.rows(*FIELDS) if row[3] is not None])


class DeletesFirst(Deleting):
    """Lets a tombstone delete what earlier batches wrote, and not what is before it in its own."""

    def write(self, batch: Batch) -> None:
        values = batch.column("value")
        for is_last in (False, True):
            super().write(batch.select([number for number, value in enumerate(values) if (value is None) != is_last]))


class DeletesLast(Deleting):
    """Lets a tombstone delete what comes after it, too."""

    def write(self, batch: Batch) -> None:
        values = batch.column("value")
        for is_last in (False, True):
            super().write(batch.select([number for number, value in enumerate(values) if (value is None) == is_last]))


class DeletesUnasked(Deleting):
    """Deletes although tombstones are to be written."""

    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, type(context)(context.group_id, tombstones="delete"))


class AnswersTwice(Background):
    def finish(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        super().finish(batch, done)
        done(None)


class ReordersWhatIsInFlight(Background):
    """Writes the first batch after the second."""

    first: tuple[Batch, Callable[[ConnectorError | None], None]] | None = None

    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        if batch.metadata.first_offset == 0:
            self.first = batch, done
            return
        super().submit(batch, done)
        if self.first is not None:
            super().submit(*self.first)
            self.first = None


class AnswersTooEarly(Background):
    def submit(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        super().submit(batch, lambda _: None) if batch.metadata.first_offset == 0 else None
        done(None)


class FailsInFlight(Background):
    def finish(self, batch: Batch, done: Callable[[ConnectorError | None], None]) -> None:
        done(TransientError("too many at a time") if batch.metadata.first_offset else None)


class AnswersBeforeItWrites(HoldsBack):
    def flush(self, lane: LaneId) -> None:
        for _, done in self.held.pop(lane, []):
            done(None)


class HoldsBackForEver(HoldsBack):
    def flush(self, lane: LaneId) -> None:
        """Whoever waits for this waits in vain."""


class ForgetsWhatItHolds(HoldsBack):
    def on_event(self, event: Event) -> None:
        match event:
            case InputClosed(id=lane):
                self.held.pop(lane)
            case _:
                super().on_event(event)


class ForgetsPositions(Rows):
    def claim(self, lane: LaneInfo) -> StoredPosition | None:
        super().claim(lane)
        return None


class ForgetsTheTopicId(Rows):
    def claim(self, lane: LaneInfo) -> StoredPosition | None:
        stored = super().claim(lane)
        return stored and StoredPosition(stored.next_offset)


class StoresTheOffsetAfterTheLastRecord(Rows):
    def write(self, batch: Batch) -> None:
        with self.transaction():
            self.move(batch, batch.column("offset")[-1] + 1)
            self.insert(batch)


class SharesPositionsOfAllGroups(Rows):
    def __init__(self, settings: PathSettings, context: SinkContext) -> None:
        super().__init__(settings, type(context)(group_id="any"))


class NeverRefuses(Rows):
    def write(self, batch: Batch) -> None:
        with contextlib.suppress(RefusedError):
            super().write(batch)


class RefusesTooLate(Rows):
    def write(self, batch: Batch) -> None:
        self.insert(batch)
        self.move(batch, batch.metadata.next_offset)


class MovesThePositionFirst(Rows):
    def write(self, batch: Batch) -> None:
        self.move(batch, batch.metadata.next_offset)
        self.insert(batch)


class CommitsEachRecord(Rows):
    def write(self, batch: Batch) -> None:
        for number in range(len(batch)):
            self.insert(batch.slice(number, number + 1))
        self.move(batch, batch.metadata.next_offset)


class CommitsAfterTheLastRecord(Committing):
    def write(self, batch: Batch) -> None:
        if batch:
            last = Offset(batch.column("offset")[-1] + 1)
            batch = Batch(replace(batch.metadata, next_offset=last), batch.messages)
        super().write(batch)


class CommitsNoEmptyBatch(Committing):
    def write(self, batch: Batch) -> None:
        if batch:
            super().write(batch)


class CommitsAsBefore(Committing):
    """Asks once as whom it commits."""

    commit: GroupCommit | None = None

    def write(self, batch: Batch) -> None:
        self.commit = self.commit or self.context.group_commit(batch.metadata.lane)
        with self.group.transaction() as database:
            self.store(database, batch)
            self.group.commit(database, batch, self.commit)


class StoresBeforeItCommits(Committing):
    """Two transactions."""

    def write(self, batch: Batch) -> None:
        with self.group.transaction() as database:
            self.store(database, batch)
        with self.group.transaction() as database:
            self.group.commit(database, batch, self.context.group_commit(batch.metadata.lane))


class CommitsBeforeItStores(Committing):
    """Two transactions, in the other order."""

    def write(self, batch: Batch) -> None:
        with self.group.transaction() as database:
            self.group.commit(database, batch, self.context.group_commit(batch.metadata.lane))
        with self.group.transaction() as database:
            self.store(database, batch)


class ClaimsWhatItReads(Rows):
    def read_positions(self) -> dict[tuple[str, int], StoredPosition]:
        found = super().read_positions()
        self.execute("UPDATE positions SET owner = owner + 1")
        return found


class ReadsAllGroups(Rows):
    def read_positions(self) -> dict[tuple[str, int], StoredPosition]:
        self.open()
        rows = self.execute("SELECT topic, partition, position, topic_id FROM positions WHERE position IS NOT NULL")
        return {(topic, partition): StoredPosition(position, topic_id) for topic, partition, position, topic_id in rows}


class ReadsClaimsAsPositions(Rows):
    def read_positions(self) -> dict[tuple[str, int], StoredPosition]:
        self.open()
        rows = self.execute("SELECT topic, partition, position, topic_id FROM positions")
        return {(topic, partition): StoredPosition(position, topic_id) for topic, partition, position, topic_id in rows}


class ForgetsOtherPositions(Rows):
    def reset(self, topic: str, partition: int, stored: StoredPosition) -> None:
        self.execute("DELETE FROM positions WHERE group_id = ? AND partition = 1", self.context.group_id)
        super().reset(topic, partition, stored)


class ResetsAllGroups(Rows):
    def reset(self, topic: str, partition: int, stored: StoredPosition) -> None:
        super().reset(topic, partition, stored)
        change = "UPDATE positions SET position = ?, topic_id = ? WHERE topic = ? AND partition = ?"
        self.execute(change, stored.next_offset, stored.topic_id, topic, partition)


class ResetsOnlyWhatIsThere(Rows):
    def reset(self, topic: str, partition: int, stored: StoredPosition) -> None:
        if self.execute("SELECT 1 FROM positions WHERE topic = ? AND partition = ?", topic, partition):
            super().reset(topic, partition, stored)


class ResetsWithoutTheTopicId(Rows):
    def reset(self, topic: str, partition: int, stored: StoredPosition) -> None:
        super().reset(topic, partition, StoredPosition(stored.next_offset))


class LeavesTheOwner(Rows):
    def reset(self, topic: str, partition: int, stored: StoredPosition) -> None:
        super().reset(topic, partition, stored)
        self.execute("UPDATE positions SET owner = owner - 1 WHERE topic = ? AND partition = ?", topic, partition)


BROKEN: list[tuple[type[Sink[Any]], str, str]] = [
    (ClosesWhatIsNotOpen, "test_close_is_allowed_before_open_and_twice", "has no attribute 'file'"),
    (ClosesOnce, "test_close_is_allowed_before_open_and_twice", "closed twice"),
    (OpensOnce, "test_open_is_allowed_again", "File exists"),
    (EmptiesWhenMade, "test_making_an_instance_touches_nothing", r"lost: contract\[0\]@0"),
    (Undescribed, "test_every_setting_is_described", "setting path has no description"),
    (WritesAtClose, "test_what_is_acknowledged_survives_a_crash", "lost: "),
    (EmptiesWhenOpened, "test_what_is_acknowledged_survives_close_and_a_new_start", r"lost: contract\[0\]@0"),
    (NotesBeforeItWrites, "test_a_crash_in_the_middle_of_a_batch_loses_nothing", r"lost: contract\[0\]@4"),
    (SaysIdempotent, "test_a_crash_in_the_middle_of_a_batch_loses_nothing", r"more than once: contract\[0\]@0"),
    (SaysIdempotent, "test_a_replay_loses_nothing_and_leaves_one_copy_if_idempotent", "more than once"),
    (LosesRepeats, "test_a_replay_loses_nothing_and_leaves_one_copy_if_idempotent", r"lost: contract\[0\]@3"),
    (ForgetsWhatFailed, "test_a_batch_that_failed_midway_is_written_by_the_next_try", r"lost: contract\[0\]@4"),
    (SaysIdempotent, "test_a_batch_that_failed_midway_is_written_by_the_next_try", r"more than once: contract\[0\]@3"),
    (RaisesItsOwnError, "test_an_outage_is_transient_and_loses_nothing", "the destination is down"),
    (SwallowsOutages, "test_an_outage_is_transient_and_loses_nothing", "acknowledged during the outage"),
    (
        ProbesByWriting,
        "test_a_probe_of_a_healthy_destination_raises_and_writes_nothing",
        r"stored, though .*probe\[0\]",
    ),
    (ProbesInVain, "test_a_probe_of_a_healthy_destination_raises_and_writes_nothing", "always"),
    (WritesBackwards, "test_a_lane_keeps_its_order", r"@1 is stored after @2"),
    (EmptiesAtStop, "test_control_events_after_the_last_batch_leave_everything_written", "lost: "),
    (EmptiesWhenALaneIsLost, "test_control_events_after_the_last_batch_leave_everything_written", "lost: "),
    (ForgetsStalledLanes, "test_control_events_after_the_last_batch_leave_everything_written", "a lane that is closed"),
    (ClosesAllLanesWithOne, "test_a_lane_that_closes_leaves_the_others_untouched", "a write after close"),
    (WritesOnePartitionOnce, "test_a_lane_that_closes_leaves_the_others_untouched", r"lost: contract\[0\]@3"),
    (KnowsAllEvents, "test_events_that_do_not_concern_it_are_ignored", "an unknown event"),
    (TakesNullForEmpty, "test_null_empty_and_undecodable_are_written_as_they_are_or_refused", r"@0 is stored as \(b''"),
    (TakesOneHeaderOfAName, "test_null_empty_and_undecodable_are_written_as_they_are_or_refused", "@1 is stored as"),
    (SkipsNull, "test_null_empty_and_undecodable_are_written_as_they_are_or_refused", r"lost: contract\[0\]@0"),
    (DecodesEverything, "test_null_empty_and_undecodable_are_written_as_they_are_or_refused", "can't decode"),
    (DecodesEverything, "test_decoded_values_are_written_or_refused", "no attribute 'decode'"),
    (ExpectsBytes, "test_decoded_values_are_written_or_refused", r"has no len\(\)"),
    (CutsBigValues, "test_a_big_record_is_written_or_refused", "@1 is stored as"),
    (NamesTheWrongRecord, "test_a_bad_record_is_the_only_one_that_is_left_out", r"the refused records are \[4\]"),
    (NamesNoRecord, "test_a_bad_record_is_the_only_one_that_is_left_out", r"names the records \[13\] of a batch of 5"),
    (DropsTheRest, "test_a_bad_record_is_the_only_one_that_is_left_out", r"lost: contract\[0\]@4"),
    (SkipsBadRecords, "test_a_bad_record_is_the_only_one_that_is_left_out", r"the refused records are \[\]"),
    (DeletesUnasked, "test_null_empty_and_undecodable_are_written_as_they_are_or_refused", r"lost: contract\[0\]@0"),
    (SaysThatItDeletes, "test_a_tombstone_deletes_what_its_key_names", r"stored, though .*@1"),
    (DeletesFirst, "test_a_tombstone_deletes_what_its_key_names", r"stored, though .*@4"),
    (DeletesLast, "test_a_tombstone_deletes_what_its_key_names", r"lost: contract\[0\]@8"),
    (AnswersTwice, "test_every_batch_in_flight_is_acknowledged_once", "more than once"),
    (FailsInFlight, "test_every_batch_in_flight_is_acknowledged_once", "batch 1 of 5 in flight was not written"),
    (ReordersWhatIsInFlight, "test_batches_in_flight_keep_their_order_and_are_durable", "@0 is stored after @5"),
    (AnswersTooEarly, "test_batches_in_flight_keep_their_order_and_are_durable", "lost: "),
    (AnswersBeforeItWrites, "test_what_is_held_back_is_durable_after_a_flush", "lost: "),
    (HoldsBackForEver, "test_a_flush_of_one_lane_waits_for_no_other", "was not acknowledged within 1 s"),
    (ForgetsWhatItHolds, "test_a_lane_that_closes_has_every_batch_answered", "was not acknowledged within 1 s"),
    (ForgetsPositions, "test_a_position_comes_back_as_it_was_stored", "the position after one batch is None"),
    (ForgetsTheTopicId, "test_a_position_comes_back_as_it_was_stored", "topic_id=None"),
    (StoresTheOffsetAfterTheLastRecord, "test_a_position_comes_back_as_it_was_stored", "next_offset=3"),
    (SharesPositionsOfAllGroups, "test_a_position_comes_back_as_it_was_stored", "position of another group"),
    (NeverRefuses, "test_a_former_owner_is_refused_and_writes_nothing", "did not raise RefusedError"),
    (RefusesTooLate, "test_a_former_owner_is_refused_and_writes_nothing", r"stored, though .*@3"),
    (MovesThePositionFirst, "test_records_and_position_are_stored_together_or_not_at_all", r"lost: contract\[0\]@3"),
    (CommitsEachRecord, "test_records_and_position_are_stored_together_or_not_at_all", r"stored, though .*@3"),
    (CommitsAfterTheLastRecord, "test_the_position_of_a_batch_is_committed_when_it_is_acknowledged", "should be {.*17"),
    (
        CommitsNoEmptyBatch,
        "test_the_position_of_a_batch_is_committed_when_it_is_acknowledged",
        "an empty batch",
    ),
    (CommitsAsBefore, "test_a_lane_that_has_left_writes_and_commits_nothing", "whose lane has left was acknowledged"),
    (StoresBeforeItCommits, "test_a_lane_that_has_left_writes_and_commits_nothing", "should not be"),
    (CommitsAsBefore, "test_a_former_generation_writes_and_commits_nothing", "former generation was acknowledged"),
    (StoresBeforeItCommits, "test_a_former_generation_writes_and_commits_nothing", "should not be"),
    (CommitsBeforeItStores, "test_records_and_committed_position_are_there_together_or_not_at_all", "lost"),
    (ClaimsWhatItReads, "test_positions_are_read_without_a_claim", "another instance has claimed it"),
    (ReadsAllGroups, "test_positions_are_read_without_a_claim", "of another group's positions is {.*next_offset=3"),
    (ReadsClaimsAsPositions, "test_positions_are_read_without_a_claim", "after one batch is {.*next_offset=None"),
    (ForgetsOtherPositions, "test_a_lane_starts_where_its_position_was_reset_to", "after a reset is "),
    (ResetsAllGroups, "test_a_lane_starts_where_its_position_was_reset_to", "a reset leaves of .*next_offset=50"),
    (ResetsOnlyWhatIsThere, "test_a_lane_starts_where_its_position_was_reset_to", "after a reset is "),
    (ResetsWithoutTheTopicId, "test_a_lane_starts_where_its_position_was_reset_to", "topic_id=None"),
    (LeavesTheOwner, "test_a_writer_is_refused_after_a_reset_until_it_claims_again", "did not raise RefusedError"),
]


@pytest.mark.parametrize(("sink", "check", "text"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_sink_fails(
    sink: type[Sink[Any]], check: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if issubclass(sink, HoldsBack):  # else whoever waits in vain would wait for a minute
        monkeypatch.setattr("connector.testing.contract._DEADLINE_SECONDS", 1.0)
    with pytest.raises(Exception, match=text):
        run(sink, check, tmp_path)


def test_each_check_has_a_sink_that_fails_it() -> None:
    assert {check for _, check, _ in BROKEN} == set(CHECKS)


def test_a_contract_says_what_it_needs(tmp_path: Path) -> None:
    class Unfinished(SinkContract[PathSettings]):
        sink_type = Lines

    class Short(LinesContract):
        def read_back(self, settings: PathSettings) -> list[tuple[Any, ...]]:
            return [("contract", 0)]

    with pytest.raises(NotImplementedError, match=r"Unfinished has to define make_settings\(self, tmp_path\)"):
        Unfinished().test_open_is_allowed_again(tmp_path)
    with pytest.raises(
        AssertionError, match=r"read_back returned \('contract', 0\); a row is topic, partition, offset"
    ):
        Short().test_open_is_allowed_again(tmp_path)
