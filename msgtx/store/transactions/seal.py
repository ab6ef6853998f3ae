"""Seals: transactions that another party decides, a user's SQL transaction or an outside system."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

import psycopg

from msgtx.database.calls import (
    CURRENT_TRANSACTION,
    SEAT_AND_CALLER,
    TRANSACTION_STATUS,
    batch_array,
    call,
    call_together,
    query,
)
from msgtx.database.committing import call_and_commit
from msgtx.database.connection import Connection, RawConnection
from msgtx.database.wire import BatchColumns, Int4Array, Int8Array
from msgtx.errors import MsgtxError
from msgtx.generated import calls
from msgtx.store.append.append import APPEND_UNFLUSHED, Appended, append_arguments, error_of, read_appended
from msgtx.store.groups.groups import NO_OFFSETS, OffsetColumns
from msgtx.store.transactions.decide import Ending
from msgtx.types import TransactionId

Kind = Literal["session", "external"]
# Without offsets their arrays are not sent: a third of the call's cost for the client.
COMMIT_IN_SESSION: Final = calls.COMMIT_IN_SESSION.first(1)
SEAL_FOR_A_SESSION: Final = calls.SEAL.unflushed()  # the flush of the session's COMMIT is that of the seal, too


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed transaction, for its decision in a user's SQL transaction. `deadline` None: it never times out."""

    transaction_id: TransactionId
    deadline: datetime | None
    partitions: Sequence[int]
    first_offsets: Sequence[int]
    last_offsets: Sequence[int]
    signature: bytes


@dataclass(frozen=True, slots=True)
class Sealing:
    """The answer to a seal. With an error nothing is sealed; after an abort, the last stored sequence by partition id."""

    error: MsgtxError | None
    sealed: Sealed | None
    last_sequences: dict[int, int | None]


def seal(
    connection: RawConnection,
    transaction_id: TransactionId,
    kind: Kind,
    *,
    tails: Mapping[int, int],
    offsets: OffsetColumns = NO_OFFSETS,
    timeout_ms: int | None = None,
    client_host: str | None = None,
    client_process: int | None = None,
    seat: int | None = None,
    is_alone: bool = True,
) -> Sealing:
    """Seal a transaction: verified, closed, and flushed unless a session decides it. Repeatable.

    `tails`: the last sequence sent, by partition id. `seat`: of the deciding session. After it has left its seat, anyone may
    abort. `is_alone`: whether nothing else is in the SQL transaction that might have to be flushed.
    """
    arguments = (*_sealed_content(transaction_id, kind, tails, offsets), timeout_ms, client_host, client_process, seat)
    function = SEAL_FOR_A_SESSION if kind == "session" and is_alone else calls.SEAL
    (answer,) = call(connection, function, *arguments)
    return _sealing(transaction_id, tails, answer)


def append_and_seal(
    connection: Connection,
    transaction_id: TransactionId,
    batches: Sequence[BatchColumns],
    *,
    tails: Mapping[int, int],
    offsets: OffsetColumns,
    timeout_ms: int,
    client_host: str,
    client_process: int,
    seat: int | None,
) -> tuple[list[Appended], Sealing]:
    """Store the batches of a transaction and seal it for a session, in one SQL transaction and one round trip.

    An error of the seal says nothing where a batch was refused.
    """
    arguments = (*_sealed_content(transaction_id, "session", tails, offsets), timeout_ms, client_host, client_process, seat)
    rows, (answer,) = call_together(
        connection,
        [
            (APPEND_UNFLUSHED, append_arguments(connection, batches, durable=False, wake=False, timeout_ms=timeout_ms)),
            (SEAL_FOR_A_SESSION, arguments),
        ],
        lambda: None,
    )
    return read_appended(rows), _sealing(transaction_id, tails, answer)


def _sealed_content(
    transaction_id: TransactionId, kind: Kind, tails: Mapping[int, int], offsets: OffsetColumns
) -> tuple[object, ...]:
    return *transaction_id, kind, Int4Array(tails), Int8Array(tails.values()), *offsets.arguments()


def _sealing(transaction_id: TransactionId, tails: Mapping[int, int], answer: tuple[Any, ...]) -> Sealing:
    name, detail, stored, deadline, partitions, firsts, lasts, signature = answer
    error = error_of(name, detail)
    sealed = None if error else Sealed(transaction_id, deadline, partitions, firsts, lasts, bytes(signature))
    return Sealing(error, sealed, dict(zip(tails, stored, strict=True)) if stored else {})


