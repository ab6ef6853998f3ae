"""The server as an operator looks at it: sessions, locks, snapshots, tables, settings.

These functions run with the caller's rights: values that PostgreSQL hides from a role without pg_read_all_stats are
None.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array
from msgtx.generated import calls

NOT_REPLICATED: Final = ("local", "remote_write")  # values of synchronous_commit

# The facts about the server as a whole. `hidden`: sessions of this database whose state the role may not see.
Server = calls.DescribeServerRow


# A database session; `visible`: whether the role may see its state.
Session = calls.DescribeSessionsRow


# A session that holds msgtx's advisory locks, and how many wait for it. `pid` None: a prepared transaction.
LockHolder = calls.LockHoldersRow


# A holder of the horizon: kind session, standby, slot or prepared; `age` in transactions, `retained` in bytes of WAL.
SnapshotHolder = calls.SnapshotHoldersRow


# PostgreSQL's table of locks: its places, those in use, and the partitions that calls may lock.
LockTable = calls.DescribeLockTableRow


# The server's queue of notifications: how full it is, 0 to 1, and the sessions that have been in one SQL transaction
# for longest.
Notifications = calls.DescribeNotificationsRow


# A table of msgtx: size, rows, and when it was last looked after.
TableStatistics = calls.TableStatisticsRow


# A standby of this server, and how far what it shows is behind.
DescribedStandby = calls.DescribeStandbysRow


# A right of a role.
DescribedRight = calls.DescribeRightsRow


def describe_server(connection: RawConnection) -> Server:
    """Return the facts about the server as a whole."""
    return call(connection, calls.DESCRIBE_SERVER)[0]


def describe_sessions(connection: RawConnection, pids: Sequence[int]) -> dict[int, Session]:
    """Return the sessions of this database with these pids, as far as they are still there."""
    return {row.pid: row for row in call(connection, calls.DESCRIBE_SESSIONS, Int4Array(pids))}


def lock_holders(connection: RawConnection) -> list[LockHolder]:
    """Return the holders of msgtx's locks; first those that most others wait for."""
    return call(connection, calls.LOCK_HOLDERS)


def describe_lock_table(connection: RawConnection) -> LockTable:
    """Return how full the table of locks is, and how much may be asked of it."""
    return call(connection, calls.DESCRIBE_LOCK_TABLE)[0]


def describe_notifications(connection: RawConnection) -> Notifications:
    """Return how full the queue of notifications is, and the sessions that may hold it back."""
    return call(connection, calls.DESCRIBE_NOTIFICATIONS)[0]


def snapshot_holders(connection: RawConnection) -> list[SnapshotHolder]:
    """Return the holders of the horizon of this database, the oldest first; and all replication slots."""
    return call(connection, calls.SNAPSHOT_HOLDERS)


def database_bytes(connection: RawConnection) -> int:
    """Return the size of the database, with what is not msgtx's."""
    ((found,),) = call(connection, calls.DATABASE_BYTES)
    return found


def table_statistics(connection: RawConnection) -> list[TableStatistics]:
    """Return the statistics of msgtx's tables, by name."""
    return call(connection, calls.TABLE_STATISTICS)


def is_weak(settings: Mapping[str, str]) -> bool:
    """Return whether commits return before the synchronous standby has flushed them."""
    return bool(settings.get("synchronous_standby_names")) and settings.get("synchronous_commit") in NOT_REPLICATED


def describe_standbys(connection: RawConnection) -> list[DescribedStandby]:
    """Return the standbys that follow this server, by name."""
    return call(connection, calls.DESCRIBE_STANDBYS)


def record_wal_bytes(connection: RawConnection) -> float | None:
    """Return about how many bytes of WAL a record takes; None: nothing is stored."""
    ((size,),) = call(connection, calls.RECORD_WAL_BYTES)
    return None if size is None else float(size)


def describe_rights(connection: RawConnection) -> list[DescribedRight]:
    """Return the rights of roles, in order."""
    return call(connection, calls.DESCRIBE_RIGHTS)
