"""The producer of docker-compose.yml."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from connector.cli.demo.orders import main

if TYPE_CHECKING:
    from connector.testing.embedded import EmbeddedBroker

PRODUCE = 0  # number of the request


@pytest.mark.embedded
def test_every_order_is_produced_once_and_has_a_number_of_its_own(embedded: EmbeddedBroker) -> None:
    embedded.create_topic("orders", 2)
    options = ["--bootstrap-servers", embedded.bootstrap_servers, "--rate", "10000", "--records", "500"]
    assert main(options) == 0
    assert main(options) == 0
    orders = [json.loads(value) for value in values(embedded, 1000)]
    assert len({order["order"] for order in orders}) == 1000
    assert {"order", "customer", "city", "lines", "cents", "placed_at"} == orders[0].keys()


@pytest.mark.embedded
def test_orders_that_the_cluster_does_not_take_are_an_error(
    embedded: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    embedded.create_topic("orders", 1)
    embedded.push_errors(PRODUCE, KafkaError.INVALID_RECORD)
    assert main(["--bootstrap-servers", embedded.bootstrap_servers, "--rate", "10000", "--records", "5"]) == 1
    assert "5 produced, 5 of them not taken" in capsys.readouterr().out


def values(broker: EmbeddedBroker, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition("orders", partition, 0) for partition in range(2)])
        found: list[bytes] = []
        while len(found) < count and (messages := consumer.consume(count, timeout=10)):
            found += [value for message in messages if (value := message.value()) is not None]
        return found
    finally:
        consumer.close()
