"""write_transactional: a DataFrame's rows, offsets and the user's own rows in one commit (I1, I4, I6, I10; P20)."""

import uuid
from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy
from pyspark.sql import DataFrame, SparkSession

import msgtx
from msgtx import TopicPartition, errors
from msgtx.database.pool import Engine
from msgtx.rules.partitioner import by_crc32, by_murmur2
from msgtx.spark_jobs import write_transactional
from msgtx.spark_jobs.writing import attempt
from msgtx.store.spark import BatchName
from msgtx.store.transactions.transactions import expire_transactions
from msgtx.types import Record, Snapshot
from tests.databases import Connection, wait_until


@pytest.fixture(scope="module", autouse=True)
def topics(database_url: str) -> None:
    with msgtx.connect(database_url) as client:
        for name in ("orders", "invoices", "other"):
            client.topics.create(name, partitions=3)


@pytest.fixture
def app() -> str:
    return f"app-{uuid.uuid4()}"


@pytest.fixture
def written(client: msgtx.Client) -> Callable[[], list[Record]]:
    """What this test has added to `invoices`, by partition and offset."""
    before = client.snapshot(["invoices"])
    return lambda: list(client.read(client.snapshot(["invoices"]), before))


def rows(spark: SparkSession, count: int, *, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, numPartitions=partitions).selectExpr(
        "cast(cast(id as string) as binary) as key", "concat('value-', id) as value"
    )


def test_every_row_is_there_once_where_its_key_belongs(
    spark: SparkSession, database_url: str, app: str, written: Callable[[], list[Record]]
) -> None:
    report = write_transactional(rows(spark, 1_000), "invoices", app_id=app, batch_id=0, url=database_url)
    assert (report.skipped, report.records, report.attempts, report.aborted) == (False, 1_000, 2, 0)
    found = written()
    assert sorted(record.value or b"" for record in found) == sorted(b"value-%d" % n for n in range(1_000))
    assert all(record.partition == by_crc32(record.key or b"", 3) for record in found)


def test_rows_are_routed_by_partition_and_by_the_partitioner_of_java(
    spark: SparkSession, database_url: str, app: str, written: Callable[[], list[Record]]
) -> None:
    df = (
        rows(spark, 100)
        .withColumnRenamed("value", "v")
        .selectExpr("key", "v as value", "case when cast(cast(key as string) as int) < 50 then 2 end as partition")
    )
    write_transactional(df, "invoices", app_id=app, batch_id=0, url=database_url, partitioner="murmur2")
    for record in written():
        number = int(record.key or b"")
        assert record.partition == (2 if number < 50 else by_murmur2(record.key or b"", 3))


def test_topics_headers_timestamps_and_nulls_come_through(
    spark: SparkSession, database_url: str, client: msgtx.Client, app: str
) -> None:
    before = client.snapshot(["invoices", "other"])
    df = spark.sql(
        """select * from values
        ('invoices', cast(null as binary), cast(null as binary), array(named_struct('key', 'a', 'value', binary('1'))),
         timestamp'2024-05-06 07:08:09.123 UTC'),
        ('other', binary('k'), binary('v'), null, null)
        as t(topic, key, value, headers, timestamp)"""
    )
    write_transactional(df, app_id=app, batch_id=0, url=database_url)
    found = {record.topic: record for record in client.read(client.snapshot(["invoices", "other"]), before)}
    assert (found["invoices"].key, found["invoices"].value) == (None, None)
    assert found["invoices"].headers == (("a", b"1"),)
    assert found["invoices"].timestamp == 1_714_979_289_123
    assert (found["other"].key, found["other"].value, found["other"].headers) == (b"k", b"v", ())


def test_names_of_columns_have_no_case(spark: SparkSession, database_url: str, client: msgtx.Client, app: str) -> None:
    """As everywhere in Spark. A column that was passed by would be a lost key."""
    before = client.snapshot(["invoices"])
    df = spark.sql(
        "select 'v' as VALUE, 'k' as Key, 2 as Partition, 'invoices' as TOPIC, timestamp_millis(7000) as TimeStamp,"
        " array(named_struct('Key', 'a', 'VALUE', binary('1'))) as Headers, 1 as other, 2 as OTHER"
    )
    write_transactional(df, app_id=app, batch_id=0, url=database_url)
    df.write.format("msgtx").option("url", database_url).mode("append").save()
    found = [
        (each.key, each.value, each.partition, each.timestamp, each.headers)
        for each in client.read(client.snapshot(["invoices"]), before)
    ]
    assert found == [(b"k", b"v", 2, 7_000, (("a", b"1"),))] * 2


