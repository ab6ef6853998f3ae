"""The micro-batch that a thread or a task of Spark's works on.

Spark sets it as properties of a query's thread, and tasks have the properties of the thread that started them. On Spark
Connect the jobs of `foreachBatch` begin in other threads (`connect`).
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from msgtx.errors import InvalidRequest
from msgtx.spark_jobs.runtime import connect
from msgtx.store.spark import StreamBatch

QUERY_ID: Final = "sql.streaming.queryId"  # it lives in the checkpoint
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"  # all jobs of a run are one group
TAGS: Final = "spark.job.tags"
# Internal to Spark, which sets it in the session of each query, and so in the tasks of all jobs for its batches.
OF_A_QUERY: Final = "spark.sql.streaming.internal.stateStore.partitions"


def stream_batch(local_property: Callable[[str], str | None]) -> StreamBatch | None:
    """Return the micro-batch that a thread or a task works on; None: nothing names one."""
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if query_id is None or batch_id is None:
        return connect.named_by(local_property(TAGS) or "")
    return StreamBatch(query_id, local_property(RUN_ID) or "", int(batch_id))


def written_batch(local_property: Callable[[str], str | None]) -> StreamBatch | None:
    """Return the micro-batch that a task writes; None: it is of no query.

    Raise `InvalidRequest` if it is of a query that nothing names: after the loss of a checkpoint the batch would be skipped.
    """
    stream = stream_batch(local_property)
    if stream is None and local_property(OF_A_QUERY) is not None:
        raise InvalidRequest(
            "this is a batch of a streaming query, and Spark does not name the query to this task: write the batch with"
            " write_transactional, in the thread in which Spark calls the function of foreachBatch"
        )
    return stream


def batch_of_driver(df: DataFrame, batch_id: int, query: str | None) -> StreamBatch | None:
    """Return the micro-batch that this thread of `foreachBatch` works on; None: it is in no `foreachBatch`.

    `query`: as `connect.query_of` takes it. Raise `InvalidRequest` if Spark has another number for the batch.
    """
    if is_remote():
        if not connect.is_in_foreach_batch():
            return None
        found = connect.query_of(df.sparkSession, query)
        return StreamBatch(str(found.id), str(found.runId), batch_id)
    stream = stream_batch(df.sparkSession.sparkContext.getLocalProperty)
    if stream is not None and stream.batch_id != batch_id:
        raise InvalidRequest(
            f"this is batch {stream.batch_id} of its query, and batch_id is {batch_id}: hand in what foreachBatch is given"
        )
    return stream
