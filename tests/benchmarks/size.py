"""R14, the part about size: append, fetch, cut, sweep and verify with many records ÷ with 1,000,000, side by side.

Many are 10,000,000, or `--records`: as many of them as can be written in `FILL_SECONDS`. A server of its own with two
databases; each record is a row of its own, the costliest shape. The rows are copies of one that a producer has stored, with
offsets of their own. Also: bytes on disk and in the WAL for each record, memory of a connection.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgtx
from msgtx import TopicPartition
from msgtx.cli.programs import perf
from msgtx.coordinator.sweep import Sweeper
from msgtx.database import address
from msgtx.database.connection import RawConnection, until
from tests.benchmarks.sheet import Claim, Rounds, Settings, progress
from tests.benchmarks.sweeping import own_server

FEW = 1_000_000
PARTITIONS = 4
STEP = 250_000  # records of a partition that are written by one statement
FILL_SECONDS = 900.0
VERIFY_SECONDS = 60.0
ROW_BYTES = 270  # of a record on the disk, with its part of the index
WAL_BYTES = 6 * 1024**3  # at most, and what else the server keeps
SIZE = 100
READ = 2_000  # records in one reading
REMOVED = 50_000  # records that retention removes at once
PATIENCE_SECONDS = 3_600.0
RATES = {
    "append": "one-record appends",
    "transaction": "one-record transactions",
    "end": f"fetch of the last {READ:,}",
    "middle": f"fetch of {READ:,} in the middle",
    "cut": "cuts",
    "sweep": "rounds of sweeps with nothing to do",
    "removal": "rows removed by retention",
    "verify": "records verified",
}
TOPIC = "orders"


def size(settings: Settings) -> list[dict[str, object]]:
    """Fill both databases, then measure them in turn."""
    rounds = Rounds()
    wanted = {"small": FEW, "large": settings.records}
    folder, needed = tempfile.gettempdir(), sum(wanted.values()) * ROW_BYTES + WAL_BYTES
    if (free := shutil.disk_usage(folder).free) < needed:
        sys.exit(f"{folder} has {free / 1e9:.0f} GB free, r14-size needs {needed / 1e9:.0f}: set TMPDIR, or fewer --records")
    with own_server("create database large owner msgtx", "grant pg_read_all_stats to msgtx") as url:
        urls = {"small": url, "large": address.conninfo({**address.parse(url), "dbname": "large"})}
        logs = {name: Log(url, wanted[name], rounds, name) for name, url in urls.items()}
        steps = {
            f"{kind} {name}": log.removal if kind == "removal" else _rated(getattr(log, kind), settings.seconds)
            for kind in RATES
            if kind != "verify"
            for name, log in logs.items()
        }
        rounds.run(steps, rounds=settings.rounds)
        for name, log in logs.items():
            log.measure_wal()
            rounds.add(f"verify {name}", log.verify())
            log.close()
    claims = [
        Claim(target="R14", what=f"{what}, {logs['large'].records:,} ÷ {FEW:,} records", unit="/s", value=f"{kind} large",
              base=f"{kind} small", at_least=0.8)
        for kind, what in RATES.items()
    ]  # fmt: skip
    claims += [
        Claim(target="R14", what=f"{what}, {log.records:,} records", unit="bytes", value=f"{kind} {name}")
        for kind, what in {
            "disk": f"disk per record of {SIZE} bytes in a row of its own",
            "disk many": "disk per record, batches of 1,000",
            "wal one": "WAL per record, one-record appends",
            "wal many": "WAL per record, batches of 1,000",
            "memory": "memory of a connection",
        }.items()
        for name, log in logs.items()
    ]
    return rounds.judge(claims)


def _rated(action: Callable[[], int], seconds: float) -> Callable[[], float]:
    def step() -> float:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            count += action()
        return count / (time.perf_counter() - began)

    return step


class Log:
    """A database with so many records in a topic, and its clients."""

    def __init__(self, url: str, records: int, rounds: Rounds, name: str) -> None:
        self._client = msgtx.connect(url, create=True)
        self._client.topics.create(TOPIC, partitions=PARTITIONS)
        self._each = records // PARTITIONS
        self._rounds, self._name = rounds, name
        self._plain = self._client.producer(linger_ms=0, acks="1", enable_idempotence=False)
        self._many = self._client.producer(acks="1", enable_idempotence=False, batch_records=1_000)
        self._transactional = self._client.producer(transactional_id="size")
        self._transactional.init_transactions()
        self._consumer = self._client.consumer(auto_offset_reset="earliest")
        self._sweeper = Sweeper()
        self._values = perf.payloads(1_000, SIZE)
        self._start = 0
        self._fill()

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    @property
    def records(self) -> int:
        """How many there were when it was filled."""
        return PARTITIONS * self._each

    def _fill(self) -> None:
        for partition in range(PARTITIONS):
            self._plain.send(TOPIC, self._values[0], partition=partition).result()
        began = time.perf_counter()
        with ThreadPoolExecutor(PARTITIONS) as pool, until(silence=PATIENCE_SECONDS):
            written = list(pool.map(self._fill_partition, range(PARTITIONS)))
        self._each = min(written)
        with until(silence=PATIENCE_SECONDS), self._client.runtime.engine.connection() as connection:
            filled = time.perf_counter() - began
            connection.execute("vacuum analyze msgtx.record_batch")
            row = connection.execute("select pg_total_relation_size('msgtx.record_batch')").fetchone()
        assert row is not None
        self._rounds.add(f"disk {self._name}", row[0] / sum(written))
        progress(
            f"{self._name}: {sum(written):,} records in {filled:.0f} s, VACUUM {time.perf_counter() - began - filled:.0f} s"
        )

    def _fill_partition(self, partition: int) -> int:
        """Write the records of a partition, in steps, as long as there is time. Returns how many it has."""
        end, written = time.perf_counter() + FILL_SECONDS, 1
        with until(silence=PATIENCE_SECONDS), self._client.runtime.engine.connection() as connection:
            connection.execute("set synchronous_commit = off")
            while written < self._each and time.perf_counter() < end:
                upto = min(written + STEP, self._each)
                connection.execute(COPY, {"partition": partition, "first": written, "last": upto - 1})
                written = upto
            connection.execute("reset synchronous_commit")
        return written

    def append(self) -> int:
        """Append a record."""
        self._plain.send(TOPIC, self._values[0], partition=0).result()
        return 1

    def transaction(self) -> int:
        """Commit a record."""
        self._transactional.begin_transaction()
        self._transactional.send(TOPIC, self._values[0], partition=1)
        self._transactional.commit_transaction()
        return 1

    def end(self) -> int:
        """Read the last records of a partition."""
        place = TopicPartition(TOPIC, 0)
        return self._read(place, self._consumer.end_offsets([place])[place] - READ)

    def middle(self) -> int:
        """Read records in the middle of a partition."""
        return self._read(TopicPartition(TOPIC, 2), self._each // 2)

    def _read(self, place: TopicPartition, offset: int) -> int:
        self._consumer.assign([place])
        self._consumer.seek(place, offset)
        got = 0
        while got < READ:
            got += len(self._consumer.poll(1.0, READ - got))
        return got

    def cut(self) -> int:
        """Take a consistent cut."""
        self._client.snapshot([TOPIC])
        return 1

    def sweep(self) -> int:
        """Do a round."""
        with self._client.runtime.engine.connection() as connection:
            self._sweeper.round(connection)
        return 1

    def removal(self) -> float:
        """Remove records from the front of a partition, and return how many in a second."""
        self._start += REMOVED
        self._client.admin.partitions.delete_records({TopicPartition(TOPIC, 3): self._start})
        with self._client.runtime.engine.connection() as connection:
            began = time.perf_counter()
            assert Sweeper(["retention"]).round(connection).batches_removed == REMOVED
            return REMOVED / (time.perf_counter() - began)

    def verify(self) -> float:
        """Verify as many records as there is time for, and return how many in a second."""
        began, seen = time.perf_counter(), 0

        def look(records: int, _: str) -> None:
            nonlocal seen
            seen = records
            if time.perf_counter() > began + VERIFY_SECONDS:
                raise TimeoutError

        try:
            report = self._client.admin.verify([TOPIC], progress=look)
        except TimeoutError:
            return seen / (time.perf_counter() - began)
        assert not report.violations, report
        return report.records / report.seconds

    def measure_wal(self) -> None:
        """Measure the WAL of appended records, and the memory of a connection that has done all of this."""
        with self._client.runtime.engine.connection() as connection:
            ways: Mapping[str, tuple[int, Callable[[], object]]] = {
                "one": (1_000, lambda: [self.append() for _ in range(1_000)]),
                "many": (50_000, self._send_many),
            }
            for name, (count, send) in ways.items():
                before = _written(connection)
                send()
                wal, disk = (after - first for after, first in zip(_written(connection), before, strict=True))
                self._rounds.add(f"wal {name} {self._name}", wal / count)
                self._rounds.add(f"disk {name} {self._name}", disk / count)
        self.append()
        with self._client.runtime.engine.connection() as connection:
            row = connection.execute("select sum(total_bytes) from pg_backend_memory_contexts").fetchone()
            assert row is not None
            self._rounds.add(f"memory {self._name}", float(row[0]))

    def _send_many(self) -> None:
        for _ in range(50):
            self._many.send_batch(TOPIC, self._values, partition=0)
        self._many.flush()


def _written(connection: RawConnection) -> tuple[int, int]:
    """Return the end of the WAL and the size of the log."""
    row = connection.execute(
        "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, pg_total_relation_size('msgtx.record_batch')"
    ).fetchone()
    assert row is not None
    return row[0], row[1]


COPY = """
    insert into msgtx.record_batch (
        partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count, byte_size, keys, "values",
        timestamps)
    select r.partition_id, n, n, r.appended_at, r.max_timestamp, r.record_count, r.byte_size, r.keys, r."values",
           r.timestamps
    from msgtx.record_batch r, generate_series(%(first)s::bigint, %(last)s) n
    where r.base_offset = 0
      and r.partition_id = (select p.partition_id from msgtx.partition p where p.partition_index = %(partition)s)"""
