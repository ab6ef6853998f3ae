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
from msgtx.store.topics.topics import describe_topics
from tests.databases import PATIENCE_SECONDS, Connection, wait_until, waiting_backends
from tests.refusals import refuses
from tests.sessions.conftest import LEVELS, MakeEngine, Order
from tests.store.steps import plain

pytestmark = pytest.mark.slow

Seen = Callable[[str], tuple[list[bytes | None], list[int]]]
SECONDS = 30.0
at_every_level = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(params=LEVELS)
def leveled(request: pytest.FixtureRequest, make_engine: MakeEngine) -> sqlalchemy.Engine:
    """The application's engine, at each isolation level; its pool has one connection."""
    return make_engine(pool_size=1, max_overflow=0, pool_timeout=5, isolation_level=request.param)


def everything(client: msgtx.Client, topic: str) -> list[msgtx.Record]:
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        records: list[msgtx.Record] = []
        while any(consumer.offset_lag().values()):
            records.extend(consumer.poll(10))
        return records


def nothing_is_open(connection: Connection) -> bool:
    return connection.execute("select from msgtx.transactions where state in ('Ongoing', 'Prepared')").fetchall() == []


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


def insert(number: int) -> sqlalchemy.Insert:
    return sqlalchemy.insert(Order).values(number=number)


# ── with the rows, and with them only ──


def test_records_are_there_when_the_rows_are(begun: Any, topic: str, seen: Seen, connection: Connection) -> None:
    for number in (1, 2):
        begun.execute(insert(number))
        orm.publish(begun, topic, b"%d" % number, key=b"same")
        assert seen(topic) == ([b"%d" % i for i in range(1, number)], list(range(1, number)))
        begun.commit()
        assert seen(topic) == ([b"%d" % i for i in range(1, number + 1)], list(range(1, number + 1)))
    assert nothing_is_open(connection)


@pytest.mark.parametrize("ending", ["rollback", "close"])
def test_records_are_gone_when_the_rows_are(begun: Any, topic: str, seen: Seen, connection: Connection, ending: str) -> None:
    begun.execute(insert(1))
    orm.publish(begun, topic, b"gone")
    (begun.remove if ending == "close" and isinstance(begun, scoped_session) else getattr(begun, ending))()
    assert seen(topic) == ([], [])
    if ending == "rollback":
        begun.execute(insert(2))
        begun.commit()
        assert seen(topic) == ([], [2])
    assert nothing_is_open(connection)


def test_a_session_with_nothing_but_a_record_commits_it(leveled: sqlalchemy.Engine, topic: str, seen: Seen) -> None:
    with leveled.connect() as connection:
        orm.publish(connection, topic, b"alone")
        connection.commit()
    with Session(leveled) as session, session.begin():
        orm.publish(session, topic, b"too")
    assert sorted(seen(topic)[0]) == [b"alone", b"too"]  # type: ignore[type-var]  # none is null


def test_records_of_a_savepoint_go_with_it(leveled: sqlalchemy.Engine, topic: str, seen: Seen) -> None:
    """The inner of two that is released goes with the outer one; what was added before and after stays."""
    with Session(leveled) as session:
        orm.publish(session, topic, b"before", partition=0)
        outer = session.begin_nested()
        orm.publish(session, topic, b"outer", partition=0)
        with session.begin_nested():
            session.add(Order(number=1))
            orm.publish(session, topic, b"inner", partition=0)
        outer.rollback()
        with session.begin_nested():
            orm.publish(session, topic, b"released", partition=0)
            inner = session.begin_nested()
            orm.publish(session, topic, b"rolled back", partition=0)
            inner.rollback()
        orm.publish(session, topic, b"after", partition=0)
        session.commit()
    assert seen(topic) == ([b"before", b"released", b"after"], [])


def test_a_savepoint_of_a_connection_counts_as_one_of_a_session(leveled: sqlalchemy.Engine, topic: str, seen: Seen) -> None:
    with leveled.begin() as connection:
        with connection.begin_nested() as nested:
            orm.publish(connection, topic, b"gone")
            nested.rollback()
        with connection.begin_nested():
            orm.publish(connection, topic, b"kept")
    assert seen(topic) == ([b"kept"], [])


