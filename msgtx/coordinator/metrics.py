"""What a daemon shows to Prometheus: what it did, and what the database holds when it is asked."""

import threading
from dataclasses import fields
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from msgtx.coordinator.gauges import Gauges
from msgtx.coordinator.sweep import STEPS, Sweeper
from msgtx.database.pool import Engine
from msgtx.errors import ConfigError
from msgtx.store.coordinators import Leases
from msgtx.types import SweepReport

KINDS: Final = tuple(entry.name for entry in fields(SweepReport))
ROUND_BUCKETS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds


class Metrics:
    """The daemon's observer; `serve` opens the endpoint `/metrics`. Names: internals: coordinator#metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._shards = Gauge("msgtx_coordinator_shards", "Shards that this daemon leads.", registry=self.registry)
        self._rounds = Histogram(
            "msgtx_sweep_round_seconds", "Length of a round of sweeps.", buckets=ROUND_BUCKETS, registry=self.registry
        )
        self._step_seconds = Gauge(
            "msgtx_sweep_step_seconds", "Length of each sweep in the last round.", ["sweep"], registry=self.registry
        )
        self._swept = Counter("msgtx_swept", "What the sweeps did, by kind.", ["kind"], registry=self.registry)
        self._errors = Counter("msgtx_coordinator_errors", "Failures, by error.", ["error"], registry=self.registry)
        for name in KINDS:
            self._swept.labels(name)
        for name in STEPS:
            self._step_seconds.labels(name)

    def watch(self, engine: Engine) -> None:
        """Show what the database holds, too: it is read at each request."""
        self.registry.register(Gauges(engine))

    def serve(self, host: str, port: int) -> "Endpoint":
        """Answer at http://HOST:PORT/metrics, in a thread. Raise `ConfigError` if that address cannot be had."""
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise ConfigError(f"metrics cannot be served at {host}:{port}: {error.strerror or error}") from error
        return Endpoint(server, thread)

    def leased(self, leases: Leases | None) -> None:
        """Show how many shards are led."""
        self._shards.set(0 if leases is None else len(leases.epochs))

    def swept(self, report: SweepReport, sweeper: Sweeper, seconds: float) -> None:
        """Count what a round did."""
        self._rounds.observe(seconds)
        for name in KINDS:
            self._swept.labels(name).inc(getattr(report, name))
        for name, took in sweeper.seconds.items():
            self._step_seconds.labels(name).set(took)

    def failed(self, error: Exception) -> None:
        """Count a failure."""
        self._errors.labels(type(error).__name__).inc()


class Endpoint:
    """The HTTP server of the metrics; close it."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
