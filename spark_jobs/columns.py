"""The columns of Spark's Kafka source, which all of ours have: jobs port by the name of the format."""

from typing import Final

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

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
