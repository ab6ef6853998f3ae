"""Transforms that the tests of pipelines run, also in other processes."""

from pyspark.sql import DataFrame


def upper(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("key", "upper(cast(value as string)) as value")


def by_topic(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("key", "value", "if(cast(cast(key as string) as int) % 2 = 0, 'even', 'odd') as topic")


def fails(rows: DataFrame) -> DataFrame:
    raise LookupError("no such rate")


def returns_nothing(rows: DataFrame) -> None:
    rows.count()
