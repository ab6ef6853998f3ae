"""Streams from log to log: each record once, whatever is stopped, lost, copied or killed (I1, I4, I10, I15; P20)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import msgtx
from msgtx import errors
from msgtx.database.calls import driver_of
from msgtx.database.pool import Engine
from msgtx.rules.ranges import PartitionRange
from msgtx.spark_jobs.reading.stream import StreamReader
from msgtx.spark_jobs.sink import write_transactional
from msgtx.spark_jobs.source import SCHEMA, MsgtxDataSource, ReadPartition
from msgtx.spark_jobs.writing.attempt import Target, write_attempt
from msgtx.spark_jobs.writing.writer import StreamWriter
from msgtx.store.operator.installation import change_incarnation, describe_installation
from msgtx.store.spark import BatchName
from tests.databases import wait_until
from tests.spark.streams import PARTITIONS, Pipe, through
from tests.store.steps import Writer

pytestmark = pytest.mark.slow  # begun among the first


@pytest.fixture
def pipe(spark: SparkSession, client: msgtx.Client, database_url: str, tmp_path: Path) -> Pipe:
    return Pipe(spark, client, database_url, tmp_path)


def rows(query: StreamingQuery) -> list[int]:
    """How many records each batch read."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


# Runs of a query


def test_stopped_and_started_again_at_another_place(pipe: Pipe) -> None:
    pipe.send(50)
    first = pipe.run()
    pipe.assert_all_is_there_once()
    assert pipe.position() == pipe.sent
    pipe.send(50)
    elsewhere = pipe.folder / "moved"
    shutil.copytree(pipe.checkpoint, elsewhere)
    second = pipe.run(checkpoint=elsewhere)
    assert second.id == first.id
    pipe.assert_all_is_there_once()
    assert pipe.position() == pipe.sent
    # The old checkpoint lacks that batch; it is run again, and counts once.
    pipe.run()
    pipe.assert_all_is_there_once()


def test_batches_of_one_a_hundred_and_a_hundred_thousand_records(pipe: Pipe) -> None:
    """One query with batches of all sizes; it is stopped within the large one, and started again."""
    sizes = (1, 100, 100_000)
    taken = []
    for count in sizes[:2]:
        pipe.send(count)
        taken += rows(pipe.run())
    pipe.send(sizes[2])
    stopped = pipe.start(trigger={"processingTime": "0 seconds"})
    wait_until(
        lambda: any(each.state == "Ongoing" for each in pipe.client.admin.transactions.list()),
        "the large batch is being written",
        seconds=90,
    )
    stopped.stop()
    taken += rows(stopped) + rows(pipe.run())
    for count in sizes:
        pipe.send(count)
        taken += rows(pipe.run())
    pipe.assert_all_is_there_once()
    assert pipe.position() == pipe.sent
    assert set(taken) == set(sizes)


def test_a_checkpoint_that_fell_behind_is_noticed(pipe: Pipe) -> None:
    """P20: a committed batch would now have other contents."""
    pipe.send(10)
    pipe.run()
    behind = pipe.folder / "behind"
    shutil.copytree(pipe.checkpoint, behind)
    pipe.send(10)
    pipe.run()
    pipe.send(10)
    with pytest.raises(StreamingQueryException, match="the checkpoint fell behind; start with a new one"):
        pipe.run(checkpoint=behind)
    pipe.run()
    pipe.assert_all_is_there_once()


def test_a_lost_checkpoint_goes_on_from_the_groups_offsets(pipe: Pipe) -> None:
    pipe.send(30)
    first = pipe.run(app="billing")
    shutil.rmtree(pipe.checkpoint)
    pipe.send(30)
    second = pipe.run(app="billing")
    assert second.id != first.id
    pipe.assert_all_is_there_once()
    assert pipe.position() == pipe.sent


@pytest.mark.parametrize("group", [True, False])
def test_a_checkpoint_that_is_lost_before_there_was_anything_to_read_is_no_loss(pipe: Pipe, group: bool) -> None:
    pipe.run(app=pipe.name, group=group)
    shutil.rmtree(pipe.checkpoint)
    pipe.send(10)
    pipe.run(app=pipe.name, group=group)
    pipe.assert_all_is_there_once()