def test_a_session_over_a_connection_leaves_the_commit_to_it(app: sqlalchemy.Engine, topic: str, seen: Seen) -> None:
    """As test suites of applications do it."""
    with app.connect() as connection:
        outer = connection.begin()
        for mode, value in (("rollback_only", b"a"), ("create_savepoint", b"b"), ("create_savepoint", None)):
            with Session(connection, join_transaction_mode=mode) as session:  # type: ignore[arg-type]
                orm.publish(session, topic, value or b"gone", partition=0)
                (session.commit if value else session.rollback)()
            assert seen(topic) == ([], [])
        outer.commit()
    assert seen(topic) == ([b"a", b"b"], [])


# ── what is written ──


def test_a_record_keeps_all_that_it_was_given(client: msgtx.Client, leveled: sqlalchemy.Engine, topic: str) -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    before = time.time_ns() // 1_000_000
    with Session(leveled) as session:
        orm.publish(session, topic, b"v", key=b"k", timestamp=moment, headers=[("a", b"1"), ("a", None)])
        orm.publish(session, topic, None, key=b"gone", partition=2, timestamp=77)
        orm.publish(session, topic, b"", partition=1)
        session.commit()
    with client.producer() as producer:
        same = producer.send(topic, b"v", key=b"k").result(SECONDS).partition
    found = {(record.partition, record.value): record for record in reversed(everything(client, topic))}
    first, tombstone, empty = found[same, b"v"], found[2, None], found[1, b""]
    assert (first.key, first.timestamp, first.headers) == (b"k", 1714979289123, (("a", b"1"), ("a", None)))
    assert (tombstone.key, tombstone.timestamp) == (b"gone", 77)
    assert (empty.key, empty.headers) == (None, ())
    assert before <= empty.timestamp <= time.time_ns() // 1_000_000


def test_order_within_a_partition_is_that_of_the_calls(client: msgtx.Client, leveled: sqlalchemy.Engine, topic: str) -> None:
    with Session(leveled) as session:
        for i in range(30):
            orm.publish(session, topic, b"%d" % i, partition=2 - i % 3)
        session.commit()
    for partition in range(3):
        found = [int(record.value or b"") for record in everything(client, topic) if record.partition == partition]
        assert found == [i for i in range(30) if 2 - i % 3 == partition]


def test_records_without_a_key_go_to_one_partition(client: msgtx.Client, leveled: sqlalchemy.Engine, topic: str) -> None:
    with Session(leveled) as session:
        for i in range(20):
            orm.publish(session, topic, b"%d" % i)
        session.commit()
    records = everything(client, topic)
    assert len({record.partition for record in records}) == 1
    assert [record.value for record in records] == [b"%d" % i for i in range(20)]


@pytest.mark.parametrize(("each", "size"), [(10_500, 1), (120, 10_000)])
def test_more_than_one_row_of_the_log_holds(
    client: msgtx.Client, leveled: sqlalchemy.Engine, topic: str, connection: Connection, each: int, size: int
) -> None:
    """Several calls, one instant."""
    with Session(leveled) as session:
        for i in range(each):
            for partition in (0, 1):
                orm.publish(session, topic, b"%d".ljust(size) % i, partition=partition)
        session.commit()
    found = [(record.partition, int(record.value or b"")) for record in everything(client, topic)]
    assert sorted(found) == [(partition, i) for partition in (0, 1) for i in range(each)]
    assert [i for partition, i in found if partition == 1] == list(range(each))
    rows = connection.execute(
        "select count(*) from msgtx.record_batch join msgtx.partition using (partition_id) join msgtx.topic using (topic_id)"
        " where name = %s",
        [topic],
    ).fetchone()
    assert rows is not None
    assert 4 <= rows[0] <= 8


def test_more_partitions_than_one_notification_holds(
    client: msgtx.Client, leveled: sqlalchemy.Engine, unique: Callable[[str], str], seen: Seen
) -> None:
    many = unique("many")
    client.topics.create(many, partitions=800)
    with Session(leveled) as session:
        for partition in range(800):
            orm.publish(session, many, b"%d" % partition, partition=partition)
        session.commit()
    assert seen(many)[0] == [b"%d" % partition for partition in range(800)]


def test_waiting_consumers_are_woken(client: msgtx.Client, leveled: sqlalchemy.Engine, topic: str, background: Any) -> None:
    with client.consumer(topic, auto_offset_reset="earliest") as consumer, Session(leveled) as session:
        orm.publish(session, topic, b"woken")
        polled = background.submit(consumer.poll, SECONDS)
        session.commit()
        assert [record.value for record in polled.result()] == [b"woken"]


