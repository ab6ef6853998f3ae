"""Compaction: keys go to the deciding process, and the remaining records come back as bits; values never travel."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import ByteaArray, Int4Array, Int8Array, TextArray
from msgtx.generated import calls
from msgtx.rules.compaction import KeyedBatch
from msgtx.store.sweeps.coordinators import Leases, led

DIRTY_AT_ONCE: Final = 500  # partitions that one call looks at


@dataclass(frozen=True, slots=True)
class DirtyLog:
    """A partition that is worth a pass: from `compacted_offset` to `until` no pass has compacted it, and all is decided."""

    partition_id: int
    compacted_offset: int
    until: int


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A row as compaction looks at it; `identity` and the count of its records show whether it is still the same."""

    keyed: KeyedBatch
    last_offset: int
    identity: str
    compacted_at: datetime | None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A row, and the indexes of its remaining records; `waits`: tombstones are among them."""

    batch: ReadBatch
    stay: Sequence[int]
    waits: bool


def find_dirty_log(
    connection: RawConnection, after: int | None, *, min_dirty_ratio: float, leases: Leases | None
) -> tuple[DirtyLog | None, int | None]:
    """Return the next partition after this one that is worth a pass, and where the search came to (None: the end)."""
    position = None if after is None else Int8Array([after])
    arguments = (position, DIRTY_AT_ONCE, min_dirty_ratio, *led(leases))
    ((partition_id, compacted, until, came_to),) = call(connection, calls.FIND_DIRTY_LOG, *arguments)
    found = None if partition_id is None else DirtyLog(partition_id, compacted, until)
    return found, None if came_to is None else came_to[0]


def read_keys(
    connection: RawConnection,
    partition_id: int,
    start: int,
    until: int,
    *,
    with_tombstones: bool,
    most_rows: int,
    most_bytes: int,
) -> list[ReadBatch]:
    """Return the next rows of a log that hold records, from `start` on and in front of `until`."""
    rows = call(connection, calls.READ_KEYS, partition_id, start, until, with_tombstones, most_rows, most_bytes)
    return [
        ReadBatch(
            KeyedBatch(
                base_offset=base_offset,
                record_count=count,
                is_committed=committed,
                keys=keys,
                offset_deltas=deltas,
                tombstones=[position - 1 for position in tombstones or ()],
                tombstones_expired=expired,
            ),
            last_offset,
            identity,
            compacted_at,
        )
        for base_offset, last_offset, count, committed, keys, deltas, tombstones, expired, compacted_at, identity in rows
    ]


def compact_batches(
    connection: RawConnection,
    partition_id: int,
    rewrites: Sequence[Rewrite],
    *,
    seen: Sequence[int],
    leases: Leases | None,
) -> tuple[datetime | None, int]:
    """Rewrite rows. `seen`: rows that stay whole; their tombstones' time begins now.

    Returns when (None: not done), and the bytes of the rewritten rows before and after.
    """
    ((done, done_at, size),) = call(
        connection,
        calls.COMPACT_BATCHES,
        partition_id,
        Int8Array(rewrite.batch.keyed.base_offset for rewrite in rewrites),
        TextArray(rewrite.batch.identity for rewrite in rewrites),
        Int4Array(rewrite.batch.keyed.record_count for rewrite in rewrites),
        ByteaArray(_bits(rewrite.stay, rewrite.batch.keyed.record_count) for rewrite in rewrites),
        Int4Array(int(rewrite.waits) for rewrite in rewrites),
        Int8Array(seen),
        *led(leases),
    )
    return done_at if done else None, size


def finish_compaction(
    connection: RawConnection, log: DirtyLog, *, until: int, tombstones_since: datetime | None, leases: Leases | None
) -> bool:
    """Note that a pass has gone over the whole log in front of `until`. Returns False if another one was faster."""
    ((done,),) = call(
        connection, calls.FINISH_COMPACTION, log.partition_id, log.compacted_offset, until, tombstones_since, *led(leases)
    )
    return bool(done)


def _bits(indexes: Sequence[int], count: int) -> bytes | None:
    if not indexes:
        return None
    bits = bytearray((count + 7) // 8)
    for index in indexes:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)
