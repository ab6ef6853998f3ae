"""Connections to PostgreSQL: the only place that commits and translates errors.

Hot calls run on autocommitted psycopg connections from one pool, each a single statement and so a single SQL transaction.
Slower work that needs several statements uses `Engine.transaction()`.
"""

import contextlib
import logging
import os
import re
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import psycopg
import sqlalchemy
from psycopg import errors as pg
from sqlalchemy.pool import QueuePool
from sqlalchemy.util import await_only

from msgtx import errors
from msgtx.database import address, embedded
from msgtx.database.connection import ANSWER_SECONDS, Connection, readable, seconds_left
from msgtx.database.schema import privileges
from msgtx.database.wire import AsyncCursor, BatchArray, BatchColumns, Cursor

RawConnection = psycopg.Connection[Any]
AsyncRawConnection = psycopg.AsyncConnection[Any]
Lent = TypeVar("Lent")

POOL_SIZE: Final = 10  # connections of one client; producers and consumers borrow one for the length of a call
POOL_TIMEOUT_SECONDS: Final = 30.0
# A server that died without a word is noticed after about these seconds, not after the two hours of the system's default.
KEEPALIVES: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}

# SQLSTATEs of msgtx's own functions are "MX" and Kafka's number of the error; 74 and 75 are those of a leader's epoch.
BY_SQLSTATE: Final[dict[str, type[errors.MsgtxError]]] = {
    "MX001": errors.OffsetOutOfRange,
    "MX003": errors.UnknownTopicOrPartition,
    "MX010": errors.RecordTooLarge,
    "MX016": errors.NotCoordinator,
    "MX017": errors.InvalidTopic,
    "MX036": errors.TopicExists,
    "MX040": errors.ConfigError,
    "MX042": errors.InvalidRequest,
    "MX049": errors.InvalidProducerIdMapping,
    "MX050": errors.InvalidTransactionTimeout,
    "MX067": errors.CoordinatorFenced,
    "MX074": errors.IncarnationChanged,
    "MX075": errors.LogTruncated,
    "MX087": errors.InvalidRecord,
    "MX090": errors.ProducerFenced,
    "MX120": errors.TransactionAborted,
    "28000": errors.AuthorizationFailed,
    "28P01": errors.AuthorizationFailed,
    "55P03": errors.LockTimeout,
    "40P01": errors.LockTimeout,
    "40001": errors.LockTimeout,
    "22003": errors.InvalidRequest,
    "22P02": errors.InvalidRequest,
    "22021": errors.InvalidRequest,
    "22P05": errors.InvalidRequest,
    "23514": errors.ConfigError,
    "3D000": errors.ConfigError,
}
_NO_SCHEMA: Final = {"3F000", "42P01", "42883", "42704", "42703"}
_NAMED: Final = "MX000"  # the error's name is told as a column
_LACKS_A_RIGHT: Final = "42501"
_READ_ONLY: Final = "25006"
_CANCELED: Final = "57014"
_OUT_OF_MEMORY: Final = "53200"
_LOCK_TABLE: Final = "max_locks_per_transaction"  # a setting's name: never translated
_SERIALIZATION: Final = "40001"
_TOO_LARGE: Final = "54000"
_OF_AN_INDEX: Final = {"_bt_check_third_page", "index_form_tuple_context", "index_form_tuple"}  # never translated
_FULL: Final = re.compile("too many (connections|clients)|connection slots are reserved")  # a refused one has no SQLSTATE
# What a call says that was looking for a function by its number while an upgrade created it again: never translated texts.
_RENEWED: Final = re.compile(r"cache lookup failed|\bOID \d+")
_ENDED_BY_A_TIMEOUT: Final = {"25P03", "25P04"}  # idle_in_transaction_session_timeout, transaction_timeout


