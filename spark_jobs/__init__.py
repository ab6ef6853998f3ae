"""Spark: committed ranges read through JDBC, batches written exactly once; the jobs behind `msgtx spark`."""
