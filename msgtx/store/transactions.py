"""Transactions as anyone may see and end them: outcome, expiry, abort, markers."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from msgtx.database.engine import Function, RawConnection, call, select
from msgtx.store.coordinators import LED, Leases, led
from msgtx.types import Outcome, TransactionId

_NAME: Final = {"in_producer_id": "int8", "in_producer_epoch": "int4", "in_transaction_number": "int8"}
OUTCOME: Final = Function("transaction_outcome", _NAME)
END: Final = Function("end_transaction", {**_NAME, "in_decided_by": "text"})
EXPIRE: Final = Function("expire_transaction", _NAME)
EXPIRE_ALL: Final = Function("expire_transactions", {"most": "int4", **LED})
MARK: Final = Function("mark", {"everything": "bool", **LED}, flushed=False)
EXPIRED_AT_ONCE: Final = 1_000  # overdue transactions that one call aborts; a round goes on while there are more

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
    ((outcome, decided_by),) = call(connection, OUTCOME, *transaction_id)
    return Decision(OUTCOMES[outcome], decided_by)


def end_transaction(
    connection: RawConnection, transaction_id: TransactionId, decided_by: Literal["admin", "resolve"]
) -> Outcome:
    """Abort a transaction that its producer will not end; what is decided stays (I4). Returns the outcome."""
    ((outcome,),) = call(connection, END, *transaction_id, decided_by)
    return OUTCOMES[outcome]


def expire_transaction(connection: RawConnection, transaction_id: TransactionId) -> bool:
    """Abort an overdue transaction if its lock is free (I12). Returns whether a timeout has ended it."""
    ((expired,),) = call(connection, EXPIRE, *transaction_id)
    return bool(expired)


def expire_transactions(connection: RawConnection, *, leases: Leases | None = None) -> int:
    """Abort overdue transactions, by name (I12), of all shards or of those that are led. Returns how many."""
    total = 0
    while True:
        expired: int = call(connection, EXPIRE_ALL, EXPIRED_AT_ONCE, *led(leases))[0][0]
        total += expired
        if expired < EXPIRED_AT_ONCE:
            return total


def mark(connection: RawConnection, *, everything: bool = False, leases: Leases | None = None) -> tuple[int, int]:
    """Write the markers and floors that are missing, in bulk. Returns how many of each.

    Raise `CoordinatorFenced` if one of the `leases` has passed to a newer coordinator.
    """
    ((markers, floors),) = call(connection, MARK, everything, *led(leases))
    return markers, floors


def transactions(connection: RawConnection) -> list[dict[str, Any]]:
    """Return the rows of view `transactions`."""
    return select(connection, "transactions")
