"""The work of a process's producers, consumers and workers, for Prometheus.

    from msgtx import metrics

    metrics.watch(client)                       # in the registry of a program that shows its own
    with metrics.serving(client, port=9465):    # or at an address of its own: /metrics, /healthz
        ...

Every metric is on the page "Monitoring" (docs/operations/monitoring.md). Nothing is counted per record that is sent: figures
come with each batch, transaction and poll. Labels are topics, groups, and names of errors.
"""

import contextlib
import functools
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from msgtx import arguments, forks
from msgtx.client import Client
from msgtx.coordinator.endpoint import Endpoint, exposition, plain
from msgtx.errors import ConfigError
from msgtx.observer import Ended, Observer
from msgtx.types import Record

__all__ = ["serving", "watch"]

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RECORDS: Final = (1, 10, 100, 1_000, 10_000)
BYTE_BUCKETS: Final = (1_024, 8_192, 65_536, 262_144, 1_048_576)
NO_GROUP: Final = ""  # of a consumer without one


class Metrics(Observer):
    """The metrics of one registry. Made by `watch`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str) -> Counter:
            return Counter(f"msgtx_{name}", help_text, registry=registry)

        def counters(name: str, help_text: str, *labels: str) -> Callable[..., Counter]:
            # Looking a label up takes longer than counting.
            return functools.cache(Counter(f"msgtx_{name}", help_text, labels, registry=registry).labels)

        def histogram(name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"msgtx_{name}", help_text, buckets=buckets, registry=registry)

        def of_group(name: str, help_text: str) -> Callable[..., Histogram]:
            return functools.cache(
                Histogram(f"msgtx_{name}", help_text, ["group"], buckets=SECONDS, registry=registry).labels
            )

        self._sent = counters("producer_records", "Records that were stored.", "topic")
        self._sent_bytes = counters("producer_bytes", "Bytes of records that were stored.", "topic")
        self._batch_records = histogram("producer_batch_records", "Records of a batch.", RECORDS)
        self._batch_bytes = histogram("producer_batch_bytes", "Bytes of a batch.", BYTE_BUCKETS)
        self._send_seconds = histogram("producer_send_seconds", "From a batch's first record to its answer.", SECONDS)
        self._retries = counter("producer_retries", "Times that a batch was sent again.")
        self._send_errors = counters("producer_errors", "Batches that failed, by error.", "error")
        self._transactions = counters("transactions", "Transactions that ended, by outcome.", "outcome")
        self._commit_seconds = histogram("transaction_commit_seconds", "Length of a commit.", SECONDS)
        self._transaction_errors = counters("transaction_errors", "Calls of a transaction that raised, by error.", "error")
        self._polls = counters("consumer_polls", "Polls.", "group")
        self._received = counters("consumer_records", "Records that were handed out.", "group", "topic")
        self._poll_errors = counters("consumer_errors", "Polls that raised, by error.", "group", "error")
        self._handler_seconds = of_group("worker_handler_seconds", "Length of a call of the handler.")
        self._attempts = counters("worker_transactions", "A worker's transactions, by outcome.", "group", "outcome")
        self._attempt_seconds = of_group(
            "worker_transaction_seconds", "Length of a worker's transaction that was committed."
        )
        self._handled = counters("worker_records", "Records of a worker's committed transactions.", "group")
        self._failures = counters(
            "worker_errors", "A worker's transactions that failed, to be tried again or not.", "group", "error"
        )
        self._dead = counters("worker_dead_letters", "Records that were sent to dead letters.", "group", "topic")
        self._waiting = Gauge(
            "msgtx_worker_waiting_partitions",
            "Partitions that wait for a record that fails; of a share group, members.",
            ["group"],
            registry=registry,
        )
        self._skipped = counters("worker_skipped_records", "Records that were left out.", "group")
        for outcome in ("committed", "aborted"):
            self._transactions(outcome)
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        registry.register(_Lags(self._clients))

    def watch(self, client: Client) -> None:
        """Count the work of this client's producers, consumers and workers."""
        self._clients.add(client)
        client.observe(self)

    def forget(self, client: Client) -> None:
        """Stop counting."""
        self._clients.discard(client)
        client.runtime.observers.remove(self)

    def batch_settled(
        self, topic: str, *, records: int, size: int, seconds: float, retries: int, error: BaseException | None
    ) -> None:
        """Count a batch."""
        if retries:
            self._retries.inc(retries)
        if error is not None:
            self._send_errors(type(error).__name__).inc()
            return
        self._sent(topic).inc(records)
        self._sent_bytes(topic).inc(size)
        self._batch_records.observe(records)
        self._batch_bytes.observe(size)
        self._send_seconds.observe(seconds)

    def transaction_ended(self, producer: object, outcome: Ended, seconds: float) -> None:
        """Count a transaction."""
        self._transactions(outcome).inc()
        if outcome == "committed":
            self._commit_seconds.observe(seconds)

    def transaction_failed(self, producer: object, error: Exception) -> None:
        """Count an error."""
        self._transaction_errors(type(error).__name__).inc()

    def polled(self, group: str | None) -> None:
        """Count a poll."""
        self._polls(group or NO_GROUP).inc()

    def received(self, group: str | None, counts: Mapping[str, int], records: Sequence[Record], since: float | None) -> None:
        """Count records."""
        for topic, count in counts.items():
            self._received(group or NO_GROUP, topic).inc(count)

    def poll_failed(self, group: str | None, error: Exception) -> None:
        """Count an error."""
        self._poll_errors(group or NO_GROUP, type(error).__name__).inc()

    def working(self, group: str, dead_letter: str | None) -> None:
        """Show zeros from the start: of a counter that appears as 1 Prometheus sees no increase."""
        for outcome in ("committed", "aborted"):
            self._attempts(group, outcome)
        self._handled(group)
        self._skipped(group)
        self._waiting.labels(group)
        if dead_letter is not None:
            self._dead(group, dead_letter)

    def handling(self, group: str, records: Sequence[Record]) -> AbstractContextManager[object]:
        """Take the time of a handler."""
        return self._handler_seconds(group).time()

    def attempted(self, group: str, *, records: int, seconds: float, error: Exception | None) -> None:
        """Count a worker's transaction."""
        self._attempts(group, "committed" if error is None else "aborted").inc()
        if error is not None:
            self._failures(group, type(error).__name__).inc()
            return
        self._handled(group).inc(records)
        self._attempt_seconds(group).observe(seconds)

    def waiting(self, group: str, change: int) -> None:
        """Show partitions that wait."""
        self._waiting.labels(group).inc(change)

    def set_aside(self, group: str, records: int, dead_letter: str | None) -> None:
        """Count records that were not handled."""
        if dead_letter is None:
            self._skipped(group).inc(records)
        else:
            self._dead(group, dead_letter).inc(records)


