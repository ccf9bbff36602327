"""What a member can know of its membership, and what a pattern means: both depend on the group protocol."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from connector.source.client import generation
from connector.source.cluster import client_subscription
from tests.client.member import Member, run_for, run_until

if TYPE_CHECKING:
    from tests.support.kafka import Kafka

pytestmark = pytest.mark.kafka


def test_a_member_without_a_partition_has_a_generation_and_under_the_consumer_protocol_no_callback(
    kafka: Kafka, group_protocol: str
) -> None:
    topic = kafka.create_topic()
    with Member(kafka.bootstrap_servers, topic, group_protocol) as first:
        assert generation(first.consumer) <= 0
        run_until(lambda: ("assign", [0]) in first.calls, first)
        assert generation(first.consumer) > 0
        with Member(kafka.bootstrap_servers, topic, group_protocol, group=first.group) as second:
            run_until(lambda: generation(second.consumer) > 0, first, second)
            if group_protocol == "consumer":
                run_for(1.0, first, second)
                assert second.calls == []
            else:
                run_until(lambda: ("assign", []) in first.calls + second.calls, first, second)


def test_a_pattern_is_matched_with_the_whole_name_under_the_consumer_protocol_unless_it_is_made_to_search(
    kafka: Kafka, group_protocol: str
) -> None:
    pattern = f"^pattern-{uuid.uuid4().hex[:8]}-"
    kafka.create_topic(f"{pattern[1:]}a")
    [wanted] = client_subscription([pattern], "consumer" if group_protocol == "consumer" else "classic")
    with (
        Member(kafka.bootstrap_servers, pattern, group_protocol) as plain,
        Member(kafka.bootstrap_servers, wanted, group_protocol) as searching,
    ):
        run_until(lambda: ("assign", [0]) in searching.calls, plain, searching)
        if group_protocol == "consumer":
            run_for(1.0, plain, searching)
            assert plain.calls == []
        else:
            run_until(lambda: ("assign", [0]) in plain.calls, plain, searching)
