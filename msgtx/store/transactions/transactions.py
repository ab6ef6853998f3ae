"""Transactions as anyone may see and end them: outcome, expiry, abort, markers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int8Array, TextArray
from msgtx.generated import calls
from msgtx.store.append.append import epoch_ms_or_none
from msgtx.store.sweeps.coordinators import LED, Leases, led
from msgtx.types import Outcome, TopicPartition, TransactionDescription, TransactionId

_NAME: Final = {"in_producer_id": "int8", "in_producer_epoch": "int4", "in_transaction_number": "int8"}
# Arguments of calls that a sweep repeats, each time from the place of the call before.
RESUMABLE: Final = {"in_after": "int8[]", "most": "int4", **LED}
# Rows that one call looks at: a SQL transaction of some epoch_ms, also when all are to go, and few locks.
LOOKED_AT_ONCE: Final = 250
Position = tuple[int, ...]  # where a sweep came to

# A producer with its newest transaction.
Listed = calls.ListTransactionsRow

OUTCOMES: Final = {
    "COMMIT": Outcome.COMMITTED,
    "ABORT": Outcome.ABORTED,
    "OPEN": Outcome.OPEN,
    "UNKNOWN": Outcome.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a transaction, and who decided it."""

    outcome: Outcome
    decided_by: str | None


def transaction_outcome(connection: RawConnection, transaction_id: TransactionId) -> Decision:
    """Return how a transaction ended, as far as it has. Never raises for a name that is not known."""
    ((outcome, decided_by),) = call(connection, calls.TRANSACTION_OUTCOME, *transaction_id)
    return Decision(OUTCOMES[outcome], decided_by)


def end_transaction(
    connection: RawConnection, transaction_id: TransactionId, decided_by: Literal["admin", "resolve"]
) -> Outcome:
    """Abort a transaction that its producer will not end; a decision stays (I4). Returns the outcome."""
    ((outcome,),) = call(connection, calls.END_TRANSACTION, *transaction_id, decided_by)
    return OUTCOMES[outcome]


def step(after: Position | None, leases: Leases | None) -> tuple[object, ...]:
    """Return the arguments `RESUMABLE` of a step that continues at a position (None: at the start)."""
    return None if after is None else Int8Array(after), LOOKED_AT_ONCE, *led(leases)


def mark(connection: RawConnection, *, everything: bool = False, leases: Leases | None = None) -> tuple[int, int]:
    """Write the markers and floors that are missing, in bulk. Returns how many of each.

    Raise `CoordinatorFenced` if one of the `leases` has passed to a newer coordinator.
    """
    ((markers, floors),) = call(connection, calls.MARK, everything, *led(leases), None)
    return markers, floors


def mark_in_turn(connection: RawConnection, *, rest_ms: int) -> bool:
    """Do the same, unless another client has done so within `rest_ms` or is at it. Returns whether it was done."""
    ((markers, _),) = call(connection, calls.MARK, False, *led(None), rest_ms)
    return markers is not None


def mark_partitions(
    connection: RawConnection, after: Position | None, *, leases: Leases | None = None
) -> tuple[int, int, Position | None]:
    """Raise the floors of the next partitions. Returns markers, floors, and the place of the next call (None: the end)."""
    ((markers, floors, next_after),) = call(connection, calls.MARK_PARTITIONS, *step(after, leases))
    return markers, floors, None if next_after is None else tuple(next_after)


def list_transactions(
    connection: RawConnection,
    *,
    states: Sequence[str],
    producer_ids: Sequence[int],
    prefix: str,
    by_producer: bool,
    descending: bool,
    after: int | None,
    most: int,
) -> tuple[list[Listed], int | None]:
    """Return the next rows of view `transactions`, and the producer behind which to continue; None: there are no more.

    Empty `states`, `producer_ids` and `prefix`: any. There may be fewer than `most`, or none, before the last page. Raise
    `InvalidRequest` if the producer `after` is not there any more.
    """
    rows = call(
        connection,
        calls.LIST_TRANSACTIONS,
        TextArray(states) if states else None,
        Int8Array(producer_ids) if producer_ids else None,
        prefix or None,
        by_producer,
        descending,
        after,
        most + 1,
    )
    found = [row for row in rows if row.producer_id is not None]
    if len(found) > most:
        return found[:most], found[most - 1].producer_id
    return found, next((row.next_after for row in rows if row.producer_id is None), None)


def describe_transaction(connection: RawConnection, transactional_id: str) -> TransactionDescription | None:
    """Return a transactional id with its newest transaction; None for one that is not known."""
    rows = call(connection, calls.DESCRIBE_TRANSACTION, transactional_id)
    if not rows:
        return None
    ((producer_id, current_epoch, epoch, number, state, timeout_ms, opened_at, host, decided_by, topics, indexes),) = rows
    return TransactionDescription(
        transactional_id=transactional_id,
        producer_id=producer_id,
        state=state,
        transaction_id=None if number is None else TransactionId(producer_id, epoch, number),
        producer_epoch=current_epoch,
        timeout_ms=timeout_ms,
        started_at=epoch_ms_or_none(opened_at),
        partitions=[TopicPartition(*place) for place in zip(topics, indexes, strict=True)],
        client_host=host,
        decided_by=decided_by,
    )
