"""`read_committed`: committed ranges as a DataFrame with the columns of Spark's Kafka source.

Planned on the driver (`offsets`), read by the executors through JDBC: a task asks for the rows of its range, with the arrays
of the used columns, and Spark takes the arrays apart. The statement for a range also compares the range with the plan
(`check_range`).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Final
from uuid import UUID

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import ArrayType, StructField, StructType

from msgtx.database import jdbc
from msgtx.database.pool import Engine
from msgtx.errors import ConfigError
from msgtx.rules.ranges import PartitionRange
from msgtx.spark_jobs.reading import offsets
from msgtx.spark_jobs.reading.columns import COLUMNS, HEADER
from msgtx.spark_jobs.reading.read_options import ReadOptions, parse
from msgtx.spark_jobs.runtime.failure import translated
from msgtx.spark_jobs.runtime.outage import again
from msgtx.spark_jobs.runtime.primary import driver_engine
from msgtx.types import Snapshot

HEADERS: Final = StructField("headers", ArrayType(HEADER, False))
# Ranges of one relation: each task's statement holds the bounds of all of them, 5 KB.
RELATION_RANGES: Final = 256
OF_THE_LOG: Final = ("topic", "partition")  # columns that are not elements of arrays
BARRIER: Final = "one of each record (msgtx)"


def read_committed(
    spark: SparkSession,
    topics: str | Iterable[str] | None = None,
    *,
    url: str | None = None,
    read_url: str | None = None,
    snapshot: Snapshot | str | None = None,
    start: Snapshot | str | None = None,
    group: str | None = None,
    min_partitions: int | None = None,
    include_headers: bool = False,
    fail_on_data_loss: bool = True,
    **options: object,
) -> DataFrame:
    """Return committed records as a DataFrame: key, value, topic, partition, offset, timestamp, timestampType[, headers].

    This call fixes the range: from `start` (an earlier cut), the offsets of `group`, or `starting_offsets` (default:
    the log starts) to `snapshot` or `ending_offsets` (default: a consistent cut now). Further options are those of
    Spark's Kafka source in snake_case. `url`: as of `msgtx.connect`; `read_url`: a replica for the executors, waited
    for. A task is a range of one partition, in order of offsets. Raise `ConfigError` and the errors of `offsets.plan`.
    A range that retention removes before it is read fails its task, or is left out with `fail_on_data_loss=False`.
    """
    asked = parse(
        {
            "subscribe": topics, "url": url, "read_url": read_url, "snapshot": snapshot, "start": start, "group": group,
            "min_partitions": min_partitions, "include_headers": include_headers, "fail_on_data_loss": fail_on_data_loss,
            **options,
        }
    )  # fmt: skip
    with driver_engine(asked.url, outage_timeout=asked.outage_timeout, on_failover=asked.on_failover, pool_size=1) as engine:
        return planned_frame(spark, engine, again(engine, lambda: offsets.plan(engine, asked)), asked)


def planned_frame(spark: SparkSession, engine: Engine, planned: offsets.Plan, options: ReadOptions) -> DataFrame:
    """Return a plan as a DataFrame; the executors read from the replica, if one is named. Raise the errors of `reader`."""

    def made() -> DataFrame:
        with offsets.reader(engine, options, planned) as reader, translated():  # also Java asks the database
            return frame(spark, planned, options, reader)

    return again(engine, made)


def frame(spark: SparkSession, planned: offsets.Plan, options: ReadOptions, engine: Engine) -> DataFrame:
    """Return a plan as a DataFrame that executors read from the engine's database. Raise `ConfigError`."""
    columns = StructType([*COLUMNS, HEADERS]) if options.include_headers else COLUMNS
    parts = planned.split(options)
    if not parts:
        return spark.createDataFrame([], columns)
    with engine.connection() as connection:
        address = jdbc.address_of(connection, engine.parameters)
        chunks = [parts[at : at + RELATION_RANGES] for at in range(0, len(parts), RELATION_RANGES)]
        fetched = [
            jdbc.fetch_rows(connection, [(one.partition_id, one.start) for one in part], ends=[one.end for one in part])
            for part in chunks
        ]
    incarnation = UUID(planned.incarnation)
    strict = options.fail_on_data_loss
    relations = [
        _relation(
            spark,
            part,
            address.url,
            {**address.properties, "fetchsize": str(count)},
            incarnation=incarnation,
            strict=strict,
        )
        for part, count in zip(chunks, fetched, strict=True)
    ]
    return _records(reduce(DataFrame.union, relations), columns)


