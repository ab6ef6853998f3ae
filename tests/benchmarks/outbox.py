"""R9, the part against the usual outbox: one message in each business transaction, sent with it and delivered.

An outbox is a table that the transaction inserts into. Its poller selects up to 500 rows FOR UPDATE SKIP LOCKED, delivers
them, and deletes them; it looks again after 10 ms without rows, or is woken by a trigger's NOTIFY. It delivers to its own
process (the shortest way), or it relays to a topic, which has consumers.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

import psycopg

import msgtx
from msgtx.cli.programs import perf
from msgtx.client import Client
from msgtx.types import TopicPartition
from tests.benchmarks import baselines, shop
from tests.benchmarks.deliveries import TAKE, read_log, read_outbox, relay
from tests.benchmarks.latency import postmaster_of, server_seconds
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step, number, progress
from tests.benchmarks.sweeping import own_server

PARTITIONS: Final = 6
SESSIONS: Final = (1, 8)
RATES: Final = (50, 200)
MESSAGES: Final = 20_000  # of a measurement of growth
WRITERS: Final = 4  # sessions that write them
LOOKS: Final = 20
STATISTICS_SECONDS: Final = 2.0  # until the server counts what its sessions did


@dataclass(frozen=True, slots=True)
class Way:
    """How a business transaction's message is sent, and how it is delivered."""

    name: str
    send: str  # of shop.SENDS
    isolation: str = "READ COMMITTED"
    notified: bool = False
    relayed: bool = False

    @property
    def logged(self) -> bool:
        """Whether a topic's consumer gets the messages."""
        return self.relayed or self.send in {"publish", "function"}


PLAIN: Final = Way("no message", "nothing")
PUBLISH: Final = Way("publish", "publish")
STRICT: Final = Way("publish at REPEATABLE READ", "publish", "REPEATABLE READ")
FUNCTION: Final = Way("msgtx.publish in SQL", "function")
POLLED: Final = Way("outbox, polled", "outbox")
NOTIFIED: Final = Way("outbox, notified", "outbox", notified=True)
WAYS: Final = (
    PLAIN, PUBLISH, STRICT, FUNCTION, POLLED, NOTIFIED,
    Way("outbox, polled, relayed", "outbox", relayed=True),
    Way("outbox, notified, relayed", "outbox", notified=True, relayed=True),
)  # fmt: skip
GROWING: Final = (PLAIN, PUBLISH, STRICT, FUNCTION, POLLED)


