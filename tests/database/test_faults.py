"""Whose fault an exception is, wherever in a chain and from whichever driver it comes."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import errors as pg

from msgtx import errors
from msgtx.database.faults import FAULT_BY_SQLSTATE, Fault, fault_of

RECORD, ENVIRONMENT, TRANSIENT, OUTAGE, INTERRUPT = Fault


def wrapped(error: BaseException, *, invalidated: bool = False) -> sqlalchemy.exc.DBAPIError:
    """Return what SQLAlchemy makes of a driver's error."""
    made = sqlalchemy.exc.DBAPIError.instance("select", None, error, psycopg.Error, connection_invalidated=invalidated)
    assert isinstance(made, sqlalchemy.exc.DBAPIError)
    return made


def of_asyncpg(name: str, text: str, state: str | None = None) -> Exception:
    """Return an error as asyncpg has it: it need not be installed."""
    kind = type(name, (Exception,), {"__module__": "asyncpg.exceptions", **({"sqlstate": state} if state else {})})
    return kind(text)  # type: ignore[no-any-return]


class OutOfIds(pg.ProgramLimitExceeded):
    """As psycopg has it from a server."""

    diag = SimpleNamespace(source_function="GetNewTransactionId")  # type: ignore[assignment]


def out_of_ids_of_asyncpg() -> Exception:
    error = of_asyncpg("ProgramLimitExceededError", "database is not accepting commands", "54000")
    error.server_source_function = "GetNewMultiXactId"  # type: ignore[attr-defined]
    return error


def caused(error: Exception) -> Exception:
    try:
        raise ValueError("the order could not be stored") from error
    except ValueError as raised:
        return raised


def in_context(error: Exception) -> Exception:
    try:
        try:
            raise error
        except type(error):
            raise ValueError("the order could not be stored")  # noqa: B904 - it is what users write
    except ValueError as raised:
        return raised


def disowned(error: Exception) -> Exception:
    try:
        try:
            raise error
        except type(error):
            raise ValueError("it is the record's") from None
    except ValueError as raised:
        return raised


CHAINS: list[Callable[[Any], BaseException]] = [
    lambda error: error,
    wrapped,
    caused,
    in_context,
    lambda error: caused(wrapped(error)),
    lambda error: in_context(caused(error)),
    lambda error: ExceptionGroup("of a task group", [ValueError("another one"), error]),
    lambda error: ExceptionGroup("outer", [ExceptionGroup("inner", [caused(error)])]),
]