@at_every_level
def test_readers_are_notified_of_a_commit_when_its_connection_goes_back_to_the_pool(
    client: msgtx.Client, make_engine: MakeEngine, topic: str, connection: Connection, unique: Callable[[str], str],
    level: str,
) -> None:  # fmt: skip
    """Of all that it has brought. Of one that fails they are not: there is nothing to look for."""
    engine, ids = make_engine(isolation_level=level), describe_topics(connection, [topic])[topic].partition_ids
    with client.producer(transactional_id=unique("id")) as producer, open_listener(connection) as heard:
        for number, fails in ((1, False), (1, True)):
            with contextlib.suppress(sqlalchemy.exc.IntegrityError), Session(engine) as session:
                session.execute(insert(number))
                orm.publish(session, topic, b"x", partition=2)
                orm.publish(session, topic, b"x", partition=0)
                with producer.transaction(session=session):
                    producer.send(topic, b"x", partition=1)
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


def still_good(begun: Any, topic: str, seen: Seen, number: int) -> None:
    """Roll back, and commit something."""
    before = seen(topic)
    begun.rollback()
    begun.execute(insert(number))
    orm.publish(begun, topic, b"good", partition=2)
    begun.commit()
    assert seen(topic) == ([*before[0], b"good"], sorted([*before[1], number]))


def test_a_deferred_constraint_that_fails_takes_the_records_back(
    begun: Any, topic: str, seen: Seen, connection: Connection
) -> None:
    begun.execute(insert(1))
    begun.commit()
    begun.execute(insert(1))
    orm.publish(begun, topic, b"refused")
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        begun.commit()
    assert seen(topic) == ([], [1])
    assert nothing_is_open(connection), "it is aborted at once, and holds no reader up"
    still_good(begun, topic, seen, 2)


def test_a_failing_flush_takes_the_records_back(leveled: sqlalchemy.Engine, topic: str, seen: Seen) -> None:
    with Session(leveled) as session:
        orm.publish(session, topic, b"refused")
        session.add(Order(number=None))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.commit()
        assert seen(topic) == ([], [])
        still_good(session, topic, seen, 3)


@pytest.mark.parametrize("settings", [{}, {"stream_results": True}])
def test_a_result_that_cannot_be_read_takes_nothing_back(
    leveled: sqlalchemy.Engine, topic: str, seen: Seen, settings: dict[str, Any]
) -> None:
    """psycopg has no datetime for infinity; the SQL transaction goes on, and commits its rows."""
    with Session(leveled) as session:
        session.execute(insert(1))
        orm.publish(session, topic, b"1")
        with pytest.raises(sqlalchemy.exc.DataError, match="timestamp too large"):
            session.execute(sqlalchemy.text("select timestamptz 'infinity'"), execution_options=settings).all()
        session.commit()
    assert seen(topic) == ([b"1"], [1])


def test_a_level_that_cannot_be_asked_for_takes_nothing_back(leveled: sqlalchemy.Engine, topic: str, seen: Seen) -> None:
    """A savepoint takes back what had failed; the SQL transaction goes on."""
    with Session(leveled) as session:
        session.execute(insert(1))
        orm.publish(session, topic, b"1")
        nested = session.begin_nested()
        with pytest.raises(sqlalchemy.exc.DataError):
            session.execute(sqlalchemy.text("select 1 / 0"))
        with pytest.raises(sqlalchemy.exc.InternalError):
            session.connection().get_isolation_level()
        nested.rollback()
        session.commit()
    assert seen(topic) == ([b"1"], [1])


def test_a_serialization_failure_takes_the_records_back(
    make_engine: MakeEngine, topic: str, seen: Seen, connection: Connection
) -> None:
    """Write skew: two read what the other writes."""
    app = make_engine(isolation_level="SERIALIZABLE")
    read = sqlalchemy.select(sqlalchemy.func.count()).select_from(Order)
    with Session(app) as first, Session(app) as second:
        for session in (first, second):
            session.execute(read)
        for number, session in enumerate((first, second)):
            session.execute(insert(number))
            orm.publish(session, topic, b"%d" % number, partition=0)
        first.commit()
        with pytest.raises((sqlalchemy.exc.OperationalError, errors.LockTimeout)) as refused:
            second.commit()
        assert "serialize" in str(refused.value)
        assert seen(topic) == ([b"0"], [0])
        assert nothing_is_open(connection)
        still_good(second, topic, seen, 5)


