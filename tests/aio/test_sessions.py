"""Messages that an async session commits: `aio.publish`, `producer.transaction(session=…)`, `consumer.commit(session=…)`."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.ext.asyncio import async_sessionmaker as session_maker
from sqlalchemy.orm import Session

import msgtx
from msgtx import Outcome, aio, errors
from msgtx.session.cancellation import to_its_end
from tests.aio.conftest import Held, Rows, Values
from tests.databases import PATIENCE_SECONDS, Connection
from tests.refusals import refuses
from tests.store.steps import unique

pytestmark = pytest.mark.slow

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
EARLIEST = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    """An isolation level of the user's engine."""
    return str(request.param)


@contextlib.asynccontextmanager
async def engine_of(url: str, level: str = "READ COMMITTED") -> AsyncIterator[AsyncEngine]:
    address = sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")
    engine = create_async_engine(address, isolation_level=level)
    try:
        yield engine
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def sealing(url: str, level: str = "READ COMMITTED") -> AsyncIterator[tuple[aio.Client, aio.Producer, AsyncSession]]:
    """A transactional producer, its client, and a session that is to decide its transactions."""
    async with (
        await aio.connect(url) as client,
        client.producer(transactional_id=unique("id")) as producer,
        engine_of(url, level) as engine,
        AsyncSession(engine) as session,
    ):
        yield client, producer, session


async def insert(session: AsyncSession | AsyncConnection, number: int) -> None:
    await session.execute(text("insert into account values (:number, 1)"), {"number": number})


async def test_a_commit_brings_rows_and_records(
    database_url: str, wide: str, values: Values, rows: Rows, level: str
) -> None:
    async with engine_of(database_url, level) as engine, AsyncSession(engine) as session:
        for number in range(6):
            await insert(session, number)
            await aio.publish(session, wide, b"%d" % number, key=b"%d" % number, headers=[("at", b"%d" % number)])
            await aio.publish(session, wide, b"note", partition=2, timestamp=number, delay_ms=number)
            if number % 3 == 2:
                await session.commit()
        await insert(session, 99)
        await aio.publish(session, wide, b"never")
        await session.rollback()
    assert rows() == list(range(6))
    assert sorted(values(wide)) == sorted([b"%d" % number for number in range(6)] + [b"note"] * 6)


async def test_a_savepoint_takes_its_records_back(
    database_url: str, topic: str, values: Values, rows: Rows, level: str
) -> None:
    async with engine_of(database_url, level) as engine, AsyncSession(engine) as session:
        await insert(session, 1)
        await aio.publish(session, topic, b"1")
        with contextlib.suppress(ZeroDivisionError):
            async with session.begin_nested():
                await insert(session, 2)
                await aio.publish(session, topic, b"2")
                async with session.begin_nested():
                    await aio.publish(session, topic, b"3")
                raise ZeroDivisionError
        async with session.begin_nested():
            await aio.publish(session, topic, b"4")
        await session.commit()
    assert rows() == [1]
    assert values(topic) == [b"1", b"4"]


async def test_a_row_that_is_refused_publishes_nothing(
    database_url: str, topic: str, values: Values, rows: Rows, level: str, connection: Connection
) -> None:
    """At the statement, and at the COMMIT: a deferred constraint refuses after the records were written."""
    connection.execute("alter table account add constraint once unique (amount) deferrable initially deferred")

    async with engine_of(database_url, level) as engine, AsyncSession(engine) as session:
        await insert(session, 1)
        await aio.publish(session, topic, b"1")
        await session.commit()
        for number in (1, 2):
            await aio.publish(session, topic, b"never")
            with pytest.raises(DBAPIError):  # noqa: PT012 - the first at its statement, the second at the commit
                await insert(session, number)
                await session.commit()
            await session.rollback()
        await session.execute(text("delete from account"))
        await insert(session, 3)
        await aio.publish(session, topic, b"3")
        await session.commit()
    assert rows() == [3]
    assert values(topic) == [b"1", b"3"]


