"""The mapped classes: what each shows, that nothing writes them, and one statement with business rows."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import delete, insert, inspect, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import msgtx
from msgtx import Outcome, OutputRecord, TopicPartition, errors, orm, protocol
from msgtx.orm.models import ReadOnly
from msgtx.store.topics.topics import describe_topics
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.sharing import ShareGroup
from tests.store.steps import Writer, decide_by_hand, offsets_of, plain, seal, unique

pytestmark = pytest.mark.slow

SECONDS = 30.0
CLASSES = [mapper.class_ for mapper in sorted(ReadOnly.registry.mappers, key=lambda mapper: mapper.class_.__name__)]
RECORDS = (orm.Record, orm.CommittedRecord, orm.CommittedRecordNow)


class Business(DeclarativeBase):
    """A user's own tables."""


class Invoice(Business):
    """A user's table."""

    __tablename__ = "invoice"

    number: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


@pytest.fixture
def invoices(session: Session) -> None:
    """The user's tables, empty."""
    Business.metadata.create_all(session.connection())
    session.execute(delete(Invoice))
    session.commit()


def ids_of(connection: Connection, topic: str) -> tuple[int, ...]:
    return describe_topics(connection, [topic])[topic].partition_ids


# ── what each class shows ──


def test_every_column_of_a_view_is_mapped(connection: Connection) -> None:
    assert [each.__name__ for each in CLASSES] == sorted(set(orm.__all__) - {"pending", "publish", "read"})
    for mapped in CLASSES:
        found = connection.execute(f"select * from msgtx.{mapped.__tablename__} limit 0").description or ()
        assert {column.name for column in found} == {column.name for column in mapped.__table__.columns}, mapped


def test_a_session_reads_the_topic_and_its_partitions(client: msgtx.Client, topic: str, session: Session) -> None:
    client.topics.alter(topic, retention_ms=1_000)
    with client.producer() as producer:
        producer.send(topic, b"a", partition=1).result(SECONDS)
    found = session.get_one(orm.Topic, topic)
    assert (found.partitions, found.retention_ms, found.timestamp_type) == (2, 1_000, "CreateTime")
    assert found.created_at.tzinfo is not None
    rows = session.scalars(select(orm.Partition).where(orm.Partition.topic == topic).order_by(orm.Partition.partition))
    assert [(row.partition, row.log_start_offset, row.last_stable_offset, row.log_end_offset) for row in rows] == [
        (0, 0, 0, 0),
        (1, 0, 1, 1),
    ]


@pytest.mark.parametrize("mapped", RECORDS)
def test_a_record_is_the_one_that_a_consumer_gets(
    mapped: type[Any], client: msgtx.Client, topic: str, session: Session
) -> None:
    headers = [("source", b"web"), ("empty", None)]
    with client.producer() as producer:
        producer.send(topic, b"a", key=b"k", partition=0, timestamp=1_234_567, headers=headers)
        producer.send(topic, None, partition=0, timestamp=1_234_568)
    read = list(client.read(client.snapshot([topic])))
    rows = session.scalars(select(mapped).where(mapped.topic == topic).order_by(mapped.offset)).all()
    assert [
        msgtx.Record(row.topic, row.partition, row.offset, row.timestamp, row.key, row.value, row.headers) for row in rows
    ] == read
    assert len(read) == 2


@pytest.mark.parametrize("milliseconds", [0, 1_234_567, 1_795_308_036_429, 100_000_000_000_003, 253_370_764_799_999])
def test_the_time_of_a_record_is_its_timestamp_here_and_there(
    milliseconds: int, connection: Connection, topic: str, session: Session
) -> None:
    plain(connection, ids_of(connection, topic)[0], b"a", timestamp=milliseconds)
    of_topic = orm.Record.topic == topic
    (row,) = session.scalars(select(orm.Record).where(of_topic))
    assert row.time == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    assert session.scalar(select(orm.Record.time).where(of_topic, orm.Record.time == row.time)) == row.time
    assert session.scalar(select(orm.Record.time).where(of_topic, orm.Record.time > row.time)) is None


def test_each_class_of_records_shows_what_its_reader_sees(connection: Connection, topic: str, session: Session) -> None:
    """I5: a log reader stops before an open transaction; a snapshot also sees what is committed behind it."""
    partition, _ = ids_of(connection, topic)
    aborted, committed, blocker = Writer(connection), Writer(connection), Writer(connection)
    aborted.send(partition, b"aborted")
    committed.send(partition, b"committed")
    blocker.send(partition, b"open")
    committed.send(partition, b"behind")
    aborted.abort(), committed.commit()
    shown = {
        mapped: session.scalars(select(mapped.value).where(mapped.topic == topic).order_by(mapped.offset)).all()
        for mapped in RECORDS
    }
    assert shown == {
        orm.Record: [b"aborted", b"committed", b"open", b"behind"],
        orm.CommittedRecord: [b"committed"],
        orm.CommittedRecordNow: [b"committed", b"behind"],
    }
    blocker.abort()


