"""confluent-kafka's names over msgtx. Values and errors are the original's own; see docs/reference/compat.md."""

try:
    from confluent_kafka import (
        OFFSET_BEGINNING,
        OFFSET_END,
        OFFSET_INVALID,
        OFFSET_STORED,
        TIMESTAMP_CREATE_TIME,
        TIMESTAMP_LOG_APPEND_TIME,
        TIMESTAMP_NOT_AVAILABLE,
        ConsumerGroupState,
        ConsumerGroupTopicPartitions,
        ConsumerGroupType,
        ElectionType,
        IsolationLevel,
        KafkaError,
        KafkaException,
        Message,
        Node,
        ThrottleEvent,
        TopicCollection,
        TopicPartition,
        TopicPartitionInfo,
        Uuid,
        consistent,
        fnv1a,
        libversion,
        murmur2,
        version,
    )
except ImportError as error:
    from msgtx.errors import ConfigError

    raise ConfigError(f"Kafka's Python API needs confluent-kafka: pip install 'msgtx[kafka]' ({error})") from error

from msgtx.compat.confluent_kafka.consumer import Consumer, ShareConsumer
from msgtx.compat.confluent_kafka.producer import Producer
from msgtx.compat.confluent_kafka.serializing import DeserializingConsumer, SerializingProducer

__version__ = version()

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "Consumer",
    "ConsumerGroupState",
    "ConsumerGroupTopicPartitions",
    "ConsumerGroupType",
    "DeserializingConsumer",
    "ElectionType",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "Message",
    "Node",
    "Producer",
    "SerializingProducer",
    "ShareConsumer",
    "ThrottleEvent",
    "TopicCollection",
    "TopicPartition",
    "TopicPartitionInfo",
    "Uuid",
    "consistent",
    "fnv1a",
    "libversion",
    "murmur2",
    "version",
]
