"""Sweeps: the work that time brings. Each step is bounded, resumable, and safe beside clients, cron and daemons."""

import logging
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import psycopg

from msgtx.arguments import flag, listed, text
from msgtx.coordinator.compactor import Compactor
from msgtx.database.calls import savepoint
from msgtx.database.connection import RawConnection, until
from msgtx.database.pool import Engine
from msgtx.errors import ConfigError, MsgtxError
from msgtx.store.sweeps import sweeps
from msgtx.store.sweeps.coordinators import Leases
from msgtx.store.sweeps.sweeps import ENDS_THE_ROUND, Step
from msgtx.store.transactions.transactions import Position
from msgtx.types import SweepReport

log = logging.getLogger("msgtx.coordinator")

# In this order: an abort gets its markers, markers move the floor, and rows below the floor may be removed.
STEPS: Final[Mapping[str, Step | type[Compactor]]] = MappingProxyType(
    {
        "overdue": sweeps.expire_step,
        "markers": sweeps.mark_step,
        "acknowledgements": sweeps.settle_shares,
        "seals": sweeps.remove_decided_seals,
        "deleted": sweeps.remove_deleted_logs,
        "retention": sweeps.remove_old_batches,
        "compaction": Compactor,
        "ids": sweeps.remove_idle_producers,
        "history": sweeps.purge_transactions,
        "offsets": sweeps.remove_superseded_offsets,
        "floors": sweeps.remove_superseded_floors,
        "members": sweeps.remove_members,
        "heartbeats": sweeps.remove_heartbeats,
        "shares": sweeps.remove_superseded_shares,
        "spark": sweeps.remove_spark_history,
        "dedup": sweeps.remove_dedup_keys,
        "wakeups": sweeps.remove_old_wake_ups,
    }
)
# For one step, which looks at a bounded number of rows: many times its duration on a slow disk. A daemon that hangs for
# so long has lost its leases, and others do its work.
STEP_ANSWER_SECONDS: Final = 600.0
# These steps pause for this many seconds after a pass: their work builds up slowly.
SELDOM_SECONDS: Final[Mapping[str, float]] = MappingProxyType({"retention": 10.0, "compaction": 15.0})


class Sweeper:
    """Rounds of sweeping: each step continues where it stopped in the round before, so a long pass takes many rounds.

    `only`: names of `STEPS`, all of them if empty. Raise `ConfigError` for another name.
    """

    def __init__(self, only: Iterable[str] = ()) -> None:
        names = [text("the name of a sweep", each) for each in listed("only", only)]
        if unknown := [name for name in names if name not in STEPS]:
            raise ConfigError(f"there is no sweep {unknown[0]!r}; known are {', '.join(STEPS)}", name="steps")
        wanted = {name: step for name, step in STEPS.items() if not names or name in names}
        # A sweep that knows more than a position keeps it itself.
        self._steps: dict[str, Step] = {name: step() if isinstance(step, type) else step for name, step in wanted.items()}
        self._after: dict[str, Position | None] = {}
        self._rests_until: dict[str, float] = {}
        self.seconds: dict[str, float] = {}  # that each step took in the last round
        self.failures: dict[str, MsgtxError | psycopg.Error] = {}  # of the last round

    def round(
        self, connection: RawConnection, leases: Leases | None = None, *, step_seconds: float | None = None
    ) -> SweepReport:
        """Do every step: to its end (None), or for about `step_seconds`. A step that fails does not stop the others."""
        done: dict[str, int] = {}
        self.failures.clear()
        for name, step in self._steps.items():
            began = time.monotonic()
            if step_seconds is not None and began < self._rests_until.get(name, 0.0):
                self.seconds[name] = 0.0
                continue
            try:
                while True:
                    with until(silence=STEP_ANSWER_SECONDS), savepoint(connection):
                        swept = step(connection, self._after.get(name), leases)
                    self._after[name] = swept.after
                    for field, count in swept.done.items():
                        done[field] = done.get(field, 0) + count
                    self.seconds[name] = time.monotonic() - began
                    idle = not any(swept.done.values()) and not swept.is_busy
                    if swept.after is None:
                        self._rests_until[name] = began + SELDOM_SECONDS.get(name, 0.0)
                        break
                    if step_seconds is not None and (idle or self.seconds[name] >= step_seconds):
                        break
            except ENDS_THE_ROUND:
                raise
            except (MsgtxError, psycopg.Error) as error:
                self.failures[name] = error
        return SweepReport(**done)


def sweep(engine: Engine, *, only: Iterable[str] = (), dry_run: bool = False) -> SweepReport:
    """Do one round of everything and return the counts. Tries locks, never waits; may run anywhere, beside anything (I12).

    `dry_run`: do it in one SQL transaction, and take that back. Raise the first failure of a step, after the others.
    """
    sweeper, dry_run = Sweeper(only), flag("dry_run", dry_run)
    with engine.rolled_back() if dry_run else engine.connection() as connection:
        report = sweeper.round(connection)
        for error in sweeper.failures.values():
            raise error
    return report
