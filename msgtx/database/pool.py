"""Connections to PostgreSQL: the only place that commits.

Hot calls run on autocommitted psycopg connections from one pool, each a single statement and so a single SQL transaction.
Slower work that needs several statements uses `Engine.transaction()`.
"""

import contextlib
import functools
import logging
import math
import os
import queue
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import psycopg

from msgtx import errors, forks
from msgtx.closing import Closing
from msgtx.database import address
from msgtx.database.calls import query
from msgtx.database.connection import ANSWER_SECONDS, Connection, seconds_left
from msgtx.database.moves import tell_of_move
from msgtx.database.outages import Outages
from msgtx.database.translation import READ_ONLY, translated
from msgtx.settings import OnFailover

if TYPE_CHECKING:
    import sqlalchemy

log = logging.getLogger("msgtx.database")

POOL_SIZE: Final = 10  # connections of one client; producers and consumers borrow one for the length of a call
POOL_TIMEOUT_SECONDS: Final = 30.0
# How long a connection to a pooler is used, which may lead it to another primary: each new one asks who answers.
POOLED_SECONDS: Final = 1.0
ASKED_AGAIN_SECONDS: Final = 60.0  # behind the last answer to who answers: by then COMMITs may wait for a standby, or not
# A server that died without a word is noticed after about these seconds, not after the two hours of the system's default.
KEEPALIVES: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
IS_STANDBY: Final = "select pg_catalog.pg_is_in_recovery()"
# After a refusal as read-only: whether that passes. The server is a standby, or was promoted a moment ago.
PASSES: Final = f"{IS_STANDBY} or pg_catalog.current_setting('transaction_read_only') = 'off'"
# The questions to a new connection; there need not be a schema before an incarnation is expected.
# A role may be set to hear no warnings; a COMMIT that no standby has confirmed is known by one (`Connection`).
_HEARS: Final = (
    "case pg_catalog.current_setting('client_min_messages') when 'error'"
    " then pg_catalog.set_config('client_min_messages', 'warning', false) end"
)
SESSION: Final = f"select pg_catalog.pg_backend_pid(), null, null, null, null, {_HEARS}"
SESSION_AND_SERVER: Final = (
    "select pg_catalog.pg_backend_pid(), i.incarnation, s.system_identifier, s.timeline, s.is_synchronous,"  # noqa: S608
    f" {_HEARS} from msgtx.describe_installation() i cross join msgtx.identify_server() s"
)
# Reasons of `DatabaseUnavailable`: the connection led to one.
OLD_PRIMARY: Final = "old primary"
STANDBY: Final = "standby"


@contextlib.contextmanager
def _primary(connection: Connection) -> Iterator[None]:
    """Give a connection up whose server has become a standby: another attempt finds the primary (the session may survive).

    A server that is read-only for another reason stays so: raise `ConfigError`.
    """
    try:
        yield
    except Exception as error:
        if not _says_read_only(error) or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raise
        connection.autocommit = True
        if query(connection, PASSES) != [(True,)]:
            raise
        connection.close()
        connection.given_up()
        raise errors.DatabaseUnavailable(
            "the server is a standby (now), and takes no writes: connect to the primary; with several hosts in the URL,"
            " target_session_attrs=read-write finds it",
            reason=STANDBY,
        ) from error


def _says_read_only(error: BaseException | None) -> bool:
    while error is not None and error is not error.__cause__:
        original = getattr(error, "orig", None) or error
        if isinstance(original, psycopg.Error):
            return original.sqlstate == READ_ONLY
        error = error.__cause__
    return False


class _Slot:
    """The right to use one connection. Its user puts it back; one that an interrupt has lost comes back by itself."""

    __slots__ = ("_free",)

    def __init__(self, free: "weakref.ref[queue.SimpleQueue[_Slot]]") -> None:
        self._free = free

    def __del__(self) -> None:
        if (free := self._free()) is not None:
            free.put(_Slot(self._free))