@pytest.mark.parametrize("chain", range(len(CHAINS)))
@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (pg.DeadlockDetected(), TRANSIENT),
        (pg.SerializationFailure(), TRANSIENT),
        (pg.LockNotAvailable(), TRANSIENT),
        (pg.ObjectInUse(), TRANSIENT),
        (pg.AdminShutdown(), OUTAGE),
        (pg.CannotConnectNow(), OUTAGE),
        (pg.TooManyConnections(), OUTAGE),
        (pg.DiskFull(), OUTAGE),
        (pg.IdleInTransactionSessionTimeout(), OUTAGE),
        (pg.ConnectionFailure(), OUTAGE),
        (OutOfIds(), OUTAGE),
        (pg.IoError(), OUTAGE),
        (psycopg.OperationalError("the connection is closed"), OUTAGE),
        (pg.QueryCanceled(), ENVIRONMENT),
        (pg.ProgramLimitExceeded(), ENVIRONMENT),
        (pg.ObjectNotInPrerequisiteState(), ENVIRONMENT),
        (pg.UndefinedTable(), ENVIRONMENT),
        (pg.InsufficientPrivilege(), ENVIRONMENT),
        (pg.InvalidPassword(), ENVIRONMENT),
        (pg.ReadOnlySqlTransaction(), ENVIRONMENT),
        (pg.InFailedSqlTransaction(), ENVIRONMENT),
        (pg.UniqueViolation(), RECORD),
        (pg.NumericValueOutOfRange(), RECORD),
        (pg.RaiseException(), RECORD),
        (psycopg.DataError("a NUL character"), RECORD),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_drivers_error_is_recognised_wherever_it_comes_from(chain: int, error: Exception, fault: Fault) -> None:
    assert fault_of(CHAINS[chain](error)) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (of_asyncpg("DeadlockDetectedError", "deadlock detected", "40P01"), TRANSIENT),
        (of_asyncpg("ConnectionDoesNotExistError", "connection was closed in the middle of operation", "08003"), OUTAGE),
        (of_asyncpg("InterfaceError", "connection is closed"), OUTAGE),
        (of_asyncpg("InterfaceError", "cannot use Connection.transaction() in a manually started transaction"), RECORD),
        (out_of_ids_of_asyncpg(), OUTAGE),
        (of_asyncpg("UniqueViolationError", "duplicate key value", "23505"), RECORD),
        (SimpleNamespace(pgcode="40001"), TRANSIENT),
        (wrapped(psycopg.InterfaceError("gone"), invalidated=True), OUTAGE),
        (psycopg.InterfaceError("the cursor is closed"), RECORD),
        (sqlalchemy.exc.TimeoutError("QueuePool limit"), OUTAGE),
        (sqlalchemy.exc.PendingRollbackError("Can't reconnect", code="8s2b"), OUTAGE),
        (sqlalchemy.exc.PendingRollbackError("during flush", code="7s2a"), RECORD),
        (sqlalchemy.exc.NoResultFound(), RECORD),
        (errors.DatabaseUnavailable("away"), OUTAGE),
        (errors.LockTimeout("a lock"), TRANSIENT),
        (errors.NotAssigned("taken away"), TRANSIENT),
        (errors.RecordTooLarge("too large"), RECORD),
        (errors.ProducerFenced("another one"), ENVIRONMENT),
        (errors.InvalidRequest("wrong"), RECORD),
        (caused(errors.DatabaseUnavailable("away")), OUTAGE),
        (disowned(pg.DeadlockDetected()), RECORD),
        (ConnectionRefusedError("of another service"), RECORD),
        (concurrent.futures.CancelledError(), RECORD),
        (ValueError(), RECORD),
        (KeyboardInterrupt(), INTERRUPT),
        (SystemExit(1), INTERRUPT),
        (asyncio.CancelledError(), INTERRUPT),
        (BaseExceptionGroup("of a task group", [ValueError(), KeyboardInterrupt()]), INTERRUPT),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, Fault) else "",
)
def test_an_error_of_another_kind(error: Any, fault: Fault) -> None:
    if isinstance(error, SimpleNamespace):
        error = type("OperationalError", (Exception,), {"__module__": "psycopg2", "pgcode": error.pgcode})()
    assert fault_of(error) is fault


def test_what_msgtx_raised_has_no_other_cause() -> None:
    """It has said itself what to do: the driver's error that it was translated from does not count."""
    error = errors.InvalidRequest("wrong")
    error.__cause__ = pg.DeadlockDetected()
    assert fault_of(error) is RECORD


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert fault_of(one) is RECORD


def test_an_error_of_the_system_within_a_driver_is_an_outage() -> None:
    """As asyncpg passes on that nobody listens."""
    code = compile("raise ConnectionRefusedError('refused')", "connect_utils.py", "exec")
    with pytest.raises(ConnectionRefusedError) as raised:
        exec(code, {"__name__": "asyncpg.connect_utils"})  # noqa: S102 - a frame of that module
    assert fault_of(raised.value) is OUTAGE


def test_no_class_that_is_never_the_records_is_missing() -> None:
    assert {"08", "25", "28", "40", "42", "53", "54", "55", "57", "58"} <= {*FAULT_BY_SQLSTATE}
    assert RECORD not in FAULT_BY_SQLSTATE.values()
