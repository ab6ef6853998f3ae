"""Calls of functions and views, and the notifications and flushes that are sent with them."""

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg

from msgtx import errors
from msgtx.database.asyncpg import Asyncpg
from msgtx.database.connection import AsyncRawConnection, Connection, OnStandby, RawConnection
from msgtx.database.retry import past_conflicts
from msgtx.database.translation import translated
from msgtx.database.wire import AsyncCursor, BatchArray, BatchColumns, Cursor, numbered
from msgtx.declared.function import Function, Row
from msgtx.generated import calls

if TYPE_CHECKING:
    import sqlalchemy


def call(connection: RawConnection, function: Function[Row], *arguments: object) -> list[Row]:
    """Call a database function in one round trip. Returns its rows. Errors of the database are msgtx's.

    On a standby it is called again where replay has cancelled it.
    """
    if isinstance(connection, OnStandby) and connection.autocommit:
        return past_conflicts(lambda: _called(connection, function, arguments))
    return _called(connection, function, arguments)


def _called(connection: RawConnection, function: Function[Row], arguments: Sequence[object]) -> list[Row]:
    with translated(connection, call=function.name):
        if isinstance(connection, Connection) and connection.statements.usable:
            return function.rows(connection.statements.run(function.statement, arguments))
        if (of_async := of_async_session(connection)) is not None:
            return function.rows(_await(of_async, function.statement, arguments))
        cursor = Cursor(connection)
        cursor.execute(function.statement, arguments, prepare=True)
        return function.rows(cursor.fetchall())


def call_and_notify(
    connection: RawConnection, function: Function[Row], *arguments: object, words: str
) -> tuple[list[Row], bool]:
    """Call a function and notify listeners after its COMMIT: one round trip, but two SQL transactions.

    Returns its rows, and whether listeners were notified: not on a connection that keeps no statements. No failure of the
    notification is one of the call.
    """
    if isinstance(connection, Connection) and connection.statements.usable:
        with translated(connection, call=function.name):
            rows, is_notified = connection.statements.run_both(function.statement, arguments, NOTIFY_SOON, (words,))
        return function.rows(rows), is_notified
    return call(connection, function, *arguments), False


def call_and_flush(
    connection: RawConnection, function: Function[Row], *arguments: object, flush: Function[Any]
) -> list[Row]:
    """Call a function without a flush, and flush after its COMMIT: its locks are free during the flush.

    Raise `DatabaseUnavailable` if the second one failed: whether the first one lasts is not known then.
    """
    if not (isinstance(connection, Connection) and connection.statements.usable):
        found = call(connection, function, *arguments)
        call(connection, flush)
        return found
    with translated(connection, call=function.name):
        rows, is_flushed = connection.statements.run_both(function.statement, arguments, flush.statement, ())
    if not is_flushed:
        raise errors.DatabaseUnavailable(f"what {function.name} did could not be flushed")
    return function.rows(rows)


def call_together(
    connection: Connection, asked: Sequence[tuple[Function[Any], tuple[object, ...]]], sent: Callable[[], object]
) -> list[list[tuple[Any, ...]]]:
    """Call several functions in one SQL transaction. See `Statements.run_together`."""
    with translated(connection, call=asked[0][0].name):
        return connection.statements.run_together([(function.statement, arguments) for function, arguments in asked], sent)


def of_async_session(connection: object) -> AsyncRawConnection | Asyncpg | None:
    """Return a connection that is an async session's: `driver_of` hands it out under the name of the other kind.

    It is used inside SQLAlchemy's `greenlet_spawn` only, where calls look synchronous.
    """
    return connection if isinstance(connection, psycopg.AsyncConnection | Asyncpg) else None


def _await(connection: AsyncRawConnection | Asyncpg, statement: str, arguments: Sequence[object]) -> list[tuple[Any, ...]]:
    from sqlalchemy.util import await_only

    return await_only(_awaited(connection, statement, arguments))


async def _awaited(
    connection: AsyncRawConnection | Asyncpg, statement: str, arguments: Sequence[object]
) -> list[tuple[Any, ...]]:
    if isinstance(connection, Asyncpg):
        return await connection.rows(statement, arguments)
    cursor = AsyncCursor(connection)
    await cursor.execute(statement, arguments, prepare=True)
    return await cursor.fetchall() if cursor.description else []