def test_a_checkpoint_whose_first_entry_was_never_finished_is_refused_by_spark_and_can_be_replaced(pipe: Pipe) -> None:
    """I10: a query stopped while Spark writes its first offsets leaves a temporary file; nothing was read or written yet."""
    pipe.send(10)
    (pipe.checkpoint / "offsets").mkdir(parents=True)
    (pipe.checkpoint / "offsets" / ".0.half.tmp").write_text("v1")
    with pytest.raises(StreamingQueryException, match="should be empty on batch 0"):
        pipe.run()
    assert pipe.written() == []
    shutil.rmtree(pipe.checkpoint)
    pipe.run()
    pipe.assert_all_is_there_once()


def test_a_lost_checkpoint_without_a_group_is_an_error_and_no_duplicate(pipe: Pipe) -> None:
    pipe.send(10)
    pipe.run(app="alone", group=False)
    shutil.rmtree(pipe.checkpoint)
    with pytest.raises(StreamingQueryException, match="CheckpointLost: application alone has committed batches"):
        pipe.run(app="alone", group=False)
    pipe.assert_all_is_there_once()


def test_two_queries_of_one_group_do_not_both_count(pipe: Pipe) -> None:
    """The first one continues where it was, but the group has moved on."""
    pipe.send(10)
    pipe.run()
    pipe.send(10)
    pipe.run(checkpoint=pipe.folder / "other")
    pipe.send(10)
    with pytest.raises(StreamingQueryException, match="another run has committed what this one read"):
        pipe.run()
    assert pipe.written() == list(range(20))


# Tasks


def test_a_task_that_fails_after_its_rows_were_written_counts_once(pipe: Pipe, engine: Engine) -> None:
    url = pipe.url

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import psycopg
        from pyspark import TaskContext

        from tests.databases import wait_until

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() == 0 and context.partitionId() == 0:
            query = context.getLocalProperty("sql.streaming.queryId")
            with psycopg.connect(url, autocommit=True) as connection:
                written = "select distinct producer_id from msgtx.record_batch join msgtx.spark_attempt using (producer_id)"
                wait_until(
                    lambda: len(connection.execute(f"{written} where query_id = %s", [query]).fetchall()) == PARTITIONS,
                    "both tasks have written",
                )
            raise RuntimeError("a task that fails late")

    pipe.send(60, size=50_000)
    pipe.run(transform=through(fails_once))
    pipe.assert_all_is_there_once()
    with engine.connection() as connection:
        ((attempts,),) = connection.execute(
            "select count(*) from msgtx.spark_attempt where query_id = (select query_id from msgtx.spark_range"
            " where group_name = %s limit 1)", [pipe.name]
        ).fetchall()  # fmt: skip
    assert attempts == PARTITIONS + 1


def test_an_attempt_that_finishes_after_the_decision_does_not_count(pipe: Pipe, engine: Engine) -> None:
    """As with speculation: another attempt of a task writes, is not chosen, and still writes after the decision."""
    pipe.send(5)
    query = pipe.run()
    with engine.connection() as connection:
        incarnation = str(describe_installation(connection).incarnation)
    target = Target(pipe.url, incarnation, pipe.target, 60_000, "crc32")
    begun, decided = threading.Event(), threading.Event()

    def late() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([b"-1" + b" " * 500_000])], names=["value"])
        begun.set()
        assert decided.wait(60)
        yield pa.record_batch([pa.array([b"-2" + b" " * 500_000])], names=["value"])

    answers: list[object] = []
    batch = BatchName(pipe.name, query.id, 1)
    thread = threading.Thread(target=lambda: answers.append(write_attempt(late(), target, batch)))
    thread.start()
    assert begun.wait(60)
    pipe.send(5)
    pipe.run()
    pipe.assert_all_is_there_once()
    decided.set()
    thread.join()
    assert answers == [None]
    pipe.assert_all_is_there_once()


