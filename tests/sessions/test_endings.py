"""A SQL transaction that ends below SQLAlchemy commits nothing of msgtx's: it would part from its rows (I10)."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import TopicPartition, aio, orm
from msgtx.session.enlistment import BrokenSession
from tests.sessions.conftest import Order, Shop, application_url

Way = Callable[[Session], object]
SECONDS = 30.0
_numbers = itertools.count()
SETTINGS: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


def add(session: Session) -> None:
    session.execute(sqlalchemy.insert(Order).values(number=next(_numbers)))


def driver(session: Session) -> psycopg.Connection[Any]:
    found: Any = session.connection().connection.driver_connection
    return found  # type: ignore[no-any-return]


def says(statement: str, *, more: bool = False) -> Way:
    def way(session: Session) -> None:
        session.execute(text(statement))
        if more:
            add(session)

    return way


def in_libpq(session: Session) -> None:
    driver(session).pgconn.exec_(b"rollback")
    add(session)


def by_itself(session: Session) -> None:
    connection = driver(session)
    connection.rollback()
    connection.autocommit = True
    connection.execute("insert into orders (number) values (2)")
    connection.autocommit = False


def in_a_block(session: Session) -> None:
    connection = driver(session)
    connection.rollback()
    with connection.transaction():
        connection.execute("insert into orders (number) values (2)")


WAYS: dict[str, Way] = {
    **{statement: says(statement) for statement in ("rollback", "commit", "END", "abort", "rollback work")},
    **{f"{statement}, and more": says(statement, more=True) for statement in ("rollback", "commit")},
    **{statement: says(statement) for statement in ("commit and chain", "ROLLBACK AND CHAIN", "commit; begin")},
    **{statement: says(statement) for statement in (
        "rollback; begin; alter table orders rename to new; alter table new rename to orders",
        "rollback and chain /* to begin with */",
    )},
    "the driver's rollback": lambda session: driver(session).rollback(),
    "the driver's commit, and more": lambda session: (driver(session).commit(), add(session)),
    "the pool's rollback": lambda session: session.connection().connection.rollback(),
    "a cursor": lambda session: driver(session).execute("rollback"),
    "a cursor, and more": lambda session: (driver(session).execute("rollback"), add(session)),
    "libpq": in_libpq,
    "autocommit": by_itself,
    "a block of its own": in_a_block,
}  # fmt: skip


@pytest.fixture
def filled(shop: Shop) -> str:
    """A topic that holds three records."""
    shop.send(*(b"%d" % number for number in range(3)))
    return shop.topic


@pytest.fixture
def output(shop: Shop) -> str:
    """A topic to send to."""
    return shop.make_topic()


@contextlib.contextmanager
def broken(session: Session, way: Way) -> Iterator[None]:
    """A session that is ended within, and whose commit is refused."""
    yield
    add(session)
    way(session)
    with pytest.raises(BrokenSession, match="was ended below SQLAlchemy"):
        session.commit()
    session.rollback()


def committed(client: msgtx.Client, group: str) -> int:
    """Return how far a group is on partition 0."""
    with client.consumer(group=group, enable_auto_commit=False) as consumer:
        found = consumer.committed([TopicPartition(group, 0)])[TopicPartition(group, 0)]
    return 0 if found is None else found.offset


SOME = ["rollback", "commit, and more", "the driver's rollback"]


@pytest.mark.parametrize("way", SOME)
def test_a_batch_is_handed_out_again(shop: Shop, filled: str, way: str) -> None:
    with shop.client.consumer(filled, group=filled, **SETTINGS) as consumer:
        with Session(shop.app) as session, broken(session, WAYS[way]), consumer.batch(session, SECONDS) as records:
            assert len(records) == 3
        assert committed(shop.client, filled) == 0
        with Session(shop.app) as session:
            with consumer.batch(session, SECONDS) as again:
                add(session)
            assert again == records
            session.commit()
    assert committed(shop.client, filled) == 3


@pytest.mark.parametrize("way", WAYS)
def test_what_is_published_is_not_there_without_its_rows(shop: Shop, way: str) -> None:
    with Session(shop.app) as session, broken(session, WAYS[way]):
        add(session)
        orm.publish(session, shop.topic, b"never")
    shop.publish(shop.app, b"a record")
    assert shop.seen()[0] == [b"a record"]


@pytest.mark.parametrize("way", SOME)
def test_offsets_and_answers_that_a_session_was_given_are_not_committed(shop: Shop, filled: str, way: str) -> None:
    shop.client.admin.shares.configure(f"{filled}-share", {"auto_offset_reset": "earliest"})
    with (
        shop.client.consumer(filled, group=filled, **SETTINGS) as consumer,
        shop.client.share_consumer(filled, group=f"{filled}-share", acknowledgement_mode="explicit") as share,
        Session(shop.app) as session,
    ):
        assert consumer.poll(SECONDS)
        records = share.poll(SECONDS)
        for record in records:
            share.acknowledge(record)
        with broken(session, WAYS[way]):
            consumer.commit(session=session)
            share.commit(session=session)
        assert committed(shop.client, filled) == 0
        assert shop.client.admin.shares.describe(f"{filled}-share").lag == 3


@pytest.mark.parametrize("way", SOME)
def test_a_transaction_that_a_session_was_to_commit_is_aborted(shop: Shop, output: str, way: str) -> None:
    with shop.client.producer(transactional_id=output) as producer:
        for _ in range(2):
            with Session(shop.app) as session, broken(session, WAYS[way]), producer.transaction(session=session):
                producer.send(output, b"never")
        with Session(shop.app) as session:
            with producer.transaction(session=session):
                producer.send(output, b"a record")
            session.commit()
    assert shop.seen(output)[0] == [b"a record"]


@pytest.mark.parametrize("failure", [msgtx.Stop(), msgtx.Retry(), msgtx.Skip()], ids=repr)
@pytest.mark.parametrize("way", SOME)
def test_a_worker_raises_whatever_becomes_of_records_that_fail(shop: Shop, filled: str, way: str, failure: Any) -> None:
    """To try the record again could commit its rows again."""
    calls: list[object] = []

    def handler(session: Session, record: msgtx.Record) -> None:
        calls.append(record)
        add(session)
        WAYS[way](session)

    factory = sessionmaker(shop.engine())
    with pytest.raises(BrokenSession, match="was ended below SQLAlchemy"):
        shop.client.process_into(factory, handler, filled, group=filled, failure=failure, idle_timeout=5)
    assert (len(calls), committed(shop.client, filled)) == (1, 0)


def test_a_worker_of_a_share_group_raises(shop: Shop, filled: str) -> None:
    shop.client.admin.shares.configure(filled, {"auto_offset_reset": "earliest"})
    with pytest.raises(BrokenSession):
        shop.client.process_into(
            sessionmaker(shop.engine()), lambda session, _: WAYS["rollback"](session), filled, group=filled, share_members=1,
            idle_timeout=5,
        )  # fmt: skip
    assert shop.client.admin.shares.describe(filled).lag == 3


@pytest.mark.parametrize("statement", ["rollback", "commit"])
@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
def test_an_async_session_is_watched_as_well(shop: Shop, filled: str, output: str, statement: str, level: str) -> None:
    async def handler(session: AsyncSession, _: msgtx.Record) -> None:
        await session.execute(text(statement))

    async def main() -> None:
        engine = create_async_engine(application_url(shop.url), isolation_level=level)
        async with await aio.connect(shop.url) as other, AsyncSession(engine) as session:
            await aio.publish(session, output, b"never")
            raw: Any = (await (await session.connection()).get_raw_connection()).driver_connection
            await session.execute(text("select 1"))
            await getattr(raw, statement)()
            with pytest.raises(BrokenSession):
                await session.commit()
            await session.rollback()
            await aio.publish(session, output, b"a record")
            await session.execute(text("select 1"))
            await session.commit()
            with pytest.raises(BrokenSession):
                await other.process_into(lambda: AsyncSession(engine), handler, filled, group=filled, idle_timeout=5)
        await engine.dispose()

    asyncio.run(main())
    assert shop.seen(output)[0] == [b"a record"]
    assert committed(shop.client, filled) == 0


def test_what_is_added_behind_the_end_is_refused_at_once(shop: Shop) -> None:
    with Session(shop.app) as session:
        orm.publish(session, shop.topic, b"1")
        add(session)
        session.execute(text("rollback"))
        with pytest.raises(BrokenSession):
            orm.publish(session, shop.topic, b"2")


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_what_ends_nothing_is_fine(shop: Shop, level: str) -> None:
    with Session(shop.engine(isolation_level=level)) as session:
        for number in range(2):
            session.execute(text("select 1"))
            orm.publish(session, shop.topic, b"%d" % number, partition=0)
            driver(session).notifies(timeout=0, stop_after=1)
            session.execute(text("savepoint mine"))
            session.execute(text("rollback to savepoint mine"))
            session.execute(text("release mine"))
            with contextlib.suppress(ZeroDivisionError), session.begin_nested():
                add(session)
                raise ZeroDivisionError
            with driver(session).transaction():
                driver(session).execute("select 'rollback'")
            with contextlib.suppress(sqlalchemy.exc.DBAPIError), session.begin_nested():
                session.execute(text("select 1 / 0"))
            session.execute(text("select 'commit and chain'"))
            session.commit()
            session.rollback()
            add(session)
            session.rollback()
    assert shop.seen() == ([b"0", b"1"], [])
