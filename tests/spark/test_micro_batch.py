"""Which micro-batch a thread or a task of Spark's works on, by the properties that it has (P20)."""

import pytest

from msgtx import errors
from msgtx.spark_jobs.runtime.micro_batch import OF_A_QUERY, stream_batch, written_batch
from msgtx.store.spark import StreamBatch
from tests.refusals import refuses

CLASSIC = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "7", "spark.jobGroup.id": "run"}
TAG = "SparkConnect_SessionTag_User__Session_1_Tag_msgtx:query:run:7"
OTHERS = "SparkConnect_OperationTag_User__Session_1_Operation_2"
NAMED = StreamBatch("query", "run", 7)


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ({}, None),
        (CLASSIC, NAMED),
        ({"spark.job.tags": TAG}, NAMED),
        ({"spark.job.tags": f"{OTHERS},{TAG},spark-session-3"}, NAMED),
        ({"spark.job.tags": OTHERS}, None),
    ],
)
def test_properties_name_the_batch(properties: dict[str, str], found: StreamBatch | None) -> None:
    assert stream_batch(properties.get) == found
    assert written_batch(properties.get) == found


def test_a_task_of_a_query_that_nothing_names_writes_nothing() -> None:
    assert written_batch({**CLASSIC, OF_A_QUERY: "200"}.get) == NAMED
    with refuses(errors.InvalidRequest):
        written_batch({OF_A_QUERY: "200", "spark.job.tags": OTHERS}.get)
