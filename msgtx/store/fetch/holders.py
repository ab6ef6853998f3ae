"""Transactions that hold a reader back. The call that looks for them aborts overdue ones (I12)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array
from msgtx.generated import calls
from msgtx.store.fetch import cuts, fetch
from msgtx.store.groups import groups
from msgtx.types import Isolation, TransactionId


@dataclass(frozen=True, slots=True)
class Holder:
    """An undecided transaction that holds readers of a partition back, or a group's offset there.

    `kind`: session, or external for one that is prepared; None: it is not sealed. `expired`: it is aborted now.
    """

    partition_id: int
    transaction_id: TransactionId
    kind: str | None
    expired: bool

    def __str__(self) -> str:
        """Return it in words, for a message."""
        match self.kind:
            case "external":
                return f"the prepared transaction {self.transaction_id}, which its outside party decides"
            case "session":
                return f"transaction {self.transaction_id}, which a session is to commit"
            case _:
                return f"the open transaction {self.transaction_id}"


def expire_holders(connection: RawConnection, partition_ids: Collection[int], group: str | None = None) -> list[Holder]:
    """Abort overdue transactions that hold readers of these partitions back, trying locks only. Returns all that hold.

    `group`: the transactions that its offsets there wait for. A connection that may only read gets the report, and
    aborts nothing.
    """
    if not partition_ids:
        return []
    rows = call(connection, calls.EXPIRE_HOLDERS, Int4Array(partition_ids), group)
    return [Holder(row.partition_id, TransactionId(*row[1:4]), row.kind, row.expired) for row in rows]


def expired_any(connection: RawConnection, partition_ids: Collection[int], group: str | None = None) -> bool:
    """Abort overdue transactions that hold these back. Returns whether there was one, so that it is to be looked again."""
    return any(holder.expired for holder in expire_holders(connection, partition_ids, group))


def stable_ends(connection: RawConnection, times: Mapping[int, int], isolation: Isolation) -> dict[int, fetch.ListedOffset]:
    """Abort overdue transactions, then look up offsets as `list_offsets`."""
    found = fetch.list_offsets(connection, times, isolation)
    held = [
        partition_id
        for partition_id, at in found.items()
        if times[partition_id] != fetch.EARLIEST and at.last_stable_offset < at.log_end_offset
    ]
    if held and isolation is Isolation.READ_COMMITTED and expired_any(connection, held):
        return fetch.list_offsets(connection, times, isolation)
    return found


def stable_cut(
    connection: RawConnection, partition_ids: Iterable[int], positions: Mapping[int, int] = cuts.NO_POSITIONS
) -> dict[int, cuts.CutPartition]:
    """Abort overdue transactions, then return the greatest consistent cut of these partitions, as `consistent_cut`."""
    asked = list(partition_ids)
    expire_holders(connection, asked)
    return cuts.consistent_cut(connection, asked, positions)


def stable_offsets(
    connection: RawConnection, group: str, partition_ids: Sequence[int]
) -> tuple[dict[int, groups.CommittedOffset], dict[int, Holder]]:
    """Abort overdue transactions, then return the group's offsets, and the pending transactions, by partition id.

    The pending transactions are only reported: one that was sealed in between is not among them.
    """
    found = groups.committed_offsets(connection, group, partition_ids)
    pending = [partition_id for partition_id, at in found.items() if at.pending]
    if not pending:
        return found, {}
    holders = expire_holders(connection, pending, group)
    if any(holder.expired for holder in holders):
        found = groups.committed_offsets(connection, group, partition_ids)
    return found, {holder.partition_id: holder for holder in holders if not holder.expired}
