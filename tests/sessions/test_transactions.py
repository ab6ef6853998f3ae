"""producer.transaction(session=…): a long transaction that the user's COMMIT decides (internals: sessions; I6, I7)."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import Outcome, TopicPartition, errors, orm
from msgtx.observer import Observer
from tests.databases import wait_until
from tests.refusals import refuses
from tests.sessions.conftest import NARROW, Order, Shop, insert, refuse_the_next
from tests.store.steps import unique

pytestmark = pytest.mark.slow

SECONDS = 30.0


@pytest.fixture
def producer(shop: Shop) -> Iterator[msgtx.Producer]:
    with shop.producer(retry_backoff_ms=5) as made:
        yield made


def goes_on(producer: msgtx.Producer, session: Session, shop: Shop) -> None:
    """The next transactions of both kinds, and the session, are as good as new."""
    values, numbers = shop.seen()
    with producer.transaction():
        producer.send(shop.topic, b"plain", partition=2)
    session.add(Order(number=1_000))
    with producer.transaction(session=session):
        producer.send(shop.topic, b"session", partition=2)
    session.commit()
    assert shop.seen() == ([*values, b"plain", b"session"], [*numbers, 1_000])


# ── outcomes ──


def test_the_sessions_commit_decides(shop: Shop, producer: msgtx.Producer, session: Session) -> None:
    for number in range(3):
        session.add(Order(number=number))
        with producer.transaction(session=session) as transaction:
            for partition in range(3):
                producer.send(shop.topic, b"%d" % number, partition=partition)
            producer.flush(SECONDS)
            session.flush()
        assert shop.outcome(transaction.id) is Outcome.OPEN
        assert shop.seen() == ([b"%d" % i for i in range(number)] * 3, list(range(number)))
        session.commit()
        assert shop.outcome(transaction.id) is Outcome.COMMITTED
        assert shop.seen() == ([b"%d" % i for i in range(number + 1)] * 3, list(range(number + 1)))
    goes_on(producer, session, shop)


@pytest.mark.parametrize("ending", ["rollback", "close"])
def test_the_sessions_rollback_aborts_at_once(shop: Shop, producer: msgtx.Producer, session: Session, ending: str) -> None:
    session.add(Order(number=1))
    with producer.transaction(session=session) as transaction:
        producer.send(shop.topic, b"gone")
    getattr(session, ending)()
    assert shop.outcome(transaction.id) is Outcome.ABORTED
    assert shop.seen() == ([], [])
    goes_on(producer, session, shop)


def test_a_savepoint_that_is_rolled_back_aborts_what_was_sealed_in_it(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    session.add(Order(number=1))
    nested = session.begin_nested()
    with producer.transaction(session=session) as transaction:
        producer.send(shop.topic, b"gone")
    nested.rollback()
    assert shop.outcome(transaction.id) is Outcome.ABORTED
    with session.begin_nested(), producer.transaction(session=session):
        producer.send(shop.topic, b"kept")
    session.commit()
    assert shop.seen() == ([b"kept"], [1])
    goes_on(producer, session, shop)


def test_an_exception_in_the_block_aborts_and_leaves_the_session_alone(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    session.add(Order(number=1))
    with pytest.raises(KeyError), producer.transaction(session=session) as transaction:  # noqa: PT012 - the block raises at its end
        producer.send(shop.topic, b"gone")
        producer.flush(SECONDS)
        raise KeyError
    assert shop.outcome(transaction.id) is Outcome.ABORTED
    session.commit()
    assert shop.seen() == ([], [1])
    goes_on(producer, session, shop)


def test_a_block_in_which_nothing_was_sent_decides_nothing(shop: Shop, producer: msgtx.Producer, session: Session) -> None:
    session.add(Order(number=1))
    with producer.transaction(session=session) as transaction:
        pass
    with producer.transaction(session=session):  # at once: there is nothing to wait for
        producer.send(shop.topic, b"x")
    session.commit()
    assert shop.seen() == ([b"x"], [1])
    assert transaction.id == producer.transaction_id, "the number was not used up"
    goes_on(producer, session, shop)


def test_offsets_alone_ride_in_a_session(shop: Shop, producer: msgtx.Producer, session: Session) -> None:
    """P35; pending until the COMMIT."""
    group, place = unique("group"), TopicPartition(shop.topic, 0)
    for number, ending in ((3, "commit"), (7, "rollback"), (9, "commit")):
        with producer.transaction(session=session) as transaction:
            transaction.send_offsets({place: number}, group)
        with shop.client.consumer(group=group) as consumer:
            consumer.assign([place])
            before = consumer.committed([place], require_stable=False)
            assert before.get(place) is None or before[place].offset == 3
        getattr(session, ending)()
        with shop.client.consumer(group=group) as consumer:
            consumer.assign([place])
            assert consumer.committed([place])[place].offset == (9 if number == 9 else 3)


def test_records_and_decisions_of_several_producers_come_with_one_commit(shop: Shop, session: Session) -> None:
    """In either order: decisions first, producers ascending; then what is published."""
    producers = [shop.producer() for _ in range(2)]
    for each in producers:
        each.init_transactions()
    for order in (producers, producers[::-1]):
        before = len(shop.seen()[0])
        orm.publish(session, shop.topic, b"published", partition=0)
        for each in order:
            with each.transaction(session=session):
                each.send(shop.topic, b"sent", partition=0)
        assert len(shop.seen()[0]) == before
        session.commit()
        assert len(shop.seen()[0]) == before + 3
    for each in producers:
        goes_on(each, session, shop)
        session.execute(sqlalchemy.delete(Order))
        session.commit()
        each.close()


# ── the session ends inside the block ──


def test_a_commit_inside_the_block_is_refused_and_everything_is_taken_back(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    session.add(Order(number=1))
    with refuses(errors.IllegalState, reason="block"), producer.transaction(session=session) as transaction:
        producer.send(shop.topic, b"gone")
        producer.flush(SECONDS)
        session.commit()
    session.rollback()
    assert shop.outcome(transaction.id) is Outcome.ABORTED
    assert shop.seen() == ([], [])
    goes_on(producer, session, shop)


@pytest.mark.parametrize("sent", [True, False])
def test_a_rollback_inside_the_block_aborts_at_its_end(
    shop: Shop, producer: msgtx.Producer, session: Session, sent: bool
) -> None:
    """Also if the session has gone on meanwhile: its next transaction is not that of the block."""
    with pytest.raises(errors.TransactionAborted), producer.transaction(session=session) as transaction:  # noqa: PT012 - the block raises at its end
        if sent:
            producer.send(shop.topic, b"gone")
            producer.flush(SECONDS)
        session.rollback()
        session.add(Order(number=1))
        session.flush()
    assert shop.outcome(transaction.id) is (Outcome.ABORTED if sent else Outcome.UNKNOWN)
    session.commit()
    assert shop.seen() == ([], [1])
    goes_on(producer, session, shop)


def test_a_savepoint_that_is_rolled_back_inside_the_block_aborts_at_its_end(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    """The block has begun in it."""
    session.add(Order(number=1))
    nested = session.begin_nested()
    with pytest.raises(errors.TransactionAborted), producer.transaction(session=session) as transaction:  # noqa: PT012 - the block raises at its end
        producer.send(shop.topic, b"gone")
        producer.flush(SECONDS)
        nested.rollback()
    assert shop.outcome(transaction.id) is Outcome.ABORTED
    session.commit()
    assert shop.seen() == ([], [1])
    goes_on(producer, session, shop)


def test_a_producer_that_is_closed_inside_the_block_says_so_at_its_end(
    shop: Shop, producer: msgtx.Producer, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its transaction could not be aborted, and the session was rolled back."""

    def no_database(*_: object, **__: object) -> None:
        raise errors.DatabaseNotFound("database does not exist")

    with refuses(errors.IllegalState, reason="closed"), producer.transaction(session=session):
        producer.send(shop.topic, b"gone")
        producer.flush(SECONDS)
        session.rollback()
        monkeypatch.setattr("msgtx.producer.transaction.decide", no_database)
        producer.close()
    assert shop.seen() == ([], [])