def outbox(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    with opened() as (url, client):
        with baselines.connect(url) as connection:
            missing = () if shop.has_function(connection) else (FUNCTION,)
        with shop.sessions(max(SESSIONS)) as sessions:
            measures = Measures(url, client, sessions)
            ways = [way for way in WAYS if way not in missing]
            rounds.run(_speeds(measures, ways, settings.seconds), rounds=settings.rounds)
    messages = max(100, int(MESSAGES * min(1.0, settings.seconds / 3)))
    for way in (way for way in GROWING if way not in missing):
        for held in (False, True):
            _grow(rounds, way, messages, held=held)
    return rounds.judge(_claims(messages)) + [_not_there(way) for way in missing]


def _speeds(measures: "Measures", ways: list[Way], seconds: float) -> dict[str, Step]:
    steps: dict[str, Step] = {}
    for count in SESSIONS:
        for way in ways:
            name = f"{way.name}, {count}"
            steps[name] = lambda way=way, count=count: measures.rate(way, sessions=count, seconds=seconds)
            if not way.relayed:
                steps[f"{name}, alone"] = lambda way=way, count=count: measures.rate(
                    way, sessions=count, seconds=seconds, read=False
                )
    for rate in RATES:
        for way in ways:
            steps[f"{way.name}, {rate}/s"] = lambda way=way, rate=rate: measures.delays(way, rate=rate, seconds=seconds)
    return steps


@contextmanager
def opened() -> Iterator[tuple[str, Client]]:
    """A server of its own with the shop's tables: the growth of some is measured."""
    with own_server() as url, msgtx.connect(url, create=True) as client:
        with baselines.connect(url) as connection:
            connection.execute(shop.TABLES, prepare=False)
        yield url, client


# Speed


@dataclass(frozen=True, slots=True)
class Measures:
    """The measurements on a server, with sessions in lasting processes."""

    url: str
    client: Client
    sessions: shop.Sessions

    def rate(self, way: Way, *, sessions: int, seconds: float, read: bool = True) -> dict[str, float]:
        """Return business transactions/s, and what the server spent on them, or how long readers lagged."""
        with self.read_by(way, read=read) as (topic, delivered):
            task = shop.Task(url=self.url, send=way.send, isolation=way.isolation, topic=topic, seconds=seconds)
            before = self._server_seconds()
            sent, warm = self.sessions.run(task, sessions=sessions)
            spent = self._server_seconds() - before
            arrived = delivered(len(sent) + len(warm))
        ended = max(each.committed for each in sent)
        figures = {"": len(sent) / (ended - min(each.began for each in sent))}
        if not read:
            figures[", server"] = 1e6 * spent / (len(sent) + len(warm))
        elif arrived:
            figures[", behind"] = 1000 * (max(arrived.values()) - ended)
        return figures

    def delays(self, way: Way, *, rate: float, seconds: float) -> dict[str, float]:
        """Return the milliseconds of a business transaction, and from its commit's return to its message's delivery."""
        with self.read_by(way) as (topic, delivered):
            task = shop.Task(
                url=self.url, send=way.send, isolation=way.isolation, topic=topic, count=int(rate * seconds), rate=rate
            )
            sent, warm = self.sessions.run(task, sessions=1)
            arrived = delivered(len(sent) + len(warm))
        figures = _spread(" transaction", [each.committed - each.began for each in sent])
        return figures | (_spread("", [arrived[each.key] - each.committed for each in sent]) if arrived else {})

    def _server_seconds(self) -> float:
        with baselines.connect(self.url) as connection:
            return server_seconds(postmaster_of(connection) or 0)

    @contextmanager
    def read_by(self, way: Way, *, read: bool = True) -> Iterator[tuple[str, Callable[[int], Mapping[str, float]]]]:
        """Start from empty tables and a fresh topic, with readers; at the end they report when each message came."""
        with baselines.connect(self.url) as connection:
            connection.execute("truncate shop.customer_order, shop.outbox")
            connection.execute(f"alter table shop.outbox {'enable' if way.notified else 'disable'} trigger tell")
        with perf.temporary_topic(self.client, PARTITIONS) as topic, ExitStack() as stack:
            total: Any = get_context("spawn").Value("q", -1, lock=False)
            answers = [
                stack.enter_context(perf.reading(reader))
                for reader in (_readers(way, self.url, topic, total) if read else ())
            ]

            def delivered(count: int) -> Mapping[str, float]:
                total.value = count
                arrived: Any = [answer() for answer in answers]
                return dict(arrived[0]) if arrived else {}

            yield topic, delivered
        baselines.tidy(self.url)


def _readers(way: Way, url: str, topic: str, total: Any) -> Iterator[Callable[[Pipe], None]]:
    """Yield the processes that deliver; the first is the end of the chain."""
    if way.logged:
        yield partial(read_log, url, topic, total)
    if way.relayed:
        yield partial(relay, url, way.notified, total)
    elif way.send == "outbox":
        yield partial(read_outbox, url, way.notified, total)


def _spread(name: str, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * each for each in seconds)
    return {f"{name} p50": perf.percentile(ordered, 0.5), f"{name} p99": perf.percentile(ordered, 0.99)}


# Growth

STATE: Final = """
    select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8, sum(pg_total_relation_size(t.relid))::float8,
           sum(pg_relation_size(t.relid))::float8, sum(pg_indexes_size(t.relid))::float8, sum(t.n_dead_tup)::float8
    from pg_stat_user_tables t where t.schemaname = 'msgtx' or t.relname = 'outbox'"""
PARTS: Final = ("WAL", "tables", "heap", "indexes", "dead")


def _grow(rounds: Rounds, way: Way, messages: int, *, held: bool) -> None:
    """Send and deliver messages on a fresh server, optionally beside an open snapshot; note what that leaves behind."""
    name = f"{way.name}, {'held' if held else 'free'}"
    with (
        opened() as (url, client),
        shop.sessions(WRITERS) as sessions,
        baselines.connect(url) as connection,
        baselines.connect(url) as other,
        Measures(url, client, sessions).read_by(way) as (topic, delivered),
    ):
        if held:
            other.execute("begin isolation level repeatable read")
            other.execute("select count(*) from shop.customer_order")
        before = connection.execute(STATE).fetchall()[0]
        each = messages // WRITERS - shop.WARM_UP
        task = shop.Task(url=url, send=way.send, isolation=way.isolation, topic=topic, count=each)
        sent, warm = sessions.run(task, sessions=WRITERS)
        count = len(sent) + len(warm)
        arrived = delivered(count)
        time.sleep(STATISTICS_SECONDS)
        after = connection.execute(STATE).fetchall()[0]
        for part, was, now in zip(PARTS, before, after, strict=True):
            rounds.add(f"{name}, {part}", (now - was) / count)
        if arrived:
            last = max(each.committed for each in sent)
            rounds.add(f"{name}, behind", 1000 * (max(arrived.values()) - last))
            rounds.add(f"{name}, look", _look(way, connection, client, topic))
        other.execute("rollback")
    found = {key.removeprefix(f"{name}, "): values[-1] for key, values in rounds.series.items() if key.startswith(name)}
    progress(f"{name}: {', '.join(f'{key} {number(value)}' for key, value in found.items())}")


def _look(way: Way, connection: psycopg.Connection[Any], client: Client, topic: str) -> float:
    """Return the milliseconds in which a reader gets the only new message."""
    if not way.logged:
        connection.execute("insert into shop.outbox (topic, key, payload) values ('', '', '')")
        return _timed(lambda: _take_and_put_back(connection))
    with client.consumer(topic, auto_offset_reset="latest") as consumer:
        consumer.poll(0.0)
        ends = consumer.end_offsets(consumer.assignment())
        partition, end = max(ends.items(), key=lambda item: item[1])

        def get() -> None:
            consumer.seek(TopicPartition(topic, partition.partition), end - 1)
            assert len(consumer.poll(1.0)) == 1

        return _timed(get)


def _take_and_put_back(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction(force_rollback=True):
        assert len(connection.execute(TAKE).fetchall()) == 1


def _timed(action: Callable[[], object]) -> float:
    took = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        action()
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


# The sheet


GROWTH: Final = {
    "WAL": ("WAL, with the order's", "B each", PLAIN),
    "tables": ("tables", "B each", POLLED),
    "heap": ("— of which heap", "B each", POLLED),
    "indexes": ("— of which indexes", "B each", POLLED),
    "dead": ("dead rows", "each", POLLED),
    "behind": ("delivered after the last commit", "ms", POLLED),
    "look": ("to get one new message", "ms", POLLED),
}


def _claims(messages: int) -> list[Claim]:
    claims = []

    def add(what: str, unit: str, ways: tuple[Way, ...], tail: str, base: Way | None) -> None:
        """Add one figure of each way; `tail` ends the names of its series."""
        for way in ways:
            of = None if base is None or way is base else f"{base.name}, {tail}"
            claims.append(Claim(target="R9", what=f"{what}: {way.name}", unit=unit, value=f"{way.name}, {tail}", base=of))

    for count in SESSIONS:
        title = f"{count} session{'s' * (count > 1)}"
        add(f"{title}, nobody reads", "tx/s", WAYS, f"{count}, alone", PLAIN)
        add(f"{title}, nobody reads, the server's processors", "µs each", WAYS, f"{count}, alone, server", PLAIN)
        add(f"{title}, read meanwhile", "tx/s", WAYS, f"{count}", PLAIN)
        add(f"{title}, read meanwhile, against an outbox", "tx/s", (PUBLISH, STRICT, FUNCTION), f"{count}", NOTIFIED)
        add(f"{title}, delivered after the last commit", "ms", WAYS, f"{count}, behind", None)
    for rate in RATES:
        for share in ("p50", "p99"):
            add(f"{rate}/s, transaction {share}", "ms", WAYS, f"{rate}/s transaction {share}", PLAIN)
            add(f"{rate}/s, commit → delivered {share}", "ms", WAYS, f"{rate}/s {share}", NOTIFIED)
    for part, (what, unit, base) in GROWTH.items():
        for state, beside in (("free", ""), ("held", " beside an open snapshot")):
            add(f"{messages:,} messages{beside}, {what}", unit, GROWING, f"{state}, {part}", base)
    return claims


def _not_there(way: Way) -> dict[str, object]:
    keys = ("value", "baseline", "baseline_value", "ratio", "at_least", "at_most", "met")
    lists: dict[str, object] = {"values": [], "baseline_values": [], "ratios": []}
    return {"target": "R9", "what": way.name, "unit": "not there", **lists, **dict.fromkeys(keys)}