def test_an_attempt_that_fails_holds_no_reader_up(pipe: Pipe, engine: Engine) -> None:
    """P9: its driver may never learn of it, and its timeout is long."""
    with engine.connection() as connection:
        incarnation = str(describe_installation(connection).incarnation)

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([b"1" + b" " * 500_000])], names=["value"])
        yield pa.record_batch([pa.array([b"2"]), pa.array([7], pa.int32())], names=["value", "partition"])

    target = Target(pipe.url, incarnation, pipe.target, 600_000, "crc32")
    with pytest.raises(msgtx.errors.InvalidRequest, match="a row names partition 7"):
        write_attempt(failing(), target, BatchName("failing", "query", 0))
    with pipe.client.producer() as producer:
        for partition in range(PARTITIONS):
            producer.send(pipe.target, b"3", partition=partition)
    assert pipe.written() == [3, 3]


# The driver


class KilledBeforeTheDecision(MsgtxDataSource):
    """Its driver dies when all tasks have written."""

    @classmethod
    def name(cls) -> str:
        return "msgtx_killed_before"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        class Killed(StreamWriter):
            def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
                os.kill(os.getpid(), signal.SIGKILL)

        return Killed(self.options, schema)


class KilledAfterTheDecision(MsgtxDataSource):
    """Its driver dies before Spark notes that the batch is done."""

    @classmethod
    def name(cls) -> str:
        return "msgtx_killed_after"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        class Killed(StreamWriter):
            def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
                super().commit(messages, batchId)
                os.kill(os.getpid(), signal.SIGKILL)

        return Killed(self.options, schema)


def test_a_driver_that_dies_around_the_decision_counts_once(pipe: Pipe, spark: SparkSession) -> None:
    """After it, Spark aborts the batch that is committed, and runs it again."""
    for kind in (KilledBeforeTheDecision, KilledAfterTheDecision):
        spark.dataSource.register(kind)
        pipe.send(20)
        before = pipe.position()
        with pytest.raises(StreamingQueryException):
            pipe.run(sink=kind.name())
        assert pipe.position() == (before if kind is KilledBeforeTheDecision else pipe.sent)
        pipe.run()
        pipe.assert_all_is_there_once()
        assert pipe.position() == pipe.sent


DRIVER = """
import sys, time
from msgtx.spark_jobs.session import session
url, source, target, group, checkpoint = sys.argv[1:]
spark = session(master="local[2]")
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)  # the sink gets rows before the task is at its end
def slowly(batches):
    yield from batches  # the last ones wait in buffers on their way to the sink
    time.sleep(3600)
frame = spark.readStream.format("msgtx").options(url=url, subscribe=source, group=group, startingOffsets="earliest").load()
query = (
    frame.select("key", "value").mapInArrow(slowly, "key binary, value binary").writeStream.format("msgtx")
    .options(url=url, topic=target, group=group, checkpointLocation=checkpoint).start()
)
query.awaitTermination()
"""


def test_a_driver_that_is_killed_in_the_middle_of_a_batch(pipe: Pipe, engine: Engine) -> None:
    """The next run aborts what its tasks wrote, and reads the same ranges."""
    pipe.send(100, size=50_000)
    arguments = [pipe.url, pipe.source, pipe.target, pipe.name, str(pipe.checkpoint)]
    child = subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        with engine.connection() as connection:
            wait_until(
                lambda: child.poll() is not None or connection.execute(
                    "select from msgtx.record_batch b join msgtx.partition p using (partition_id)"
                    " join msgtx.topic t using (topic_id) where t.name = %s", [pipe.target]
                ).fetchall(),
                "a task has written", seconds=120,
            )  # fmt: skip
        assert child.poll() is None
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert pipe.written() == []
    pipe.send(10)
    pipe.run()
    pipe.assert_all_is_there_once()
    assert pipe.position() == pipe.sent


# Concurrent readers


def test_a_reader_sees_all_of_a_batch_or_nothing(pipe: Pipe, engine: Engine) -> None:
    """I6, I15"""
    query = pipe.start(trigger={"processingTime": "0 seconds"})
    seen = 0
    with engine.connection() as connection:
        while seen < 8:
            pipe.send(7)
            found = set(pipe.written())
            batches: dict[int, set[int]] = {}
            for batch, place, start, end in connection.execute(
                "select r.batch_id, p.partition_index, r.start_offset, r.end_offset from msgtx.spark_range r"
                " join msgtx.partition p using (partition_id) where r.group_name = %s", [pipe.name]
            ):  # fmt: skip
                batches.setdefault(batch, set()).update(2 * at + place for at in range(start, end))
            for batch, numbers in batches.items():
                assert numbers <= found or not numbers & found, f"batch {batch} is divided"
            seen = len(batches)
            assert query.exception() is None
    pipe.await_written(pipe.sent)
    query.stop()
    pipe.assert_all_is_there_once()


