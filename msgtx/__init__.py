"""msgtx: Kafka's exactly-once messaging in ordinary PostgreSQL tables."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from msgtx import aio as aio
    from msgtx import errors as errors
    from msgtx import metrics as metrics
    from msgtx import orm as orm
    from msgtx.client import Client, connect
    from msgtx.consumer.consumer import Consumer
    from msgtx.orm.publish import publish
    from msgtx.producer.producer import Producer, Transaction
    from msgtx.settings import DeadLetter, Retry, Skip, Stop
    from msgtx.types import (
        Acknowledgement,
        ActivityPiece,
        BatchMetadata,
        BlockedPartition,
        BlockingTransaction,
        CommittedRange,
        Coordinator,
        DatabaseDescription,
        DatabaseSession,
        Finding,
        FoundBefore,
        FoundRecord,
        GroupDescription,
        GroupLag,
        GroupListing,
        GroupMetadata,
        GroupPartition,
        GroupProgress,
        HangingTransaction,
        Isolation,
        Level,
        LogRow,
        MemberDescription,
        MirrorDescription,
        MirrorPlace,
        MirrorReport,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        OffsetReset,
        Outcome,
        OutputRecord,
        PartitionDescription,
        PartitionProgress,
        PartitionRows,
        PreparedListing,
        PreparedTransaction,
        ProcessReport,
        ProducerEpoch,
        ProducerHistory,
        ProducerId,
        ProducerSequence,
        ProducerState,
        Record,
        RecordInGroup,
        RecordLetter,
        RecordMetadata,
        RecordOutcome,
        RecordState,
        RedriveReport,
        RoleRight,
        RowState,
        SavedSnapshot,
        SearchAnswer,
        SearchHit,
        SearchKind,
        ShareGroupDescription,
        SharePartition,
        ShareRecord,
        ShiftBy,
        ShownAcknowledgement,
        ShownOffset,
        ShownPartition,
        ShownTransaction,
        Snapshot,
        SnapshotHolder,
        SparkQuery,
        Standby,
        SweepReport,
        TableDescription,
        TakenSnapshot,
        TopicDescription,
        TopicPartition,
        TransactionDescription,
        TransactionEvent,
        TransactionId,
        TransactionListing,
        TransactionsPage,
        VerifyReport,
        Violation,
        WaitingGroup,
    )
else:
    # Imported at first use: with the database drivers below them these names take half a second, which `msgtx --help` and
    # shell completion need not wait for.
    _HOMES = {
        "Client": "msgtx.client",
        "Consumer": "msgtx.consumer",
        "ShareConsumer": "msgtx.shares",
        "Producer": "msgtx.producer",
        "Transaction": "msgtx.producer",
        "connect": "msgtx.client",
        "publish": "msgtx.orm",
        **dict.fromkeys(("DeadLetter", "Retry", "Skip", "Stop"), "msgtx.settings"),
    }

    _MODULES = ("aio", "errors", "metrics", "orm")

    def __dir__() -> list[str]:
        """Return the public names, without the modules that hold them."""
        return sorted([*__all__, *_MODULES, "__version__"])

    def __getattr__(name: str) -> object:
        """Import a name from its home."""
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"msgtx.{name}")
        if name == "__version__":
            from importlib.metadata import version

            return globals().setdefault(name, version("msgtx"))
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(import_module(_HOMES.get(name, "msgtx.types")), name))


__all__ = [
    "Acknowledgement",
    "ActivityPiece",
    "BatchMetadata",
    "BlockedPartition",
    "BlockingTransaction",
    "Client",
    "CommittedRange",
    "Consumer",
    "Coordinator",
    "DatabaseDescription",
    "DatabaseSession",
    "DeadLetter",
    "Finding",
    "FoundBefore",
    "FoundRecord",
    "GroupDescription",
    "GroupLag",
    "GroupListing",
    "GroupMetadata",
    "GroupPartition",
    "GroupProgress",
    "HangingTransaction",
    "Isolation",
    "Level",
    "LogRow",
    "MemberDescription",
    "MirrorDescription",
    "MirrorPlace",
    "MirrorReport",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetReset",
    "Outcome",
    "OutputRecord",
    "PartitionDescription",
    "PartitionProgress",
    "PartitionRows",
    "PreparedListing",
    "PreparedTransaction",
    "ProcessReport",
    "Producer",
    "ProducerEpoch",
    "ProducerHistory",
    "ProducerId",
    "ProducerSequence",
    "ProducerState",
    "Record",
    "RecordInGroup",
    "RecordLetter",
    "RecordMetadata",
    "RecordOutcome",
    "RecordState",
    "RedriveReport",
    "Retry",
    "RoleRight",
    "RowState",
    "SavedSnapshot",
    "SearchAnswer",
    "SearchHit",
    "SearchKind",
    "ShareConsumer",
    "ShareGroupDescription",
    "SharePartition",
    "ShareRecord",
    "ShiftBy",
    "ShownAcknowledgement",
    "ShownOffset",
    "ShownPartition",
    "ShownTransaction",
    "Skip",
    "Snapshot",
    "SnapshotHolder",
    "SparkQuery",
    "Standby",
    "Stop",
    "SweepReport",
    "TableDescription",
    "TakenSnapshot",
    "TopicDescription",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionEvent",
    "TransactionId",
    "TransactionListing",
    "TransactionsPage",
    "VerifyReport",
    "Violation",
    "WaitingGroup",
    "connect",
    "publish",
]
