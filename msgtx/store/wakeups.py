"""Whom commits concern: told by who committed, afterwards, or left in a table for listeners to look at (architecture 3)."""

from collections.abc import Iterable
from typing import Final

from psycopg import pq

from msgtx.database.engine import Function, RawConnection, call, query
from msgtx.database.wire import Int4Array

MOST_TOLD: Final = 700  # partitions of one notification: PostgreSQL refuses one of 8000 bytes
WOKEN: Final = Function("woken_since", {"in_snapshot": "text"})
TELL: Final = Function("tell_readers", {"partition_ids": "int4[]"}, flushed=False)
REMOVE: Final = Function("remove_wake_ups", {"in_after": "int8[]"}, flushed=False)


def notify(connection: RawConnection, words: str) -> None:
    """Tell listeners now. In a SQL transaction of its own: PostgreSQL lets one notifying COMMIT through at a time."""
    query(connection, "select pg_catalog.pg_notify('msgtx', %s)", words)


def send_notification(raw: pq.abc.PGconn, partition_ids: Iterable[int]) -> None:
    """Do the same without waiting for the answer, which libpq then has."""
    raw.send_query_params(b"select pg_catalog.pg_notify('msgtx', $1)", [",".join(map(str, partition_ids)).encode()])
    raw.flush()


def tell_readers(connection: RawConnection, partition_ids: Iterable[int]) -> None:
    """Have listeners find these partitions when they look the next time, where nothing can be notified."""
    call(connection, TELL, Int4Array(partition_ids))


def woken_since(connection: RawConnection, snapshot: str | None) -> tuple[str, str | None]:
    """Return the snapshot for the next call, and whom commits since the last one concern (None: nobody)."""
    ((next_snapshot, words),) = call(connection, WOKEN, snapshot)
    return next_snapshot, words


def remove_wake_ups(connection: RawConnection) -> int:
    """Remove what listeners saw long ago, a bounded part of it. Returns how many rows."""
    return int(call(connection, REMOVE, None)[0][0])
