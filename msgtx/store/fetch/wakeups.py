"""Which readers a commit concerns: notified afterwards by the committer, or left in a table for listeners to look at.

Source: internals: notifications.
"""

import itertools
from collections.abc import Iterable
from typing import Final

from psycopg import pq

from msgtx.database.calls import NOTIFY, call, prepare, query
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, numbered
from msgtx.generated import calls

MOST_TOLD: Final = 700  # partitions of one notification: PostgreSQL refuses one of 8000 bytes
LOOK: Final = "msgtx_look"  # the name of a call of `woken_since` that the session keeps
_SEND: Final = numbered(NOTIFY)
REMOVE: Final = calls.REMOVE_WAKE_UPS.first(1)


def notify(connection: RawConnection, words: str) -> None:
    """Notify listeners now. In a SQL transaction of its own: PostgreSQL lets one notifying COMMIT through at a time."""
    query(connection, NOTIFY, words)


def words_of(partition_ids: Iterable[int]) -> str:
    """Return the notification of these partitions, or of as many as it can name: consumers of others look by themselves."""
    return ",".join(map(str, itertools.islice(partition_ids, MOST_TOLD)))


def send_notification(raw: pq.abc.PGconn, partition_ids: Iterable[int]) -> None:
    """Notify listeners without waiting for the answer."""
    raw.send_query_params(_SEND, [words_of(partition_ids).encode()])
    raw.flush()


def tell_readers(connection: RawConnection, partition_ids: Iterable[int]) -> None:
    """Have listeners find these partitions when they look the next time, where nothing can be notified."""
    call(connection, calls.TELL_READERS, Int4Array(partition_ids))


def woken_since(connection: RawConnection, snapshot: str | None) -> tuple[str, str | None]:
    """Return the snapshot for the next call, and whom commits since the last one concern (None: none)."""
    ((next_snapshot, words),) = call(connection, calls.WOKEN_SINCE, snapshot)
    return next_snapshot, words


def prepare_looks(connection: RawConnection) -> str:
    """Make ready for many looks over one connection, for `look` and `seen`. Returns the snapshot for the first one."""
    prepare(connection, LOOK, calls.WOKEN_SINCE)
    return woken_since(connection, None)[0]


def look(raw: pq.abc.PGconn, snapshot: str) -> None:
    """Ask as `woken_since` does, and do not wait for the answer: an idle client does little else all day."""
    raw.send_query_prepared(LOOK.encode(), [snapshot.encode()])
    raw.flush()


def seen(answer: Iterable[pq.abc.PGresult]) -> tuple[str, str | None]:
    """Return what the answer to `look` says. Raise `OSError` for a refusal."""
    snapshot, words = b"", None
    for result in answer:
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise OSError(result.error_message.decode(errors="replace"))
        snapshot, words = result.get_value(0, 0) or b"", result.get_value(0, 1)
    return snapshot.decode(), None if words is None else words.decode()


def remove_wake_ups(connection: RawConnection) -> int:
    """Remove rows that listeners saw long ago, a bounded part of them. Returns how many rows."""
    return int(call(connection, REMOVE, None)[0][0])
