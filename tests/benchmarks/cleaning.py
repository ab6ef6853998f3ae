"""R11: how fast retention and compaction clean, what is left on disk, and how it slows producers.

A server of its own, set up like the embedded one. Large rows hold 1,000 records, small ones one; values have 1 KB, there
are 1,000 keys. After each cleaning the table is vacuumed, as by autovacuum. Retention leaves nothing, so its table is
measured when it is full; compaction's is measured when it is clean.
"""

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

import msgtx
from msgtx import TopicPartition
from msgtx.cli.programs import perf
from msgtx.coordinator.sweep import Sweeper
from msgtx.database.connection import RawConnection
from msgtx.producer.producer import Producer
from tests.benchmarks.sheet import Claim, Rounds, Settings, number, progress
from tests.benchmarks.sweeping import own_server

RECORDS = {"large": 100_000, "small": 4_000}  # of one fill
BATCH = {"large": 1_000, "small": 1}
KEYS = 1_000
SIZE = 1_000
FILLS = 10
SHAPES = {"bulk": "1,000-record batches", "one": "one-record appends"}
KINDS = {"retention": {"retention_bytes": 1_000_000}, "compaction": {"cleanup_policy": "compact"}}
PAUSE_SECONDS = 1.0  # between two rounds of the cleaner beside producers


def cleaning(settings: Settings) -> list[dict[str, object]]:
    """Fill and clean ten times, in large rows and in small ones; then produce alone and beside a cleaner."""
    rounds = Rounds()
    with own_server() as url, msgtx.connect(url, create=True) as client:
        for kind in KINDS:
            for rows in RECORDS:
                _fill_and_clean(client, rounds, kind, rows)
        for kind in KINDS:
            _beside(client, rounds, kind, settings)
    claims = []
    for kind in KINDS:
        for rows in RECORDS:
            name = f"{kind} {rows}"
            what = f"{kind}, {'rows of 1,000 records' if rows == 'large' else 'one-record rows'}"
            claims += [
                Claim(target="R11", what=what, unit=unit, value=f"{name} {unit}") for unit in ("rows/s", "rec/s", "MB/s")
            ]
            claims += [
                Claim(target="R11", what=f"{what}: table after {FILLS} fills and cleanings", unit="bytes",
                      value=f"{name} last", base=f"{name} first", at_most=1.2)
            ]  # fmt: skip
        claims += [
            Claim(target="R11", what=f"{what} beside {kind}", unit="rec/s", value=f"{kind} {shape} beside",
                  base=f"{kind} {shape} alone")
            for shape, what in SHAPES.items()
        ]  # fmt: skip
    return rounds.judge(claims)


def _fill_and_clean(client: msgtx.Client, rounds: Rounds, kind: str, rows: str) -> None:
    topic = f"{kind}-{rows}"
    client.topics.create(topic, **({"cleanup_policy": "compact"} if kind == "compaction" else {"retention_ms": -1}))
    place = TopicPartition(topic, 0)
    with client.runtime.engine.connection() as connection:
        for index in range(FILLS):
            _fill(client, topic, rows)
            if kind == "retention":
                client.admin.partitions.delete_records({place: -1})
            batches, full = _count(connection, topic), _size(connection)
            began = time.perf_counter()
            report = Sweeper([kind]).round(connection)
            seconds = time.perf_counter() - began
            connection.execute("vacuum msgtx.record_batch")
            size, megabytes = _size(connection), RECORDS[rows] * SIZE / 1e6
            for unit, amount in (("rows/s", batches), ("rec/s", RECORDS[rows]), ("MB/s", megabytes)):
                rounds.add(f"{kind} {rows} {unit}", amount / seconds)
            gone = f"{batches - _count(connection, topic):,} of {batches:,} rows, {report.records_compacted:,} records"
            table = f"{full / 1e6:,.1f} to {size / 1e6:,.1f} MB"
            progress(f"{topic} {index + 1}/{FILLS}: {gone} gone, {number(megabytes / seconds)} MB/s, table {table}")
            if index in {0, FILLS - 1}:
                rounds.add(f"{kind} {rows} {'last' if index else 'first'}", float(full if kind == "retention" else size))
        client.topics.delete(topic)
        connection.execute("truncate msgtx.record_batch")


