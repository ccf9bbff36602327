"""One batch's way through the transforms to the sink: bad records are isolated, and each record ends in one outcome.

Belongs to one pipeline and is called on its thread. A bad record is known by the plugin's own word (`RecordErrors`), or
found by halving the batch; it is then rejected by `CONNECTOR_ON_POISON`, and the rest goes on (INV-8).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from connector.api.errors import ConnectorError, PoisonError, RecordErrors, TransientError
from connector.pipeline.messages import Settled
from connector.pipeline.screen import TOMBSTONE_STAGE, TombstoneError, Tombstones
from connector.pipeline.work import Part
from connector.sink.plugin import CrashError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from connector.api.batch import Batch
    from connector.pipeline.rejects import Rejects
    from connector.pipeline.transform import TransformRunner
    from connector.pipeline.work import Flight
    from connector.sink.runner import SinkRunner
    from connector.telemetry.metrics import Metrics
    from connector.telemetry.stopwatch import Stopwatch


class Delivery:
    """Moves flights on.

    `settled` is called, from any thread, with what an asynchronous sink says of a part; `answered`, on the pipeline's,
    with why the destination has not answered, or None if it has: poison is an answer, a transform's or the dead letter
    topic's failure is none.

    `runner` and `transforms` are replaced between batches when a plugin is reloaded.
    """

    def __init__(
        self,
        runner: SinkRunner,
        transforms: Sequence[TransformRunner],
        rejects: Rejects,
        metrics: Metrics,
        watch: Stopwatch,
        *,
        tombstones: Tombstones,
        settled: Callable[[Settled], None],
        answered: Callable[[TransientError | None], None],
    ) -> None:
        self.runner = runner
        self.transforms = list(transforms)
        self._rejects = rejects
        self._metrics = metrics
        self._watch = watch
        self._tombstones = tombstones
        self._settled = settled
        self._answered = answered
        self._tickets = count()

    def launch(self, flight: Flight, batch: Batch) -> None:
        """Let a flight begin with what of its batch goes to the transforms, perhaps nothing."""
        if batch:
            flight.parts.append(Part(batch))
        if self.runner.moves_positions and self.runner.max_in_flight <= 1:
            # Else a record that was rejected at the end would die once more after each assignment.
            flight.parts.append(Part(batch.select(()), len(self.transforms)))

    def launch_position(self, flight: Flight, batch: Batch) -> None:
        """Let a flight begin whose batch is empty: a sink that commits positions moves to its end, others need not."""
        if self.runner.commits_positions:
            flight.parts.append(Part(batch, len(self.transforms)))

    def advance(self, flight: Flight) -> None:
        """Move a flight as far as it goes: until it is done, or an asynchronous sink has all of it or no more room.

        Raises:
            TransientError: A part, which stays where it is, may go later.
            RefusedError: The lane belongs to somebody else by now.
            FatalError: The end: a declared fatal error, a plugin that crashed, or poison under `fail`.
        """
        while flight.parts:
            part = flight.parts[0]
            try:
                if part.stage < len(self.transforms):
                    self._transform(flight, part)
                    continue
                if not part.batch and flight.reached == part.batch.metadata.next_offset:
                    flight.parts.popleft()
                    continue
                if self.runner.moves_positions:
                    # The next write moves the sink's position past the rejected records: their letters come first.
                    self._confirm(flight)
                if self.runner.max_in_flight > 1:
                    if not self.runner.has_room:
                        return
                    self._submit(flight, part)
                else:
                    self._write(part)
                    flight.reached = part.batch.metadata.next_offset
                    flight.parts.popleft()
            except RecordErrors as error:
                flight.parts.popleft()
                self._divide(flight, part, error.errors)
            except PoisonError as error:
                flight.parts.popleft()
                self._halve(flight, part, error)
        self._confirm(flight)

    def settle(self, flight: Flight, ticket: int, error: ConnectorError | None) -> None:
        """Take an asynchronous sink's word on a part of a flight; what is left to do of it is a part again.

        Raises:
            ConnectorError: As for `advance`.
        """
        part = flight.at_sink.pop(ticket)
        self.runner.settled(error)
        self._note(part, error)
        match error:
            case None:
                pass
            case RecordErrors():
                self._divide(flight, part, error.errors)
            case PoisonError():
                self._halve(flight, part, error)
            case _:
                flight.parts.append(part)
                raise error

    def reject(self, flight: Flight, part: Part, index: int, stage: str, error: PoisonError) -> None:
        """End one record of a part by `CONNECTOR_ON_POISON`."""
        letter = self._rejects.reject(part.batch, index, stage, error, flight.attempts)
        if letter is not None:
            flight.letters.append(letter)

    def _confirm(self, flight: Flight) -> None:
        if flight.letters:
            with self._watch.during("dead_letters"):
                self._rejects.confirm(flight.letters)

    def _stage(self, part: Part) -> str:
        return self.transforms[part.stage].name if part.stage < len(self.transforms) else "write"

    def _transform(self, flight: Flight, part: Part) -> None:
        transform = self.transforms[part.stage]
        result = transform.apply(part.batch)
        flight.parts.popleft()
        filtered = len(part.batch) - len(result)
        if filtered > 0:
            self._metrics.filtered_records.labels(part.batch.metadata.topic, transform.name).inc(filtered)
        if part.stage + 1 == len(self.transforms):
            result = self._without_tombstones(flight, result)
        if len(result):
            flight.parts.appendleft(Part(result, part.stage + 1))

    def _without_tombstones(self, flight: Flight, batch: Batch) -> Batch:
        """Leave out unwanted tombstones that transforms have made; those that came are gone by now."""
        unwanted = self._tombstones.unwanted_in(batch) if "value" in batch.decoded else frozenset()
        if not unwanted:
            return batch
        if self._tombstones is Tombstones.IGNORE:
            self._metrics.filtered_records.labels(batch.metadata.topic, TOMBSTONE_STAGE).inc(len(unwanted))
        else:
            for index in sorted(unwanted):
                self.reject(flight, Part(batch), index, TOMBSTONE_STAGE, TombstoneError())
        return batch.select([index for index in range(len(batch)) if index not in unwanted])

    def _write(self, part: Part) -> None:
        try:
            self.runner.write(part.batch)
        except ConnectorError as error:
            self._note(part, error)
            raise
        self._note(part, None)

    def _note(self, part: Part, error: ConnectorError | None) -> None:
        """Count what the sink said of a part."""
        match error:
            case None:
                self._written(part.batch)
                self._answered(None)
            case PoisonError():
                self._answered(None)
            case RecordErrors():
                later = _later(error.errors)
                others = len(part.batch) - sum(isinstance(each, TransientError) for each in error.errors.values())
                self._answered(None if others and not (later and later.retry_after) else later)
            case TransientError():
                self._answered(error)
            case _:
                pass

    def _submit(self, flight: Flight, part: Part) -> None:
        flight.parts.popleft()
        ticket = next(self._tickets)
        lane, sequence = part.batch.metadata.lane, flight.sequence
        flight.at_sink[ticket] = part
        self.runner.submit(part.batch, lambda error: self._settled(Settled(lane, sequence, ticket, error)))

    def _written(self, batch: Batch) -> None:
        topic = batch.metadata.topic
        self._metrics.written_records.labels(topic).inc(len(batch))
        self._metrics.written_bytes.labels(topic).inc(batch.size_bytes)
        self._rejects.note_written(len(batch))

    def _divide(self, flight: Flight, part: Part, errors: Mapping[int, TransientError | PoisonError]) -> None:
        """The plugin knows which records failed. At the sink all others are durable; at a transform none is done."""
        if part.stage == len(self.transforms) and self.runner.moves_positions:
            raise CrashError(
                "A sink that holds or commits positions raised RecordErrors: its position has passed records that it "
                "did not write. It raises PoisonError or TransientError for the whole batch, and writes nothing of it."
            )
        batch = part.batch
        others = [index for index in range(len(batch)) if index not in errors]
        again = [index for index, error in errors.items() if isinstance(error, TransientError)]
        if part.stage < len(self.transforms):
            again += others
        else:
            self._written(batch.select(others))
        if again:
            flight.parts.appendleft(Part(batch.select(sorted(again)), part.stage))
        for index, error in errors.items():
            if isinstance(error, PoisonError):
                self.reject(flight, part, index, self._stage(part), error)
        if (later := _later(errors)) is not None:
            raise later

    def _halve(self, flight: Flight, part: Part, error: PoisonError) -> None:
        batch = part.batch
        if len(batch) == 1:
            self.reject(flight, part, 0, self._stage(part), error)
            return
        middle = len(batch) // 2
        flight.parts.appendleft(Part(batch.slice(middle, len(batch)), part.stage))
        flight.parts.appendleft(Part(batch.slice(0, middle), part.stage))


def _later(errors: Mapping[int, TransientError | PoisonError]) -> TransientError | None:
    """Return the transient error that asks for the longest wait, the first one if none asks."""
    transient = [error for error in errors.values() if isinstance(error, TransientError)]
    return max(transient, key=lambda error: error.retry_after or 0.0, default=None)
