"""Databases that are thrown away: a template, copies of it, roles of a few rights, and a clock that can be set.

For tests of programs that use msgtx (`msgtx.testing`). Copying a template takes a fraction of the time of an installation.
"""

import contextlib
import secrets
import threading
import warnings
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg.pq import ExecStatus
from psycopg.sql import SQL, Composable, Identifier, Literal

from msgtx.database import address
from msgtx.errors import ConfigError, DatabaseUnavailable

NAMES_PREFIX: Final = "msgtx_test_"  # of databases, roles, and the session that each run keeps open
CREATE: Final = SQL("create database {name} owner {owner}")
COPY: Final = SQL("create database {name} owner {owner} template {template}")
COPY_FILES: Final = SQL("create database {name} owner {owner} template {template} strategy file_copy")
DROP: Final = SQL("drop database if exists {name} with (force)")
DROP_DESERTED: Final = SQL("drop database {name}")  # refused while a session is connected to it
ADMIT: Final = SQL("alter database {name} allow_connections {admitted}")
HOLDERS_LOOK_SECONDS: Final = 0.1  # between two looks for locks that others wait for
# A database with sessions cannot be copied. Autovacuum has no user: PostgreSQL ends it by itself, and only superusers may.
CONNECTED: Final = """
    select pid from pg_stat_activity where datname = %s and pid <> pg_backend_pid() and usesysid is not null
"""
END_SESSIONS: Final = f"select pg_terminate_backend(pid) from ({CONNECTED}) connected"  # noqa: S608 - a constant
# Sessions of a process that stands still. A lock of theirs that another one waits for ends them.
END_HOLDERS: Final = """
    select pg_terminate_backend(holder)
    from pg_stat_activity waiting cross join lateral unnest(pg_blocking_pids(waiting.pid)) holder
    where waiting.datname = %s and waiting.wait_event_type = 'Lock' and holder = any(%s)
"""
# A run keeps one session, whose application_name is the prefix of all that it makes.
DESERTED: Final = """
    select kind, name from (
        select 'database', datname from pg_database where pg_get_userbyid(datdba) in (current_user, %(owner)s)
        union all select 'role', rolname from pg_roles
    ) made (kind, name)
    where name ~ %(names)s and not exists (
        select from pg_stat_activity a where starts_with(name, a.application_name || '_') and a.application_name ~ %(prefix)s
    ) order by kind, name
"""
NAMES_PATTERN: Final = f"^{NAMES_PREFIX}[0-9a-f]{{12}}_(template|[0-9]+|role_[0-9]+)$"
PREFIX_PATTERN: Final = f"^{NAMES_PREFIX}[0-9a-f]{{12}}$"
# A copy of the template has given nothing out: its sequences need not skip ahead.
SETTLE: Final = "update msgtx.installation set sequences_system = null, sequences_database = null; select msgtx.note_place()"
# Its maker may SET ROLE to it: from PostgreSQL 16 on, who makes a role may only grant it.
CREATE_ROLE: Final = SQL("create role {name} login password {password} role current_user")
DROP_ROLE: Final = SQL("drop role if exists {name}")
MAY_CREATE: Final = """
    select rolname::text, rolsuper or rolcreatedb, rolsuper or rolcreaterole from pg_roles where rolname = current_user
"""
SET_CLOCK: Final = SQL("create or replace function msgtx.clock() returns timestamptz language sql volatile return {time}")
# How the questions of drivers begin, which only read unless they call a function that writes.
OF_DRIVERS: Final = (
    *("select pg_catalog.", "select current_schema", "select typname"),  # of SQLAlchemy, of psycopg
    *("select $1::pg_catalog.regtype", "select …::pg_catalog.regtype"),
)
LISTENER: Final = "listen msgtx"  # of the library, not of the user
# Functions that change nothing, and keywords that stand before a parenthesis as functions do. PostgreSQL's own are without
# their schema. It calls those listed here volatile since they read the server's state, or set that of a session.
READS: Final = """
    select case when pronamespace = 'msgtx'::regnamespace then 'msgtx.' else '' end || proname
    from pg_proc where pronamespace in ('msgtx'::regnamespace, 'pg_catalog'::regnamespace)
    group by pronamespace, proname
    having bool_and(provolatile <> 'v' or pronamespace = 'pg_catalog'::regnamespace and proname in (
        'clock_timestamp', 'set_config', 'pg_is_in_recovery', 'pg_last_wal_replay_lsn', 'pg_xact_status', 'pg_control_system'
    ))
    union all select word from pg_get_keywords() where catcode <> 'U'
"""
WITHOUT_FLUSHES: Final = (
    "alter system set fsync = off",
    "alter system set full_page_writes = off",
    "alter system set autovacuum = off",
    "select pg_reload_conf()",
)


