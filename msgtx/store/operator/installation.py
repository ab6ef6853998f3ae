"""The installation: its schema and its incarnation."""

import uuid
from dataclasses import dataclass
from typing import Any, Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int8Array
from msgtx.declared.function import Function
from msgtx.errors import ConfigError, IncarnationChanged
from msgtx.generated import calls
from msgtx.types import Snapshot

SCHEMA_VERSION: Final = 8  # the schema that this package was made for; it accepts the next one, too
FENCE: Final = calls.FENCE_EVERYBODY.first(1)
FENCE_PLAIN: Final = calls.FENCE_PLAIN_PRODUCERS.first(1)
REMOVE_MEMBERS: Final = calls.REMOVE_ALL_MEMBERS.first(1)


@dataclass(frozen=True, slots=True)
class Installation:
    """The values that a client compares when it connects."""

    incarnation: uuid.UUID
    schema_version: int
    functions_hash: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a database is: the server's system identifier, the database's number there, the server's timeline."""

    system: int
    database: int
    timeline: int


def describe_place(connection: RawConnection) -> tuple[Place, Place] | None:
    """Return where the database was when its incarnation was made, and where it is; None if one of them is not known."""
    (row,) = call(connection, calls.DESCRIBE_PLACE)
    return None if None in row else (Place(*row[:3]), Place(*row[3:]))


@dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence of the schema that would give out a number again: its next number, and the largest stored one."""

    name: str
    next_number: int
    stored: int

    def __str__(self) -> str:
        return f"the next number of sequence {self.name} is {self.next_number}, and a table holds {self.stored}"


def sequences_behind(connection: RawConnection) -> list[Sequence]:
    """Return the sequences that would give out a number that a table holds; see `sequences.sql`."""
    found = call(connection, calls.SEQUENCES)
    return [
        Sequence(name, following, stored) for name, following, stored, is_behind in found if is_behind and stored is not None
    ]


ServerIdentity = calls.IdentifyServerRow


def identify_server(connection: RawConnection) -> ServerIdentity | None:
    """Return a primary's identity; None on a standby, and where the server does not say it."""
    (row,) = call(connection, calls.IDENTIFY_SERVER)
    return None if row.timeline is None else row


def describe_installation(connection: RawConnection) -> Installation:
    """Return the installation's row. Raise `ConfigError` if there is no msgtx schema."""
    ((incarnation, version, functions_hash),) = call(connection, calls.DESCRIBE_INSTALLATION)
    return Installation(incarnation, version, functions_hash)


def require_incarnation(connection: RawConnection, *snapshots: Snapshot | None) -> str:
    """Return the incarnation, of which these snapshots must be. Raise `IncarnationChanged`."""
    found = str(describe_installation(connection).incarnation)
    for each in snapshots:
        if each is not None and each.incarnation != found:
            raise IncarnationChanged(
                f"the snapshot is of incarnation {each.incarnation}, the database has {found} since a failover"
            )
    return found


def require_version(found: Installation) -> None:
    """Raise `ConfigError` if this package was made for another schema."""
    version = found.schema_version
    if not SCHEMA_VERSION <= version <= SCHEMA_VERSION + 1:
        todo = "run `msgtx db upgrade`" if version < SCHEMA_VERSION else "use a newer msgtx"
        raise ConfigError(
            f"the schema has version {version}, this client needs {SCHEMA_VERSION}: {todo}", reason="schema version"
        )


def change_incarnation(connection: RawConnection) -> uuid.UUID:
    """Make the database another one for its clients; ids skip ahead. Returns the new incarnation."""
    ((changed,),) = call(connection, calls.CHANGE_INCARNATION)
    return uuid.UUID(str(changed))


def fence_everybody(connection: RawConnection, *, plain: bool) -> int:
    """Raise the epoch of every producer: of those with a row, or of plain ones. Returns how many."""
    return _to_the_end(connection, FENCE_PLAIN if plain else FENCE)


def _to_the_end(connection: RawConnection, function: Function[Any]) -> int:
    """Call a function until it has come to the end. Returns the sum of its counts."""
    done: int = 0
    after: list[int] | None = None
    while True:
        ((count, after),) = call(connection, function, None if after is None else Int8Array(after))
        done += count
        if after is None:
            return done


def end_sessions(connection: RawConnection) -> tuple[int, int]:
    """End the other sessions that may use msgtx. Returns how many, and how many the role may not end."""
    ((ended, not_ended),) = call(connection, calls.END_SESSIONS)
    return ended, not_ended


def remove_all_members(connection: RawConnection) -> int:
    """Remove the members of every group: none of them can come back. Returns how many."""
    return _to_the_end(connection, REMOVE_MEMBERS)
