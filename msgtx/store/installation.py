"""The installation: which schema, which incarnation."""

import uuid
from dataclasses import dataclass
from typing import Final

from msgtx.database.engine import Function, RawConnection, call
from msgtx.database.wire import Int8Array

DESCRIBE: Final = Function("describe_installation", {})
CHANGE_INCARNATION: Final = Function("change_incarnation", {})
FENCE: Final = Function("fence_everybody", {"in_after": "int8[]"})
FENCE_PLAIN: Final = Function("fence_plain_producers", {"in_after": "int8[]"})
END_SESSIONS: Final = Function("end_sessions", {})


@dataclass(frozen=True, slots=True)
class Installation:
    """What a client compares when it connects."""

    incarnation: uuid.UUID
    schema_version: int
    functions_hash: str | None


def describe_installation(connection: RawConnection) -> Installation:
    """Return the installation's row. Raise `ConfigError` if there is no msgtx schema."""
    ((incarnation, version, functions_hash),) = call(connection, DESCRIBE)
    return Installation(incarnation, version, functions_hash)


def change_incarnation(connection: RawConnection) -> uuid.UUID:
    """Make the database another one for its clients; ids skip ahead. Returns the new incarnation."""
    ((changed,),) = call(connection, CHANGE_INCARNATION)
    return uuid.UUID(str(changed))


def fence_everybody(connection: RawConnection, *, plain: bool) -> int:
    """Raise the epoch of every producer: of those that have a row, or of plain ones. Returns how many."""
    fenced: int = 0
    after: list[int] | None = None
    while True:
        ((count, after),) = call(connection, FENCE_PLAIN if plain else FENCE, None if after is None else Int8Array(after))
        fenced += count
        if after is None:
            return fenced


def end_sessions(connection: RawConnection) -> int:
    """End the sessions of other processes of msgtx, as far as the role may. Returns how many."""
    ((ended,),) = call(connection, END_SESSIONS)
    return int(ended)
