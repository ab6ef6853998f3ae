"""Fixtures of the tests for asyncio: topics, readers, and calls that wait until the event loop lets them go."""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterator

import pytest

import msgtx
from tests.databases import LOOK_SECONDS, PATIENCE_SECONDS, Connection
from tests.store.steps import unique

Waits = Callable[[], Awaitable[None]]
Values = Callable[[str], list[bytes | None]]
Rows = Callable[[], list[int]]
Held = Callable[..., contextlib.AbstractContextManager[Waits]]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture
def topic(client: msgtx.Client) -> str:
    """A topic of one partition."""
    name = unique("topic")
    client.topics.create(name)
    return name


@pytest.fixture
def wide(client: msgtx.Client) -> str:
    """A topic of three partitions."""
    name = unique("wide")
    client.topics.create(name, partitions=3)
    return name


@pytest.fixture
def values(client: msgtx.Client) -> Values:
    """The committed values of a topic now."""
    return lambda topic: [record.value for record in client.read(client.snapshot([topic]))]


@pytest.fixture
def held(connection: Connection, open_connection: Callable[[], Connection]) -> Held:
    """Hold a topic's partitions, a producer or a group until the block ends: `with held(topic=topic) as waits`.

    `await waits()` returns when a session waits for it, and for no other lock. The event loop sees that only if it keeps
    running.
    """

    blocked = "select from pg_stat_activity where %s = any(pg_blocking_pids(pid))"

    @contextlib.contextmanager
    def hold(*, topic: str | None = None, producer_id: int | None = None, group: str | None = None) -> Iterator[Waits]:
        holder = open_connection()
        holder.execute("begin")
        if topic is not None:
            holder.execute("select msgtx.lock_partition(partition_id) from msgtx.partitions where topic = %s", [topic])
        if producer_id is not None:
            holder.execute("select msgtx.lock_producer(%s)", [producer_id])
        if group is not None:
            holder.execute("select msgtx.lock_group(%s)", [group])

        async def waits() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not connection.execute(blocked, [holder.info.backend_pid]).rowcount:
                    await asyncio.sleep(LOOK_SECONDS)

        try:
            yield waits
        finally:
            holder.execute("rollback")

    return hold


@pytest.fixture
def rows(connection: Connection) -> Rows:
    """The rows of a user's table, which is created anew."""
    connection.execute("drop table if exists account")
    connection.execute("create table account (id int primary key, amount int)")
    return lambda: [number for (number,) in connection.execute("select id from account order by id").fetchall()]
