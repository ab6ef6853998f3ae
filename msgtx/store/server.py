"""The server as an operator looks at it: sessions, locks, snapshots, tables, settings.

These functions run with the caller's rights: what PostgreSQL hides from a role without pg_read_all_stats comes as None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from msgtx.database.calls import Function, call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array

SERVER: Final = Function("describe_server", {})
SESSIONS: Final = Function("describe_sessions", {"pids": "int4[]"})
LOCKS: Final = Function("lock_holders", {})
SNAPSHOTS: Final = Function("snapshot_holders", {})
NOTIFICATIONS: Final = Function("describe_notifications", {})
LOCK_TABLE: Final = Function("describe_lock_table", {})
TABLES: Final = Function("table_statistics", {})


@dataclass(frozen=True, slots=True)
class Server:
    """What is asked about the server as a whole. `hidden`: sessions of this database whose state the role may not see."""

    role: str
    sees_all: bool
    hidden: int
    in_recovery: bool
    sessions: int
    connection_limit: int
    frozen_age: int
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Session:
    """A database session; `visible`: whether the role may see its state."""

    pid: int
    role: str
    application_name: str
    client_address: str | None
    visible: bool
    state: str | None
    state_since: datetime | None
    wait_event: str | None
    query_start: datetime | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session that holds msgtx's advisory locks, and how many wait for it. `pid` None: a prepared transaction."""

    pid: int | None
    role: str | None
    application_name: str | None
    client_address: str | None
    visible: bool
    state: str | None
    state_since: datetime | None
    transaction_since: datetime | None
    locks: int
    partitions: int
    waiting: int
    checked_at: datetime


@dataclass(frozen=True, slots=True)
class SnapshotHolder:
    """What pins the horizon: kind session, standby, slot or prepared; `age` in transactions, `retained` in bytes of WAL."""

    kind: str
    name: str
    pid: int | None
    role: str | None
    client_address: str | None
    state: str | None
    since: datetime | None
    age: int | None
    active: bool
    wal_status: str | None
    retained: int | None
    checked_at: datetime


@dataclass(frozen=True, slots=True)
class LockTable:
    """PostgreSQL's table of locks: its places, those in use, and the partitions that calls may lock."""

    places: int
    used: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Notifications:
    """The server's queue of notifications: how full it is, 0 to 1, and who has been in one SQL transaction for longest."""

    usage: float
    pids: list[int] | None
    begun: datetime | None


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """A table of msgtx: size, rows, and when it was last looked after."""

    name: str
    bytes: int
    live_rows: int
    dead_rows: int
    rows_since_vacuum: int
    last_vacuum: datetime | None
    last_autovacuum: datetime | None
    frozen_age: int


def describe_server(connection: RawConnection) -> Server:
    """Return what is asked about the server as a whole."""
    (row,) = call(connection, SERVER)
    return Server(*row)


def describe_sessions(connection: RawConnection, pids: Sequence[int]) -> dict[int, Session]:
    """Return the sessions of this database with these pids, as far as they are still there."""
    return {row[0]: Session(*row) for row in call(connection, SESSIONS, Int4Array(pids))}


def lock_holders(connection: RawConnection) -> list[LockHolder]:
    """Return who holds msgtx's locks; first those for whom most others wait."""
    return [LockHolder(*row) for row in call(connection, LOCKS)]


def describe_lock_table(connection: RawConnection) -> LockTable:
    """Return how full the table of locks is, and how much may be asked of it."""
    (row,) = call(connection, LOCK_TABLE)
    return LockTable(*row)


def describe_notifications(connection: RawConnection) -> Notifications:
    """Return how full the queue of notifications is, and who may hold it back."""
    (row,) = call(connection, NOTIFICATIONS)
    return Notifications(*row)


def snapshot_holders(connection: RawConnection) -> list[SnapshotHolder]:
    """Return what pins the horizon of this database, the oldest first; and all replication slots."""
    return [SnapshotHolder(*row) for row in call(connection, SNAPSHOTS)]


def table_statistics(connection: RawConnection) -> list[TableStatistics]:
    """Return the statistics of msgtx's tables, by name."""
    return [TableStatistics(*row) for row in call(connection, TABLES)]
