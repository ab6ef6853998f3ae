"""R13, beside the peers: exactly-once workers of both kinds of group, and what a share group has behind it and in it."""

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import psycopg
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from msgtx import Acknowledgement, errors, orm
from msgtx.cli.programs import perf
from msgtx.client import Client
from msgtx.types import ProcessReport, Record
from tests.benchmarks import baselines
from tests.benchmarks.bulk import ready
from tests.benchmarks.queues import BATCH, EVERYTHING
from tests.benchmarks.sheet import Claim, Rounds, Settings, number, progress

WORKED: Final = 20_000  # records of a worker
ROWS: Final = "msgtx_benchmark.worked"
BACKLOG, DELAYED, DEAD = 10_000_000, 100_000, 1_000
NEAR: Final = 100_000  # what a group has in front of it that is compared with the rest
HELD_SECONDS: Final = 300.0
BEFORE: Final = 4  # windows
DAY_MS: Final = 86_400_000
STATE: Final = ("share_state", "share_parked", "share_call", "share_pending")


# ── workers ──


def workers(settings: Settings) -> list[dict[str, object]]:
    """Acknowledgement or offset, output and a row of one's own in one commit, for each kind of group."""
    rounds = Rounds()
    with ready(settings) as client, baselines.tables(settings.url), baselines.connect(settings.url) as connection:
        connection.execute(f"create table {ROWS} (value bytea)")
        steps = {
            f"{name}, {partitions}": partial(_worked, client, partitions=partitions, share=share)
            for partitions in (1, 6)
            for name, share in (("consumer group", False), ("share group", True))
        }
        rounds.run(steps, rounds=settings.rounds)
    return rounds.judge([
        Claim(target="R13", what=f"exactly-once worker, {partitions} partitions", unit="rec/s",
              value=f"share group, {partitions}", base=f"consumer group, {partitions}", at_least=0.7)
        for partitions in (1, 6)
    ])  # fmt: skip


def _worked(client: Client, *, partitions: int, share: bool) -> float:
    """Have one worker do all records of a topic. Returns records/s, from its first record to its last commit."""
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(client.secret_url).set(drivername="postgresql+psycopg"))
    times: list[float] = []
    with perf.temporary_topic(client, partitions) as source, perf.temporary_topic(client, 1) as target:
        insert = text(f"insert into {ROWS} (value) values (:value)")

        def work(session: Session, record: Record) -> None:
            times.append(time.perf_counter())
            session.execute(insert, {"value": record.value})
            orm.publish(session, target, record.value, key=record.key)

        def committed(_: ProcessReport) -> None:
            times.append(time.perf_counter())

        perf.fill(client, source, WORKED, size=100)
        if share:
            client.admin.shares.configure(source, EVERYTHING)
        report = client.process_into(
            sessionmaker(engine),
            work,
            source,
            group=source,
            share_members=1 if share else None,
            on_commit=committed,
            idle_timeout="2s",
        )
        assert report.records_in == WORKED, report
        if share:
            client.admin.shares.delete(source)
    engine.dispose()
    return WORKED / (times[-1] - times[0])


# ── what a group has behind it, in it and beside it ──


