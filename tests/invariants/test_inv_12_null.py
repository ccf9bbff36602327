"""INV-12: null is not empty, and neither is undecodable, in key, value and header, all the way to the sink."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.pipeline.batcher import BatchLimits
from connector.pipeline.decode import Format, decode
from connector.pipeline.messages import Acked
from connector.pipeline.worker import PipelineSettings
from connector.testing import make_batch
from tests.support.pipeline import OnePipeline

BYTES = st.none() | st.binary(max_size=6)
HEADERS: st.SearchStrategy[Any] = st.none() | st.lists(st.tuples(st.sampled_from(["a", "b"]), BYTES), max_size=4)


@pytest.mark.invariant(12)
@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(BYTES, BYTES, HEADERS), min_size=1, max_size=10))
def test_keys_values_and_headers_reach_the_sink_as_they_are(
    rows: list[tuple[bytes | None, bytes | None, Any]],
) -> None:
    with OnePipeline(PipelineSettings(limits=BatchLimits(linger_seconds=0.0))).running() as bench:
        lane = bench.lane()
        messages = [
            Message(topic="t", partition=0, offset=offset, key=key, value=value, headers=headers)
            for offset, (key, value, headers) in enumerate(rows)
        ]
        bench.put_messages(lane, messages)
        bench.until(lambda: len(bench.find(Acked)) == 2)
        seen = [row for batch in bench.destination.batches for row in batch.rows("key", "value", "headers")]
    assert seen == [(key, value, headers or []) for key, value, headers in rows]


@pytest.mark.invariant(12)
@given(column=st.lists(BYTES))
def test_decoding_gives_none_for_null_and_something_for_empty_text(column: list[bytes | None]) -> None:
    found = decode(make_batch(*column), "value", Format.STRING, None)
    values, problems = found.values, found.problems
    for index, entry in enumerate(column):
        if entry is None:
            assert (values[index], index in problems) == (None, False)
        elif entry == b"":
            assert (values[index], index in problems) == ("", False)
        elif index not in problems:
            assert values[index] == entry.decode()
    assert set(decode(make_batch(b"", None), "value", Format.JSON, None).problems) == {0}, (
        "empty is no JSON, null is null"
    )
