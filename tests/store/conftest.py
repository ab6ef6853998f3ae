"""Fixtures of the tests of the store."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests.databases import Background, Clock, Connection, Sessions, backend, wait_for_lock
from tests.store.steps import TABLES, Writer, expire_transactions, new_partition, unique

Settings = Callable[..., None]
Blocked = Callable[..., Future[Any]]


@pytest.fixture
def bare(connection: Connection) -> None:
    """No row of another test is left: a sweep looks at all there is."""
    connection.execute(f"truncate {', '.join(f'msgtx.{table}' for table in TABLES)} cascade")
    connection.execute("update msgtx.coordinator_shard set coordinator_id = null, coordinator_epoch = 0, leased_at = null")


@pytest.fixture
def partition(connection: Connection) -> int:
    """The partition of a new topic that has one."""
    return new_partition(connection)


@pytest.fixture
def writer(connection: Connection) -> Writer:
    """A new transactional producer."""
    return Writer(connection)


@pytest.fixture
def session(open_connection: Sessions) -> Connection:
    """Another session than that of `connection`."""
    return open_connection()


@pytest.fixture
def group() -> str:
    """The name of a group that does not exist yet."""
    return unique("group")


@pytest.fixture
def blocked(open_connection: Sessions, background: Background) -> Blocked:
    """Begin a call in a session of its own, and wait until it waits for a lock: `blocked(append_one, row).result(30)`."""

    def begin(function: Callable[..., Any], *arguments: object, **named: object) -> Future[Any]:
        session = open_connection()
        call = background.submit(function, session, *arguments, **named)
        wait_for_lock(open_connection(), backend(session))
        return call

    return begin


@pytest.fixture
def nothing_left_open(connection: Connection, clock: Clock) -> None:
    """No transaction of another test is open: a look at what is overdue would meet it."""
    clock("1 day")
    expire_transactions(connection)
    clock(None)


@pytest.fixture
def settings(connection: Connection) -> Iterator[Settings]:
    """Change limits of the installation: `settings(lease_ms=500)`; afterwards they are as before."""
    before = connection.execute("select name, value from msgtx.setting").fetchall()

    def change(**values: int) -> None:
        for name, value in values.items():
            done = connection.execute("update msgtx.setting set value = %s where name = %s", [value, name])
            assert done.rowcount == 1, name

    yield change
    change(**dict(before))
