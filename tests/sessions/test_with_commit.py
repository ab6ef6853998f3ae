"""Records that go with a user's COMMIT, in one round trip; and what makes them go another way, with the same outcome."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.pq import TransactionStatus
from sqlalchemy import text
from sqlalchemy.orm import Session

from msgtx import errors, orm
from msgtx.database import committing
from msgtx.session import enlistment
from tests.databases import Connection, wait_until
from tests.sessions.conftest import Shop, insert

SECONDS = 30.0
Way = Callable[[Session], object]


@pytest.fixture(autouse=True)
def no_deferrable_constraint(shop: Shop) -> Iterator[None]:
    """The usual case; the shop's own table has one."""
    shop.connection.execute("alter table orders drop constraint orders_number")
    yield
    shop.connection.execute("truncate orders")
    shop.connection.execute("alter table orders add constraint orders_number unique (number) deferrable initially deferred")


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What became of each attempt to send records with the COMMIT: True, False, or its error."""
    made: list[object] = []
    original = enlistment.append_and_commit

    def noted(*arguments: Any, **named: Any) -> Any:
        try:
            made.append(original(*arguments, **named) is not None)
        except BaseException as error:
            made.append(type(error))
            raise
        return made[-1] or None

    monkeypatch.setattr(enlistment, "append_and_commit", noted)
    return made


def commit(shop: Shop, before: Way = lambda session: None, number: int = 1, engine: sqlalchemy.Engine | None = None) -> None:
    """Commit an order with its message."""
    with Session(engine or shop.app) as session:
        before(session)
        session.execute(insert(number))
        orm.publish(session, shop.topic, b"%d" % number, partition=0)
        session.commit()


def sql(statement: str) -> Way:
    return lambda session: session.execute(text(statement))


def test_row_and_record_come_in_one_round_trip(shop: Shop, ways: list[object]) -> None:
    commit(shop)  # which asks for what it has to know
    with shop.app.connect() as connection:
        driver: Any = connection.connection.driver_connection
        connection.execute(insert(2))
        orm.publish(connection, shop.topic, b"2", partition=0)
        trips: list[object] = []
        wait = driver.wait
        driver.wait = lambda *arguments: (trips.append(driver.info.transaction_status), wait(*arguments))[1]
        connection.commit()
        driver.wait = wait
    assert trips == [TransactionStatus.INTRANS, TransactionStatus.IDLE]  # and psycopg's commit, which finds it done
    assert (ways, shop.seen()) == ([True, True], ([b"1", b"2"], [1, 2]))


@pytest.mark.parametrize("level", [None, "READ COMMITTED"])
def test_a_record_alone_needs_no_other_statement(shop: Shop, ways: list[object], level: str | None) -> None:
    app = shop.engine(**({} if level is None else {"isolation_level": level}))
    for _ in range(2):
        shop.publish(app, b"x")
    assert (ways, shop.seen()) == ([True, True], ([b"x", b"x"], []))


def test_waiting_readers_are_notified_by_the_commit(shop: Shop) -> None:
    """Also of a connection that its user keeps."""
    commit(shop)
    with closing(psycopg.connect(shop.url, autocommit=True)) as listener, shop.app.connect() as connection:
        listener.execute("listen msgtx")
        orm.publish(connection, shop.topic, b"x")
        connection.commit()
        assert [len(each.payload) > 0 for each in listener.notifies(timeout=SECONDS, stop_after=1)] == [True]


def test_readers_are_notified_later_where_it_cannot_be_done_at_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NOTIFY waits for the COMMIT of any other session of the cluster that notifies, and gives up."""
    commit(shop)
    with closing(psycopg.connect(shop.url, autocommit=True)) as listener:
        listener.execute("listen msgtx")
        with monkeypatch.context() as patched:
            patched.setattr(committing, "NOTIFY_SOON", "select 1 / 0, msgtx.notify_readers(%s)")
            commit(shop, number=2)  # its connection is back in the pool at the end
        assert [len(each.payload) > 0 for each in listener.notifies(timeout=SECONDS, stop_after=1)] == [True]
    assert shop.seen() == ([b"1", b"2"], [1, 2])


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("set transaction isolation level repeatable read", id="above read committed"),
        pytest.param("select msgtx.publish('{topic}', value => 'staged', partition => 1)", id="something is staged"),
    ],
)
def test_what_it_is_not_for_goes_another_way(shop: Shop, ways: list[object], before: str) -> None:
    commit(shop)
    commit(shop, sql(before.format(topic=shop.topic)), 2)
    assert ways == [True, False]
    values, rows = shop.seen()
    assert [value for value in values if value != b"staged"] == [b"1", b"2"]
    assert (len(values), rows) == (3 if "publish" in before else 2, [1, 2])
    commit(shop, number=3)  # and its connection is spared the attempt for a while
    assert len(ways) == 2
    committing._habits.clear()
    commit(shop, number=4)
    assert ways == [True, False, True]
    assert shop.seen()[1] == [1, 2, 3, 4]


