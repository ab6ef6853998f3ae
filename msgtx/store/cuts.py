"""Consistent cuts: ends of partitions that split no committed transaction (I15)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgtx.database.calls import Function, call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.rules.boundary import Span
from msgtx.types import TransactionId

CUT: Final = Function("consistent_cut", {"partition_ids": "int4[]", "positions": "int8[]"})
NO_POSITIONS: Final[Mapping[int, int]] = {}
SPANS: Final = Function(
    "spans_of_transactions", {"partition_ids": "int4[]", "start_offsets": "int8[]", "end_offsets": "int8[]"}
)


@dataclass(frozen=True, slots=True)
class CutPartition:
    """One partition of a cut: records in [log_start_offset, end) are in it. `held_by`: who lowered the end."""

    log_start_offset: int
    end: int
    held_by: TransactionId | None


def consistent_cut(
    connection: RawConnection, partition_ids: Iterable[int], positions: Mapping[int, int] = NO_POSITIONS
) -> dict[int, CutPartition]:
    """Return the greatest consistent cut of these partitions, by id; unknown ones are absent.

    `positions`: where a reader goes on, by partition id. What lies below does not count, so this is a cut for that reader
    alone, unless they are an earlier cut.
    """
    asked = list(partition_ids)
    rows = call(connection, CUT, Int4Array(asked), Int8Array(positions.get(each, 0) for each in asked))
    return {row[0]: CutPartition(row[1], row[2], None if row[3] is None else TransactionId(*row[3:6])) for row in rows}


def spans_of_transactions(connection: RawConnection, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Span]:
    """Return what committed transactions cover that have a row between these offsets (by partition id).

    Left out is what lies in one row inside its range. For `rules.boundary.lowered`.
    """
    rows = call(connection, SPANS, Int4Array(starts), Int8Array(starts.values()), Int8Array(ends[each] for each in starts))
    return [
        {partition: (first, last) for partition, first, last in zip(partitions, firsts, lasts, strict=True)}
        for partitions, firsts, lasts in rows
    ]
