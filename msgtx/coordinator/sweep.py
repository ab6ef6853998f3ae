"""Sweeps: the work that time brings. Each step is bounded, resumable, and safe beside clients, cron and daemons."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Final

import psycopg

from msgtx.arguments import flag, listed, text
from msgtx.coordinator.compactor import REWRITTEN_BYTES, Compactor
from msgtx.coordinator.pace import PIECE_BYTES, Pace
from msgtx.database.calls import savepoint
from msgtx.database.connection import RawConnection, until
from msgtx.database.pool import Engine
from msgtx.errors import ConfigError, MsgtxError
from msgtx.pauses import pause
from msgtx.settings import StopSignal
from msgtx.store.sweeps import sweeps
from msgtx.store.sweeps.coordinators import Leases
from msgtx.store.sweeps.sweeps import ENDS_THE_ROUND, Step, Swept
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
# What these remove or rewrite is paced, by small calls.
PACED: Final[Mapping[str, Step | type[Compactor]]] = MappingProxyType(
    {
        "deleted": partial(sweeps.remove_deleted_logs, most_bytes=PIECE_BYTES),
        "retention": partial(sweeps.remove_old_batches, most_bytes=PIECE_BYTES),
        "compaction": Compactor,
    }
)
# Of a sweep by hand that is paced: the one that cron starts a minute later finds it ended, and continues.
PACED_SECONDS: Final = 50.0


class Sweeper:
    """Rounds of sweeping: each step continues where it stopped in the round before, so a long pass takes many rounds.

    `only`: names of `STEPS`, all of them if empty. `pace`: of the steps in `PACED`; None: as fast as they can. Raise
    `ConfigError` for another name.
    """

    def __init__(self, only: Iterable[str] = (), *, pace: Pace | None = None) -> None:
        names = [text("the name of a sweep", each) for each in listed("only", only)]
        if unknown := [name for name in names if name not in STEPS]:
            raise ConfigError(f"there is no sweep {unknown[0]!r}; known are {', '.join(STEPS)}", name="steps")
        steps = STEPS if pace is None else {**STEPS, **PACED}
        wanted = {name: step for name, step in steps.items() if not names or name in names}
        # A sweep that knows more than a position keeps it itself.
        compactor = Compactor(rewritten_bytes=REWRITTEN_BYTES if pace is None else PIECE_BYTES)
        self._steps: dict[str, Step] = {name: compactor if isinstance(step, type) else step for name, step in wanted.items()}
        self._after: dict[str, Position | None] = {}
        self._rests_until: dict[str, float] = {}
        self._paces: dict[str, Pace] = {} if pace is None else dict.fromkeys(PACED, pace)
        self._rate: int | None = None  # of the pace; a round asks for it when it has to
        self._done: dict[str, int] = {}  # since the last report
        self.behind: dict[str, float] = {}  # paced steps that are not at their end, in turn, and since when
        self.seconds: dict[str, float] = {}  # that each step took in the last round
        self.failures: dict[str, MsgtxError | psycopg.Error] = {}  # since the last round began, by step

    def round(
        self, connection: RawConnection, leases: Leases | None = None, *, step_seconds: float | None = None
    ) -> SweepReport:
        """Do every step: to its end (None), or for about `step_seconds`. A step that fails does not stop the others.

        A paced step ends when a pause is due, or another one has waited for longer; `piece` continues it.
        """
        self.failures.clear()
        self._rate = None
        for name in self._steps:
            began = time.monotonic()
            self.seconds[name] = 0.0
            if step_seconds is not None and began < self._rests_until.get(name, 0.0):
                continue
            while self._may_continue(name):
                swept = self._call(connection, name, leases)
                self.seconds[name] = time.monotonic() - began
                if swept is None or swept.after is None:
                    break
                idle = not any(swept.done.values()) and not swept.is_busy
                if step_seconds is not None and (idle or self.seconds[name] >= step_seconds):
                    break
        return self._report()

    def rounds(self, connection: RawConnection, pause: Callable[[float], bool]) -> SweepReport:
        """Do a round, then continue what is behind, in turn, as long as `pause` returns True after so many seconds."""
        counted = asdict(self.round(connection))
        while self.behind and pause(self.due_in()):
            self.piece(connection)
        rest = asdict(self._report())
        return SweepReport(**{**{name: counted[name] + rest[name] for name in rest}, "sweeps_unfinished": len(self.behind)})

    def due_in(self) -> float:
        """Return the seconds until the next `piece`; infinity if every step is at its end."""
        return min((self._paces[name].due_in() for name in self.behind), default=math.inf)

    def piece(self, connection: RawConnection, leases: Leases | None = None) -> None:
        """Continue one of the steps that are behind, by one call, and each of them in turn.

        The report of the next round has its counts.
        """
        self._call(connection, next(iter(self.behind)), leases)

    def _may_continue(self, name: str) -> bool:
        may = name not in self._paces or (self._paces[name].due_in() <= 0 and next(iter(self.behind), name) == name)
        if not may:
            self.behind.setdefault(name, time.monotonic())
        return may

    def _report(self) -> SweepReport:
        done, self._done = self._done, {}
        return SweepReport(**done)

    def _call(self, connection: RawConnection, name: str, leases: Leases | None) -> Swept | None:
        """Make one call of a step and add up its counts. Returns None if it failed."""
        began = time.monotonic()
        since = self.behind.pop(name, began)
        try:
            with until(silence=STEP_ANSWER_SECONDS), savepoint(connection):
                swept = self._steps[name](connection, self._after.get(name), leases)
            self._after[name] = swept.after
            for field, count in swept.done.items():
                self._done[field] = self._done.get(field, 0) + count
            if name in self._paces and swept.bytes:
                if self._rate is None:
                    self._rate = sweeps.pace(connection)
                self._paces[name].spend(swept.bytes, rate=self._rate)
        except ENDS_THE_ROUND:
            raise
        except (MsgtxError, psycopg.Error) as error:
            self.failures[name] = error  # the next round tries again
            return None
        if swept.after is None:
            self._rests_until[name] = began + SELDOM_SECONDS.get(name, 0.0)
        elif name in self._paces:
            self.behind[name] = since  # the last in turn
        return swept


def sweep(
    engine: Engine,
    *,
    only: Iterable[str] = (),
    dry_run: bool = False,
    full_speed: bool = False,
    stop: StopSignal | None = None,
) -> SweepReport:
    """Do one round of everything and return the counts. Tries locks, never waits; may run anywhere, beside anything (I12).

    `dry_run`: do it in one SQL transaction, and take that back. `full_speed`: without pauses, which end the sweep after
    `PACED_SECONDS` otherwise, or by `stop`, which may raise. Raise the first failure of a step, after the others.
    """
    # A dry run holds its locks to the end: it may not pause.
    full_speed = flag("full_speed", full_speed) or flag("dry_run", dry_run)
    sweeper, end = Sweeper(only, pace=None if full_speed else Pace()), time.monotonic() + PACED_SECONDS

    def goes_on(seconds: float) -> bool:
        pause(min(seconds, end - time.monotonic()), stop)
        return time.monotonic() < end and not (stop is not None and stop.is_set())

    with engine.rolled_back() if dry_run else engine.connection() as connection:
        report = sweeper.rounds(connection, goes_on)
        for error in sweeper.failures.values():
            raise error
    return report