async def test_a_session_that_meets_a_conflict_publishes_nothing(
    database_url: str, topic: str, values: Values, rows: Rows
) -> None:
    """Two serializable sessions that each read what the other writes: one of them commits."""

    async def outcome(session: AsyncSession) -> object:
        try:
            return await session.commit()
        except (DBAPIError, errors.MsgtxError) as error:
            return error

    async with (
        engine_of(database_url, "SERIALIZABLE") as engine,
        AsyncSession(engine) as first,
        AsyncSession(engine) as second,
    ):
        for at, session in enumerate((first, second)):
            await session.execute(text("select count(*) from account"))
            await insert(session, at)
            await aio.publish(session, topic, b"%d" % at)
        answers = [await outcome(session) for session in (first, second)]
        assert answers.count(None) == 1
        for session in (first, second):
            await session.rollback()
        await aio.publish(second, topic, b"again")
        await second.commit()
    (number,) = rows()
    assert values(topic) == [b"%d" % number, b"again"]


async def test_sessions_of_one_loop_commit_beside_each_other(
    database_url: str, wide: str, values: Values, rows: Rows, level: str
) -> None:
    async with engine_of(database_url, level) as engine:
        make = session_maker(engine)

        async def write(first: int) -> None:
            for number in range(first, first + 10):
                async with make() as session:
                    await insert(session, number)
                    await aio.publish(session, wide, b"%d" % number, key=b"%d" % number)
                    await session.commit()

        await asyncio.gather(*(write(10 * task) for task in range(4)))
    assert rows() == list(range(40))
    assert sorted(int(value or b"") for value in values(wide)) == list(range(40))


async def test_a_commit_that_waits_lets_the_event_loop_go_on(
    database_url: str, topic: str, values: Values, rows: Rows, held: Held, level: str
) -> None:
    """The partition becomes free only after the loop has seen that a session waits for it."""

    async with engine_of(database_url, level) as engine, AsyncSession(engine) as session:
        with held(topic=topic) as waits:
            await insert(session, 1)
            await aio.publish(session, topic, b"1")
            committing = asyncio.create_task(session.commit())
            await waits()
            assert not committing.done()
        await committing
    assert rows() == [1]
    assert values(topic) == [b"1"]


def test_work_that_fails_for_a_task_that_is_cancelled_is_no_error_that_nobody_asked_for() -> None:
    """The event loop would report it, when it is collected."""
    reported: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        begun, stopped = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            assert stopped.wait(PATIENCE_SECONDS)
            raise ZeroDivisionError

        task = asyncio.create_task(to_its_end(loop.run_in_executor(None, work), stop=stopped.set))
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()

    asyncio.run(main())
    assert reported == []


def test_a_commit_that_is_cancelled_brings_all_or_nothing(
    database_url: str, topic: str, values: Values, rows: Rows, held: Held, level: str
) -> None:
    async def main() -> None:
        async with engine_of(database_url, level) as engine:
            async with AsyncSession(engine) as session:
                with held(topic=topic) as waits:
                    await insert(session, 1)
                    await aio.publish(session, topic, b"1")
                    committing = asyncio.create_task(session.commit())
                    await waits()
                    committing.cancel()
                    with pytest.raises(asyncio.CancelledError):  # while it waits: later it may have committed
                        await committing
            async with AsyncSession(engine) as session:
                await insert(session, 2)
                await aio.publish(session, topic, b"2")
                await session.commit()

    asyncio.run(main())
    assert rows() == [2]
    assert values(topic) == [b"2"]


@pytest.mark.parametrize("goes_on", ["session", "another session"])
async def test_what_another_listener_keeps_from_its_commit_is_in_no_later_one(
    client: msgtx.Client, database_url: str, topic: str, wide: str, values: Values, rows: Rows, level: str, goes_on: str
) -> None:
    """I6, I10: neither its rows, nor what rides with them."""
    refusals = iter([ZeroDivisionError])

    def listener(_: sqlalchemy.Connection) -> None:
        for refusal in refusals:
            raise refusal

    with client.producer() as producer:
        producer.send(wide, b"first")
    settings = {"group": unique("group"), **EARLIEST}
    async with await aio.connect(database_url) as reader, reader.consumer(wide, **settings) as consumer:
        async with engine_of(database_url, level) as engine:
            sqlalchemy.event.listen(engine.sync_engine, "commit", listener)
            session = AsyncSession(engine)
            for number in (1, 2):
                async with consumer.batch(session, PATIENCE_SECONDS) as records:
                    await insert(session, number)
                    await aio.publish(session, topic, b"%d" % number)
                assert [record.value for record in records] == [b"first"]
                if number == 1:
                    with pytest.raises(ZeroDivisionError):
                        await session.commit()
                    await (session.rollback if goes_on == "session" else session.close)()
                else:
                    await session.commit()
            await session.close()
        assert sum(at.offset for at in (await consumer.committed()).values() if at is not None) == 1
    assert rows() == [2]
    assert values(topic) == [b"2"]


