"""write_transactional: a DataFrame's rows, offsets and the user's own rows in one commit (I1, I4, I6, I10; P20)."""

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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
from msgtx.spark_jobs.batch import BatchReport
from msgtx.spark_jobs.writing import attempt
from msgtx.store.spark import BatchName
from msgtx.types import Record, Snapshot
from tests.databases import Connection, wait_until
from tests.store.steps import expire_transactions


@pytest.fixture(scope="module", autouse=True)
def topics(database_url: str) -> None:
    with msgtx.connect(database_url) as client:
        for name in ("orders", "invoices", "other"):
            client.topics.create(name, partitions=3)


@dataclass(frozen=True)
class Sink:
    """An application that writes to `invoices`."""

    spark: SparkSession
    client: msgtx.Client
    url: str
    before: Snapshot
    app: str = field(default_factory=lambda: f"app-{uuid.uuid4()}")

    def write(self, df: DataFrame, topic: str | None = "invoices", **options: Any) -> BatchReport:
        """Write a frame, by default as batch 0."""
        return write_transactional(df, topic, **{"app_id": self.app, "batch_id": 0, "url": self.url, **options})

    def written(self) -> list[Record]:
        """What this test has added to `invoices`, by partition and offset."""
        return list(self.client.read(self.client.snapshot(["invoices"]), self.before))

    def rows(self, count: int) -> DataFrame:
        return self.spark.range(0, count, numPartitions=2).selectExpr(
            "cast(cast(id as string) as binary) as key", "concat('value-', id) as value"
        )


@pytest.fixture
def sink(spark: SparkSession, client: msgtx.Client, database_url: str) -> Sink:
    return Sink(spark, client, database_url, client.snapshot(["invoices"]))


def test_every_row_is_there_once_where_its_key_belongs(sink: Sink) -> None:
    report = sink.write(sink.rows(1_000))
    assert (report.skipped, report.records, report.attempts, report.aborted) == (False, 1_000, 2, 0)
    found = sink.written()
    assert sorted(record.value or b"" for record in found) == sorted(b"value-%d" % n for n in range(1_000))
    assert all(record.partition == by_crc32(record.key or b"", 3) for record in found)


def test_rows_are_routed_by_partition_and_by_the_partitioner_of_java(sink: Sink) -> None:
    df = (
        sink.rows(100)
        .withColumnRenamed("value", "v")
        .selectExpr("key", "v as value", "case when cast(cast(key as string) as int) < 50 then 2 end as partition")
    )
    sink.write(df, partitioner="murmur2")
    for record in sink.written():
        number = int(record.key or b"")
        assert record.partition == (2 if number < 50 else by_murmur2(record.key or b"", 3))


def test_topics_headers_timestamps_and_nulls_come_through(sink: Sink) -> None:
    before = sink.client.snapshot(["invoices", "other"])
    df = sink.spark.sql(
        """select * from values
        ('invoices', cast(null as binary), cast(null as binary), array(named_struct('key', 'a', 'value', binary('1'))),
         timestamp'2024-05-06 07:08:09.123 UTC'),
        ('other', binary('k'), binary('v'), null, null)
        as t(topic, key, value, headers, timestamp)"""
    )
    sink.write(df, None)
    found = {record.topic: record for record in sink.client.read(sink.client.snapshot(["invoices", "other"]), before)}
    assert (found["invoices"].key, found["invoices"].value) == (None, None)
    assert found["invoices"].headers == (("a", b"1"),)
    assert found["invoices"].timestamp == 1_714_979_289_123
    assert (found["other"].key, found["other"].value, found["other"].headers) == (b"k", b"v", ())


def test_names_of_columns_have_no_case(sink: Sink) -> None:
    """As everywhere in Spark. A column that was passed by would be a lost key."""
    df = sink.spark.sql(
        "select 'v' as VALUE, 'k' as Key, 2 as Partition, 'invoices' as TOPIC, timestamp_millis(7000) as TimeStamp,"
        " array(named_struct('Key', 'a', 'VALUE', binary('1'))) as Headers, 1 as other, 2 as OTHER"
    )
    sink.write(df, None)
    df.write.format("msgtx").option("url", sink.url).mode("append").save()
    found = [(each.key, each.value, each.partition, each.timestamp, each.headers) for each in sink.written()]
    assert found == [(b"k", b"v", 2, 7_000, (("a", b"1"),))] * 2


def test_a_replay_is_skipped_and_says_so(sink: Sink) -> None:
    for batch in (3, 3, 2):
        report = sink.write(sink.rows(10), batch_id=batch)
    assert (report.skipped, report.records) == (True, 0)
    assert len(sink.written()) == 10


def test_an_empty_frame_is_a_batch_too(sink: Sink) -> None:
    empty = sink.rows(0)
    assert sink.write(empty).attempts == 0
    assert sink.write(sink.rows(1)).skipped


def test_a_task_that_fails_after_writing_counts_once(sink: Sink) -> None:
    """The second attempt has a transaction of its own; the first attempt's is aborted with the decision (P20)."""

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("planted")

    df = sink.rows(30_000)
    failing = df.mapInArrow(fails_once, df.schema)
    report = sink.write(failing)
    assert (report.records, report.attempts, report.aborted) == (30_000, 2, 2)
    assert sorted(record.key or b"" for record in sink.written()) == sorted(b"%d" % n for n in range(30_000))


