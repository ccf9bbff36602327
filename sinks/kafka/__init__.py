"""Kafka sink: records go to topics of the same or another cluster, byte for byte."""

from sinks.kafka.settings import KafkaSettings
from sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSettings", "KafkaSink"]
