"""Answers of members of share groups: by a call, in a transaction, in a user's session (internals: share-answers)."""

from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.translation import answered
from msgtx.database.wire import Int4Array, Int8Array, TextArray
from msgtx.generated import calls
from msgtx.types import TransactionId


class OffsetRange(NamedTuple):
    """Offsets of a partition, from first to last."""

    partition_id: int
    first: int
    last: int


Refused = tuple[str, OffsetRange]  # the name of its error


@dataclass(frozen=True, slots=True)
class AnswerColumns:
    """Answers of members for ranges of offsets, as columns. `reasons`: of REJECT; `delays`: of RELEASE, in milliseconds."""

    groups: tuple[str, ...] = ()
    members: tuple[int, ...] = ()
    partition_ids: tuple[int, ...] = ()
    firsts: tuple[int, ...] = ()
    lasts: tuple[int, ...] = ()
    answers: tuple[str, ...] = ()
    reasons: tuple[str | None, ...] = ()
    delays: tuple[int | None, ...] = ()

    def arguments(self) -> tuple[object, ...]:
        """Return the array parameters of the database's functions."""
        return (
            TextArray(self.groups),
            Int8Array(self.members),
            Int4Array(self.partition_ids),
            Int8Array(self.firsts),
            Int8Array(self.lasts),
            TextArray(self.answers),
            TextArray(self.reasons),
            Int4Array(self.delays),
        )

    def __add__(self, other: "AnswerColumns") -> "AnswerColumns":
        """Return both."""
        return AnswerColumns(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


NO_ANSWERS: Final = AnswerColumns()


def acknowledge_records(connection: RawConnection, answers: AnswerColumns, *, call_number: int | None) -> list[Refused]:
    """Answer for records, at once. The same call again has its effect once; number None: it is not repeated.

    Return the ranges that are refused: if there are any, nothing was done.
    """
    rows = call(connection, calls.ACKNOWLEDGE_RECORDS, *answers.arguments(), call_number)
    return [(error, OffsetRange(*row)) for error, _, *row in rows]


def last_share_call(connection: RawConnection, group: str, member_number: int) -> int:
    """Return the number of a member's last call whose answers were applied; 0: of none."""
    ((found,),) = call(connection, calls.LAST_SHARE_CALL, group, member_number)
    return int(found)


def acknowledge_in_transaction(
    connection: RawConnection,
    transaction_id: TransactionId,
    answers: AnswerColumns,
    *,
    call_number: int,
    timeout_ms: int | None = None,
    client_host: str | None = None,
    client_process: int | None = None,
) -> None:
    """Answer for records in a transaction: they are pending until it is decided. The same call again has its effect once.

    Raise `InvalidRecordState`, `TransactionConflict`, and the errors of a record in this transaction; nothing was done
    then.
    """
    ((name, detail),) = call(
        connection,
        calls.ACKNOWLEDGE_IN_TRANSACTION,
        *transaction_id,
        call_number,
        *answers.arguments(),
        timeout_ms,
        client_host,
        client_process,
    )
    if name is not None:
        raise answered(name, detail)


def acknowledge_in_session(connection: RawConnection, answers: AnswerColumns) -> bool:
    """Answer for records with the user's COMMIT, which fails if one is refused.

    Returns False above READ COMMITTED, where nothing was done.
    """
    return not call(connection, calls.ACKNOWLEDGE_IN_SESSION, *answers.arguments())