def test_offsets_outputs_and_the_users_rows_are_one_commit(sink: Sink, connection: Connection) -> None:
    """I6, I10."""
    connection.execute("create table if not exists invoice_batch (app text, batch int)")
    with sink.client.producer() as producer:
        producer.send("orders", b"1", partition=0).result()
    cut = sink.client.snapshot(["orders"])

    def remember(own: sqlalchemy.Connection) -> None:
        own.execute(sqlalchemy.text("insert into invoice_batch values (:app, 0)"), {"app": sink.app})

    for _ in range(2):
        sink.write(sink.rows(5), snapshot=cut, group=sink.app, statements=remember)
    count = connection.execute("select count(*) from invoice_batch where app = %s", [sink.app]).fetchone()
    assert count == (1,)
    with sink.client.consumer(group=sink.app) as consumer:
        committed = consumer.committed([TopicPartition("orders", 0)])[TopicPartition("orders", 0)]
    assert committed is not None
    assert committed.offset == cut.ends[TopicPartition("orders", 0)]


def test_statements_that_fail_leave_nothing(sink: Sink) -> None:
    def refuse(own: sqlalchemy.Connection) -> None:
        own.execute(sqlalchemy.text("select 1 / 0"))

    with pytest.raises(sqlalchemy.exc.DBAPIError, match="division by zero"):
        sink.write(sink.rows(5), statements=refuse)
    assert sink.written() == []
    assert not [found for found in sink.client.admin.transactions.list() if found.state == "Ongoing"]
    assert not sink.write(sink.rows(5)).skipped


def test_a_second_run_from_the_same_start_is_refused(sink: Sink) -> None:
    """I10: another application with the same group has continued from there."""
    start = Snapshot(dict.fromkeys(sink.client.snapshot(["orders"]).ends, 0), sink.client.snapshot(["orders"]).incarnation)
    with sink.client.producer() as producer:
        producer.send("orders", b"2", partition=0).result()
    cut = sink.client.snapshot(["orders"])
    offsets = {"snapshot": cut, "start": start, "group": sink.app}
    sink.write(sink.rows(5), **offsets)
    with pytest.raises(errors.BatchConflict, match="orders-0"):
        sink.write(sink.rows(5), app_id=f"{sink.app}-2", **offsets)
    assert len(sink.written()) == 5


def test_a_batch_that_outlives_its_timeout_names_the_setting(sink: Sink, connection: Connection) -> None:
    connection.execute("insert into msgtx.setting (name, value) values ('x', 1) on conflict do nothing")

    def expires(own: sqlalchemy.Connection) -> None:
        """The user's statements take long, and a sweep runs meanwhile."""
        connection.execute("select pg_sleep(0.05)")
        expire_transactions(connection)

    with pytest.raises(errors.TransactionAborted, match="transaction_timeout_ms = 40"):
        sink.write(sink.rows(5), statements=expires, transaction_timeout_ms=40)
    assert sink.written() == []


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
    sink: Sink, query: str, topic: str | None, told: str
) -> None:
    """I16."""
    with pytest.raises(errors.InvalidRequest, match=told):
        sink.write(sink.spark.sql(query), topic)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select 'a' as value, cast(null as string) as topic", "1 of 1 rows have no topic"),
        ("select 'a' as value, 'nowhere' as topic", "there is no topic 'nowhere'"),
        ("select 'a' as value, 'invoices' as topic, 7 as partition", "has the partitions 0 to 2"),
    ],
)
def test_a_row_that_cannot_be_written_fails_the_batch(sink: Sink, query: str, told: str) -> None:
    """I16."""
    with pytest.raises(Exception, match=told):
        sink.write(sink.spark.sql(query), None)
    assert sink.written() == []


def test_a_wrong_name_setting_or_snapshot_is_refused(sink: Sink) -> None:
    df = sink.rows(1)
    with pytest.raises(errors.InvalidRequest, match="app_id"):
        sink.write(df, app_id="")
    with pytest.raises(errors.UnknownTopicOrPartition):
        sink.write(df, "nowhere", app_id="a")
    with pytest.raises(errors.ConfigError, match="murmur2"):
        sink.write(df, app_id="a", partitioner="murmur3")
    with pytest.raises(errors.InvalidRequest, match="snapshot"):
        sink.write(df, app_id="a", group="g")
    other = Snapshot(sink.client.snapshot(["orders"]).ends, str(uuid.uuid4()))
    with pytest.raises(errors.IncarnationChanged):
        sink.write(df, app_id="a", snapshot=other, group="g")


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


def test_a_batch_of_an_orphan_is_not_renewed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Spark Connect a process of foreachBatch outlives its server for minutes; its records shall hold no reader up."""
    renewals: list[None] = []
    monkeypatch.setattr(attempt, "renew_attempts", lambda *_, **__: renewals.append(None))
    monkeypatch.setattr(attempt, "RENEW_SECONDS", 0.01)
    with attempt.kept_alive(engine, BatchName("orphan", "", 0), timeout_ms=60_000, is_over=lambda: True):
        wait_until(lambda: all("renews" not in each.name for each in threading.enumerate()), "renewals have ended")
    assert not renewals