# How far


def test_a_run_over_what_is_there_is_limited_and_divides_no_transaction(pipe: Pipe) -> None:
    """I15: transactions of 6 and 20 records under a limit of 16; 20 do not fit, and are read whole."""
    for size in (6, 6, 6, 20):
        pipe.send(size)
    query = pipe.run(maxOffsetsPerTrigger="16")
    assert rows(query) == [12, 6, 20]
    pipe.assert_all_is_there_once()


@pytest.fixture
def reader(pipe: Pipe) -> StreamReader:
    return made(pipe)


def made(pipe: Pipe, **options: str) -> StreamReader:
    return StreamReader({"url": pipe.url, "subscribe": pipe.source, "startingOffsets": "earliest", **options}, SCHEMA)


def read_by(parts: Iterable[object]) -> list[PartitionRange]:
    return [each for part in parts if isinstance(part, ReadPartition) for each in part.ranges]


def ends(offset: dict[str, Any], topic: str) -> list[int]:
    return list(offset["topics"][topic].values())


def test_transactions_that_always_overlap_do_not_hold_a_stream(pipe: Pipe, engine: Engine) -> None:
    """Each has records after an open one: after `cut_delay_ms` all that is committed is read."""
    with engine.connection() as connection:
        one, two = (found for found, in connection.execute(
            "select partition_id from msgtx.partition join msgtx.topic using (topic_id) where name = %s order by 1",
            [pipe.source],
        ))  # fmt: skip
        split, open_one = Writer(connection), Writer(connection)
        split.send(one, b"0")
        open_one.send(two, b"2")
        split.send(two, b"1")
        split.commit()
        patient, hasty = made(pipe), made(pipe, cut_delay_ms="0")
        for stream, expected in ((patient, [[0, 0], [0, 0]]), (hasty, [[0, 0], [1, 0]])):
            start = stream.initialOffset()
            assert [ends(stream.latestOffset(start, ReadAllAvailable()), pipe.source) for _ in expected] == expected
            stream.stop()
        hasty.prepareForTriggerAvailableNow()
        assert ends(hasty.latestOffset(start, ReadAllAvailable()), pipe.source) == [1, 0]
        open_one.abort()
    assert ends(patient.latestOffset(start, ReadAllAvailable()), pipe.source) == [1, 2]
    for stream in (patient, hasty):
        stream.stop()


def test_a_run_over_what_is_there_ends_where_it_began_to_look(pipe: Pipe, reader: StreamReader) -> None:
    pipe.send(10)
    reader.prepareForTriggerAvailableNow()
    pipe.send(10)
    start = reader.initialOffset()
    assert ends(middle := reader.latestOffset(start, ReadMaxRows(10)), pipe.source) == [5, 5]
    assert reader.latestOffset(middle, ReadMaxRows(10)) == middle
    reader.stop()


def test_new_partitions_and_topics_are_read_from_their_beginning(pipe: Pipe, client: msgtx.Client) -> None:
    stream = StreamReader({"url": pipe.url, "subscribePattern": f"{pipe.name}-in.*", "startingOffsets": "latest"}, SCHEMA)
    start = stream.initialOffset()
    client.topics.alter(pipe.source, partitions=3)
    client.topics.create(f"{pipe.source}-too", partitions=1)
    with client.producer() as producer:
        producer.send(pipe.source, b"new", partition=2)
        for _ in range(3):
            producer.send(f"{pipe.source}-too", b"new", partition=0)
    client.admin.partitions.delete_records({msgtx.TopicPartition(f"{pipe.source}-too", 0): 1})
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end["topics"] == {pipe.source: {"0": 0, "1": 0, "2": 1}, f"{pipe.source}-too": {"0": 3}}
    parts = stream.partitions(start, end)
    found = [(each.topic, each.partition, each.start, each.end) for each in read_by(parts)]
    assert found == [(pipe.source, 2, 0, 1), (f"{pipe.source}-too", 0, 1, 3)]
    assert stream.partitions(end, end) == []
    again = stream.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    assert read_by(again) == read_by(parts), "the same after a restart"
    stream.stop()


