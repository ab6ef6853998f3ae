"""The sink half of `format("msgtx")`: exactly once by attempts and one decision (P20; see `attempt.py` and `sink.py`).

A streaming query is named by its checkpoint, its batches by their numbers; so a batch that Spark repeats is the same batch.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from msgtx import errors
from msgtx.database.engine import Engine, open_engine
from msgtx.spark_jobs import write_options
from msgtx.spark_jobs.attempt import Target, write_attempt
from msgtx.spark_jobs.batch import abort, decide, make_target
from msgtx.spark_jobs.sink import sink_columns
from msgtx.spark_jobs.source import BATCH_ID, QUERY_ID
from msgtx.spark_jobs.write_options import WriteOptions
from msgtx.store.spark import Attempt, BatchName


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver. `attempt` None: it had no rows, or the batch is committed already."""

    batch: BatchName
    attempt: Attempt | None


class _Writer:
    """What both writers share: where to write, and which columns."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.columns = sink_columns(schema, options.topic)
        self.target = _target(options)

    def attempt(self, rows: Iterator[pa.RecordBatch], batch: BatchName) -> Written:
        return Written(batch, write_attempt(map(self._chosen, rows), self.target, batch))

    def decided(self, batch: BatchName, messages: Sequence[WriterCommitMessage | None]) -> None:
        accepted = [each.attempt for each in messages if isinstance(each, Written) and each.attempt is not None]
        with _engine(self.target) as engine:
            decide(engine, batch, accepted, group=self.options.group, timeout_ms=self.options.transaction_timeout_ms)

    def aborted(self, batch: BatchName) -> None:
        with _engine(self.target) as engine:
            abort(engine, batch)

    def _chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = [name.lower() for name in self.columns]
        return pa.RecordBatch.from_arrays([rows.column(name) for name in self.columns], names=names)


def _target(options: WriteOptions) -> Target:
    with open_engine(options.url, pool_size=1) as engine:
        return make_target(
            engine,
            options.topic,
            transaction_timeout_ms=options.transaction_timeout_ms,
            partitioner=options.partitioner,
        )


def _engine(target: Target) -> Engine:
    engine = Engine(target.url, pool_size=1)
    engine.expect(uuid.UUID(target.incarnation))
    return engine


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once. With `txnAppId` and `txnVersion`, also once over all runs of the program."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise errors.ConfigError("a log is not overwritten: write with mode('append')")
        options = write_options.parse(given, streaming=False)
        self._writer = _Writer(options, schema)
        self._batch = BatchName(options.app_id or f"spark-{uuid.uuid4()}", "", options.version or 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows."""
        return self._writer.attempt(iterator, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide: what the tasks wrote counts, all of it."""
        self._writer.decided(self._batch, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Take back what the tasks wrote, unless it is committed."""
        self._writer.aborted(self._batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query once each. Spark makes one per batch to plan it, and one to end it."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._writer = _Writer(write_options.parse(given, streaming=True), schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows."""
        context = TaskContext.get()
        assert context is not None, "a task writes"
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query_id is not None, "of a streaming query"
        assert batch_id is not None, "in a micro-batch"
        batch = BatchName(self._writer.options.app_id or query_id, query_id, int(batch_id))
        return self._writer.attempt(iterator, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Decide: what the tasks wrote counts, with the group's offsets. A batch that counts already is left alone."""
        batch = _batch_of(messages)
        if batch is not None:
            self._writer.decided(batch, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Take back what the tasks wrote, unless it is committed. Without a message, the batch's next run does that."""
        batch = _batch_of(messages)
        if batch is not None:
            self._writer.aborted(batch)


def _batch_of(messages: Sequence[WriterCommitMessage | None]) -> BatchName | None:
    names = {each.batch for each in messages if isinstance(each, Written)}
    assert len(names) <= 1, names
    return next(iter(names), None)
