"""R7, the part about sweeps: how long a round takes over a million decided transactions, and each of its steps.

The history is written in bulk, with the rows that the library's calls write, into its own server; its markers and floors
come from the library. Half of the transactions are made by one call, half in two steps.
"""

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgtx
from msgtx.coordinator.sweep import Sweeper
from msgtx.database import embedded
from tests.benchmarks import baselines
from tests.benchmarks.sheet import Claim, Rounds, Settings, progress

TRANSACTIONS = 1_000_000
PRODUCERS = 16
PARTITIONS = 6
GROUPS = 50
ROUNDS = 20


def sweeping(_: Settings) -> list[dict[str, object]]:
    """Time rounds with nothing to do, beside ten open transactions, and after 500 new commits; then the purge of all."""
    rounds = Rounds()
    with own_server() as url, msgtx.connect(url, create=True) as client:
        _fill(client)
        sweeper = Sweeper()
        with client.runtime.engine.connection() as connection:

            def measured(name: str) -> None:
                began = time.perf_counter()
                sweeper.round(connection, step_seconds=0.2)
                rounds.add(name, 1000 * (time.perf_counter() - began))

            for _ in range(ROUNDS):
                measured("idle")
            steps = ", ".join(f"{step} {1000 * seconds:.1f}" for step, seconds in sweeper.seconds.items())
            progress(f"an idle round in ms: {statistics.median(rounds.series['idle']):.1f}, of which {steps}")
            producers = [client.producer(transactional_id=f"open-{number}") for number in range(10)]
            for producer in producers:
                producer.__enter__().begin_transaction()
                producer.send("history", b"open")
                producer.flush()
            with client.producer(transactional_id="busy") as busy:
                for _ in range(ROUNDS // 2):
                    for _ in range(500):
                        busy.begin_transaction()
                        busy.send("history", b"x" * 100)
                        busy.commit_transaction()
                    measured("busy")
            for producer in producers:
                producer.close()
            began = time.perf_counter()
            connection.execute("update msgtx.setting set value = 1 where name like '%history%' or name like '%expiration%'")
            report = sweeper.round(connection)
            rounds.add("purge", report.transactions_purged / (time.perf_counter() - began))
            left = connection.execute("select count(*) from msgtx.transaction_decision").fetchone()
            progress(f"purged {report.transactions_purged:,}, left {left[0] if left else 0:,}")
    for name in ("idle", "busy"):
        rounds.series[name] = [statistics.median(rounds.series[name])]
    many = f"{TRANSACTIONS:,} decided transactions"
    return rounds.judge(
        [
            Claim(target="R7", what=f"sweep round, {many}, nothing to do", unit="ms", value="idle", at_most=50),
            Claim(target="R7", what=f"sweep round, {many}, 500 new ones and 10 open", unit="ms", value="busy", at_most=50),
            Claim(target="R7", what="purge of history", unit="transactions/s", value="purge"),
        ]
    )


@contextlib.contextmanager
def own_server(*grants: str) -> Iterator[str]:
    """A server of its own: a million transactions must not burden other measurements. `grants`: a superuser's statements."""
    folder = Path(tempfile.mkdtemp(prefix="msgtx-benchmark-"))
    folder.chmod(0o755)  # as root, the server's user must get in
    try:
        url = embedded.start(folder / "home").url
        with baselines.connect(embedded.superuser_url(folder / "home")) as superuser:
            for grant in grants:
                superuser.execute(grant)
        yield url
    finally:
        embedded.stop(folder / "home")
        shutil.rmtree(folder)


def _fill(client: msgtx.Client) -> None:
    client.topics.create("history", partitions=PARTITIONS)
    producers = []
    for number in range(PRODUCERS):
        with client.producer(transactional_id=f"producer-{number}") as producer, producer.transaction() as transaction:
            producer.send("history", b"first", partition=number % PARTITIONS)
            producers.append(transaction)
    with client.runtime.engine.connection() as connection:
        connection.execute("update msgtx.transaction_decision set decided_at = decided_at - interval '20 min'")
        first = TRANSACTIONS // PRODUCERS
        progress(f"writing {TRANSACTIONS:,} transactions")
        for number, transaction in enumerate(producers):
            producer_id, epoch, _ = transaction.id
            connection.execute(BULK, [number % PARTITIONS, producer_id, epoch, first, number % 2 == 0])
        connection.execute(OFFSETS, [GROUPS])
        connection.execute("vacuum analyze")
        marked = 0
        sweeper = Sweeper(["markers"])
        while (markers := sweeper.round(connection).markers_written) > 0:
            marked += markers
        progress(f"{marked:,} markers written")


BULK = """
    with given as (
        select %s::int as partition_index, %s::bigint as producer_id, %s::int as producer_epoch, %s::bigint as transactions,
               %s::boolean as in_steps),
    part as materialized (
        select p.partition_id, (
            select max(r.last_offset) + 1 from msgtx.record_batch r where r.partition_id = p.partition_id) as end_offset
        from msgtx.partition p join given g using (partition_index)),
    numbered as (
        select g.*, p.partition_id, n as number, p.end_offset + n - 1 as at,
               clock_timestamp() - interval '10 min' + n * interval '9 ms' as moment
        from given g, part p, generate_series(1, g.transactions) n),
    batches as (
        insert into msgtx.record_batch (
            partition_id, base_offset, last_offset, producer_id, producer_epoch, transaction_number, base_sequence,
            last_sequence, appended_at, max_timestamp, record_count, byte_size, "values")
        select partition_id, at, at, producer_id, producer_epoch, number, number, number, moment, 0, 1, 100,
               array['x'::bytea]
        from numbered),
    opened as (
        insert into msgtx.transaction (
            producer_id, producer_epoch, transaction_number, opened_at, timeout_ms, database_backend)
        select producer_id, producer_epoch, number, moment, 60000, 0 from numbered where in_steps),
    begun as (
        insert into msgtx.transaction_partition (
            producer_id, producer_epoch, transaction_number, partition_id, first_offset)
        select producer_id, producer_epoch, number, partition_id, at from numbered where in_steps)
    insert into msgtx.transaction_decision (
        producer_id, producer_epoch, transaction_number, outcome, decided_at, decided_by, partitions, first_offsets,
        last_offsets)
    select producer_id, producer_epoch, number, case when in_steps and number %% 10 = 0 then 'ABORT' else 'COMMIT' end,
           moment, 'client', array[partition_id], array[at], array[at]
    from numbered"""
OFFSETS = """
    with groups as (
        insert into msgtx.consumer_group (name) select 'group-' || g from generate_series(1, %s) g returning group_id)
    insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, committed_at)
    select g.group_id, p.partition_id, nextval('msgtx.commit_sequence'), 0, clock_timestamp()
    from groups g, msgtx.partition p"""