def test_few_records_wait_for_more(pipe: Pipe) -> None:
    stream = made(pipe, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    start = stream.initialOffset()
    pipe.send(9)
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    pipe.send(1)
    assert ends(stream.latestOffset(start, ReadAllAvailable()), pipe.source) == [5, 5]
    stream.stop()
    hasty = made(pipe, minOffsetsPerTrigger="11", maxTriggerDelay="0ms")
    assert ends(hasty.latestOffset(start, ReadAllAvailable()), pipe.source) == [5, 5]
    hasty.stop()


# What is lost


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(pipe: Pipe, client: msgtx.Client) -> None:
    pipe.send(4)
    strict, lax = made(pipe), made(pipe, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    client.topics.delete(pipe.source)
    client.topics.create(pipe.source, partitions=2)
    pipe.send(6)
    with pytest.raises(msgtx.errors.UnknownTopicOrPartition, match="deleted and made anew since it was read"):
        strict.latestOffset(end, ReadAllAvailable())
    with pytest.raises(msgtx.errors.UnknownTopicOrPartition, match="deleted and made anew since it was read"):
        strict.partitions(start, end)
    assert lax.partitions(start, end) == []
    again = lax.latestOffset(end, ReadAllAvailable())
    assert ends(again, pipe.source) == [3, 3]
    parts = lax.partitions(end, again)
    assert [(each.start, each.end) for each in read_by(parts)] == [(0, 3), (0, 3)]
    for stream in (strict, lax):
        stream.stop()


def test_what_retention_removed_moves_the_group_on(pipe: Pipe, client: msgtx.Client) -> None:
    """`failOnDataLoss` both ways; the group's offsets pass the removed records, so the next batch starts there."""
    pipe.send(10)
    pipe.run()
    pipe.send(10)
    client.admin.partitions.delete_records({msgtx.TopicPartition(pipe.source, 0): 10})
    with pytest.raises(StreamingQueryException, match="offset 5 was removed, the log starts at 10"):
        pipe.run()
    pipe.run(failOnDataLoss="false")
    pipe.send(10)
    pipe.run()
    assert pipe.position() == 30
    assert pipe.written() == [*range(10), *range(11, 20, 2), *range(20, 30)]


def test_what_is_noted_for_the_sink_is_the_whole_of_a_batch(pipe: Pipe, client: msgtx.Client) -> None:
    """Also where tasks share a partition, and where nothing is left to read: the next batch begins at this one's end."""
    pipe.send(20)
    stream = made(pipe, group=pipe.name, failOnDataLoss="false", minPartitions="4")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    for first in (0, 4):
        client.admin.partitions.delete_records({msgtx.TopicPartition(pipe.source, 0): first})
        parts = [each for each in stream.partitions(start, end) if isinstance(each, ReadPartition)]
        assert len(parts) > PARTITIONS
        assert min(each.start for each in read_by(parts) if each.partition == 0) == first
        assert [set(each.noted.ranges.values()) for each in parts if each.noted] == [{(0, 10)}] * len(parts)
        assert {len(each.noted.ranges) for each in parts if each.noted} == {PARTITIONS}
    client.admin.partitions.delete_records({msgtx.TopicPartition(pipe.source, each): 10 for each in range(PARTITIONS)})
    (gone,) = stream.partitions(start, end)
    assert isinstance(gone, ReadPartition)
    assert gone.noted is not None
    assert (gone.ranges, list(gone.noted.ranges.values())) == ((), [(0, 10)] * PARTITIONS)
    stream.stop()


def test_another_database_under_the_same_address_is_noticed(
    pipe: Pipe, spark: SparkSession, make_database: Any, tmp_path: Path
) -> None:
    url = make_database()
    with msgtx.connect(url) as client:
        other = Pipe(spark, client, url, tmp_path)
        other.send(4)
        stream = made(other)
        start = stream.initialOffset()
        with client.runtime.engine.transaction() as connection:
            change_incarnation(driver_of(connection))
        with pytest.raises(msgtx.errors.IncarnationChanged, match="begin with a new checkpoint"):
            stream.latestOffset(start, ReadAllAvailable())
        stream.stop()


# What cannot be written


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["key"], "the DataFrame has no column value; it has key"),
        (["key", "cast(length(value) as int) as value"], "column value is int; a sink takes binary or string"),
        (["value", "7 as partition"], "a row names partition 7; topic .* has the partitions 0 to 1"),
    ],
)
def test_a_stream_that_cannot_be_written_says_why(pipe: Pipe, columns: list[str], message: str) -> None:
    """I16"""
    pipe.send(2)
    with pytest.raises(StreamingQueryException, match=message):
        pipe.run(transform=lambda frame: frame.selectExpr(*columns))
    assert pipe.written() == []
    assert pipe.position() == 0


