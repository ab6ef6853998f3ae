"""What a streaming source does on the driver between two batches, without a Spark session (I10)."""

import collections
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

import msgtx
from msgtx.database.pool import Engine
from msgtx.spark_jobs.reading import idle, offsets
from msgtx.spark_jobs.reading.stream import StreamReader, parsed
from msgtx.spark_jobs.source import LEAST_TASKS, SCHEMA, ReadPartition, read
from msgtx.spark_jobs.writing.writer import StreamWriter
from msgtx.store.spark import BatchName, decide_batch, record_range
from tests.links import unix_link
from tests.refusals import refuses
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

    def note(self, tasks: list[ReadPartition], batch: int, *, query: str | None = None) -> None:
        """Note what the tasks read, as the tasks do."""
        noted = tasks[0].noted
        assert noted is not None
        with self.engine.connection() as connection:
            record_range(
                connection, query or self.query, batch, group=self.group, ranges=noted.ranges, source_id=noted.source_id
            )

    def commit(self, tasks: list[ReadPartition], batch: int) -> None:
        """Note what the tasks read, and commit as the sink does."""
        self.note(tasks, batch)
        with self.engine.connection() as connection:
            decided = decide_batch(connection, BatchName(self.group, self.query, batch), [], group=self.group)
        assert decided.error is None

    def position(self) -> list[int]:
        with self.client.consumer(group=self.group, enable_auto_commit=False) as consumer:
            found = consumer.committed([msgtx.TopicPartition(self.topic, each) for each in range(self.partitions)])
        return [0 if at is None else at.offset for at in found.values()]


