"""All that is stored of one transaction: its rows, its partitions in pages, its offsets in steps, its acknowledgements."""

from collections.abc import Sequence

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array
from msgtx.generated import calls
from msgtx.types import TransactionId

# A transaction without its partitions.
Shown = calls.ShowTransactionRow

# What a transaction wrote to one partition.
PartitionRow = calls.ShowPartitionsRow

# An offset of a group that belongs to a transaction.
OffsetRow = calls.ShowOffsetsRow

# A range of records that a transaction has acknowledged for a share group.
AcknowledgementRow = calls.ShowAcknowledgementsRow


def show_transaction(connection: RawConnection, transaction_id: TransactionId) -> Shown | None:
    """Return what is stored of a transaction; None: nothing is, or nothing that the role may see."""
    rows = call(connection, calls.SHOW_TRANSACTION, *transaction_id)
    return rows[0] if rows else None


def show_partitions(
    connection: RawConnection, transaction_id: TransactionId, *, skip: int, most: int
) -> Sequence[PartitionRow]:
    """Return what a transaction wrote, per partition, in the order of their ids."""
    return call(connection, calls.SHOW_PARTITIONS, *transaction_id, skip, most)


def show_offsets(
    connection: RawConnection, transaction_id: TransactionId, after: Sequence[int] | None, *, most: int
) -> tuple[list[OffsetRow], Sequence[int] | None]:
    """Return a transaction's offsets among the next pairs of group and partition, and the last pair (None: the end)."""
    asked = None if after is None else Int4Array(after)
    rows = call(connection, calls.SHOW_OFFSETS, *transaction_id, asked, most)
    return [row for row in rows if row.group_name is not None], rows[0].next_after if rows else None


def show_acknowledgements(connection: RawConnection, transaction_id: TransactionId) -> Sequence[AcknowledgementRow]:
    """Return the acknowledgements that wait for a transaction's decision, or to be settled."""
    return call(connection, calls.SHOW_ACKNOWLEDGEMENTS, *transaction_id)
