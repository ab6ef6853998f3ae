"""`consumer.batch(session)`, and polling on behind what a session has not committed: nothing is skipped (I10)."""

import contextlib
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import msgtx
from msgtx import OffsetAndMetadata, TopicPartition, errors, orm
from tests.databases import wait_until, waiting_backends
from tests.interrupts import interrupts, require_each_once, write_rows
from tests.refusals import refuses
from tests.sessions.conftest import LEVELS, Order, Shop

pytestmark = pytest.mark.slow

SECONDS = 30.0


@pytest.fixture
def consumer(shop: Shop) -> Iterator[msgtx.Consumer]:
    """The only member of its group, two records per poll, from the beginning of ten: 0 to 9 in partition 0."""
    shop.send(*(b"%d" % number for number in range(10)))
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 2}
    with shop.client.consumer(shop.topic, group=shop.topic, **settings) as made:
        yield made


def committed(shop: Shop) -> int | None:
    """The group's offset in partition 0."""
    at = shop.client.admin.groups.offsets(shop.topic).get(TopicPartition(shop.topic, 0))
    return None if at is None else at.offset


def store(session: Session | sqlalchemy.Connection, records: list[msgtx.Record]) -> None:
    for record in records:
        session.execute(sqlalchemy.insert(Order).values(number=int(record.value or b"")))


def numbers(records: list[msgtx.Record]) -> list[int]:
    return [int(record.value or b"") for record in records]


def done(consumer: msgtx.Consumer, session: Session) -> list[int]:
    """Store the next batch, and commit it. Returns its numbers."""
    with consumer.batch(session, SECONDS) as records:
        store(session, records)
    session.commit()
    return numbers(records)


def test_a_worker_that_catches_what_it_should_not_loses_nothing(shop: Shop, consumer: msgtx.Consumer) -> None:
    """It goes on after an error, and after one in a COMMIT. Every other attempt fails, at another place each time."""
    engine = shop.engine()
    failures = iter(["before", "within", "", "after", "", "commit", "", "", "", ""])
    while shop.seen()[1] != list(range(10)):
        failure = next(failures)
        try:
            with Session(engine) as session:
                with consumer.batch(session, 10.0) as records:
                    if failure == "before":
                        raise ConnectionError("mail server")
                    store(session, records[:1])
                    if failure == "within":
                        raise ConnectionError("mail server")
                    store(session, records[1:])
                    if failure == "commit":  # its constraint is looked at by the COMMIT
                        store(session, records)
                if failure == "after":
                    raise ConnectionError("mail server")
                session.commit()
        except (ConnectionError, sqlalchemy.exc.IntegrityError):
            pass
    assert next(failures, None) == "", "each batch was handed out until it was committed, and not again"
    assert shop.client.admin.groups.describe(shop.topic).lag == 0


def test_rows_and_offsets_come_with_one_commit(shop: Shop, consumer: msgtx.Consumer, session: Session) -> None:
    for number in range(0, 10, 2):
        with consumer.batch(session, SECONDS) as records:
            assert numbers(records) == [number, number + 1]
            store(session, records)
        assert committed(shop) == (number or None)
        session.commit()
        assert (shop.seen()[1], committed(shop)) == (list(range(number + 2)), number + 2)
    with consumer.batch(session, 0.0) as records:
        assert records == []
    assert not session.in_transaction(), "nothing rides, and nothing was begun"


def test_several_batches_of_a_session_are_one_commit_or_none(shop: Shop, consumer: msgtx.Consumer, session: Session) -> None:
    for ending in (session.rollback, session.commit):
        for expected in ([0, 1], [2, 3], [4, 5]):
            with consumer.batch(session, SECONDS) as records:
                assert numbers(records) == expected
                store(session, records)
        ending()
    assert shop.seen()[1] == list(range(6))
    assert numbers(consumer.poll(SECONDS)) == [6, 7]