@pytest.mark.parametrize("why", ["deleted", "limit"])
def test_a_record_that_is_refused_at_the_commit_takes_the_rows_back(
    begun: Any, client: msgtx.Client, topic: str, seen: Seen, unique: Callable[[str], str], why: str, connection: Connection
) -> None:
    """The session, and a plain connection too, can be used again after a rollback (I16)."""
    other = unique("other")
    client.topics.create(other)
    begun.execute(insert(1))
    orm.publish(begun, topic, b"with it", partition=0)
    orm.publish(begun, other, b"x" * 1_000)
    if why == "deleted":
        client.topics.delete(other)
    else:
        client.topics.alter(other, max_message_bytes=100)
    with pytest.raises(errors.UnknownTopicOrPartition if why == "deleted" else errors.RecordTooLarge):
        begun.commit()
    assert seen(topic) == ([], [])
    assert nothing_is_open(connection)
    still_good(begun, topic, seen, 2)


def test_a_refused_commit_holds_no_lock(begun: Any, client: msgtx.Client, topic: str, unique: Callable[[str], str]) -> None:
    """Before anybody has rolled back."""
    other = unique("other")
    client.topics.create(other)
    orm.publish(begun, topic, b"x", partition=0)
    orm.publish(begun, other, b"x")
    client.topics.delete(other)
    with pytest.raises(errors.UnknownTopicOrPartition):
        begun.commit()
    with client.producer() as producer:
        producer.send(topic, b"free", partition=0).result(2)
    begun.rollback()


def test_a_deleted_topic_that_is_made_again_is_found_after_the_refusal(
    client: msgtx.Client, leveled: sqlalchemy.Engine, topic: str, seen: Seen
) -> None:
    with Session(leveled) as session:
        orm.publish(session, topic, b"a", partition=0)
        session.commit()
        client.topics.delete(topic)
        client.topics.create(topic, partitions=1)
        orm.publish(session, topic, b"b", partition=0)
        with pytest.raises(errors.UnknownTopicOrPartition):
            session.commit()
        session.rollback()
        orm.publish(session, topic, b"c", partition=0)
        session.commit()
    assert seen(topic) == ([b"c"], [])


