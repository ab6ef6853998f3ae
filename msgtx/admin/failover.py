"""After a failover or a restore: clients learn that records may be lost."""

import uuid
from dataclasses import dataclass
from typing import Final

from msgtx.database.connection import LONG_ANSWER_SECONDS, until
from msgtx.database.pool import Engine
from msgtx.store.operator.installation import (
    change_incarnation,
    end_sessions,
    fence_everybody,
    remove_all_members,
)

# What each kind of client sees after `after_failover`, and what is to be done.
SEEN: Final = (
    ("producer, consumer, share consumer", "IncarnationChanged", "make a new client; send lost records again"),
    ("process, process_into, process_shares", "end with IncarnationChanged", "start them again"),
    (
        "publish and SQL functions without a client",
        "a warning in the log: rows and messages are lost together",
        "look at your own tables",
    ),
    ("Spark streams", "end with IncarnationChanged", "begin a new checkpoint; with a group, it reads on from its offsets"),
    ("msgtx coordinator run", "ends with exit code 1", "its supervisor starts it again"),
    ("snapshots, tokens of prepared transactions", "are refused: IncarnationChanged", "make new ones"),
)


@dataclass(frozen=True, slots=True)
class FailoverReport:
    """The result of `after_failover`."""

    incarnation: uuid.UUID
    producers_fenced: int
    sessions_ended: int
    sessions_not_ended: int  # of roles whose sessions this role may not end: they learn of it with their next connection
    members_removed: int


def after_failover(engine: Engine) -> FailoverReport:
    """Declare that this database may lack acknowledged records: it was promoted from an asynchronous standby, or restored.

    The incarnation changes (clients made before get `IncarnationChanged`), the epoch of every producer rises, every id skips
    ahead, no shard has a leader, no group has members. Transactions prepared for an outside decision stay. May be repeated;
    interrupted, it must be.
    """
    with until(silence=LONG_ANSWER_SECONDS), engine.connection() as connection:
        incarnation = change_incarnation(connection)
        fenced = fence_everybody(connection, plain=False)  # before plain ones get rows, with the epoch that fences them
        fenced += fence_everybody(connection, plain=True)
        ended, not_ended = end_sessions(connection)
        removed = remove_all_members(connection)  # last: a session that lives would join again
        return FailoverReport(incarnation, fenced, ended, not_ended, removed)
