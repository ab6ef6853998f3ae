"""A user's COMMIT, sent together with the call that comes just before it: one round trip for both.

The call holds its locks to the end of the COMMIT, and no client's turn is between the two.
"""

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

import psycopg
from psycopg import IsolationLevel, pq
from psycopg.abc import PQGen
from psycopg.errors import error_from_result

from msgtx.database.calls import NOTIFY_SOON, batch_array, query
from msgtx.database.translation import translate
from msgtx.database.wire import BatchColumns, Known, Statements
from msgtx.declared.function import Function
from msgtx.generated import calls

SAVEPOINT: Final = b"savepoint msgtx_at_commit"
# Of the user's tables. Deferred ones are looked at in the COMMIT: behind the call, which would hold its locks meanwhile.
DEFERRABLE: Final = (
    "select exists (select from pg_catalog.pg_trigger t"
    " where t.tgdeferrable and t.tgrelid <> 'msgtx.staged_commit'::pg_catalog.regclass)"
)
COMMIT: Final = b"commit"
TO_SAVEPOINT: Final = b"rollback to savepoint msgtx_at_commit"
NOT_KNOWN: Final = b"26000"  # a prepared statement
STAGED: Final = "IllegalState: staged"  # as append_at_commit refuses what is not its case
AVOIDED_SECONDS: Final = 60.0
BEGIN: Final = {  # by the level that the user has set for a connection
    None: b"begin",
    IsolationLevel.READ_UNCOMMITTED: b"begin isolation level read uncommitted",
    IsolationLevel.READ_COMMITTED: b"begin isolation level read committed",
}
BEGUN: Final = (pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS)  # idle: psycopg begins with a first statement


@dataclass(slots=True)
class _Habits:
    """What was seen of a connection: its prepared statements, whether it keeps them; until when it avoids this way."""

    known: Known = field(default_factory=dict)
    keeps: bool | None = None  # None: it was not used yet, and may not be used again
    avoids_until: float = 0.0


class _Committing(Statements):
    """The statements of ours on a user's connection. It waits as for the user's own: a Ctrl-C is psycopg's to handle."""

    def __init__(self, connection: psycopg.Connection[Any], habits: _Habits) -> None:
        super().__init__(connection)
        self._habits = habits
        self._known = habits.known

    def has_answer(self, milliseconds: int) -> bool:
        """Return False: wait in psycopg."""
        return False

    @property
    def keeps(self) -> bool:
        """Whether the connection keeps prepared statements. With a ROLLBACK psycopg may discard all of them."""
        return self._habits.keeps is True and super().keeps

    def call_and_commit(self, query: str, arguments: Sequence[object], words: str) -> PQGen[psycopg.Error | bool]:
        """Call, commit and notify. Returns whether the notification succeeded.

        Returns the error if the call raised one; then the SQL transaction goes on from before it. Raise psycopg's error of
        anything else, as a COMMIT does.
        """
        *results, notified = yield from self._sent(query, arguments, words)
        failed = _failed(results)
        if failed is not None and failed.error_field(pq.DiagnosticField.SQLSTATE) == NOT_KNOWN:
            self._habits.keeps = False
            yield from self._back()
            *results, notified = yield from self._sent(query, arguments, words)
            failed = _failed(results)
        if self._habits.keeps is None:
            self._habits.keeps = True
        if failed is None:
            return notified.status == pq.ExecStatus.TUPLES_OK
        error = error_from_result(failed, encoding=self._connection.info.encoding)
        if failed is not results[-2] or isinstance(error, psycopg.errors.QueryCanceled):
            raise error
        yield from self._back()
        return error

    def _sent(self, query: str, arguments: Sequence[object], words: str) -> PQGen[list[pq.abc.PGresult]]:
        pgconn = self._connection.pgconn
        call = yield from self._prepare(query, arguments)
        notify = yield from self._prepare(NOTIFY_SOON, (words,))
        begins = () if pgconn.transaction_status != pq.TransactionStatus.IDLE else (BEGIN[self._connection.isolation_level],)
        pgconn.enter_pipeline_mode()
        for statement in (*begins, SAVEPOINT):
            pgconn.send_query_params(statement, None)
        self._send(call)
        pgconn.send_query_params(COMMIT, None)
        self._send(notify)
        pgconn.pipeline_sync()
        results = yield from self._results_until_sync()
        pgconn.exit_pipeline_mode()
        return results

    def _back(self) -> PQGen[None]:
        self._connection.pgconn.send_query_params(TO_SAVEPOINT, None)
        self._checked((yield from self._results()))