@pytest.mark.parametrize("kind", ["scoped_session", "Connection", "sessionmaker.begin", "connection.begin"])
def test_every_kind_of_session_takes_a_batch(shop: Shop, consumer: msgtx.Consumer, kind: str) -> None:
    for wanted in ([0, 1], [2, 3]):
        match kind:
            case "scoped_session":
                scoped = scoped_session(sessionmaker(shop.app))
                with consumer.batch(scoped, SECONDS) as records:
                    store(scoped(), records)
                scoped.commit()
                scoped.remove()
            case "Connection":
                with shop.app.connect() as connection:
                    with consumer.batch(connection, SECONDS) as records:
                        store(connection, records)
                    connection.commit()
            case "sessionmaker.begin":
                with sessionmaker(shop.app).begin() as session, consumer.batch(session, SECONDS) as records:
                    store(session, records)
            case _:
                with shop.app.begin() as connection, consumer.batch(connection, SECONDS) as records:
                    store(connection, records)
        assert numbers(records) == wanted
    assert shop.seen()[1] == [0, 1, 2, 3]


def test_a_commit_within_the_block_is_refused_since_its_rest_would_come_without_offsets(
    shop: Shop, consumer: msgtx.Consumer, session: Session
) -> None:
    with refuses(errors.IllegalState, reason="block"), consumer.batch(session, SECONDS) as records:
        store(session, records[:1])
        session.commit()
    session.rollback()
    done(consumer, session)
    assert shop.seen()[1] == [0, 1]


def test_what_a_failed_block_has_written_is_not_committed_without_its_offsets(
    shop: Shop, consumer: msgtx.Consumer, session: Session
) -> None:
    with pytest.raises(ZeroDivisionError), consumer.batch(session, SECONDS) as records:  # noqa: PT012
        store(session, records[:1])
        raise ZeroDivisionError
    with refuses(errors.IllegalState, reason="block"):
        session.commit()
    session.rollback()
    assert shop.seen()[1] == []
    done(consumer, session)
    assert shop.seen()[1] == [0, 1]


def test_a_batch_whose_block_has_failed_is_handed_out_again_before_its_session_ends(
    consumer: msgtx.Consumer, session: Session
) -> None:
    with pytest.raises(ZeroDivisionError), consumer.batch(session, SECONDS):
        raise ZeroDivisionError
    assert numbers(consumer.poll(SECONDS)) == [0, 1]
    session.rollback()
    assert numbers(consumer.poll(SECONDS)) == [2, 3]


def test_a_rollback_of_the_users_in_the_block_is_one(shop: Shop, consumer: msgtx.Consumer, session: Session) -> None:
    with consumer.batch(session, SECONDS) as records:
        store(session, records)
        session.rollback()
    session.commit()
    with refuses(errors.IllegalState, reason="rolled back"), consumer.batch(session, SECONDS) as records:
        assert numbers(records) == [0, 1]
        store(session, records[:1])
        session.rollback()  # as if this left out one record
        store(session, records[1:])
    session.rollback()
    assert shop.seen()[1] == []
    assert numbers(consumer.poll(SECONDS)) == [0, 1]


def test_a_savepoint_takes_its_batch_back_and_the_session_goes_on(
    shop: Shop, consumer: msgtx.Consumer, session: Session
) -> None:
    session.add(Order(number=100))
    with (  # noqa: PT012
        pytest.raises(ZeroDivisionError),
        session.begin_nested(),
        consumer.batch(session, SECONDS) as records,
    ):
        store(session, records)
        raise ZeroDivisionError
    with session.begin_nested(), consumer.batch(session, SECONDS) as records:
        store(session, records)
    session.commit()
    assert shop.seen()[1] == [0, 1, 100]


def test_a_savepoint_within_the_block_is_the_users_own(shop: Shop, consumer: msgtx.Consumer, session: Session) -> None:
    with consumer.batch(session, SECONDS) as records:
        for record in records:
            with session.begin_nested() as nested:
                store(session, [record])
                if record.value == b"0":
                    nested.rollback()
    session.commit()
    assert shop.seen()[1] == [1]
    assert numbers(consumer.poll(SECONDS)) == [2, 3]


