"""The daemon: leases shards, sweeps for them once per interval, and hands them over when it stops."""

import logging
import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Final, Protocol

from msgtx.coordinator.pace import Pace
from msgtx.coordinator.sweep import Sweeper
from msgtx.database.connection import Connection, until
from msgtx.database.pool import Engine
from msgtx.errors import CoordinatorFenced, DatabaseUnavailable, MsgtxError, NotCoordinator, RetriableError
from msgtx.settings import StopSignal
from msgtx.store.sweeps.coordinators import Leases, lease_shards, ranges, release_shards
from msgtx.types import SweepReport

log = logging.getLogger("msgtx.coordinator")
STEP_SECONDS: Final = 0.2  # of one round for one sweep that has much to do; the next round goes on
LOOK_FOR_STOP_SECONDS: Final = 0.05  # between two looks at whether to stop
HANDOVER_SECONDS: Final = 10.0  # for handing shards over at the end; else their lease ends by itself
BACKOFF_FIRST_SECONDS: Final = 0.1  # between attempts while the database is away; doubled each time
BACKOFF_LAST_SECONDS: Final = 5.0


class DaemonObserver(Protocol):
    """An observer of the daemon: its metrics."""

    def leased(self, leases: Leases | None) -> None:
        """Take note of the shards that are led now; None: of none."""

    def swept(self, report: SweepReport, sweeper: Sweeper, seconds: float) -> None:
        """Record the result of a round, and how long it took."""

    def failed(self, error: Exception) -> None:
        """Take note that a round could not be done."""


class Daemon:
    """One coordinator process. Two of them divide the shards; one that dies loses them within `lease_ms`.

    Each call to the database carries shards and coordinator epochs, and is refused if one has passed to another: a daemon
    that was stopped and continues does no harm. Nothing of it is needed for correctness: clients decide and mark by
    themselves, and `msgtx sweep` does a daemon's round once.
    """

    def __init__(self, engine: Engine, *, observer: DaemonObserver | None = None) -> None:
        self._engine = engine
        self._observer = observer
        self._sweeper = Sweeper(pace=Pace())
        self._leases: Leases | None = None
        self._coordinator_id: int | None = None
        self._renew_at = 0.0
        self._backoff: float | None = None  # after a failure: seconds until the next attempt
        self._away = 0  # attempts since the database answered last

    def run(self, stop: StopSignal) -> None:
        """Work until `stop` is set, then release the shards. Raise errors that no wait fixes (rights, schema)."""
        log.info("coordinator %s:%d starts", socket.gethostname(), os.getpid(), extra={"event": "start"})
        try:
            while not stop.is_set():
                began = time.monotonic()
                pause = self._work()
                if self._backoff is None:  # what is behind has its share of the time, also when rounds are long
                    pause = max(pause, time.monotonic() - began + len(self._sweeper.behind) * STEP_SECONDS)
                while not stop.is_set() and (left := began + pause - time.monotonic()) > 0:
                    if (due_in := self._due_in()) > 0:
                        time.sleep(min(left, due_in, LOOK_FOR_STOP_SECONDS))
                    else:
                        self._backoff = self._attempt(self._piece)
        finally:
            self._release()

    def _work(self) -> float:
        """Renew due leases, do a round. Returns after how many seconds, from its begin, the next one is due."""
        self._backoff = self._attempt(self._round)
        if self._backoff is not None:
            return self._backoff
        assert self._leases is not None
        return min(self._leases.sweep_interval_ms / 1000, max(0.0, self._renew_at - time.monotonic()))

    def _attempt(self, work: Callable[[Connection], None]) -> float | None:
        """Work on a connection. Returns, after a failure, the seconds until the next attempt."""
        try:
            with self._engine.connection() as connection:
                work(connection)
        except (CoordinatorFenced, NotCoordinator) as error:
            log.warning("shards were taken over: %s", error, extra={"event": "fenced"})
            self._failed(error)
            self._renew_at = 0.0
            return BACKOFF_FIRST_SECONDS
        except RetriableError as error:
            return self._wait_for_the_database(error)
        if self._away:
            log.info("the database answers again", extra={"event": "database_back"})
        self._away = 0
        return None

    def _round(self, connection: Connection) -> None:
        if time.monotonic() >= self._renew_at:
            self._take(lease_shards(connection, self._coordinator_id, host=socket.gethostname(), process=os.getpid()))
        if self._led():
            began = time.monotonic()
            report = self._sweeper.round(connection, self._leases, step_seconds=STEP_SECONDS)
            self._tell(report, time.monotonic() - began)

    def _piece(self, connection: Connection) -> None:
        """Continue what its pace has interrupted."""
        self._sweeper.piece(connection, self._leases)
        self._tell_failures()

    def _due_in(self) -> float:
        """Return the seconds until the next piece; infinity if there is none before the next round."""
        return self._sweeper.due_in() if self._backoff is None and self._led() else math.inf

    def _led(self) -> bool:
        return self._leases is not None and bool(self._leases.epochs)

    def _take(self, leases: Leases) -> None:
        """Note and report the led shards."""
        before = {} if self._leases is None else self._leases.epochs
        gained = sorted(shard for shard, epoch in leases.epochs.items() if before.get(shard) != epoch)
        lost = sorted(before.keys() - leases.epochs.keys())
        extra = {"coordinator_id": leases.coordinator_id}
        if self._coordinator_id not in {None, leases.coordinator_id}:
            text = "shards were taken over: the lease of coordinator %d was over; now it is coordinator %d"
            log.warning(text, self._coordinator_id, leases.coordinator_id, extra={"event": "fenced", **extra})
        if gained:
            log.info("leads shards %s", ranges(gained), extra={"event": "shards_gained", "shards": gained, **extra})
        if lost:
            log.info("leads no longer shards %s", ranges(lost), extra={"event": "shards_lost", "shards": lost, **extra})
        self._leases, self._coordinator_id = leases, leases.coordinator_id
        self._renew_at = time.monotonic() + leases.look_again_ms / 1000
        if self._observer is not None:
            self._observer.leased(leases)

    def _tell(self, report: SweepReport, seconds: float) -> None:
        for field, count in asdict(report).items():
            if count:
                log.info("%s: %d", field.replace("_", " "), count, extra={"event": field, "count": count})
        self._tell_failures()
        if self._observer is not None:
            self._observer.swept(report, self._sweeper, seconds)

    def _tell_failures(self) -> None:
        for name, error in self._sweeper.failures.items():
            log.warning("sweep %s failed, the next round tries again: %s", name, error, extra={"event": "sweep_failed"})
            self._failed(error)
        self._sweeper.failures.clear()

    def _wait_for_the_database(self, error: MsgtxError) -> float:
        if not self._away:
            what = "is away" if isinstance(error, DatabaseUnavailable) else "holds this round up"
            log.warning("the database %s: %s", what, error, extra={"event": "database_away"})
        self._failed(error)
        pause: float = min(BACKOFF_LAST_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(self._away, 16))
        self._away += 1
        return pause

    def _failed(self, error: Exception) -> None:
        if self._observer is not None:
            self._observer.failed(error)

    def _release(self) -> None:
        if self._coordinator_id is None:
            return
        try:
            with until(time.monotonic() + HANDOVER_SECONDS), self._engine.connection() as connection:
                release_shards(connection, self._coordinator_id)
            log.info("coordinator %d stops", self._coordinator_id, extra={"event": "stop"})
        except MsgtxError as error:
            log.warning("its shards stay until its lease is over: %s", error, extra={"event": "release_failed"})
        self._leases = self._coordinator_id = None
        if self._observer is not None:
            self._observer.leased(None)
