"""The contents of the database, read when Prometheus asks: the figures behind `msgtx doctor`."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from msgtx.database.connection import RawConnection, until
from msgtx.database.pool import Engine
from msgtx.database.standby import read_again
from msgtx.errors import MsgtxError
from msgtx.store.mirrors import describe_mirrors
from msgtx.store.monitoring import (
    MeasuredPartition,
    measure_dead_letters,
    measure_groups,
    measure_lags,
    measure_partitions,
    measure_shares,
)
from msgtx.store.operator.installation import describe_place
from msgtx.store.operator.server import describe_notifications, describe_server, is_weak, snapshot_holders, table_statistics
from msgtx.store.sweeps.coordinators import list_shards
from msgtx.store.transactions.undecided import undecided_seals, undecided_transactions, unfinished_decisions

log = logging.getLogger("msgtx.coordinator")
MOST_HELD: Final = 1_000  # partitions whose waiting records are counted
UNFINISHED_AFTER_MS: Final = 10_000  # markers follow a decision within some seconds
MOST_PARTITIONS: Final = 100_000  # that are measured; some 7 s
MOST_GROUPS: Final = 10_000  # of which members are counted; some 0.2 s
MOST_LAGS: Final = 50_000  # pairs of a group and a partition of which the lag is measured; some 5 s
MOST_SHARES: Final = 10_000  # the same of share groups, some 3 s; and share groups of which dead letters are counted
MOST_MIRRORS: Final = 1_000
MOST_SHOWN: Final = 1_000  # partitions: with more of them there are figures of topics alone
MEASURING_SECONDS: Final = 6.0  # after which the rest is left out: Prometheus waits 10 s
READING_SECONDS: Final = 9.0  # for a database that does not answer
METRICS_PREFIX: Final = "msgtx_"
T = TypeVar("T")
Figures = Callable[[RawConnection, float], Iterator[Metric | None]]  # of one kind, read until a deadline


class Gauges(Collector):
    """Read afresh at each request; while the database is away there is `msgtx_database_up 0` alone.

    Figures that cannot be read leave the others there.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told: set[str] = set()  # figures of which the log has said that they cannot be read

    def collect(self) -> Iterator[Metric]:
        """Return the figures of this moment. It takes no lock, and each statement has a bound, however much there is."""
        began = time.monotonic()
        found: list[Metric | None] = []
        failed: dict[str, Exception] = {}
        for name, figures in FIGURES.items():
            try:
                engine = self._engine if name in OF_PRIMARY else self._engine.reading
                with until(began + READING_SECONDS):
                    found += read_again(engine, partial(_all_of, figures, began + MEASURING_SECONDS))
            except (MsgtxError, psycopg.Error) as error:
                failed[name] = error
        is_up = any(name not in failed for name in (FIGURES if self._engine.standby is None else OF_PRIMARY))
        yield _gauge("database_up", "Whether the database answers.", int(is_up))
        if not is_up:
            return
        for name in failed.keys() - self._told:
            log.warning("the figures of %s cannot be read: %s", name, failed[name])
        self._told = set(failed)
        yield _labelled(
            "database_reading_failed",
            "1: these figures could not be read.",
            {(name,): int(name in failed) for name in FIGURES},
        )
        yield _gauge("database_reading_seconds", "How long it took to read these figures.", time.monotonic() - began)
        yield _gauge(
            "database_reading_complete", "0: there are more topics or groups than were measured.", int(None not in found)
        )
        yield from (metric for metric in found if metric is not None)


def _all_of(figures: Figures, deadline: float, connection: RawConnection) -> list[Metric | None]:
    return list(figures(connection, deadline))


def _transactions(connection: RawConnection, _: float) -> Iterator[Metric]:
    held, partitions = undecided_transactions(connection, each_partition=1, most=MOST_HELD)
    ages = [(one.checked_at - one.opened_at).total_seconds() for one in held if one.opened_at is not None]
    waiting = sum(max(0, one.log_end_offset - one.first_offset) for one in held if one.log_end_offset is not None)
    yield _gauge("held_partitions", "Partitions whose last stable offset is below their log end.", partitions)
    yield _gauge("held_records", "Records behind the first undecided transaction of their partition.", waiting)
    yield _gauge(
        "oldest_open_transaction_seconds", "Age of the oldest transaction that holds one back.", max(ages, default=0)
    )
    yield _gauge("prepared_transactions", "Sealed and undecided.", undecided_seals(connection, most=1)[1])
    unfinished = unfinished_decisions(connection, older_than_ms=UNFINISHED_AFTER_MS, most=1)[1]
    yield _gauge("unfinished_transactions", "Decided more than 10 s ago, and markers are missing.", unfinished)
    unled = sum(shard.owner is None for shard in list_shards(connection))
    yield _gauge("shards_without_coordinator", "Shards without a living lease.", unled)


