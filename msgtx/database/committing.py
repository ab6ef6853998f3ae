"""A user's COMMIT, sent together with the call that writes records just before it: one round trip for both.

The call holds the locks of its partitions to the end of the COMMIT, and no client's turn is between the two.
"""

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import IsolationLevel, pq
from psycopg.abc import PQGen
from psycopg.errors import error_from_result

from msgtx.database.calls import NOTIFY_SOON, batch_array
from msgtx.database.translation import translate
from msgtx.database.wire import BatchColumns, Known, Statements
from msgtx.generated import calls

BEFORE: Final = (
    b"savepoint msgtx_at_commit",
    # What a user's own deferred trigger publishes stays staged, by this comment: the call sees it then.
    b"set constraints all immediate -- what msgtx has staged stays so",
)
COMMIT: Final = b"commit"
TO_SAVEPOINT: Final = b"rollback to savepoint msgtx_at_commit"
NOT_KNOWN: Final = b"26000"  # a prepared statement
STAGED: Final = b"IllegalState: staged"  # as append_at_commit refuses what is not its case
AVOIDED_SECONDS: Final = 60.0
BEGIN: Final = {  # by the level that the user has set for a connection
    None: b"begin",
    IsolationLevel.READ_UNCOMMITTED: b"begin isolation level read uncommitted",
    IsolationLevel.READ_COMMITTED: b"begin isolation level read committed",
}
BEGUN: Final = (pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS)  # idle: psycopg begins with a first statement


@dataclass(slots=True)
class _Habits:
    """What was seen of a connection: its prepared statements, whether it keeps them, until when it avoids this way."""

    known: Known = field(default_factory=dict)
    keeps: bool = True
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
        return self._habits.keeps and super().keeps

    def append_and_commit(self, batches: Sequence[BatchColumns], words: str) -> PQGen[bool]:
        """See `append_and_commit`."""
        arguments = (batch_array(self._connection, batches),)
        results = yield from self._sent_with_commit(arguments, words)
        failed = _failed(results)
        if failed is not None and failed.error_field(pq.DiagnosticField.SQLSTATE) == NOT_KNOWN:
            self._habits.keeps = False
            yield from self._back()
            results = yield from self._sent_with_commit(arguments, words)
            failed = _failed(results)
        if failed is None:
            return True
        if failed.error_field(pq.DiagnosticField.COLUMN_NAME) == STAGED:
            self._habits.avoids_until = time.monotonic() + AVOIDED_SECONDS
            yield from self._back()
            return False
        error = error_from_result(failed, encoding=self._connection.info.encoding)
        raise translate(error, self._connection) if failed is results[-2] else error

    def _sent_with_commit(self, arguments: Sequence[object], words: str) -> PQGen[list[pq.abc.PGresult]]:
        pgconn = self._connection.pgconn
        append = yield from self._prepare(calls.APPEND_AT_COMMIT.statement, arguments)
        notify = yield from self._prepare(NOTIFY_SOON, (words,))
        pgconn.enter_pipeline_mode()
        before = [*BEFORE]
        if pgconn.transaction_status == pq.TransactionStatus.IDLE:
            before.insert(0, BEGIN[self._connection.isolation_level])
        for statement in before:
            pgconn.send_query_params(statement, None)
        self._send(append)
        pgconn.send_query_params(COMMIT, None)
        self._send(notify)
        pgconn.pipeline_sync()
        results = yield from self._results_until_sync()
        pgconn.exit_pipeline_mode()
        return results[: len(before) + 2]  # no failure of the notification is one of the COMMIT

    def _back(self) -> PQGen[None]:
        self._connection.pgconn.send_query_params(TO_SAVEPOINT, None)
        self._checked((yield from self._results()))


def _failed(results: Sequence[pq.abc.PGresult]) -> pq.abc.PGresult | None:
    return next((result for result in results if result.status == pq.ExecStatus.FATAL_ERROR), None)


def may_append(connection: object) -> bool:
    """Return whether this is a connection for `append_and_commit`, in a SQL transaction that `commit` would end now.

    One that was not, as its next SQL transactions may not be either, avoids the attempt for a while.
    """
    return (
        isinstance(connection, psycopg.Connection)
        and connection.isolation_level in BEGIN
        and (connection.read_only, connection.deferrable) == (None, None)
        and connection.pgconn.transaction_status in BEGUN
        and connection.pgconn.pipeline_status == pq.PipelineStatus.OFF
        and not connection.autocommit
        and not connection._num_transactions  # in a block of `connection.transaction()` psycopg refuses a COMMIT
        and _habits.setdefault(connection, _Habits()).avoids_until < time.monotonic()
    )


def append_and_commit(connection: psycopg.Connection[Any], batches: Sequence[BatchColumns]) -> bool:
    """Append records in the SQL transaction of a user's connection, commit that, and notify waiting consumers.

    Returns False if nothing was done, and the transaction goes on: it is above READ COMMITTED, or something is staged in it
    already. Raise the error of a refusal; of anything else psycopg's, as a COMMIT does. After one the transaction has
    failed, or the connection is lost.
    """
    batch_array(connection, batches)  # asks for the type once, which a pipeline could not
    words = ",".join(str(batch.partition_id) for batch in batches)
    statements = _Committing(connection, _habits.setdefault(connection, _Habits()))
    try:
        with connection.lock:
            return connection.wait(statements.append_and_commit(batches, words))
    except UnicodeEncodeError:  # of a value, before anything was sent: the other way says so
        return False


_habits: "Final[weakref.WeakKeyDictionary[psycopg.Connection[Any], _Habits]]" = weakref.WeakKeyDictionary()
