"""After a failover or a restore: clients learn that records may be lost."""

import uuid
from dataclasses import dataclass

from msgtx.database.connection import LONG_ANSWER_SECONDS, until
from msgtx.database.pool import Engine
from msgtx.store.operator.installation import change_incarnation, end_sessions, fence_everybody


@dataclass(frozen=True, slots=True)
class FailoverReport:
    """The result of `after_failover`."""

    incarnation: uuid.UUID
    producers_fenced: int
    sessions_ended: int


def after_failover(engine: Engine) -> FailoverReport:
    """Declare that this database may lack acknowledged records: it was promoted from an asynchronous standby, or restored.

    The incarnation changes (clients made before get `IncarnationChanged`), the epoch of every producer rises, every id skips
    ahead, no shard has a leader. Transactions prepared for an outside decision stay. May be repeated; interrupted, it
    must be.
    """
    with until(silence=LONG_ANSWER_SECONDS), engine.connection() as connection:
        incarnation = change_incarnation(connection)
        fenced = fence_everybody(connection, plain=False)  # before plain ones get rows, with the epoch that fences them
        fenced += fence_everybody(connection, plain=True)
        return FailoverReport(incarnation, fenced, end_sessions(connection))