def test_a_replay_is_skipped_and_says_so(
    spark: SparkSession, database_url: str, app: str, written: Callable[[], list[Record]]
) -> None:
    for batch in (3, 3, 2):
        report = write_transactional(rows(spark, 10), "invoices", app_id=app, batch_id=batch, url=database_url)
    assert (report.skipped, report.records) == (True, 0)
    assert len(written()) == 10


def test_an_empty_frame_is_a_batch_too(spark: SparkSession, database_url: str, app: str) -> None:
    empty = rows(spark, 0)
    assert write_transactional(empty, "invoices", app_id=app, batch_id=0, url=database_url).attempts == 0
    assert write_transactional(rows(spark, 1), "invoices", app_id=app, batch_id=0, url=database_url).skipped


def test_a_task_that_fails_after_writing_counts_once(
    spark: SparkSession, database_url: str, app: str, written: Callable[[], list[Record]]
) -> None:
    """The second attempt has a transaction of its own; the first attempt's is aborted with the decision (P20)."""

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("planted")

    df = rows(spark, 30_000)
    failing = df.mapInArrow(fails_once, df.schema)
    report = write_transactional(failing, "invoices", app_id=app, batch_id=0, url=database_url)
    assert (report.records, report.attempts, report.aborted) == (30_000, 2, 2)
    assert sorted(record.key or b"" for record in written()) == sorted(b"%d" % n for n in range(30_000))


def test_offsets_outputs_and_the_users_rows_are_one_commit(
    spark: SparkSession, database_url: str, client: msgtx.Client, connection: Connection, app: str
) -> None:
    """I6, I10."""
    connection.execute("create table if not exists invoice_batch (app text, batch int)")
    with client.producer() as producer:
        producer.send("orders", b"1", partition=0).result()
    cut = client.snapshot(["orders"])

    def remember(own: sqlalchemy.Connection) -> None:
        own.execute(sqlalchemy.text("insert into invoice_batch values (:app, 0)"), {"app": app})

    for _ in range(2):
        write_transactional(
            rows(spark, 5),
            "invoices",
            app_id=app,
            batch_id=0,
            url=database_url,
            snapshot=cut,
            group=app,
            statements=remember,
        )
    count = connection.execute("select count(*) from invoice_batch where app = %s", [app]).fetchone()
    assert count == (1,)
    with client.consumer(group=app) as consumer:
        committed = consumer.committed([TopicPartition("orders", 0)])[TopicPartition("orders", 0)]
    assert committed is not None
    assert committed.offset == cut.ends[TopicPartition("orders", 0)]


def test_statements_that_fail_leave_nothing(
    spark: SparkSession, database_url: str, client: msgtx.Client, app: str, written: Callable[[], list[Record]]
) -> None:
    def refuse(own: sqlalchemy.Connection) -> None:
        own.execute(sqlalchemy.text("select 1 / 0"))

    with pytest.raises(sqlalchemy.exc.DBAPIError, match="division by zero"):
        write_transactional(rows(spark, 5), "invoices", app_id=app, batch_id=0, url=database_url, statements=refuse)
    assert written() == []
    assert not [found for found in client.admin.transactions.list() if found.state == "Ongoing"]
    assert not write_transactional(rows(spark, 5), "invoices", app_id=app, batch_id=0, url=database_url).skipped


def test_a_second_run_from_the_same_start_is_refused(
    spark: SparkSession, database_url: str, client: msgtx.Client, app: str, written: Callable[[], list[Record]]
) -> None:
    """I10: another application with the same group has continued from there."""
    start = Snapshot(dict.fromkeys(client.snapshot(["orders"]).ends, 0), client.snapshot(["orders"]).incarnation)
    with client.producer() as producer:
        producer.send("orders", b"2", partition=0).result()
    cut = client.snapshot(["orders"])
    offsets = {"snapshot": cut, "start": start, "group": app}
    write_transactional(rows(spark, 5), "invoices", app_id=app, batch_id=0, url=database_url, **offsets)
    with pytest.raises(errors.BatchConflict, match="orders-0"):
        write_transactional(rows(spark, 5), "invoices", app_id=f"{app}-2", batch_id=0, url=database_url, **offsets)
    assert len(written()) == 5