def _server(connection: RawConnection, _: float) -> Iterator[Metric]:
    server = describe_server(connection)
    yield _gauge("frozen_xid_age_transactions", "age(datfrozenxid) of the database.", server.frozen_age)
    yield _gauge("weak_synchronous_commit", "1: commits do not wait for the standby.", int(is_weak(server.settings)))
    places = describe_place(connection)
    moved = int(places is not None and places[0] != places[1])
    yield _gauge("place_is_not_noted", "1: the server was promoted or restored, or the database is a copy.", moved)
    yield _gauge("sessions", "Sessions of the server.", server.sessions)
    yield _gauge("connection_limit", "Sessions that ordinary roles may have.", server.connection_limit)
    sizes = GaugeMetricFamily(METRICS_PREFIX + "table_bytes", "Size with indexes and TOAST.", labels=["table"])
    dead = GaugeMetricFamily(METRICS_PREFIX + "table_dead_rows", "Rows that wait for VACUUM.", labels=["table"])
    for table in table_statistics(connection):
        sizes.add_metric([table.name], table.bytes)
        dead.add_metric([table.name], table.dead_rows)
    yield sizes
    yield dead


def _holders(connection: RawConnection, _: float) -> Iterator[Metric]:
    holders = snapshot_holders(connection)
    ages = [one.age for one in holders if one.age is not None]
    yield _gauge(
        "oldest_snapshot_age_transactions", "What pins the horizon, as far as the role may see.", max(ages, default=0)
    )
    seconds = [(one.checked_at - one.since).total_seconds() for one in holders if one.since is not None]
    yield _gauge("oldest_snapshot_seconds", "The same, of sessions and prepared transactions.", max(seconds, default=0))
    retained = [one.retained for one in holders if one.kind == "slot" and not one.active and one.retained is not None]
    yield _gauge("unused_slot_retained_bytes", "WAL that an unused slot keeps, the most.", max(retained, default=0))
    queue = describe_notifications(connection).usage
    yield _gauge("notification_queue_usage", "How full the queue of notifications is, 0 to 1.", queue)


def _mirrors(connection: RawConnection, _: float) -> Iterator[Metric | None]:
    found = describe_mirrors(connection)
    if len(found) > MOST_MIRRORS:
        yield None
    lags, ages, seen = {}, {}, {}
    for one in found[:MOST_MIRRORS]:
        lags[one.name,], ages[one.name,], seen[one.name,] = one.lag_records, one.lag_ms / 1000, one.seen_ms / 1000
    yield _labelled("mirror_lag_records", "What readers of its source have and the target has not.", lags)
    yield _labelled("mirror_lag_seconds", "The age of the first of these records.", ages)
    yield _labelled("mirror_seen_seconds", "Time since the mirror was heard of; it speaks each five seconds.", seen)


# ── measuring, until the deadline. None among the metrics: there is more ──


def _groups(connection: RawConnection, deadline: float) -> Iterator[Metric | None]:
    groups, more = _split(measure_groups(connection, most=MOST_GROUPS, deadline=deadline))
    yield from more
    yield _labelled("group_members", "Living members.", {(one.group_name,): one.members for one in groups})
    yield _labelled(
        "group_overdue_members",
        "Members whose session is over: their partitions wait.",
        {(one.group_name,): one.overdue for one in groups},
    )
    yield _labelled(
        "group_settled",
        "Whether each partition is where it belongs.",
        {(one.group_name,): int(one.settled) for one in groups},
    )


def _topics(connection: RawConnection, deadline: float) -> Iterator[Metric | None]:
    partitions, more = _split(measure_partitions(connection, most=MOST_PARTITIONS, deadline=deadline))
    yield from more
    yield from _of_topics(partitions)
    if len(partitions) <= MOST_SHOWN:
        yield from _of_partitions(partitions)


def _lags(connection: RawConnection, deadline: float) -> Iterator[Metric | None]:
    lags, more = _split(measure_lags(connection, most=MOST_LAGS, deadline=deadline))
    yield from more
    records: dict[tuple[str, str], int] = defaultdict(int)
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for lag in lags:
        records[lag.group_name, lag.topic] += lag.records
        seconds[lag.group_name, lag.topic] = max(seconds[lag.group_name, lag.topic], (lag.age_ms or 0) / 1000)
    yield _labelled("group_lag_records", "Records behind the committed offsets, aborted ones among them.", records)
    yield _labelled("group_lag_seconds", "Age of the oldest batch that is not read to its end.", seconds)


