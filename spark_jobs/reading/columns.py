"""The columns of Spark's Kafka source, which all of ours have: jobs port by the name of the format."""

from collections.abc import Iterable
from typing import Final

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from msgtx.errors import InvalidRequest

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
