"""The columns of Spark's Kafka source, which all of ours have: jobs port by the name of the format. And a stream's names."""

from collections.abc import Callable, Iterable
from typing import Final

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from msgtx.errors import InvalidRequest
from msgtx.store.spark import StreamBatch

# Properties that Spark sets in the thread of a streaming query and its tasks. The query's id lives in the checkpoint.
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


def found_column(name: str, names: Iterable[str]) -> str | None:
    """Return the one of these names that a name means, without regard to case; None: none of them is.

    Raise `InvalidRequest` if several are.
    """
    found = [each for each in names if each.lower() == name.lower()]
    if len(found) > 1:
        raise InvalidRequest(f"{' and '.join(found)} are one name to Spark: rename or drop all of these columns but one")
    return found[0] if found else None


def stream_batch(local_property: Callable[[str], str | None]) -> StreamBatch | None:
    """Return the micro-batch that a thread or a task of Spark's works on; None: it is of no streaming query."""
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if query_id is None or batch_id is None:
        return None
    return StreamBatch(query_id, local_property(RUN_ID) or "", int(batch_id))