def burdens(settings: Settings) -> list[dict[str, object]]:
    """Polls of 500 in windows: with little behind them, with much, delayed records, dead letters, an open snapshot."""
    rounds = Rounds()
    seconds = min(1.0, settings.seconds)  # all windows of the backlog together read less than it
    with ready(settings) as client, baselines.connect(settings.url) as other:

        def window(client_group: "_Group", name: str) -> None:
            rounds.add(name, client_group.rate(seconds))
            state = _state(other)
            for table, (rows, dead) in state.items():
                rounds.add(f"{table} rows, {name}", rows)
                rounds.add(f"{table} dead, {name}", dead)
            progress(f"{name}: {number(rounds.series[name][-1])} rec/s; {state}")

        def more(client_group: "_Group") -> None:
            client_group.more(int(2 * seconds * max(rounds.series["near"])))

        with _group(client, NEAR * (BEFORE + 1) * 10) as group:
            for _ in range(BEFORE):
                window(group, "near")
        with _group(client, BACKLOG) as group:
            for _ in range(BEFORE):
                window(group, "backlog")
            group.park(DELAYED)  # reads all that is in front of them
            for _ in range(BEFORE):
                more(group)
                window(group, "delayed")
            group.bury(DEAD)
            for _ in range(BEFORE):
                more(group)
                window(group, "dead letters")
            other.execute("begin isolation level repeatable read")
            other.execute("select count(*) from msgtx.topic")
            held = time.perf_counter()
            while time.perf_counter() - held < HELD_SECONDS:
                more(group)
                rounds.add("snapshot", group.rate(seconds))
            other.execute("rollback")
            rounds.series["snapshot"] = rounds.series["snapshot"][-BEFORE:]
            for _ in range(BEFORE):
                more(group)
                window(group, "afterwards")
    claims = [
        Claim(
            target="R13", what=f"share group: {name} ÷ a small backlog", unit="rec/s", value=name, base="near", at_least=0.9
        )
        for name in ("backlog", "delayed", "dead letters", "snapshot", "afterwards")
    ]
    claims += [
        Claim(target="R13", what=f"{table}, {kind}, {name}", unit="", value=f"{table} {kind}, {name}")
        for table in STATE
        for kind in ("rows", "dead")
        for name in ("near", "backlog", "delayed", "dead letters", "afterwards")
    ]
    return rounds.judge(claims)


def _state(connection: psycopg.Connection[Any]) -> dict[str, tuple[int, int]]:
    """Return how many rows the tables of share groups have, and how many dead ones."""
    found = {}
    for table in STATE:
        row = connection.execute(
            "select (select count(*) from msgtx." + table + "), n_dead_tup from pg_stat_user_tables"
            " where schemaname = 'msgtx' and relname = %s",
            [table],
        ).fetchone()
        assert row is not None
        found[table] = (row[0], row[1])
    return found


class _Group:
    """A share group on a topic of one partition, and one member of it."""

    def __init__(self, client: Client, topic: str, consumer: Any) -> None:
        self.client = client
        self.topic = topic
        self.consumer = consumer

    def rate(self, seconds: float) -> float:
        """Poll and accept for so long. Returns records/s."""
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            done += len(self.consumer.poll(5.0, BATCH))
        return done / (time.perf_counter() - began)

    def more(self, count: int = NEAR) -> None:
        """Send so many that the next window has some."""
        perf.fill(self.client, self.topic, count, size=100)

    def park(self, count: int) -> None:
        """Send records that are delivered tomorrow, and have the group go past them."""
        due = int(time.time() * 1000) + DAY_MS
        with self.client.producer() as producer:
            for _ in range(count):
                producer.send(self.topic, b"later", deliver_at=due)
            producer.flush()
        self.more()
        while self.client.admin.shares.describe(self.topic).partitions[0].parked < count:
            self.consumer.poll(5.0, BATCH)

    def bury(self, count: int) -> None:
        """Reject records."""
        with self.client.share_consumer(self.topic, group=self.topic, acknowledgement_mode="explicit") as consumer:
            left = count
            while left > 0:
                for record in consumer.poll(5.0, min(left, BATCH)):
                    consumer.acknowledge(record, Acknowledgement.REJECT)
                    left -= 1
                consumer.commit()


@contextlib.contextmanager
def _group(client: Client, count: int) -> Iterator[_Group]:
    with perf.temporary_topic(client, 1) as topic:
        progress(f"filling with {count:,} records")
        perf.fill(client, topic, count, size=100)
        client.admin.shares.configure(topic, EVERYTHING)
        with client.share_consumer(topic, group=topic) as consumer:
            yield _Group(client, topic, consumer)
        client.admin.shares.delete(topic)
        with contextlib.suppress(errors.UnknownTopicOrPartition):
            client.topics.delete(f"{topic}-dead-letters")
