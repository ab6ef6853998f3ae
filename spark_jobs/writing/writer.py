"""The sink half of `format("msgtx")`: exactly once by attempts and one decision (P20; see `attempt.py` and `sink.py`).

A batch of a stream is named by the application, the query (its id is in the checkpoint) and its number. So a batch repeated
by Spark is the same one, and a lost checkpoint is noticed. A write in `foreachBatch` is named alike.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from msgtx import errors
from msgtx.spark_jobs.batch import abort, decide, make_target
from msgtx.spark_jobs.runtime.kept import lent
from msgtx.spark_jobs.runtime.micro_batch import stream_batch, written_batch
from msgtx.spark_jobs.runtime.primary import Primary, driver_engine
from msgtx.spark_jobs.sink import sink_columns
from msgtx.spark_jobs.writing import write_options
from msgtx.spark_jobs.writing.attempt import Target, write_attempt
from msgtx.spark_jobs.writing.write_options import WriteOptions
from msgtx.store.spark import Attempt, BatchName


@dataclass
class Written(WriterCommitMessage):
    """A task's message to the driver. `attempt` None: it had no rows, or the batch is committed already."""

    batch: BatchName
    run_id: str
    primary: Primary | None
    attempt: Attempt | None


class _Writer:
    """The common parts of both writers: the target and the columns."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.columns = sink_columns(schema, options.topic)
        self.target = _target(options)

    def attempt(self, rows: Iterator[pa.RecordBatch], batch: BatchName) -> Written:
        """Write a task's rows. In a micro-batch the batch is one of its query, which only tasks know."""
        context = TaskContext.get()
        assert context is not None, "a task writes"
        # Without txnVersion a batch has a name of its own, which no other one repeats.
        of_task = stream_batch if self.options.app_id is None else written_batch
        stream = of_task(context.getLocalProperty)
        if stream is not None and self.options.version not in (None, stream.batch_id):
            raise errors.InvalidRequest(
                f"this is batch {stream.batch_id} of its query, and txnVersion is {self.options.version}: hand in what"
                " foreachBatch is given"
            )
        named = batch if stream is None else batch._replace(query_id=stream.query_id)
        run_id = "" if stream is None else stream.run_id
        attempt = write_attempt(map(self._chosen, rows), self.target, named)
        return Written(named, run_id, self.target.primary, attempt)

    def decided(self, batch: BatchName, messages: Sequence[WriterCommitMessage | None], *, whole_query: bool) -> None:
        """Decide, with the names that tasks told: Spark has at least one task write, even nothing."""
        written = [each for each in messages if isinstance(each, Written)]
        names = {(each.batch, each.run_id, each.primary) for each in written}
        assert len(names) <= 1, names
        if not names and whole_query:
            return  # no task, and so nothing read or written
        named, run_id, primary = next(iter(names), (batch, "", self.target.primary))
        with lent(self.target.url, self.target.incarnation, self.target.outage_timeout, primary) as engine:
            decide(
                engine,
                named,
                [each.attempt for each in written if each.attempt is not None],
                group=self.options.group,
                timeout_ms=self.options.transaction_timeout_ms,
                run_id=run_id,
                whole_query=whole_query,
            )

    def aborted(self, batch: BatchName, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort. Where no task has ended, the query is not known: then it is for every one of the application."""
        named = next((each.batch for each in messages if isinstance(each, Written)), None)
        with lent(self.target.url, self.target.incarnation, self.target.outage_timeout, self.target.primary) as engine:
            abort(engine, named or batch, of_any_query=named is None)

    def _chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([rows.column(name) for name in self.columns.values()], names=list(self.columns))


def _target(options: WriteOptions) -> Target:
    with driver_engine(
        options.url, outage_timeout=options.outage_timeout, on_failover=options.on_failover, pool_size=1
    ) as engine:
        return make_target(
            engine,
            options.topic,
            transaction_timeout_ms=options.transaction_timeout_ms,
            partitioner=options.partitioner,
        )


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
        self._writer.decided(self._batch, messages, whole_query=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Take back what the tasks wrote, unless it is committed."""
        self._writer.aborted(self._batch, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query once each. Spark makes one per batch to plan it, and one to end it."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = write_options.parse(given, streaming=True)
        assert options.app_id is not None, "it is asked for"
        self._writer = _Writer(options, schema)
        self._app_id = options.app_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows."""
        context = TaskContext.get()
        assert context is not None, "a task writes"
        stream = stream_batch(context.getLocalProperty)
        assert stream is not None, "of a streaming query"
        return self._writer.attempt(iterator, self._batch(stream.batch_id))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Decide: what the tasks wrote counts, with the group's offsets. A batch that counts already is left alone."""
        self._writer.decided(self._batch(batchId), messages, whole_query=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Take back what the tasks wrote, unless it is committed."""
        self._writer.aborted(self._batch(batchId), messages)

    def _batch(self, batch_id: int) -> BatchName:
        return BatchName(self._app_id, "", batch_id)
