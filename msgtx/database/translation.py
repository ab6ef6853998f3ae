"""Errors of PostgreSQL and of its driver, translated into msgtx's by SQLSTATE: the only place where that is done."""

import json
import re
from types import TracebackType
from typing import Any, Final

import psycopg
from psycopg import errors as pg

from msgtx import errors
from msgtx.database.asyncpg import Asyncpg
from msgtx.database.connection import Connection, RawConnection
from msgtx.database.faults import PROGRAM_LIMIT, USED_UP

# SQLSTATEs of msgtx's own functions: "MX" and Kafka's number, or MX000 and the name of the class as a column.
OWN: Final = "MX"
LOCK_NOT_AVAILABLE: Final = "55P03"  # within lock_timeout
BY_SQLSTATE: Final[dict[str, type[errors.MsgtxError]]] = {
    **{f"{OWN}{kind.code:03}": kind for kind in errors.BY_NAME.values() if vars(kind).get("code")},  # not an inherited one
    "28000": errors.LoginRefused,
    "28P01": errors.LoginRefused,
    LOCK_NOT_AVAILABLE: errors.LockTimeout,
    "40P01": errors.LockTimeout,
    "40001": errors.LockTimeout,
    "22003": errors.InvalidRequest,
    "22P02": errors.InvalidRequest,
    "22021": errors.InvalidRequest,
    "22P05": errors.InvalidRequest,
    "23514": errors.ConfigError,
    "3D000": errors.DatabaseNotFound,
}
_NO_SCHEMA: Final = {"3F000", "42P01", "42883", "42704", "42703"}
_LACKS_A_RIGHT: Final = "42501"
READ_ONLY: Final = "25006"
_CANCELED: Final = "57014"
_OUT_OF_MEMORY: Final = "53200"
_LOCK_TABLE: Final = "max_locks_per_transaction"  # a setting's name: never translated
_SERIALIZATION: Final = "40001"
_INTERNAL: Final = "XX000"
_OF_AN_INDEX: Final = {"_bt_check_third_page", "index_form_tuple_context", "index_form_tuple"}  # never translated
# Where PostgreSQL itself refuses to build what is larger than it can hold, with 54000 or XX000: allocations, texts, arrays.
_OF_1_GB: Final = {"mcxt.c", "stringinfo.c", "arrayfuncs.c"}  # never translated
_LOGIN: Final = re.compile(r'authentication failed|no password supplied|no pg_hba.conf entry|role "[^"]*" does not exist')
_FULL: Final = re.compile("too many (connections|clients)|connection slots are reserved")  # a refused one has no SQLSTATE
# The error of a call that looked for a function by its number while an upgrade created it again: never translated
# texts.
_RENEWED: Final = re.compile(r"cache lookup failed|\bOID \d+")
_ENDED_BY_A_TIMEOUT: Final = {"25P03", "25P04"}  # idle_in_transaction_session_timeout, transaction_timeout


def translate(error: Exception, connection: RawConnection | None = None) -> Exception:
    """Return the msgtx error for an error of psycopg or SQLAlchemy. `connection`: the one that raised it, if it is known."""
    original = getattr(error, "orig", None) or error
    if not isinstance(original, psycopg.Error):
        return error
    state = original.sqlstate or ""
    lines = str(original).strip().splitlines() or [type(original).__name__]
    primary = (original.diag.message_primary or "").splitlines()  # several, where a value that it names has some
    message = " ".join(primary) or lines[0]
    if state in {"42883", _INTERNAL} and _RENEWED.search(message):
        return errors.DatabaseUnavailable(f"the functions were renewed during the call ({message})")
    if state in _NO_SCHEMA:
        return errors.ConfigError(
            f"the database has no (complete) msgtx schema: {message}; run `msgtx db init`, or `msgtx db upgrade`",
            reason="no schema",
        )
    if state == READ_ONLY:
        return errors.ConfigError(
            f"the database is read-only ({message}); connect to the primary, not to a replica, or turn"
            " default_transaction_read_only off for this role and database",
            reason="read-only",
            fault=errors.Fault.ENVIRONMENT,
        )
    if state == _OUT_OF_MEMORY and _LOCK_TABLE in (original.diag.message_hint or ""):
        return errors.LockTableFull(f"{message}: the lock table has no place left")
    if state == _CANCELED:
        return errors.LockTimeout(
            f"{message}; if it comes again, statement_timeout of this role and database is too short for msgtx"
        )
    if state == _LACKS_A_RIGHT:
        return errors.AuthorizationFailed(_told_what_to_grant(message, connection), **_values(original.diag.message_detail))
    if state == _SERIALIZATION and connection is not None and not isinstance(connection, Connection):
        # The user's own SQL transaction, which only the user can repeat: it fails as with a statement of the user's.
        import sqlalchemy

        return sqlalchemy.exc.DBAPIError.instance(None, None, original, psycopg.Error)
    if state == PROGRAM_LIMIT and original.diag.source_function in _OF_AN_INDEX:
        return errors.InvalidRequest(f"a name is too long: {message}")
    if state in {PROGRAM_LIMIT, _INTERNAL} and original.diag.source_file in _OF_1_GB:
        return errors.RecordTooLarge(f"PostgreSQL holds no value of more than 1 GB ({message}): send or commit less at once")
    if not state and isinstance(original, psycopg.DataError):
        return errors.InvalidRequest(message)  # psycopg cannot say it: a NUL character in a text
    if state.startswith(OWN):
        return raised(state, message, original.diag.column_name, original.diag.message_detail)
    if state in BY_SQLSTATE:
        return BY_SQLSTATE[state](message)
    # Without a state, the connection itself failed. Other states of psycopg's OperationalError are no passing condition:
    # a retry of "object not in prerequisite state" would only hide a bug until time is over.
    lost = not state and isinstance(original, pg.OperationalError | psycopg.InterfaceError)
    is_used_up = state == PROGRAM_LIMIT and original.diag.source_function in USED_UP
    if lost or is_used_up or state[:2] in {"08", "53", "57", "58"} or state in _ENDED_BY_A_TIMEOUT:
        if _LOGIN.search(message):
            return errors.LoginRefused(message)
        if 'database "' in message and "does not exist" in message:
            return errors.DatabaseNotFound(message)
        if _FULL.search(message):
            message += (
                "; have the limit raised (of the role, the database or the server), or give clients a smaller pool_size"
            )
        return errors.DatabaseUnavailable(message)
    return error