@pytest.mark.filterwarnings("ignore:The garbage collector is trying to clean up:sqlalchemy.exc.SAWarning")
def test_a_connection_that_nobody_holds_any_more_is_sqlalchemys_to_end(
    client: msgtx.Client, database_url: str, topic: str, values: Values, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """Where objects are collected nothing can be sent, so that SQLAlchemy drops it as it is: here it is closed by hand."""

    async def forget(engine: AsyncEngine) -> Any:
        user = await engine.connect()
        await insert(user, 1)
        await aio.publish(user, topic, b"gone")
        return (await user.get_raw_connection()).driver_connection

    async def main() -> None:
        async with engine_of(database_url) as engine:
            driver = await forget(engine)
            gc.collect()
            await driver.close()
            async with AsyncSession(engine) as session:
                await insert(session, 2)
                await aio.publish(session, topic, b"2")
                await session.commit()

    asyncio.run(main())
    assert rows() == [2]
    assert values(topic) == [b"2"]
    logged = [record.getMessage() for record in caplog.records]
    assert not any("reset" in message for message in logged), "SQLAlchemy logs what raises there"


async def test_a_connection_and_a_scoped_session_publish_as_well(
    database_url: str, topic: str, values: Values, rows: Rows
) -> None:
    async with engine_of(database_url) as engine:
        async with engine.begin() as connection:
            await insert(connection, 1)
            await aio.publish(connection, topic, b"1")
        scoped = async_scoped_session(session_maker(engine), scopefunc=asyncio.current_task)
        await scoped.execute(text("insert into account values (2, 1)"))
        await aio.publish(scoped, topic, b"2")
        await scoped.commit()
        await scoped.remove()
    assert rows() == [1, 2]
    assert values(topic) == [b"1", b"2"]


async def test_what_is_no_async_session_is_refused(database_url: str, topic: str) -> None:
    async with engine_of(database_url) as engine:
        with refuses(TypeError, name="session"):
            await aio.publish(Session(), topic, b"x")  # type: ignore[arg-type]
        with refuses(TypeError, name="session"):
            await aio.publish(None, topic, b"x")  # type: ignore[arg-type]
        async with AsyncSession(engine) as session:
            with refuses(TypeError, name="session"):
                msgtx.orm.publish(session, topic, b"x")  # type: ignore[arg-type]
            with pytest.raises(errors.UnknownTopicOrPartition):
                await aio.publish(session, "absent", b"x")
        alone = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with alone.connect() as connection:
            with refuses(errors.ConfigError, reason="autocommit"):
                await aio.publish(connection, topic, b"x")


def test_without_greenlet_only_sessions_are_missed(database_url: str, topic: str) -> None:
    program = (
        "import asyncio, sys\n"
        "sys.modules['greenlet'] = None\n"
        "from msgtx import aio, errors\n"
        "async def main():\n"
        "    async with await aio.connect(sys.argv[1]) as client, client.producer() as producer:\n"
        "        print((await (await producer.send(sys.argv[2], b'x'))).offset)\n"
        "    try:\n"
        "        await aio.publish(None, sys.argv[2], b'x')\n"
        "    except errors.ConfigError as error:\n"
        "        print(error)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, database_url, topic]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    offset, advice = done.stdout.splitlines()
    assert offset == "0"
    assert "pip install msgtx[async]" in advice


# ── long transactions, and offsets ──


async def test_a_session_decides_a_transaction(
    database_url: str, topic: str, values: Values, rows: Rows, level: str
) -> None:
    async with sealing(database_url, level) as (client, producer, session):
        for number in range(3):
            async with producer.transaction(session=session) as tx:
                for _ in range(2):
                    await producer.send(topic, b"%d" % number)
            assert await client.transaction_outcome(tx.id) is Outcome.OPEN
            with pytest.raises(errors.IllegalState):
                await producer.begin_transaction()
            await insert(session, number)
            await (session.rollback() if number == 1 else session.commit())
            assert await client.transaction_outcome(tx.id) is (Outcome.ABORTED if number == 1 else Outcome.COMMITTED)
    assert rows() == [0, 2]
    assert values(topic) == [b"0", b"0", b"2", b"2"]


def test_a_block_that_raises_or_is_cancelled_leaves_the_session_alone(
    database_url: str, topic: str, values: Values, rows: Rows
) -> None:
    async def main() -> None:
        async with (
            await aio.connect(database_url) as client,
            client.producer(transactional_id=unique("id")) as producer,
            engine_of(database_url) as engine,
            AsyncSession(engine) as session,
        ):
            await insert(session, 1)
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block raises at its end
                async with producer.transaction(session=session):
                    await producer.send(topic, b"never")
                    raise ZeroDivisionError
            with pytest.raises(TimeoutError):  # noqa: PT012 - the block is cancelled at its end
                async with asyncio.timeout(0.2), producer.transaction(session=session):
                    await producer.send(topic, b"never")
                    await producer.flush()
                    await asyncio.sleep(PATIENCE_SECONDS)
            with refuses(errors.TransactionAborted, reason="rolled back"):
                async with producer.transaction(session=session):
                    with refuses(errors.IllegalState, reason="block"):
                        await session.commit()
            await session.rollback()
            await insert(session, 2)
            async with producer.transaction(session=session):
                await producer.send(topic, b"2")
            await session.commit()

    asyncio.run(main())
    assert rows() == [2]
    assert values(topic) == [b"2"]


async def test_a_rollback_that_waits_lets_the_event_loop_go_on(
    database_url: str, topic: str, values: Values, rows: Rows, held: Held
) -> None:
    """Its sealed transaction is aborted at once, for which the producer must be free."""

    async with sealing(database_url) as (client, producer, session):
        async with producer.transaction(session=session) as tx:
            await producer.send(topic, b"never")
        with held(producer_id=tx.id.producer_id) as waits:
            rolling_back = asyncio.create_task(session.rollback())
            await waits()
            assert not rolling_back.done()
        await rolling_back
        assert await client.transaction_outcome(tx.id) is Outcome.ABORTED
    assert rows() == []
    assert values(topic) == []


async def test_a_transaction_that_waits_to_begin_lets_the_event_loop_go_on(
    database_url: str, topic: str, values: Values, rows: Rows, held: Held
) -> None:
    """The database is asked how the previous one ended."""

    async def write(producer: aio.Producer, session: AsyncSession, value: bytes) -> None:
        async with producer.transaction(session=session):
            await producer.send(topic, value)
        await insert(session, int(value))
        await session.commit()

    async with sealing(database_url) as (_, producer, session):
        await write(producer, session, b"1")
        assert producer.transaction_id is not None
        with held(producer_id=producer.transaction_id.producer_id) as waits:
            writing = asyncio.create_task(write(producer, session, b"2"))
            await waits()
            assert not writing.done()
        await writing
    assert rows() == [1, 2]
    assert values(topic) == [b"1", b"2"]


async def test_offsets_that_a_session_commits_make_rows_exactly_once(
    client: msgtx.Client, database_url: str, wide: str, rows: Rows, level: str
) -> None:
    with client.producer() as producer:
        for i in range(30):
            producer.send(wide, b"%d" % i, key=b"%d" % i)
    group = unique("group")
    async with await aio.connect(database_url) as reader, engine_of(database_url, level) as engine:
        tries = 0
        while len(rows()) < 30:
            async with reader.consumer(wide, group=group, **EARLIEST) as consumer, AsyncSession(engine) as session:
                for record in await consumer.poll(PATIENCE_SECONDS, max_records=4):
                    await insert(session, int(record.value or b""))
                await consumer.commit(session=session)
                tries += 1
                await (session.rollback() if tries % 3 == 2 else session.commit())
    assert rows() == list(range(30))


async def test_a_member_that_was_replaced_commits_nothing(
    client: msgtx.Client, database_url: str, topic: str, rows: Rows, level: str
) -> None:
    with client.producer() as producer:
        producer.send(topic, b"x")
    settings = {"group": unique("group"), "group_instance_id": "one", **EARLIEST}
    async with (
        await aio.connect(database_url) as reader,
        reader.consumer(topic, **settings) as zombie,
        engine_of(database_url, level) as engine,
        AsyncSession(engine) as session,
    ):
        (record,) = await zombie.poll(PATIENCE_SECONDS)
        await insert(session, record.offset)
        await zombie.commit(session=session)
        async with reader.consumer(topic, **settings):
            with pytest.raises(errors.MsgtxError):
                await session.commit()
    assert rows() == []
