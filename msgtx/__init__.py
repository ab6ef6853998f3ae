"""msgtx: Kafka's exactly-once messaging in ordinary PostgreSQL tables."""

from msgtx.client import Client, connect
from msgtx.consumer import Consumer
from msgtx.producer import Producer, Transaction
from msgtx.types import (
    BatchMetadata,
    GroupMetadata,
    Isolation,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Outcome,
    OutputRecord,
    PartitionDescription,
    ProcessReport,
    ProducerId,
    Record,
    RecordMetadata,
    SweepReport,
    TopicDescription,
    TopicPartition,
    TransactionDescription,
    TransactionId,
    TransactionListing,
)

__all__ = [
    "BatchMetadata",
    "Client",
    "Consumer",
    "GroupMetadata",
    "Isolation",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Outcome",
    "OutputRecord",
    "PartitionDescription",
    "ProcessReport",
    "Producer",
    "ProducerId",
    "Record",
    "RecordMetadata",
    "SweepReport",
    "TopicDescription",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionId",
    "TransactionListing",
    "connect",
]