def test_statements_that_a_user_discards_are_not_missed(shop: Shop, ways: list[object]) -> None:
    """As psycopg does itself with a ROLLBACK, if it has prepared any."""
    commit(shop)
    for number, statement in enumerate(("deallocate all", "discard plans", "deallocate all"), 2):
        commit(shop, sql(statement), number)
    assert ways == [True] * 4
    assert shop.seen() == ([b"1", b"2", b"3", b"4"], [1, 2, 3, 4])


def test_a_deferrable_constraint_keeps_all_in_its_own_order(shop: Shop, ways: list[object]) -> None:
    """In the COMMIT it may wait for another session's row, and its trigger may publish: then all is staged (P32)."""
    commit(shop)
    shop.connection.execute("create table line (number int unique deferrable)")
    try:
        commit(shop, number=2)  # it is asked for now and then
        enlistment._deferrable.clear()
        commit(shop, number=3)
        shop.connection.execute("drop table line")
        commit(shop, number=4)
    finally:
        shop.connection.execute("drop table if exists line")
    assert ways == [True, True]
    enlistment._deferrable.clear()
    commit(shop, number=5)
    assert (ways, shop.rows()) == ([True, True, True], [1, 2, 3, 4, 5])


def test_a_transaction_that_another_listener_has_ended_takes_no_record(shop: Shop, ways: list[object]) -> None:
    commit(shop)

    def listener(connection: sqlalchemy.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.rollback()

    sqlalchemy.event.listen(shop.app, "commit", listener)
    with pytest.raises(errors.IllegalState, match="ended below SQLAlchemy"):
        commit(shop, number=2)
    assert (ways, shop.seen()) == ([True], ([b"1"], [1]))


def test_a_connection_that_was_lost_is_known_as_lost(shop: Shop, ways: list[object]) -> None:
    commit(shop)
    with Session(shop.app) as session:
        session.execute(insert(2))
        orm.publish(session, shop.topic, b"2", partition=0)
        driver: Any = session.connection().connection.driver_connection
        shop.connection.execute("select pg_terminate_backend(%s)", [driver.info.backend_pid])
        wait_until(lambda: not backend(shop, driver.info.backend_pid))
        with pytest.raises(sqlalchemy.exc.OperationalError) as lost:
            session.commit()
    assert lost.value.connection_invalidated
    commit(shop, number=3)
    assert shop.seen() == ([b"1", b"3"], [1, 3])


def backend(shop: Shop, pid: int) -> bool:
    return bool(shop.connection.execute("select from pg_stat_activity where pid = %s", [pid]).rowcount)


def test_a_savepoint_of_another_listener_takes_nothing_back(shop: Shop, ways: list[object]) -> None:
    commit(shop)

    def listener(connection: sqlalchemy.Connection) -> None:
        nested = connection.begin_nested()
        connection.execute(insert(3))
        nested.rollback()

    sqlalchemy.event.listen(shop.app, "commit", listener)
    commit(shop, number=2)
    assert (ways, shop.seen()) == ([True, True], ([b"1", b"2"], [1, 2]))


def test_a_refused_record_takes_all_back(shop: Shop, ways: list[object]) -> None:
    commit(shop)
    shop.client.topics.alter(shop.topic, max_message_bytes=100)
    with Session(shop.app) as session:
        session.execute(insert(2))
        orm.publish(session, shop.topic, b"x" * 90, headers={"a": b"x"})
        session.execute(text("select 1"))
        shop.client.topics.alter(shop.topic, max_message_bytes=80)
        with pytest.raises(errors.RecordTooLarge):
            session.commit()
        session.rollback()
        assert session.execute(text("select 1")).scalar() == 1
    assert ways == [True, errors.RecordTooLarge]
    assert shop.seen() == ([b"1"], [1])


def test_a_block_of_the_drivers_keeps_its_own_refusal(shop: Shop, ways: list[object]) -> None:
    """psycopg allows no COMMIT in a block of `transaction()`."""
    with Session(shop.app) as session:
        session.execute(insert(1))
        orm.publish(session, shop.topic, b"x")
        driver: Any = session.connection().connection.driver_connection
        with pytest.raises(sqlalchemy.exc.ProgrammingError), driver.transaction():
            session.commit()
    assert (ways, shop.seen()) == ([], ([], []))


def test_an_interrupt_of_a_commit_that_waits_ends_it(
    shop: Shop, ways: list[object], open_connection: Callable[[], Connection]
) -> None:
    """As psycopg's: it has the server cancel, reads the answer, and raises."""
    commit(shop)
    holder = open_connection()
    holder.execute("begin")
    holder.execute("select msgtx.lock_partition(partition_id) from msgtx.partition")
    with Session(shop.app) as session:
        session.execute(insert(7))
        orm.publish(session, shop.topic, b"7", partition=0)
        ended = threading.Event()

        def interrupt() -> None:
            wait_until(lambda: waiting(shop), "the COMMIT waits")
            while not ended.is_set():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                ended.wait(1.0)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            session.commit()
        ended.set()
        thread.join()
    holder.execute("rollback")
    commit(shop, number=2)
    assert ways == [True, KeyboardInterrupt, True]
    assert shop.seen() == ([b"1", b"2"], [1, 2])


def waiting(shop: Shop) -> bool:
    return bool(shop.connection.execute("select from pg_locks where not granted and locktype = 'advisory'").rowcount)
