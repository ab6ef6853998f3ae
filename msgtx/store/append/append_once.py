"""Append once: records whose sender keeps no sequence, each with a key of deduplication."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import ByteaArray, Int4Array, Int8Array, TextArray
from msgtx.errors import MsgtxError
from msgtx.generated import calls
from msgtx.store.append.append import error_of


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    """A record that is stored unless its topic holds its `dedup_key`. `timestamp` in milliseconds."""

    partition_id: int
    dedup_key: str
    value: bytes | None
    key: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a record is: the first one with its key, if it is a duplicate. The place is −1 for one that was refused."""

    error: MsgtxError | None
    partition: int
    offset: int
    timestamp: int
    duplicate: bool


def append_once(connection: RawConnection, records: Sequence[KeyedRecord], *, wake: bool = True) -> list[Placed]:
    """Store records of any partitions in one flushed call, each at most once. Returns one answer per record."""
    pairs = [pair for record in records for pair in record.headers]
    rows = call(
        connection,
        calls.APPEND_ONCE,
        Int4Array(record.partition_id for record in records),
        TextArray(record.dedup_key for record in records),
        Int8Array(record.timestamp for record in records),
        ByteaArray(record.key for record in records),
        ByteaArray(record.value for record in records),
        Int4Array(len(record.headers) for record in records) if pairs else None,
        TextArray(name for name, _ in pairs) if pairs else None,
        ByteaArray(content for _, content in pairs) if pairs else None,
        wake,
    )
    return [
        Placed(None, partition, offset, timestamp, duplicate)
        if error is None
        else Placed(error_of(error, detail), -1, -1, -1, duplicate=False)
        for error, detail, partition, offset, timestamp, duplicate in rows
    ]
