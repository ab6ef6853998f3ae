"""Append: batches into partitions' logs, alone or as a whole transaction in one call."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgtx.database.calls import batch_array, call, call_and_notify, call_together
from msgtx.database.connection import Connection, RawConnection
from msgtx.database.translation import answered
from msgtx.database.wire import BatchColumns
from msgtx.declared.function import Function
from msgtx.errors import MsgtxError
from msgtx.generated import calls
from msgtx.store.fetch.wakeups import words_of
from msgtx.store.groups.groups import NO_OFFSETS, OffsetColumns
from msgtx.store.shares.answers import NO_ANSWERS, AnswerColumns
from msgtx.types import TransactionId

# Each is a lock to the end of the call, of which PostgreSQL has 6,400 by default; more partitions are more calls.
PARTITIONS_AT_ONCE: Final = 256
# Of batches: enough to share a flush and a round trip, little enough to hold locks shortly; one batch may be larger.
CALL_BYTES: Final = 2 * 1024 * 1024
APPEND_UNFLUSHED: Final = calls.APPEND.unflushed()
# Without offsets their arrays are not sent: a tenth of the call's cost.
APPEND_AND_DECIDE: Final = calls.APPEND_AND_DECIDE.first(6)


class Whole(NamedTuple):
    """A transaction that goes out as one call: batches of this name, ascending by partition, offsets, acknowledgements."""

    id: TransactionId
    batches: Sequence[BatchColumns]
    offsets: OffsetColumns = NO_OFFSETS
    answers: AnswerColumns = NO_ANSWERS


class Appended(NamedTuple):
    """The outcome of one batch. `base_offset` is −1 for a duplicate that the log has lost; `timestamp` in milliseconds."""

    error: MsgtxError | None
    base_offset: int
    timestamp: int
    duplicate: bool


def epoch_ms(time: datetime) -> int:
    """Return milliseconds since 1970 UTC, rounded down."""
    return int(time.timestamp() * 1000)


def epoch_ms_or_none(time: datetime | None) -> int | None:
    """Return milliseconds since 1970 UTC; None for None."""
    return None if time is None else epoch_ms(time)


def error_of(name: str | None, detail: str | None) -> MsgtxError | None:
    """Return the error that a database function names in its answer."""
    return None if name is None else answered(name, detail or name)


def _appended(row: tuple[Any, ...]) -> Appended:
    name, detail, base_offset, appended_at, duplicate = row  # of any function that appends
    return Appended(
        error=error_of(name, detail),
        base_offset=-1 if base_offset is None else base_offset,
        timestamp=-1 if appended_at is None else epoch_ms(appended_at),
        duplicate=bool(duplicate),
    )


def append_arguments(
    connection: RawConnection,
    batches: Sequence[BatchColumns],
    *,
    durable: bool = True,
    wake: bool = True,
    timeout_ms: int | None = None,
    client_host: str | None = None,
    client_process: int | None = None,
) -> tuple[object, ...]:
    """Return the arguments of `calls.APPEND`, for a pipeline; `read_appended` reads its answer."""
    return (batch_array(connection, batches), durable, wake, timeout_ms, client_host, client_process)


def read_appended(rows: Sequence[Any]) -> list[Appended]:
    """Return the answers to a set of batches, in their order."""
    return [_appended(row) for row in rows]


def append(
    connection: RawConnection,
    batches: Sequence[BatchColumns],
    *,
    flushed: bool = True,
    wake: bool = True,
    timeout_ms: int | None = None,
) -> list[Appended]:
    """Store batches, ascending by partition, in one call. Returns one answer per batch; refusals are answers, too (I1)."""
    arguments = append_arguments(connection, batches, durable=flushed, wake=wake, timeout_ms=timeout_ms)
    return read_appended(call(connection, calls.APPEND if flushed else APPEND_UNFLUSHED, *arguments))


def append_and_decide(
    connection: RawConnection,
    transaction_id: TransactionId,
    batches: Sequence[BatchColumns],
    *,
    offsets: OffsetColumns = NO_OFFSETS,
    answers: AnswerColumns = NO_ANSWERS,
    wake: bool = True,
) -> list[Appended]:
    """Store and commit a whole transaction in one call: all or nothing. If any answer has an error, nothing is stored.

    A refusal of the transaction itself is the only answer.
    """
    function, arguments = _call_of(connection, Whole(transaction_id, batches, offsets, answers), wake=wake)
    return read_appended(call(connection, function, *arguments))


def append_decide_and_notify(connection: RawConnection, whole: Whole) -> tuple[list[Appended], bool]:
    """Do the same, and notify waiting consumers after the COMMIT, in the same round trip. Returns also whether it did."""
    function, arguments = _call_of(connection, whole, wake=False)
    words = words_of(batch.partition_id for batch in whole.batches)
    rows, notified = call_and_notify(connection, function, *arguments, words=words)
    return read_appended(rows), notified


def append_and_decide_together(
    connection: Connection, wholes: Sequence[Whole], sent: Callable[[], object] = lambda: None
) -> list[list[Appended] | None]:
    """Store and commit whole transactions in one SQL transaction with one flush; each is answered as if it came alone.

    No consumer is woken. `sent`: called when all are on their way.
    None: another session holds a lock of it, and nothing of it is done. An error that is raised undoes all.
    """
    asked = [_call_of(connection, whole, wake=False, skip_locked=True) for whole in wholes]
    return [read_appended(rows) or None for rows in call_together(connection, asked, sent)]


def _call_of(
    connection: RawConnection, whole: Whole, *, wake: bool, skip_locked: bool = False
) -> tuple[Function[Any], tuple[object, ...]]:
    arguments = (*whole.id, batch_array(connection, whole.batches), wake)
    if whole.answers.groups:
        return calls.APPEND_ACKNOWLEDGE_DECIDE, (*arguments, *whole.offsets.arguments(), *whole.answers.arguments())
    if whole.offsets.groups:
        return calls.APPEND_AND_DECIDE, (*arguments, skip_locked, *whole.offsets.arguments())
    return APPEND_AND_DECIDE, (*arguments, skip_locked)
