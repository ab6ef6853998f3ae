"""Transforms that the tests of pipelines run, also in other processes."""

import os
import signal

from pyspark.sql import DataFrame


def upper(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("key", "upper(cast(value as string)) as value")


def by_topic(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("key", "value", "if(cast(cast(key as string) as int) % 2 = 0, 'even', 'odd') as topic")


def fails(rows: DataFrame) -> DataFrame:
    raise LookupError("no such rate")


def returns_nothing(rows: DataFrame) -> None:
    rows.count()


def upper_and_stop(rows: DataFrame) -> DataFrame:
    """Ask the pipeline to stop in the middle of a batch."""
    os.kill(os.getpid(), signal.SIGTERM)
    return upper(rows)
