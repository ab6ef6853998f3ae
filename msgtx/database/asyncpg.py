"""Connections of asyncpg, on which msgtx's calls are made as on those of psycopg. Users install asyncpg themselves."""

import functools
import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import psycopg
from psycopg.pq import DiagnosticField

from msgtx.database.wire import BatchArray, numbered


class AsyncpgConnection(Protocol):
    """What msgtx uses of a connection of asyncpg."""

    async def fetch(self, query: str, *args: Any) -> Any:
        """Run a statement and return its rows."""
        ...

    async def prepare(self, query: str) -> Any:
        """Prepare a statement, and return what is known of it."""
        ...

    def is_in_transaction(self) -> bool:
        """Return whether it is in a SQL transaction."""
        ...

    def is_closed(self) -> bool:
        """Return whether it is closed."""
        ...

    def add_log_listener(self, callback: Callable[[Any, Any], None]) -> None:
        """Call a function with each notice, until a pool gets the connection back."""
        ...


class Asyncpg:
    """Such a connection, below the pool's. It is used inside `greenlet_spawn` only, as an async session's is."""

    def __init__(self, given: AsyncpgConnection) -> None:
        self.given = given

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self.given.is_closed()

    def hear(self, listener: Callable[[Any, Any], None]) -> None:
        """Call `listener` with each notice, until a pool gets the connection back. A second call changes nothing."""
        given: Any = self.given
        if hasattr(given, "_log_listeners") and hasattr(given, "_pool_release_ctr"):  # else its pool would warn of ours
            if not isinstance(given._log_listeners, _Listeners):
                given._log_listeners = _Listeners(given)
            given._log_listeners.releases = given._pool_release_ctr
            self.given.add_log_listener(listener)

    async def rows(self, statement: str, arguments: Sequence[object]) -> list[tuple[Any, ...]]:
        """Run a statement with psycopg's placeholders, and return its rows. Raise the errors as psycopg's."""
        import asyncpg

        text = _numbered(statement)
        try:
            if text not in _of_json:
                columns = (await self.given.prepare(text)).get_attributes()
                _of_json[text] = [at for at, column in enumerate(columns) if column.type.name in {"json", "jsonb"}]
            found = await self.given.fetch(text, *map(_given, arguments))
        except asyncpg.PostgresError as error:
            raise _as_psycopgs(error) from error
        except (asyncpg.InterfaceError, OSError) as error:
            raise psycopg.OperationalError(str(error)) from error
        return [_read(row, _of_json[text]) for row in found]


class _Listeners(set[Any]):
    """The listeners of a connection to notices, with ours.

    asyncpg's pool warns of listeners that are left on a connection which it gets back. Ours stays until then, since it is
    to hear the COMMIT, so this set looks empty from that moment on.
    """

    def __init__(self, given: Any) -> None:
        super().__init__(given._log_listeners)
        self.releases = 0  # how often the pool had got the connection back when ours was added
        self._given = weakref.ref(given)

    def __bool__(self) -> bool:
        given = self._given()
        return len(self) > 1 or (given is not None and given._pool_release_ctr == self.releases)


_of_json: Final[dict[str, list[int]]] = {}  # by statement: the columns that asyncpg returns as text


def _read(row: Sequence[Any], of_json: Sequence[int]) -> tuple[Any, ...]:
    values = list(row)
    for at in of_json:
        if isinstance(values[at], str):  # the user may have set a codec
            values[at] = json.loads(values[at])
    return tuple(values)


@functools.cache
def _numbered(statement: str) -> str:
    return numbered(statement).decode()


def _given(argument: object) -> object:
    if isinstance(argument, BatchArray):
        return [*argument.batches]
    return argument


def _as_psycopgs(error: Any) -> psycopg.Error:
    """Return an answer of PostgreSQL as psycopg reports it."""
    fields = {
        DiagnosticField.SQLSTATE: error.sqlstate,
        DiagnosticField.MESSAGE_PRIMARY: error.message,
        DiagnosticField.MESSAGE_DETAIL: error.detail,
        DiagnosticField.MESSAGE_HINT: error.hint,
        DiagnosticField.CONTEXT: error.context,
        DiagnosticField.COLUMN_NAME: error.column_name,
        DiagnosticField.SOURCE_FILE: error.server_source_filename,
        DiagnosticField.SOURCE_FUNCTION: error.server_source_function,
    }
    try:
        kind = psycopg.errors.lookup(error.sqlstate)
    except KeyError:
        kind = psycopg.DatabaseError
    info: Any = {field: None if value is None else str(value).encode() for field, value in fields.items()}
    return kind(error.message, info=info)
