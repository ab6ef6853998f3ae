"""PostgreSQL without msgtx: bare tables in a schema of their own, through psycopg."""

import contextlib
import os
import select
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Dumper

from msgtx.cli.programs import perf
from msgtx.config import ProducerConfig
from msgtx.database.opening import open_engine
from msgtx.database.wire import BYTEA_ARRAY, encode_bytea_array
from msgtx.producer.batches import RECORD_OVERHEAD_BYTES

SCHEMA = "msgtx_benchmark"
PARTITIONS = 6
IN_FLIGHT = ProducerConfig().max_in_flight
INSERT_ROW = "insert into msgtx_benchmark.row (partition, value) values (%s, %s)"
INSERT_NOTIFY = (
    "with written as (insert into msgtx_benchmark.outbox (value) values (%s) returning id)"
    " select pg_notify('msgtx_benchmark', '') from written"
)


class ByteaArray(list[bytes]):
    """A `bytea[]` parameter, encoded as fast as msgtx does it."""


class _ByteaArrayDumper(Dumper):
    format = pq.Format.BINARY
    oid = BYTEA_ARRAY

    def dump(self, obj: Any) -> bytes:
        return encode_bytea_array(obj)


def connect(url: str | None) -> psycopg.Connection[Any]:
    with open_engine(url) as engine:
        connection = engine.dedicated()
    connection.adapters.register_dumper(ByteaArray, _ByteaArrayDumper)
    return connection


@contextlib.contextmanager
def tables(url: str | None) -> Iterator[None]:
    """Create the bare tables while a target is measured."""
    with connect(url) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade")
        connection.execute(f"create schema {SCHEMA}")
        connection.execute(
            f"""create table {SCHEMA}.batch (
                like msgtx.record_batch including compression including storage,
                primary key (partition_id, base_offset))"""
        )
        connection.execute(
            f"create table {SCHEMA}.row (id bigint generated always as identity primary key,"
            " partition int not null, value bytea not null)"
        )
        connection.execute(
            f"create table {SCHEMA}.outbox (id bigint generated always as identity primary key, value bytea not null)"
        )
        try:
            yield
        finally:
            connection.execute(f"drop schema if exists {SCHEMA} cascade")


def tidy(url: str | None) -> None:
    """Free the space of deleted topics, so the next measurement begins as the last one did."""
    with connect(url) as connection:
        for table in ("record_batch", "transaction_decision", "transaction_marker", "transaction_partition", "transaction"):
            connection.execute(f"vacuum (analyze) msgtx.{table}")


def bare_batches(url: str | None, *, size: int, seconds: float, in_flight: int = IN_FLIGHT) -> float:
    """Insert rows of arrays of msgtx's size, one of each partition in a statement and a flush. Returns records/s."""
    count = min(ProducerConfig().batch_bytes // (size + RECORD_OVERHEAD_BYTES), ProducerConfig().batch_records)
    values = perf.payloads(perf.PAYLOADS, size)
    row = "(%s, %s, %s, %s, %s, null, %s, %s, now(), %s, %s, %s, %s)"
    statement = (
        "insert into msgtx_benchmark.batch (partition_id, base_offset, last_offset, producer_id, producer_epoch,"
        " transaction_number, base_sequence, last_sequence, appended_at, max_timestamp,"
        ' record_count, byte_size, "values")'
        f" values {', '.join([row] * PARTITIONS)}"
    )
    sent = 0
    with connect(url) as connection:
        connection.execute(f"truncate {SCHEMA}.batch")

        def arguments() -> list[object]:
            found: list[object] = []
            for partition in range(PARTITIONS):
                start = (sent * PARTITIONS + partition * count) % (len(values) - count)
                some = ByteaArray(values[start : start + count])
                last = sent + count - 1
                found += [partition, sent, last, 1, 0, sent, last, time.time_ns() // 10**6, count, count * size, some]
            return found

        with connection.pipeline() as pipeline:
            waiting: deque[psycopg.Cursor[Any]] = deque()
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                waiting.append(connection.cursor())
                waiting[-1].execute(statement, arguments(), prepare=True)
                pipeline.sync()
                sent += count
                if len(waiting) >= in_flight:
                    assert waiting.popleft().rowcount == PARTITIONS
            pipeline.sync()
            while waiting:
                assert waiting.popleft().rowcount == PARTITIONS
            return sent * PARTITIONS / (time.perf_counter() - began)


def plain_commits(url: str | None, *, connections: int, seconds: float) -> float:
    """Insert single rows, each with a commit of its own, from threads of this process. Returns commits/s."""
    counts = [0] * connections
    barrier = threading.Barrier(connections)

    def run(at: int) -> None:
        with connect(url) as connection, connection.cursor() as cursor:
            for _ in range(20):
                cursor.execute(INSERT_ROW, (at % PARTITIONS, b"x" * 100), prepare=True)
            barrier.wait()
            ends = time.perf_counter() + seconds
            while time.perf_counter() < ends:
                cursor.execute(INSERT_ROW, (at % PARTITIONS, b"x" * 100))
                counts[at] += 1

    threads = [threading.Thread(target=run, args=(at,)) for at in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def flushes(*, seconds: float = 2.0, folder: str | None = None) -> float:
    """Write 8 kB and flush, repeatedly, in a folder (default: that of temporary files). Returns flushes/s."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        block = os.urandom(8192)
        os.pwrite(file.fileno(), block * 64, 0)
        os.fsync(file.fileno())
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.pwrite(file.fileno(), block, 8192 * (count % 64))
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - began)


def outbox_delays(url: str | None, *, rate: float, seconds: float, size: int = 100) -> list[float]:
    """Send through a bare outbox with LISTEN and NOTIFY to a reader in another process. Returns sorted delays in ms."""
    count = max(1, int(rate * seconds))
    with perf.reading(partial(read_outbox, url, count)) as delays, connect(url) as connection:
        cursor = connection.cursor()
        for _ in perf.paced(rate, count):
            cursor.execute(INSERT_NOTIFY, (perf.stamped(time.perf_counter(), size),), prepare=True)
        return delays()


def read_outbox(url: str | None, count: int, pipe: Pipe) -> None:
    """Be the outbox's reader: wait for a notification, read what is new."""
    delays: list[float] = []
    with connect(url) as connection:
        connection.execute("listen msgtx_benchmark")
        cursor = connection.cursor(binary=True)
        ((last,),) = cursor.execute("select coalesce(max(id), 0) from msgtx_benchmark.outbox").fetchall()
        heard: list[object] = []
        connection.add_notify_handler(heard.append)  # those that arrive while the rows are read
        pipe.send(None)
        while len(delays) < count:
            while not heard:
                if not select.select([connection.pgconn.socket], [], [], perf.SILENCE_SECONDS)[0]:
                    pipe.send(delays)
                    return
                connection.pgconn.consume_input()
                while (notification := connection.pgconn.notifies()) is not None:
                    heard.append(notification)
            heard.clear()
            new = "select id, value from msgtx_benchmark.outbox where id > %s order by id"
            rows = cursor.execute(new, (last,), prepare=True).fetchall()
            now = time.perf_counter()
            delays.extend(perf.delay_ms(value, now) for _, value in rows)
            last = rows[-1][0] if rows else last
    pipe.send(delays)
