"""Records that come with the user's COMMIT, and go with his rollback (internals: sessions; I6)."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import msgtx
from msgtx import errors, orm
from msgtx.store.append.rows import DELIVER_AT
from msgtx.store.topics.topics import describe_topics
from tests.databases import PATIENCE_SECONDS, Connection, wait_until, waiting_backends
from tests.refusals import refuses
from tests.sessions.conftest import LEVELS, Order, Shop, insert
from tests.store.steps import plain

pytestmark = pytest.mark.slow

SECONDS = 30.0
at_every_level = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(params=["Session", "scoped_session", "Connection"])
def begun(request: pytest.FixtureRequest, leveled: sqlalchemy.Engine) -> Iterator[Any]:
    """A session of each kind, at each level."""
    match request.param:
        case "Session":
            with Session(leveled) as session:
                yield session
        case "scoped_session":
            registry = scoped_session(sessionmaker(leveled))
            yield registry
            registry.remove()
        case _:
            with leveled.connect() as connected:
                yield connected


# ── with the rows, and with them only ──


def test_a_value_may_be_given_as_json(shop: Shop, begun: Any) -> None:
    msgtx.publish(begun, shop.topic, json={"id": 305}, key=b"ada")
    begun.commit()
    (record,) = shop.read(shop.topic)
    assert (record.value, record.key) == (b'{"id":305}', b"ada")
    for wrong in ({}, {"value": b"both", "json": 1}):
        with refuses(errors.WrongType, name="value"):
            msgtx.publish(begun, shop.topic, **wrong)


def test_records_are_there_when_the_rows_are(shop: Shop, begun: Any) -> None:
    for number in (1, 2):
        begun.execute(insert(number))
        orm.publish(begun, shop.topic, b"%d" % number, key=b"same")
        assert shop.seen() == ([b"%d" % i for i in range(1, number)], list(range(1, number)))
        begun.commit()
        assert shop.seen() == ([b"%d" % i for i in range(1, number + 1)], list(range(1, number + 1)))
    assert shop.nothing_is_open()


@pytest.mark.parametrize("ending", ["rollback", "close"])
def test_records_are_gone_when_the_rows_are(shop: Shop, begun: Any, ending: str) -> None:
    begun.execute(insert(1))
    orm.publish(begun, shop.topic, b"gone")
    (begun.remove if ending == "close" and isinstance(begun, scoped_session) else getattr(begun, ending))()
    assert shop.seen() == ([], [])
    if ending == "rollback":
        begun.execute(insert(2))
        begun.commit()
        assert shop.seen() == ([], [2])
    assert shop.nothing_is_open()


def test_a_session_with_nothing_but_a_record_commits_it(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    with leveled.connect() as connection:
        orm.publish(connection, shop.topic, b"alone")
        connection.commit()
    with Session(leveled) as session, session.begin():
        orm.publish(session, shop.topic, b"too")
    assert sorted(shop.seen()[0]) == [b"alone", b"too"]  # type: ignore[type-var]  # none is null


def test_records_of_a_savepoint_go_with_it(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    """The inner of two that is released goes with the outer one; what was added before and after stays."""
    with Session(leveled) as session:
        orm.publish(session, shop.topic, b"before", partition=0)
        outer = session.begin_nested()
        orm.publish(session, shop.topic, b"outer", partition=0)
        with session.begin_nested():
            session.add(Order(number=1))
            orm.publish(session, shop.topic, b"inner", partition=0)
        outer.rollback()
        with session.begin_nested():
            orm.publish(session, shop.topic, b"released", partition=0)
            inner = session.begin_nested()
            orm.publish(session, shop.topic, b"rolled back", partition=0)
            inner.rollback()
        orm.publish(session, shop.topic, b"after", partition=0)
        session.commit()
    assert shop.seen() == ([b"before", b"released", b"after"], [])


def test_a_savepoint_of_a_connection_counts_as_one_of_a_session(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    with leveled.begin() as connection:
        with connection.begin_nested() as nested:
            orm.publish(connection, shop.topic, b"gone")
            nested.rollback()
        with connection.begin_nested():
            orm.publish(connection, shop.topic, b"kept")
    assert shop.seen() == ([b"kept"], [])


def test_a_session_over_a_connection_leaves_the_commit_to_it(shop: Shop) -> None:
    """As test suites of applications do it."""
    with shop.app.connect() as connection:
        outer = connection.begin()
        for mode, value in (("rollback_only", b"a"), ("create_savepoint", b"b"), ("create_savepoint", None)):
            with Session(connection, join_transaction_mode=mode) as session:  # type: ignore[arg-type]
                orm.publish(session, shop.topic, value or b"gone", partition=0)
                (session.commit if value else session.rollback)()
            assert shop.seen() == ([], [])
        outer.commit()
    assert shop.seen() == ([b"a", b"b"], [])


# ── what is written ──


def test_a_record_keeps_all_that_it_was_given(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    before = time.time_ns() // 1_000_000
    with Session(leveled) as session:
        orm.publish(session, shop.topic, b"v", key=b"k", timestamp=moment, headers=[("a", b"1"), ("a", None)])
        orm.publish(session, shop.topic, None, key=b"gone", partition=2, timestamp=77)
        orm.publish(session, shop.topic, b"", partition=1)
        session.commit()
    with shop.client.producer() as producer:
        same = producer.send(shop.topic, b"v", key=b"k").result(SECONDS).partition
    found = {(record.partition, record.value): record for record in reversed(shop.read())}
    first, tombstone, empty = found[same, b"v"], found[2, None], found[1, b""]
    assert (first.key, first.timestamp, first.headers) == (b"k", 1714979289123, (("a", b"1"), ("a", None)))
    assert (tombstone.key, tombstone.timestamp) == (b"gone", 77)
    assert (empty.key, empty.headers) == (None, ())
    assert before <= empty.timestamp <= time.time_ns() // 1_000_000


def test_a_record_may_be_published_for_later(shop: Shop, begun: Any) -> None:
    """As a sent one: share groups wait, by a header."""
    before = time.time_ns() // 1_000_000
    orm.publish(begun, shop.topic, b"at", deliver_at=datetime(2099, 1, 1, tzinfo=UTC), headers=[("a", b"1")])
    orm.publish(begun, shop.topic, b"behind", delay_ms="1h")
    for wrong, error, name in (
        ({"deliver_at": 1, "delay_ms": 1}, errors.InvalidRequest, "deliver_at"),
        ({"deliver_at": 10**14}, errors.InvalidRequest, "deliver_at"),
        ({"delay_ms": "soon"}, errors.ConfigError, "delay_ms"),
    ):
        with refuses(error, name=name):
            orm.publish(begun, shop.topic, b"never", **wrong)
    begun.commit()
    found = {record.value: dict(record.headers) for record in shop.read()}
    assert {*found} == {b"at", b"behind"}
    assert found[b"at"] == {"a": b"1", DELIVER_AT: b"4070908800000"}
    assert before + 3_600_000 <= int(found[b"behind"][DELIVER_AT]) <= time.time_ns() // 1_000_000 + 3_600_000


def test_order_within_a_partition_is_that_of_the_calls(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    with Session(leveled) as session:
        for i in range(30):
            orm.publish(session, shop.topic, b"%d" % i, partition=2 - i % 3)
        session.commit()
    for partition in range(3):
        found = [int(record.value or b"") for record in shop.read() if record.partition == partition]
        assert found == [i for i in range(30) if 2 - i % 3 == partition]


def test_records_without_a_key_go_to_one_partition(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    with Session(leveled) as session:
        for i in range(20):
            orm.publish(session, shop.topic, b"%d" % i)
        session.commit()
    records = shop.read()
    assert len({record.partition for record in records}) == 1
    assert [record.value for record in records] == [b"%d" % i for i in range(20)]


@pytest.mark.parametrize(("each", "size"), [(10_500, 1), (120, 10_000)])
def test_more_than_one_row_of_the_log_holds(shop: Shop, leveled: sqlalchemy.Engine, each: int, size: int) -> None:
    """Several calls, one instant."""
    with Session(leveled) as session:
        for i in range(each):
            for partition in (0, 1):
                orm.publish(session, shop.topic, b"%d".ljust(size) % i, partition=partition)
        session.commit()
    found = [(record.partition, int(record.value or b"")) for record in shop.read()]
    assert sorted(found) == [(partition, i) for partition in (0, 1) for i in range(each)]
    assert [i for partition, i in found if partition == 1] == list(range(each))
    rows = shop.connection.execute(
        "select count(*) from msgtx.record_batch join msgtx.partition using (partition_id) join msgtx.topic using (topic_id)"
        " where name = %s",
        [shop.topic],
    ).fetchone()
    assert rows is not None
    assert 4 <= rows[0] <= 8


def test_more_partitions_than_one_notification_holds(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    many = shop.make_topic(partitions=800)
    with Session(leveled) as session:
        for partition in range(800):
            orm.publish(session, many, b"%d" % partition, partition=partition)
        session.commit()
    assert shop.seen(many)[0] == [b"%d" % partition for partition in range(800)]


def test_waiting_consumers_are_woken(shop: Shop, leveled: sqlalchemy.Engine, background: Any) -> None:
    with shop.client.consumer(shop.topic, auto_offset_reset="earliest") as consumer, Session(leveled) as session:
        orm.publish(session, shop.topic, b"woken")
        polled = background.submit(consumer.poll, SECONDS)
        session.commit()
        assert [record.value for record in polled.result()] == [b"woken"]


@at_every_level
def test_readers_are_notified_of_a_commit_when_its_connection_goes_back_to_the_pool(shop: Shop, level: str) -> None:
    """Of all that it has brought. Of one that fails they are not: there is nothing to look for."""
    engine = shop.engine(isolation_level=level)
    ids = describe_topics(shop.connection, [shop.topic])[shop.topic].partition_ids
    with shop.producer() as producer, open_listener(shop.connection) as heard:
        for number, fails in ((1, False), (1, True)):
            with contextlib.suppress(sqlalchemy.exc.IntegrityError), Session(engine) as session:
                session.execute(insert(number))
                orm.publish(session, shop.topic, b"x", partition=2)
                orm.publish(session, shop.topic, b"x", partition=0)
                with producer.transaction(session=session):
                    producer.send(shop.topic, b"x", partition=1)
                session.commit()
            assert heard() == (set() if fails else set(ids))


@contextlib.contextmanager
def open_listener(connection: Connection) -> Iterator[Callable[[], set[int]]]:
    """The partitions that readers were notified of since the last call, until now."""

    def hear() -> set[int]:
        words: list[str] = []
        connection.execute("select pg_notify('msgtx', '0')")  # what others have said before comes before it
        while "0" not in words:
            for each in connection.notifies(timeout=PATIENCE_SECONDS, stop_after=1):
                words += each.payload.split(",")
        return {int(word) for word in words} - {0}

    connection.execute("listen msgtx")
    yield hear
    connection.execute("unlisten msgtx")


# ── commits that fail ──


def still_good(begun: Any, shop: Shop, number: int) -> None:
    """Roll back, and commit something."""
    before = shop.seen()
    begun.rollback()
    begun.execute(insert(number))
    orm.publish(begun, shop.topic, b"good", partition=2)
    begun.commit()
    assert shop.seen() == ([*before[0], b"good"], sorted([*before[1], number]))


def test_a_deferred_constraint_that_fails_takes_the_records_back(shop: Shop, begun: Any) -> None:
    begun.execute(insert(1))
    begun.commit()
    begun.execute(insert(1))
    orm.publish(begun, shop.topic, b"refused")
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        begun.commit()
    assert shop.seen() == ([], [1])
    assert shop.nothing_is_open(), "it is aborted at once, and holds no reader up"
    still_good(begun, shop, 2)


def test_a_failing_flush_takes_the_records_back(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    with Session(leveled) as session:
        orm.publish(session, shop.topic, b"refused")
        session.add(Order(number=None))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.commit()
        assert shop.seen() == ([], [])
        still_good(session, shop, 3)


@pytest.mark.parametrize("settings", [{}, {"stream_results": True}])
def test_a_result_that_cannot_be_read_takes_nothing_back(
    shop: Shop, leveled: sqlalchemy.Engine, settings: dict[str, Any]
) -> None:
    """psycopg has no datetime for infinity; the SQL transaction goes on, and commits its rows."""
    with Session(leveled) as session:
        session.execute(insert(1))
        orm.publish(session, shop.topic, b"1")
        with pytest.raises(sqlalchemy.exc.DataError, match="timestamp too large"):
            session.execute(sqlalchemy.text("select timestamptz 'infinity'"), execution_options=settings).all()
        session.commit()
    assert shop.seen() == ([b"1"], [1])


def test_a_level_that_cannot_be_asked_for_takes_nothing_back(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    """A savepoint takes back what had failed; the SQL transaction goes on."""
    with Session(leveled) as session:
        session.execute(insert(1))
        orm.publish(session, shop.topic, b"1")
        nested = session.begin_nested()
        with pytest.raises(sqlalchemy.exc.DataError):
            session.execute(sqlalchemy.text("select 1 / 0"))
        with pytest.raises(sqlalchemy.exc.InternalError):
            session.connection().get_isolation_level()
        nested.rollback()
        session.commit()
    assert shop.seen() == ([b"1"], [1])


def test_a_serialization_failure_takes_the_records_back(shop: Shop) -> None:
    """Write skew: two read what the other writes."""
    app = shop.engine(isolation_level="SERIALIZABLE")
    read = sqlalchemy.select(sqlalchemy.func.count()).select_from(Order)
    with Session(app) as first, Session(app) as second:
        for session in (first, second):
            session.execute(read)
        for number, session in enumerate((first, second)):
            session.execute(insert(number))
            orm.publish(session, shop.topic, b"%d" % number, partition=0)
        first.commit()
        with pytest.raises((sqlalchemy.exc.OperationalError, errors.LockTimeout)) as refused:
            second.commit()
        assert "serialize" in str(refused.value)
        assert shop.seen() == ([b"0"], [0])
        assert shop.nothing_is_open()
        still_good(second, shop, 5)


@pytest.mark.parametrize("why", ["deleted", "limit"])
def test_a_record_that_is_refused_at_the_commit_takes_the_rows_back(shop: Shop, begun: Any, why: str) -> None:
    """The session, and a plain connection too, can be used again after a rollback (I16)."""
    other = shop.make_topic()
    begun.execute(insert(1))
    orm.publish(begun, shop.topic, b"with it", partition=0)
    orm.publish(begun, other, b"x" * 1_000)
    if why == "deleted":
        shop.client.topics.delete(other)
    else:
        shop.client.topics.alter(other, max_message_bytes=100)
    with pytest.raises(errors.UnknownTopicOrPartition if why == "deleted" else errors.RecordTooLarge):
        begun.commit()
    assert shop.seen() == ([], [])
    assert shop.nothing_is_open()
    still_good(begun, shop, 2)


def test_a_refused_commit_holds_no_lock(shop: Shop, begun: Any) -> None:
    """Before anybody has rolled back."""
    other = shop.make_topic()
    orm.publish(begun, shop.topic, b"x", partition=0)
    orm.publish(begun, other, b"x")
    shop.client.topics.delete(other)
    with pytest.raises(errors.UnknownTopicOrPartition):
        begun.commit()
    with shop.client.producer() as producer:
        producer.send(shop.topic, b"free", partition=0).result(2)
    begun.rollback()


def test_a_deleted_topic_that_is_made_again_is_found_after_the_refusal(shop: Shop, leveled: sqlalchemy.Engine) -> None:
    with Session(leveled) as session:
        orm.publish(session, shop.topic, b"a", partition=0)
        session.commit()
        shop.client.topics.delete(shop.topic)
        shop.client.topics.create(shop.topic, partitions=1)
        orm.publish(session, shop.topic, b"b", partition=0)
        with pytest.raises(errors.UnknownTopicOrPartition):
            session.commit()
        session.rollback()
        orm.publish(session, shop.topic, b"c", partition=0)
        session.commit()
    assert shop.seen() == ([b"c"], [])


# ── crowds ──


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_sessions_beside_a_busy_producer_do_not_fail(shop: Shop, background: Any, level: str) -> None:
    """An application has to retry for its own rows only, whatever the log does while its snapshot grows old."""
    app, stop = shop.engine(isolation_level=level), threading.Event()

    def busy() -> None:
        with shop.client.producer(linger_ms=0) as producer:
            while not stop.is_set():
                for partition in range(3):
                    producer.send(shop.topic, b"busy", partition=partition)
                producer.flush(SECONDS)

    def work(thread: int) -> None:
        for number in range(25 * thread, 25 * thread + 25):
            with Session(app) as session:
                session.add(Order(number=number))
                session.flush()
                for partition in range(3):
                    orm.publish(session, shop.topic, b"%d" % number, partition=partition)
                time.sleep(0.05)
                session.commit()

    beside = background.submit(busy)
    try:
        for done in [background.submit(work, thread) for thread in range(4)]:
            done.result()
    finally:
        stop.set()
    beside.result()
    values, numbers = shop.seen()
    assert numbers == list(range(100))
    assert sorted(value for value in values if value != b"busy") == sorted(b"%d" % (i // 3) for i in range(300))


@at_every_level
def test_sessions_of_many_threads_over_the_same_partitions(shop: Shop, background: Any, level: str) -> None:
    """No deadlock: partitions ascending, whatever the order of the calls."""
    app = shop.engine(pool_size=8, isolation_level=level)

    def work(thread: int) -> None:
        for number in range(10):
            with Session(app) as session:
                session.add(Order(number=100 * thread + number))
                for partition in (0, 1, 2) if thread % 2 else (2, 1, 0):
                    orm.publish(session, shop.topic, b"%d" % thread, partition=partition)
                session.commit()

    for done in [background.submit(work, thread) for thread in range(8)]:
        done.result()
    values, numbers = shop.seen()
    assert len(numbers) == 80
    assert sorted(values) == sorted([b"%d" % thread for thread in range(8)] * 30)  # type: ignore[type-var]  # none is null
    assert shop.nothing_is_open()


def test_a_serialization_failure_in_a_users_session_is_the_users(shop: Shop) -> None:
    """What a program at SERIALIZABLE catches to run its transaction again is SQLAlchemy's error with this SQLSTATE."""
    shop.connection.execute(
        "create function public.conflicts() returns trigger language plpgsql as"
        " $$ begin raise exception using errcode = '40001', message = 'could not serialize access'; end $$"
    )
    shop.connection.execute(
        "create trigger conflicts before insert on msgtx.record_batch for each row execute function public.conflicts()"
    )
    try:
        with Session(shop.app) as session:
            session.execute(insert(1))
            orm.publish(session, shop.topic, b"x")
            with pytest.raises(sqlalchemy.exc.OperationalError) as raised:
                session.commit()
            assert raised.value.orig.sqlstate == "40001"  # type: ignore[union-attr]
    finally:
        shop.connection.execute("drop trigger conflicts on msgtx.record_batch")
        shop.connection.execute("drop function public.conflicts()")
    with Session(shop.app) as session:
        assert session.scalars(sqlalchemy.select(Order.number)).all() == []
        session.execute(insert(1))
        orm.publish(session, shop.topic, b"x")
        session.commit()
    assert [record.value for record in shop.read()] == [b"x"]


