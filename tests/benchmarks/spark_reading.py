"""R8, reading: a committed range in Spark against the same records in a table of one row per record, both through JDBC."""

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from msgtx.cli.programs import perf
from msgtx.client import Client
from msgtx.database import jdbc
from msgtx.spark_jobs.read import read_committed
from msgtx.spark_jobs.session import session
from tests.benchmarks.baselines import SCHEMA
from tests.benchmarks.bulk import ready
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step

COUNTS = {100: 1_000_000, 1_000: 300_000, 10_000: 30_000}
NAMES = {100: "100 B", 1_000: "1 KB", 10_000: "10 KB"}
PARTITIONS = (1, 2, 4)
KEYS = 10_000
TRANSACTION_RECORDS = 10_000
TABLE = f"{SCHEMA}.record"
TUNED_FETCH = "10000"


def reading(settings: Settings) -> list[dict[str, object]]:
    """The plain reader has the options of Spark's documentation; "tuned" has the transfer settings that msgtx uses."""
    rounds = Rounds()
    claims = []
    spark = session("msgtx-benchmark", master="local[*]")
    spark.sparkContext.setLogLevel("OFF")
    with ready(settings) as client:
        for size, count in COUNTS.items():
            for partitions in PARTITIONS:
                name = f"{NAMES[size]}, {partitions} partition{'s' if partitions > 1 else ''}"
                with filled(client, partitions, count, size=size) as topic:
                    steps: dict[str, Step] = {
                        f"{kind}{name}": functools.partial(rate, frame, count)
                        for kind, frame in frames(spark, client, topic, partitions).items()
                    }
                    for frame in frames(spark, client, topic, partitions).values():
                        assert frame.count() == count  # and warms up
                    rounds.run(steps, rounds=settings.rounds)
                claims += [
                    Claim(target="R8", what=name, unit="rec/s", value=name, base=f"rows, {name}", at_least=1.5),
                    Claim(target="R8", what=name, unit="rec/s", value=name, base=f"rows, tuned, {name}"),
                ]
    spark.stop()
    return rounds.judge(claims)


def frames(spark: SparkSession, client: Client, topic: str, partitions: int) -> dict[str, DataFrame]:
    with client.runtime.engine.connection() as connection:
        address = jdbc.address_of(connection)
    predicates = [f"partition = {partition}" for partition in range(partitions)]
    login = {name: address.properties[name] for name in ("user", "password", "driver")}
    plain = spark.read.jdbc(address.url.partition("?")[0], TABLE, predicates=predicates, properties=login)
    tuned = spark.read.jdbc(address.url, TABLE, predicates=predicates, properties={**login, "fetchsize": TUNED_FETCH})
    return {"": read_committed(spark, topic, url=client.secret_url), "rows, ": plain, "rows, tuned, ": tuned}


def rate(frame: DataFrame, count: int) -> float:
    """Read all columns and discard them. Returns records/s."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - began)


@contextmanager
def filled(client: Client, partitions: int, count: int, *, size: int) -> Iterator[str]:
    """Fill a topic as a producer does, and a table with the same records."""
    values = perf.payloads(min(count, perf.PAYLOADS), size)
    with perf.temporary_topic(client, partitions) as topic:
        with client.producer(transactional_id=topic) as producer:
            for start in range(0, count, TRANSACTION_RECORDS):
                numbers = range(start, min(count, start + TRANSACTION_RECORDS))
                with producer.transaction():
                    producer.send_batch(
                        topic,
                        values=[values[at % len(values)] for at in numbers],
                        keys=[b"key-%d" % (at % KEYS) for at in numbers],
                    )
        client.sweep(only=["markers"])
        with client.runtime.engine.connection() as connection:
            connection.execute(
                f'create table {TABLE} (partition int not null, "offset" bigint not null, key bytea, value bytea,'
                ' "timestamp" timestamptz not null, primary key (partition, "offset"))'
            )
            connection.execute(
                f'insert into {TABLE} select partition, "offset", key, value, to_timestamp("timestamp" / 1000.0)'
                ' from msgtx.committed_records where topic = %s order by partition, "offset"',
                [topic],
            )
            for table in (TABLE, "msgtx.record_batch"):
                connection.execute(f"vacuum analyze {table}")
            try:
                yield topic
            finally:
                connection.execute(f"drop table {TABLE}")
