"""A program for `quick_java`, which archives the classes that it loads. It uses Spark as the tests do."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType


class Reader(DataSourceReader):
    def read(self, partition: object) -> Iterator[tuple[int]]:
        yield (1,)


class Numbers(DataSource):
    """A data source in Python, as msgtx is."""

    def schema(self) -> str:
        return "id long"

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader()


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def count(rows: DataFrame, number: int) -> None:
    rows.count()


def main() -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).config("spark.log.level", "OFF")
    spark = builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
    spark.dataSource.register(Numbers)
    with tempfile.TemporaryDirectory() as name:
        rows, lines, checkpoint = (str(Path(name, each)) for each in ("rows", "lines", "checkpoint"))
        numbers = spark.read.format("Numbers").load().unionAll(spark.range(3)).mapInArrow(same, "id long")
        numbers.selectExpr("cast(id as string) as id", "id % 2 as part").write.parquet(rows, partitionBy="part")
        spark.read.parquet(rows).groupBy("part").count().orderBy("part").collect()
        numbers.write.csv(lines, header=True)
        spark.read.csv(lines).collect()
        writer = spark.readStream.text(lines).mapInArrow(same, "value string").writeStream.foreachBatch(count)
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