class Throwaway:
    """A server on which databases come and go. `url`: of a role that may create databases; `owner`: who is to own them.

    Without `owner` that is the role itself. Raise `ConfigError` if the role may create none. `fast`: the server flushes
    nothing, so files are copied without a wait.
    """

    def __init__(self, url: str, owner: str | None = None, *, fast: bool = False) -> None:
        self.url = url
        self.prefix = NAMES_PREFIX + secrets.token_hex(6)
        self._parameters = address.parse(owner or url)
        self._copy = COPY_FILES if fast else COPY
        self._count = 0
        self._databases: dict[str, None] = {}
        self._roles: list[str] = []
        self._template: str | None = None
        self._lock = threading.Lock()
        self._kept = self._connect()
        try:
            self._user, may_create, self._may_create_roles = _row(self._kept.execute(MAY_CREATE))
            self._owner = self._parameters.get("user", self._user) if owner else self._user
            if not may_create:
                raise ConfigError(
                    f"role {self._user!r} may create no databases, and each test gets one:"
                    f" alter role {self._quoted_user()} createdb",
                    name="url",
                )
            self._remove_deserted()
        except BaseException:
            self._kept.close()
            raise

    def flush_nothing(self) -> None:
        """Have the server write nothing for good: it is faster, and a crash of the machine loses all. For a superuser."""
        with self._administrator() as connection:
            for statement in WITHOUT_FLUSHES:
                connection.execute(statement)

    @contextlib.contextmanager
    def making_template(self) -> Iterator[str]:
        """Make the database that others are copied from: the block fills it. Yields its URL."""
        name = f"{self.prefix}_template"
        self._databases[name] = None
        with self._administrator() as connection:
            connection.execute(CREATE.format(name=Identifier(name), owner=Identifier(self._owner)))
        self._template = name
        yield self._url(name)

    def copy(self, source: str | None = None) -> str:
        """Return the URL of a new copy of the template, or of another database, whose sessions it ends."""
        template = self._template if source is None else _database(source)
        assert template is not None, "the template comes first"
        with self._administrator() as connection:
            self._count += 1
            name = f"{self.prefix}_{self._count}"
            self._databases[name] = None
            with _left_alone(connection, template):
                connection.execute(
                    self._copy.format(name=Identifier(name), owner=Identifier(self._owner), template=Identifier(template))
                )
        settle(self._url(name))
        return self._url(name)

    @contextlib.contextmanager
    def ending_holders(self, url: str) -> Iterator[None]:
        """End those sessions of a database, of before the block, that hold a lock which others wait for within it.

        A server does so with a client that is silent, when its keepalives are not answered.
        """
        with self._administrator() as connection:
            before = [pid for (pid,) in connection.execute(CONNECTED, [_database(url)])]
        over = threading.Event()

        def watch() -> None:
            while not over.wait(HOLDERS_LOOK_SECONDS):
                # A test may crash the server in the block.
                with contextlib.suppress(psycopg.OperationalError, DatabaseUnavailable), self._administrator() as connection:
                    connection.execute(END_HOLDERS, [_database(url), before])

        watcher = threading.Thread(target=watch, name="msgtx-holders", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def drop(self, url: str) -> None:
        """Remove a database, and end the sessions that are connected to it."""
        with self._administrator() as connection:
            connection.execute(DROP.format(name=Identifier(_database(url))))
        self._databases.pop(_database(url), None)

    def create_role(self, url: str) -> tuple[str, str]:
        """Make a role without rights. Returns its name, and the URL with which it logs in to a database.

        Raise `ConfigError` if this role may create none.
        """
        if not self._may_create_roles:
            raise ConfigError(
                f"role {self._user!r} may create no roles: alter role {self._quoted_user()} createrole", name="url"
            )
        name, password = f"{self.prefix}_role_{len(self._roles) + 1}", secrets.token_hex(16)
        with self._administrator() as connection:
            connection.execute(CREATE_ROLE.format(name=Identifier(name), password=Literal(password)))
        self._roles.append(name)
        return name, address.whole_url({**address.parse(url), "user": name, "password": password})

    def close(self) -> None:
        """Remove the databases that are left, and the roles. Warn of what the server does not remove."""
        left = []
        made = [
            *(("database", name, DROP) for name in self._databases),
            *(("role", name, DROP_ROLE) for name in self._roles),
        ]
        with self._administrator() as connection:
            for kind, name, drop in made:
                try:
                    connection.execute(drop.format(name=Identifier(name)))
                except psycopg.Error as error:
                    left.append(f"{kind} {name} ({str(error).strip().splitlines()[0]})")
        self.leave()
        if left:
            warnings.warn(f"these stay on the server of the tests: {', '.join(left)}", stacklevel=2)

    def leave(self) -> None:
        """End the session that this run keeps: a later run then removes what this one has left."""
        self._kept.close()

    @contextlib.contextmanager
    def _administrator(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend the kept session, to one thread at a time; a new one after a crash of the server."""
        with self._lock:
            if self._kept.closed or self._kept.pgconn.exec_(b"").status != ExecStatus.EMPTY_QUERY:
                self._kept.close()
                self._kept = self._connect()
            yield self._kept

    def _connect(self) -> psycopg.Connection[Any]:
        return _connect(self.url, application_name=self.prefix)

    def _remove_deserted(self) -> None:
        """Remove what runs have left that were killed."""
        given = {"owner": self._owner, "names": NAMES_PATTERN, "prefix": PREFIX_PATTERN}
        for kind, name in self._kept.execute(DESERTED, given).fetchall():
            drop = DROP_DESERTED if kind == "database" else DROP_ROLE
            with contextlib.suppress(psycopg.Error):  # in use, of another role, or removed meanwhile
                self._kept.execute(drop.format(name=Identifier(name)))

    def _quoted_user(self) -> str:
        return Identifier(str(self._user)).as_string(self._kept)

    def _url(self, name: str) -> str:
        return address.whole_url({**self._parameters, "dbname": name})


@contextlib.contextmanager
def _left_alone(connection: psycopg.Connection[Any], name: str) -> Iterator[None]:
    """End the sessions of a database, if it has any, and admit no others in the block."""
    if connection.execute(CONNECTED, [name]).fetchone() is None:
        yield
        return
    connection.execute(ADMIT.format(name=Identifier(name), admitted=Literal(False)))
    try:
        connection.execute(END_SESSIONS, [name])
        yield
    finally:
        connection.execute(ADMIT.format(name=Identifier(name), admitted=Literal(True)))


def settle(url: str) -> None:
    """Have a copy of the template count as new, as its owner."""
    with _connect(url) as connection:
        connection.execute(SETTLE)


def set_clock(url: str, to: timedelta | str | datetime | None = None) -> None:
    """Set the clock of a database, as its owner.

    `to`: how far it is ahead of the real time (a `timedelta`, or an interval of PostgreSQL's such as '-1 day'), a fixed
    time, or None: the real time.
    """
    time: Composable = SQL("clock_timestamp()")
    if isinstance(to, datetime):
        assert to.tzinfo is not None, "a time has its zone"
        time = SQL("{}::timestamptz").format(Literal(to.isoformat()))
    elif to is not None:
        time = SQL("clock_timestamp() + {}::interval").format(Literal(to))
    with _connect(url) as connection:
        connection.execute(SET_CLOCK.format(time=time))


def functions_that_read(url: str) -> frozenset[str]:
    """Return the names of the functions that change nothing: `msgtx.name`, or `name` of PostgreSQL's own."""
    with _connect(url) as connection:
        return frozenset(name for (name,) in connection.execute(READS))


def reached(url: str) -> dict[str, str]:
    """Return the parameters with which an address is reached: also from the environment, a service and a password file."""
    parameters = address.parse(url)
    if {"host", "password"} <= parameters.keys():
        return parameters
    with _connect(url) as connection:
        info = connection.info
        found = {
            "host": info.host,
            "port": str(info.port),
            "user": info.user,
            "password": info.password,
            "dbname": info.dbname,
        }
    rest = {name: value for name, value in parameters.items() if name not in {"hostaddr", "passfile", "service"}}
    return {**rest, **{name: value for name, value in found.items() if value}}


def _connect(url: str, **options: str) -> psycopg.Connection[Any]:
    parameters = {**address.parse(url), **options}
    try:
        return psycopg.connect(address.conninfo(parameters), autocommit=True)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"no connection to {address.public_url(url)}: {str(error).strip()}") from None


def _database(url: str) -> str:
    return address.parse(url)["dbname"]


def _row(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    row = cursor.fetchone()
    assert row is not None
    return tuple(row)
