"""`read_committed`: a DataFrame holds what a reader at read_committed gets, whatever happens in between."""

import concurrent.futures
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

import msgtx
from msgtx import Record, Snapshot, TopicPartition, errors
from msgtx.coordinator.compactor import Compactor
from msgtx.database import jdbc
from msgtx.database.pool import Engine
from msgtx.spark_jobs import read as reading
from msgtx.spark_jobs.read import COLUMNS, HEADERS, read_committed
from msgtx.spark_jobs.reading.offsets import plan
from msgtx.spark_jobs.reading.read_options import parse
from msgtx.spark_jobs.runtime.failure import translated
from msgtx.spark_jobs.source import MsgtxDataSource
from msgtx.store.operator.installation import describe_installation
from msgtx.store.topics.topics import describe_topics
from tests.databases import Connection, Server, wait_until
from tests.odd_records import odd_records
from tests.roles import open_roles
from tests.store.steps import Writer, plain, unique

KAFKAS_COLUMNS = [
    ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
    ("timestamp", "timestamp"), ("timestampType", "int"),
]  # fmt: skip
Content = tuple[str, int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def content(df: DataFrame) -> list[Content]:
    """Return the records of a frame that has headers, in order of their places."""
    rows = df.withColumn("timestamp", F.unix_millis("timestamp")).collect()

    def data(value: bytearray | None) -> bytes | None:
        return None if value is None else bytes(value)

    return sorted(
        (row.topic, row.partition, row.offset, row.timestamp, data(row.key), data(row.value),
         tuple((pair.key, data(pair.value)) for pair in row.headers or ()))
        for row in rows
    )  # fmt: skip


def content_of(records: Iterator[Record]) -> list[Content]:
    return sorted((r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in records)


def new_topic(client: msgtx.Client, partitions: int = 1, **settings: int | str) -> str:
    name = unique("topic")
    client.topics.create(name, partitions=partitions, retention_ms=-1, **settings)
    return name


def ids(connection: Connection, topic: str) -> tuple[int, ...]:
    return describe_topics(connection, [topic])[topic].partition_ids


def fill(client: msgtx.Client, topic: str, *values: bytes) -> None:
    with client.producer() as producer:
        for value in values:
            producer.send(topic, value, partition=0).result(10)


def delete_before(client: msgtx.Client, topic: str, before: int) -> None:
    client.admin.partitions.delete_records({TopicPartition(topic, 0): before})


# What it holds


def history(connection: Connection, partitions: tuple[int, ...], chance: random.Random, *, keyed: bool) -> list[Writer]:
    """Write overlapping transactions, aborted ones and plain records. Returns the writers; some are in a transaction."""
    writers = [Writer(connection) for _ in range(3)]
    for at in range(60):
        count = chance.choice((1, 1, 2, 7))
        values = [chance.choice((None, b"", b"%d" % at)) for _ in range(count)]
        columns: dict[str, Any] = {
            "keys": [b"%d" % chance.randrange(9) for _ in values] if keyed else chance.choice((None, [None] * count)),
            "timestamps": chance.choice((None, [5_000 + chance.randrange(99) for _ in values])),
            "headers": chance.choice(
                (None, [[("h", b"%d" % n), ("empty", None), ("é", b"")][: chance.randrange(4)] for n in range(count)])
            ),
        }
        partition, writer = chance.choice(partitions), chance.choice(writers)
        if chance.random() < 0.3:
            plain(connection, partition, *values, **columns)
        else:
            writer.send(partition, *values, **columns)
            if chance.random() < 0.4:
                chance.choice((writer.commit, writer.commit, writer.abort))()
    return writers


@pytest.mark.parametrize(("seed", "policy"), [(1, "delete"), (2, "delete"), (3, "compact"), (4, "compact")])
def test_any_range_in_any_number_of_tasks_is_what_a_reader_gets(
    spark: SparkSession, client: msgtx.Client, connection: Connection, database_url: str, seed: int, policy: str
) -> None:
    """I5, I14."""
    chance = random.Random(seed)
    topic = new_topic(client, 3, cleanup_policy=policy)
    partitions = ids(connection, topic)
    history(connection, partitions, chance, keyed=policy == "compact")
    cut = client.snapshot([topic])
    if policy == "compact":
        client.sweep(only=["markers"])
        compactor, after = Compactor(min_dirty_ratio=0), None
        while (swept := compactor(connection, after, None)).after is not None:
            after = swept.after
    delete_before(client, topic, min(2, cut.ends[TopicPartition(topic, 0)]))
    whole = content_of(client.read(cut))
    assert whole
    options: dict[str, Any] = {"url": database_url, "include_headers": True}
    assert content(read_committed(spark, topic, snapshot=cut, **options)) == whole
    for _ in range(4):
        starts = {place: chance.randint(2 if place.partition == 0 else 0, max(end, 2)) for place, end in cut.ends.items()}
        ends = {place: chance.randint(min(starts[place], end), end) for place, end in cut.ends.items()}
        starts = {place: min(start, ends[place]) for place, start in starts.items()}
        some, start = Snapshot(ends, cut.incarnation), Snapshot(starts, cut.incarnation)
        frame = read_committed(
            spark, snapshot=some, start=start, min_partitions=chance.randint(1, 12), fail_on_data_loss=False, **options
        )
        inside = [one for one in whole if starts[TopicPartition(*one[:2])] <= one[2] < ends[TopicPartition(*one[:2])]]
        assert content(frame) == inside


def test_columns_are_those_of_kafkas_source(spark: SparkSession, client: msgtx.Client, database_url: str) -> None:
    topic, stamped = new_topic(client), new_topic(client, timestamp_type="LogAppendTime")
    empty = read_committed(spark, topic, url=database_url)
    assert (empty.dtypes, empty.count(), empty.schema) == (KAFKAS_COLUMNS, 0, COLUMNS)
    with client.producer() as producer:
        producer.send(topic, b"v", key=b"k", timestamp=1_700_000_000_123, headers=[("a", b"1"), ("b", None)])
        producer.send(topic, None)
        producer.send(stamped, b"x")
    frame = read_committed(spark, [topic, stamped], url=database_url, include_headers=True)
    assert frame.dtypes == [*KAFKAS_COLUMNS, ("headers", "array<struct<key:string,value:binary>>")]
    assert frame.dtypes == read_committed(spark, subscribe_pattern="none", url=database_url, include_headers=True).dtypes
    assert frame.schema.simpleString() == StructType([*COLUMNS, HEADERS]).simpleString()
    first, second, third = frame.orderBy("topic", "offset").collect()
    assert first.asDict(recursive=True)["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert (second.key, second.value, second.headers) == (None, None, None)
    assert [row.timestampType for row in (first, second, third)] == [0, 0, 1]
    times = frame.where(f"topic = '{topic}' and offset = 0").select(F.unix_millis("timestamp")).collect()
    assert [time for (time,) in times] == [1_700_000_000_123]


def test_only_used_columns_are_asked_for(spark: SparkSession, client: msgtx.Client, database_url: str) -> None:
    topic = new_topic(client, 3)
    fill(client, topic, b"a", b"b")
    frame = read_committed(spark, topic, url=database_url, include_headers=True)

    def asked(some: DataFrame) -> set[str]:
        text = some._jdf.queryExecution().executedPlan().toString()
        columns = {"keys", "values", "timestamps", "header_values"}
        return {name for name in columns if f"{name}#" in text}

    assert asked(frame) == {"keys", "values", "timestamps", "header_values"}
    assert asked(frame.select("value")) == {"values"}
    assert asked(frame.select("offset").where("partition = 1")) == set()
    assert (frame.count(), frame.where("partition = 1").count()) == (2, 0)


def test_a_function_in_python_is_handed_its_columns_and_no_arrays_of_the_log(
    spark: SparkSession, client: msgtx.Client, database_url: str
) -> None:
    """If it ran before a log row is split into records, each record would carry the values of all others."""
    topic = new_topic(client)
    fill(client, topic, b"1")
    plus = read_committed(spark, topic, url=database_url).select(
        F.udf(lambda value: int(value) + 1, "long")("value").alias("n")
    )
    plan = plus._jdf.queryExecution().executedPlan().toString()
    (evaluated,) = [line for line in plan.splitlines() if "EvalPython" in line]
    assert re.findall(r"(\w+)#", evaluated) == ["value", "pythonUDF0"]
    assert [row.n for row in plus.collect()] == [2]


def test_a_condition_in_python_is_handed_no_arrays_of_the_log_either(
    spark: SparkSession, client: msgtx.Client, database_url: str
) -> None:
    topic = new_topic(client)
    fill(client, topic, b"1", b"2")
    odd = read_committed(spark, topic, url=database_url).where(F.udf(lambda value: int(value) % 2 == 1, "boolean")("value"))
    plan = odd._jdf.queryExecution().executedPlan().toString()
    (evaluated,) = [line for line in plan.splitlines() if "EvalPython" in line]
    assert not re.search(r"\b(keys|values|timestamps)#", evaluated)
    assert [bytes(row.value) for row in odd.collect()] == [b"1"]


def test_conditions_on_partition_and_topic_are_the_databases(
    spark: SparkSession, client: msgtx.Client, database_url: str
) -> None:
    topics = [new_topic(client, 3), new_topic(client, 3)]
    with client.producer() as producer:
        for at in range(6):
            producer.send(topics[at % 2], b"%d" % at, partition=at // 2)
    frame = read_committed(spark, topics, url=database_url)
    for condition, pushed, values in (
        ("partition = 1", "*EqualTo(partition,1)", [b"2", b"3"]),
        (f"topic = '{topics[1]}'", f"*EqualTo(topic,{topics[1]})", [b"1", b"3", b"5"]),
    ):
        some = frame.where(condition).select("value")
        plan = some._jdf.queryExecution().executedPlan().toString()
        assert pushed in plan.partition("PushedFilters: [")[2]
        assert sorted(bytes(row.value) for row in some.collect()) == values


# A condition as SQL, and what it says of a record: null as None, as SQL has it.
Condition = tuple[str, Callable[[Record], bool | None]]
BEGIN = 1_767_225_600_000  # 2026-01-01 00:00 UTC, which is half past five in Kolkata


def some_condition(dice: random.Random, topic: str, depth: int = 2) -> Condition:
    number = dice.randrange(20)
    if depth and dice.random() < 0.7:
        one, first = some_condition(dice, topic, depth - 1)
        other, second = some_condition(dice, topic, depth - 1)
        match dice.randrange(3):
            case 0:
                return f"({one} and {other})", lambda record: both(first(record), second(record))
            case 1:
                return f"({one} or {other})", lambda record: opposite(
                    both(opposite(first(record)), opposite(second(record)))
                )
            case _:
                return f"not {one}", lambda record: opposite(first(record))
    of_key: list[Condition] = [
        ("(key = X'31')", lambda record: None if record.key is None else record.key == b"1"),
        ("(key is null)", lambda record: record.key is None),
        ("(partition in (1, null))", lambda record: True if record.partition == 1 else None),
        (f"(partition in (0, {number}))", lambda record: record.partition in (0, number)),
        (f"(partition <> {number % 3})", lambda record: record.partition != number % 3),
        (f"(topic in ('{topic}', 'other'))", lambda record: True),
        (f"(topic < '{topic}')", lambda record: False),
        (f"(offset >= {number})", lambda record: record.offset >= number),
        (f"(offset between 3 and {number})", lambda record: 3 <= record.offset <= number),
        (
            f"(timestamp < timestamp'2026-01-01 05:30:{number:02}')",
            lambda record: record.timestamp < BEGIN + 1_000 * number,
        ),
    ]
    return dice.choice(of_key)


def both(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True


def opposite(one: bool | None) -> bool | None:
    return None if one is None else not one


@pytest.mark.parametrize("seed", range(2))
def test_a_condition_selects_the_same_records_wherever_it_is_evaluated(
    spark: SparkSession, client: msgtx.Client, database_url: str, seed: int
) -> None:
    """Of any combination, in the session's time zone; through JDBC, and by Spark."""
    topic, dice = new_topic(client, 3), random.Random(seed)
    with client.producer() as producer:
        for at in range(60):
            key = None if at % 4 == 0 else b"%d" % (at % 3)
            producer.send(topic, b"v", key=key, partition=at % 3, timestamp=BEGIN + 500 * (at // 3))
    records = list(client.read(client.snapshot([topic])))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        pushed = read_committed(spark, topic, url=database_url)
        other = spark.read.format("msgtx").options(url=database_url, subscribe=topic).load()
        for _ in range(10):
            condition, says = some_condition(dice, topic)
            wanted = sorted((record.partition, record.offset) for record in records if says(record))
            for frame in (pushed, other):
                rows = frame.where(condition).select("partition", "offset").collect()
                assert sorted((row.partition, row.offset) for row in rows) == wanted, condition
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_odd_records_are_read_as_they_are_in_both_ways(spark: SparkSession, client: msgtx.Client, database_url: str) -> None:
    """I16: accepted means readable."""
    topic = new_topic(client, max_message_bytes=4_000_000)
    with client.producer() as producer:
        for record in odd_records(7, count=500):
            producer.send(topic, record.value, key=record.key, headers=record.headers, timestamp=record.timestamp)
    stored = content_of(client.read(client.snapshot([topic])))
    assert len(stored) == 500
    assert content(read_committed(spark, topic, url=database_url, include_headers=True, min_partitions=3)) == stored
    spark.dataSource.register(MsgtxDataSource)
    by_format = spark.read.format("msgtx").options(url=database_url, subscribe=topic, includeHeaders="true").load()
    assert content(by_format) == stored


def test_a_task_reads_the_rows_of_its_range_by_the_index(client: msgtx.Client, connection: Connection) -> None:
    topic = new_topic(client)
    partition = ids(connection, topic)[0]
    for _ in range(300):
        plain(connection, partition, b"x", b"y")
    connection.execute("analyze msgtx.record_batch")
    incarnation = describe_installation(connection).incarnation
    wanted = jdbc.predicate(0, partition, (101, 107), incarnation=incarnation, strict=True)
    statement = f'select base_offset, "values" from {jdbc.batches_of([(101, 107)])} where {wanted}'
    explained = "\n".join(row for (row,) in connection.execute(f"explain (analyze, costs off) {statement}").fetchall())
    assert re.search(r"(using|on) record_batch_pkey", explained), explained
    assert re.search(r"Index Cond: .*partition_id = \d+.*base_offset >= .*check_range\(.*base_offset < 107", explained)
    assert "Aggregate" not in explained, "columns that are not selected are not computed"
    assert [row[0] for row in connection.execute(statement).fetchall()] == [100, 102, 104, 106]


def test_records_of_a_task_come_in_order_also_from_rows_that_were_moved(
    spark: SparkSession, client: msgtx.Client, connection: Connection, database_url: str
) -> None:
    topic = new_topic(client)
    (partition,) = ids(connection, topic)
    for at in range(40):
        plain(connection, partition, b"%d" % at, b"x" * 500)
    connection.execute(
        "update msgtx.record_batch set compacted_at = null where partition_id = %s and base_offset < 50", [partition]
    )
    frame = read_committed(spark, topic, url=database_url)
    assert [row.offset for row in frame.select("offset", "value").collect()] == list(range(80))


def test_large_rows_are_fetched_few_at_a_time(client: msgtx.Client, connection: Connection) -> None:
    topic = new_topic(client)
    (partition,) = ids(connection, topic)
    assert jdbc.fetch_rows(connection, [(partition, 0)]) == jdbc.MOST_ROWS
    plain(connection, partition, b"small")
    assert jdbc.fetch_rows(connection, [(partition, 0)]) == jdbc.MOST_ROWS
    plain(connection, partition, b"x" * 1_000_000)
    assert jdbc.fetch_rows(connection, [(partition, 0)] * 100) == 8
    assert jdbc.fetch_rows(connection, [(partition, 2)]) == jdbc.MOST_ROWS


@pytest.mark.parametrize(
    ("megabytes", "rows"),
    [([0.2] * 9, 64), ([6] * 4, 64), ([6] * 9, 5), ([20], 64), ([20, 20], 1), ([20, 0.2, 0.2, 20], 1), ([50], 1)],
)
def test_large_rows_anywhere_bound_what_is_fetched_at_once(
    client: msgtx.Client, connection: Connection, megabytes: list[float], rows: int
) -> None:
    """The largest of a range fit into the heap together, wherever they lie. Beyond its end they do not count."""
    topic = new_topic(client)
    (partition,) = ids(connection, topic)
    for _ in range(20):
        plain(connection, partition, b"small")
    for size in megabytes:
        plain(connection, partition, b"")
        connection.execute(
            "update msgtx.record_batch set byte_size = %s where partition_id = %s and base_offset ="
            " (select max(base_offset) from msgtx.record_batch where partition_id = %s)",
            [int(size * 1024 * 1024), partition, partition],
        )
    assert jdbc.fetch_rows(connection, [(partition, 0)]) == rows
    assert jdbc.fetch_rows(connection, [(partition, 0)], ends=[20]) == jdbc.MOST_ROWS


def test_many_ranges_are_several_relations(
    spark: SparkSession, client: msgtx.Client, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(client, 3)
    with client.producer() as producer:
        for at in range(30):
            producer.send(topic, b"%d" % at, partition=at % 3)
    monkeypatch.setattr(reading, "RELATION_RANGES", 4)
    frame = read_committed(spark, topic, url=database_url, min_partitions=10, include_headers=True)
    assert frame.rdd.getNumPartitions() == 9
    assert content(frame) == content_of(client.read(client.snapshot([topic])))


def test_no_plan_tells_a_password_or_an_address(spark: SparkSession, client: msgtx.Client, database_url: str) -> None:
    topic = new_topic(client)
    fill(client, topic, b"x")
    frame = read_committed(spark, topic, url=database_url)
    url = sqlalchemy.make_url(database_url)
    told = frame._jdf.queryExecution().toString()
    assert "committed_batches" in told
    assert str(url.password) not in told
    assert "jdbc:" not in told
    assert str(url.port) not in told


# Rights


def test_a_role_reads_what_it_may_consume(
    spark: SparkSession, client: msgtx.Client, server: Server, database_url: str, connection: Connection
) -> None:
    mine, other = new_topic(client), new_topic(client)
    fill(client, mine, b"mine")
    fill(client, other, b"other")
    with open_roles(server, database_url) as roles:
        role = roles.make(f"consume:{mine}")
        url = roles.url_of(role)
        assert [row.value for row in read_committed(spark, mine, url=url).collect()] == [b"mine"]
        with pytest.raises(errors.UnknownTopicOrPartition):
            read_committed(spark, other, url=url)
        ours = plan_of(database_url, other)
        with roles.connect(role) as login:
            assert login.execute("select distinct topic from msgtx.committed_batches").fetchall() == [(mine,)]
            with pytest.raises(Exception, match="lacks the right to consume"):
                login.execute("select msgtx.check_range(%s, 0, 1, %s::uuid, false)", ours)
        producing = roles.make(f"produce:{mine}")
        with pytest.raises(errors.AuthorizationFailed, match="consume"):
            read_committed(spark, mine, url=roles.url_of(producing))


def plan_of(database_url: str, topic: str) -> tuple[int, str]:
    with Engine(database_url, pool_size=1) as engine:
        found = plan(engine, parse({"subscribe": topic}))
    return found.ranges[0].partition_id, found.incarnation


# What happens between planning and reading


def test_a_range_that_was_removed_fails_its_task_or_is_left_out(
    spark: SparkSession, client: msgtx.Client, database_url: str
) -> None:
    topic = new_topic(client)
    fill(client, topic, b"a", b"b", b"c")
    strict = read_committed(spark, topic, url=database_url, include_headers=True)
    lenient = read_committed(spark, topic, url=database_url, include_headers=True, fail_on_data_loss=False)
    delete_before(client, topic, 2)
    assert [record[5] for record in content(lenient)] == [b"c"]
    with pytest.raises(Exception, match=f"offsets 0 to 3 of {topic}-0 were planned, and retention has removed"):
        strict.count()


def test_a_topic_that_was_deleted_fails_its_task_or_is_left_out(
    spark: SparkSession, client: msgtx.Client, database_url: str
) -> None:
    topic = new_topic(client)
    fill(client, topic, b"a")
    strict = read_committed(spark, topic, url=database_url)
    lenient = read_committed(spark, topic, url=database_url, fail_on_data_loss=False)
    client.topics.delete(topic)
    client.topics.create(topic)
    fill(client, topic, b"another")
    assert lenient.collect() == []
    with pytest.raises(Exception, match=r"partition \d+ was deleted since offsets 0 to 1 of it were planned"):
        strict.collect()


def readers(observer: Connection) -> list[int]:
    """Return the backends of tasks that wait for a lock."""
    rows = observer.execute(
        "select pid from pg_stat_activity where datname = current_database() and application_name = 'msgtx spark'"
        " and wait_event_type = 'Lock'"
    ).fetchall()
    return [pid for (pid,) in rows]


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_database_that_goes_away_fails_the_task_and_it_is_tried_again(
    spark: SparkSession, client: msgtx.Client, server: Server, database_url: str, open_connection: Callable[[], Connection],
    background: concurrent.futures.ThreadPoolExecutor, comes_back: bool,
) -> None:  # fmt: skip
    topic = new_topic(client)
    fill(client, topic, b"a", b"b")
    frame = read_committed(spark, topic, url=database_url, include_headers=True)
    expected = content_of(client.read(client.snapshot([topic])))
    name = sqlalchemy.make_url(database_url).database
    holder, observer = open_connection(), open_connection()
    holder.execute("begin")
    holder.execute("lock table msgtx.partition_floor")  # the task waits inside its statement
    task = background.submit(content, frame)
    (reader,) = wait_until(lambda: readers(observer), "the task waits for the lock")
    with server.administrator() as administrator:
        administrator.execute(f"alter database {name} allow_connections {str(comes_back).lower()}")
        try:
            administrator.execute("select pg_terminate_backend(%s)", [reader])
            if comes_back:
                holder.execute("rollback")
                assert task.result(60) == expected
            else:
                with pytest.raises(Exception, match=f'database "{name}" is not currently accepting connections'):
                    task.result(60)
        finally:
            administrator.execute(f"alter database {name} allow_connections true")
    holder.execute("rollback")


# Invalid requests


@pytest.mark.parametrize(
    ("topics", "options", "says"),
    [
        (None, {}, "nothing says which partitions are read"),
        ("", {}, "names no topic"),
        ([], {}, "names no topic"),
        ([None], {}, "None is none"),
        ("a", {"min_partition": 3}, "the nearest known one is 'minPartitions'"),
        ("a", {"min_partitions": 0}, "above 0"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(
    spark: SparkSession, database_url: str, topics: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(errors.ConfigError, match=says):
        read_committed(spark, topics, url=database_url, **options)


def test_a_snapshot_of_another_incarnation_is_refused(spark: SparkSession, client: msgtx.Client, database_url: str) -> None:
    cut = client.snapshot([new_topic(client)])
    with pytest.raises(errors.IncarnationChanged):
        read_committed(spark, url=database_url, snapshot=Snapshot(cut.ends, "0f8fad5b-d9cb-469f-a165-70867728950e"))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("select msgtx.change_incarnation()", errors.IncarnationChanged),
        ("delete from msgtx.record_batch where partition_id = {0}", errors.LogTruncated),
    ],
)
def test_what_is_not_there_any_more_as_it_was_planned_is_refused_by_name(
    spark: SparkSession, make_database: Callable[..., str], change: str, kind: type[errors.MsgtxError]
) -> None:
    url = make_database()
    with msgtx.connect(url) as client:
        topic = new_topic(client)
        fill(client, topic, b"x")
        frame = read_committed(spark, topic, url=url)
        with client.runtime.engine.connection() as connection:
            connection.execute(change.format(ids(connection, topic)[0]))
        with pytest.raises(kind), translated():
            frame.collect()


def test_a_spark_without_the_driver_says_what_to_do(client: msgtx.Client, database_url: str) -> None:
    topic = new_topic(client)
    fill(client, topic, b"x")
    program = (
        "import sys; from pyspark.sql import SparkSession; from msgtx.spark_jobs.read import read_committed\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "read_committed(spark, sys.argv[1], url=sys.argv[2])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, topic, database_url], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "ConfigError: this Spark has no JDBC driver of PostgreSQL: start it with msgtx.spark_jobs.session" in done.stderr
