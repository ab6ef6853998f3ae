"""R8 beside Spark's Kafka connector: records read and written, a job from JSON to two topics, the delay of a micro-batch."""

import contextlib
import functools
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from msgtx.cli.programs import perf, spark_demo
from msgtx.client import Client
from msgtx.spark_jobs import pipeline
from msgtx.spark_jobs.session import session
from msgtx.spark_jobs.sink import write_transactional
from tests.benchmarks.bulk import ready
from tests.benchmarks.kafka import Kafka
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step
from tests.benchmarks.spark_reading import filled, frames, rate
from tests.benchmarks.spark_writing import REWRITTEN, append, incompressible, write_once

READ: Final = 5_000_000
WRITTEN: Final = 1_000_000
SIZE: Final = 100
PARTITIONS: Final = 6
TASKS: Final = 2
LINES: Final = 500_000
ORDER_LINE_KEY: Final = "cast(cast(id div 20 as string) as binary) as key"
ORDER_LINE: Final = """cast(to_json(struct(
    id as line, cast(id div 20 as string) as invoice, concat('S', id % 4000) as stock_code, id % 12 as quantity,
    cast(id % 997 as decimal(18, 3)) / 100 as unit_price, concat('Country ', id % 38) as country)) as binary) as value"""
RATES: Final = (1, 100, 10_000)  # records/s
SECONDS: Final = 20.0  # of sending, at each rate
COLD: Final = 3  # batches that are left out
_version = itertools.count()
_topic = (f"spark-{os.getpid()}-{at}" for at in itertools.count())


def reading(settings: Settings) -> list[dict[str, object]]:
    """All columns, discarded."""
    rounds = Rounds()
    with connected(settings) as spark, ready(settings) as client, filled(client, PARTITIONS, READ, size=SIZE) as topic:
        ours = frames(spark, client, topic, PARTITIONS)
        ways = {
            "read_committed": ours[""],
            "format(msgtx)": spark.read.format("msgtx").options(subscribe=topic, url=client.secret_url).load(),
            "spark.read.jdbc": ours["rows, tuned, "],
        }
        steps: dict[str, Step] = {name: functools.partial(rate, frame, READ) for name, frame in ways.items()}
        if settings.kafka is not None:
            with settings.kafka.awake():
                options = {"kafka.bootstrap.servers": settings.kafka.bootstrap}
                name = next(_topic)
                ours["rows, tuned, "].select("key", "value").write.format("kafka").options(topic=name, **options).save()
                stored = spark.read.format("kafka").options(subscribe=name, **options).load()
                assert stored.count() == READ
            steps["Kafka connector"] = awake(settings.kafka, functools.partial(rate, stored, READ))
        for step in steps.values():
            step()  # warms up
        rounds.run(steps, rounds=settings.rounds)
    pairs = [("format(msgtx)", "spark.read.jdbc"), ("read_committed", "spark.read.jdbc")]
    pairs += [(name, "Kafka connector") for name in ways]
    return rounds.judge([claim(f"{READ:,} records read by {one}", one, base) for one, base in pairs])


def writing(settings: Settings) -> list[dict[str, object]]:
    """A cached frame, appended."""
    rounds = Rounds()
    with connected(settings) as spark, ready(settings) as client, perf.temporary_topic(client, PARTITIONS) as topic:
        rows = spark.range(0, WRITTEN, numPartitions=TASKS).selectExpr(
            "cast(concat('key-', id % 10000) as binary) as key", f"{incompressible(SIZE)} as value"
        )
        rows.cache().count()
        ours = {"url": client.secret_url, "topic": topic, "txnAppId": f"{topic}-format"}
        steps: dict[str, Step] = {
            "write_transactional": functools.partial(write_once, client, rows, topic, WRITTEN),
            "format(msgtx)": lambda: saved(
                rows, "msgtx", {**ours, "txnAppId": f"{topic}-format", "txnVersion": str(next(_version))}
            ),
            "Spark's JDBC": functools.partial(append, client, rows, REWRITTEN, WRITTEN),
        }
        if settings.kafka is not None:
            there = {"kafka.bootstrap.servers": settings.kafka.bootstrap, "topic": next(_topic)}
            # With a producer of its own: one that was idle while the broker stood still is out of sequence.
            steps["Kafka sink"] = awake(
                settings.kafka, lambda: saved(rows, "kafka", {**there, "kafka.client.id": next(_topic)})
            )
        for step in steps.values():
            step()  # warms up
        rounds.run(steps, rounds=settings.rounds)
    ways = ("write_transactional", "format(msgtx)")
    return rounds.judge(
        [claim(f"{WRITTEN:,} written by {one}", one, base) for one in ways for base in ("Spark's JDBC", "Kafka sink")]
    )


