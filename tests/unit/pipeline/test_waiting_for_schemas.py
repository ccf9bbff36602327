"""A pipeline whose registry fails: lanes that need a schema wait in order, all else goes on, and drains stay quick."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message

from connector import AuthenticationError, ExitCode, TransientError
from connector.api.event import InputRecovered
from connector.pipeline.batcher import BatchLimits
from connector.pipeline.decode import Format, PendingError, UnknownSchemaError
from connector.pipeline.messages import Failed, StallLane
from connector.pipeline.screen import Screen
from connector.pipeline.worker import PipelineSettings
from connector.sink.retry import LONGEST_ASKED_SECONDS, Backoff
from tests.support.pipeline import FakeLetters, OnePipeline
from tests.support.registry import Upper, framed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from connector import PoisonError
    from connector.lane.lane import Lane
    from connector.pipeline.decode import Decoder, SchemaId


class SteeredSchemas:
    """Has every schema, unless `errors` has something to raise for it; counts how often it is asked for each."""

    def __init__(self) -> None:
        self.errors: dict[SchemaId, Exception] = {}
        self.asked: list[SchemaId] = []

    def find(self, ids: Collection[SchemaId]) -> Mapping[SchemaId, Decoder | PoisonError]:
        self.asked.extend(ids)
        for each in ids:
            if each in self.errors:
                raise self.errors[each]
        return {each: Upper() for each in ids}


def _bench(
    schemas: SteeredSchemas, *, backoff: Backoff | None = None, letters: FakeLetters | None = None
) -> OnePipeline:
    settings = PipelineSettings(
        limits=BatchLimits(rows=4, linger_seconds=0.0),
        backoff=backoff or Backoff(initial=0.01, maximum=0.02),
        screen=Screen(value_format=Format.AVRO, schemas=schemas),
    )
    return OnePipeline(settings, rejects=letters.rejects if letters else None)


def _put(bench: OnePipeline, lane: Lane, offsets: Sequence[int], schema_id: int, payload: bytes = b"a") -> None:
    value = framed(schema_id, payload)
    messages = [Message(topic="t", partition=lane.partition, offset=each, value=value) for each in offsets]
    bench.put_messages(lane, messages)


def _count(bench: OnePipeline, name: str) -> float:
    return float(getattr(bench.metrics, name)._value.get())


def _down() -> TransientError:
    return TransientError("the registry is down")


def test_a_lane_waits_for_its_schema_while_others_go_on_and_then_goes_on_in_order() -> None:
    schemas = SteeredSchemas()
    schemas.errors[2] = _down()
    with _bench(schemas).running() as bench:
        known, waiting = bench.lane(0), bench.lane(1)
        _put(bench, waiting, [0, 1], 1)
        bench.until_written(waiting, [0, 1])
        _put(bench, waiting, range(2, 8), 2)
        _put(bench, waiting, range(8, 10), 1)
        bench.retrying(waiting, 3)
        _put(bench, known, range(20), 1)
        bench.until_written(known, range(20))
        bench.until_written(waiting, [0, 1])
        retry = bench.pipeline.retries[waiting.id]
        assert (retry.stage, retry.error) == ("decode", "the registry is down")
        assert bench.pipeline.breaker_opens_until is None
        assert _count(bench, "decode_retries") >= 3
        assert _count(bench, "sink_retries") == _count(bench, "breaker_opens") == 0
        del schemas.errors[2]
        bench.until_written(waiting, range(10))
        bench.until(lambda: not bench.pipeline.retries, "no lane waits")
        assert waiting.held_bytes == 0


def test_an_open_breaker_and_a_lost_schema_are_told_apart() -> None:
    schemas = SteeredSchemas()
    schemas.errors[2] = _down()
    with _bench(schemas, backoff=Backoff(initial=0.05, maximum=60)).running() as bench:
        sink_down = TransientError("the sink is down")

        def fail(_: object) -> None:
            raise sink_down

        bench.destination.behave = fail
        broken, waiting = bench.lane(0), bench.lane(1)
        _put(bench, broken, [0], 1)
        _put(bench, waiting, [0], 2)
        bench.retrying(waiting, 2)
        bench.until(lambda: bench.pipeline.breaker_opens_until is not None, "the breaker opens")
        stages = {lane_id: (retry.stage, retry.error) for lane_id, retry in bench.pipeline.retries.items()}
        assert stages[waiting.id] == ("decode", "the registry is down")
        assert stages[broken.id] == ("sink", "the sink is down")
        del schemas.errors[2]
        bench.until(lambda: bench.pipeline.retries[waiting.id].stage == "sink", "the schema has come")
        assert "the registry" not in bench.pipeline.retries[waiting.id].error


def test_a_schema_that_is_on_its_way_is_no_failure_and_is_looked_for_again() -> None:
    schemas = SteeredSchemas()
    schemas.errors[1] = PendingError("waits for schema 1")
    with _bench(schemas, backoff=Backoff(initial=60, maximum=60, limit=1)).running() as bench:
        lane = bench.lane()
        _put(bench, lane, [0], 1)
        bench.until(lambda: len(schemas.asked) >= 4, "it looks again")
        retry = bench.pipeline.retries[lane.id]
        assert (retry.failures, retry.stage, retry.error) == (0, "decode", "waits for schema 1")
        assert _count(bench, "decode_retries") == 0
        del schemas.errors[1]
        bench.until_written(lane, [0])


def test_while_it_is_asked_for_again_the_last_failure_stays_in_sight() -> None:
    schemas = SteeredSchemas()
    schemas.errors[1] = _down()
    with _bench(schemas).running() as bench:
        lane = bench.lane()
        _put(bench, lane, [0], 1)
        bench.retrying(lane)
        schemas.errors[1] = PendingError("waits for schema 1")
        asked = len(schemas.asked)
        bench.until(lambda: len(schemas.asked) > asked + 2, "it looks again")
        assert bench.pipeline.retries[lane.id].error == "the registry is down"
        assert bench.pipeline.retries[lane.id].failures > 0


def test_the_limit_of_retries_counts_for_schemas_too_and_says_what_failed() -> None:
    schemas = SteeredSchemas()
    schemas.errors[1] = _down()
    with _bench(schemas, backoff=Backoff(initial=0.01, maximum=0.01, limit=2)).running() as bench:
        _put(bench, bench.lane(), [0], 1)
        bench.until(lambda: bool(bench.find(Failed)))
        assert "decoding t[0] failed 3 times (last error: the registry is down)" in str(bench.find(Failed)[0].error)


def test_refused_credentials_end_the_run_with_3() -> None:
    schemas = SteeredSchemas()
    schemas.errors[1] = AuthenticationError("HTTP 401")
    with _bench(schemas).running() as bench:
        _put(bench, bench.lane(), [0], 1)
        bench.until(lambda: bool(bench.find(Failed)))
        [failed] = bench.find(Failed)
        assert (failed.error.exit_code, failed.is_crash) == (ExitCode.AUTHENTICATION, False)


@pytest.mark.parametrize("error", [_down(), PendingError("waits")])
def test_a_drain_without_a_registry_makes_one_attempt_and_writes_what_other_lanes_have(error: Exception) -> None:
    schemas = SteeredSchemas()
    schemas.errors[2] = error
    with _bench(schemas, backoff=Backoff(initial=60, maximum=60)).running() as bench:
        lanes = [bench.lane(partition) for partition in range(5)]
        for lane in lanes[:4]:
            _put(bench, lane, [0], 2)
        bench.until(lambda: len(bench.pipeline.retries) == 4, "they wait")
        bench.destination.hang()
        _put(bench, lanes[4], range(4), 1)
        bench.destination.wait_hanging()
        asked = schemas.asked.count(2)
        barrier = bench.stop(*lanes, timeout=30)
        started = time.monotonic()
        bench.destination.gate.set()
        assert barrier.wait(5)
        assert time.monotonic() - started < 2
        assert schemas.asked.count(2) - asked <= 4 + 1, "one attempt a lane, and perhaps a look that was due"
        bench.until_written(lanes[4], range(4))
        assert bench.metrics.drains.labels("not_drained")._value.get() == 4
        assert bench.metrics.drains.labels("drained")._value.get() == 1


def test_a_drain_writes_what_waited_when_the_schema_has_come_meanwhile() -> None:
    schemas = SteeredSchemas()
    schemas.errors[1] = _down()
    with _bench(schemas, backoff=Backoff(initial=60, maximum=60)).running() as bench:
        lane = bench.lane()
        _put(bench, lane, range(4), 1)
        bench.retrying(lane)
        del schemas.errors[1]
        assert bench.stop(lane).wait(5)
        bench.until_written(lane, range(4))


def test_poison_is_decided_once_the_schemas_are_there_and_each_record_ends_in_one_outcome() -> None:
    schemas, letters = SteeredSchemas(), FakeLetters()
    schemas.errors[2] = _down()
    with _bench(schemas, letters=letters).running() as bench:
        lane = bench.lane()
        values = [framed(1, b"ok"), b"bad", framed(2, b"fine"), framed(1, b"4711")]
        bench.put_messages(lane, [Message(topic="t", partition=0, offset=i, value=v) for i, v in enumerate(values)])
        bench.retrying(lane, 3)
        assert letters.confirmed == []
        del schemas.errors[2]
        bench.until_written(lane, [0, 2])
        bench.until(lambda: len(letters.confirmed) == 2)
        assert [(each.origin.offset, each.value) for each in letters.confirmed] == [(1, values[1]), (3, values[3])]


def test_an_unknown_schema_has_an_error_class_of_its_own() -> None:
    class Nothing(SteeredSchemas):
        def find(self, ids: Collection[SchemaId]) -> Mapping[SchemaId, Decoder | PoisonError]:
            return {each: UnknownSchemaError(f"no schema {each}") for each in ids}

    letters = FakeLetters()
    with _bench(Nothing(), letters=letters).running() as bench:
        _put(bench, bench.lane(), [0], 9)
        bench.until(lambda: len(letters.confirmed) == 1)
        assert letters.confirmed[0].origin.error_class == "UnknownSchemaError"


def test_a_stalled_lane_recovers_when_its_first_batch_is_decoded_and_not_before() -> None:
    schemas = SteeredSchemas()
    schemas.errors[1] = _down()
    with _bench(schemas).running() as bench:
        lane = bench.lane()
        bench.pipeline.put(StallLane(lane.id))
        _put(bench, lane, [0], 1)
        bench.retrying(lane, 2)
        assert bench.told(InputRecovered) == []
        del schemas.errors[1]
        bench.until_written(lane, [0])
        assert bench.told(InputRecovered) == [InputRecovered(lane.id)]


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [(None, 0.08, 0.1), (0.0, 0.08, 0.1), (7.0, 7.0, 7.0), (1e6, LONGEST_ASKED_SECONDS, LONGEST_ASKED_SECONDS)],
)
def test_a_wait_that_was_asked_for_is_kept_to_but_not_for_ages(asked: float | None, least: float, most: float) -> None:
    delay: Callable[[int, float | None], float] = Backoff(initial=0.1, maximum=1).delay
    assert least <= delay(1, asked) <= most
