"""Connections of asyncpg, on which msgtx's calls are made as on those of psycopg. Users install asyncpg themselves."""

import functools
import importlib
import json
from collections.abc import Sequence
from dataclasses import astuple
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


class Asyncpg:
    """Such a connection, below the pool's. It is used inside `greenlet_spawn` only, as an async session's is."""

    def __init__(self, given: AsyncpgConnection) -> None:
        self.given = given

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self.given.is_closed()

    async def rows(self, statement: str, arguments: Sequence[object]) -> list[tuple[Any, ...]]:
        """Run a statement with psycopg's placeholders, and return its rows. Raise the errors as psycopg's."""
        asyncpg: Any = importlib.import_module("asyncpg")  # without types: the compiler of wheels would refuse it

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
        return [astuple(batch) for batch in argument.batches]
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
