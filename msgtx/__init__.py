"""msgtx: Kafka's exactly-once messaging in ordinary PostgreSQL tables."""

from typing import TYPE_CHECKING

from msgtx import errors as errors
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

if TYPE_CHECKING:
    from msgtx.client import Client, connect
    from msgtx.consumer import Consumer
    from msgtx.producer import Producer, Transaction
else:
    # These are imported when they are first used: with the database drivers below them they take half a second, which
    # `msgtx --help` and shell completion need not wait for.
    _HOMES = {
        "Client": "msgtx.client",
        "Consumer": "msgtx.consumer",
        "Producer": "msgtx.producer",
        "Transaction": "msgtx.producer",
        "connect": "msgtx.client",
    }

    def __getattr__(name: str) -> object:
        """Import a name from its home."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return globals().setdefault(name, getattr(import_module(_HOMES[name]), name))


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
