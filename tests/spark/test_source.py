"""`format("msgtx")` in batches: reads return what the log holds, writes count once, and secrets stay secret."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import msgtx
from msgtx import TopicPartition
from msgtx.coordinator.sweep import sweep
from msgtx.database.pool import Engine
from msgtx.spark_jobs.reading.read_options import parse
from msgtx.spark_jobs.source import SCHEMA, BatchReader, MsgtxDataSource, Noted, ReadPartition
from msgtx.spark_jobs.writing import write_options
from msgtx.spark_jobs.writing.attempt import SESSION_MS
from tests.databases import PATIENCE_SECONDS, wait_until
from tests.store.steps import Writer, unique


@dataclass(frozen=True)
class Site:
    """A topic of three partitions beside a Spark session."""

    spark: SparkSession
    client: msgtx.Client
    url: str
    topic: str

    def reading(self, topic: str | None = None, *, schema: str | None = None, **options: Any) -> DataFrame:
        """Read with these options; `schema` is the reader's own."""
        reader = self.spark.read.format("msgtx").options(url=self.url, subscribe=topic or self.topic, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    def writing(self, frame: DataFrame, **options: Any) -> None:
        """Append a frame with these options."""
        frame.write.format("msgtx").mode("append").options(url=self.url, **options).save()

    def send(self, count: int) -> None:
        with self.client.producer() as producer:
            for at in range(count):
                producer.send(self.topic, b"%d" % at, key=b"k%d" % at, partition=at % 3, timestamp=1_000 + at)

    def stored(self, topic: str | None = None) -> list[msgtx.Record]:
        return list(self.client.read(self.client.snapshot([topic or self.topic])))


@pytest.fixture
def site(spark: SparkSession, client: msgtx.Client, database_url: str) -> Site:
    topic = unique("source")
    client.topics.create(topic, partitions=3, retention_ms=-1)
    return Site(spark, client, database_url, topic)


def values(frame: DataFrame) -> list[bytes | None]:
    return [None if row.value is None else bytes(row.value) for row in frame.select("value").collect()]


# Reading


def test_columns_and_types_are_those_of_kafkas_source(site: Site) -> None:
    """Spark finds the format by itself: it was not registered."""
    columns = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int{}>"
    )
    assert site.reading().schema.simpleString() == columns.format("")
    with_headers = columns.format(",headers:array<struct<key:string,value:binary>>")
    assert site.reading(includeHeaders="true").schema.simpleString() == with_headers
    assert site.reading().count() == 0


def test_rows_are_the_logs_records(site: Site) -> None:
    with site.client.producer() as producer:
        producer.send(site.topic, b"plain", key=b"a", partition=0, timestamp=1_500)
        producer.send(site.topic, None, key=b"tombstone", partition=0, timestamp=1_700)
        producer.send(site.topic, b"", partition=1, headers=[("h", b"1"), ("h", None)], timestamp=1_800)
        producer.send(site.topic, b"\x00\xff", key=b"", partition=1, timestamp=1_900)
    found = {
        (row.topic, row.partition, row.offset): (
            row.key and bytes(row.key), row.value if row.value is None else bytes(row.value),
            row.milliseconds, row.timestampType,
            () if row.headers is None else tuple((each.key, each.value and bytes(each.value)) for each in row.headers),
        )
        for row in site.reading(includeHeaders="true").selectExpr("*", "unix_millis(timestamp) as milliseconds").collect()
    }  # fmt: skip
    assert found == {
        (record.topic, record.partition, record.offset): (
            record.key, record.value, record.timestamp, 0, tuple(record.headers),
        )
        for record in site.stored()
    }  # fmt: skip
    assert len(found) == 4


