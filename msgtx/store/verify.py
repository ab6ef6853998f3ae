"""Verify: the next piece of a log, of its transactions and of its groups, and its violations.

Each call looks at a bounded number of rows on one snapshot and says where it stopped; `after` None is the beginning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.generated import calls

Facts = dict[str, Any]  # of a row: the names of the rules that it breaks, in `rules`, and its columns

VERIFIED_ROWS: Final = 1_000  # of one answer: a piece takes milliseconds, and all that it could complain of fits into memory
MAX_BYTES: Final = 32 * 1024 * 1024  # of batches that one answer looks at; more only for a single one


# A partition's ends and floor as its rows say them; None where there is no row. `rules`: the broken rules.
Ends = calls.VerifyPartitionRow


# The same, and what need not be looked at. `last_row`: where the newest row of the log begins; None: there is none.
Extent = calls.VerifyPartitionsRow


@dataclass(frozen=True, slots=True)
class Piece:
    """The result of a look.

    The numbers of rows by kind, the place of the next look (None: the end), and the rows that break rules.
    """

    rows: int
    after: Sequence[int] | None
    broken: list[Facts]
    records: int = 0
    transactions: int = 0
    offsets: int = 0
    behind: int = 0


def verify_partition(connection: RawConnection, partition_id: int) -> Ends | None:
    """Return a partition's ends, None if it is gone."""
    (row,) = call(connection, calls.VERIFY_PARTITION, partition_id)
    return None if row.log_start_offset is None else row


def verify_partitions(connection: RawConnection, partition_ids: Sequence[int]) -> dict[int, Extent]:
    """Return the ends of partitions, and what there is to look at, by id; one that is gone is left out."""
    return {row.partition_id: row for row in call(connection, calls.VERIFY_PARTITIONS, Int4Array(partition_ids))}


def verify_batches(
    connection: RawConnection, partition_id: int, after: Sequence[int] | None, *, until: int | None = None
) -> Piece:
    """Look at the next batches of a log, up to those that begin at offset `until` (None: to the end)."""
    arguments = (partition_id, -1 if after is None else after[0], VERIFIED_ROWS, MAX_BYTES, until)
    ((came_to, rows, records, broken),) = call(connection, calls.VERIFY_BATCHES, *arguments)
    return Piece(rows, None if came_to is None else [came_to], broken, records=int(records))


def verify_beginnings(connection: RawConnection, partition_id: int, after: Sequence[int] | None) -> Piece:
    """Look at the next rows that say where transactions began on a partition."""
    ((came_to, rows, undecided, broken),) = call(
        connection, calls.VERIFY_BEGINNINGS, partition_id, _position(after), VERIFIED_ROWS
    )
    return Piece(rows, came_to, broken, transactions=undecided)


def verify_markers(connection: RawConnection, partition_id: int, after: Sequence[int] | None) -> Piece:
    """Look at the next markers of a partition."""
    ((came_to, rows, broken),) = call(connection, calls.VERIFY_MARKERS, partition_id, _position(after), VERIFIED_ROWS)
    return Piece(rows, came_to, broken)


def verify_decisions(connection: RawConnection, partition_ids: Sequence[int], after: Sequence[int] | None) -> Piece:
    """Look at the next decisions; only those on these partitions are compared."""
    arguments = (Int4Array(partition_ids), _position(after), VERIFIED_ROWS)
    ((came_to, rows, concerned, broken),) = call(connection, calls.VERIFY_DECISIONS, *arguments)
    return Piece(rows, came_to, broken, transactions=concerned)


def verify_cut(connection: RawConnection, ends: Mapping[int, int], after: Sequence[int] | None) -> Piece:
    """Look at the next decisions: whether they have records on both sides of a cut, of these ends by partition id."""
    arguments = (Int4Array(ends), Int8Array(ends.values()), _position(after), VERIFIED_ROWS)
    ((came_to, rows, concerned, broken),) = call(connection, calls.VERIFY_CUT, *arguments)
    return Piece(rows, came_to, broken, transactions=concerned)


def verify_offsets(connection: RawConnection, partition_ids: Sequence[int], after: Sequence[int] | None) -> Piece:
    """Look at the next committed offsets; only those of these partitions are compared."""
    arguments = (Int4Array(partition_ids), _position(after), VERIFIED_ROWS)
    ((came_to, rows, concerned, behind, broken),) = call(connection, calls.VERIFY_OFFSETS, *arguments)
    return Piece(rows, came_to, broken, offsets=concerned, behind=behind)


def verify_assignments(connection: RawConnection, partition_ids: Sequence[int], after: Sequence[int] | None) -> Piece:
    """Look at the next partitions that members of groups own; only these partitions are compared."""
    arguments = (Int4Array(partition_ids), _position(after), VERIFIED_ROWS)
    ((came_to, rows, broken),) = call(connection, calls.VERIFY_ASSIGNMENTS, *arguments)
    return Piece(rows, came_to, broken)


def _position(after: Sequence[int] | None) -> Int8Array | None:
    return None if after is None else Int8Array(after)
