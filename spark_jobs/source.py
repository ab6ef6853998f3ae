"""`format("msgtx")`: a log as a data source of Spark, for batches and streams, to read and to write.

Spark calls it in processes of its own: one plans (the driver's), others read and write (the executors'). Objects
between them are pickled and hold the database's address, which is never part of a text. Each of them imports this
module, and a query starts a dozen: modules that few need are imported in functions.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StructField, StructType

from msgtx import errors
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.rules.ranges import PartitionRange, packed
from msgtx.spark_jobs.reading import arrow, offsets, read_options, table
from msgtx.spark_jobs.reading.columns import COLUMNS, HEADER
from msgtx.spark_jobs.reading.read_options import ReadOptions
from msgtx.spark_jobs.runtime.jvm_log import speak_up
from msgtx.spark_jobs.runtime.kept import lent
from msgtx.spark_jobs.runtime.micro_batch import stream_batch
from msgtx.spark_jobs.runtime.outage import again, persevering
from msgtx.spark_jobs.runtime.primary import Primary, driver_engine, primary_of
from msgtx.store.spark import StreamBatch, record_range
from msgtx.store.topics.topics import describe_topics

NAME: Final = "msgtx"
# A task costs as much as reading some thousand records. Smaller ranges share a task, but so many tasks are left that a
# few cores share the later steps of the query.
SMALL_TASK: Final = 1_000
LEAST_TASKS: Final = 8
SCHEMA: Final = StructType([*COLUMNS, StructField("headers", ArrayType(HEADER))])
speak_up()


class MsgtxDataSource(DataSource):
    """The data source; the options are in `read_options` and `write_options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source; `headers` with includeHeaders. For a table they carry its options."""
        with_headers = any(
            read_options.plain(name) == "includeheaders" and value.strip().lower() == "true"
            for name, value in self.options.items()
        )
        return table.carrying(SCHEMA if with_headers else StructType(SCHEMA.fields[:-1]), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for batches."""
        return BatchReader(read_options.parse(table.options_of(schema, self.options)), schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        """Return a reader for streams."""
        from msgtx.spark_jobs.reading.stream import StreamReader

        return StreamReader(table.options_of(schema, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return a writer for batches."""
        from msgtx.spark_jobs.writing.writer import BatchWriter

        return BatchWriter(table.options_of(schema, self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Return a writer for streams; output modes that overwrite append, as with Spark's Kafka sink."""
        from msgtx.spark_jobs.writing.writer import StreamWriter

        return StreamWriter(table.options_of(schema, self.options), schema)


def register(spark: SparkSession) -> None:
    """Make `format("msgtx")` known to a session. Where the package is installed, Spark finds it by itself."""
    spark.dataSource.register(MsgtxDataSource)


@dataclass(frozen=True)
class Noted:
    """All that a source reads in a batch of its stream, start and end by partition id, to be noted for the query's sink.

    `number`: of the plan, counted by its source.
    """

    group: str | None
    source_id: str
    number: int
    ranges: Mapping[int, tuple[int, int]]
    url: str = field(repr=False)
    primary: Primary | None


@dataclass(repr=True)
class ReadPartition(InputPartition):
    """The ranges of one task, read one after the other. `url`: of the database that it reads from.

    `primary`: the only one that may answer there, as of `primary_of`.
    """

    ranges: tuple[PartitionRange, ...]
    incarnation: str
    timestamp_types: Mapping[str, int]
    fail_on_data_loss: bool
    url: str = field(repr=False)
    outage_timeout: float | None = None
    primary: Primary | None = None
    noted: Noted | None = None


class BatchReader(DataSourceReader):
    """Reads committed ranges, planned as a consistent cut."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = checked(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks' ranges: [nothing] is a task that reads nothing."""
        asked = self.options
        with driver_engine(
            asked.url, outage_timeout=asked.outage_timeout, on_failover=asked.on_failover, pool_size=1
        ) as engine:
            return again(engine, lambda: self._planned(engine))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task's range."""
        return read(partition, self.schema)

    def _planned(self, engine: Engine) -> list[ReadPartition]:
        plan = offsets.plan(engine, self.options)
        types = timestamp_types(engine, plan.ranges)
        with offsets.reader(engine, self.options, plan) as reader:
            return tasks(plan, self.options, types, reader.url, primary_of(reader))


def tasks(
    plan: offsets.Plan,
    options: ReadOptions,
    types: Mapping[str, int],
    url: str,
    primary: Primary | None,
    noted: Noted | None = None,
) -> list[ReadPartition]:
    """Return the tasks' ranges: small ones share a task, unless `minPartitions` gives the number of tasks."""
    parts = packed(plan.split(options), at_least=options.min_partitions or LEAST_TASKS, most=SMALL_TASK)
    return [
        ReadPartition(
            part,
            plan.incarnation,
            {each.topic: types[each.topic] for each in part},
            options.fail_on_data_loss,
            url,
            options.outage_timeout,
            primary,
            noted,
        )
        for part in parts
    ]


def checked(schema: StructType) -> StructType:
    """Return a schema whose columns the source has. A user's own may name fewer: only these are sent to Spark.

    Case does not count in names, as everywhere in Spark.
    """
    known = {each.name: each.dataType for each in SCHEMA.fields}
    kinds = {name.lower(): kind for name, kind in known.items()}
    for each in schema.fields:
        if kinds.get(each.name.lower()) != each.dataType:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise errors.ConfigError(
                f"the source has no column {each.name} {each.dataType.simpleString()}; a schema may name some of: {columns}"
            )
    return schema


def timestamp_types(engine: Engine, ranges: Sequence[PartitionRange]) -> dict[str, int]:
    """Return the timestamp type of each topic, numbered as Kafka does."""
    names = {each.topic for each in ranges}
    with engine.connection() as connection:
        topics = describe_topics(connection, sorted(names))
    return {
        name: arrow.LOG_APPEND_TIME
        if name in topics and topics[name].settings["timestamp_type"] == "LogAppendTime"
        else arrow.CREATE_TIME
        for name in names
    }


def read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the records of one task's range, on an executor."""
    if not isinstance(partition, ReadPartition):
        return  # Spark's own, where nothing is planned
    with lent(partition.url, partition.incarnation, partition.outage_timeout, partition.primary) as engine:
        if partition.noted is not None:
            note(engine, partition, partition.noted)
        for each in partition.ranges:
            yield from arrow.read_range(
                engine,
                each,
                to_arrow_schema(schema, timezone="UTC"),
                timestamp_type=partition.timestamp_types[each.topic],
                fail_on_data_loss=partition.fail_on_data_loss,
            )


def note(engine: Engine, partition: ReadPartition, noted: Noted) -> None:
    """Note the ranges of a batch for the sink of the query, in the sink's database.

    Each task notes all ranges: later steps of the query need not ask for every task's rows. On Spark Connect, a job of
    `foreachBatch` that is not `write_transactional`'s has no name. Then the source's own serves, for a group that follows.
    """
    context = TaskContext.get()
    assert context is not None, "a task reads"
    named = stream_batch(context.getLocalProperty)
    if named is None and noted.group is None:
        return
    stream = named or StreamBatch(noted.source_id, "", noted.number)

    def write(connection: RawConnection) -> None:
        record_range(
            connection,
            stream.query_id,
            stream.batch_id,
            group=noted.group,
            ranges=noted.ranges,
            run_id=stream.run_id,
            source_id=noted.source_id if named else "",  # no decision is known by the source's own name
        )

    other = lent(noted.url, partition.incarnation, partition.outage_timeout, noted.primary)
    with contextlib.nullcontext(engine) if noted.url == engine.url else other as target:
        persevering(target, write)