# ── crowds ──


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_sessions_beside_a_busy_producer_do_not_fail(
    client: msgtx.Client, make_engine: MakeEngine, topic: str, seen: Seen, background: Any, level: str
) -> None:
    """An application has to retry for its own rows only, whatever the log does while its snapshot grows old."""
    app, stop = make_engine(isolation_level=level), threading.Event()

    def busy() -> None:
        with client.producer(linger_ms=0) as producer:
            while not stop.is_set():
                for partition in range(3):
                    producer.send(topic, b"busy", partition=partition)
                producer.flush(SECONDS)

    def work(thread: int) -> None:
        for number in range(25 * thread, 25 * thread + 25):
            with Session(app) as session:
                session.add(Order(number=number))
                session.flush()
                for partition in range(3):
                    orm.publish(session, topic, b"%d" % number, partition=partition)
                time.sleep(0.05)
                session.commit()

    beside = background.submit(busy)
    try:
        for done in [background.submit(work, thread) for thread in range(4)]:
            done.result()
    finally:
        stop.set()
    beside.result()
    values, numbers = seen(topic)
    assert numbers == list(range(100))
    assert sorted(value for value in values if value != b"busy") == sorted(b"%d" % (i // 3) for i in range(300))


@at_every_level
def test_sessions_of_many_threads_over_the_same_partitions(
    make_engine: MakeEngine, topic: str, seen: Seen, background: Any, level: str, connection: Connection
) -> None:
    """No deadlock: partitions ascending, whatever the order of the calls."""
    app = make_engine(pool_size=8, isolation_level=level)

    def work(thread: int) -> None:
        for number in range(10):
            with Session(app) as session:
                session.add(Order(number=100 * thread + number))
                for partition in (0, 1, 2) if thread % 2 else (2, 1, 0):
                    orm.publish(session, topic, b"%d" % thread, partition=partition)
                session.commit()

    for done in [background.submit(work, thread) for thread in range(8)]:
        done.result()
    values, numbers = seen(topic)
    assert len(numbers) == 80
    assert sorted(values) == sorted([b"%d" % thread for thread in range(8)] * 30)  # type: ignore[type-var]  # none is null
    assert nothing_is_open(connection)


def test_a_serialization_failure_in_a_users_session_is_the_users(
    app: sqlalchemy.Engine, client: msgtx.Client, connection: Connection, topic: str
) -> None:
    """What a program at SERIALIZABLE catches to run its transaction again is SQLAlchemy's error with this SQLSTATE."""
    connection.execute(
        "create function public.conflicts() returns trigger language plpgsql as"
        " $$ begin raise exception using errcode = '40001', message = 'could not serialize access'; end $$"
    )
    connection.execute(
        "create trigger conflicts before insert on msgtx.record_batch for each row execute function public.conflicts()"
    )
    try:
        with Session(app) as session:
            session.execute(insert(1))
            orm.publish(session, topic, b"x")
            with pytest.raises(sqlalchemy.exc.OperationalError) as raised:
                session.commit()
            assert raised.value.orig.sqlstate == "40001"  # type: ignore[union-attr]
    finally:
        connection.execute("drop trigger conflicts on msgtx.record_batch")
        connection.execute("drop function public.conflicts()")
    with Session(app) as session:
        assert session.scalars(sqlalchemy.select(Order.number)).all() == []
        session.execute(insert(1))
        orm.publish(session, topic, b"x")
        session.commit()
    assert [record.value for record in everything(client, topic)] == [b"x"]


def test_both_kinds_of_publishing_lock_their_partitions_in_one_round(
    app: sqlalchemy.Engine,
    client: msgtx.Client,
    connection: Connection,
    open_connection: Callable[[], Connection],
    topic: str,
    background: Any,
) -> None:
    """What waits for the first partition holds no later one, whichever session staged for it."""
    first, second, _ = describe_topics(connection, [topic])[topic].partition_ids
    for by_sql, by_session, sides in ((0, 1, (first, second)), (1, 0, (first, second))):
        holder, other = open_connection(), open_connection()
        holder.execute("begin")
        plain(holder, sides[0], b"held")
        with Session(app) as session:
            session.execute(
                sqlalchemy.text("select msgtx.publish(:topic, 'by sql', partition => :place)"),
                {"topic": topic, "place": by_sql},
            )
            orm.publish(session, topic, b"by session", partition=by_session)
            committed = background.submit(session.commit)
            wait_until(lambda: waiting_backends(connection), "the COMMIT waits")
            other.execute("set lock_timeout = '1s'")
            plain(other, sides[1], b"of another")
            holder.execute("commit")
            committed.result(SECONDS)
    values = [(record.partition, record.value) for record in everything(client, topic)]
    assert sorted(value for _, value in values if value.startswith(b"by")) == [
        b"by session",
        b"by session",
        b"by sql",
        b"by sql",
    ]


def test_sessions_that_publish_both_ways_crosswise_do_not_deadlock(
    make_engine: MakeEngine, client: msgtx.Client, topic: str, background: Any
) -> None:
    engine = make_engine(pool_size=4)

    def work(mine: int, other: int) -> None:
        for _ in range(6):
            with Session(engine) as session:
                session.execute(
                    sqlalchemy.text("select msgtx.publish(:topic, 'by sql', partition => :place)"),
                    {"topic": topic, "place": other},
                )
                orm.publish(session, topic, b"by session", partition=mine)
                session.commit()

    for done in [background.submit(work, *pair) for pair in ((0, 1), (1, 0), (2, 0), (0, 2))]:
        done.result(SECONDS)
    assert len(everything(client, topic)) == 48


@at_every_level
def test_a_commit_that_waits_for_a_row_of_somebody_holds_no_partition(
    make_engine: MakeEngine,
    client: msgtx.Client,
    connection: Connection,
    open_connection: Callable[[], Connection],
    topic: str,
    background: Any,
    level: str,
) -> None:
    """P32: the deferred constraints of the user's tables are checked ahead of the partitions."""
    app = make_engine(pool_size=1, isolation_level=level)
    somebody = open_connection()
    somebody.execute("begin")
    somebody.execute("insert into orders (number) values (7)")
    with Session(app) as session:
        session.execute(insert(7))
        orm.publish(session, topic, b"bought", partition=0)
        committed = background.submit(session.commit)
        wait_until(lambda: waiting_backends(connection), "the COMMIT waits")
        with client.producer() as producer:
            producer.send(topic, b"of another", partition=0).result(SECONDS)
        somebody.execute("rollback")
        committed.result(SECONDS)
    assert sorted(record.value or b"" for record in everything(client, topic)) == [b"bought", b"of another"]


def test_another_database_is_refused_by_its_name() -> None:
    with Session(sqlalchemy.create_engine("sqlite://")) as session, refuses(errors.ConfigError, reason="driver"):
        orm.publish(session, "orders", b"")
