"""Databases that are thrown away: a template, copies of it, roles of a few rights, and a clock that can be set.

For tests of programs that use msgtx (`msgtx.testing`). Copying a template takes a fraction of the time of an installation.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import psycopg
import sqlalchemy
from psycopg.sql import SQL, Identifier, Literal

from msgtx.database import address
from msgtx.errors import ConfigError

CREATE: Final = SQL("create database {name} owner {owner}")
COPY: Final = SQL("create database {name} owner {owner} template {template}")
DROP: Final = SQL("drop database if exists {name} with (force)")
ADMIT: Final = SQL("alter database {name} allow_connections {admitted}")
# Sessions that the preparation has left open: a database with sessions cannot be copied.
END_SESSIONS: Final = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()"
# A copy of the template has given nothing out: its sequences need not skip ahead.
SETTLE: Final = "update msgtx.installation set sequences_system = null, sequences_database = null; select msgtx.note_place()"
CREATE_ROLE: Final = SQL("create role {name} login password {password}")
DROP_ROLE: Final = SQL("drop role if exists {name}")
MAY_CREATE: Final = "select rolsuper or rolcreatedb, rolsuper or rolcreaterole from pg_roles where rolname = current_user"
SET_CLOCK: Final = SQL(
    "create or replace function msgtx.clock() returns timestamptz language sql volatile return clock_timestamp() + {offset}"
)
SET_CLOCK_BACK: Final = (
    "create or replace function msgtx.clock() returns timestamptz language sql volatile return clock_timestamp()"
)
# What only reads, as the functions of msgtx do that PostgreSQL knows for it: a break there leaves what the break after the
# write before it leaves.
READING: Final = (
    *("show ", "begin", "savepoint", "release", "rollback", "listen"),
    *("select pg_catalog.", "select current_schema", "select 'msgtx.", "select typname"),  # of SQLAlchemy
)
# Functions that change nothing.
READS: Final = "select proname from pg_proc where pronamespace = 'msgtx'::regnamespace and provolatile <> 'v'"
WITHOUT_FLUSHES: Final = (
    "alter system set fsync = off",
    "alter system set full_page_writes = off",
    "alter system set autovacuum = off",
    "select pg_reload_conf()",
)


class Throwaway:
    """A server on which databases come and go. `url`: of a role that may create databases; `owner`: who is to own them.

    Without `owner` that is the role itself. Raise `ConfigError` if the role may create none.
    """

    def __init__(self, url: str, owner: str | None = None) -> None:
        self.url = url
        self._owner_url = owner or url
        self._owner = address.parse(self._owner_url).get("user") or self._ask("select current_user")
        self._prefix = f"msgtx_{os.getpid()}_{secrets.token_hex(3)}"
        self._count = 0
        self._roles: list[str] = []
        self._template: str | None = None
        with self._administrator() as connection:
            may_create, self._may_create_roles = _row(connection.execute(MAY_CREATE))
        if not may_create:
            raise ConfigError(
                f"role {self._owner!r} may create no databases, and each test gets one: alter role {self._owner} createdb",
                name="url",
            )

    def flush_nothing(self) -> None:
        """Have the server write nothing for good: it is faster, and a crash of the machine loses all. For a superuser."""
        with self._administrator() as connection:
            for statement in WITHOUT_FLUSHES:
                connection.execute(statement)

    def make_template(self, prepare: Callable[[str], object]) -> None:
        """Make the database that others are copied from; `prepare(url)` fills it."""
        name = f"{self._prefix}_template"
        with self._administrator() as connection:
            connection.execute(CREATE.format(name=Identifier(name), owner=Identifier(self._owner)))
        self._template = name
        prepare(self._url(name))

    def copy(self, source: str | None = None) -> str:
        """Return the URL of a new copy of the template, or of another database, whose sessions it ends."""
        self._count += 1
        name, template = f"{self._prefix}_{self._count}", self._template if source is None else _database(source)
        assert template is not None, "the template comes first"
        with self._administrator() as connection:
            connection.execute(ADMIT.format(name=Identifier(template), admitted=Literal(False)))
            try:
                connection.execute(END_SESSIONS, [template])
                connection.execute(
                    COPY.format(name=Identifier(name), owner=Identifier(self._owner), template=Identifier(template))
                )
            finally:
                connection.execute(ADMIT.format(name=Identifier(template), admitted=Literal(True)))
        with _connect(self._url(name)) as connection:
            connection.execute(SETTLE)
        return self._url(name)

    def drop(self, url: str) -> None:
        """Remove a database, and end the sessions that are connected to it."""
        with self._administrator() as connection:
            connection.execute(DROP.format(name=Identifier(_database(url))))

    def create_role(self, url: str) -> str:
        """Make a role without rights. Returns the URL with which it logs in to a database. Raise `ConfigError`."""
        if not self._may_create_roles:
            raise ConfigError(f"role {self._owner!r} may create no roles: alter role {self._owner} createrole", name="url")
        name, password = f"{self._prefix}_role_{len(self._roles) + 1}", secrets.token_hex(16)
        with self._administrator() as connection:
            connection.execute(CREATE_ROLE.format(name=Identifier(name), password=Literal(password)))
        self._roles.append(name)
        return _rendered(sqlalchemy.make_url(url).set(username=name, password=password))

    def close(self) -> None:
        """Remove the template and the roles."""
        with self._administrator() as connection:
            if self._template is not None:
                connection.execute(DROP.format(name=Identifier(self._template)))
            for role in self._roles:
                connection.execute(DROP_ROLE.format(name=Identifier(role)))

    @contextlib.contextmanager
    def _administrator(self) -> Iterator[psycopg.Connection[Any]]:
        with _connect(self.url) as connection:
            yield connection

    def _ask(self, question: str) -> str:
        with self._administrator() as connection:
            return str(_row(connection.execute(question))[0])

    def _url(self, name: str) -> str:
        return _rendered(_parsed(self._owner_url).set(database=name))


def set_clock(url: str, offset: timedelta | None) -> None:
    """Have the clock of a database be ahead of the real one, or show the real time. For its owner."""
    with _connect(url) as connection:
        connection.execute(SET_CLOCK_BACK if offset is None else SET_CLOCK.format(offset=Literal(offset)))


def functions_that_read(url: str) -> frozenset[str]:
    """Return the names of msgtx's functions that change nothing."""
    with _connect(url) as connection:
        return frozenset(name for (name,) in connection.execute(READS))


def _connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(address.conninfo(address.parse(url)), autocommit=True)


def _parsed(url: str) -> sqlalchemy.URL:
    return sqlalchemy.make_url(url).set(drivername="postgresql")


def _rendered(url: sqlalchemy.URL) -> str:
    return url.render_as_string(hide_password=False)


def _database(url: str) -> str:
    return str(_parsed(url).database)


def _row(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    row = cursor.fetchone()
    assert row is not None
    return tuple(row)