def test_a_part_that_is_rolled_back_is_not_read_again_before_the_rest_is_decided(
    shop: Shop, consumer: msgtx.Consumer, session: Session
) -> None:
    """The group's offset lies before the rest, too: from there it would be handled twice in one commit."""
    with consumer.batch(session, SECONDS) as records:
        store(session, records)
    with (  # noqa: PT012
        pytest.raises(ZeroDivisionError),
        session.begin_nested(),
        consumer.batch(session, SECONDS) as records,
    ):
        store(session, records)
        raise ZeroDivisionError
    with refuses(errors.IllegalState, reason="partly rolled back"):
        consumer.poll(SECONDS)
    session.commit()
    assert done(consumer, session) == [2, 3]
    assert shop.seen()[1] == [0, 1, 2, 3]


def test_a_second_session_does_not_overtake_the_first(shop: Shop, consumer: msgtx.Consumer) -> None:
    """The second commits all positions, also of the partitions that the first has records of."""
    with shop.client.producer() as producer:
        producer.send(shop.topic, b"10", partition=1).result()
    with Session(shop.engine()) as first, Session(shop.engine()) as second:
        with consumer.batch(first, SECONDS) as records:
            store(first, records)
        with refuses(errors.IllegalState, reason="another session"), consumer.batch(second, SECONDS):
            pass
        first.rollback()
        while shop.seen()[1] != list(range(11)):
            with consumer.batch(second, SECONDS) as records:
                store(second, records)
            second.commit()


