"""SQL transactions that end below SQLAlchemy: a ROLLBACK or COMMIT as text, or the driver's own calls.

SQLAlchemy has no event for them and goes on in a new SQL transaction, so that a COMMIT would have offsets without their
rows. Every call of a driver's connection goes through its `wait`; a statement that ends one SQL transaction and begins
another is seen by its command tags.
"""

import logging
import re
import weakref
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.errors import Diagnostic
from psycopg.pq import TransactionStatus

from msgtx import forks
from msgtx.database.asyncpg import Asyncpg
from msgtx.database.connection import RawConnection, is_unconfirmed

log = logging.getLogger("msgtx.session")
OPEN: Final = (TransactionStatus.ACTIVE, TransactionStatus.INTRANS, TransactionStatus.INERROR)
# ROLLBACK TO SAVEPOINT has the tag of ROLLBACK.
_TO_SAVEPOINT: Final = re.compile(r"\brollback\s+(?:work\s+|transaction\s+)?to\b", re.IGNORECASE)
_COMMENT: Final = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)


class Endings:
    """Counts the ended SQL transactions of a driver's connection, and the statements outside any (autocommit)."""

    __slots__ = ("__weakref__", "_open", "count")

    def __init__(self) -> None:
        self.count = 0
        self._open = False

    def look(self, driver: RawConnection) -> None:
        """Count an end since the last look."""
        status = driver.pgconn.transaction_status
        if (self._open and status == TransactionStatus.IDLE) or driver.autocommit:
            self.count += 1
        if status != TransactionStatus.UNKNOWN:  # its error shows a lost connection
            self._open = status in OPEN

    def executed(self, driver: RawConnection, cursor: Any, statement: str) -> None:
        """Count an end by a statement: afterwards there is no SQL transaction, or the next one."""
        results = getattr(getattr(cursor, "_cursor", cursor), "_results", ())  # an async session has a cursor around it
        tags = [result.command_status for result in results]
        rollbacks = tags.count(b"ROLLBACK")
        if rollbacks:
            rollbacks -= len(_TO_SAVEPOINT.findall(_COMMENT.sub(" ", statement)))
        if b"COMMIT" in tags or rollbacks > 0 or driver.pgconn.transaction_status == TransactionStatus.IDLE:
            self.count += 1


def endings_of(driver: RawConnection) -> Endings:
    """Return the ends of a driver's connection, which are counted from the first call on."""
    found = _found.get(driver)
    if found is None:
        found = _found[driver] = Endings()
        forks.cut_off(driver)  # else the end of a child could roll back what its parent commits
        _watch(driver, found)
        warn_of_unconfirmed(driver)
    found.look(driver)
    return found


def warn_of_unconfirmed(driver: Any) -> None:
    """Write to the log if the COMMIT of a user's connection did not wait for the synchronous standby to the end.

    It is answered with success all the same: no error would be handled there (decision 0167).
    """
    if isinstance(driver, Asyncpg):
        driver.hear(_heard_by_asyncpg)
    elif isinstance(driver, psycopg.Connection | psycopg.AsyncConnection) and driver not in _warned:
        _warned.add(driver)
        driver.add_notice_handler(_heard_by_psycopg)


def _heard_by_psycopg(notice: Diagnostic) -> None:
    _warn(notice.source_function)


def _heard_by_asyncpg(_: object, notice: Any) -> None:
    _warn(getattr(notice, "server_source_function", None))


def _warn(source_function: str | None) -> None:
    if is_unconfirmed(source_function):
        log.warning(
            "the wait of a session's COMMIT for the synchronous standby was cancelled: a failover may lose its rows,"
            " together with its records and offsets"
        )


def _watch(driver: Any, endings: Endings) -> None:
    reference = weakref.ref(driver)  # a connection that referred to itself would be let go later
    of_class: Callable[..., Any] = type(driver).wait

    def wait(*arguments: Any, **named: Any) -> Any:
        connection: Any = reference()
        endings.look(connection)
        try:
            return of_class(connection, *arguments, **named)
        finally:
            endings.look(connection)

    async def awaited(*arguments: Any, **named: Any) -> Any:
        connection: Any = reference()
        endings.look(connection)
        try:
            return await of_class(connection, *arguments, **named)
        finally:
            endings.look(connection)

    driver.wait = awaited if isinstance(driver, psycopg.AsyncConnection) else wait


_warned: "weakref.WeakSet[Any]" = weakref.WeakSet()
_found: "weakref.WeakKeyDictionary[RawConnection, Endings]" = weakref.WeakKeyDictionary()
