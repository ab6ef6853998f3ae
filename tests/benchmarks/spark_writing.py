"""R8, writing, and what builds on it: the exactly-once write, the pipeline, micro-batches, and cuts."""

import functools
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from msgtx.cli.programs import perf
from msgtx.client import Client
from msgtx.database import jdbc
from msgtx.spark_jobs import pipeline
from msgtx.spark_jobs.session import session
from msgtx.spark_jobs.sink import write_transactional
from tests.benchmarks.baselines import SCHEMA
from tests.benchmarks.bulk import ready
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step
from tests.benchmarks.spark_reading import COUNTS, NAMES, TABLE, filled

SIZES: Final = (100, 1_000)
PARTITIONS: Final = 6
TARGET: Final = f"{SCHEMA}.written"
# As Spark's guide and PostgreSQL's driver recommend for fast appends.
REWRITTEN: Final = {"reWriteBatchedInserts": "true", "batchsize": "10000"}
TASKS: Final = 2
CUT_PARTITIONS: Final = (6, 600, 10_000)
CUTS: Final = 20
MICRO_BATCHES: Final = 30
MICRO_RECORDS: Final = 100
_batch = itertools.count()


def writing(settings: Settings) -> list[dict[str, object]]:
    """A cached DataFrame into a topic, exactly once, and into a table by plain appends."""
    rounds = Rounds()
    claims = []
    with quiet_spark() as spark, ready(settings) as client, perf.temporary_topic(client, PARTITIONS) as topic:
        for size in SIZES:
            rows = spark.range(0, COUNTS[size], numPartitions=TASKS).selectExpr(
                "cast(concat('key-', id % 10000) as binary) as key", f"{incompressible(size)} as value"
            )
            rows.cache().count()
            steps: dict[str, Step] = {
                f"exactly once {NAMES[size]}": functools.partial(write_once, client, rows, topic, COUNTS[size]),
                f"plain append {NAMES[size]}": functools.partial(append, client, rows, {}, COUNTS[size]),
                f"rewritten append {NAMES[size]}": functools.partial(append, client, rows, REWRITTEN, COUNTS[size]),
            }
            for step in steps.values():
                step()  # warms up
            rounds.run(steps, rounds=settings.rounds)
            rows.unpersist()
            for base, least in (("rewritten append", 0.8), ("plain append", None)):
                claims.append(
                    Claim(
                        target="R8",
                        what=f"exactly once {NAMES[size]}",
                        unit="rec/s",
                        value=f"exactly once {NAMES[size]}",
                        base=f"{base} {NAMES[size]}",
                        at_least=least,
                    )
                )
    return rounds.judge(claims)


def end_to_end(settings: Settings) -> list[dict[str, object]]:
    """`pipeline --once` over all there is, and the same transform between two tables with Spark's own reader and writer."""
    rounds = Rounds()
    claims = []
    with quiet_spark() as spark, ready(settings) as client:
        for size in SIZES:
            count = COUNTS[size]
            with filled(client, PARTITIONS, count, size=size) as source, perf.temporary_topic(client, PARTITIONS) as target:
                steps: dict[str, Step] = {
                    f"pipeline {NAMES[size]}": functools.partial(run_once, spark, client, source, target),
                    f"plain reader and writer {NAMES[size]}": functools.partial(plain_job, spark, client, count),
                }
                for step in steps.values():
                    step()  # warms up
                rounds.run(steps, rounds=settings.rounds)
            name = f"pipeline {NAMES[size]}"
            base = f"plain reader and writer {NAMES[size]}"
            claims.append(Claim(target="R8", what=name, unit="rec/s", value=name, base=base))
    return rounds.judge(claims)


def micro_batches(settings: Settings) -> list[dict[str, object]]:
    """From `send` to a `read_committed` consumer, through a pipeline and a streaming query; milliseconds."""
    rounds = Rounds()
    with quiet_spark() as spark, ready(settings) as client:
        for name, started in (("pipeline", piped), ("format(msgtx)", streamed)):
            with (
                perf.temporary_topic(client, 1) as source,
                perf.temporary_topic(client, 1) as target,
                started(spark, client, source, target),
            ):
                for value in delays(client, source, target):
                    rounds.add(name, value)
    return rounds.judge(
        [Claim(target="", what=f"send to delivered through {name}", unit="ms", value=name) for name in rounds.series]
    )