def _relation(
    spark: SparkSession,
    parts: Sequence[PartitionRange],
    url: str,
    properties: dict[str, str],
    *,
    incarnation: UUID,
    strict: bool,
) -> DataFrame:
    bounds = [(part.start, part.end) for part in parts]
    predicates = [
        jdbc.predicate(at, part.partition_id, bounds[at], incarnation=incarnation, strict=strict)
        for at, part in enumerate(parts)
    ]
    try:
        rows = spark.read.jdbc(url, jdbc.batches_of(bounds), predicates=predicates, properties=properties)
        _ = rows.columns  # Spark Connect connects when it is asked, Spark at once
    except Exception as error:  # Py4J's or Spark Connect's
        if "ClassNotFoundException" in str(error) and jdbc.DRIVER in str(error):
            raise ConfigError(
                "this Spark has no JDBC driver of PostgreSQL: start it with msgtx.spark_jobs.session, or with"
                " --jars postgresql.jar (or --packages org.postgresql:postgresql:42.7.7), which executors get, too; on Spark"
                " Connect, spark.addArtifacts('postgresql.jar')"
            ) from None
        raise
    return rows


# A row of the log becomes records: Spark's generated code takes elements out of the arrays by their number


def _records(rows: DataFrame, columns: StructType) -> DataFrame:
    numbered = rows.withColumn("at", F.explode(F.sequence(F.lit(0), F.col("record_count") - 1)))
    offset = F.col("base_offset") + F.coalesce(_element("offset_deltas"), F.col("at"))
    found = numbered.withColumn("offset", offset).where(
        (F.col("offset") >= F.greatest("start_offset", "log_start_offset")) & (F.col("offset") < F.col("end_offset"))
    )
    made: Mapping[str, Column] = {
        "key": _element("keys"),
        "value": _element("values"),
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "timestamp": F.timestamp_millis(F.coalesce(_element("timestamps"), F.col("max_timestamp"))),
        "timestampType": F.when(F.col("timestamp_type") == "CreateTime", 0).when(F.col("timestamp_type").isNotNull(), 1),
        "headers": _headers(),
    }
    taken = found.select([made[column.name].alias(column.name) for column in columns])
    apart = taken.withColumn(BARRIER, F.explode(F.array(F.lit(0))))
    return apart.select([F.col(name) if name in OF_THE_LOG else _kept_apart(name) for name in columns.names])


def _kept_apart(name: str) -> Column:
    """Return a column that Spark computes above the barrier, as it does all columns made of it.

    Merged with what takes elements out of the arrays, a Python function of the user's would be handed the arrays of the
    log's row with each record: Spark evaluates it below that. A condition goes below the barrier only if it asks for nothing
    that was made there, so one on topic or partition is the database's.
    """
    return F.when(F.col(BARRIER) == 0, F.col(name)).alias(name)


def _element(array: str) -> Column:
    return F.get(F.col(array), F.col("at"))


def _headers() -> Column:
    count, first = _element("header_counts"), _element("header_starts")
    numbers = F.sequence(first, first + count - 1)

    def header(at: Column) -> Column:
        return F.struct(F.get("header_keys", at).alias("key"), F.get("header_values", at).alias("value"))

    return F.when(count > 0, F.transform(numbers, header))