def piping(settings: Settings) -> list[dict[str, object]]:
    """The transform of the demo: lines of JSON in, movements and revenue out into two topics, in one batch."""
    rounds = Rounds()
    with (
        connected(settings) as spark,
        ready(settings) as client,
        perf.temporary_topic(client, PARTITIONS) as source,
        topics_of_demo(client),
    ):
        lines = spark.range(0, LINES, numPartitions=TASKS).selectExpr(ORDER_LINE_KEY, ORDER_LINE)
        write_transactional(lines, source, app_id=source, batch_id=0, url=client.secret_url)
        client.sweep(only=["markers"])
        steps: dict[str, Step] = {
            "pipeline": functools.partial(piped, spark, client, source),
            "format(msgtx)": functools.partial(streamed, spark, "msgtx", {"url": client.secret_url, "subscribe": source}),
        }
        if settings.kafka is not None:
            options = {"kafka.bootstrap.servers": settings.kafka.bootstrap}
            name = next(_topic)
            with settings.kafka.awake():
                lines.write.format("kafka").options(topic=name, **options).save()
            there = functools.partial(streamed, spark, "kafka", {**options, "subscribe": name})
            steps["Kafka's source and sink"] = awake(settings.kafka, there)
        for step in steps.values():
            step()  # warms up
        rounds.run(steps, rounds=settings.rounds)
    ways = ("pipeline", "format(msgtx)")
    return rounds.judge([claim(f"{LINES:,} lines through {one}", one, "Kafka's source and sink") for one in ways])


def micro_batches(settings: Settings) -> list[dict[str, object]]:
    """From `send` of its oldest record until a batch has been counted in foreachBatch; milliseconds, the median of a run."""
    rounds = Rounds()
    names = [f"{each:,} records/s" for each in RATES]
    with connected(settings) as spark, ready(settings) as client:
        steps: dict[str, Step] = {}
        for name, pace in zip(names, RATES, strict=True):
            steps[f"format(msgtx), {name}"] = functools.partial(delay_here, spark, client, pace)
            if settings.kafka is not None:
                there = functools.partial(delay_there, spark, settings.kafka, pace)
                steps[f"Kafka connector, {name}"] = awake(settings.kafka, there)
        rounds.run(steps, rounds=settings.rounds)
    return rounds.judge(
        [
            Claim(target="R8", what=name, unit="ms", value=f"format(msgtx), {name}", base=f"Kafka connector, {name}")
            for name in names
        ]
    )


# ── parts ──


def claim(what: str, value: str, base: str) -> Claim:
    return Claim(target="R8", what=what, unit="rec/s", value=value, base=base, at_least=1.0)


@contextmanager
def connected(settings: Settings) -> Iterator[SparkSession]:
    """A session with the jars of Spark's Kafka connector, if there are any."""
    jars = sorted(str(path) for path in settings.connector.glob("*.jar")) if settings.connector is not None else []
    more = {"spark.jars": ",".join(jars)} if jars else {}
    spark = session("msgtx-benchmark", master=f"local[{TASKS}]", **more)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def awake(kafka: Kafka, step: Callable[[], float]) -> Step:
    """Return a step that runs while the broker does."""

    def run() -> float:
        with kafka.awake():
            return step()

    return run


