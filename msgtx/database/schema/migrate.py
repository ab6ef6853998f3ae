"""The versions of the schema: tables by Alembic's migrations, functions and views anew (`functions`).

Everything is done in the SQL transaction of the caller, who commits: an upgrade happens as a whole or not at all. An
advisory lock makes upgrades that start at once take turns; the later ones find nothing to do.

Alembic is imported in the functions that use it: most programs do not, and save 0.2 s.
"""

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

from msgtx import forks
from msgtx.database.connection import until
from msgtx.database.schema import functions, privileges
from msgtx.database.schema.functions import functions_hash
from msgtx.errors import ConfigError

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["Upgrade", "check", "current", "downgrade", "functions_hash", "lock", "upgrade"]

UPGRADE_LOCK = (0x6D736710, 0)  # class and key; msgtx's other lock classes begin with the same three bytes ("msg")
ENCODINGS = ("UTF8", "SQL_ASCII")  # the second one takes every byte as it comes; clients of msgtx send UTF-8
LOCK_TIMEOUT = "30s"  # longer, and all readers of a view would queue behind an upgrade that waits for one long report
_ALEMBIC_LOCK = threading.Lock()  # Alembic's `context` and `op` are global: upgrades of two databases take turns
os.register_at_fork(after_in_child=lambda: forks.release(_ALEMBIC_LOCK))


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The result of an upgrade: the schema version before (None: there was no schema) and after it."""

    before: str | None
    after: str
    functions_renewed: bool


# A statement may rewrite or index a whole log, for hours; it is run by an operator who watches it.
@until(silence=math.inf)
def upgrade(connection: Connection) -> Upgrade:
    """Migrate the schema to the version of this package, and create its functions and views from `msgtx/sql`.

    Rights on functions and views are kept; those of `msgtx.role_right` extend to new ones. Does not commit. Raises
    ConfigError if the schema is newer than this package, if an object of the user stands on a view or function of ours, if
    there are tables without a version, above READ COMMITTED, or in a database with an encoding that lacks characters.
    """
    _require_encoding(connection)
    lock(connection)
    before = current(connection)
    head = _head()
    if before is not None and int(before) > int(head):
        raise ConfigError(
            f"the schema has version {before}, this program was made for {head}: install a newer msgtx",
            reason="schema version",
        )
    if before is None and (found := connection.scalar(text(A_TABLE))) is not None:
        raise ConfigError(
            f"the schema msgtx has a table {found}, and no version that msgtx wrote: it is another program's, or was"
            " restored in part; restore it whole, or drop it",
            reason="another schema",
        )
    if before == head and not _functions_differ(connection):
        return Upgrade(before=before, after=head, functions_renewed=False)
    if connection.scalar(text("select to_regnamespace('msgtx')")) is None:
        connection.execute(text("create schema msgtx"))
    given = functions.grants(connection)
    functions.drop(connection)
    from alembic import command

    _alembic(connection, lambda config: command.upgrade(config, "head"))
    functions.create(connection, given)
    privileges.derive(connection)
    connection.execute(text("select msgtx.note_place() from msgtx.installation i where i.system_identifier is null"))
    connection.execute(
        text("update msgtx.installation set schema_version = :version, functions_hash = :hash"),
        {"version": int(head), "hash": functions_hash()},
    )
    return Upgrade(before=before, after=head, functions_renewed=True)


def current(connection: Connection) -> str | None:
    """Return the version of the schema in the database, None when there is none."""
    from alembic.runtime.migration import MigrationContext

    context = MigrationContext.configure(connection, opts={"version_table_schema": "msgtx"})
    return context.get_current_revision()


def check(connection: Connection) -> list[str]:
    """Return the problem of the schema, with the command to run; nothing when all is well.

    One version ahead is well: a program works with the schema it was made for and with the next one.
    """
    found, head = current(connection), _head()
    if found is None:
        return ["the database has no msgtx schema: run `msgtx db init`"]
    if int(found) > int(head) + 1:
        return [f"the schema has version {found}, this program was made for {head}: install a newer msgtx"]
    if int(found) < int(head):
        return [f"the schema has version {found}, this program needs {head}: run `msgtx db upgrade`"]
    if int(found) > int(head):
        return []
    if missing := functions.missing(connection):
        return [f"functions or views are missing ({', '.join(missing)}): run `msgtx db upgrade`"]
    if _functions_differ(connection):
        return ["the functions and views are those of another build of msgtx: run `msgtx db upgrade`"]
    return []


@until(silence=math.inf)
def downgrade(connection: Connection, revision: str) -> None:
    """Go back to an older version (`base`: none), without functions and views: they fit the newest version only."""
    lock(connection)
    functions.drop(connection)
    from alembic import command

    _alembic(connection, lambda config: command.downgrade(config, revision))
    if (after := current(connection)) is not None:
        connection.execute(
            text("update msgtx.installation set schema_version = :version, functions_hash = null"),
            {"version": int(after)},
        )


def lock(connection: Connection) -> None:
    """Take the upgrade lock for the SQL transaction, whose search_path then has PostgreSQL's own objects first."""
    connection.execute(text("select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"))
    isolation = connection.scalar(text("select current_setting('transaction_isolation')"))
    if isolation != "read committed":
        raise ConfigError(
            f"the schema is changed at isolation level read committed, not {isolation}", name="transaction_isolation"
        )
    parameters = dict(zip(("class", "key"), UPGRADE_LOCK, strict=True))
    connection.execute(text("select pg_advisory_xact_lock(:class, :key)"), parameters)
    if not connection.scalar(text(UPGRADE_LOCK_IS_HELD), parameters):
        raise ConfigError(
            "the schema is changed inside a SQL transaction, not on a connection in autocommit", reason="autocommit"
        )
    connection.execute(text("select set_config('lock_timeout', :timeout, true)"), {"timeout": LOCK_TIMEOUT})


def _require_encoding(connection: Connection) -> None:
    """Raise `ConfigError` where the database could not store every name and header that a client may send."""
    name, encoding = connection.execute(text("select current_database(), current_setting('server_encoding')")).one()
    if encoding not in ENCODINGS:
        raise ConfigError(
            f"the database {name!r} has the encoding {encoding}, and msgtx needs UTF8: connect to a database that was made"
            " with `create database … template template0 encoding 'UTF8'`"
        )


def _functions_differ(connection: Connection) -> bool:
    stored = connection.scalar(text("select functions_hash from msgtx.installation"))
    return stored != functions_hash() or bool(functions.missing(connection))


@cache
def _head() -> str:
    from alembic.script import ScriptDirectory

    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "the package holds its migrations"
    return head


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "msgtx:migrations")
    return config


def _alembic(connection: Connection, run: Callable[["Config"], None]) -> None:
    config = _config()
    config.attributes["connection"] = connection
    with _ALEMBIC_LOCK:
        run(config)


# But for the table of versions itself, which stays when all versions were undone.
A_TABLE = """
    select c.relname::text from pg_class c
    where c.relnamespace = to_regnamespace('msgtx') and c.relkind in ('r', 'p', 'f') and c.relname <> 'alembic_version'
    order by 1 limit 1"""
UPGRADE_LOCK_IS_HELD = """
    select exists (
        select from pg_locks
        where locktype = 'advisory' and pid = pg_backend_pid()
          and classid::bigint = :class and objid::bigint = :key and objsubid = 2)"""
