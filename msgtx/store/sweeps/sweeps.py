"""The sweeps, one function each: bounded, resumable, trying locks and never waiting (internals: coordinator#the-sweeps)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.declared.function import Function
from msgtx.errors import CoordinatorFenced, DatabaseUnavailable, NotCoordinator
from msgtx.generated import calls
from msgtx.store.sweeps.coordinators import Leases
from msgtx.store.transactions import transactions
from msgtx.store.transactions.transactions import Position

MANY_MARKERS: Final = 1_000
REMOVED_AT_ONCE_BYTES: Final = 32 * 1024 * 1024  # of one call that removes rows of logs
REMOVED_ROW_BYTES: Final = 200  # that the removal of a row writes beside its records: its part of a page, in the WAL
# Positions of `mark`: the search by date comes first, and again while it finds much; then partition by partition.
DATES: Final = (-2,)
FIRST_PLACE: Final = (-1,)
# Of `settle_shares`: after transactions' acknowledgements come dead records, by group and partition.
DEAD: Final = (-1, -1)

# Nothing of a round can be done then; any other failure is one step's own.
ENDS_THE_ROUND: Final = (DatabaseUnavailable, CoordinatorFenced, NotCoordinator)


@dataclass(frozen=True, slots=True)
class Swept:
    """What one call did, by field of `SweepReport`, and where the next one goes on; None: it has come to the end.

    `is_busy`: the round goes on also when nothing was done: readers wait for what comes last, too. `bytes`: of the log that
    were removed or rewritten.
    """

    done: dict[str, int]
    after: Position | None = None
    is_busy: bool = False
    bytes: int = 0


Step = Callable[[RawConnection, Position | None, Leases | None], Swept]


def expire_step(connection: RawConnection, after: Position | None, leases: Leases | None) -> Swept:
    """Abort overdue transactions, by name (I12)."""
    ((expired, next_after),) = call(connection, calls.EXPIRE_OVERDUE, *transactions.step(after, leases))
    return Swept({"transactions_aborted": expired}, None if next_after is None else tuple(next_after), is_busy=True)


def settle_shares(connection: RawConnection, after: Position | None, leases: Leases | None) -> Swept:
    """Apply acknowledgements of decided transactions, then write the dead letters that no member has written.

    Overdue transactions with acknowledgements are aborted. Source: internals: share-answers#transactions,
    share-upkeep#dead-letters.
    """
    if after is not None and len(after) == len(DEAD):
        ((_, next_after),) = call(connection, calls.BURY_DEAD_SHARES, *transactions.step(after, leases))
        return Swept({}, None if next_after is None else tuple(next_after), is_busy=True)
    ((settled, expired, next_after),) = call(connection, calls.SETTLE_SHARES, *transactions.step(after, leases))
    done = {"shares_settled": settled, "transactions_aborted": expired}
    return Swept(done, DEAD if next_after is None else tuple(next_after), is_busy=True)


def mark_step(connection: RawConnection, after: Position | None, leases: Leases | None) -> Swept:
    """Write the markers and floors that are missing."""
    next_after: Position | None
    if after is None or after == DATES:
        markers, floors = transactions.mark(connection, leases=leases)
        # A call takes some 20,000 markers; later decisions of clients are for the next round.
        next_after = DATES if markers >= MANY_MARKERS else FIRST_PLACE
    else:
        markers, floors, next_after = transactions.mark_partitions(connection, after, leases=leases)
    return Swept({"markers_written": markers, "floors_moved": floors}, next_after, is_busy=True)


def _resume(
    connection: RawConnection,
    after: Position | None,
    leases: Leases | None,
    *,
    function: Function[Any],
    field: str,
    is_busy: bool = False,
) -> Swept:
    ((removed, next_after),) = call(connection, function, *transactions.step(after, leases))
    return Swept({field: removed}, None if next_after is None else tuple(next_after), is_busy=is_busy)


def _clean(
    connection: RawConnection,
    after: Position | None,
    leases: Leases | None,
    *,
    function: Function[Any],
    field: str,
    most_bytes: int = REMOVED_AT_ONCE_BYTES,
) -> Swept:
    ((removed, next_after, size),) = call(connection, function, *transactions.step(after, leases), most_bytes)
    return Swept(
        {field: removed}, None if next_after is None else tuple(next_after), bytes=size + removed * REMOVED_ROW_BYTES
    )


def pace(connection: RawConnection) -> int:
    """Return the most bytes of logs that a sweeper may remove or rewrite in a second."""
    ((rate,),) = call(connection, calls.SWEEP_PACE)
    return int(rate)


# A partition on which retention is behind; see `late_logs.sql`.
LateLog = calls.LateLogsRow


def late_logs(connection: RawConnection, *, late_ms: int, late_bytes: int, most: int) -> tuple[list[LateLog], int]:
    """Return such partitions, that with the oldest record first, at most `most`; and how many there are."""
    rows = call(connection, calls.LATE_LOGS, late_ms, late_bytes, most)
    return rows, rows[0].found if rows else 0


# Removes transactional ids and producer ids that are idle for longer than their expiry (I13).
remove_idle_producers: Step = partial(_resume, function=calls.REMOVE_IDLE_PRODUCERS, field="producer_ids_removed")
# Removes complete transactions that are past their history (internals: transactions#history).
purge_transactions: Step = partial(_resume, function=calls.PURGE_TRANSACTIONS, field="transactions_purged")
# Removes committed offsets for which a newer one counts.
remove_superseded_offsets: Step = partial(_resume, function=calls.REMOVE_SUPERSEDED_OFFSETS, field="offsets_removed")
# Removes floors below the newest of their partition.
remove_superseded_floors: Step = partial(_resume, function=calls.REMOVE_SUPERSEDED_FLOORS, field="floors_removed")
# Removes members whose session is over from their groups.
remove_members: Step = partial(_resume, function=calls.REMOVE_MEMBERS, field="members_removed", is_busy=True)
# Removes heartbeats below the newest of their member, and all of former members.
remove_heartbeats: Step = partial(_resume, function=calls.REMOVE_HEARTBEATS, field="heartbeats_removed")
# Removes states of share groups below the newest, and calls of their members (internals: shares).
remove_superseded_shares: Step = partial(_resume, function=calls.REMOVE_SUPERSEDED_SHARES, field="share_rows_removed")
# Removes rows past retention from the fronts of logs (internals: cleaning).
remove_old_batches = partial(_clean, function=calls.REMOVE_OLD_BATCHES, field="batches_removed")
# Removes old rows of Spark's batches: decided attempts, and rows that newer batches supersede.
remove_spark_history: Step = partial(_resume, function=calls.REMOVE_SPARK_HISTORY, field="spark_rows_removed")
# Removes the seals of decided transactions, and the offsets that waited for an ABORT.
remove_decided_seals: Step = partial(_resume, function=calls.REMOVE_DECIDED_SEALS, field="seals_removed")
# Removes the logs of deleted topics.
remove_deleted_logs = partial(_clean, function=calls.REMOVE_DELETED_LOGS, field="log_rows_removed")
# Removes keys of deduplication that are past their window.
remove_dedup_keys: Step = partial(_resume, function=calls.REMOVE_DEDUP_KEYS, field="dedup_keys_removed")
# Removes rows that listeners have seen long ago.
remove_old_wake_ups: Step = partial(_resume, function=calls.REMOVE_WAKE_UPS, field="wake_ups_removed")
