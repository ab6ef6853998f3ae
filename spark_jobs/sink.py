"""The exactly-once sink: a DataFrame's rows as one transaction over all its tasks (internals: spark; P20)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark_types

from msgtx import errors
from msgtx.database.pool import Engine
from msgtx.settings import OnFailover
from msgtx.spark_jobs.batch import TRANSACTION_TIMEOUT_MS, BatchReport, Statements, abort, begins_again, decide, make_target
from msgtx.spark_jobs.reading.columns import found_column
from msgtx.spark_jobs.runtime.connect import is_orphan, named_to_tasks
from msgtx.spark_jobs.runtime.micro_batch import batch_of_driver, written_batch
from msgtx.spark_jobs.runtime.outage import BATCH_OUTAGE_SECONDS, outage_timeout_of, persevering
from msgtx.spark_jobs.runtime.primary import driver_engine, on_failover_of
from msgtx.spark_jobs.writing.attempt import Target, kept_alive, write_attempt
from msgtx.store.spark import Attempt, BatchName, BatchRange, StreamBatch
from msgtx.store.topics.topics import require_partitions
from msgtx.types import Snapshot
from msgtx.units import Duration

ANSWERS: Final = "producer_id long, partitions array<int>, sequences array<long>, records long"
_TEXT: Final = (spark_types.BinaryType, spark_types.StringType)
_HEADERS: Final = "array<struct<key:string,value:binary>>"


def write_transactional(
    df: DataFrame,
    topic: str | None = None,
    *,
    app_id: str,
    batch_id: int,
    query_id: str | None = None,
    url: str | None = None,
    snapshot: Snapshot | None = None,
    start: Snapshot | None = None,
    group: str | None = None,
    statements: Statements | None = None,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    partitioner: str = "crc32",
    on_failover: OnFailover | None = None,
    outage_timeout: Duration | None = None,
) -> BatchReport:
    """Write a DataFrame exactly once: all its records, the group's offsets and `statements` in one commit, or none of it.

    Columns as of Spark's Kafka sink: `value` and, if they are there, `key`, `topic`, `partition`, `headers`; also
    `timestamp`; others are ignored. `topic` replaces the column. (`app_id`, `batch_id`) names the batch; the ids of an app
    rise. A committed batch, or one before it, is skipped, and the report says so. `group` commits the ends of `snapshot` as
    its offsets; `start` is compared with where the group is (`BatchConflict`). In `foreachBatch` (in its own thread) a batch
    belongs to its query. A lost checkpoint, or an older one, is then an error (`CheckpointLost`, `BatchConflict`), each
    write needs an `app_id` of its own, and `group` without a snapshot commits the ranges that the query's sources read.
    `query_id`: on Spark Connect, if several queries of a session run, the `queryName` or the id of the one of this batch.
    `statements(connection)` runs the user's own SQL just before the decision, at READ COMMITTED; after a lost answer it runs
    again, and is taken back if the first time counted. A batch that takes longer than `transaction_timeout_ms` (at most
    `transaction_max_timeout_ms` of the installation) is aborted. In an outage of the database it waits, up to
    `outage_timeout` (seconds, or `5min`): by default a minute, and in a stream as long as it lasts. `on_failover`:
    as of `msgtx.connect`, for this batch. Raise `InvalidRequest` for wrong columns, `UnknownTopicOrPartition`,
    `IncarnationChanged`, `FailedOver`.
    """
    stream = batch_of_driver(df, batch_id, query_id)
    if query_id is not None and stream is None:
        raise errors.InvalidRequest("query_id names the query of a batch of foreachBatch, and this is none: leave it out")
    if group is not None and snapshot is None and stream is None:
        raise errors.InvalidRequest("the offsets of a group are the ends of a snapshot: give snapshot=, too")
    limit = outage_timeout_of(outage_timeout, default=BATCH_OUTAGE_SECONDS if stream is None else None)
    with driver_engine(url, outage_timeout=limit, on_failover=on_failover_of(on_failover)) as engine:
        return write_batch(
            engine,
            df,
            topic,
            app_id=app_id,
            batch_id=batch_id,
            read=None if group is None else Read(group, snapshot, start),
            stream=stream,
            statements=statements,
            transaction_timeout_ms=transaction_timeout_ms,
            partitioner=partitioner,
        )


@dataclass(frozen=True, slots=True)
class Read:
    """The ranges that a batch read: their ends are committed with it. `start`, if it is known, must be where the group is.

    `snapshot` None: as the sources of the stream noted it.
    """

    group: str
    snapshot: Snapshot | None
    start: Snapshot | None = None


def write_batch(
    engine: Engine,
    df: DataFrame,
    topic: str | None,
    *,
    app_id: str,
    batch_id: int,
    read: Read | None,
    statements: Statements | None,
    transaction_timeout_ms: int,
    partitioner: str = "crc32",
    stream: StreamBatch | None = None,
) -> BatchReport:
    """Do the work of `write_transactional` with an open engine."""
    batch = BatchName(app_id, "" if stream is None else stream.query_id, batch_id)
    run_id = "" if stream is None else stream.run_id
    if not app_id or batch_id < 0:
        raise errors.InvalidRequest("a batch is named by an app_id that is not empty and a batch_id of 0 or more")
    rows = df.select(*(df[column].alias(name) for name, column in sink_columns(df.schema, topic).items()))
    target = make_target(
        engine,
        topic,
        transaction_timeout_ms=transaction_timeout_ms,
        partitioner=partitioner,
        snapshot=None if read is None else read.snapshot,
    )
    ranges = None if read is None or read.snapshot is None else _ranges(engine, read.snapshot, read.start)
    if begins_again(engine, batch, run_id=run_id):
        if stream is not None:
            # Its tasks write nothing; their sources tell whether the batch is another one now, of an old checkpoint (P20).
            _run(rows, target, batch, stream)
        return BatchReport(app_id, batch_id, skipped=True, records=0, attempts=0, aborted=0)
    try:
        with kept_alive(engine, batch, timeout_ms=transaction_timeout_ms, is_over=is_orphan):
            accepted = _run(rows, target, batch, stream)
            return decide(
                engine,
                batch,
                accepted,
                group=None if read is None else read.group,
                ranges=ranges,
                statements=statements,
                timeout_ms=transaction_timeout_ms,
                run_id=run_id,
            )
    except BaseException:
        abort(engine, batch)
        raise


def sink_columns(schema: spark_types.StructType, topic: str | None) -> dict[str, str]:
    """Return the sink's columns, each with the column of the DataFrame that it comes from. Case does not count.

    Raise `InvalidRequest` for a missing column, one that is there several times, or a wrong type.
    """
    allowed: dict[str, tuple[Callable[[spark_types.DataType], bool], str]] = {
        "value": (lambda kind: isinstance(kind, _TEXT), "binary or string"),
        "key": (lambda kind: isinstance(kind, _TEXT), "binary or string"),
        "partition": (lambda kind: isinstance(kind, spark_types.IntegerType), "int"),
        "headers": (lambda kind: kind.simpleString().lower() == _HEADERS, _HEADERS),
        "timestamp": (lambda kind: isinstance(kind, spark_types.TimestampType), "timestamp"),
    }
    if topic is None:
        allowed["topic"] = (lambda kind: isinstance(kind, spark_types.StringType), "string")
    columns = {name: found for name in allowed if (found := found_column(name, schema.names)) is not None}
    if "value" not in columns:
        raise errors.InvalidRequest(
            f"the DataFrame has no column value; it has {', '.join(schema.names) or 'none'}: rename one, or make one"
        )
    if topic is None and "topic" not in columns:
        raise errors.InvalidRequest("where to write? Give a topic, or each row one in a column topic")
    for name, column in columns.items():
        fits, expected = allowed[name]
        kind = schema[column].dataType
        if not fits(kind):
            raise errors.InvalidRequest(f"column {column} is {kind.simpleString()}; a sink takes {expected}: cast it")
    return columns


def _ranges(engine: Engine, snapshot: Snapshot, start: Snapshot | None) -> dict[int, BatchRange]:
    ids = persevering(engine, lambda connection: require_partitions(connection, snapshot.ends))
    starts = {} if start is None else start.ends
    return {ids[partition]: BatchRange(starts.get(partition), end) for partition, end in snapshot.ends.items()}


def _run(rows: DataFrame, target: Target, batch: BatchName, stream: StreamBatch | None) -> list[Attempt]:
    """Have the tasks write. Spark takes one answer per task, so the attempts that are in it are the accepted ones.

    Raise a task's refusal.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task writes"
        written_batch(context.getLocalProperty)
        attempt = write_attempt(batches, target, batch)
        if attempt is not None:
            yield pa.RecordBatch.from_pydict(
                {
                    "producer_id": [attempt.producer_id],
                    "partitions": pa.array([list(attempt.tails)], pa.list_(pa.int32())),
                    "sequences": pa.array([list(attempt.tails.values())], pa.list_(pa.int64())),
                    "records": [attempt.records],
                }
            )

    try:
        with named_to_tasks(rows.sparkSession, stream):
            answers = rows.mapInArrow(write, ANSWERS).collect()
    except PySparkException as error:
        from msgtx.spark_jobs.runtime.failure import named

        refused = named(error)
        if refused is None:
            raise
        raise refused from error
    return [
        Attempt(answer.producer_id, dict(zip(answer.partitions, answer.sequences, strict=True)), answer.records)
        for answer in answers
    ]