@dataclass(frozen=True, slots=True)
class Function:
    """A database function and the types of its arguments, by name; `statement` is the call."""

    name: str
    arguments: dict[str, str]
    flushed: bool = True

    statement: str = field(init=False)

    def __post_init__(self) -> None:
        """Write the SQL that calls it; not flushed: with synchronous_commit off for this one transaction."""
        # Names in full: the search_path is the user's, and may hold a type or a function of the same name.
        kinds = {name: kind if "." in kind else f"pg_catalog.{kind}" for name, kind in self.arguments.items()}
        values = {name: f"%s::{kind}" for name, kind in kinds.items()}
        source = ""
        if not self.flushed:
            # A value of the call needs the setting, so it comes first, whatever the planner makes of the join. After it, it
            # would take back the flush that the function itself may ask for.
            source = "(select pg_catalog.set_config('synchronous_commit', 'off', true) offset 0) relaxed(mode), lateral "
            name, value = values.popitem()
            values[name] = f"case relaxed.mode when 'off' then {value} end"
        call = f"msgtx.{self.name}({', '.join(f'{name} => {value}' for name, value in values.items())})"
        statement = f"select f.* from {source}{call} f"  # noqa: S608 - names are constants of this package, values are bound
        object.__setattr__(self, "statement", statement)


def call(connection: RawConnection, function: Function, *arguments: object) -> list[tuple[Any, ...]]:
    """Call a database function in one round trip. Returns its rows. Errors of the database are msgtx's."""
    with translated(connection):
        if (of_async := of_async_session(connection)) is not None:
            return await_only(_awaited(of_async, function.statement, arguments))
        cursor = Cursor(connection)
        cursor.execute(function.statement, arguments, prepare=True)
        return cursor.fetchall()


def of_async_session(connection: object) -> AsyncRawConnection | None:
    """Return a connection that is an async session's: `driver_of` hands it out under the name of the other kind.

    It is used inside SQLAlchemy's own calls of it only, which look synchronous from within.
    """
    return connection if isinstance(connection, psycopg.AsyncConnection) else None


async def _awaited(connection: AsyncRawConnection, statement: str, arguments: Sequence[object]) -> list[tuple[Any, ...]]:
    cursor = AsyncCursor(connection)
    await cursor.execute(statement, arguments, prepare=True)
    return await cursor.fetchall() if cursor.description else []


def end_call(pipeline: psycopg.Pipeline) -> None:
    """End the SQL transaction of the calls before, without waiting for it: the next `sync` does.

    psycopg's own `sync` waits for the answers to everything; so only one call would ever be in flight. Its inner half is
    what libpq documents; without it a call waits, and nothing else changes.
    """
    enqueue = getattr(pipeline, "_enqueue_sync", pipeline.sync)
    enqueue()


def _raised_anyway(record: logging.LogRecord) -> bool:
    """Keep psycopg from saying, when a pipeline's connection is lost, what the call that lost it raises already."""
    return not str(record.msg).startswith("error ignored terminating")


logging.getLogger("psycopg").addFilter(_raised_anyway)


