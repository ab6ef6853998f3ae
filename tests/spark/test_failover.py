"""Spark after a switchover: what is to stop ends with `FailedOver` (I16), and what trusts goes on (decision 0176)."""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import msgtx
from msgtx import errors
from msgtx.spark_jobs import pipeline
from msgtx.spark_jobs.reading import read_options
from msgtx.spark_jobs.runtime.failure import translated
from msgtx.spark_jobs.sink import write_transactional
from msgtx.spark_jobs.source import SCHEMA, BatchReader
from msgtx.spark_jobs.writing.writer import StreamWriter, Written
from msgtx.store.spark import BatchName
from tests.databases import wait_until
from tests.refusals import refuses
from tests.replication import Pair
from tests.spark.streams import Pipe

pytestmark = pytest.mark.slow

SECONDS: Final = 90
BOTH: Final = ("stop", "trust")


@pytest.fixture
def pipe(spark: SparkSession, own_pair: Pair, tmp_path: Path) -> Iterator[Pipe]:
    url = own_pair.on_either(own_pair.primary.create_database())
    with msgtx.connect(url) as client:
        yield Pipe(spark, client, url, tmp_path)


def switch_over(pair: Pair) -> None:
    pair.catch_up()
    pair.switch_over()


# ── sources ──


@pytest.mark.parametrize("on_failover", BOTH)
def test_a_stream_ends_at_a_failover_if_it_is_to_stop(on_failover: str, own_pair: Pair, pipe: Pipe) -> None:
    """Started again, it goes on from its checkpoint."""
    pipe.send(10)
    query = pipe.start(trigger={"processingTime": "0 seconds"}, on_failover=on_failover)
    pipe.await_written(10)
    switch_over(own_pair)
    if on_failover == "stop":
        with refuses(errors.FailedOver), translated():
            query.awaitTermination(SECONDS)
        pipe.send(10)
        pipe.run(on_failover="stop")
    else:
        pipe.send(10)
        pipe.await_written(20)
        query.stop()
    pipe.assert_all_is_there_once()


def test_the_tasks_of_a_batch_read_from_the_primary_that_it_was_planned_on(own_pair: Pair, pipe: Pipe) -> None:
    pipe.send(10)
    planned = {}
    for each in BOTH:
        options = {"url": pipe.url, "subscribe": pipe.source, "onFailover": each}
        reader = BatchReader(read_options.parse(options), SCHEMA)
        planned[each] = (reader, reader.partitions())
    switch_over(own_pair)
    read = {each: lambda each=each: rows_of(*planned[each]) for each in BOTH}
    assert read["trust"]() == 10
    with refuses(errors.FailedOver):
        read["stop"]()


def rows_of(reader: BatchReader, parts: Any) -> int:
    return sum(rows.num_rows for part in parts for rows in reader.read(part))


# ── sinks ──


def write_format(rows: DataFrame, pipe: Pipe, on_failover: str) -> None:
    given = {"url": pipe.url, "topic": pipe.target, "on_failover": on_failover}
    with translated():
        rows.write.format("msgtx").options(**given).mode("append").save()


def write_in_one(rows: DataFrame, pipe: Pipe, on_failover: Any) -> None:
    write_transactional(rows, pipe.target, app_id=on_failover, batch_id=0, url=pipe.url, on_failover=on_failover)


@pytest.mark.parametrize("on_failover", BOTH)
@pytest.mark.parametrize("write", [write_format, write_in_one], ids=lambda each: each.__name__)
def test_a_batch_is_written_to_one_primary(
    write: Callable[[DataFrame, Pipe, str], None], on_failover: str, own_pair: Pair, pipe: Pipe
) -> None:
    """The switchover comes while its task waits for its rows."""
    began, go = pipe.folder / "began", pipe.folder / "go"

    def act() -> None:
        try:
            wait_until(began.exists, "the task runs", seconds=SECONDS)
            switch_over(own_pair)
        finally:
            go.touch()

    frame = pipe.spark.range(0, 10, 1, 1).selectExpr("string(id) as value")
    rows = frame.mapInArrow(after(began, go), frame.schema)
    stops = on_failover == "stop"
    with concurrent.futures.ThreadPoolExecutor(1) as background:
        acting = background.submit(act)
        with refuses(errors.FailedOver) if stops else contextlib.nullcontext():
            write(rows, pipe, on_failover)
        acting.result(SECONDS)
    assert pipe.written() == ([] if stops else list(range(10)))


def after(began: Path, go: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began.touch()
        while not go.exists():
            time.sleep(0.05)
        yield from batches

    return wait


def test_a_micro_batch_is_decided_where_its_tasks_wrote(own_pair: Pair, pipe: Pipe) -> None:
    """Spark makes the writer that decides anew, and that one may have found another primary."""
    made = {
        each: Written(BatchName(each, "query", 0), "run", stream_writer(pipe, each)._writer.target.primary, None)
        for each in BOTH
    }
    switch_over(own_pair)
    stream_writer(pipe, "trust").commit([made["trust"]], 0)
    with refuses(errors.FailedOver):
        stream_writer(pipe, "stop").commit([made["stop"]], 0)


def stream_writer(pipe: Pipe, on_failover: str) -> StreamWriter:
    given = {"url": pipe.url, "topic": pipe.target, "txnAppId": on_failover, "on_failover": on_failover}
    return StreamWriter(given, SCHEMA)


# ── jobs ──


@pytest.mark.parametrize("on_failover", BOTH)
def test_a_pipeline_ends_at_a_failover_if_it_is_to_stop(on_failover: str, own_pair: Pair, pipe: Pipe) -> None:
    batches = []

    def committed(report: pipeline.PipelineReport) -> None:
        batches.append(report.batches)
        if report.batches == 1:
            switch_over(own_pair)
            pipe.send(10)

    pipe.send(10)
    ends = refuses(errors.FailedOver) if on_failover == "stop" else contextlib.nullcontext()
    given: Any = {"url": pipe.url, "group": pipe.name, "to": pipe.target, "max_offsets": 10, "on_failover": on_failover}
    with ends:
        pipeline.run(pipe.spark, pipe.source, lambda rows: rows.select("value"), on_batch=committed, once=True, **given)
    pipeline.run(pipe.spark, pipe.source, lambda rows: rows.select("value"), once=True, **given)
    pipe.assert_all_is_there_once()
