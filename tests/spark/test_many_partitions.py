"""Topics of 500 partitions: streamed with a group, read in both ways, written as one batch (I1, I5, I10)."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import msgtx
from msgtx.spark_jobs import read_committed, write_transactional
from tests.spark.streams import Pipe

pytestmark = pytest.mark.long

PARTITIONS = 500
RECORDS = 10_000  # of a batch


def test_each_record_is_streamed_read_and_written_once(
    spark: SparkSession, client: msgtx.Client, database_url: str, tmp_path: Path
) -> None:
    pipe = Pipe(spark, client, database_url, tmp_path, partitions=PARTITIONS)
    for _ in range(3):
        pipe.send(RECORDS)
        pipe.run()
        assert pipe.position() == pipe.sent
    pipe.assert_all_is_there_once()
    over_jdbc = read_committed(spark, pipe.target, url=database_url)
    formatted = spark.read.format("msgtx").options(subscribe=pipe.target, url=database_url).load()
    assert numbers(over_jdbc) == numbers(formatted) == list(range(pipe.sent))
    topic = f"{pipe.name}-again"
    client.topics.create(topic, partitions=PARTITIONS, retention_ms=-1)
    for skipped in (False, True):
        report = write_transactional(
            over_jdbc.select("value", "partition"), topic, url=database_url, app_id=topic, batch_id=1
        )
        assert report.skipped == skipped
    written = [int(record.value or b"") for record in client.read(client.snapshot([topic]))]
    assert sorted(written) == list(range(pipe.sent))


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())