def query(connection: RawConnection, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
    """Run one statement of the `database` folder or over a view. Returns its rows."""
    with translated(connection):
        if (of_async := of_async_session(connection)) is not None:
            return await_only(_awaited(of_async, statement, arguments))
        cursor = Cursor(connection)
        cursor.execute(statement, arguments)
        return cursor.fetchall() if cursor.description else []


def clock(connection: RawConnection) -> datetime:
    """Return the server's time."""
    time: datetime = query(connection, "select pg_catalog.clock_timestamp()")[0][0]
    return time


def select(
    connection: RawConnection,
    view: Literal["transactions", "partitions"],
    column: Literal["transactional_id", "producer_id"] | None = None,
    value: object = None,
    *,
    columns: Literal["*", "transactional_id, producer_id, state, opened_at"] = "*",
) -> list[dict[str, Any]]:
    """Return rows of a view of msgtx, as dictionaries: all, or those with this value in a column that is looked up.

    Of columns that are not asked for the database looks nothing up.
    """
    condition = "" if column is None else f" where {column} = %s"
    with translated(connection), connection.transaction():
        cursor = Cursor(connection)
        # While there are no statistics its plan looks large, and to compile it takes a hundred times as long as to read it.
        cursor.execute("select pg_catalog.set_config('jit', 'off', true)")
        cursor.execute(
            f"select {columns} from msgtx.{view}{condition}",  # noqa: S608 - constants
            () if column is None else (value,),
        )
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextlib.contextmanager
def savepoint(connection: RawConnection) -> Iterator[None]:
    """Take back what fails inside: a call by itself, or, in a SQL transaction, to a savepoint, so that others may follow."""
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        yield
        return
    with connection.transaction():
        yield


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


def translate(error: Exception, connection: RawConnection | None = None) -> Exception:
    """Return the msgtx error for an error of psycopg or SQLAlchemy. `connection`: the one that raised it, if it is known."""
    original = getattr(error, "orig", None) or error
    if not isinstance(original, psycopg.Error):
        return error
    state = original.sqlstate or ""
    text = (original.diag.message_primary or str(original)).strip().splitlines()
    message = text[0] if text else type(original).__name__
    if state in {"42883", "XX000"} and _RENEWED.search(message):
        return errors.DatabaseUnavailable(f"the functions were renewed during the call ({message})")
    if state in _NO_SCHEMA:
        return errors.ConfigError(
            f"the database has no (complete) msgtx schema: {message}; run `msgtx db init`, or `msgtx db upgrade`"
        )
    if state == _READ_ONLY:
        return errors.ConfigError(
            f"the database is read-only ({message}); connect to the primary, not to a replica, or turn"
            " default_transaction_read_only off for this role and database"
        )
    if state == _OUT_OF_MEMORY and _LOCK_TABLE in (original.diag.message_hint or ""):
        return errors.LockTableFull(f"{message}: the lock table has no place left")
    if state == _CANCELED:
        return errors.LockTimeout(
            f"{message}; if it comes again, statement_timeout of this role and database is too short for msgtx"
        )
    if state == _LACKS_A_RIGHT:
        role = "ROLE" if connection is None or connection.closed else connection.info.user
        return errors.AuthorizationFailed(_told_what_to_grant(message, role))
    if state == _SERIALIZATION and connection is not None and not isinstance(connection, Connection):
        # The user's own SQL transaction, which only the user can repeat: it fails as with a statement of the user's.
        return sqlalchemy.exc.DBAPIError.instance(None, None, original, psycopg.Error)
    if state == _TOO_LARGE and original.diag.source_function in _OF_AN_INDEX:
        return errors.InvalidRequest(f"a name is too long: {message}")
    if not state and isinstance(original, psycopg.DataError):
        return errors.InvalidRequest(message)  # psycopg cannot say it: a NUL character in a text
    if state in BY_SQLSTATE:
        return BY_SQLSTATE[state](message)
    if state == _NAMED:
        return errors.BY_NAME[original.diag.column_name or ""](message)
    # Without a state, the connection itself failed. Other states of psycopg's OperationalError are no passing condition:
    # a retry of "object not in prerequisite state" would only hide a bug until time is over.
    lost = not state and isinstance(original, pg.OperationalError | psycopg.InterfaceError)
    if lost or state[:2] in {"08", "53", "57", "58"} or state in _ENDED_BY_A_TIMEOUT:
        if "authentication failed" in message or "no password supplied" in message:
            return errors.AuthorizationFailed(message)
        if 'database "' in message and "does not exist" in message:
            return errors.ConfigError(message)
        if _FULL.search(message):
            message += (
                "; have the limit raised (of the role, the database or the server), or give clients a smaller pool_size"
            )
        return errors.DatabaseUnavailable(message)
    return error


def _told_what_to_grant(message: str, role: str) -> str:
    """Add to PostgreSQL's own refusals what the owner runs; in every language they name what was asked for."""
    known = set(re.findall(r"\w+", message)) & privileges.MANAGED
    if "`" in message or not known:
        return message
    rights = privileges.rights_on(min(known))
    if not rights:
        return f"{message}: only the owner of the schema may"
    return f"{message}: the owner of the schema gives the right with `msgtx db grant --role {role} --can {'|'.join(rights)}`"


@contextlib.contextmanager
def translated(connection: RawConnection | None = None) -> Iterator[None]:
    """Translate database errors raised inside, in the one place where that is done."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise errors.InvalidRequest(f"{error.object[:50]!r} is no valid UTF-8") from error
    except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
        other = translate(error, connection)
        if other is error:
            raise
        raise other from error


IS_STANDBY: Final = "select pg_catalog.pg_is_in_recovery()"
# What a new connection is asked; there need not be a schema before an incarnation is expected.
SESSION: Final = "select pg_catalog.pg_backend_pid(), null"
SESSION_AND_INCARNATION: Final = "select pg_catalog.pg_backend_pid(), i.incarnation from msgtx.describe_installation() i"


def _refuse_ended(connection: RawConnection, *_: object) -> None:
    """Have the pool replace a connection that the server has ended while it was idle, before a call meets it.

    To an idle connection nothing comes but its end (or a changed setting, seldom): a look at the socket is enough.
    """
    if connection.closed:
        raise sqlalchemy.exc.DisconnectionError("closed")
    if readable([connection.pgconn.socket], 0):
        raise sqlalchemy.exc.DisconnectionError("the server has ended it")


def driver_of(connection: sqlalchemy.Connection) -> RawConnection:
    """Return the driver's connection behind one of the user's, which is in a SQL transaction that SQLAlchemy knows.

    Without that, a `connection.commit()` of the user's would do nothing. Raise `ConfigError` for another driver.
    """
    driver: Any = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection) and of_async_session(driver) is None:
        raise errors.ConfigError("msgtx needs a connection of psycopg 3: use postgresql+psycopg://")
    if not connection.in_transaction():
        connection.begin()  # as each statement of SQLAlchemy's own does
    return driver  # type: ignore[no-any-return]  # also of an async session, see there


@contextlib.contextmanager
def _primary(connection: RawConnection) -> Iterator[None]:
    """Give a connection up whose server has become a standby: another attempt finds the primary (the session may survive).

    A server that is read-only for another reason stays so: that is `ConfigError`.
    """
    try:
        yield
    except (errors.ConfigError, psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
        if not _says_read_only(error) or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raise
        connection.autocommit = True
        if query(connection, IS_STANDBY) != [(True,)]:
            raise
        connection.close()
        raise errors.DatabaseUnavailable(
            "the server is a standby (now), and takes no writes: connect to the primary; with several hosts in the URL,"
            " target_session_attrs=read-write finds it"
        ) from error


def _says_read_only(error: BaseException | None) -> bool:
    while error is not None:
        original = getattr(error, "orig", None) or error
        if isinstance(original, psycopg.Error):
            return original.sqlstate == _READ_ONLY
        error = error.__cause__
    return False


class Engine:
    """A pool of connections to one database.

    `url` is any address that libpq takes; `embedded` says whose server it is. `connect` replaces `Connection.connect` (tests
    use it to count and to break the boundary to the database). `silence`: how long a call waits for a sign of life, unless
    `until` says otherwise.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = POOL_SIZE,
        embedded: bool = False,
        connect: Callable[..., RawConnection] = Connection.connect,
        silence: float = ANSWER_SECONDS,
    ) -> None:
        self.parameters = address.parse(url)
        self.url = url
        self.embedded = embedded  # whether the server is the embedded one
        self.silence = silence
        self._connect = connect
        self._incarnation: uuid.UUID | None = None
        self._pid = os.getpid()
        self._closed = False
        self.pool_size = pool_size
        self._slots = threading.BoundedSemaphore(pool_size)  # SQLAlchemy's pool knows one timeout, not a call's deadline
        self.pooled = False  # whether a pooler stands between us and the server, as far as connections have shown
        self.sqlalchemy = sqlalchemy.create_engine(
            "postgresql+psycopg://",
            creator=self.dedicated,
            poolclass=QueuePool,
            pool_size=pool_size,
            max_overflow=0,
            pool_reset_on_return=None,
            use_native_hstore=False,  # a type that we do not use, asked for at the start
        )
        sqlalchemy.event.listen(self.sqlalchemy, "checkout", _refuse_ended)

    def dedicated(self) -> RawConnection:
        """Open a connection outside the pool, autocommitting; the caller closes it."""
        # The address may say otherwise, but for the encoding: what the role has set could not say every name.
        ours = {"application_name": f"msgtx {os.getpid()}", **KEEPALIVES}  # `doctor` and people find the process by it
        options = {name: value for name, value in ours.items() if name not in self.parameters}
        with translated():
            connection = self._connect(address.conninfo(self.parameters), autocommit=True, client_encoding="utf8", **options)
        if isinstance(connection, Connection):
            connection.silence = self.silence
        try:
            self._ask_who_answers(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def expect(self, incarnation: uuid.UUID) -> None:
        """Refuse connections to another incarnation from now on: each new one is asked."""
        self._incarnation = incarnation

    @property
    def incarnation(self) -> uuid.UUID | None:
        """The one that is expected."""
        return self._incarnation

    def cause_of(self, error: errors.MsgtxError) -> errors.MsgtxError:
        """Return `IncarnationChanged` if that is why a call was refused, else its own error."""
        try:
            self.dedicated().close()  # a new connection asks
        except errors.IncarnationChanged as changed:
            return changed
        except errors.MsgtxError:
            pass
        return error

    def _ask_who_answers(self, connection: RawConnection) -> None:
        """Notice a pooler, refuse another incarnation: in one round trip."""
        expected = self._incarnation
        ((session, found),) = query(connection, SESSION if expected is None else SESSION_AND_INCARNATION)
        # With a pooler in between, the session that answers is not the one that said hello.
        self.pooled = self.pooled or session != connection.info.backend_pid
        # Then each call may meet another one, which knows no statement that we prepared.
        connection.prepare_threshold = None if self.pooled else 0
        if found != expected:
            raise errors.IncarnationChanged(
                f"the database is another one since a failover or a restore (incarnation {found}, not {expected})"
            )

    @contextlib.contextmanager
    def connection(self) -> Iterator[RawConnection]:
        """Borrow an autocommitting connection for the length of a call. A broken one leaves the pool."""
        with self._slot():
            with translated():  # the pool's first connection says more than hello
                proxied = _lent(self.sqlalchemy.pool.connect)
            connection: RawConnection = proxied.dbapi_connection  # type: ignore[assignment]  # the pool's creator made it
            healthy = False
            try:
                with _primary(connection), translated():
                    yield connection
                healthy = True
            finally:
                # To a pool that was closed meanwhile nothing comes back: nobody would close it.
                if connection.closed or self._closed or (not healthy and connection.info.transaction_status != 0):
                    proxied.invalidate()
                proxied.close()

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        """Wait until the pool has a connection for us."""
        if self._pid != os.getpid():
            raise errors.IllegalState("this client was made before a fork; make a new one in the child process")
        seconds = min(POOL_TIMEOUT_SECONDS, seconds_left())
        if not self._slots.acquire(timeout=seconds):
            raise errors.DatabaseUnavailable(
                f"all {self.pool_size} connections of the client's pool were busy for {seconds:.3g} s"
            )
        try:
            yield
        finally:
            self._slots.release()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlalchemy.Connection]:
        """Run several statements in one SQL transaction; commit at the end, roll back on an exception.

        A broken connection leaves the pool.
        """
        with self._slot(), translated(), _lent(self.sqlalchemy.connect) as connection:
            driver: Any = connection.connection.driver_connection
            try:
                with _primary(driver):
                    driver.autocommit = False
                    driver.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # whatever the role's default is
                    with connection.begin():
                        yield connection
            finally:
                if driver.closed or self._closed:
                    connection.invalidate()
                else:
                    driver.autocommit = True

    @contextlib.contextmanager
    def rolled_back(self) -> Iterator[RawConnection]:
        """Borrow a connection for work that is taken back at the end: what it would do, and nothing is done."""
        with self.connection() as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            with connection.transaction(force_rollback=True):
                yield connection

    def close(self) -> None:
        """Close the pool's connections; one that is lent, as it comes back."""
        self._closed = True
        self.sqlalchemy.dispose()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def open_engine(url: str | None = None, *, pool_size: int = POOL_SIZE) -> Engine:
    """Return an engine for a URL, else for that in `MSGTX_DATABASE_URL`, else for the embedded server, which it starts."""
    given = url or os.environ.get("MSGTX_DATABASE_URL")
    if given:
        return Engine(given, pool_size=pool_size)
    return Engine(embedded.start().url, pool_size=pool_size, embedded=True)


def _lent(lend: Callable[[], Lent]) -> Lent:
    """Have the pool lend a connection. One that has died it replaces, but not for ever."""
    try:
        return lend()
    except sqlalchemy.exc.InvalidRequestError as error:
        raise errors.DatabaseUnavailable("the server ended one connection after the other") from error
