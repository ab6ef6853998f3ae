"""What time brings, one function each: bounded, resumable, trying locks and never waiting for one (architecture 5)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgtx.database.engine import Function, RawConnection, call
from msgtx.database.wire import Int8Array
from msgtx.errors import CoordinatorFenced, DatabaseUnavailable, NotCoordinator
from msgtx.store import transactions
from msgtx.store.coordinators import LED, Leases, led

_RESUMABLE: Final = {"in_after": "int8[]", "most": "int4", **LED}
REMOVE_PRODUCERS: Final = Function("remove_idle_producers", _RESUMABLE)
PURGE: Final = Function("purge_transactions", _RESUMABLE, flushed=False)
REMOVE_OFFSETS: Final = Function("remove_superseded_offsets", _RESUMABLE, flushed=False)
REMOVE_FLOORS: Final = Function("remove_superseded_floors", _RESUMABLE, flushed=False)
REMOVE_MEMBERS: Final = Function("remove_members", _RESUMABLE)
REMOVE_HEARTBEATS: Final = Function("remove_heartbeats", _RESUMABLE, flushed=False)
REMOVE_BATCHES: Final = Function("remove_old_batches", _RESUMABLE)
REMOVE_SEALS: Final = Function("remove_decided_seals", _RESUMABLE, flushed=False)
REMOVE_SPARK_HISTORY: Final = Function("remove_spark_history", _RESUMABLE, flushed=False)
REMOVE_DEDUP_KEYS: Final = Function("remove_dedup_keys", _RESUMABLE, flushed=False)
LOOKED_AT_ONCE: Final = 500  # rows that one call looks at: a SQL transaction of some milliseconds, also when all are to go
MANY_MARKERS: Final = 1_000

Position = tuple[int, ...]
# Nothing of a round can be done then; any other failure is one step's own.
ENDS_THE_ROUND: Final = (DatabaseUnavailable, CoordinatorFenced, NotCoordinator)


@dataclass(frozen=True, slots=True)
class Swept:
    """What one call did, by field of `SweepReport`, and where the next one goes on; None: it has come to the end.

    `is_busy`: it did nothing that counts, and is not idle.
    """

    done: dict[str, int]
    after: Position | None = None
    is_busy: bool = False


Step = Callable[[RawConnection, Position | None, Leases | None], Swept]


def expire_transactions(connection: RawConnection, after: Position | None, leases: Leases | None) -> Swept:
    """Abort overdue transactions, by name (I12)."""
    return Swept({"transactions_aborted": transactions.expire_transactions(connection, leases=leases)})


def mark(connection: RawConnection, after: Position | None, leases: Leases | None) -> Swept:
    """Write the markers and floors that are missing."""
    markers, floors = transactions.mark(connection, everything=True, leases=leases)
    more = markers >= MANY_MARKERS  # a call takes 20,000 decisions; what clients decide meanwhile is for the next round
    return Swept({"markers_written": markers, "floors_moved": floors}, (markers,) if more else None)


def _resume(
    connection: RawConnection, after: Position | None, leases: Leases | None, *, function: Function, field: str
) -> Swept:
    position = None if after is None else Int8Array(after)
    ((removed, next_after),) = call(connection, function, position, LOOKED_AT_ONCE, *led(leases))
    return Swept({field: removed}, None if next_after is None else tuple(next_after))


# Removes transactional ids and producer ids that are idle for longer than their expiry (I13).
remove_idle_producers: Step = partial(_resume, function=REMOVE_PRODUCERS, field="producer_ids_removed")
# Removes complete transactions that are past their history (semantics 4).
purge_transactions: Step = partial(_resume, function=PURGE, field="transactions_purged")
# Removes committed offsets for which a newer one counts.
remove_superseded_offsets: Step = partial(_resume, function=REMOVE_OFFSETS, field="offsets_removed")
# Removes floors below the newest of their partition.
remove_superseded_floors: Step = partial(_resume, function=REMOVE_FLOORS, field="floors_removed")
# Removes members whose session is over from their groups.
remove_members: Step = partial(_resume, function=REMOVE_MEMBERS, field="members_removed")
# Removes heartbeats below the newest of their member, and those of members that are gone.
remove_heartbeats: Step = partial(_resume, function=REMOVE_HEARTBEATS, field="heartbeats_removed")
# Removes what retention has let go from the fronts of logs (semantics 8).
remove_old_batches: Step = partial(_resume, function=REMOVE_BATCHES, field="batches_removed")
# Removes what Spark's batches left: decided attempts, and what newer batches have superseded.
remove_spark_history: Step = partial(_resume, function=REMOVE_SPARK_HISTORY, field="spark_rows_removed")
# Removes the seals of decided transactions, and the offsets that waited for an ABORT.
remove_decided_seals: Step = partial(_resume, function=REMOVE_SEALS, field="seals_removed")
# Removes keys of deduplication that are past their window.
remove_dedup_keys: Step = partial(_resume, function=REMOVE_DEDUP_KEYS, field="dedup_keys_removed")