def test_a_rollback_while_the_next_batch_is_waited_for_takes_it_back_first(shop: Shop) -> None:
    """The session ends in another thread: what comes behind it would be written without offsets, and then once more."""
    settings: dict[str, Any] = {"group": shop.topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with (
        shop.client.producer() as producer,
        shop.client.consumer(shop.topic, **settings) as consumer,
        Session(shop.engine()) as first,
        Session(shop.engine()) as second,
        ThreadPoolExecutor(1) as threads,
    ):
        producer.send(shop.topic, b"0", partition=0).result(SECONDS)
        with consumer.batch(first, SECONDS) as records:
            store(first, records)
        consumer._waiter._waited = False
        going_on = threads.submit(done, consumer, second)
        wait_until(lambda: consumer._waiter._waited, "the next batch is waited for")
        first.rollback()
        producer.send(shop.topic, b"1", partition=0).result(SECONDS)
        found = going_on.result(SECONDS)
        assert found, "what is taken back is in it"
        while found != [0, 1]:
            found += done(consumer, second)
    assert shop.seen()[1] == [0, 1]


def test_a_second_session_does_not_overtake_a_commit_that_may_still_fail(shop: Shop, consumer: msgtx.Consumer) -> None:
    """It is made in another thread, and waits: for another row of the same number, as a constraint does at COMMIT."""
    with (
        Session(shop.engine()) as holder,
        Session(shop.engine()) as first,
        Session(shop.engine()) as second,
        ThreadPoolExecutor(1) as threads,
    ):
        holder.add(Order(number=0))
        holder.flush()
        with consumer.batch(first, SECONDS) as records:
            store(first, records)
        committing = threads.submit(first.commit)
        wait_until(lambda: waiting_backends(shop.connection), "the COMMIT waits")
        with refuses(errors.IllegalState, reason="another session"), consumer.batch(second, SECONDS):
            pass
        holder.commit()
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            committing.result(SECONDS)
    shop.connection.execute("delete from orders")
    with Session(shop.engine()) as session:
        while shop.seen()[1] != list(range(10)):
            done(consumer, session)


@pytest.mark.parametrize("then", ["closed", "forgotten", "invalidated", "used again"])
def test_a_session_that_has_committed_holds_no_other_up(shop: Shop, consumer: msgtx.Consumer, then: str) -> None:
    """Whatever becomes of its connection, though the driver's is in another SQL transaction."""
    engine = shop.engine(pool_size=1, max_overflow=1)
    first: sqlalchemy.Connection | None = engine.connect()
    assert first is not None
    with shop.producer() as producer:
        with consumer.batch(first, SECONDS) as records:
            store(first, records)
        with producer.transaction(session=first):
            producer.send(shop.topic, b"2", partition=1)
        first.commit()
        match then:
            case "closed":
                first.close()
            case "forgotten":
                first.close()
                first = None
            case "invalidated":
                first.invalidate()
            case _:
                first.execute(sqlalchemy.text("select 1"))
        gc.collect()
        with engine.connect() as second:
            second.execute(sqlalchemy.text("select 1"))
            with consumer.batch(second, SECONDS) as records:
                store(second, records)
            second.commit()
        if first is not None:
            first.close()
    assert shop.seen()[1] == [0, 1, 2, 3]


def test_a_statement_that_fails_during_the_commit_takes_no_offsets_back(shop: Shop, consumer: msgtx.Consumer) -> None:
    """In a savepoint of an event listener of the application, which is called after ours."""
    engine = shop.engine()

    def tries(connection: sqlalchemy.Connection) -> None:
        connection.execute(sqlalchemy.text("savepoint tried"))
        with contextlib.suppress(sqlalchemy.exc.ProgrammingError):
            connection.execute(sqlalchemy.text("select * from nowhere"))
        connection.execute(sqlalchemy.text("rollback to tried"))

    with Session(engine) as session:
        assert done(consumer, session) == [0, 1]
        sqlalchemy.event.listen(engine, "commit", tries)
        store(session, consumer.poll(SECONDS))
        consumer.commit(session=session)
        session.commit()
    assert shop.seen()[1] == [0, 1, 2, 3]
    assert numbers(consumer.poll(SECONDS)) == [4, 5]


@pytest.mark.parametrize("by", ["commit", "batch"])
def test_what_was_polled_behind_a_batch_that_was_rolled_back_cannot_ride(
    shop: Shop, consumer: msgtx.Consumer, by: str
) -> None:
    """Its position lies behind records whose rows are gone."""
    with Session(shop.engine()) as first, Session(shop.engine()) as second:
        if by == "commit":
            store(first, consumer.poll(SECONDS))
            consumer.commit(session=first)
        else:
            with consumer.batch(first, SECONDS) as records:
                store(first, records)
        store(second, consumer.poll(SECONDS))
        first.rollback()
        with refuses(errors.IllegalState, reason="rolled back"):
            consumer.commit(session=second)
        second.rollback()
        consumer.commit({TopicPartition(shop.topic, 0): 0}, session=second)  # what is named is the caller's to know
        second.rollback()
        consumer.rewind()
        while shop.seen()[1] != list(range(10)):
            store(second, consumer.poll(SECONDS))
            consumer.commit(session=second)
            second.commit()


def test_a_session_that_nobody_ended_is_a_rollback(shop: Shop, consumer: msgtx.Consumer) -> None:
    def forget() -> None:
        session = Session(shop.engine())
        with consumer.batch(session, SECONDS) as records:
            store(session, records)

    forget()
    gc.collect()
    assert numbers(consumer.poll(SECONDS)) == [0, 1]
    assert shop.seen()[1] == []


@pytest.mark.parametrize("polled", ["with it", "before"])
def test_records_that_could_not_ride_are_handed_out_again(shop: Shop, consumer: msgtx.Consumer, polled: str) -> None:
    def ride(session: Any) -> AbstractContextManager[object]:
        if polled == "with it":
            return consumer.batch(session, SECONDS)
        assert numbers(consumer.poll(SECONDS)) == [0, 1]
        return consumer.committing.riding(session)

    with Session(shop.engine(isolation_level="AUTOCOMMIT")) as by_itself:
        for wrong in ("session", by_itself):
            with pytest.raises((TypeError, errors.ConfigError)), ride(wrong):
                pass
    assert numbers(consumer.poll(SECONDS)) == [0, 1]


def test_a_seek_after_a_failure_is_kept(shop: Shop, consumer: msgtx.Consumer, session: Session) -> None:
    try:
        with consumer.batch(session, SECONDS):
            raise ZeroDivisionError
    except ZeroDivisionError:
        consumer.seek(TopicPartition(shop.topic, 0), 1)
    session.rollback()
    with consumer.batch(session, SECONDS) as records:
        assert numbers(records) == [1, 2]


@pytest.mark.parametrize("how", ["commit", "riding"])
def test_an_iteration_does_not_pass_what_was_rolled_back(
    shop: Shop, consumer: msgtx.Consumer, session: Session, how: str
) -> None:
    """I10: it goes back, or is refused as a poll is, before it hands out what was fetched behind that."""
    handled = []
    with refuses(errors.IllegalState, reason="rolled back") if how == "commit" else contextlib.nullcontext():
        for record in consumer:
            handled.append(record.offset)
            if how == "commit":
                consumer.commit(session=session)
            else:
                with consumer.committing.riding(session):
                    pass
            (session.rollback if len(handled) == 1 else session.commit)()
            if len(handled) == 4:
                break
    assert handled == ([0] if how == "commit" else [0, 0, 1, 2])
    assert committed(shop) == (None if how == "commit" else 3)


@pytest.mark.parametrize("way_on", ["rewind", "seek", "commit"])
@pytest.mark.parametrize("gone", ["rollback", "close", "refused", "forgotten"])
def test_polling_on_behind_offsets_that_were_rolled_back_is_refused(
    shop: Shop, consumer: msgtx.Consumer, way_on: str, gone: str
) -> None:
    """The loop of `poll` and `commit(session=…)`, around which the application catches everything."""
    session = Session(shop.engine())
    store(session, records := consumer.poll(SECONDS))
    consumer.commit(session=session)
    match gone:
        case "refused":
            session.add(Order(number=0))
            with pytest.raises(sqlalchemy.exc.IntegrityError):
                session.commit()
            session.close()
        case "forgotten":
            del session
            gc.collect()
        case _:
            getattr(session, gone)()
    for _ in range(2):
        with refuses(errors.IllegalState, group=shop.topic, reason="rolled back"):
            consumer.poll(SECONDS)
        with refuses(errors.IllegalState, reason="rolled back"):
            next(iter(consumer))
    with Session(shop.engine()) as session:
        match way_on:
            case "rewind":
                consumer.rewind()
                assert numbers(consumer.poll(SECONDS)) == [0, 1]
            case "seek":
                consumer.seek(TopicPartition(shop.topic, 0), 0)
                assert numbers(consumer.poll(SECONDS)) == [0, 1]
            case _:  # the same records once more, as they are in memory
                pass
        store(session, records)
        consumer.commit(session=session)
        session.commit()
    assert numbers(consumer.poll(SECONDS)) == [2, 3]
    assert (shop.seen()[1], committed(shop)) == ([0, 1], 2)


@pytest.mark.parametrize("by", ["hand", "session", "transaction"])
def test_no_later_commit_covers_a_batch_that_was_rolled_back(
    shop: Shop, consumer: msgtx.Consumer, session: Session, by: str
) -> None:
    """The next poll hands it out again: its offsets are not this consumer's to commit before."""
    with contextlib.suppress(ConnectionError), consumer.batch(session, SECONDS):
        raise ConnectionError("mail server")
    session.rollback()
    match by:
        case "hand":
            consumer.commit()
        case "session":
            consumer.commit(session=session)
            session.commit()
        case _:
            with shop.client.producer(transactional_id=shop.topic) as producer, producer.transaction() as transaction:
                transaction.send_offsets(consumer)
    assert not committed(shop)
    with consumer.batch(session, SECONDS) as records:
        assert numbers(records) == [0, 1]
    session.commit()
    assert committed(shop) == 2


def test_a_record_that_cannot_be_deserialized_hides_no_rollback(
    shop: Shop, consumer: msgtx.Consumer, session: Session
) -> None:
    """The session that had the records before it was rolled back: else the next commit would pass them."""
    consumer.close()
    settings: dict[str, Any] = {"group": shop.topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with shop.client.consumer(
        shop.topic, value_deserializer=lambda value: 1 // (value != b"2") and value, **settings
    ) as careful:
        for _ in range(2):
            with careful.batch(session, SECONDS, 2) as records:
                assert numbers(records) == [0, 1]
                store(session, records)
            with refuses(errors.DeserializationError, offset=2), careful.batch(session, SECONDS):
                pass
            session.rollback()


def test_a_rewind_ahead_of_the_rollback_counts(consumer: msgtx.Consumer, session: Session) -> None:
    store(session, consumer.poll(SECONDS))
    consumer.commit(session=session)
    consumer.rewind()
    session.rollback()
    assert numbers(consumer.poll(SECONDS)) == [0, 1]


def test_a_batch_that_lost_its_partitions_is_refused_with_its_rows(
    shop: Shop, consumer: msgtx.Consumer, session: Session
) -> None:
    """A rebalance in the middle: the member is gone, what it made is not committed, and it joins again (I11)."""
    with consumer.batch(session, SECONDS) as records:
        store(session, records)
        member = consumer.group_metadata().member_id
        shop.connection.execute("select msgtx.leave_group(%s, %s)", [shop.topic, member])
    with pytest.raises(errors.UnknownMember):
        session.commit()
    session.rollback()
    assert shop.seen()[1] == []
    assert done(consumer, session) == [0, 1]
    assert shop.seen()[1] == [0, 1]


def test_a_batch_whose_consumer_is_closed_by_another_thread_is_refused_with_its_rows(
    shop: Shop, consumer: msgtx.Consumer, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: as one that has left; its group has no members now, and would take offsets of none."""
    poll = consumer._polled

    def closed_behind_it(*arguments: Any) -> list[msgtx.Record]:
        records = poll(*arguments)
        consumer.close()
        return records

    monkeypatch.setattr(consumer, "_polled", closed_behind_it)
    with consumer.batch(session, SECONDS) as records:
        store(session, records)
    with pytest.raises(errors.UnknownMember):
        session.commit()
    session.rollback()
    assert shop.seen()[1] == []


def test_what_the_block_publishes_is_in_the_commit(shop: Shop, consumer: msgtx.Consumer, session: Session) -> None:
    output = shop.make_topic()
    for ending in (session.rollback, session.commit):
        with consumer.batch(session, SECONDS) as records:
            for record in records:
                orm.publish(session, output, record.value)
        ending()
    assert shop.seen(output)[0] == [b"0", b"1"]


@pytest.mark.parametrize("how", ["batch", "commit"])
def test_offsets_in_a_session_need_a_group_and_no_automatic_commits(shop: Shop, session: Session, how: str) -> None:
    for settings, complaint in (({}, "no group"), ({"group": shop.topic}, "enable_auto_commit")):
        with shop.client.consumer(shop.topic, **settings) as consumer:
            calls = {
                "batch": lambda: consumer.batch(session).__enter__(),
                "commit": lambda: consumer.commit(session=session),
            }
            with refuses(errors.IllegalState, reason=complaint):
                calls[how]()


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_commit_that_succeeded_without_an_answer_is_not_repeated(
    shop: Shop, consumer: msgtx.Consumer, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """The connection breaks between the COMMIT and its answer: the group's offsets tell what has become of it.

    Where SQLAlchemy sees that it is broken, the group has decided about the COMMIT before anything is read: the consumer is
    another member then.
    """
    engine = shop.engine()
    commit = engine.dialect.do_commit

    def breaks(connection: Any) -> None:
        commit(connection)
        if is_seen:
            connection.driver_connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    before = consumer.group_metadata().member_id
    with Session(engine) as session:
        with consumer.batch(session, SECONDS) as records:
            store(session, records)
        monkeypatch.setattr(engine.dialect, "do_commit", breaks)
        with pytest.raises(sqlalchemy.exc.OperationalError):
            session.commit()
        monkeypatch.undo()
    assert shop.seen()[1] == [0, 1]
    with Session(engine) as session:
        with consumer.batch(session, SECONDS) as records:
            assert numbers(records) == [2, 3]
            assert (consumer.group_metadata().member_id == before) is not is_seen
            store(session, records)
        session.commit()
    assert shop.seen()[1] == [0, 1, 2, 3]


def test_an_interruption_while_a_failed_commit_is_taken_back_skips_nothing(
    shop: Shop, consumer: msgtx.Consumer, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while what was sealed is aborted, which waits for the database; the batch is handed out again as well."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    shop.connection.execute("insert into orders (number) values (0)")
    with shop.producer() as producer:
        with producer.transaction(session=session):
            producer.send(shop.topic, b"10", partition=1)
        with consumer.batch(session, SECONDS) as records:
            store(session, records)
        with monkeypatch.context() as patch:
            patch.setattr("msgtx.producer.transaction.Transactions.resolve", interrupt)
            with pytest.raises(KeyboardInterrupt):
                session.commit()
        session.rollback()
        shop.connection.execute("delete from orders")
        assert done(consumer, session) == numbers(records) == [0, 1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a connection that was in use
def test_an_interrupt_at_any_line_of_a_batch_loses_and_repeats_nothing(shop: Shop) -> None:
    """The session that was interrupted is rolled back, or its commit is refused."""
    write_rows(shop.client, shop.topic)
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_bytes": 1}
    files = [f"consumer/{name}.py" for name in ("consumer", "offsets", "positions", "rides")]
    engine = shop.engine()
    with shop.client.consumer(shop.topic, group=shop.topic, max_poll_records=4, **settings) as consumer:
        got: list[msgtx.Record] = []
        for number, interrupt in enumerate(interrupts(*files, least=100)):
            with Session(engine) as session:
                records = []
                with interrupt, consumer.batch(session, SECONDS) as given:
                    records = given
                if interrupt.place is None or number % 2:  # who catches it within the session
                    with contextlib.suppress(errors.IllegalState):
                        session.commit()
                        got += records
            if interrupt.place is not None:
                consumer.rewind()
            with Session(engine) as session:
                with consumer.batch(session, SECONDS) as records:
                    pass
                session.commit()
                got += records
            require_each_once(got, interrupt)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a connection that was in use
@pytest.mark.parametrize("level", LEVELS[:2])  # above READ COMMITTED the lines are the same ones
def test_an_interrupt_at_any_line_of_a_commit_tears_nothing_apart(shop: Shop, level: str) -> None:
    """I6, I10: rows, what they publish and the offsets of what they were made of."""
    source, output = shop.make_topic(), shop.make_topic()
    with shop.client.producer() as producer:
        for number in range(400):
            producer.send(source, b"%d" % number)
    engine = shop.engine(pool_size=5, max_overflow=20, isolation_level=level)
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 2}
    with shop.client.consumer(source, group=source, **settings) as consumer:
        for interrupt in interrupts("session/enlistment.py", least=20):
            with Session(engine) as session:
                with consumer.batch(session, SECONDS) as records:
                    store(session, records)
                    for record in records:
                        orm.publish(session, output, record.value)
                with interrupt:
                    session.commit()
            messages, rows = shop.seen(output)
            assert rows == list(range(len(rows))) == [int(message or b"") for message in messages], interrupt.place
            found = consumer.committed()[TopicPartition(source, 0)]
            assert (0 if found is None else found.offset) == len(rows), interrupt.place


def test_metadata_of_a_ride_is_kept(shop: Shop, consumer: msgtx.Consumer, session: Session) -> None:
    with consumer.batch(session, SECONDS):
        consumer.commit({TopicPartition(shop.topic, 0): OffsetAndMetadata(2, "note")}, session=session)
    session.commit()
    assert consumer.committed()[TopicPartition(shop.topic, 0)] == OffsetAndMetadata(2, "note")
