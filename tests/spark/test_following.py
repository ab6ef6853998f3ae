"""What a streaming source does on the driver between two batches, without a Spark session (I10)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

import msgtx
from msgtx.database.pool import Engine
from msgtx.spark_jobs.reading.stream import StreamReader, parsed
from msgtx.spark_jobs.source import LEAST_TASKS, SCHEMA, ReadPartition, read
from msgtx.spark_jobs.writing.writer import StreamWriter
from msgtx.store.spark import BatchName, decide_batch, record_range
from tests.store.steps import unique

ALL = ReadAllAvailable()


class Source:
    """A topic, a group, and the source of one query; tasks and sink are played by hand."""

    def __init__(self, client: msgtx.Client, engine: Engine, url: str, partitions: int) -> None:
        self.client = client
        self.engine = engine
        self.topic, self.group, self.query = unique("followed"), unique("group"), unique("query")
        client.topics.create(self.topic, partitions=partitions)
        self.partitions = partitions
        self.options = {"url": url, "subscribe": self.topic, "group": self.group, "startingOffsets": "earliest"}
        self.reader = StreamReader(self.options, SCHEMA)

    def send(self) -> None:
        with self.client.producer() as producer:
            for partition in range(self.partitions):
                producer.send(self.topic, b"1", partition=partition)

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadPartition]:
        return [each for each in self.reader.partitions(start, end) if isinstance(each, ReadPartition)]

    def commit(self, tasks: list[ReadPartition], batch: int) -> None:
        """Note what the tasks read, as the tasks do, and commit as the sink does."""
        assert tasks[0].noted is not None
        with self.engine.connection() as connection:
            record_range(connection, self.query, batch, group=self.group, ranges=tasks[0].noted.ranges)
            decided = decide_batch(connection, BatchName(self.group, self.query, batch), [], group=self.group)
        assert decided.error is None

    def position(self) -> list[int]:
        with self.client.consumer(group=self.group, enable_auto_commit=False) as consumer:
            found = consumer.committed([msgtx.TopicPartition(self.topic, each) for each in range(self.partitions)])
        return [0 if at is None else at.offset for at in found.values()]


@pytest.fixture
def source(client: msgtx.Client, engine: Engine, database_url: str) -> Iterator[Source]:
    made = Source(client, engine, database_url, 2)
    yield made
    made.reader.stop()


def test_a_group_whose_offsets_the_sink_commits_goes_along(source: Source) -> None:
    end = source.reader.initialOffset()
    for batch in range(2):
        source.send()
        start, end = end, source.reader.latestOffset(end, ALL)
        source.commit(source.tasks(start, end), batch)
    assert source.reader.latestOffset(end, ALL) == end
    assert source.position() == [2, 2]


def test_a_group_that_no_sink_commits_is_noticed_after_the_batch(source: Source) -> None:
    source.send()
    start = source.reader.initialOffset()
    end = source.reader.latestOffset(start, ALL)
    assert source.tasks(start, end)
    with pytest.raises(
        msgtx.errors.ConfigError, match="its sink has not committed that: give the sink the same option group"
    ):
        source.reader.latestOffset(end, ALL)


def test_a_batch_that_was_repeated_after_a_restart_is_followed_too(source: Source) -> None:
    """Spark runs the batch before it asks for the next offset."""
    source.send()
    start = source.reader.initialOffset()
    end = source.reader.latestOffset(start, ALL)
    again = StreamReader(source.options, SCHEMA)
    assert again.partitions(start, end)
    with pytest.raises(msgtx.errors.ConfigError, match="its sink has not committed that"):
        again.latestOffset(end, ALL)
    again.stop()


def test_what_spark_has_not_read_moves_the_group_on(source: Source) -> None:
    """Nothing is noted where Spark leaves the source out, yet the next batch starts at the group's offset."""
    start = source.reader.initialOffset()
    source.send()
    first = source.reader.latestOffset(start, ALL)
    source.commit(source.tasks(start, first), 0)
    source.send()
    second = source.reader.latestOffset(first, ALL)
    assert source.position() == [1, 1]
    source.send()
    third = source.reader.latestOffset(second, ALL)
    assert source.position() == [2, 2]
    source.commit(source.tasks(second, third), 2)
    assert source.position() == [3, 3]
    assert sum(parsed(source.reader.latestOffset(third, ALL))[0].ends.values()) == 6


def test_the_progress_tells_the_lag(source: Source) -> None:
    start = source.reader.initialOffset()
    for _ in range(5):
        source.send()
    for limit, lag in ((ReadMaxRows(4), 6), (ALL, 0)):
        source.reader.latestOffset(start, limit)
        told = source.reader.reportLatestOffset()
        assert told is not None
        assert told["lag"] == lag


