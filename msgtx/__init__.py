"""msgtx: Kafka's exactly-once messaging in ordinary PostgreSQL tables."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msgtx import aio as aio
    from msgtx import errors as errors
    from msgtx import orm as orm
    from msgtx.client import Client, connect
    from msgtx.consumer.consumer import Consumer
    from msgtx.producer.producer import Producer, Transaction
    from msgtx.types import (
        BatchMetadata,
        CommittedRange,
        Coordinator,
        Finding,
        GroupDescription,
        GroupListing,
        GroupMetadata,
        GroupPartition,
        HangingTransaction,
        Isolation,
        Level,
        MemberDescription,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        OffsetReset,
        Outcome,
        OutputRecord,
        PartitionDescription,
        PreparedListing,
        PreparedTransaction,
        ProcessReport,
        ProducerId,
        ProducerState,
        Record,
        RecordMetadata,
        SavedSnapshot,
        ShiftBy,
        Snapshot,
        SweepReport,
        TakenSnapshot,
        TopicDescription,
        TopicPartition,
        TransactionDescription,
        TransactionId,
        TransactionListing,
        VerifyReport,
        Violation,
    )
else:
    # Imported at first use: with the database drivers below them these names take half a second, which `msgtx --help` and
    # shell completion need not wait for.
    _HOMES = {
        "Client": "msgtx.client",
        "Consumer": "msgtx.consumer",
        "Producer": "msgtx.producer",
        "Transaction": "msgtx.producer",
        "connect": "msgtx.client",
    }

    def __getattr__(name: str) -> object:
        """Import a name from its home."""
        from importlib import import_module

        if name in {"aio", "errors", "orm"}:
            return import_module(f"msgtx.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(import_module(_HOMES.get(name, "msgtx.types")), name))


__all__ = [
    "BatchMetadata",
    "Client",
    "CommittedRange",
    "Consumer",
    "Coordinator",
    "Finding",
    "GroupDescription",
    "GroupListing",
    "GroupMetadata",
    "GroupPartition",
    "HangingTransaction",
    "Isolation",
    "Level",
    "MemberDescription",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetReset",
    "Outcome",
    "OutputRecord",
    "PartitionDescription",
    "PreparedListing",
    "PreparedTransaction",
    "ProcessReport",
    "Producer",
    "ProducerId",
    "ProducerState",
    "Record",
    "RecordMetadata",
    "SavedSnapshot",
    "ShiftBy",
    "Snapshot",
    "SweepReport",
    "TakenSnapshot",
    "TopicDescription",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionId",
    "TransactionListing",
    "VerifyReport",
    "Violation",
    "connect",
]