def test_an_application_may_have_several_queries_and_batches_without_rows(pipe: Pipe) -> None:
    """An empty batch is decided, too: its group moves on."""
    pipe.send(10)
    pipe.run(transform=lambda frame: frame.where("cast(value as string) = 'nothing'").repartition(3))
    assert pipe.written() == []
    assert pipe.position() == 10
    pipe.send(10)
    pipe.run()
    assert pipe.written() == list(range(10, 20))
    assert pipe.position() == 20


# What cannot be exactly once


def each_batch(pipe: Pipe, *apps: str, checkpoint: Path, grouped: bool = False, **reading: str) -> None:
    """Copy in foreachBatch, once for each application; `grouped`: source and sink have a group."""
    own = pipe.name if grouped else None

    def write(rows: DataFrame, number: int) -> None:
        for app in apps:
            write_transactional(rows.select("value"), pipe.target, app_id=app, batch_id=number, url=pipe.url, group=own)

    if own is not None:
        reading["group"] = own
    options = {"url": pipe.url, "subscribe": pipe.source, "startingOffsets": "earliest", **reading}
    query = pipe.spark.readStream.format("msgtx").options(**options).load().writeStream.foreachBatch(write)
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def test_foreach_batch_is_named_by_its_query(pipe: Pipe) -> None:
    """P20: after a lost checkpoint no batch is skipped for its number; a second write is not taken for a repeated one."""
    pipe.send(10)
    each_batch(pipe, pipe.name, checkpoint=pipe.checkpoint)
    pipe.send(10)
    each_batch(pipe, pipe.name, checkpoint=pipe.checkpoint)
    pipe.assert_all_is_there_once()
    with pytest.raises(StreamingQueryException, match=r"CheckpointLost: application .* its checkpoint was lost"):
        each_batch(pipe, pipe.name, checkpoint=pipe.folder / "another")
    with pytest.raises(StreamingQueryException, match="each write of one batch needs an application of its own"):
        each_batch(pipe, f"{pipe.name}-twice", f"{pipe.name}-twice", checkpoint=pipe.folder / "twice")
    each_batch(pipe, f"{pipe.name}-alone", checkpoint=pipe.folder / "alone", group=pipe.name)
    assert pipe.position() == pipe.sent, "the group follows, though no write commits it"


