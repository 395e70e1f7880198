"""Kafka behind the protocol of `shoal.topics.base`; the only place that knows the client library."""

from shoal.topics.kafka.settings import KafkaSettings
from shoal.topics.kafka.topics import KafkaTopics

__all__ = ["KafkaSettings", "KafkaTopics"]
