"""What Spark looks for: it imports packages named `pyspark_…` and takes their `DefaultSource` as a data source."""

from msgtx.spark_jobs.source import MsgtxDataSource as DefaultSource

__all__ = ["DefaultSource"]
