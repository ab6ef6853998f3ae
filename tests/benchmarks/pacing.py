"""R14: a sender's p99 beside the sweep of a large log, at several paces; the WAL of the sweep with and without compression.

A server of its own, set up like the embedded one. The log holds rows of 1,000 records of 400 random bytes. Windows without a
sweep and with each pace alternate, so that the machine's other work meets all of them.
"""

import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

import msgtx
from msgtx import TopicPartition
from msgtx.cli.programs import perf
from msgtx.coordinator.pace import Pace
from msgtx.coordinator.sweep import Sweeper
from msgtx.database.connection import RawConnection, until
from msgtx.producer.producer import Producer
from tests.benchmarks.sheet import Claim, Rounds, Settings, progress
from tests.benchmarks.sweeping import own_server

MIB = 1024 * 1024
RATES = {"4 MiB/s": 4 * MIB, "8 MiB/s": 8 * MIB, "16 MiB/s": 16 * MIB, "32 MiB/s": 32 * MIB, "full speed": None}
COPIES = 40  # of 20 MB of records: what is swept in one round of windows, with some to spare
RECORDS = 50_000
SIZE = 400
VARIANTS = ("off", "pglz", "lz4")  # of wal_compression
WAL_COPIES = 10
SHAPES = {"random batches": 1, "words, one by one": 10}  # and their share of the records
SLICE_SECONDS = 0.5
PATIENCE_SECONDS = 600.0


def pacing(settings: Settings) -> list[dict[str, object]]:
    """Send records one by one beside the sweep; then sweep the same log with and without wal_compression."""
    rounds = Rounds()
    with (
        own_server("grant pg_checkpoint to msgtx", "grant set on parameter wal_compression to msgtx") as url,
        msgtx.connect(url, create=True) as client,
    ):
        client.topics.create("orders")
        with client.producer(linger_ms=0) as producer:
            for index in range(settings.rounds):
                _windows(client, producer, rounds, settings.seconds, in_reverse=index % 2 == 1)
        for _ in range(settings.rounds):
            for shape in SHAPES:
                for compression in VARIANTS:
                    _measure_wal(client, rounds, shape, compression)
    claims = [
        Claim(target="R14", what=f"p99 of a send beside a sweep, {name}", unit="ms", value=name, base=f"before {name}",
              at_most=1.3 if name == "16 MiB/s" else None)
        for name in RATES
    ]  # fmt: skip
    claims += [Claim(target="R14", what=f"removed, {name}", unit="MB/s", value=f"speed {name}") for name in RATES]
    for part, what in (("sweep", "removed byte"), ("vacuum", "removed byte, by VACUUM after it")):
        claims += [
            Claim(target="R14", what=f"WAL per {what}, {shape}, wal_compression {name}", unit="bytes",
                  value=f"{part} {shape} {name}", base=f"{part} {shape} off" if name != "off" else None)
            for shape in SHAPES
            for name in VARIANTS
        ]  # fmt: skip
    return rounds.judge(claims)


def _windows(client: msgtx.Client, producer: Producer, rounds: Rounds, seconds: float, *, in_reverse: bool) -> None:
    """Measure each pace: half a second without the sweep and half a second beside it, in turn."""
    for name, rate in list(RATES.items())[:: -1 if in_reverse else 1]:
        copies = COPIES if rate is None else 1 + round(1.5 * rate * seconds / (RECORDS * SIZE))
        topic = _full_topic(client, copies)
        idle: list[float] = []
        busy: list[float] = []
        with client.runtime.engine.connection() as connection, _sweeping(client.secret_url, rate) as working:
            while sum(busy) < 1000 * seconds and _start(connection, topic) < RECORDS * copies:
                _send(producer, idle)
                working.set()
                _send(producer, busy)
                working.clear()
                time.sleep(SLICE_SECONDS / 5)  # its last call ends
            gone = min(_start(connection, topic), RECORDS * copies) * SIZE / 1e6
        took = sum(busy) / 1000
        before, beside = (statistics.quantiles(each, n=100)[-1] for each in (idle, busy))
        rounds.add(f"before {name}", before)
        rounds.add(name, beside)
        rounds.add(f"speed {name}", gone / took)
        progress(f"{name}: p99 {before:.2f} ms, beside the sweep {beside:.2f} ms; {gone:.0f} MB are gone in {took:.1f} s")
        client.topics.delete(topic)


