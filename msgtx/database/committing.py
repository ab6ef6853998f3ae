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
FOR_SECONDS: Final = 60.0  # a connection is known, or avoided
BEGIN: Final = {  # by the level that the user has set for a connection
    None: b"begin",
    IsolationLevel.READ_UNCOMMITTED: b"begin isolation level read uncommitted",
    IsolationLevel.READ_COMMITTED: b"begin isolation level read committed",
}
BEGUN: Final = (pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS)  # idle: psycopg begins with a first statement


@dataclass(slots=True)
class _Habits:
    """What was seen of a connection: its prepared statements, whether it keeps them; whether it is for this, until when."""

    known: Known = field(default_factory=dict)
    keeps: bool = True
    is_for_it: bool = False
    until: float = 0.0


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
        return self._habits.keeps and super().keeps

    def call_and_commit(self, query: str, arguments: Sequence[object], words: str) -> PQGen[psycopg.Error | None]:
        """Call, commit and notify. Returns the error that the call raised; then the SQL transaction goes on from before it.

        Raise psycopg's error of anything else, as a COMMIT does.
        """
        results = yield from self._sent(query, arguments, words)
        failed = _failed(results)
        if failed is not None and failed.error_field(pq.DiagnosticField.SQLSTATE) == NOT_KNOWN:
            self._habits.keeps = False
            yield from self._back()
            results = yield from self._sent(query, arguments, words)
            failed = _failed(results)
        if failed is None:
            return None
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
        return results[: len(begins) + 3]  # no failure of the notification is one of the COMMIT

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
    """Return whether a connection is for `append_and_commit`, as far as is known; its database is asked now and then."""
    if not may_commit(connection) or keeps_its_snapshot(connection) or connection.read_only:
        return False
    is_begun = connection.pgconn.transaction_status == pq.TransactionStatus.INTRANS
    if not is_begun and (connection.read_only, connection.deferrable) != (None, None):
        return False  # its BEGIN says more than ours
    habits = _habits.setdefault(connection, _Habits())
    if habits.until < time.monotonic():
        habits.is_for_it = query(connection, DEFERRABLE) == [(False,)]
        habits.until = time.monotonic() + FOR_SECONDS
    return habits.is_for_it


def keeps_its_snapshot(connection: object) -> bool:
    """Return whether the user has set a level above READ COMMITTED for a connection. A statement may also have done so."""
    return isinstance(connection, psycopg.Connection) and connection.isolation_level not in BEGIN


def append_and_commit(connection: psycopg.Connection[Any], batches: Sequence[BatchColumns], *, words: str) -> bool:
    """Append records in the SQL transaction of a user's connection, commit that, and notify waiting consumers with `words`.

    Returns False if nothing was done, and the transaction goes on: it is above READ COMMITTED, or something is staged in it
    already. Its connection avoids this then, as its next ones may be no other. Raise as `call_and_commit`.
    """
    try:
        error = _run(connection, calls.APPEND_AT_COMMIT, (batch_array(connection, batches),), words)
    except UnicodeEncodeError:  # of a value, before anything was sent: the other way says so
        return False
    if error is not None and error.diag.column_name == STAGED:
        habits = _habits[connection]
        habits.is_for_it, habits.until = False, time.monotonic() + FOR_SECONDS
        return False
    _raise(error, connection)
    return True


def call_and_commit(connection: psycopg.Connection[Any], function: Function[Any], *arguments: object, words: str) -> None:
    """Call a function in the SQL transaction of a user's connection, commit that, and notify waiting consumers.

    Raise msgtx's error for one of the function: then nothing was done, and the transaction is to be rolled back. Raise
    psycopg's of anything else, as a COMMIT does.
    """
    _raise(_run(connection, function, arguments, words), connection)


def _run(
    connection: psycopg.Connection[Any], function: Function[Any], arguments: Sequence[object], words: str
) -> psycopg.Error | None:
    statements = _Committing(connection, _habits.setdefault(connection, _Habits()))
    with connection.lock:
        return connection.wait(statements.call_and_commit(function.statement, arguments, words))


def _raise(error: psycopg.Error | None, connection: psycopg.Connection[Any]) -> None:
    if error is not None:
        translated = translate(error, connection)
        if translated is error:
            raise error
        raise translated from error


_habits: "Final[weakref.WeakKeyDictionary[psycopg.Connection[Any], _Habits]]" = weakref.WeakKeyDictionary()