def test_a_row_of_the_log_a_transaction_and_its_marker_name_each_other(
    client: msgtx.Client, connection: Connection, topic: str, session: Session
) -> None:
    partition, _ = ids_of(connection, topic)
    writer = Writer(connection)
    writer.send(partition, b"a", b"b", timestamp=7)
    (batch,) = session.scalars(select(orm.RecordBatch).where(orm.RecordBatch.topic == topic))
    assert (batch.base_offset, batch.last_offset, batch.record_count, batch.max_timestamp) == (0, 1, 2, 7)
    named = (orm.Transaction.producer_id == batch.producer_id,)
    transaction = session.scalars(select(orm.Transaction).where(*named)).one()
    assert (transaction.state, transaction.partitions, transaction.first_offsets) == ("Ongoing", [partition], [0])
    writer.commit()
    client.sweep(only=["markers"])
    session.rollback()
    assert transaction.state == "CompleteCommit"
    marker = session.scalars(select(orm.Marker).where(orm.Marker.producer_id == batch.producer_id)).one()
    assert (marker.topic, marker.partition, marker.outcome, marker.first_offset, marker.last_offset) == (
        *(topic, 0),
        *("COMMIT", 0, 1),
    )


def test_a_group_and_its_members(client: msgtx.Client, topic: str, session: Session) -> None:
    name = unique("group")
    with client.consumer(topic, group=name) as consumer:
        consumer.poll(0.5)
        group = session.get_one(orm.ConsumerGroup, name)
        assert (group.members, group.strategy) == (1, "cooperative-sticky")
        assert group.generation > 0


def test_a_share_group_and_what_it_has_in_flight(client: msgtx.Client, topic: str, session: Session) -> None:
    name = unique("share")
    client.admin.shares.configure(name, {"auto_offset_reset": "earliest", "max_record_locks": 7})
    with client.producer() as producer:
        producer.send_batch(topic, [b"x"] * 5, partition=1).result(SECONDS)
    with (
        client.share_consumer(topic, group=name, acknowledgement_mode="explicit") as consumer,
        client.producer(transactional_id=name) as producer,
    ):
        first, second, third, _ = consumer.poll(SECONDS, max_records=4)
        consumer.acknowledge(first)
        consumer.acknowledge(second, msgtx.Acknowledgement.RELEASE)
        consumer.commit()
        producer.begin_transaction()
        consumer.acknowledge(third)
        producer.send_acknowledgements_to_transaction(consumer)
        token = producer.prepare_transaction()
        group = session.get_one(orm.ShareGroup, name)
        assert (group.members, group.max_record_locks, group.auto_offset_reset) == (1, 7, "earliest")
        assert (group.dead_letter_topic, group.isolation) == (f"{name}-dead-letters", "read_committed")
        at = session.get_one(orm.SharePartition, (name, topic, 1))
        assert (at.start_offset, at.next_offset, at.available, at.acquired, at.pending, at.rejected) == (1, 4, 1, 1, 1, 0)
        spans = session.scalars(
            select(orm.ShareSpan).where(orm.ShareSpan.group_name == name).order_by(orm.ShareSpan.first_offset)
        ).all()
        assert [(span.first_offset, span.last_offset, span.state, span.delivery_count) for span in spans] == [
            (1, 1, "available", 1),
            (2, 2, "pending", 1),
            (3, 3, "acquired", 1),
        ]
        released, pending, acquired = spans
        assert (released.reason, released.locked_until) == ("released", None)
        assert (pending.answer, pending.producer_id) == ("accept", token.transaction_id.producer_id)
        assert acquired.locked_until is not None
        assert acquired.member_id is not None
        assert acquired.member_id == released.member_id
        client.complete(token, commit=False)
        session.rollback()
        assert (
            session.scalars(
                select(orm.ShareSpan.reason).where(orm.ShareSpan.group_name == name, orm.ShareSpan.first_offset == 2)
            ).one()
            == "transaction aborted"
        )
    assert session.scalars(select(orm.ConsumerGroup).where(orm.ConsumerGroup.name == name)).all() == []
    client.admin.shares.delete(name)