def _fill(client: msgtx.Client, topic: str, rows: str) -> None:
    dice = random.Random(1)
    keys = [b"key-%d" % n for n in range(KEYS)]
    values = perf.payloads(1_000, SIZE)
    config = {"linger_ms": 0} if BATCH[rows] == 1 else {}
    with client.producer(acks="1", enable_idempotence=False, batch_records=BATCH[rows], **config) as producer:
        for start in range(0, RECORDS[rows], 1_000):
            some = [values[(start + i) % 1_000] for i in range(1_000)]
            producer.send_batch(topic, some, keys=[dice.choice(keys) for _ in some], partition=0)
        producer.flush()


def _count(connection: RawConnection, topic: str) -> int:
    row = connection.execute(
        "select count(*) from msgtx.record_batch join msgtx.partition using (partition_id) join msgtx.topic using (topic_id)"
        " where name = %s",
        [topic],
    ).fetchone()
    return int(row[0]) if row else 0


def _size(connection: RawConnection) -> int:
    row = connection.execute("select pg_total_relation_size('msgtx.record_batch')").fetchone()
    return int(row[0]) if row else 0


# ── beside producers ──


def _beside(client: msgtx.Client, rounds: Rounds, kind: str, settings: Settings) -> None:
    """Clean what the producer appends: the log does not grow."""
    topic = f"beside-{kind}"
    client.topics.create(topic, **KINDS[kind])
    found: dict[str, list[float]] = {}
    with client.producer() as bulk, client.producer(linger_ms=0) as single:
        rates = {"bulk": lambda: _bulk_rate(bulk, topic, settings), "one": lambda: _one_rate(single, topic, settings)}
        for _ in range(settings.rounds):
            for shape, rate in rates.items():
                found.setdefault(f"{kind} {shape} alone", []).append(rate())
                with _cleaner(client.secret_url, kind):
                    found.setdefault(f"{kind} {shape} beside", []).append(rate())
    for name, values in found.items():
        rounds.series[name] = values
        progress(f"{name}: {number(statistics.median(values))} rec/s")
    client.topics.delete(topic)


def _rate(action: Callable[[], int], seconds: float) -> float:
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        count += action()
    return count / (time.perf_counter() - began)


def _bulk_rate(producer: Producer, topic: str, settings: Settings) -> float:
    dice = random.Random(1)
    keys = [b"key-%d" % n for n in range(KEYS)]
    values = perf.payloads(1_000, SIZE)

    def send() -> int:
        producer.send_batch(topic, values, keys=[dice.choice(keys) for _ in values], partition=0)
        return len(values)

    rate = _rate(send, settings.seconds)
    producer.flush()
    return rate


def _one_rate(producer: Producer, topic: str, settings: Settings) -> float:
    dice = random.Random(1)

    def send() -> int:
        producer.send(topic, b"x" * SIZE, key=b"key-%d" % dice.randrange(KEYS), partition=0).result()
        return 1

    return _rate(send, settings.seconds)


@contextmanager
def _cleaner(url: str, kind: str) -> Iterator[None]:
    """A process that cleans repeatedly, each time to the end."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=_clean, args=(url, kind, ready, stop))
    process.start()
    try:
        ready.wait(30)
        yield
    finally:
        stop.set()
        process.join()


def _clean(url: str, kind: str, ready: Event, stop: Event) -> None:
    with msgtx.connect(url) as client, client.runtime.engine.connection() as connection:
        sweeper = Sweeper([kind])
        ready.set()
        while not stop.is_set():
            sweeper.round(connection)
            stop.wait(PAUSE_SECONDS)
