"""`read`: a committed range from SQL and from the ORM, and which rows of the log it reads."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Integer, cast, func, select
from sqlalchemy.orm import Session

from msgtx import orm
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.topics.retention import delete_records
from msgtx.store.topics.topics import describe_topics
from msgtx.store.transactions.transactions import mark
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Connection, Server
from tests.roles import Roles, open_roles
from tests.store.steps import Writer, plain

pytestmark = pytest.mark.slow

ROWS, RECORDS = 40, 5  # of a partition: rows of the log, records of each


@pytest.fixture(scope="module")
def roles(server: Server, database_url: str) -> Iterator[Roles]:
    with open_roles(server, database_url) as made:
        yield made


@pytest.fixture
def filled(connection: Connection, topic: str) -> str:
    """A topic with the same log on both partitions: each value is its offset."""
    for partition in ids_of(connection, topic):
        for row in range(ROWS):
            plain(connection, partition, *(b"%d" % (row * RECORDS + at) for at in range(RECORDS)), timestamp=row)
    return topic


def ids_of(connection: Connection, topic: str) -> tuple[int, ...]:
    return describe_topics(connection, [topic])[topic].partition_ids


def offsets(connection: Connection, topic: str, start: int | None = None, end: int | None = None) -> list[int]:
    rows = connection.execute('select "offset" from msgtx.read(%s, 0, %s, %s) order by 1', [topic, start, end]).fetchall()
    return [offset for (offset,) in rows]


# ── what it returns ──


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, range(200)),
        (7, 13, range(7, 13)),
        (5, 10, range(5, 10)),
        (7, 8, range(7, 8)),
        (198, None, range(198, 200)),
        (None, 2, range(2)),
        (198, 10**12, range(198, 200)),
        (-3, 2, range(2)),
        (7, 7, range(0)),
        (9, 7, range(0)),
        (200, None, range(0)),
        (2**62, 2**63 - 1, range(0)),
    ],
)
def test_a_range_has_the_offsets_from_its_start_to_before_its_end(
    start: int | None, end: int | None, expected: range, filled: str, connection: Connection, session: Session
) -> None:
    assert offsets(connection, filled, start, end) == list(expected)
    record = orm.read(filled, 0, start, end)
    assert session.scalars(select(record.offset).order_by(record.offset)).all() == list(expected)


def test_a_range_begins_in_a_row_of_its_own_partition(topic: str, connection: Connection) -> None:
    """Rows of other partitions that begin nearer to its start do not count."""
    first, second = ids_of(connection, topic)
    plain(connection, first, *[b"x"] * 10)
    for _ in range(10):
        plain(connection, second, b"x")
    assert offsets(connection, topic, 5, 8) == [5, 6, 7]


def test_both_ends_may_be_left_out(filled: str, connection: Connection) -> None:
    assert connection.execute("select count(*) from msgtx.read(%s, 1)", [filled]).fetchone() == (ROWS * RECORDS,)
    row = connection.execute('select count(*) from msgtx.read(%s, 1, "end" => 3)', [filled]).fetchone()
    assert row == (3,)


def test_a_range_ends_at_the_last_stable_offset_and_leaves_out_what_was_aborted(topic: str, connection: Connection) -> None:
    """I5, I14: a range that was read once reads the same later."""
    partition, _ = ids_of(connection, topic)
    aborted, blocker = Writer(connection), Writer(connection)
    plain(connection, partition, b"0")
    aborted.send(partition, b"1")
    plain(connection, partition, b"2")
    blocker.send(partition, b"3")
    plain(connection, partition, b"4")
    assert offsets(connection, topic, 0, 10) == [0]
    aborted.abort()
    assert offsets(connection, topic, 0, 10) == [0, 2]
    blocker.commit()
    assert offsets(connection, topic, 0, 3) == [0, 2]
    assert offsets(connection, topic, 0, 10) == [0, 2, 3, 4]


def test_a_range_begins_at_the_log_start(filled: str, connection: Connection) -> None:
    delete_records(connection, {ids_of(connection, filled)[0]: 7})
    assert offsets(connection, filled, 0, 10) == [7, 8, 9]


@pytest.mark.parametrize(("topic_name", "partition"), [("nowhere", 0), (None, 7), (None, -1)])
def test_what_does_not_exist_has_no_records(
    topic_name: str | None, partition: int, filled: str, connection: Connection
) -> None:
    found = connection.execute("select * from msgtx.read(%s, %s)", [topic_name or filled, partition])
    assert found.fetchall() == []
    assert [column.name for column in found.description or ()] == [
        column.name for column in connection.execute("select * from msgtx.committed_records limit 0").description or ()
    ]


def test_a_range_is_a_class_of_records_for_conditions_and_joins(filled: str, session: Session) -> None:
    left, right = orm.read(filled, 0, 10, 20), orm.read(filled, 1, 15, 30)
    rows = session.scalars(select(left).where(cast(left.value_json, Integer) > 17).order_by(left.offset)).all()
    assert [(type(row), row.partition, row.offset, row.value) for row in rows] == [
        (orm.CommittedRecord, 0, 18, b"18"),
        (orm.CommittedRecord, 0, 19, b"19"),
    ]
    both = select(func.count()).select_from(left).join(right, left.offset == right.offset)
    assert session.scalar(both) == 5


# ── rights ──


def test_a_role_reads_ranges_of_the_topics_that_it_may_consume(filled: str, roles: Roles, connection: Connection) -> None:
    for rights, seen in ((["consume:orders*"], 3), (["consume:elsewhere*"], 0)):
        with contextlib.closing(roles.connect(roles.make(*rights))) as caller:
            assert len(offsets(caller, filled, 5, 8)) == seen
            told = caller.execute("select msgtx.partition_id_of(%s, 0)", [filled]).fetchone()
            assert told == (ids_of(connection, filled)[0] if seen else None,)
            for mapped in (orm.RecordBatch, orm.Topic, orm.Partition):
                column = "name" if mapped is orm.Topic else "topic"
                found = caller.execute(f"select 1 from {mapped.__table__} where {column} = %s", [filled]).fetchall()
                assert bool(found) == bool(seen), mapped
    with (
        contextlib.closing(roles.connect(roles.make("produce:orders*"))) as caller,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        offsets(caller, filled, 5, 8)


def test_a_role_sees_groups_and_markers_of_the_topics_on_which_it_has_rights(
    topic: str, connection: Connection, roles: Roles, open_session: Callable[..., Session]
) -> None:
    partition, _ = ids_of(connection, topic)
    writer = Writer(connection)
    writer.send(partition, b"a")
    writer.abort()
    mark(connection)
    commit_offsets(connection, {GroupMetadata(topic): {partition: OffsetAndMetadata(1)}})
    seen = (
        select(orm.Marker.outcome).where(orm.Marker.topic == topic),
        select(orm.ConsumerGroup.name).where(orm.ConsumerGroup.name == topic),
        select(orm.GroupOffset.newest).where(orm.GroupOffset.topic == topic),
    )
    for right, expected in (
        ("consume:orders*", ["ABORT", topic, True]),
        ("admin:orders*", ["ABORT", topic, True]),
        ("consume", ["ABORT", topic, True]),
        ("consume:elsewhere*", [None, None, None]),
    ):
        session = open_session(roles.url_of(roles.make(right)))
        assert [session.scalar(statement) for statement in seen] == expected, right
        session.close()


# ── which rows are read ──


def touched(connection: Connection, statement: str, parameters: list[Any] | None = None) -> tuple[str, int]:
    """Return how a statement reads the log, and how many of its rows it reads."""
    plan = [line for (line,) in connection.execute(f"explain (analyze, costs off, timing off) {statement}", parameters)]
    at = next(number for number, line in enumerate(plan) if " on record_batch" in line)
    rows = re.search(r"actual rows=(\d+)(?:\.\d\d)? loops=(\d+)", plan[at])
    assert rows is not None
    removed = sum(int(line.rsplit(" ", 1)[1]) for line in plan[at + 1 : at + 4] if "Rows Removed by Filter" in line)
    return "\n".join(plan[at : at + 2]), int(rows[1]) * int(rows[2]) + removed


@pytest.fixture(params=["owner", "consumer"])
def reader(request: pytest.FixtureRequest, roles: Roles, connection: Connection, filled: str) -> Iterator[Connection]:
    """A role that reads a log whose size the planner knows."""
    connection.execute("analyze msgtx.record_batch, msgtx.partition, msgtx.topic")
    role = roles.owner if request.param == "owner" else roles.make("consume:orders*")
    with contextlib.closing(connection if request.param == "owner" else roles.connect(role)) as made:
        made.execute("set enable_seqscan = off")  # a test's log is small
        yield made


@pytest.mark.parametrize("planned", ["force_custom_plan", "force_generic_plan"])
def test_a_range_looks_at_the_rows_that_it_overlaps_and_no_others(planned: str, reader: Connection, filled: str) -> None:
    reader.execute(f"set plan_cache_mode = {planned}")
    reader.execute(
        "prepare read_range(text, int, bigint, bigint) as select * from msgtx.read($1, $2, $3, $4) where key is null"
    )
    how, rows = touched(reader, f"execute read_range('{filled}', 0, 52, 63)")
    assert "Index Scan using record_batch_pkey" in how
    assert re.search(r"Index Cond: \(\(partition_id = .*base_offset >= .*base_offset < ", how)
    assert rows == 3, "50 to 54, 55 to 59, 60 to 64"


def test_an_early_limit_ends_a_range_early(reader: Connection, filled: str) -> None:
    _, rows = touched(reader, "select * from msgtx.read(%s, 0) limit 1", [filled])
    assert rows == 1


def test_a_class_over_a_range_is_planned_alike(reader: Connection, filled: str, session: Session) -> None:
    record = orm.read(filled, 0, 52, 63)
    statement = select(record).where(record.key.is_(None)).compile(session.get_bind())
    how, rows = touched(reader, str(statement), statement.params)
    assert "Index Scan using record_batch_pkey" in how
    assert rows == 3


@pytest.mark.parametrize("mapped", [orm.Record, orm.CommittedRecord, orm.CommittedRecordNow, orm.RecordBatch])
def test_topic_partition_and_base_offset_reach_the_index(mapped: type[Any], reader: Connection, filled: str) -> None:
    how, rows = touched(
        reader,
        f"select * from {mapped.__table__} where topic = %s and partition = 0 and base_offset between 50 and 60",
        [filled],
    )
    assert re.search(r"Index Scan using record_batch_pkey|Bitmap Heap Scan", how)
    assert rows == 3


@pytest.mark.parametrize("condition", ['"offset" between 52 and 62', '"timestamp" = 10', "key = 'k'"])
def test_other_conditions_are_asked_of_the_records_of_one_partition(condition: str, reader: Connection, filled: str) -> None:
    how, rows = touched(
        reader, f"select * from msgtx.committed_records where topic = %s and partition = 0 and {condition}", [filled]
    )
    assert re.search(r"Index Scan using record_batch_pkey|Bitmap Heap Scan", how)
    assert rows == ROWS


@pytest.mark.parametrize("mapped", [orm.Record, orm.CommittedRecordNow, orm.RecordBatch])
def test_a_time_of_appending_reaches_an_index(mapped: type[Any], reader: Connection, filled: str) -> None:
    reader.execute("set enable_indexscan = off")
    reader.execute("set enable_nestloop = off")
    how, _ = touched(reader, f"select * from {mapped.__table__} where appended_at > now() - interval '1 ms'")
    assert "Bitmap Heap Scan" in how
    assert "appended_at >" in how
