"""Async connections of drivers: psycopg's and asyncpg's, alone and from pools. Rows and offsets are one commit (I6, I10)."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

import msgtx
from msgtx import DeadLetter, Skip, Stop, aio, errors
from tests.aio.conftest import Rows, Values
from tests.databases import Connection
from tests.refusals import refuses

SECONDS = 30.0
Factory = Callable[[], Any]


@dataclass(frozen=True)
class Driver:
    """How a driver is used. `blank`: its placeholder."""

    connect: Callable[[str], Any]
    pool: Callable[[str], Any]
    blank: str

    async def insert(self, connection: Any, number: int) -> None:
        parameters: Any = (number,) if self.blank == "$1" else ([number],)
        await connection.execute(f"insert into account (id) values ({self.blank})", *parameters)

    @contextlib.asynccontextmanager
    async def opened(self, url: str) -> AsyncIterator[Any]:
        """A connection in a SQL transaction, which ends with the block."""
        connection = await self.connect(url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()


def psycopgs_pool(url: str) -> Any:
    import psycopg_pool

    return psycopg_pool.AsyncConnectionPool(url, min_size=1, max_size=2, open=False)


def asyncpgs(url: str) -> Any:
    import asyncpg

    return asyncpg.connect(url)


def asyncpgs_pool(url: str) -> Any:
    import asyncpg

    return asyncpg.create_pool(url, min_size=1, max_size=2)


DRIVERS = {
    "psycopg": Driver(psycopg.AsyncConnection.connect, psycopgs_pool, "%s"),
    "asyncpg": Driver(asyncpgs, asyncpgs_pool, "$1"),
}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


async def work(url: str, topic: str, factory: Factory, handler: Any, **options: Any) -> msgtx.ProcessReport:
    async with await aio.connect(url) as client:
        return await client.process_into(factory, handler, topic, **{"group": topic, "idle_timeout": 0.3, **options})


def send(client: msgtx.Client, topic: str, *values: bytes) -> None:
    with client.producer() as producer:
        for value in values:
            producer.send(topic, value, partition=0)


def lag(client: msgtx.Client, topic: str) -> int:
    return client.admin.groups.describe(topic).lag


def storing(driver: Driver) -> Any:
    async def store(connection: Any, record: msgtx.Record) -> None:
        await driver.insert(connection, int(record.value or b""))

    return store


async def test_a_record_comes_with_the_row(
    driver: Driver, database_url: str, topic: str, rows: Rows, values: Values
) -> None:
    async with driver.opened(database_url) as connection:
        await aio.publish(connection, topic, b"x", key=b"k", headers=[("a", b"\xff")])
        await driver.insert(connection, 1)
        assert (values(topic), rows()) == ([], [])
    assert (values(topic), rows()) == ([b"x"], [1])
    with contextlib.suppress(ZeroDivisionError):
        async with driver.opened(database_url) as connection:
            await aio.publish(connection, topic, b"gone")
            raise ZeroDivisionError
    assert values(topic) == [b"x"]


async def test_what_cannot_hold_a_record_is_refused(driver: Driver, database_url: str, topic: str) -> None:
    connection = await driver.connect(database_url)
    if driver.blank == "%s":
        await connection.set_autocommit(True)
    with refuses(errors.ConfigError, reason="autocommit"):
        await aio.publish(connection, topic, b"x")
    async with connection.transaction():
        with refuses(errors.UnknownTopicOrPartition, topic="no-such-topic"):
            await aio.publish(connection, "no-such-topic", b"x")
    await connection.close()
    with refuses(errors.IllegalState, reason="closed"):
        await aio.publish(connection, topic, b"x")


async def test_rows_and_offsets_of_a_batch_come_with_one_commit(
    driver: Driver, client: msgtx.Client, database_url: str, topic: str, rows: Rows
) -> None:
    send(client, topic, b"1", b"2", b"3")
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 1}
    async with await aio.connect(database_url) as loop, loop.consumer(topic, group=topic, **settings) as consumer:
        for number in (1, 2):
            with contextlib.suppress(ZeroDivisionError):  # once, the SQL transaction is rolled back
                async with driver.opened(database_url) as connection:
                    async with consumer.batch(connection, SECONDS) as records:
                        await driver.insert(connection, int(records[0].value or b""))
                    if number == 1:
                        raise ZeroDivisionError
        assert (rows(), lag(client, topic)) == ([1], 2)


async def test_a_commit_within_the_block_is_refused(
    driver: Driver, client: msgtx.Client, database_url: str, topic: str, rows: Rows
) -> None:
    send(client, topic, b"1")
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with await aio.connect(database_url) as loop, loop.consumer(topic, group=topic, **settings) as consumer:
        with pytest.raises(Exception, match=r"block|rolled back|manually|state"):  # noqa: PT012
            async with driver.opened(database_url) as connection, consumer.batch(connection, SECONDS):
                await driver.insert(connection, 1)
                await connection.execute("commit")
        assert (rows(), client.admin.groups.offsets(topic)) == ([], {})


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_worker_writes_each_row_once(
    driver: Driver, pooled: bool, client: msgtx.Client, database_url: str, topic: str, rows: Rows
) -> None:
    send(client, topic, *(b"%d" % number for number in range(20)))
    async with contextlib.AsyncExitStack() as stack:
        if pooled:
            pool = await stack.enter_async_context(driver.pool(database_url))
            factory = pool.acquire if driver.blank == "$1" else pool.connection
        else:
            factory = lambda: driver.connect(database_url)  # noqa: E731
        report = await work(database_url, topic, factory, storing(driver))
    assert (report.records_in, report.aborted, rows(), lag(client, topic)) == (20, 0, list(range(20)), 0)


async def test_a_record_that_fails_is_a_dead_letter(
    driver: Driver, client: msgtx.Client, database_url: str, topic: str, wide: str, rows: Rows, values: Values
) -> None:
    send(client, topic, b"1", b"poison", b"3")
    factory = lambda: driver.connect(database_url)  # noqa: E731
    await work(database_url, topic, factory, storing(driver), failure=DeadLetter(wide, after=0))
    assert (rows(), values(wide), lag(client, topic)) == ([1, 3], [b"poison"], 0)


async def test_a_handler_that_ends_the_transaction_has_failed(
    driver: Driver, client: msgtx.Client, database_url: str, topic: str, rows: Rows
) -> None:
    send(client, topic, b"1")
    for word in ("commit", "rollback"):

        async def handler(connection: Any, record: msgtx.Record, word: str = word) -> None:
            await driver.insert(connection, 1)
            await connection.execute(word)

        with pytest.raises(errors.IllegalState):
            await work(database_url, topic, lambda: driver.connect(database_url), handler, failure=Stop())
        assert (rows(), lag(client, topic)) == ([], 1)


async def test_a_commit_that_fails_leaves_no_offset(
    driver: Driver, client: msgtx.Client, connection: Connection, database_url: str, topic: str, rows: Rows
) -> None:
    connection.execute(
        "alter table account drop constraint account_pkey, add primary key (id) deferrable initially deferred"
    )
    send(client, topic, b"1", b"2", b"3")

    async def handler(connection: Any, record: msgtx.Record) -> None:
        await driver.insert(connection, int(record.value or b""))
        if record.value == b"2":
            await driver.insert(connection, 2)

    report = await work(database_url, topic, lambda: driver.connect(database_url), handler, failure=Skip(0))
    assert (rows(), report.failed, lag(client, topic)) == ([1, 3], 1, 0)


async def test_a_connection_that_is_lost_is_another_try(
    driver: Driver, client: msgtx.Client, connection: Connection, database_url: str, topic: str, rows: Rows
) -> None:
    send(client, topic, b"1", b"2")
    ended: list[str] = []

    async def handler(given: Any, record: msgtx.Record) -> None:
        await driver.insert(given, int(record.value or b""))
        if record.value == b"2" and not ended:
            ended.append("the other one")
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
                " where query like 'insert into account%' and pid <> pg_backend_pid()"
            )

    report = await work(database_url, topic, lambda: driver.connect(database_url), handler)
    assert (rows(), report.aborted, lag(client, topic)) == ([1, 2], 1, 0)
