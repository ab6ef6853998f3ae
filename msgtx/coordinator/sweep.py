"""One round of everything that time brings: overdue transactions, missing markers, floors."""

from msgtx.database.engine import Engine
from msgtx.store.transactions import expire_transactions, mark
from msgtx.types import SweepReport


def sweep(engine: Engine) -> SweepReport:
    """Do one round and tell what it did. Tries locks and never waits; may run anywhere, beside anything (I12)."""
    with engine.connection() as connection:
        aborted = expire_transactions(connection)
        markers, floors = mark(connection, everything=True)
    return SweepReport(transactions_aborted=aborted, markers_written=markers, floors_moved=floors)