class _Lags(Collector):
    """The lag of consumers at the moment of a scrape. The database is not asked."""

    def __init__(self, clients: "weakref.WeakSet[Client]") -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        lags: dict[tuple[str, str], int] = defaultdict(int)
        partitions: dict[tuple[str, str], int] = defaultdict(int)
        behind: dict[tuple[str, str], int] = defaultdict(int)
        for client in list(self._clients):
            for consumer in client.runtime.consumers():
                group = consumer.config.group or NO_GROUP
                for partition, lag in consumer._known_lag().items():
                    lags[group, partition.topic] += lag
                    partitions[group, partition.topic] += 1
                for partition, lag in consumer._standby_lag().items():
                    behind[group, partition.topic] += lag
        for name, help_text, values in (
            ("consumer_lag_records", "Records behind the end that was seen last.", lags),
            ("consumer_partitions", "Partitions that are being read.", partitions),
            ("consumer_standby_lag_records", "Records of the primary that the standby of read_url does not show.", behind),
        ):
            family = GaugeMetricFamily(f"msgtx_{name}", help_text, labels=["group", "topic"])
            for place, value in values.items():
                family.add_metric(place, value)
            yield family


_known: "weakref.WeakKeyDictionary[CollectorRegistry, Metrics]" = weakref.WeakKeyDictionary()
_making = threading.Lock()
os.register_at_fork(after_in_child=lambda: forks.release(_making))


def watch(client: Client, *, registry: CollectorRegistry = REGISTRY) -> None:
    """Show the work of this client's producers, consumers and workers in a registry. Several clients add up there.

    Before a worker is started. Of an asynchronous client give `client.sync`. Raise `ConfigError` if it is none.
    """
    _watched(client, registry)


def _require(client: object) -> None:
    if not isinstance(client, Client):
        raise ConfigError(
            f"metrics.watch takes a client of msgtx.connect (of msgtx.aio its .sync), not {type(client).__name__}",
            name="client",
        )


def _watched(client: Client, registry: CollectorRegistry) -> Metrics:
    _require(client)
    arguments.an_instance("registry", registry, CollectorRegistry, "a CollectorRegistry of prometheus_client")
    with _making:
        found = _known.get(registry)
        if found is None:
            found = _known[registry] = Metrics(registry)
    found.watch(client)
    return found


@contextlib.contextmanager
def serving(client: Client, *, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Answer at http://HOST:PORT/metrics, and /healthz, within the block; return the port (0: any free one).

    Before a worker is started. Raise `ConfigError` if the address cannot be had.
    """
    _require(client)
    host, port = arguments.text("host", host), arguments.whole("port", port, most=65_535)
    registry = CollectorRegistry()
    endpoint = Endpoint(
        host,
        port,
        {
            "/metrics": lambda: exposition(generate_latest(registry)),
            "/healthz": lambda: plain(HTTPStatus.OK, "alive"),
        },
    )
    with contextlib.closing(endpoint):
        metrics = _watched(client, registry)
        try:
            yield endpoint.port
        finally:
            metrics.forget(client)