def take_seat(connection: RawConnection) -> int | None:
    """Take a seat for a user's session, to the end of its SQL transaction, for transactions that are sealed for it.

    None: it got none.
    """
    seat: int | None = call(connection, calls.TAKE_SEAT)[0][0]
    return seat


def take_seat_and_name(connection: RawConnection) -> tuple[int | None, str]:
    """Take a seat, and return the role whose rights count in the session, in one round trip."""
    ((seat, role),) = query(connection, SEAT_AND_CALLER)
    return seat, role


def decide_sealed(connection: RawConnection, sealed: Sealed) -> None:
    """Commit a transaction that is sealed for a session, in the session's own SQL transaction, at any isolation level.

    Raise `TransactionAborted` past its deadline or after another decision, `IncarnationChanged`; the SQL transaction
    has failed.
    """
    call(connection, calls.DECIDE_SEALED, *_decision(sealed))


def decide_sealed_and_commit(connection: psycopg.Connection[Any], sealed: Sealed, *, words: str) -> bool:
    """Do the same, commit the session's SQL transaction and notify waiting consumers, in one round trip.

    Returns whether the notification succeeded.
    """
    return call_and_commit(connection, calls.DECIDE_SEALED, *_decision(sealed), words=words)


def _decision(sealed: Sealed) -> tuple[object, ...]:
    spans = (Int4Array(sealed.partitions), Int8Array(sealed.first_offsets), Int8Array(sealed.last_offsets))
    return *sealed.transaction_id, sealed.deadline, *spans, sealed.signature


def undecided_prepared(connection: RawConnection, producer_id: int) -> TransactionId | None:
    """Return the transaction of a producer id that is prepared for an outside decision, if there is one."""
    rows = call(connection, calls.UNDECIDED_PREPARED, producer_id)
    return TransactionId(producer_id, *rows[0]) if rows else None


def complete_prepared(connection: RawConnection, transaction_id: TransactionId, outcome: Ending) -> None:
    """Decide a prepared transaction. Repeatable. Raise `InvalidTransactionState` for one that is not, or ended otherwise."""
    ((_, name, detail),) = call(connection, calls.COMPLETE_PREPARED, *transaction_id, outcome)
    if (error := error_of(name, detail)) is not None:
        raise error


def commit_in_session(
    connection: RawConnection, batches: Sequence[BatchColumns], offsets: OffsetColumns = NO_OFFSETS
) -> bool:
    """Commit offsets and append batches with the user's SQL transaction. A refusal fails its COMMIT.

    Returns False above READ COMMITTED, where nothing was done.
    """
    rows = batch_array(connection, batches)
    if offsets.groups:
        return not call(connection, calls.COMMIT_IN_SESSION, rows, *offsets.arguments())
    return not call(connection, COMMIT_IN_SESSION, rows)


def hold_commit(connection: RawConnection, offsets: OffsetColumns) -> int:
    """Stage offsets in the user's SQL transaction, and have its COMMIT fail until `release_commit` is given this number.

    Raise `ConfigError` above READ COMMITTED.
    """
    return call(connection, calls.HOLD_COMMIT, *offsets.arguments())[0][0]


def release_commit(connection: RawConnection, held: int) -> int | None:
    """Allow the COMMIT. Returns the number of the SQL transaction that decides; None: what was held was rolled back."""
    number: int | None = call(connection, calls.RELEASE_COMMIT, held)[0][0]
    return number


class Ended(StrEnum):
    """How a SQL transaction ended."""

    COMMITTED = "committed"
    ROLLED_BACK = "aborted"
    NOT_YET = "in progress"


def transaction_number(connection: RawConnection) -> int:
    """Return the server's number for the SQL transaction that a connection is in."""
    number: int = query(connection, CURRENT_TRANSACTION)[0][0]
    return number


def ended_as(connection: RawConnection, number: int) -> Ended:
    """Return how a SQL transaction ended. A very old one, which the server has forgotten, counts as rolled back."""
    status = query(connection, TRANSACTION_STATUS, number)[0][0]
    return Ended.ROLLED_BACK if status is None else Ended(status)
