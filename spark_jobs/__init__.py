"""Spark: committed ranges read through JDBC, batches written exactly once; the jobs behind `msgtx spark`."""

from msgtx.spark_jobs.batch import BatchReport
from msgtx.spark_jobs.sink import write_transactional

__all__ = ["BatchReport", "write_transactional"]
