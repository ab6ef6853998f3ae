"""The columns of Spark's Kafka source, which all of ours have: jobs port by the name of the format. And a stream's names."""

from collections.abc import Callable
from typing import Final

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from msgtx.store.spark import StreamBatch

# What Spark tells the thread of a streaming query and its tasks. The query's id lives in the checkpoint.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"  # all jobs of a run are one group

COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])  # of the array `headers`


def stream_batch(local_property: Callable[[str], str | None]) -> StreamBatch | None:
    """Return the micro-batch that a thread or a task of Spark's works on; None: it is of no streaming query."""
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if query_id is None or batch_id is None:
        return None
    return StreamBatch(query_id, local_property(RUN_ID) or "", int(batch_id))