def _failed(results: Sequence[pq.abc.PGresult]) -> pq.abc.PGresult | None:
    return next((result for result in results if result.status == pq.ExecStatus.FATAL_ERROR), None)


def may_commit(connection: object) -> TypeGuard[psycopg.Connection[Any]]:
    """Return whether this is a connection for `call_and_commit`, which psycopg would let commit now."""
    return (
        isinstance(connection, psycopg.Connection)
        and connection.pgconn.transaction_status in BEGUN
        and connection.pgconn.pipeline_status == pq.PipelineStatus.OFF
        and not connection.autocommit
        # In a block of `connection.transaction()`, and in a two-phase transaction, psycopg refuses a COMMIT.
        and not connection._num_transactions
        and not connection._tpc
    )


def may_append(connection: object) -> TypeGuard[psycopg.Connection[Any]]:
    """Return whether a connection is for `append_and_commit`, as far as is known without a question."""
    if not may_commit(connection) or keeps_its_snapshot(connection) or connection.read_only:
        return False
    is_begun = connection.pgconn.transaction_status == pq.TransactionStatus.INTRANS
    if not is_begun and (connection.read_only, connection.deferrable) != (None, None):
        return False  # its BEGIN says more than ours
    return _habits.setdefault(connection, _Habits()).avoids_until < time.monotonic()


def has_deferrable_constraints(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the user's tables have any: `append_and_commit` is for databases without them."""
    found: bool = query(connection, DEFERRABLE)[0][0]
    return found


def keeps_its_snapshot(connection: object) -> bool:
    """Return whether the user has set a level above READ COMMITTED for a connection. A statement may also have done so."""
    return isinstance(connection, psycopg.Connection) and connection.isolation_level not in BEGIN


def append_and_commit(connection: psycopg.Connection[Any], batches: Sequence[BatchColumns], *, words: str) -> bool | None:
    """Append records in the SQL transaction of a user's connection, commit that, and notify waiting consumers with `words`.

    Returns whether the notification succeeded. None: nothing was done, and the transaction goes on; it is above READ
    COMMITTED, or something is staged in it already. Its connection avoids this then, as its next ones may be no other.
    Raise as `call_and_commit`.
    """
    try:
        found = _run(connection, calls.APPEND_AT_COMMIT, (batch_array(connection, batches),), words)
    except UnicodeEncodeError:  # of a value, before anything was sent: the other way says so
        return None
    if isinstance(found, psycopg.Error) and found.diag.column_name == STAGED:
        _habits[connection].avoids_until = time.monotonic() + AVOIDED_SECONDS
        return None
    return _told(found, connection)


def call_and_commit(connection: psycopg.Connection[Any], function: Function[Any], *arguments: object, words: str) -> bool:
    """Call a function in the SQL transaction of a user's connection, commit that, and notify waiting consumers.

    Returns whether the notification succeeded. Raise msgtx's error for one of the function: then nothing was done, and the
    transaction is to be rolled back. Raise psycopg's of anything else, as a COMMIT does.
    """
    return _told(_run(connection, function, arguments, words), connection)


def _run(
    connection: psycopg.Connection[Any], function: Function[Any], arguments: Sequence[object], words: str
) -> psycopg.Error | bool:
    statements = _Committing(connection, _habits.setdefault(connection, _Habits()))
    with connection.lock:
        return connection.wait(statements.call_and_commit(function.statement, arguments, words))


def _told(found: psycopg.Error | bool, connection: psycopg.Connection[Any]) -> bool:
    if isinstance(found, bool):
        return found
    translated = translate(found, connection)
    if translated is found:
        raise found
    raise translated from found


_habits: "Final[weakref.WeakKeyDictionary[psycopg.Connection[Any], _Habits]]" = weakref.WeakKeyDictionary()
