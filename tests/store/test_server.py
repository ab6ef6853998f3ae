"""What an operator is told about the server: this database's sessions and locks beside those of others."""

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy

from msgtx.store.operator.installation import end_sessions
from msgtx.store.operator.server import (
    describe_lock_table,
    describe_notifications,
    describe_server,
    describe_sessions,
    lock_holders,
    snapshot_holders,
)
from tests.databases import Background, Connection, Server, backend, connect, wait_for_lock, wait_until
from tests.roles import Roles

Open = Callable[..., Connection]
GROUP, PARTITION, SHARE_PARTITION, OF_USERS = 1836279554, 1836279555, 1836279561, 1836279500
LOCK = "select pg_advisory_xact_lock(%s, %s)"


@pytest.fixture
def elsewhere(make_database: Callable[..., str]) -> str:
    return make_database(schema=False)


@pytest.fixture
def opened(database_url: str, elsewhere: str) -> Iterator[Open]:
    """Open sessions here, or `there`: in another database of the same server."""
    with contextlib.ExitStack() as stack:
        yield lambda *, there=False, **options: stack.enter_context(connect(elsewhere if there else database_url, **options))


@pytest.fixture
def administrator(server: Server, database_url: str) -> Iterator[Connection]:
    with server.administrator(sqlalchemy.make_url(database_url).database) as found:
        yield found


def test_only_sessions_that_may_use_msgtx_here_are_ended(
    connection: Connection, opened: Open, administrator: Connection
) -> None:
    """Whatever they call themselves. A superuser's is not ours to end."""
    gone = [opened(application_name="msgtx 1"), opened(application_name="billing"), opened()]
    there = opened(there=True, application_name="msgtx 2")
    ended, _ = end_sessions(connection)
    assert ended >= len(gone)
    for session in gone:
        wait_until(lambda one=session: not describe_sessions(connection, [one.info.backend_pid]), "the session has ended")
    for kept in (there, administrator):
        kept.execute("select 1")


def test_a_member_of_a_role_with_a_right_may_use_msgtx_too(
    connection: Connection, server: Server, database_url: str
) -> None:
    """Its session is not the owner's to end, and is counted."""
    roles = Roles(server, database_url)
    try:
        group, login, stranger = roles.make("consume:t", options="nologin"), roles.make(), roles.make()
        roles.sql(f"grant {group} to {login}")
        _, before = end_sessions(connection)
        with roles.connect(login), roles.connect(stranger):
            assert end_sessions(connection) == (0, before + 1)
    finally:
        roles.drop()


def test_only_those_sessions_here_are_described_that_are_asked_for(connection: Connection, opened: Open) -> None:
    asked, other, there = opened(), opened(), opened(there=True)
    (found,) = describe_sessions(connection, [backend(asked), backend(there)]).values()
    assert (found.pid, found.visible, found.state) == (backend(asked), True, "idle")
    assert describe_sessions(connection, [backend(other)]).keys() == {backend(other)}


def test_locks_are_those_of_this_program_here(connection: Connection, opened: Open, background: Background) -> None:
    """Those who wait are counted with whom they wait for."""
    first, second, third, waiting, there, user = (opened(there=at == 4) for at in range(6))
    with contextlib.ExitStack() as stack:
        for session in (waiting, connection, first, second, third, there, user):  # who waits ends last
            stack.enter_context(session.transaction())
        for session, namespace, key in (
            (first, PARTITION, 1), (first, SHARE_PARTITION, 1), (second, PARTITION, 2), (third, GROUP, 1),
            (there, PARTITION, 1), (user, OF_USERS, 1), (connection, PARTITION, 4),
        ):  # fmt: skip
            session.execute(LOCK, [namespace, key])
        user.execute("select pg_advisory_xact_lock(%s)", [PARTITION << 32 | 5])  # a user's, by one number
        done = background.submit(waiting.execute, LOCK, [PARTITION, 1])
        wait_for_lock(connection, backend(waiting))
        found = [
            (each.pid, each.locks, each.partitions, each.waiting, each.application_name) for each in lock_holders(connection)
        ]
        assert found[0] == (backend(first), 2, 1, 1, "")
        assert sorted(found[1:]) == sorted([(backend(second), 1, 1, 0, ""), (backend(third), 1, 0, 0, "")])
        first.execute("rollback")
        done.result()


def test_what_pins_the_horizon_here(connection: Connection, opened: Open, administrator: Connection) -> None:
    """A session that reads, one that has only written, and a slot that lasts."""
    reads, writes, idle, there = opened(), opened(), opened(), opened(there=True)
    slots = [f"tests_{os.getpid()}_{name}" for name in ("lasting", "passing")]
    with contextlib.ExitStack() as stack:
        for session in (reads, writes, there, connection):
            stack.enter_context(session.transaction())
        for session in (reads, there, connection):
            session.execute("set transaction isolation level repeatable read")
            session.execute("select 1")
        writes.execute("select pg_current_xact_id()")
        for name in slots:
            administrator.execute("select pg_create_physical_replication_slot(%s, true, %s)", [name, name == slots[1]])
        stack.callback(administrator.execute, "select pg_drop_replication_slot(%s)", [slots[0]])
        found = {each.pid or each.name: each for each in snapshot_holders(administrator)}
        assert {backend(reads), backend(writes), backend(connection), slots[0]} <= found.keys()
        assert not {backend(idle), backend(there), backend(administrator), slots[1]} & found.keys()
        assert found[slots[0]].kind == "slot"
        assert (found[slots[0]].retained or 0) >= 0
        assert (found[backend(writes)].kind, found[backend(writes)].age is None) == ("session", False)


def test_hidden_sessions_are_those_of_other_roles_here(
    connection: Connection, opened: Open, server: Server, administrator: Connection
) -> None:
    opened()
    with server.administrator():  # in another database
        wait_until(lambda: describe_server(connection).hidden == 1, "only the administrator here is hidden")
        assert describe_server(administrator).hidden == 0
    found = describe_server(connection)
    assert (found.sees_all, found.in_recovery) == (False, False)
    assert found.settings.keys() == {
        "fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "autovacuum", "track_counts",
        "autovacuum_freeze_max_age", "max_connections", "default_transaction_isolation", "default_transaction_read_only",
        "idle_in_transaction_session_timeout", "zero_damaged_pages", "server_version",
    }  # fmt: skip


def test_locks_that_need_no_place_in_the_table_are_not_counted(connection: Connection, opened: Open) -> None:
    """Those of who reads a table."""
    session = opened()
    tables = "msgtx.topic, msgtx.partition, msgtx.producer, msgtx.transaction, msgtx.consumer_group, msgtx.group_member"

    def grown_by(mode: str) -> int:
        before = describe_lock_table(connection).used
        with session.transaction():
            session.execute(f"lock table {tables} in {mode} mode")
            return describe_lock_table(connection).used - before

    wait_until(lambda: grown_by("access share") <= 0, "reading takes no place")
    wait_until(lambda: grown_by("exclusive") >= 6, "locking does")


def test_who_is_in_a_transaction_for_longest(connection: Connection, opened: Open) -> None:
    """Who asks, and who is idle, is not meant."""
    opened()
    with connection.transaction():
        wait_until(lambda: describe_notifications(connection).pids is None, "nobody is in a transaction")
    session = opened()
    with session.transaction():
        session.execute("select 1")
        found = wait_until(lambda: describe_notifications(connection).pids, "the session is found")
        assert backend(session) in found
        assert describe_notifications(connection).begun is not None