def saved(rows: DataFrame, name: str, options: Mapping[str, str]) -> float:
    began = time.perf_counter()
    rows.write.format(name).options(**options).mode("append").save()
    return WRITTEN / (time.perf_counter() - began)


@contextmanager
def topics_of_demo(client: Client) -> Iterator[None]:
    names = [spark_demo.MOVEMENTS, spark_demo.REVENUE]
    for name in names:
        client.topics.create(name, partitions=PARTITIONS)
    try:
        yield
    finally:
        for name in names:
            client.topics.delete(name)


def piped(spark: SparkSession, client: Client, source: str) -> float:
    report = pipeline.run(
        spark,
        source,
        spark_demo.movements_and_revenue,
        group=f"{source}-{next(_version)}",
        url=client.secret_url,
        once=True,
        max_offsets=10 * LINES,
    )
    assert report.batches == 1
    return LINES / report.seconds


def streamed(spark: SparkSession, name: str, options: Mapping[str, str]) -> float:
    """Through a source of a stream and a sink, from the beginning of the topic to its end."""
    sink = {option: value for option, value in options.items() if option != "subscribe"}
    done: list[int] = []

    def written(batch: DataFrame, batch_id: int) -> None:
        numbered = {"txnAppId": folder, "txnVersion": str(batch_id)} if name == "msgtx" else {}
        rows = spark_demo.movements_and_revenue(batch.select("value", "timestamp"))
        rows.write.format(name).options(**sink, **numbered).mode("append").save()
        done.append(batch_id)

    with TemporaryDirectory(prefix="msgtx-benchmark-") as folder:
        began = time.perf_counter()
        reader = spark.readStream.format(name).options(startingOffsets="earliest", **options).load()
        writer = reader.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        writer.foreachBatch(written).start().awaitTermination()
        assert done == [0]
        return LINES / (time.perf_counter() - began)


def delay_here(spark: SparkSession, client: Client, pace: int) -> float:
    with perf.temporary_topic(client, PARTITIONS) as topic:
        reader = spark.readStream.format("msgtx").options(subscribe=topic, url=client.secret_url)
        return delay(reader.load(), [sys.executable, "msgtx", client.secret_url, topic], pace)


def delay_there(spark: SparkSession, kafka: Kafka, pace: int) -> float:
    topic = next(_topic)
    send(pace, [kafka.python, "kafka", kafka.bootstrap, topic], seconds=0.1).wait()  # makes the topic
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    reader = spark.readStream.format("kafka").options(**options)
    return delay(reader.load(), [kafka.python, "kafka", kafka.bootstrap, topic], pace)


def send(pace: int, sender: list[str], seconds: float) -> "subprocess.Popen[bytes]":
    python, *arguments = sender
    script = Path(__file__).with_name("sender.py")
    return subprocess.Popen([python, str(script), *arguments, str(pace), str(seconds)])


def delay(stream: DataFrame, sender: list[str], pace: int) -> float:
    """Return the median of the batches' delays, in ms."""
    found: list[float] = []

    def counted(batch: DataFrame, _: int) -> None:
        ((oldest, count),) = batch.selectExpr("unix_millis(min(timestamp))", "count(*)").collect()
        if count:
            found.append(1_000 * time.time() - oldest)

    with TemporaryDirectory(prefix="msgtx-benchmark-") as folder, contextlib.ExitStack() as undone:
        query = stream.writeStream.option("checkpointLocation", folder).foreachBatch(counted).start()
        undone.callback(query.stop)
        while len(found) < COLD and query.exception() is None:
            send(pace, sender, 2.0).wait()
        found.clear()
        assert send(pace, sender, SECONDS).wait() == 0
        assert query.exception() is None, query.exception()
    return statistics.median(found)