def test_only_what_is_committed_is_read_and_no_transaction_is_divided(site: Site, engine: Engine) -> None:
    """I5, I15: an aborted one is skipped; one that follows an open one is left out on all its partitions."""
    with engine.connection() as connection:
        one, two, _ = (topic_id for topic_id, in connection.execute(
            "select partition_id from msgtx.partition join msgtx.topic using (topic_id) where name = %s order by 1",
            [site.topic],
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
        assert values(site.reading()) == [b"committed"]
        open_one.abort()
    assert sorted(values(site.reading()), key=str) == [b"committed", b"split", b"split"]


def test_ranges_are_cut_at_offsets_within_rows_of_the_log(site: Site) -> None:
    site.send(300)
    frame = site.reading(
        site.topic,
        startingOffsets=json.dumps({site.topic: {"0": 17, "1": -2, "2": 99}}),
        endingOffsets=json.dumps({site.topic: {"0": 18, "1": 50, "2": -1}}),
    )
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
    wanted = [(0, 17), *((1, at) for at in range(50)), (2, 99)]
    assert found == [(partition, at, b"%d" % (3 * at + partition)) for partition, at in wanted]


def test_a_range_is_divided_among_tasks(site: Site) -> None:
    site.send(300)
    frame = site.reading(minPartitions="7")
    assert frame.rdd.getNumPartitions() in (6, 7, 8)
    assert sorted(map(int, filter(None, values(frame)))) == list(range(300))


def test_logs_of_one_record_rows_and_of_sparse_rows_read_alike(site: Site) -> None:
    name = unique("compact")
    site.client.topics.create(name, partitions=1, cleanup_policy="compact", retention_ms=-1)
    with site.client.producer(batch_records=1) as producer:
        for at in range(40):
            producer.send(name, b"%d" % at, key=b"%d" % (at % 3))
    with site.client.producer() as producer:
        for at in range(40, 90):
            producer.send(name, b"%d" % at, key=b"%d" % (at % 7))
    before = {(row.offset, bytes(row.value)) for row in site.reading(name).collect()}
    assert before == {(at, b"%d" % at) for at in range(90)}
    site.client.sweep(only=["compaction"])
    after = sorted((row.offset, bytes(row.value)) for row in site.reading(name).collect())
    assert after == [(record.offset, record.value) for record in site.stored(name)]
    assert len(after) < 90


@pytest.mark.parametrize("schema", ["offset long, value binary", "Offset long, VALUE binary"])
def test_a_schema_may_name_the_columns_that_are_wanted(site: Site, schema: str) -> None:
    """In any case."""
    site.send(6)
    frame = site.reading(schema=schema)
    assert sorted((row[0], bytes(row[1])) for row in frame.collect()) == sorted((at // 3, b"%d" % at) for at in range(6))
    with pytest.raises(PySparkException, match="the source has no column offset string; a schema may name some of: key"):
        site.reading(schema="offset string").collect()


def test_what_retention_removed_is_an_error_or_left_out(site: Site) -> None:
    """Removed after it was planned: the task notices. `failOnDataLoss` is true by default."""
    site.send(30)
    options = {"url": site.url, "subscribe": site.topic}
    reader = BatchReader(parse(options), SCHEMA)
    first = {
        lossy: BatchReader(parse({**options, "failOnDataLoss": lossy}), SCHEMA).partitions()[0]
        for lossy in ("true", "false")
    }
    site.client.admin.partitions.delete_records({TopicPartition(site.topic, 0): 4})
    with pytest.raises(msgtx.errors.OffsetOutOfRange, match="records from offset 0 to 4 were removed by retention"):
        list(reader.read(first["true"]))
    assert [n for batch in reader.read(first["false"]) for n in batch.column("offset").to_pylist()] == list(range(4, 10))
    site.client.topics.delete(site.topic)
    with pytest.raises(msgtx.errors.UnknownTopicOrPartition, match=f"{site.topic}-0 was deleted while"):
        list(reader.read(first["true"]))
    assert list(reader.read(first["false"])) == []


def test_what_is_asked_wrongly_is_said_readably(site: Site) -> None:
    """I16"""
    for options, message in (
        ({"startingOfsets": "earliest"}, "unknown option 'startingofsets'; the nearest known one is 'startingOffsets'"),
        ({"minPartitions": "few"}, "minPartitions is a whole number above 0, not 'few'"),
        ({"assign": '{"t":[0]}'}, "subscribe and assign are given"),
    ):
        with pytest.raises(PySparkException, match=message):
            site.reading(**options).collect()
    with pytest.raises(PySparkException, match="UnknownTopicOrPartition: there is no topic 'nowhere'"):
        site.reading("nowhere").collect()


def test_a_password_is_nowhere_to_be_seen(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    password = sqlalchemy.make_url(site.url).password
    assert password
    site.send(3)
    frame = site.reading()
    frame.explain(extended=True)
    (partition, *_) = BatchReader(parse({"url": site.url, "subscribe": site.topic}), frame.schema).partitions()
    assert isinstance(partition, ReadPartition)
    assert partition.url == site.url
    noted = Noted("g", "source", 0, {1: (0, 1)}, site.url, None)
    with pytest.raises(PySparkException) as raised:
        site.reading(startingOffsets="nowhere").collect()
    written = write_options.parse({"url": site.url}, streaming=False)
    shown = (capsys.readouterr().out, repr(partition), repr(noted), str(raised.value), repr(written))
    assert site.topic in shown[1]
    assert not [text for text in shown if password in text]


# Writing


def test_a_frame_is_appended_once_and_reads_back(site: Site) -> None:
    numbers = site.spark.range(0, 1_000, numPartitions=3)
    frame = numbers.selectExpr("concat('k', id) as KEY", "cast(id as string) as value", "id")
    site.writing(frame, topic=site.topic)
    assert sorted(int(record.value or b"") for record in site.stored()) == list(range(1_000))
    assert {record.key for record in site.stored()} == {b"k%d" % at for at in range(1_000)}
    copied = site.reading().withColumnRenamed("timestamp", "at").drop("topic", "partition")
    site.writing(copied, topic=site.topic)
    assert len(site.stored()) == 2_000


def test_a_batch_with_a_name_is_written_once_however_often_it_is_run(site: Site) -> None:
    """With Delta's names for the options."""
    frame = site.spark.range(0, 10).selectExpr("cast(id as string) as value")
    for version in ("0", "0", "1", "0"):
        site.writing(frame, topic=site.topic, txnAppId="app", txnVersion=version)
    assert len(site.stored()) == 20


def test_a_write_that_fails_leaves_nothing(site: Site, engine: Engine) -> None:
    """I6: the task that did not fail has also written."""
    frame = site.spark.range(0, 100, numPartitions=2).selectExpr(
        "if(id < 99, cast(id as string), raise_error('the last one')) as value"
    )
    with pytest.raises(PySparkException, match="the last one"):
        site.writing(frame, topic=site.topic)
    assert site.stored() == []

    def is_decided() -> bool:
        sweep(engine)
        with engine.connection() as connection:
            found = connection.execute("select count(*) from msgtx.transactions where state = 'Ongoing'").fetchone()
        return found == (0,)

    # At once, but for a task that begins to write behind the driver's ABORT: it is left to its timeout.
    wait_until(is_decided, seconds=SESSION_MS / 1000 + PATIENCE_SECONDS)
    assert site.stored() == []


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
def test_a_frame_that_cannot_be_written_is_refused(site: Site, columns: str, options: dict[str, str], message: str) -> None:
    """I16"""
    frame = site.spark.range(0, 1, numPartitions=1).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=message):
        site.writing(frame, **{name: value.replace("?", site.topic) for name, value in options.items()})
    assert site.stored() == []


def test_a_log_is_not_overwritten(site: Site) -> None:
    frame = site.spark.range(1).selectExpr("'v' as value")
    with pytest.raises(PySparkException, match=r"a log is not overwritten: write with mode\('append'\)"):
        frame.write.format("msgtx").mode("overwrite").options(url=site.url, topic=site.topic).save()


def test_schemas_are_said_without_a_session() -> None:
    """Spark asks for schemas in processes without a session."""
    source = MsgtxDataSource({"includeHeaders": "TRUE"})
    assert isinstance(source.schema(), StructType)
    assert source.schema().names[-1] == "headers"
