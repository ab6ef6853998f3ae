"""Records of 50 MB on a cluster whose executors have 1 GB: written, read and streamed in each way (I1, I5)."""

import hashlib
import json
import os
from pathlib import Path

import pytest

import msgtx
from tests.spark.cluster import cluster
from tests.spark.programs import PATIENCE_SECONDS, start_python

pytestmark = pytest.mark.long

SIZE = 50 * 1024 * 1024
RECORDS = 4
PROGRAM = """
import json, os, sys
from msgtx.spark_jobs import read_committed, write_transactional
from msgtx.spark_jobs.session import session

spark = session(master=os.environ["MASTER"], **{"spark.executor.memory": "1g", "spark.driver.memory": "1g"})
size, records = int(os.environ["SIZE"]), int(os.environ["RECORDS"])
rows = spark.range(records, numPartitions=2).selectExpr("string(id) as key", f"repeat(string(id), {size}) as value")
write_transactional(rows, "one", app_id="large", batch_id=1)
rows.write.format("msgtx").mode("append").options(topic="two").save()
stream = spark.readStream.format("msgtx").options(subscribe="two", startingOffsets="earliest", maxOffsetsPerTrigger=2)
writing = stream.load().select("key", "value").writeStream.format("msgtx").options(topic="three", txnAppId="copy")
writing.option("checkpointLocation", os.environ["CHECKPOINT"]).trigger(availableNow=True).start().awaitTermination()
frames = [read_committed(spark, "three"), spark.read.format("msgtx").options(subscribe="one").load()]
found = [frame.selectExpr("string(key) as key", "md5(value) as hash").collect() for frame in frames]
print(json.dumps([sorted((row.key, row.hash) for row in rows) for rows in found]))
"""


def test_records_of_50_mb_are_written_read_and_streamed_once(client: msgtx.Client, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        client.topics.create(name, partitions=2, max_message_bytes=SIZE + 1000)
    with cluster(tmp_path) as running:
        environment = {
            **os.environ, "MASTER": running.url, "MSGTX_DATABASE_URL": client.secret_url, "SPARK_LOCAL_IP": "127.0.0.1",
            "SIZE": str(SIZE), "RECORDS": str(RECORDS), "CHECKPOINT": str(tmp_path / "checkpoint"),
        }  # fmt: skip
        with start_python(PROGRAM, env=environment) as process:
            out, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, error
    expected = [[str(at), hashlib.md5(b"%d" % at * SIZE, usedforsecurity=False).hexdigest()] for at in range(RECORDS)]
    assert json.loads(out) == [expected, expected]