def end_call(pipeline: psycopg.Pipeline) -> None:
    """End the SQL transaction of the calls before, without waiting for it: the next `sync` does.

    psycopg's own `sync` waits for the answers to everything; so only one call would ever be in flight. libpq documents
    its inner half; without it a call waits, and nothing else changes.
    """
    enqueue = getattr(pipeline, "_enqueue_sync", pipeline.sync)
    enqueue()


def _raised_anyway(record: logging.LogRecord) -> bool:
    """Suppress psycopg's second error for a lost pipeline connection."""
    return not str(record.msg).startswith("error ignored terminating")


logging.getLogger("psycopg").addFilter(_raised_anyway)


def query(connection: RawConnection, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
    """Run one statement of the `database` folder or over a view. Returns its rows."""
    with translated(connection):
        if (of_async := of_async_session(connection)) is not None:
            return _await(of_async, statement, arguments)
        cursor = Cursor(connection)
        cursor.execute(statement, arguments)
        return cursor.fetchall() if cursor.description else []


def prepare(connection: RawConnection, name: str, function: Function[Any]) -> None:
    """Have the session keep the call of a function under a name, for as long as it lasts."""
    query(connection, f"prepare {name} as {numbered(function.statement).decode()}")


def clock(connection: RawConnection) -> datetime:
    """Return the server's time."""
    time: datetime = query(connection, "select pg_catalog.clock_timestamp()")[0][0]
    return time


def select(
    connection: RawConnection,
    view: Literal["transactions", "partitions"],
    *,
    columns: Literal["*", "transactional_id, producer_id, state, opened_at"] = "*",
) -> list[dict[str, Any]]:
    """Return the rows of a view of msgtx, as dictionaries. For columns that are not asked for nothing is looked up."""
    with translated(connection), connection.transaction():
        cursor = Cursor(connection)
        # While there are no statistics its plan looks large, and to compile it takes a hundred times as long as to read it.
        cursor.execute("select pg_catalog.set_config('jit', 'off', true)")
        cursor.execute(f"select {columns} from msgtx.{view}")  # noqa: S608 - constants
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextlib.contextmanager
def savepoint(connection: RawConnection) -> Iterator[None]:
    """Roll back if the block fails; in a SQL transaction to a savepoint, so that it can continue."""
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        yield
        return
    with connection.transaction():
        yield


LISTEN: Final = "listen msgtx"
NOTIFY: Final = calls.NOTIFY_READERS.statement
# A notifying COMMIT waits for that of any other session of the cluster, flush and all. This one gives up then.
NOTIFY_SOON: Final = NOTIFY.replace("select ", "select pg_catalog.set_config('lock_timeout', '10ms', true), ")
# The role whose rights count, as in msgtx.caller(): the role that was set, else the session's.
CALLER: Final = "select coalesce(nullif(pg_catalog.current_setting('role'), 'none'), session_user)"
SEAT_AND_CALLER: Final = CALLER.replace("select ", "select msgtx.take_seat(), ")
SET_ROLE: Final = "select pg_catalog.set_config('role', %s, true)"
CURRENT_TRANSACTION: Final = "select pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8"
TRANSACTION_STATUS: Final = "select pg_catalog.pg_xact_status(%s::pg_catalog.int8::pg_catalog.text::pg_catalog.xid8)"
DEFAULT_ISOLATION: Final = "show default_transaction_isolation"
BATCH_TYPE: Final = "select 'msgtx.batch'::pg_catalog.regtype::pg_catalog.oid::pg_catalog.int8"
_batch_types: "weakref.WeakKeyDictionary[RawConnection, int]" = weakref.WeakKeyDictionary()


def batch_array(connection: RawConnection, batches: Sequence[BatchColumns]) -> BatchArray:
    """Return batches as a parameter for this connection; its database's number of the type is asked once."""
    oid = _batch_types.get(connection)
    if oid is None:
        oid = query(connection, BATCH_TYPE)[0][0]
        _batch_types[connection] = oid
    return BatchArray(oid, batches)


def driver_of(connection: "sqlalchemy.Connection") -> RawConnection:
    """Return the driver's connection of a user's connection, whose SQL transaction SQLAlchemy knows.

    Without that, a `connection.commit()` of the user's would do nothing. Raise `ConfigError` for another driver.
    """
    driver: Any = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection) and of_async_session(driver) is None:
        raise errors.ConfigError("msgtx needs a connection of psycopg 3: use postgresql+psycopg://", reason="driver")
    if not connection.in_transaction():
        connection.begin()  # as each statement of SQLAlchemy's own does
    return driver  # type: ignore[no-any-return]  # also of an async session, see there