def test_both_kinds_of_publishing_lock_their_partitions_in_one_round(
    shop: Shop, open_connection: Callable[[], Connection], background: Any
) -> None:
    """What waits for the first partition holds no later one, whichever session staged for it."""
    first, second, _ = describe_topics(shop.connection, [shop.topic])[shop.topic].partition_ids
    for by_sql, by_session, sides in ((0, 1, (first, second)), (1, 0, (first, second))):
        holder, other = open_connection(), open_connection()
        holder.execute("begin")
        plain(holder, sides[0], b"held")
        with Session(shop.app) as session:
            session.execute(
                sqlalchemy.text("select msgtx.publish(:topic, 'by sql', partition => :place)"),
                {"topic": shop.topic, "place": by_sql},
            )
            orm.publish(session, shop.topic, b"by session", partition=by_session)
            committed = background.submit(session.commit)
            wait_until(lambda: waiting_backends(shop.connection), "the COMMIT waits")
            other.execute("set lock_timeout = '1s'")
            plain(other, sides[1], b"of another")
            holder.execute("commit")
            committed.result(SECONDS)
    values = [(record.partition, record.value) for record in shop.read()]
    assert sorted(value for _, value in values if value.startswith(b"by")) == [
        b"by session",
        b"by session",
        b"by sql",
        b"by sql",
    ]


