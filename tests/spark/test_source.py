"""`format("msgtx")` in batches: reads return what the log holds, writes count once, and secrets stay secret."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import msgtx
from msgtx import TopicPartition
from msgtx.database.pool import Engine
from msgtx.spark_jobs.reading.read_options import parse
from msgtx.spark_jobs.source import SCHEMA, BatchReader, MsgtxDataSource, Noted, ReadPartition
from msgtx.spark_jobs.writing.write_options import WriteOptions
from tests.store.steps import Writer, unique


@pytest.fixture
def topic(client: msgtx.Client) -> str:
    name = unique("source")
    client.topics.create(name, partitions=3, retention_ms=-1)
    return name


@pytest.fixture
def reading(spark: SparkSession, database_url: str) -> Callable[..., DataFrame]:
    """Read with these options; `schema` is the reader's own."""

    def read(topic: str, *, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("msgtx").options(url=database_url, subscribe=topic, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    return read


@pytest.fixture
def writing(database_url: str) -> Callable[..., None]:
    """Append a frame with these options."""

    def write(frame: DataFrame, **options: Any) -> None:
        frame.write.format("msgtx").mode("append").options(url=database_url, **options).save()

    return write


def send(client: msgtx.Client, topic: str, count: int, *, partitions: int = 3) -> None:
    with client.producer() as producer:
        for at in range(count):
            producer.send(topic, b"%d" % at, key=b"k%d" % at, partition=at % partitions, timestamp=1_000 + at)


def values(frame: DataFrame) -> list[bytes | None]:
    return [None if row.value is None else bytes(row.value) for row in frame.select("value").collect()]


def stored(client: msgtx.Client, topic: str) -> list[msgtx.Record]:
    return list(client.read(client.snapshot([topic])))


# Reading


def test_columns_and_types_are_those_of_kafkas_source(
    reading: Callable[..., DataFrame], topic: str, client: msgtx.Client
) -> None:
    """Spark finds the format by itself: it was not registered."""
    columns = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int{}>"
    )
    assert reading(topic).schema.simpleString() == columns.format("")
    with_headers = columns.format(",headers:array<struct<key:string,value:binary>>")
    assert reading(topic, includeHeaders="true").schema.simpleString() == with_headers
    assert reading(topic).count() == 0


def test_rows_are_the_logs_records(reading: Callable[..., DataFrame], topic: str, client: msgtx.Client) -> None:
    with client.producer() as producer:
        producer.send(topic, b"plain", key=b"a", partition=0, timestamp=1_500)
        producer.send(topic, None, key=b"tombstone", partition=0, timestamp=1_700)
        producer.send(topic, b"", partition=1, headers=[("h", b"1"), ("h", None)], timestamp=1_800)
        producer.send(topic, b"\x00\xff", key=b"", partition=1, timestamp=1_900)
    found = {
        (row.topic, row.partition, row.offset): (
            row.key and bytes(row.key), row.value if row.value is None else bytes(row.value),
            row.milliseconds, row.timestampType,
            () if row.headers is None else tuple((each.key, each.value and bytes(each.value)) for each in row.headers),
        )
        for row in reading(topic, includeHeaders="true").selectExpr("*", "unix_millis(timestamp) as milliseconds").collect()
    }  # fmt: skip
    assert found == {
        (record.topic, record.partition, record.offset): (
            record.key, record.value, record.timestamp, 0, tuple(record.headers),
        )
        for record in stored(client, topic)
    }  # fmt: skip
    assert len(found) == 4


def test_only_what_is_committed_is_read_and_no_transaction_is_divided(
    reading: Callable[..., DataFrame], topic: str, client: msgtx.Client, engine: Engine
) -> None:
    """I5, I15: an aborted one is skipped; one that follows an open one is left out on all its partitions."""
    with engine.connection() as connection:
        one, two, _ = (topic_id for topic_id, in connection.execute(
            "select partition_id from msgtx.partition join msgtx.topic using (topic_id) where name = %s order by 1", [topic]
        ))  # fmt: skip
        aborted, committed, split, open_one = (Writer(connection) for _ in range(4))
        aborted.send(one, b"aborted")
        committed.send(one, b"committed")
        aborted.abort()
        committed.commit()
        split.send(two, b"split")
        open_one.send(one, b"open")
        split.send(one, b"split")
        split.commit()
        assert values(reading(topic)) == [b"committed"]
        open_one.abort()
    assert sorted(values(reading(topic)), key=str) == [b"committed", b"split", b"split"]


def test_ranges_are_cut_at_offsets_within_rows_of_the_log(
    reading: Callable[..., DataFrame], topic: str, client: msgtx.Client
) -> None:
    send(client, topic, 300)
    frame = reading(
        topic,
        startingOffsets=json.dumps({topic: {"0": 17, "1": -2, "2": 99}}),
        endingOffsets=json.dumps({topic: {"0": 18, "1": 50, "2": -1}}),
    )
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
    wanted = [(0, 17), *((1, at) for at in range(50)), (2, 99)]
    assert found == [(partition, at, b"%d" % (3 * at + partition)) for partition, at in wanted]


def test_a_range_is_divided_among_tasks(reading: Callable[..., DataFrame], topic: str, client: msgtx.Client) -> None:
    send(client, topic, 300)
    frame = reading(topic, minPartitions="7")
    assert frame.rdd.getNumPartitions() in (6, 7, 8)
    assert sorted(map(int, filter(None, values(frame)))) == list(range(300))


def test_logs_of_one_record_rows_and_of_sparse_rows_read_alike(
    reading: Callable[..., DataFrame], client: msgtx.Client
) -> None:
    name = unique("compact")
    client.topics.create(name, partitions=1, cleanup_policy="compact", retention_ms=-1)
    with client.producer(batch_records=1) as producer:
        for at in range(40):
            producer.send(name, b"%d" % at, key=b"%d" % (at % 3))
    with client.producer() as producer:
        for at in range(40, 90):
            producer.send(name, b"%d" % at, key=b"%d" % (at % 7))
    before = {(row.offset, bytes(row.value)) for row in reading(name).collect()}
    assert before == {(at, b"%d" % at) for at in range(90)}
    client.sweep(only=["compaction"])
    after = sorted((row.offset, bytes(row.value)) for row in reading(name).collect())
    assert after == [(record.offset, record.value) for record in stored(client, name)]
    assert len(after) < 90


def test_a_schema_may_name_the_columns_that_are_wanted(
    reading: Callable[..., DataFrame], topic: str, client: msgtx.Client
) -> None:
    send(client, topic, 6)
    frame = reading(topic, schema="offset long, value binary")
    assert sorted((row.offset, bytes(row.value)) for row in frame.collect()) == sorted(
        (at // 3, b"%d" % at) for at in range(6)
    )
    with pytest.raises(PySparkException, match="the source has no column offset string; a schema may name some of: key"):
        reading(topic, schema="offset string").collect()


def test_what_retention_removed_is_an_error_or_left_out(topic: str, client: msgtx.Client, database_url: str) -> None:
    """Removed after it was planned: the task notices. `failOnDataLoss` is true by default."""
    send(client, topic, 30)
    options = {"url": database_url, "subscribe": topic}
    reader = BatchReader(parse(options), SCHEMA)
    first = {
        lossy: BatchReader(parse({**options, "failOnDataLoss": lossy}), SCHEMA).partitions()[0]
        for lossy in ("true", "false")
    }
    client.admin.partitions.delete_records({TopicPartition(topic, 0): 4})
    with pytest.raises(msgtx.errors.OffsetOutOfRange, match="records from offset 0 to 4 were removed by retention"):
        list(reader.read(first["true"]))
    assert [n for batch in reader.read(first["false"]) for n in batch.column("offset").to_pylist()] == list(range(4, 10))
    client.topics.delete(topic)
    with pytest.raises(msgtx.errors.UnknownTopicOrPartition, match=f"{topic}-0 was deleted while"):
        list(reader.read(first["true"]))
    assert list(reader.read(first["false"])) == []


def test_what_is_asked_wrongly_is_said_readably(reading: Callable[..., DataFrame], topic: str) -> None:
    """I16"""
    for options, message in (
        ({"startingOfsets": "earliest"}, "unknown option 'startingofsets'; the nearest known one is 'startingOffsets'"),
        ({"minPartitions": "few"}, "minPartitions is a whole number above 0, not 'few'"),
        ({"assign": '{"t":[0]}'}, "subscribe and assign are given"),
    ):
        with pytest.raises(PySparkException, match=message):
            reading(topic, **options).collect()
    with pytest.raises(PySparkException, match="UnknownTopicOrPartition: there is no topic 'nowhere'"):
        reading("nowhere").collect()


def test_a_password_is_nowhere_to_be_seen(
    reading: Callable[..., DataFrame],
    topic: str,
    client: msgtx.Client,
    database_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    password = sqlalchemy.make_url(database_url).password
    assert password
    send(client, topic, 3)
    frame = reading(topic)
    frame.explain(extended=True)
    (partition, *_) = BatchReader(parse({"url": database_url, "subscribe": topic}), frame.schema).partitions()
    assert isinstance(partition, ReadPartition)
    assert partition.url == database_url
    noted = Noted("g", "source", {1: (0, 1)}, database_url)
    with pytest.raises(PySparkException) as raised:
        reading(topic, startingOffsets="nowhere").collect()
    shown = (capsys.readouterr().out, repr(partition), repr(noted), str(raised.value), repr(WriteOptions(url=database_url)))
    assert topic in shown[1]
    assert not [text for text in shown if password in text]


# Writing


def test_a_frame_is_appended_once_and_reads_back(
    spark: SparkSession, reading: Callable[..., DataFrame], writing: Callable[..., None], topic: str, client: msgtx.Client
) -> None:
    frame = spark.range(0, 1_000, numPartitions=3).selectExpr("concat('k', id) as KEY", "cast(id as string) as value", "id")
    writing(frame, topic=topic)
    assert sorted(int(record.value or b"") for record in stored(client, topic)) == list(range(1_000))
    assert {record.key for record in stored(client, topic)} == {b"k%d" % at for at in range(1_000)}
    copied = reading(topic).withColumnRenamed("timestamp", "at").drop("topic", "partition")
    writing(copied, topic=topic)
    assert len(stored(client, topic)) == 2_000


def test_a_batch_with_a_name_is_written_once_however_often_it_is_run(
    spark: SparkSession, writing: Callable[..., None], topic: str, client: msgtx.Client
) -> None:
    """With Delta's names for the options."""
    for version in ("0", "0", "1", "0"):
        writing(
            spark.range(0, 10).selectExpr("cast(id as string) as value"), topic=topic, txnAppId="app", txnVersion=version
        )
    assert len(stored(client, topic)) == 20


def test_a_write_that_fails_leaves_nothing(
    spark: SparkSession, writing: Callable[..., None], topic: str, client: msgtx.Client, engine: Engine
) -> None:
    """I6: the task that did not fail has also written."""
    frame = spark.range(0, 100, numPartitions=2).selectExpr(
        "if(id < 99, cast(id as string), raise_error('the last one')) as value"
    )
    with pytest.raises(PySparkException, match="the last one"):
        writing(frame, topic=topic)
    assert stored(client, topic) == []
    with engine.connection() as connection:
        found = connection.execute("select count(*) from msgtx.transactions where state = 'Ongoing'").fetchone()
    assert found == (0,)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id", {"topic": "?"}, "the DataFrame has no column value; it has id: rename one, or make one"),
        ("id as value", {"topic": "?"}, "column value is bigint; a sink takes binary or string: cast it"),
        ("'v' as value", {}, "where to write. Give a topic, or each row one in a column topic"),
        ("'v' as value, cast(null as string) as topic", {}, "1 of 1 rows have no topic: fill the column topic"),
        ("'v' as value, 3 as partition", {"topic": "?"}, "a row names partition 3; topic .* has the partitions 0 to 2"),
        ("'v' as value, 'nowhere' as topic", {}, "there is no topic 'nowhere'; create it first"),
        ("'v' as value", {"topic": "nowhere"}, "there is no topic 'nowhere'"),
        ("'v' as value", {"topic": "?", "txnAppId": "a"}, "txnAppId and txnVersion name a batch together"),
        ("'v' as value", {"topic": "?", "group": "g"}, "group is for streams"),
        ("'v' as value", {"topics": "?"}, "unknown option 'topics'; the nearest known one is 'topic'"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused(
    spark: SparkSession,
    writing: Callable[..., None],
    topic: str,
    client: msgtx.Client,
    columns: str,
    options: dict[str, str],
    message: str,
) -> None:
    """I16"""
    frame = spark.range(0, 1, numPartitions=1).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=message):
        writing(frame, **{name: value.replace("?", topic) for name, value in options.items()})
    assert stored(client, topic) == []


def test_a_log_is_not_overwritten(spark: SparkSession, database_url: str, topic: str) -> None:
    frame = spark.range(1).selectExpr("'v' as value")
    with pytest.raises(PySparkException, match=r"a log is not overwritten: write with mode\('append'\)"):
        frame.write.format("msgtx").mode("overwrite").options(url=database_url, topic=topic).save()


def test_schemas_are_said_without_a_session() -> None:
    """Spark asks for schemas in processes without a session."""
    source = MsgtxDataSource({"includeHeaders": "TRUE"})
    assert isinstance(source.schema(), StructType)
    assert source.schema().names[-1] == "headers"
