"""Consistent cuts: ends of partitions that split no committed transaction (I15)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.generated import calls
from msgtx.rules.boundary import Span
from msgtx.types import TransactionId

NO_POSITIONS: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class CutPartition:
    """One partition of a cut: records in [log_start_offset, end) are in it. `held_by`: what lowered the end."""

    log_start_offset: int
    end: int
    held_by: TransactionId | None


def consistent_cut(
    connection: RawConnection, partition_ids: Iterable[int], positions: Mapping[int, int] = NO_POSITIONS
) -> dict[int, CutPartition]:
    """Return the greatest consistent cut of these partitions, by id; unknown ones are absent.

    `positions`: those of a reader, by partition id. Records below do not count, so this is a cut for that reader alone,
    unless the positions are an earlier cut.
    """
    asked = list(partition_ids)
    rows = call(connection, calls.CONSISTENT_CUT, Int4Array(asked), Int8Array(positions.get(each, 0) for each in asked))
    return {
        partition_id: CutPartition(start, end, None if number is None else TransactionId(producer_id, epoch, number))
        for partition_id, start, end, producer_id, epoch, number in rows
    }


def spans_of_transactions(connection: RawConnection, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Span]:
    """Return the spans of committed transactions that have a row between these offsets (by partition id).

    Transactions of one row inside its range are left out. For `rules.boundary.lowered`.
    """
    rows = call(
        connection,
        calls.SPANS_OF_TRANSACTIONS,
        Int4Array(starts),
        Int8Array(starts.values()),
        Int8Array(ends[each] for each in starts),
    )
    return [
        {partition: (first, last) for partition, first, last in zip(partitions, firsts, lasts, strict=True)}
        for partitions, firsts, lasts in rows
    ]
