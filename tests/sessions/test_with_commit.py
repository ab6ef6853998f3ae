"""Records that go with a user's COMMIT, in one round trip; and what makes them go another way, with the same outcome."""

from collections.abc import Callable
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


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What became of each attempt to send records with the COMMIT: True, False, or its error."""
    made: list[object] = []
    original = enlistment.append_and_commit

    def noted(*arguments: Any) -> bool:
        try:
            made.append(original(*arguments))
        except BaseException as error:
            made.append(type(error))
            raise
        return made[-1] is True

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


def test_what_a_deferred_trigger_publishes_comes_along(shop: Shop, ways: list[object]) -> None:
    """Its partitions are locked in one round with the others (P32), so all is staged."""
    shop.connection.execute(
        "create function pg_temp.tell() returns trigger language plpgsql as $$ begin"
        f" perform msgtx.publish('{shop.topic}', value => 'of a trigger', partition => 1); return null; end $$"
    )
    name = shop.connection.execute("select pg_my_temp_schema()::regnamespace::text").fetchall()[0][0]
    shop.connection.execute(
        "create constraint trigger tells after insert on orders deferrable initially deferred"
        f" for each row execute function {name}.tell()"
    )
    try:
        commit(shop)
    finally:
        shop.connection.execute("drop trigger tells on orders")
    assert ways == [False]
    assert shop.seen() == ([b"1", b"of a trigger"], [1])


def test_a_deferred_constraint_that_fails_is_the_users_error(shop: Shop, ways: list[object]) -> None:
    commit(shop)
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        commit(shop)
    commit(shop, number=2)
    assert ways == [True, psycopg.errors.UniqueViolation, True]
    assert shop.seen() == ([b"1", b"2"], [1, 2])


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
    shop: Shop, ways: list[object], open_connection: Callable[[], Connection], background: Any
) -> None:
    """As psycopg's: it has the server cancel, reads the answer, and raises."""
    commit(shop)
    somebody = open_connection()
    somebody.execute("begin")
    somebody.execute("insert into orders (number) values (7)")
    with Session(shop.app) as session:
        session.execute(insert(7))
        orm.publish(session, shop.topic, b"7", partition=0)
        driver: Any = session.connection().connection.driver_connection
        wait = driver.wait

        def interrupted(generator: Any, *rest: Any) -> Any:
            def raising() -> Any:
                started = generator.send(None)
                wait_until(lambda: waiting(shop), "the COMMIT waits")
                driver.wait = wait
                driver.cancel()
                return (yield from resumed(generator, started))

            return wait(raising(), *rest)

        driver.wait = interrupted
        with pytest.raises(sqlalchemy.exc.OperationalError):
            session.commit()
    somebody.execute("rollback")
    commit(shop, number=2)
    assert ways == [True, psycopg.errors.QueryCanceled, True]
    assert shop.seen() == ([b"1", b"2"], [1, 2])


def resumed(generator: Any, started: Any) -> Any:
    ready = yield started
    while True:
        try:
            ready = yield generator.send(ready)
        except StopIteration as done:
            return done.value


def waiting(shop: Shop) -> bool:
    return bool(shop.connection.execute("select from pg_locks where not granted and locktype = 'transactionid'").rowcount)