def _send(producer: Producer, taken: list[float]) -> None:
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < SLICE_SECONDS:
        producer.send("orders", b"x" * 100, partition=0).result()
        taken.append(1000 * (time.perf_counter() - now))


def _start(connection: RawConnection, topic: str) -> int:
    row = connection.execute(
        "select min(base_offset) from msgtx.record_batch join msgtx.partition using (partition_id)"
        " join msgtx.topic using (topic_id) where name = %s",
        [topic],
    ).fetchone()
    return 10**12 if row is None or row[0] is None else int(row[0])  # nothing is left


def _full_topic(client: msgtx.Client, copies: int, shape: str = "random batches") -> str:
    """Fill a topic whose records are all for the sweep."""
    records, batch = RECORDS // SHAPES[shape], 1_000 if shape == "random batches" else 1
    topic = f"full-{time.monotonic_ns()}"
    client.topics.create(topic)
    dice = random.Random(1)
    # Random values are as encrypted or packed ones: nothing to compress.
    values = perf.payloads(1_000, SIZE) if batch == 1 else [dice.randbytes(SIZE) for _ in range(1_000)]
    with client.producer(acks="1", enable_idempotence=False, batch_records=batch) as producer:
        for _ in range(records // 1_000):
            producer.send_batch(topic, values, partition=0)
    with until(silence=PATIENCE_SECONDS), client.runtime.engine.connection() as connection:
        connection.execute(COPY, {"topic": topic, "records": records, "copies": copies - 1})
        # As it is after a checkpoint: the first change of a page writes all of it into the WAL.
        connection.execute("checkpoint")
    client.admin.partitions.delete_records({TopicPartition(topic, 0): -1})
    return topic


COPY = """
    insert into msgtx.record_batch (
        partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count, byte_size, "values", timestamps)
    select r.partition_id, r.base_offset + n * %(records)s, r.last_offset + n * %(records)s, r.appended_at, r.max_timestamp,
           r.record_count, r.byte_size, array(select v || ''::bytea from unnest(r."values") v), r.timestamps
    from generate_series(1, %(copies)s) n, msgtx.record_batch r
    join msgtx.partition using (partition_id) join msgtx.topic t using (topic_id)
    where t.name = %(topic)s
    order by n, r.base_offset"""


@contextmanager
def _sweeping(url: str, rate: int | None) -> Iterator[Event]:
    """A process that sweeps while its event is set."""
    context = multiprocessing.get_context("spawn")
    ready, working, stop = context.Event(), context.Event(), context.Event()
    process = context.Process(target=_sweep, args=(url, rate, ready, working, stop))
    process.start()
    try:
        ready.wait(60)
        yield working
    finally:
        stop.set()
        working.set()
        process.join()


def _sweep(url: str, rate: int | None, ready: Event, working: Event, stop: Event) -> None:
    with msgtx.connect(url) as client, client.runtime.engine.connection() as connection:
        if rate is not None:
            connection.execute("update msgtx.setting set value = %s where name = 'sweep_max_bytes_per_second'", [rate])
        sweeper = Sweeper(["retention"], pace=None if rate is None else Pace())
        ready.set()
        while working.wait() and not stop.is_set():
            sweeper.round(connection, step_seconds=0.0)
            time.sleep(sweeper.due_in() if sweeper.behind else 0.0)


# ── the WAL ──


def _measure_wal(client: msgtx.Client, rounds: Rounds, shape: str, compression: str) -> None:
    topic = _full_topic(client, WAL_COPIES, shape)
    removed = RECORDS // SHAPES[shape] * SIZE * WAL_COPIES
    with until(silence=PATIENCE_SECONDS), client.runtime.engine.connection() as connection:
        connection.execute(f"set wal_compression = {compression}")
        sweeper = Sweeper(["retention"])
        for part, work in (
            ("sweep", lambda: sweeper.round(connection)),
            ("vacuum", lambda: connection.execute("vacuum msgtx.record_batch")),
        ):
            connection.execute("checkpoint")
            before = _wal(connection)
            work()
            rounds.add(f"{part} {shape} {compression}", (_wal(connection) - before) / removed)
        connection.execute("reset wal_compression")
    client.topics.delete(topic)
    figures = ", ".join(f"{part} {rounds.series[f'{part} {shape} {compression}'][-1]:.2f}" for part in ("sweep", "vacuum"))
    progress(f"WAL per byte, {shape}, wal_compression {compression}: {figures}")


def _wal(connection: RawConnection) -> int:
    row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    return int(row[0]) if row else 0
