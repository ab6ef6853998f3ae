"""Undecided transactions, as an operator looks for them: per partition, and prepared ones."""

from collections.abc import Mapping, Sequence

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.generated import calls
from msgtx.types import TransactionId

# A transaction without a decision on one partition. If it lacks a row, `opened_at` or `current_epoch` is None.
Undecided = calls.UndecidedTransactionsRow

# A prepared transaction: sealed for a SQL session or an outside party, and not decided.
UndecidedSeal = calls.UndecidedSealsRow

# A decided transaction whose markers are missing on some partitions.
Unfinished = calls.UnfinishedDecisionsRow

# A partition that an undecided transaction holds back; without a partition: it has offsets or acknowledgements that wait.
Blocking = calls.BlockingPartitionsRow

# A group that waits for the end of a transaction.
Waiting = calls.WaitingGroupsRow


def undecided_transactions(
    connection: RawConnection,
    partition_ids: Sequence[int] | None = None,
    *,
    each_partition: int,
    most: int,
    overdue_only: bool = False,
    limit_ms: int | None = None,
) -> tuple[list[Undecided], int]:
    """Return undecided transactions per partition, the oldest first, at most `most`; and how many there are.

    `overdue_only`: older than `limit_ms` (None: than their own timeout), or without transaction or producer row.
    """
    asked = None if partition_ids is None else Int4Array(partition_ids)
    rows = call(connection, calls.UNDECIDED_TRANSACTIONS, asked, each_partition, overdue_only, limit_ms, most)
    return rows, rows[0].found if rows else 0


def undecided_seals(connection: RawConnection, *, most: int) -> tuple[list[UndecidedSeal], int]:
    """Return prepared transactions, the oldest first, at most `most`; and how many there are."""
    rows = call(connection, calls.UNDECIDED_SEALS, most)
    return rows, rows[0].found if rows else 0


def unfinished_decisions(connection: RawConnection, *, older_than_ms: int, most: int) -> tuple[list[Unfinished], int]:
    """Return decided transactions that are not complete, the oldest first, at most `most`; and how many there are."""
    rows = call(connection, calls.UNFINISHED_DECISIONS, older_than_ms, most)
    return rows, rows[0].found if rows else 0


def blocking_partitions(connection: RawConnection, only: TransactionId | None = None, *, most: int) -> list[Blocking]:
    """Return the partitions that are held back, each with the transaction that does it; the oldest ones first.

    `only`: those that this transaction holds back.
    """
    return call(connection, calls.BLOCKING_PARTITIONS, most, *(only or (None, None, None)))


def waiting_groups(connection: RawConnection, stable_ends: Mapping[int, int]) -> tuple[list[Waiting], int]:
    """Return the groups that wait at these offsets, by partition id; and for how many partitions they were looked up."""
    if not stable_ends:
        return [], 0
    rows = call(connection, calls.WAITING_GROUPS, Int4Array(stable_ends), Int8Array(stable_ends.values()))
    return [row for row in rows if row.group_name is not None], rows[0].searched