@pytest.fixture(autouse=True)
def whole_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that has nothing to read looks for new topics each time."""
    monkeypatch.setattr(idle, "WHOLE_LOOK_SECONDS", 0.0)


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


def test_a_group_follows_a_query_whose_sink_does_not_commit_it(source: Source) -> None:
    """Each look comes when the batches before it are complete, also the last one of an AvailableNow run."""
    end = source.reader.initialOffset()
    for batch in range(2):
        source.send()
        start, end = end, source.reader.latestOffset(end, ALL)
        source.note(source.tasks(start, end), batch)
        assert source.position() == [batch, batch]
        source.reader.latestOffset(end, ALL)
        assert source.position() == [batch + 1, batch + 1]


@pytest.mark.parametrize("repeated", [True, False])
def test_a_group_follows_the_last_batch_of_the_run_before(source: Source, repeated: bool) -> None:
    """Spark repeats it if it was not complete. If it was, a new run has nothing but the offset at which it ended."""
    source.send()
    start = source.reader.initialOffset()
    end = source.reader.latestOffset(start, ALL)
    source.note(source.tasks(start, end), 0)
    again = StreamReader(source.options, SCHEMA)
    if repeated:
        assert again.partitions(start, end)
    again.latestOffset(end, ALL)
    again.stop()
    assert source.position() == [1, 1]


def test_a_stream_begins_at_the_end_of_a_log_that_grows(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = offsets.stable_cut
    monkeypatch.setattr(offsets, "stable_cut", lambda *asked: (source.send(), cut(*asked))[1])
    reader = StreamReader({**source.options, "startingOffsets": "latest"}, SCHEMA)
    assert list(parsed(reader.initialOffset())[0].ends.values()) == [1, 1]
    reader.stop()


@pytest.mark.parametrize("group", [True, False])
def test_a_first_batch_that_began_at_the_end_of_the_log_is_repeated_as_it_was(source: Source, group: bool) -> None:
    """I1: Spark asks where the query begins once more, and by then the end is elsewhere. Another stream has the same end."""
    options = {name: value for name, value in source.options.items() if group or name != "group"}
    options["startingOffsets"] = "latest"
    source.send()
    one = StreamReader(options, SCHEMA)
    start = one.initialOffset()
    source.send()
    end = one.latestOffset(start, ALL)
    ranges = [task.ranges for task in one.partitions(start, end) if isinstance(task, ReadPartition)]
    one.stop()
    other = StreamReader({**options, "startingOffsets": "earliest"}, SCHEMA)
    assert parsed(other.latestOffset(other.initialOffset(), ALL)) == parsed(end)
    other.stop()
    source.send()
    again = StreamReader(options, SCHEMA)
    asked = again.initialOffset()
    assert asked != start
    assert [task.ranges for task in again.partitions(asked, end) if isinstance(task, ReadPartition)] == ranges
    again.stop()
    assert len(ranges) == 2


def test_a_batch_that_its_sink_has_committed_may_be_repeated(source: Source) -> None:
    """The checkpoint is a batch behind the group: its newest files were lost in a crash."""
    source.send()
    start = source.reader.initialOffset()
    end = source.reader.latestOffset(start, ALL)
    source.commit(source.tasks(start, end), 0)
    again = StreamReader(source.options, SCHEMA)
    assert parsed(again.latestOffset(start, ALL)) == parsed(end)
    source.commit([each for each in again.partitions(start, end) if isinstance(each, ReadPartition)], 0)
    again.latestOffset(end, ALL)
    again.stop()
    assert source.position() == [1, 1]


@pytest.mark.parametrize("at", [1, 3])
def test_a_checkpoint_that_is_elsewhere_than_its_group_is_refused_before_anything_is_read(source: Source, at: int) -> None:
    for _ in range(3):
        source.send()
    start = source.reader.initialOffset()
    end = source.reader.latestOffset(start, ReadMaxRows(4))
    source.note(source.tasks(start, end), 0)
    source.reader.latestOffset(end, ALL)
    place = msgtx.TopicPartition(source.topic, 1)
    source.client.admin.groups.reset(source.group, {place: at})
    again = StreamReader(source.options, SCHEMA)
    with refuses(msgtx.errors.BatchConflict, group=source.group, topic=source.topic, partition=1):
        again.latestOffset(end, ALL)
    again.stop()


def test_of_two_queries_with_one_group_the_later_one_ends(source: Source) -> None:
    """I10: it has read the same records, and finds the group where it would have moved it."""
    source.send()
    other = StreamReader(source.options, SCHEMA)
    start = source.reader.initialOffset()
    assert other.initialOffset() == start
    end = source.reader.latestOffset(start, ALL)
    assert other.latestOffset(start, ALL) == end
    source.note(source.tasks(start, end), 0)
    source.note([each for each in other.partitions(start, end) if isinstance(each, ReadPartition)], 0, query=unique("query"))
    source.reader.latestOffset(end, ALL)
    with refuses(msgtx.errors.BatchConflict, group=source.group):
        other.latestOffset(end, ALL)
    other.stop()


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


# The database is away


class Outages:
    """Connections of engines fail when it is their turn, once each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.fails_at = -1
        monkeypatch.setattr("msgtx.database.outages.RETRY_SECONDS", 0.001)
        connection = Engine.connection

        def perhaps(engine: Engine, *arguments: Any, **settings: Any) -> Any:
            self.asked += 1
            if self.asked - 1 == self.fails_at:
                raise msgtx.errors.DatabaseUnavailable("server closed the connection unexpectedly")
            return connection(engine, *arguments, **settings)

        monkeypatch.setattr(Engine, "connection", perhaps)

    def at_each(self, call: Callable[[], object]) -> list[object]:
        """Do a call again and again, each time with another one of its connections lost. Returns the answers."""
        answers: list[object] = []
        self.fails_at = -1
        while not answers or self.asked > self.fails_at >= 0 or len(answers) == 1:
            self.asked = 0
            answers.append(call())
            self.fails_at += 1
        return answers