def sqlstate_of(error: BaseException) -> str:
    """Return the SQLSTATE of a driver's error, or of Django's that wraps one; "" if it has none."""
    state = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
    return state if isinstance(state, str) else ""


def translate_own(error: BaseException) -> errors.MsgtxError | None:
    """Return msgtx's error if its functions raised this one on a user's connection, of a driver's or Django's; else None."""
    state = sqlstate_of(error)
    if not state.startswith(OWN):
        return None
    if not hasattr(error, "sqlstate"):
        error = error.__cause__ or error
    if isinstance(error, psycopg.Error):
        message, name, detail = error.diag.message_primary, error.diag.column_name, error.diag.message_detail
    else:
        message, name, detail = (getattr(error, each, None) for each in ("message", "column_name", "detail"))
    return raised(state, message or str(error), name, detail)


def raised(state: str, message: str, name: str | None, detail: str | None) -> errors.MsgtxError:
    """Return the error that a function of msgtx raised, from the fields of PostgreSQL's answer. `name`: the column."""
    return answered(name or BY_SQLSTATE[state].__name__, message, **_values(detail))


def answered(name: str, sentence: str, /, **values: Any) -> errors.MsgtxError:
    """Return the error that a function of msgtx names in its answer, as "Class" or "Class: reason"."""
    kind, _, reason = name.partition(": ")
    return errors.BY_NAME[kind](sentence, **{"reason": reason or None, **values})


def _values(detail: str | None) -> dict[str, Any]:
    """Return the values that a function of msgtx gives to its error, a JSON object; PostgreSQL's own details are words."""
    return json.loads(detail) if detail is not None and detail.startswith("{") else {}


def _told_what_to_grant(message: str, connection: RawConnection | None) -> str:
    """Add to PostgreSQL's own refusals the command for the owner; in every language they name the object."""
    from msgtx.database.schema import privileges

    known = set(re.findall(r"\w+", message)) & privileges.managed()
    if "`" in message or not known:
        return message
    rights = privileges.rights_on(min(known))
    if not rights:
        return f"{message}: only the owner of the schema may"
    role = "ROLE" if connection is None or isinstance(connection, Asyncpg) or connection.closed else connection.info.user
    told = f"{message}: the owner of the schema gives the right with `msgtx db grant --role {role} --can {'|'.join(rights)}`"
    if connection is None or isinstance(connection, Connection):
        return told
    return f"{told}, or to the role that the session has set"  # a user's session may have another role than its login's


class translated:  # noqa: N801 - as contextlib's own; a generator takes a microsecond more
    """Translate database errors raised inside, in the one place where that is done. `call`: the function that is called."""

    __slots__ = ("_call", "_connection")

    def __init__(self, connection: RawConnection | None = None, *, call: str = "") -> None:
        self._connection = connection
        self._call = call

    def __enter__(self) -> None:
        """Call the hook of the connection's engine, as `Engine` has it."""
        if self._call:
            self._hook("before")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raise the msgtx error for a database error."""
        if error is None:
            if self._call:
                self._hook("after")
        elif isinstance(error, Exception):
            self._raise(error)

    def _hook(self, when: str) -> None:
        hook = getattr(self._connection, "hook", None)
        if hook is not None:
            try:
                hook(f"{when} {self._call}")
            except Exception as error:
                self._raise(error)
                raise

    def _raise(self, error: Exception) -> None:
        if isinstance(error, UnicodeEncodeError):
            why = "is no valid UTF-8"
            if error.encoding != "utf-8":  # a user's session may have another
                why = f"cannot be said in the session's client_encoding ({error.encoding}): set that to UTF8"
            raise errors.InvalidRequest(f"{error.object[:50]!r} {why}") from error
        other = translate(error, self._connection)  # psycopg's, or SQLAlchemy's around one
        if other is not error:
            raise other from error