def test_what_was_read_of_a_transaction_holds_nothing_back(source: Source) -> None:
    """I15: a stream that did not wait for the rest has a part of it already; what lies behind that is not late."""
    start = source.reader.initialOffset()
    with source.client.producer(transactional_id=unique("open")) as one:
        one.begin_transaction()
        one.send(source.topic, b"open", partition=1).result(10)
        with source.client.producer(transactional_id=unique("torn")) as torn, torn.transaction():
            for partition in range(2):
                torn.send(source.topic, b"torn", partition=partition)
        assert list(parsed(source.reader.latestOffset(start, ALL))[0].ends.values()) == [0, 0]
        with source.client.producer() as plain:
            plain.send(source.topic, b"later", partition=0)
        inside = {**start, "topics": {source.topic: {"0": 1, "1": 0}}}
        assert list(parsed(source.reader.latestOffset(inside, ALL))[0].ends.values()) == [2, 0]
        one.abort_transaction()


@pytest.mark.parametrize(("partitions", "tasks"), [(3, 3), (64, LEAST_TASKS)])
def test_small_ranges_share_a_task_and_each_notes_all(
    client: msgtx.Client, engine: Engine, database_url: str, partitions: int, tasks: int
) -> None:
    source = Source(client, engine, database_url, partitions)
    source.send()
    start = source.reader.initialOffset()
    found = source.tasks(start, source.reader.latestOffset(start, ALL))
    assert len(found) == tasks
    assert sorted(each.partition for task in found for each in task.ranges) == list(range(partitions))
    assert {len(task.noted.ranges) for task in found if task.noted} == {partitions}
    source.reader.stop()


# The tasks of a stream, played by hand as well


class Task:
    """The context that Spark gives to a task of a micro-batch."""

    def __init__(self, query: str, run: str, batch: int) -> None:
        self.properties = {"sql.streaming.queryId": query, "spark.jobGroup.id": run, "streaming.sql.batchId": str(batch)}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self.properties.get(name)


@pytest.fixture
def play(source: Source, monkeypatch: pytest.MonkeyPatch, database_url: str) -> Callable[..., list[Any]]:
    """Return a function that runs a batch's tasks from the source to a sink, and returns their messages to the driver."""
    source.client.topics.create(f"{source.topic}-out", partitions=1)
    schema = StructType([StructField("value", BinaryType())])

    def run(start: dict[str, Any], end: dict[str, Any], batch: int, *, named: str = "run", **options: str) -> list[Any]:
        monkeypatch.setattr(TaskContext, "get", lambda: Task(source.query, named, batch))
        sink = {"url": database_url, "topic": f"{source.topic}-out", "group": source.group, **options}
        writer = StreamWriter(sink, schema)
        told: list[Any] = [
            writer.write(record.select(["value"]) for record in read(task, SCHEMA)) for task in source.tasks(start, end)
        ]
        writer.commit(told, batch)
        return told

    return run


def written(source: Source) -> int:
    return len(list(source.client.read(source.client.snapshot([f"{source.topic}-out"]))))


def test_a_batch_goes_through_source_and_sink_once(source: Source, play: Callable[..., list[Any]]) -> None:
    end = source.reader.initialOffset()
    for batch in range(2):
        source.send()
        start, end = end, source.reader.latestOffset(end, ALL)
        assert [each.attempt.records for each in play(start, end, batch)] == [1, 1]
    assert [each.attempt for each in play(start, end, 1, named="another run")] == [None, None]
    assert (written(source), source.position()) == (4, [2, 2])
    with pytest.raises(msgtx.errors.BatchConflict, match="fell behind"):
        play(start, end, 0, named="another run")


def test_a_sink_that_fails_aborts_what_no_task_told_of(
    source: Source, play: Callable[..., list[Any]], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.send()
    start = source.reader.initialOffset()
    end = source.reader.latestOffset(start, ALL)
    monkeypatch.setattr(StreamWriter, "commit", lambda *_: None)
    play(start, end, 0)
    monkeypatch.undo()
    with source.client.producer() as producer:
        producer.send(f"{source.topic}-out", b"behind").result()
    assert written(source) == 0
    sink = {"url": database_url, "topic": f"{source.topic}-out", "group": source.group}
    StreamWriter(sink, StructType([StructField("value", BinaryType())])).abort([None, None], 0)
    assert written(source) == 1


def test_a_sink_of_another_group_writes_nothing(source: Source, play: Callable[..., list[Any]]) -> None:
    source.send()
    start = source.reader.initialOffset()
    end = source.reader.latestOffset(start, ALL)
    with pytest.raises(msgtx.errors.ConfigError, match="give both the same option group"):
        play(start, end, 0, group="other")
    assert (written(source), source.position()) == (0, [0, 0])