def _shares(connection: RawConnection, deadline: float) -> Iterator[Metric | None]:
    shares, more = _split(measure_shares(connection, most=MOST_SHARES, deadline=deadline))
    yield from more
    records: dict[tuple[str, str], int] = defaultdict(int)
    in_flight: dict[tuple[str, str], int] = defaultdict(int)
    parked: dict[tuple[str, str], int] = defaultdict(int)
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for one in shares:
        place = (one.group_name, one.topic)
        records[place] += one.records
        in_flight[place] += one.in_flight
        parked[place] += one.parked
        seconds[place] = max(seconds[place], (one.age_ms or 0) / 1000)
    yield _labelled("share_lag_records", "Records that are not done, aborted ones among them.", records)
    yield _labelled("share_lag_seconds", "Age of the oldest batch of which something is not done.", seconds)
    yield _labelled("share_in_flight_records", "Acquired, pending, or to be delivered again.", in_flight)
    yield _labelled("share_parked_records", "Delayed, or waiting for their key.", parked)
    yield _labelled("share_members", "Living members.", {(one.group_name,): one.members for one in shares})


def _dead_letters(connection: RawConnection, deadline: float) -> Iterator[Metric | None]:
    letters, more = _split(measure_dead_letters(connection, most=MOST_SHARES, deadline=deadline))
    yield from more
    yield _labelled(
        "share_dead_letters", "That were not sent back.", {(one.group_name,): one.dead_letters for one in letters}
    )


# In this order: slow figures come last, so that a timeout leaves out only them.
FIGURES: Final[Mapping[str, Figures]] = {
    "transactions": _transactions,
    "server": _server,
    "holders": _holders,
    "groups": _groups,
    "topics": _topics,
    "lags": _lags,
    "shares": _shares,
    "dead_letters": _dead_letters,
    "mirrors": _mirrors,
}
OF_PRIMARY: Final = ("transactions", "server", "holders")  # the others are measured on the standby of `read_url`


def _split(measured: Iterable[T | None]) -> tuple[list[T], list[None]]:
    """Return the measured rows, and a None if there are more."""
    found = list(measured)
    return [one for one in found if one is not None], [None] * found.count(None)


def _of_topics(partitions: list[MeasuredPartition]) -> Iterator[Metric]:
    def total(value: Callable[[MeasuredPartition], int]) -> dict[tuple[str, ...], int]:
        found: dict[tuple[str, ...], int] = defaultdict(int)
        for one in partitions:
            found[one.topic,] += value(one)
        return found

    yield _labelled("topic_partitions", "Partitions.", total(lambda _: 1))
    offsets = CounterMetricFamily(
        METRICS_PREFIX + "topic_offsets", "Offsets given out: records, aborted ones too.", labels=["topic"]
    )
    for place, value in total(lambda one: one.log_end_offset).items():
        offsets.add_metric(place, value)
    yield offsets
    yield _labelled(
        "topic_records",
        "Offsets in the log, aborted ones too.",
        total(lambda one: one.log_end_offset - one.log_start_offset),
    )
    held = total(lambda one: one.log_end_offset - one.last_stable_offset)
    yield _labelled("topic_held_records", "Records that wait for the end of a transaction.", held)
    yield _labelled("topic_bytes", "Bytes of the records, of long logs an estimate.", total(lambda one: one.bytes))


def _of_partitions(partitions: list[MeasuredPartition]) -> Iterator[Metric]:
    by_name = {(one.topic, str(one.partition_index)): one for one in partitions}
    for name, help_text in {
        "log_start_offset": "The first offset.",
        "last_stable_offset": "The end for read_committed.",
        "log_end_offset": "The next offset.",
        "bytes": "Bytes of the records, of a long log an estimate.",
    }.items():
        values = {place: getattr(one, name) for place, one in by_name.items()}
        yield _labelled(f"partition_{name}", help_text, values)


LABELS: Final = {
    "database_reading": ("figures",),
    "group_lag": ("group", "topic"),
    "share_lag": ("group", "topic"),
    "share_in_flight": ("group", "topic"),
    "share_parked": ("group", "topic"),
    "share": ("group",),
    "partition": ("topic", "partition"),
    "mirror": ("mirror",),
    "group": ("group",),
    "topic": ("topic",),
}


def _labelled(name: str, help_text: str, values: Mapping[Any, float]) -> Metric:
    labels = next(labels for prefix, labels in LABELS.items() if name.startswith(f"{prefix}_"))
    family = GaugeMetricFamily(METRICS_PREFIX + name, help_text, labels=labels)
    for place, value in values.items():
        family.add_metric(place, value)
    return family


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(METRICS_PREFIX + name, help_text, value=value)
