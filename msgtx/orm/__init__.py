"""Messages and SQLAlchemy: publish with a session, read messages as mapped classes."""

from msgtx.orm.models import (
    CommittedRecord,
    CommittedRecordNow,
    ConsumerGroup,
    GroupOffset,
    Marker,
    Partition,
    Record,
    RecordBatch,
    ShareGroup,
    SharePartition,
    ShareSpan,
    Topic,
    Transaction,
    read,
)
from msgtx.orm.pending import pending
from msgtx.orm.publish import publish

__all__ = [
    "CommittedRecord",
    "CommittedRecordNow",
    "ConsumerGroup",
    "GroupOffset",
    "Marker",
    "Partition",
    "Record",
    "RecordBatch",
    "ShareGroup",
    "SharePartition",
    "ShareSpan",
    "Topic",
    "Transaction",
    "pending",
    "publish",
    "read",
]
