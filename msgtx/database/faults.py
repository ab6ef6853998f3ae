"""Whether an exception is the fault of the record, of the database, or of the installation.

A handler may use any driver, wrap its errors in its own, or raise several at once. So the whole chain is looked at:
causes, contexts, the members of groups, and exceptions that SQLAlchemy wraps. Databases have their SQLSTATE in common.
"""

import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

import psycopg

from msgtx.errors import Fault, MsgtxError

AGAIN: Final = (Fault.TRANSIENT, Fault.OUTAGE)  # faults that a worker tries again, with any `failure`
# By SQLSTATE, else by its class, the first two characters. Everything else is the record's.
FAULT_BY_SQLSTATE: Final = {
    "08": Fault.OUTAGE,  # connection exception
    "0A": Fault.ENVIRONMENT,  # feature not supported
    "25": Fault.ENVIRONMENT,  # invalid transaction state, read-only
    "25P03": Fault.OUTAGE,  # idle_in_transaction_session_timeout: the session was ended
    "25P04": Fault.OUTAGE,  # transaction_timeout
    "26": Fault.ENVIRONMENT,  # a prepared statement that is gone: a pooler in between
    "28": Fault.ENVIRONMENT,  # invalid authorization
    "3D": Fault.ENVIRONMENT,  # missing database
    "3F": Fault.ENVIRONMENT,  # missing schema
    "40": Fault.TRANSIENT,  # transaction rollback: deadlock, serialization failure
    "40003": Fault.OUTAGE,  # statement completion unknown
    "42": Fault.ENVIRONMENT,  # syntax error, access rule violation, undefined table
    "53": Fault.OUTAGE,  # insufficient resources: disk, memory, connections
    "54": Fault.ENVIRONMENT,  # program limit exceeded
    "55": Fault.ENVIRONMENT,  # object not in prerequisite state
    "55P03": Fault.TRANSIENT,  # lock not available
    "55006": Fault.TRANSIENT,  # object in use
    "57": Fault.OUTAGE,  # operator intervention: shutdown, crash, cannot connect now
    "57014": Fault.ENVIRONMENT,  # query cancelled: statement_timeout
    "58": Fault.OUTAGE,  # system error, outside PostgreSQL
    "F0": Fault.ENVIRONMENT,  # configuration file
    "HV": Fault.ENVIRONMENT,  # foreign data
    "HV00N": Fault.OUTAGE,  # a foreign server that cannot be reached
    "XX001": Fault.ENVIRONMENT,  # corrupted data
    "XX002": Fault.ENVIRONMENT,  # corrupted index
}
_DRIVERS: Final = ("asyncpg", "psycopg", "psycopg2", "pg8000")
PROGRAM_LIMIT: Final = "54000"
# The server assigns no ids of transactions before VACUUM has frozen old rows, or its queue of notifications is full. That
# passes, as a full disk does. These functions of PostgreSQL raise it, with PROGRAM_LIMIT: never translated.
USED_UP: Final = {"GetNewTransactionId", "GetNewMultiXactId", "PreCommit_Notify"}
_RECONNECT: Final = "8s2b"  # SQLAlchemy's code: "Can't reconnect until invalid transaction is rolled back"


def fault_of(error: BaseException) -> Fault:
    """Return whose fault an exception is, looking at its whole chain."""
    return max(map(_own_fault, _chain(error)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes or contexts, and the members of groups. An error of msgtx has no other cause."""
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, MsgtxError):
            continue
        if isinstance(each, BaseExceptionGroup):
            left.extend(each.exceptions)
        further = each.__cause__ if each.__cause__ is not None or each.__suppress_context__ else each.__context__
        left.extend(other for other in (further, getattr(each, "orig", None)) if isinstance(other, BaseException))


def _own_fault(error: BaseException) -> Fault:
    if isinstance(error, MsgtxError):
        return error.fault
    if not isinstance(error, Exception | BaseExceptionGroup):
        return Fault.INTERRUPT
    state = _sqlstate(error)
    if state == PROGRAM_LIMIT and _source_function(error) in USED_UP:
        return Fault.OUTAGE
    if state:
        return FAULT_BY_SQLSTATE.get(state, FAULT_BY_SQLSTATE.get(state[:2], Fault.RECORD))
    # Of the process, and a session that the function has closed.
    if isinstance(error, MemoryError | ImportError) or _is_sqlalchemys(error, "ResourceClosedError", "NoSuchModuleError"):
        return Fault.ENVIRONMENT
    return Fault.OUTAGE if _is_lost(error) else Fault.RECORD


def _sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of a database's error, as psycopg, asyncpg, psycopg2 and SQLAlchemy's adapters name it."""
    for name in ("sqlstate", "pgcode"):
        state = getattr(error, name, None)
        if isinstance(state, str) and len(state) == 5:
            return state
    return ""


def _source_function(error: BaseException) -> str | None:
    """Return the function of PostgreSQL that raised an error, as psycopg, psycopg2 and asyncpg name it."""
    diagnosis = getattr(error, "diag", None)
    return getattr(diagnosis, "source_function", None) or getattr(error, "server_source_function", None)


def _is_lost(error: Any) -> bool:
    """Whether an error without SQLSTATE means that a connection was lost or could not be made."""
    if isinstance(error, psycopg.OperationalError) or _is_sqlalchemys(error, "TimeoutError"):  # also of their pools
        return True
    if _is_sqlalchemys(error, "DBAPIError"):
        original = getattr(error, "orig", None)
        wraps_none = original is None or not _sqlstate(original)
        return bool(error.connection_invalidated) or (wraps_none and _is_sqlalchemys(error, "OperationalError"))
    if _is_sqlalchemys(error, "PendingRollbackError"):
        return bool(error.code == _RECONNECT)
    driver = type(error).__module__.partition(".")[0]
    if driver in _DRIVERS and type(error).__name__ in ("OperationalError", "InterfaceError"):
        text = str(error)  # "connection is closed", "connection was closed in the middle of operation"
        return type(error).__name__ == "OperationalError" or ("connection" in text and "closed" in text)
    # asyncpg passes on the errors of the system.
    return isinstance(error, OSError) and _is_raised_by(error.__traceback__, _DRIVERS)


def _is_sqlalchemys(error: Any, *names: str) -> bool:
    """Return whether an error is one of these classes of SQLAlchemy's, which need not be imported for that."""
    exc = sys.modules.get("sqlalchemy.exc")
    return exc is not None and isinstance(error, tuple(getattr(exc, name) for name in names))


def _is_raised_by(traceback: TracebackType | None, packages: tuple[str, ...]) -> bool:
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] in packages:
            return True
        traceback = traceback.tb_next
    return False