def test_a_write_in_another_thread_of_foreach_batch_is_refused(pipe: Pipe) -> None:
    """P20: Spark names the query to its own thread only; under its number alone, a batch of a new checkpoint is skipped."""
    refused: list[errors.MsgtxError] = []

    def write(rows: DataFrame, number: int) -> None:
        try:
            write_transactional(rows.select("value"), pipe.target, app_id=pipe.name, batch_id=number, url=pipe.url)
        except errors.MsgtxError as error:
            refused.append(error)

    def aside(rows: DataFrame, number: int) -> None:
        thread = threading.Thread(target=write, args=(rows, number))
        thread.start()
        thread.join()

    frame = pipe.spark.readStream.format("text").load(str(lines_of(pipe)))
    query = frame.writeStream.foreachBatch(aside).option("checkpointLocation", str(pipe.checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    assert [type(each) for each in refused] == [errors.InvalidRequest]
    assert pipe.written() == []


def lines_of(pipe: Pipe) -> Path:
    """Return a folder with a file of one line."""
    folder = pipe.folder / "lines"
    folder.mkdir()
    (folder / "one.txt").write_text("1\n")
    return folder


def test_a_batch_that_foreach_batch_repeats_counts_once(pipe: Pipe) -> None:
    """P20: the driver was killed between the decision and Spark's own note of it."""
    pipe.send(10)
    each_batch(pipe, pipe.name, checkpoint=pipe.checkpoint)
    for path in (pipe.checkpoint / "commits").iterdir():
        path.unlink()
    pipe.send(10)
    each_batch(pipe, pipe.name, checkpoint=pipe.checkpoint)
    pipe.assert_all_is_there_once()


@pytest.mark.parametrize("group", [True, False])
def test_a_checkpoint_that_fell_behind_by_a_batch_is_noticed_in_foreach_batch(pipe: Pipe, group: bool) -> None:
    """P20: the batch is committed and has other contents now; skipped by its number, the new ones would be lost."""
    behind = pipe.folder / "behind"
    for number in range(2):
        pipe.send(10)
        each_batch(pipe, pipe.name, checkpoint=pipe.checkpoint, grouped=group)
        if number == 0:
            shutil.copytree(pipe.checkpoint, behind)
    pipe.send(10)
    with pytest.raises(StreamingQueryException, match="the checkpoint fell behind; start with a new one"):
        each_batch(pipe, pipe.name, checkpoint=behind, grouped=group)
    each_batch(pipe, pipe.name, checkpoint=pipe.checkpoint, grouped=group)
    pipe.assert_all_is_there_once()


def test_a_stream_that_only_its_checkpoint_names_is_refused(pipe: Pipe) -> None:
    """I16"""
    pipe.send(2)
    with pytest.raises(StreamingQueryException, match="if that is lost all is written twice: give the sink txnAppId"):
        pipe.run(group=False)
    assert pipe.written() == []


def test_two_sources_with_one_group_are_refused(pipe: Pipe) -> None:
    """A group has one position on a partition."""
    pipe.send(4)

    def twice(frame: DataFrame) -> DataFrame:
        options = {"url": pipe.url, "subscribe": pipe.source, "group": pipe.name, "startingOffsets": "earliest"}
        other = pipe.spark.readStream.format("msgtx").options(**options).load()
        return frame.union(other.select("key", "value"))

    with pytest.raises(StreamingQueryException, match=f"ConfigError: two sources of one query read {pipe.source}-"):
        pipe.run(transform=twice)


def test_a_batch_whose_reading_is_left_out_moves_the_group_on(pipe: Pipe) -> None:
    """Spark's optimizer leaves out a source that is not used: no task notes what the batch reads."""
    pipe.send(10)
    pipe.run()
    pipe.send(10)
    pipe.run(transform=lambda frame: frame.where("false"))
    assert pipe.position() == 20
    pipe.send(10)
    pipe.run()
    assert pipe.position() == 30
    assert pipe.written() == [*range(10), *range(20, 30)]


# What is left


def test_a_query_that_is_stopped_holds_no_reader_up(pipe: Pipe) -> None:
    """Spark kills its tasks, and no task has sent the batch's name to the driver."""

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for each in batches:
            for _ in range(8):  # more than Spark buffers between two Python workers
                yield pa.RecordBatch.from_pydict({"key": [b""] * 4, "value": [b" " * 500_000] * 4})
            time.sleep(600)
            yield each

    def begun() -> bool:
        with msgtx.connect(pipe.url) as other:
            places = [msgtx.TopicPartition(pipe.target, each) for each in range(PARTITIONS)]
            return any(other.admin.partitions.describe(each).log_end_offset for each in places)

    pipe.send(2)
    query = pipe.start(transform=through(slow))
    wait_until(begun, "a task has written", seconds=120)
    query.stop()
    with pipe.client.producer() as producer:
        for partition in range(PARTITIONS):
            producer.send(pipe.target, b"3", partition=partition)
    wait_until(lambda: pipe.written() == [3, 3], "readers go on", seconds=20)
