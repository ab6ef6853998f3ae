"""The figures of a daemon for Prometheus and for supervisors: its own work, and the state of the database."""

import math
import threading
import time
from dataclasses import fields
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from msgtx.coordinator.endpoint import Endpoint, exposition, plain
from msgtx.coordinator.gauges import Gauges
from msgtx.coordinator.sweep import PACED, STEPS, Sweeper
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.errors import MsgtxError
from msgtx.store.operator.installation import describe_installation, require_version
from msgtx.store.sweeps.coordinators import Leases
from msgtx.types import SweepReport

KINDS: Final = tuple(entry.name for entry in fields(SweepReport))
ROUND_BUCKETS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds
# The database is read anew after so many seconds, and after so many times what it took: a tenth of a session's time at most.
FRESH_SECONDS: Final = 5.0
FRESH_TIMES: Final = 10
READY_SECONDS: Final = 2.0  # for the database to answer
ASKED_SECONDS: Final = 1.0  # how long that answer holds
LATE_SECONDS: Final = 30.0  # beside three intervals: a round may have much to do


class DaemonMetrics:
    """The daemon's observer; `serve` opens `/metrics`, `/healthz` and `/readyz`. Names: docs/operations/monitoring.md."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engine: Engine | None = None
        self._database: DatabaseFigures | None = None
        self._worked: float | None = None  # when shards were leased, or swept for
        self._late_seconds = LATE_SECONDS
        self._asking = threading.Lock()
        self._asked = (-math.inf, "")
        self._shards = Gauge("msgtx_coordinator_shards", "Shards that this daemon leads.", registry=self.registry)
        self._rounds = Histogram(
            "msgtx_sweep_round_seconds", "Length of a round of sweeps.", buckets=ROUND_BUCKETS, registry=self.registry
        )
        self._interval = Gauge(
            "msgtx_sweep_interval_seconds", "Time between the starts of two rounds.", registry=self.registry
        )
        self._step_seconds = Gauge(
            "msgtx_sweep_step_seconds", "Length of each sweep in the last round.", ["sweep"], registry=self.registry
        )
        self._behind = Gauge(
            "msgtx_sweep_behind_seconds",
            "Time since a paced sweep was at its end; 0 if it is.",
            ["sweep"],
            registry=self.registry,
        )
        self._swept = Counter("msgtx_swept", "What the sweeps did, by kind.", ["kind"], registry=self.registry)
        self._errors = Counter("msgtx_coordinator_errors", "Failures, by error.", ["error"], registry=self.registry)
        for name in KINDS:
            self._swept.labels(name)
        for name in STEPS:
            self._step_seconds.labels(name)
        for name in PACED:
            self._behind.labels(name)

    def watch(self, engine: Engine) -> None:
        """Show the contents of the database, too."""
        self._engine, self._database = engine, DatabaseFigures(engine)

    def serve(self, host: str, port: int) -> Endpoint:
        """Answer at http://HOST:PORT, in threads. Raise `ConfigError` if that address cannot be had."""
        pages = {
            "/metrics": lambda: exposition(self.text()),
            "/healthz": lambda: plain(HTTPStatus.OK, "alive"),
            "/readyz": self._readiness,
        }
        return Endpoint(host, port, pages)

    def text(self) -> bytes:
        """Return everything as Prometheus reads it; the contents of the database may be some seconds old."""
        return generate_latest(self.registry) + (b"" if self._database is None else self._database.text())

    def unready(self) -> str | None:
        """Return the reason why this daemon cannot work; None: nothing."""
        engine, worked = self._engine, self._worked
        if engine is None or worked is None:
            return "it has not begun, or has ended"
        silent = time.monotonic() - worked
        if silent > self._late_seconds:
            return f"its last round was {silent:.0f} s ago"
        with self._asking:
            at, answer = self._asked
            if at < time.monotonic() - ASKED_SECONDS:
                try:
                    with until(time.monotonic() + READY_SECONDS), engine.connection() as connection:
                        require_version(describe_installation(connection))
                    answer = ""
                except MsgtxError as error:
                    answer = " ".join(str(error).split())
                self._asked = (time.monotonic(), answer)
        return answer or None

    def _readiness(self) -> tuple[HTTPStatus, str, bytes]:
        reason = self.unready()
        return plain(HTTPStatus.OK, "ready") if reason is None else plain(HTTPStatus.SERVICE_UNAVAILABLE, reason)

    def leased(self, leases: Leases | None) -> None:
        """Show how many shards are led."""
        if leases is None:
            self._worked = None
        else:
            self._interval.set(leases.sweep_interval_ms / 1000)
            self._late_seconds = LATE_SECONDS + 3 * max(leases.lease_ms, leases.sweep_interval_ms) / 1000
            self._worked = time.monotonic()
        self._shards.set(0 if leases is None else len(leases.epochs))

    def swept(self, report: SweepReport, sweeper: Sweeper, seconds: float) -> None:
        """Count the results of a round."""
        now = self._worked = time.monotonic()
        self._rounds.observe(seconds)
        for name in PACED:
            self._behind.labels(name).set(now - sweeper.behind.get(name, now))
        for name in KINDS:
            self._swept.labels(name).inc(getattr(report, name))
        for name, took in sweeper.seconds.items():
            self._step_seconds.labels(name).set(took)

    def failed(self, error: Exception) -> None:
        """Count a failure."""
        self._errors.labels(type(error).__name__).inc()


class DatabaseFigures:
    """The contents of the database, as text. One request reads it; the others wait for that, or get a recent answer."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Gauges(engine))
        self._reading = threading.Lock()
        self._text = b""
        self._fresh_until = 0.0

    def text(self) -> bytes:
        """Return the figures as Prometheus reads them."""
        with self._reading:
            began = time.monotonic()
            if began >= self._fresh_until:
                self._text = generate_latest(self._registry)
                now = time.monotonic()
                self._fresh_until = now + max(FRESH_SECONDS, FRESH_TIMES * (now - began))
            return self._text