def test_sessions_that_publish_both_ways_crosswise_do_not_deadlock(shop: Shop, background: Any) -> None:
    engine = shop.engine(pool_size=4)

    def work(mine: int, other: int) -> None:
        for _ in range(6):
            with Session(engine) as session:
                session.execute(
                    sqlalchemy.text("select msgtx.publish(:topic, 'by sql', partition => :place)"),
                    {"topic": shop.topic, "place": other},
                )
                orm.publish(session, shop.topic, b"by session", partition=mine)
                session.commit()

    for done in [background.submit(work, *pair) for pair in ((0, 1), (1, 0), (2, 0), (0, 2))]:
        done.result(SECONDS)
    assert len(shop.read()) == 48


@at_every_level
def test_a_commit_that_waits_for_a_row_of_somebody_holds_no_partition(
    shop: Shop, open_connection: Callable[[], Connection], background: Any, level: str
) -> None:
    """P32: the deferred constraints of the user's tables are checked ahead of the partitions."""
    app = shop.engine(pool_size=1, isolation_level=level)
    somebody = open_connection()
    somebody.execute("begin")
    somebody.execute("insert into orders (number) values (7)")
    with Session(app) as session:
        session.execute(insert(7))
        orm.publish(session, shop.topic, b"bought", partition=0)
        committed = background.submit(session.commit)
        wait_until(lambda: waiting_backends(shop.connection), "the COMMIT waits")
        with shop.client.producer() as producer:
            producer.send(shop.topic, b"of another", partition=0).result(SECONDS)
        somebody.execute("rollback")
        committed.result(SECONDS)
    assert sorted(record.value or b"" for record in shop.read()) == [b"bought", b"of another"]


def test_another_database_is_refused_by_its_name() -> None:
    with Session(sqlalchemy.create_engine("sqlite://")) as session, refuses(errors.ConfigError, reason="driver"):
        orm.publish(session, "orders", b"")


def test_what_a_session_would_publish_can_be_asked_for_also_below_an_outer_transaction(shop: Shop) -> None:
    with shop.app.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            orm.publish(session, shop.topic, b"x", key=b"k", headers={"a": b"1"})
            with session.begin_nested() as savepoint:
                orm.publish(session, shop.topic, b"gone")
                savepoint.rollback()
            session.commit()
        (found,) = orm.pending(connection)
        assert (found.topic, found.value, found.key, list(found.headers)) == (shop.topic, b"x", b"k", [("a", b"1")])
        outer.rollback()
        assert orm.pending(connection) == []