def test_a_batch_that_outlives_its_timeout_names_the_setting(
    spark: SparkSession, database_url: str, app: str, written: Callable[[], list[Record]], connection: Connection
) -> None:
    connection.execute("insert into msgtx.setting (name, value) values ('x', 1) on conflict do nothing")

    def expires(own: sqlalchemy.Connection) -> None:
        """The user's statements take long, and a sweep runs meanwhile."""
        connection.execute("select pg_sleep(0.05)")
        expire_transactions(connection)

    with pytest.raises(errors.TransactionAborted, match="transaction_timeout_ms = 40"):
        write_transactional(
            rows(spark, 5),
            "invoices",
            app_id=app,
            batch_id=0,
            url=database_url,
            statements=expires,
            transaction_timeout_ms=40,
        )
    assert written() == []


@pytest.mark.parametrize(
    ("query", "topic", "told"),
    [
        ("select 1 as id", "invoices", "no column value; it has id"),
        ("select 1 as value", "invoices", "column value is int; a sink takes binary or string"),
        ("select 'a' as value, 1L as partition", "invoices", "column partition is bigint"),
        ("select 'a' as value", None, "Give a topic"),
        ("select 'a' as value, 5 as topic", None, "column topic is int"),
        ("select 'a' as value, 'b' as Key, 'c' as KEY", "invoices", "Key and KEY are one name to Spark"),
        ("select 'a' as value, 'b' as key, 'c' as key", "invoices", "key and key are one name to Spark"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_before_anything_runs(
    spark: SparkSession, database_url: str, app: str, query: str, topic: str | None, told: str
) -> None:
    """I16."""
    with pytest.raises(errors.InvalidRequest, match=told):
        write_transactional(spark.sql(query), topic, app_id=app, batch_id=0, url=database_url)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select 'a' as value, cast(null as string) as topic", "1 of 1 rows have no topic"),
        ("select 'a' as value, 'nowhere' as topic", "there is no topic 'nowhere'"),
        ("select 'a' as value, 'invoices' as topic, 7 as partition", "has the partitions 0 to 2"),
    ],
)
def test_a_row_that_cannot_be_written_fails_the_batch(
    spark: SparkSession, database_url: str, app: str, query: str, told: str, written: Callable[[], list[Record]]
) -> None:
    """I16."""
    with pytest.raises(Exception, match=told):
        write_transactional(spark.sql(query), app_id=app, batch_id=0, url=database_url)
    assert written() == []


def test_a_wrong_name_setting_or_snapshot_is_refused(spark: SparkSession, database_url: str, client: msgtx.Client) -> None:
    df = rows(spark, 1)
    with pytest.raises(errors.InvalidRequest, match="app_id"):
        write_transactional(df, "invoices", app_id="", batch_id=0, url=database_url)
    with pytest.raises(errors.UnknownTopicOrPartition):
        write_transactional(df, "nowhere", app_id="a", batch_id=0, url=database_url)
    with pytest.raises(errors.ConfigError, match="murmur2"):
        write_transactional(df, "invoices", app_id="a", batch_id=0, url=database_url, partitioner="murmur3")
    with pytest.raises(errors.InvalidRequest, match="snapshot"):
        write_transactional(df, "invoices", app_id="a", batch_id=0, url=database_url, group="g")
    other = Snapshot(client.snapshot(["orders"]).ends, str(uuid.uuid4()))
    with pytest.raises(errors.IncarnationChanged):
        write_transactional(df, "invoices", app_id="a", batch_id=0, url=database_url, snapshot=other, group="g")


def test_a_batch_is_renewed_on_after_an_error_that_has_no_name_here(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """P20: else it would be overdue while its tasks work on it."""
    renewals: list[None] = []

    def broken(*_: object, **__: object) -> None:
        renewals.append(None)
        raise psycopg.errors.InternalError_("could not read a block")

    monkeypatch.setattr(attempt, "renew_attempts", broken)
    monkeypatch.setattr(attempt, "RENEW_SECONDS", 0.02)
    with attempt.kept_alive(engine, BatchName("app", "", 0), timeout_ms=60_000):
        wait_until(lambda: len(renewals) > 2, "it is renewed again")