class Engine(Closing):
    """A pool of connections to one database.

    `url`: any address for libpq. `embedded`: whether it is the embedded server's. `connect` replaces `Connection.connect`
    (tests use it to count and to break the boundary to the database). `silence`: how long a call waits for a sign of life,
    unless `until` says otherwise.

    `hook`: for tests, None else. It is called with "connect" before a connection is opened, with "check out" before one of
    the pool is taken, with "before NAME" and "after NAME" around each call of a function. What it raises, the caller gets.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = POOL_SIZE,
        embedded: bool = False,
        connect: Callable[..., Connection] = Connection.connect,
        silence: float = ANSWER_SECONDS,
    ) -> None:
        self.parameters = address.parse(url)
        self.url = url
        self.embedded = embedded  # whether the server is the embedded one
        self.silence = silence
        self.hook: Callable[[str], None] | None = None
        self.outages = Outages()
        self.outage_timeout: float | None = None  # seconds, of calls that are repeated; None: as long as it takes
        self.connect = connect
        self._incarnation: uuid.UUID | None = None
        self.hosts = address.Hosts(self.parameters)
        self.server: tuple[int, int] | None = None  # system identifier and timeline of the last primary that answered
        self.on_failover: OnFailover = "trust"
        self.moved: Callable[[], Callable[[], None] | None] = lambda: None  # a weak reference to a function: called then
        self._was_synchronous = False  # whether its acknowledgements waited for a standby
        self._failed_over: errors.FailedOver | None = None
        self._moving = threading.Lock()  # for these three
        self._asked = math.inf  # when a primary last said who it is, by `time.monotonic`
        self.standby: Engine | None = None  # that of a standby, which answers what only reads
        self.origin = forks.here()
        self._closed = False
        self.pool_size = pool_size
        # A library's pool takes longer than the rest of a call in Python, and knows one timeout, no call's deadline.
        self._slots: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
        for _ in range(pool_size):
            self._slots.put(_Slot(weakref.ref(self._slots)))
        self._idle: list[Connection] = []  # the one that was used last at the end
        # An engine that nobody has closed leaves no connection open, and no warning.
        weakref.finalize(self, _close_each, self._idle).atexit = False
        self.pooled = False  # whether a pooler stands between us and the server, as far as connections have shown

    @property
    def reading(self) -> "Engine":
        """The engine for what only reads, and may be answered by a standby: this one if none is named."""
        return self.standby or self

    def dedicated(self) -> Connection:
        """Open a connection outside the pool, autocommitting; the caller closes it.

        An outage goes to the log once the client is made: before that, its caller gets the error at once.
        """
        self._require_usable()
        try:
            connection = self._opened()
        except errors.DatabaseUnavailable as error:
            if self.incarnation is not None:
                self.outages.failed(self, error)
            raise
        self.outages.answered(self)
        return connection

    def _opened(self) -> Connection:
        if self.hook is not None:
            self.hook("connect")
        for _ in range(1, self.hosts.count):
            try:
                return self._connected()
            except errors.DatabaseUnavailable as error:
                if error.reason != OLD_PRIMARY:
                    raise
        return self._connected()

    def _connected(self) -> Connection:
        """Connect to the first host that takes the connection. Raise `DatabaseUnavailable` if that is an old primary."""
        # The address may say otherwise, except for the encoding: with the role's own, some names could not be sent.
        ours = {"application_name": f"msgtx {os.getpid()}", **KEEPALIVES}  # `doctor` and people find the process by it
        options = {name: value for name, value in ours.items() if name not in self.parameters}
        with translated():
            connection = self.connect(
                address.conninfo(self.hosts.ordered()), autocommit=True, client_encoding="utf8", **options
            )
        forks.cut_off(connection)
        try:
            with translated():
                place = (connection.info.host, connection.info.port)
            connection.silence, connection.hook = self.silence, self.hook
            connection.given_up = functools.partial(self.hosts.failed, *place)
            self.ask_who_answers(connection)
        except BaseException as error:
            connection.close()
            if getattr(error, "reason", None) == OLD_PRIMARY:
                self.hosts.failed(*place, is_passed=True)
            raise
        self.hosts.answered(*place)
        return connection

    def expect(self, incarnation: uuid.UUID) -> None:
        """Refuse connections to another incarnation from now on: each new one is asked."""
        self._incarnation = incarnation

    def begin_with(self, connection: Connection, incarnation: uuid.UUID) -> None:
        """Expect this incarnation, and remember the primary that answers on this connection."""
        self.expect(incarnation)
        self.ask_who_answers(connection)

    @property
    def incarnation(self) -> uuid.UUID | None:
        """The one that is expected."""
        return self._incarnation

    @property
    def failed_over(self) -> errors.FailedOver | None:
        """Why the client has stopped: another primary has answered, and `on_failover` is `stop`."""
        return self._failed_over

    def _require_usable(self) -> None:
        """Raise `IllegalState` in a forked process, `FailedOver` after the client has stopped."""
        self.origin.require("this client")
        if self.failed_over is not None:
            raise errors.fresh(self.failed_over)

    def cause_of(self, error: errors.MsgtxError) -> errors.MsgtxError:
        """Return `IncarnationChanged` or `FailedOver` if that is why a call was refused, else its own error."""
        try:
            self.dedicated().close()  # a new connection asks
        except (errors.IncarnationChanged, errors.FailedOver) as changed:
            return changed
        except errors.MsgtxError:
            pass
        return error

    def ask_who_answers(self, connection: Connection) -> None:
        """Notice a pooler and a failover. Refuse another incarnation, and an old primary: in one round trip."""
        expected = self.incarnation
        (row,) = query(connection, SESSION if expected is None else SESSION_AND_SERVER)
        session, found, system, timeline, is_synchronous, _ = row
        # With a pooler in between, another session may answer than the one that said hello.
        self.pooled = self.pooled or session != connection.info.backend_pid
        # Then each call may reach another session, without our prepared statements.
        connection.prepare_threshold = None if self.pooled else 0
        if found != expected:
            raise self.of_another(found, expected)
        if timeline is not None:
            self._require_newest(connection, (system, timeline), is_synchronous=is_synchronous)

    def of_another(self, found: uuid.UUID | None, expected: uuid.UUID | None) -> errors.IncarnationChanged:
        """Return the error for a connection that has led to another incarnation."""
        return errors.IncarnationChanged(
            f"the database is another one since a failover or a restore (incarnation {found}, not {expected})"
        )

    def _require_newest(self, connection: Connection, place: tuple[int, int], *, is_synchronous: bool) -> None:
        """Notice a failover, and refuse an old primary. `place`: system identifier and timeline of a server with writes."""
        with self._moving:
            seen, was_synchronous = self.server, self._was_synchronous
            if seen is not None and seen != place:
                self._require_to_follow(connection, seen, place)
            self.server, self._was_synchronous, self._asked = place, is_synchronous, time.monotonic()
        connection.server = place
        if seen is not None and seen != place:
            tell_of_move(log, seen, place, was_synchronous=was_synchronous)
            if (told := self.moved()) is not None:
                told()

    def _require_to_follow(self, connection: Connection, seen: tuple[int, int], found: tuple[int, int]) -> None:
        """Refuse an old primary, and with `on_failover=stop` any other one, from now on."""
        # No event lowers the timeline of a server; another one (pg_upgrade, a logical replica) may have a lower one.
        if seen[0] == found[0] and found[1] < seen[1]:
            with translated():
                host = f"{connection.info.host}:{connection.info.port}"
            raise errors.DatabaseUnavailable(
                f"the server at {host} is on timeline {found[1]}, and this client has been on timeline {seen[1]}: it is a"
                " primary of before a failover; stop it, or make it a standby (pg_rewind)",
                reason=OLD_PRIMARY,
            )
        if self.on_failover == "stop":
            self._failed_over = errors.FailedOver(
                f"another primary answers (server {found[0]}, timeline {found[1]}) than this client began with (server"
                f" {seen[0]}, timeline {seen[1]}), and on_failover is stop"
            )
            raise errors.fresh(self._failed_over)

    def is_current(self, connection: Connection) -> bool:
        """Return whether a connection leads to the primary that answered last, as far as is known."""
        return connection.server is None or connection.server == self.server

    def _is_usable(self, connection: Connection) -> bool:
        if connection.closed or connection.has_news or not self.is_current(connection):
            return False
        return not self.pooled or time.monotonic() - connection.opened_at < POOLED_SECONDS

    def connection(self) -> "CheckedOut":
        """Check out an autocommitting connection for the length of a call. A broken one leaves the pool."""
        return CheckedOut(self)

    def _check_out(self) -> Connection:
        """Take the connection that was used last, if it still lives, or open one. The caller has a slot."""
        while (idle := self._take_idle()) is not None:
            if self._is_usable(idle) and self._still_answers(idle):
                return idle
            idle.close()
        return self.dedicated()

    def _take_idle(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:  # there is none, or another thread was faster
            return None

    def _still_answers(self, idle: Connection) -> bool:
        """Ask an idle connection who answers if none was asked lately. Return whether it can be used."""
        now = time.monotonic()
        if now < self._asked + ASKED_AGAIN_SECONDS:
            return True
        self._asked = now  # one thread asks
        try:
            with translated():
                self.ask_who_answers(idle)
        except errors.MsgtxError:  # a new connection raises what does not pass
            self._asked = -math.inf  # the other idle ones may lead there, too
            return False
        except BaseException:
            self._asked = -math.inf
            idle.close()
            raise
        return True

    def _check_in(self, connection: Connection) -> None:
        if connection.closed or not connection.autocommit or connection.pgconn.transaction_status != 0:
            connection.close()
        else:
            self._idle.append(connection)
        if self._closed:
            self._close_idle()

    def _close_idle(self) -> None:
        _close_each(self._idle)

    def _take_slot(self) -> _Slot:
        """Wait until there is a connection for us."""
        self._require_usable()
        try:
            return self._slots.get_nowait()
        except queue.Empty:
            pass
        seconds = min(POOL_TIMEOUT_SECONDS, seconds_left())
        try:
            return self._slots.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise errors.DatabaseUnavailable(
                f"all {self.pool_size} connections of the client's pool were busy for {seconds:.3g} s", reason="pool busy"
            ) from None

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[sqlalchemy.Connection]":
        """Run several statements in one SQL transaction; commit at the end, roll back on an exception.

        It has a connection of its own: only the schema's upgrade and checks of it use it, and only they need SQLAlchemy.
        """
        slot = self._take_slot()
        try:
            if len(self._idle) > self._slots.qsize() and (idle := self._take_idle()) is not None:
                idle.close()  # to leave room for this one
            with translated(), self._sqlalchemy().connect() as connection:
                driver: Any = connection.connection.driver_connection
                with _primary(driver):
                    driver.autocommit = False
                    driver.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # whatever the role's default is
                    with connection.begin():
                        yield connection
        finally:
            self._slots.put(slot)

    def _sqlalchemy(self) -> "sqlalchemy.Engine":
        import sqlalchemy

        return sqlalchemy.create_engine(
            "postgresql+psycopg://",
            creator=self.dedicated,
            poolclass=sqlalchemy.NullPool,
            pool_reset_on_return=None,
            use_native_hstore=False,  # a type that we do not use, asked for at the start
        )

    @contextlib.contextmanager
    def rolled_back(self) -> Iterator[Connection]:
        """Borrow a connection for a dry run: its work is rolled back at the end."""
        with self.connection() as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            with connection.transaction(force_rollback=True):
                yield connection

    def close(self) -> None:
        """Close the pool's connections; one that is checked out, when it is returned. Those of a parent process stay."""
        if self.origin.is_parent:
            return
        self._closed = True
        self._close_idle()
        if self.standby is not None:
            self.standby.close()


def _close_each(idle: list[Connection]) -> None:
    while idle:
        with contextlib.suppress(IndexError):  # another thread was faster
            idle.pop().close()


class CheckedOut:
    """A connection for the length of a call: see `Engine.connection`."""

    __slots__ = ("_connection", "_engine", "_slot")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Connection:
        """Wait for a connection. Raise `DatabaseUnavailable` if none is free in time."""
        engine = self._engine
        if engine.hook is not None:
            engine.hook("check out")
        self._slot = engine._take_slot()
        try:
            self._connection = engine._check_out()
        except BaseException:
            engine._slots.put(self._slot)
            del self._slot
            raise
        self._connection.hook = engine.hook
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Return the connection. Errors of the database become msgtx's."""
        engine, connection = self._engine, self._connection
        try:
            if error is not None:
                try:
                    with _primary(connection), translated():
                        raise error
                except BaseException as raised:
                    if raised is not error:
                        raise
            elif engine.outages.since is not None:
                engine.outages.answered(engine)
        finally:
            engine._check_in(connection)
            engine._slots.put(self._slot)
            del self._slot, self._connection