def test_a_block_that_was_ended_by_name_leaves_nothing_to_the_session(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    session.add(Order(number=1))
    with producer.transaction(session=session):
        producer.send(shop.topic, b"gone")
        producer.abort_transaction()
    with producer.transaction(session=session):
        producer.send(shop.topic, b"kept")
    session.commit()
    assert shop.seen() == ([b"kept"], [1])
    goes_on(producer, session, shop)


# ── before the session's commit ──


def test_no_other_transaction_begins_until_the_session_has_ended(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    session.add(Order(number=1))
    with producer.transaction(session=session):
        producer.send(shop.topic, b"x", partition=0)
    refused: list[Callable[[], object]] = [
        producer.begin_transaction,
        producer.commit_transaction,
        lambda: producer.send(shop.topic, b"y"),
        producer.prepare_transaction,
        producer.init_transactions,
        producer.transaction(session=session).__enter__,
    ]
    for call in refused:
        with refuses(errors.IllegalState, reason="sealed"):
            call()
    session.commit()
    assert shop.seen() == ([b"x"], [1])
    goes_on(producer, session, shop)


def test_an_abort_before_the_sessions_commit_takes_its_rows_back(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    session.add(Order(number=1))
    with producer.transaction(session=session):
        producer.send(shop.topic, b"x")
    producer.abort_transaction()
    with pytest.raises(errors.TransactionAborted):
        session.commit()
    session.rollback()
    assert shop.seen() == ([], [])
    goes_on(producer, session, shop)


def test_past_its_timeout_the_commit_is_refused_and_the_rows_are_gone(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    for swept in (False, True):
        session.add(Order(number=1))
        with producer.transaction(timeout_ms=300, session=session) as transaction:
            producer.send(shop.topic, b"late")
        time.sleep(0.35)
        if swept:
            shop.client.sweep()
        with pytest.raises(errors.TransactionAborted):
            session.commit()
        assert shop.outcome(transaction.id) is Outcome.ABORTED
        session.rollback()
        assert shop.seen() == ([], [])
    goes_on(producer, session, shop)


def test_a_producer_that_is_fenced_before_the_commit_commits_nothing(shop: Shop, session: Session) -> None:
    """I7."""
    name = unique("id")
    session.add(Order(number=1))
    with shop.client.producer(transactional_id=name) as fenced:
        with fenced.transaction(session=session):
            fenced.send(shop.topic, b"zombie")
        with shop.client.producer(transactional_id=name) as successor:
            with pytest.raises(errors.TransactionAborted):
                session.commit()
            session.rollback()
            assert shop.seen() == ([], [])
            with pytest.raises(errors.ProducerFenced), fenced.transaction():
                fenced.send(shop.topic, b"zombie")
            goes_on(successor, session, shop)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("closed", ["producer", "client"])
def test_what_is_sealed_needs_its_producer_no_more(shop: Shop, session: Session, closed: str, ending: str) -> None:
    with msgtx.connect(shop.url) as other:
        session.add(Order(number=1))
        with other.producer(transactional_id=unique("id")) as producer:
            with producer.transaction(session=session) as transaction:
                producer.send(shop.topic, b"x")
            if closed == "client":
                other.close()
        getattr(session, ending)()
    assert shop.seen() == (([b"x"], [1]) if ending == "commit" else ([], []))
    wanted = Outcome.COMMITTED if ending == "commit" else Outcome.ABORTED
    assert shop.outcome(transaction.id) is wanted


def test_a_session_whose_connection_is_lost_aborts(
    shop: Shop, server: Any, producer: msgtx.Producer, session: Session
) -> None:
    session.add(Order(number=1))
    with producer.transaction(session=session) as transaction:
        producer.send(shop.topic, b"gone")
    pid = session.scalar(sqlalchemy.text("select pg_backend_pid()"))
    with server.administrator() as administrator:
        administrator.execute("select pg_terminate_backend(%s)", [pid])
    with pytest.raises((errors.DatabaseUnavailable, sqlalchemy.exc.OperationalError)):
        session.commit()
    session.rollback()
    assert shop.outcome(transaction.id) is Outcome.ABORTED
    assert shop.seen() == ([], [])
    goes_on(producer, session, shop)


def test_a_session_that_is_forgotten_leaves_the_producer_free(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    """Its pool rolls back what it holds."""
    forgotten = Session(shop.engine())
    with producer.transaction(session=forgotten) as transaction:
        producer.send(shop.topic, b"gone")
    connection = forgotten.connection()
    connection.invalidate()
    forgotten.close()
    assert shop.outcome(transaction.id) is Outcome.ABORTED
    goes_on(producer, session, shop)


def test_a_session_that_nobody_holds_any_more_leaves_the_producer_free(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    def forget() -> msgtx.TransactionId:
        with producer.transaction(session=shop.engine().connect()) as transaction:
            producer.send(shop.topic, b"gone")
        return transaction.id

    name = forget()
    gc.collect()
    goes_on(producer, session, shop)
    assert shop.outcome(name) is Outcome.ABORTED


def test_a_connection_that_nobody_holds_any_more_is_rolled_back_where_another_listener_refused_its_commit(
    shop: Shop, producer: msgtx.Producer
) -> None:
    """SQLAlchemy takes the transaction for ended, and such a pool gets the connection back as it is (I6)."""
    engine = shop.engine(**NARROW, pool_reset_on_return=None)

    def forget() -> msgtx.TransactionId:
        user = engine.connect()
        user.execute(insert(1))
        with producer.transaction(session=user) as transaction:
            producer.send(shop.topic, b"gone")
        with pytest.raises(ZeroDivisionError):
            user.commit()
        return transaction.id

    refuse_the_next(engine)
    name = forget()
    gc.collect()
    assert shop.outcome(name) is Outcome.ABORTED, "at once, not when the next one begins"
    with Session(engine) as session:
        goes_on(producer, session, shop)
    assert shop.seen()[1] == [1_000]


def test_how_the_session_has_ended_it_is_told_when_the_next_one_begins(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    told: list[str] = []

    class Watching(Observer):
        def transaction_ended(self, producer: object, outcome: str, seconds: float) -> None:
            told.append(outcome)

    shop.client.observe(Watching())
    for ending in (session.commit, session.rollback):
        with producer.transaction(session=session):
            producer.send(shop.topic, b"x")
        ending()
    producer.begin_transaction()
    assert told == ["committed", "aborted"]


def test_a_commit_whose_answer_is_lost_is_not_taken_for_an_abort(
    shop: Shop, producer: msgtx.Producer, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application gets an error; the producer asks for the outcome, and goes on with it."""
    session.add(Order(number=1))
    with producer.transaction(session=session) as transaction:
        producer.send(shop.topic, b"there", partition=0)
    orm.publish(session, shop.topic, b"there", partition=0)
    dialect = session.connection().dialect
    commit = dialect.do_commit

    def loses_the_answer(driver: Any) -> None:
        commit(driver)
        raise sqlalchemy.exc.OperationalError("COMMIT", {}, ConnectionError("lost"), connection_invalidated=True)

    with monkeypatch.context() as patched:
        patched.setattr(dialect, "do_commit", loses_the_answer)
        with pytest.raises(sqlalchemy.exc.OperationalError):
            session.commit()
    session.rollback()
    assert shop.seen() == ([b"there"] * 2, [1])
    assert shop.outcome(transaction.id) is Outcome.COMMITTED
    goes_on(producer, session, shop)


def test_a_deferred_constraint_that_fails_aborts(shop: Shop, producer: msgtx.Producer, session: Session) -> None:
    session.add_all([Order(number=1), Order(number=1)])
    with producer.transaction(session=session) as transaction:
        producer.send(shop.topic, b"gone")
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        session.commit()
    assert shop.outcome(transaction.id) is Outcome.ABORTED
    session.rollback()
    assert shop.seen() == ([], [])
    goes_on(producer, session, shop)


def test_of_two_decisions_of_which_one_is_refused_neither_is_made(
    shop: Shop, producer: msgtx.Producer, session: Session
) -> None:
    """And what is published with them is not there."""
    with shop.producer() as other:
        session.add(Order(number=1))
        names = []
        for each in (producer, other):
            with each.transaction(session=session) as transaction:
                each.send(shop.topic, b"gone")
            names.append(transaction.id)
        orm.publish(session, shop.topic, b"gone")
        other.abort_transaction()
        with pytest.raises(errors.TransactionAborted):
            session.commit()
        session.rollback()
        assert [shop.outcome(name) for name in names] == [Outcome.ABORTED] * 2
        assert shop.seen() == ([], [])
        goes_on(producer, session, shop)


# ── other sessions ──


@pytest.mark.parametrize("schema", [True, False])
def test_a_session_on_another_database_is_refused(
    shop: Shop, producer: msgtx.Producer, make_database: Callable[..., str], session: Session, schema: bool
) -> None:
    engine = shop.engine(make_database(schema=schema))
    with Session(engine) as elsewhere:
        if schema:  # the databases of these tests are copies of one
            elsewhere.execute(sqlalchemy.text("update msgtx.installation set incarnation = gen_random_uuid()"))
            elsewhere.commit()
        with (
            pytest.raises(errors.ConfigError, match="another msgtx" if schema else "msgtx db init"),
            producer.transaction(session=elsewhere),
        ):
            raise AssertionError("the block does not begin")
        assert elsewhere.scalar(sqlalchemy.text("select 1")) == 1
    goes_on(producer, session, shop)


def test_a_session_in_autocommit_or_two_phases_is_refused(shop: Shop, producer: msgtx.Producer, session: Session) -> None:
    for refused in (Session(shop.engine(isolation_level="AUTOCOMMIT")), Session(shop.engine(), twophase=True)):
        with refused, pytest.raises(errors.ConfigError), producer.transaction(session=refused):
            raise AssertionError("the block does not begin")
    goes_on(producer, session, shop)


def test_the_session_may_commit_in_another_thread(
    shop: Shop, producer: msgtx.Producer, session: Session, background: Any
) -> None:
    session.add(Order(number=1))
    with producer.transaction(session=session):
        producer.send(shop.topic, b"x")
    background.submit(session.commit).result()
    assert shop.seen() == ([b"x"], [1])
    goes_on(producer, session, shop)


def test_a_begin_during_the_sessions_commit_waits_for_it(
    shop: Shop, producer: msgtx.Producer, session: Session, background: Any
) -> None:
    """It does not abort what is being committed."""
    shop.connection.execute(
        "create or replace function slow() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.5); return null; end $$"
    )
    shop.connection.execute(
        "create constraint trigger slow after insert on orders deferrable initially deferred for each row"
        " execute function slow()"
    )
    try:
        session.add(Order(number=1))
        with producer.transaction(session=session) as transaction:
            producer.send(shop.topic, b"x", partition=0)
        commit = background.submit(session.commit)
        wait_until(
            lambda: shop.connection.execute("select from pg_stat_activity where wait_event = 'PgSleep'").fetchall(),
            "it commits",
        )
        with producer.transaction():
            assert shop.outcome(transaction.id) is Outcome.COMMITTED
            producer.send(shop.topic, b"y", partition=0)
        commit.result()
    finally:
        shop.connection.execute("drop trigger slow on orders")
    assert shop.seen() == ([b"x", b"y"], [1])


def test_threads_with_a_producer_and_a_session_each_do_not_wait_for_each_other(shop: Shop, background: Any) -> None:
    app = shop.engine(pool_size=6, isolation_level="REPEATABLE READ")
    start = threading.Barrier(6)

    def work(thread: int) -> None:
        with shop.producer() as producer:
            start.wait(SECONDS)
            for number in range(5):
                with Session(app) as session:
                    session.add(Order(number=10 * thread + number))
                    with producer.transaction(session=session):
                        producer.send(shop.topic, b"%d" % thread, partition=number % 3)
                    orm.publish(session, shop.topic, b"%d" % thread, partition=(number + 1) % 3)
                    session.commit()

    for done in [background.submit(work, thread) for thread in range(6)]:
        done.result()
    values, numbers = shop.seen()
    assert len(numbers) == 30
    assert sorted(values) == sorted([b"%d" % thread for thread in range(6)] * 10)  # type: ignore[type-var]  # none is null