def cuts(settings: Settings) -> list[dict[str, object]]:
    """A consistent cut, beside an open transaction."""
    rounds = Rounds()
    with ready(settings) as client:
        for partitions in CUT_PARTITIONS:
            with perf.temporary_topic(client, partitions) as topic, client.producer(transactional_id=topic) as producer:
                for _ in range(3):
                    with producer.transaction():
                        for partition in range(partitions):
                            producer.send(topic, b"value", partition=partition)
                with producer.transaction():
                    producer.send(topic, b"open", partition=0)
                    producer.flush()
                    for _ in range(CUTS):
                        began = time.perf_counter()
                        client.snapshot([topic])
                        rounds.add(f"{partitions:,} partitions", 1_000 * (time.perf_counter() - began))
    return rounds.judge([Claim(target="", what=f"cut over {name}", unit="ms", value=name) for name in rounds.series])


# ── Spark ──


@contextmanager
def quiet_spark() -> Iterator[SparkSession]:
    spark = session("msgtx-benchmark", master=f"local[{TASKS}]")
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def incompressible(size: int) -> str:
    """Return SQL for a value of `size` bytes that neither table compresses."""
    pieces = ", ".join(f"unhex(sha2(concat(id, '/{piece}'), 512))" for piece in range(size // 64 + 1))
    return f"substring(concat({pieces}), 1, {size})"


def write_once(client: Client, rows: DataFrame, topic: str, count: int) -> float:
    began = time.perf_counter()
    report = write_transactional(rows, topic, app_id=topic, batch_id=next(_batch), url=client.secret_url)
    assert report.records == count
    return count / (time.perf_counter() - began)


def append(client: Client, rows: DataFrame, settings: dict[str, str], count: int) -> float:
    with client.runtime.engine.connection() as connection:
        connection.execute(f"drop table if exists {TARGET}")
        connection.execute(f"create table {TARGET} (key bytea, value bytea)")
        address = jdbc.address_of(connection)
    login = {name: address.properties[name] for name in ("user", "password", "driver")}
    began = time.perf_counter()
    rows.write.jdbc(address.url.partition("?")[0], TARGET, mode="append", properties={**login, **settings})
    return count / (time.perf_counter() - began)


def transformed(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("key", "concat(substring(value, 2), substring(value, 1, 1)) as value")


def run_once(spark: SparkSession, client: Client, source: str, target: str) -> float:
    group = f"{source}-{next(_batch)}"
    report = pipeline.run(
        spark, source, transformed, group=group, to=target, url=client.secret_url, once=True, max_offsets=10_000_000
    )
    return report.records_out / report.seconds


def plain_job(spark: SparkSession, client: Client, count: int) -> float:
    with client.runtime.engine.connection() as connection:
        address = jdbc.address_of(connection)
    login = {name: address.properties[name] for name in ("user", "password", "driver")}
    predicates = [f"partition = {partition}" for partition in range(PARTITIONS)]
    rows = spark.read.jdbc(address.url.partition("?")[0], TABLE, predicates=predicates, properties=login)
    return append(client, transformed(rows), REWRITTEN, count)


# ── micro-batches ──


@contextmanager
def piped(spark: SparkSession, client: Client, source: str, target: str) -> Iterator[None]:
    stop = threading.Event()
    run: Callable[[], object] = lambda: pipeline.run(  # noqa: E731 - a thread's whole work
        spark, source, transformed, group=source, to=target, url=client.secret_url, interval_ms=20, stop=stop
    )
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def streamed(spark: SparkSession, client: Client, source: str, target: str) -> Iterator[None]:
    options = {"url": client.secret_url, "group": source}
    with TemporaryDirectory(prefix="msgtx-benchmark-") as folder:
        query = (
            spark.readStream.format("msgtx")
            .options(subscribe=source, **options)
            .load()
            .selectExpr("key", "value")
            .writeStream.format("msgtx")
            .options(topic=target, txnAppId=source, checkpointLocation=str(Path(folder) / "checkpoint"), **options)
            .start()
        )
        try:
            yield
        finally:
            query.stop()


def delays(client: Client, source: str, target: str) -> list[float]:
    """Send some records at a time; return how long each lot took to arrive. The first ones are left out, as all is cold."""
    found = []
    with client.producer() as producer, client.consumer(target, auto_offset_reset="earliest", group=target) as consumer:
        for lot in range(MICRO_BATCHES + 5):
            began = time.perf_counter()
            producer.send_batch(source, values=[b"%d" % lot] * MICRO_RECORDS).result()
            seen = 0
            while seen < MICRO_RECORDS:
                seen += len(consumer.poll(timeout=10.0))
            found.append(1_000 * (time.perf_counter() - began))
    assert statistics.median(found) > 0
    return found[5:]