def test_an_offset_counts_when_it_is_decided_and_the_newest_that_counts_is_where_a_group_goes_on(
    connection: Connection, topic: str, session: Session
) -> None:
    partition, _ = ids_of(connection, topic)
    name = unique("group")
    first, sealed, aborted = Writer(connection), Writer(connection), Writer(connection)
    first.commit(offsets_of((name, partition, 1)))
    for writer, offset in ((sealed, 2), (aborted, 3)):
        seal(connection, writer.name, "external", offset=(name, partition, offset))
    decide_by_hand(connection, aborted.name, "ABORT")

    def seen() -> list[tuple[int, bool, bool, bool]]:
        session.rollback()
        rows = session.scalars(
            select(orm.GroupOffset).where(orm.GroupOffset.group_name == name).order_by(orm.GroupOffset.commit_sequence)
        )
        return [(row.committed_offset, row.counts, row.pending, row.newest) for row in rows]

    assert seen() == [(1, True, False, True), (2, False, True, False), (3, False, False, False)]
    decide_by_hand(connection, sealed.name, "COMMIT")
    assert seen() == [(1, True, False, False), (2, True, False, True), (3, False, False, False)]


# ── JSON ──


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"id": 7, "lines": [1, 2]}', {"id": 7, "lines": [1, 2]}),
        (b'"text"', "text"),
        (b"null", None),
        (b"{broken", None),
        (b"\xff\xfe", None),
        (b'"\\u0000"', None),
        (b"1e1000000", None),
        (b"[" * 100_000, None),
        (b"", None),
        (None, None),
    ],
)
def test_a_value_is_json_or_null_and_never_an_error(
    value: bytes | None, expected: object, connection: Connection, topic: str, session: Session
) -> None:
    plain(connection, ids_of(connection, topic)[0], value)
    (row,) = session.scalars(select(orm.CommittedRecord).where(orm.CommittedRecord.topic == topic))
    assert row.value_json == expected
    no_json = orm.CommittedRecord.value_json.is_(sqlalchemy.null())
    assert session.scalar(select(no_json).where(orm.CommittedRecord.topic == topic)) is (
        expected is None and value != b"null"
    )


@pytest.mark.parametrize("mapped", RECORDS)
def test_records_are_chosen_by_what_their_values_hold(
    mapped: type[Any], connection: Connection, topic: str, session: Session
) -> None:
    plain(connection, ids_of(connection, topic)[0], b'{"id": 6}', b"no JSON", b'{"id": 7, "of": {"customer": "x"}}', None)
    of_topic = mapped.topic == topic
    (row,) = session.scalars(select(mapped).where(of_topic, mapped.value_json["id"].as_integer() == 7))
    assert row.offset == 2
    customers = select(mapped.value_json["of", "customer"].as_string()).where(of_topic).order_by(mapped.offset)
    assert session.scalars(customers).all() == [None, None, "x", None]


# ── read-only ──


@pytest.fixture
def written(connection: Connection, topic: str, client: msgtx.Client) -> str:
    """A topic with a row in every view; the groups have names like it."""
    partition, _ = ids_of(connection, topic)
    writer = Writer(connection)
    writer.send(partition, b"a")
    writer.commit(offsets_of((topic, partition, 1)))
    client.sweep(only=["markers"])
    group = ShareGroup(connection, partition, name=f"share-{topic}")
    group.acquire("a")
    assert group.answer("a", {0: "release"}) == []  # what time does not change
    return topic


def content(connection: Connection) -> list[Any]:
    return [
        connection.execute(f"select array_agg(t::text order by t::text) from msgtx.{mapped.__tablename__} t").fetchone()
        for mapped in CLASSES
    ]


def change(session: Session, row: Any) -> None:
    column = next(column for column in inspect(type(row)).columns if not column.primary_key)
    setattr(row, inspect(type(row)).get_property_by_column(column).key, None)
    session.flush()


def remove(session: Session, row: Any) -> None:
    session.delete(row)
    session.flush()


def add(session: Session, row: Any) -> None:
    session.add(type(row)())
    session.flush()


def merge(session: Session, row: Any) -> None:
    keys = {column.key: getattr(row, column.key) for column in inspect(type(row)).primary_key}
    key = next(iter(keys))
    session.merge(type(row)(**{**keys, key: "another" if isinstance(keys[key], str) else -1}))
    session.flush()


WRITES: list[Callable[[Session, Any], object]] = [
    change,
    remove,
    add,
    merge,
    lambda session, row: session.execute(insert(type(row)), [{}]),
    lambda session, row: session.execute(insert(type(row)).values({next(iter(row.__table__.columns.keys())): None})),
    lambda session, row: session.execute(update(type(row)).values({next(iter(row.__table__.columns.keys())): None})),
    lambda session, row: session.execute(delete(type(row))),
]


