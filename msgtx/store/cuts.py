"""Consistent cuts: ends of partitions that split no committed transaction (I15)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgtx.database.engine import Function, RawConnection, call
from msgtx.database.wire import Int4Array
from msgtx.types import TransactionId

CUT: Final = Function("consistent_cut", {"partition_ids": "int4[]"})


@dataclass(frozen=True, slots=True)
class CutPartition:
    """One partition of a cut: records in [log_start_offset, end) are in it. `held_by`: who lowered the end."""

    log_start_offset: int
    end: int
    held_by: TransactionId | None


def consistent_cut(connection: RawConnection, partition_ids: Iterable[int]) -> dict[int, CutPartition]:
    """Return the greatest consistent cut of these partitions, by id; unknown ones are absent."""
    rows = call(connection, CUT, Int4Array(partition_ids))
    return {row[0]: CutPartition(row[1], row[2], None if row[3] is None else TransactionId(*row[3:6])) for row in rows}