def test_whatever_spark_asks_the_driver_waits_for_a_database_that_restarts(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = source.reader.initialOffset()
    source.send()
    first = source.reader.latestOffset(start, ALL)
    source.commit(source.tasks(start, first), 0)
    source.send()
    outages = Outages(monkeypatch)

    def asked() -> Iterator[Callable[[], object]]:
        fresh = StreamReader(source.options, SCHEMA)
        yield fresh.initialOffset
        fresh.partitions(start, first)
        yield lambda: fresh.latestOffset(first, ReadMaxRows(1_000))
        end = fresh.latestOffset(first, ALL)
        yield lambda: [task.ranges for task in fresh.partitions(first, end) if isinstance(task, ReadPartition)]
        yield fresh.prepareForTriggerAvailableNow
        yield lambda: fresh.latestOffset(first, ALL)
        fresh.stop()
        options = {"url": source.options["url"], "topic": source.topic, "group": source.group}
        yield lambda: len(StreamWriter(options, StructType([StructField("value", BinaryType())]))._writer.columns)

    for call in asked():
        answers = outages.at_each(call)
        assert len(answers) > 2, "it asks the database"
        assert all(answer == answers[0] for answer in answers)


def test_a_group_is_followed_when_the_first_look_was_cut_off(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.send()
    start = source.reader.initialOffset()
    end = source.reader.latestOffset(start, ALL)
    source.note(source.tasks(start, end), 0)
    outages = Outages(monkeypatch)
    outages.fails_at = 0
    source.reader.latestOffset(end, ALL)
    assert outages.asked > 1
    assert source.position() == [1, 1]


def test_an_outage_longer_than_outage_timeout_is_raised(source: Source, database_url: str) -> None:
    with unix_link(database_url) as link:
        reader = StreamReader({**source.options, "url": link.url, "outage_timeout": "0.3s"}, SCHEMA)
        start = reader.initialOffset()
        link.leave()
        with pytest.raises(msgtx.errors.DatabaseUnavailable) as caught:
            reader.latestOffset(start, ALL)
        reader.stop()
    assert "outage_timeout is 0.3 s" in caught.value.__notes__[0]


@pytest.mark.parametrize("value", ["-1", "soon"])
def test_an_outage_timeout_is_a_duration(source: Source, value: str) -> None:
    with refuses(msgtx.errors.ConfigError, name="outage_timeout"):
        StreamReader({**source.options, "outage_timeout": value}, SCHEMA)


# Topics that come and go


def lenient(source: Source, **options: str) -> StreamReader:
    return StreamReader({**source.options, "failOnDataLoss": "false", **options}, SCHEMA)


def read_all(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """Read what lies between two offsets, as the tasks of a batch do."""
    found: list[bytes] = []
    for task in reader.partitions(start, end):
        assert isinstance(task, ReadPartition)
        for rows in read(replace(task, noted=None), SCHEMA):
            found += rows.column("value").to_pylist()
    return found


@pytest.mark.parametrize("group", [True, False])
def test_a_stream_may_lose_its_topics_and_get_them_again(source: Source, client: msgtx.Client, group: bool) -> None:
    other = unique("other")
    client.topics.create(other)
    both = {"subscribe": f"{source.topic},{other}"}
    reader = lenient(source, **both, **({} if group else {"group": None}))  # type: ignore[arg-type]
    source.send()
    start = reader.initialOffset()
    first = reader.latestOffset(start, ALL)
    assert read_all(reader, start, first) == [b"1", b"1"]
    client.topics.delete(source.topic)
    client.topics.delete(other)
    for each in (reader, lenient(source, **both)):
        nothing = each.latestOffset(first, ALL)
        assert nothing["topics"] == {}
        assert read_all(each, first, nothing) == []
        assert each.latestOffset(nothing, ALL) == nothing
    client.topics.create(source.topic, partitions=2)
    source.send()
    again = reader.latestOffset(nothing, ALL)
    assert read_all(reader, nothing, again) == [b"1", b"1"]
    reader.stop()


def test_a_topic_that_goes_between_two_steps_of_a_batch_is_left_out(source: Source, client: msgtx.Client) -> None:
    """With the group, whose offset there is gone with it."""
    reader = lenient(source)
    start = reader.initialOffset()
    source.send()
    end = reader.latestOffset(start, ALL)
    tasks = [each for each in reader.partitions(start, end) if isinstance(each, ReadPartition)]
    client.topics.delete(source.topic)
    assert [rows for task in tasks for rows in read(replace(task, noted=None), SCHEMA)] == []
    source.commit(tasks, 0)
    assert reader.latestOffset(end, ALL)["topics"] == {}
    assert read_all(reader, start, end) == []
    client.topics.create(source.topic, partitions=2)
    source.send()
    assert read_all(reader, start, end) == [], "it is another topic"
    assert read_all(reader, end, reader.latestOffset(end, ALL)) == [b"1", b"1"]
    reader.stop()


def test_a_run_over_what_is_there_does_not_read_a_topic_that_was_made_anew(source: Source, client: msgtx.Client) -> None:
    reader = lenient(source)
    start = reader.initialOffset()
    source.send()
    source.send()
    reader.prepareForTriggerAvailableNow()
    client.topics.delete(source.topic)
    client.topics.create(source.topic, partitions=2)
    source.send()
    end = reader.latestOffset(start, ALL)
    assert read_all(reader, start, end) == [b"1", b"1"]
    assert list(end["topics"][source.topic].values()) == [1, 1]
    reader.stop()


@pytest.mark.parametrize("way", ["subscribe", "assign", "subscribePattern"])
def test_a_stream_that_may_lose_nothing_says_what_is_gone(source: Source, client: msgtx.Client, way: str) -> None:
    which = {"subscribe": source.topic, "assign": f'{{"{source.topic}": [0, 1]}}', "subscribePattern": f"{source.topic}.*"}
    reader = StreamReader({"url": source.options["url"], way: which[way], "startingOffsets": "earliest"}, SCHEMA)
    start = reader.initialOffset()
    client.topics.delete(source.topic)
    with pytest.raises(
        msgtx.errors.UnknownTopicOrPartition, match=f"{source.topic}.*: not there any more; failOnDataLoss=false reads"
    ):
        reader.partitions(start, reader.latestOffset(start, ALL))
    reader.stop()


@pytest.mark.parametrize("seed", range(4))
def test_topics_that_change_at_random_are_read_once(client: msgtx.Client, database_url: str, seed: int) -> None:
    """I14: what is there at the end was read, once; nothing was read twice; the query never ends."""
    chance = random.Random(seed)
    prefix = unique("changing")
    names = [f"{prefix}-{at}" for at in range(3)]
    way = chance.choice(({"subscribe": ",".join(names)}, {"subscribePattern": f"{prefix}-.*"}))
    options = {"url": database_url, "startingOffsets": "earliest", "failOnDataLoss": "false", **way}
    for name in names:
        client.topics.create(name)
    reader = StreamReader(options, SCHEMA)
    offset = reader.initialOffset()
    numbers, seen = itertools.count(), collections.Counter[bytes]()

    def change() -> None:
        there = {name: client.topics.describe(name).partitions for name in client.topics.list() if name in names}
        name = chance.choice(names)
        match chance.choice(("send", "send", "send", "make", "delete", "grow", "shrink")):
            case "send" if name in there:
                with client.producer() as producer:
                    for _ in range(3):
                        producer.send(name, b"%d" % next(numbers), partition=chance.randrange(there[name]))
            case "make" if name not in there:
                client.topics.create(name, partitions=chance.randint(1, 3))
            case "delete" if name in there:
                client.topics.delete(name)
            case "grow" if name in there:
                client.topics.alter(name, partitions=there[name] + 1)
            case "shrink" if name in there:
                place = msgtx.TopicPartition(name, chance.randrange(there[name]))
                end = client.snapshot([name]).ends[place]
                client.admin.partitions.delete_records({place: chance.randint(0, end)})

    def step() -> None:
        nonlocal offset
        end = reader.latestOffset(offset, chance.choice((ALL, ReadMaxRows(4))))
        if chance.random() < 0.3:
            change()
        tasks = [each for each in reader.partitions(offset, end) if isinstance(each, ReadPartition)]
        if chance.random() < 0.3:
            change()
        for task in tasks:
            for rows in read(replace(task, noted=None), SCHEMA):
                seen.update(rows.column("value").to_pylist())
        offset = end

    for _ in range(25):
        change()
        if chance.random() < 0.5:
            step()
        if chance.random() < 0.1:
            reader.stop()
            reader = StreamReader(options, SCHEMA)
    while True:
        before = offset
        end = reader.latestOffset(offset, ALL)
        seen.update(read_all(reader, offset, end))
        offset = end
        if end == before:
            break
    reader.stop()
    left = [name for name in client.topics.list() if name in names]
    stored = {record.value for record in client.read(client.snapshot(left))} if left else set()
    assert max(seen.values(), default=1) == 1
    assert stored <= seen.keys()
    assert seen