@pytest.mark.parametrize("mapped", CLASSES)
def test_a_session_writes_none_of_them(mapped: type[Any], written: str, session: Session, connection: Connection) -> None:
    """I16: the error says what to use instead."""
    before = content(connection)
    for write in WRITES:
        row = session.scalars(select(mapped).limit(1)).one()
        with refuses(errors.IllegalState, reason="read-only"):
            write(session, row)
        session.rollback()
    assert content(connection) == before


@pytest.mark.parametrize("mapped", CLASSES)
def test_what_passes_by_the_session_is_refused_by_the_database(mapped: type[Any], written: str, session: Session) -> None:
    """Also to the owner: no view writes to its table."""
    view, column = mapped.__table__, mapped.__table__.columns.keys()[0]
    row = session.scalars(select(mapped).limit(1)).one()
    everything = {attribute.key: getattr(row, attribute.key) for attribute in inspect(mapped).column_attrs}
    everything.pop("value_json", None)
    for write in (
        lambda: session.execute(sqlalchemy.text(f"insert into {view} default values")),
        lambda: session.execute(sqlalchemy.text(f"update {view} set {column} = default where false")),
        lambda: session.execute(sqlalchemy.text(f"delete from {view} where false")),
        lambda: session.bulk_insert_mappings(inspect(mapped), [everything]),
    ):
        with pytest.raises(sqlalchemy.exc.DBAPIError) as caught, session.begin_nested():
            write()
        assert isinstance(caught.value.orig, psycopg.errors.ObjectNotInPrerequisiteState)


def test_a_record_that_is_read_again_is_found_by_the_index(connection: Connection, topic: str, session: Session) -> None:
    """After a commit a session reads its objects again, one by one: this must not scan the partition."""
    partition, _ = ids_of(connection, topic)
    for number in range(20):
        plain(connection, partition, b"%d" % number, b"x")
    row = session.scalars(select(orm.CommittedRecord).where(orm.CommittedRecord.topic == topic).offset(20)).first()
    session.commit()
    statements: list[tuple[str, Any]] = []
    sqlalchemy.event.listen(
        session.get_bind(), "before_cursor_execute", lambda *given: statements.append((given[2], given[3]))
    )
    assert row is not None
    assert row.value == b"10"
    ((statement, parameters),) = statements
    connection.execute("set enable_seqscan = off")
    plan = [line for (line,) in connection.execute(f"explain {statement}", parameters)]
    assert any("Index Cond" in line and "base_offset = '20'" in line for line in plan), "\n".join(plan)


# ── with business rows ──


def both_of(topic: str) -> sqlalchemy.Select[int | None, int | None]:
    """Messages and invoices side by side, null where one of them is missing, as one statement."""
    number = orm.CommittedRecordNow.value_json["id"].as_integer().label("number")
    message = select(number).where(orm.CommittedRecordNow.topic == topic).subquery()
    return select(message.c.number, Invoice.number).join_from(
        message, Invoice, message.c.number == Invoice.number, full=True
    )


@pytest.mark.parametrize("transactional", [False, True])
def test_a_message_is_seen_with_its_business_row_or_not_at_all(
    transactional: bool,
    connection: Connection,
    topic: str,
    invoices: None,
    session: Session,
    open_session: Callable[..., Session],
    background: ThreadPoolExecutor,
) -> None:
    """I6: one statement, one snapshot; also for a transaction whose records are stored long before it is decided."""
    reader, at, count = open_session(), TopicPartition(topic, 0), 30
    writer = Writer(connection) if transactional else None

    def write(number: int) -> None:
        value = b'{"id": %d}' % number
        session.add(Invoice(number=number, customer="x"))
        if writer is not None:
            writer.send(ids_of(connection, topic)[0], value)
            name, tails = writer.name, {at: number}
            protocol.decide(session.connection(), name, Outcome.COMMITTED, tails)
            writer.next()
        else:
            (result,) = protocol.append(session.connection(), [protocol.Batch(at, None, None, None, [OutputRecord(value)])])
            assert result.error is None
        session.flush()

    def seen() -> set[tuple[int | None, int | None]]:
        reader.rollback()
        return {(message, invoice) for message, invoice in reader.execute(both_of(topic))}

    write(0)
    assert seen() == set()
    session.commit()
    assert seen() == {(0, 0)}

    def write_more() -> None:
        for number in range(1, count):
            write(number)
            session.commit()

    writing = background.submit(write_more)
    while not writing.done():
        assert all(message == invoice for message, invoice in seen())
    writing.result()
    assert seen() == {(number, number) for number in range(count)}
