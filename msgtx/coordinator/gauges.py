"""What the database holds, read when Prometheus asks: the figures behind `msgtx doctor`."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.errors import MsgtxError
from msgtx.store.coordinators import list_shards
from msgtx.store.server import describe_server, snapshot_holders, table_statistics
from msgtx.store.undecided import undecided_seals, undecided_transactions, unfinished_decisions

MOST_HELD: Final = 1_000  # partitions of which the records that wait are counted
UNFINISHED_AFTER_MS: Final = 10_000  # markers follow a decision within some seconds
PREFIX: Final = "msgtx_"


class Gauges(Collector):
    """Read afresh at each request; while the database is away there is `msgtx_database_up 0` alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Return the figures of this moment."""
        try:
            with self._engine.connection() as connection:
                found = [*_transactions(connection), *_server(connection)]
        except MsgtxError:
            found = []
        yield _gauge("database_up", "Whether the database answers.", int(bool(found)))
        yield from found


def _transactions(connection: RawConnection) -> Iterator[Metric]:
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


def _server(connection: RawConnection) -> Iterator[Metric]:
    server = describe_server(connection)
    ages = [holder.age for holder in snapshot_holders(connection) if holder.age is not None]
    yield _gauge(
        "oldest_snapshot_age_transactions", "What pins the horizon, as far as the role may see.", max(ages, default=0)
    )
    yield _gauge("frozen_xid_age_transactions", "age(datfrozenxid) of the database.", server.frozen_age)
    yield _gauge("sessions", "Sessions of the server.", server.sessions)
    yield _gauge("connection_limit", "Sessions that ordinary roles may have.", server.connection_limit)
    sizes = GaugeMetricFamily(PREFIX + "table_bytes", "Size with indexes and TOAST.", labels=["table"])
    dead = GaugeMetricFamily(PREFIX + "table_dead_rows", "Rows that wait for VACUUM.", labels=["table"])
    for table in table_statistics(connection):
        sizes.add_metric([table.name], table.bytes)
        dead.add_metric([table.name], table.dead_rows)
    yield sizes
    yield dead


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_text, value=value)
