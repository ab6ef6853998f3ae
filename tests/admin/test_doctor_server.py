"""`client.admin.doctor` on a server of its own: findings that need a restart or a superuser."""

import struct
import time
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy

import msgtx
from msgtx import Finding, Level
from msgtx.admin.doctor.findings import Limits
from tests.databases import connect, wait_until
from tests.faults import CrashServer, crash_server
from tests.store.steps import new_partition

AT_ONCE = Limits(idle_seconds=0.0, snapshot_age=0, lock_seconds=0.0)


@pytest.fixture(scope="module")
def own() -> Iterator[CrashServer]:
    """A server that takes prepared transactions and replication slots."""
    with crash_server() as server:
        with server.server.administrator() as connection:
            connection.execute("alter system set max_prepared_transactions = 5")
        server.crash()
        yield server


@pytest.fixture(scope="module")
def url(own: CrashServer) -> str:
    return own.server.create_database()


@pytest.fixture
def own_client(url: str) -> Iterator[msgtx.Client]:
    with msgtx.connect(url) as made:
        yield made


def found(client: msgtx.Client, subject: str, limits: Limits = AT_ONCE) -> list[Finding]:
    return [one for one in client.admin.doctor(limits=limits) if one.subject.startswith(subject)]


def test_autovacuum_that_is_off_is_a_problem(own_client: msgtx.Client) -> None:
    (finding,) = found(own_client, "setting autovacuum")
    assert (finding.level, finding.data["value"]) == (Level.PROBLEM, "off")


def test_a_prepared_transaction_of_postgresql_is_told_with_the_locks_that_it_holds(
    own_client: msgtx.Client, url: str
) -> None:
    with connect(url) as connection:
        partition = new_partition(connection)
        connection.execute("begin")
        connection.execute("select pg_current_xact_id()")
        connection.execute("select msgtx.lock_partition(%s)", [partition])
        connection.execute("prepare transaction 'theirs'")
        (named,) = found(own_client, "prepared transaction theirs")
        assert named.level is Level.WARNING
        assert named.advice == "`commit prepared 'theirs'` or `rollback prepared 'theirs'`"
        assert found(own_client, "prepared transaction theirs", Limits())[0].level is Level.INFORMATION
        holding = [one for one in found(own_client, "prepared transaction", Limits()) if "locks of msgtx" in one.text]
        assert [one.data["partitions"] for one in holding] == [1]
        connection.execute("rollback prepared 'theirs'")
        assert found(own_client, "prepared transaction") == []


def test_a_slot_that_nobody_reads_is_told_with_what_it_keeps(own: CrashServer, own_client: msgtx.Client) -> None:
    with own.server.administrator() as administrator:
        administrator.execute("select pg_create_physical_replication_slot('forgotten', true)")
        own.flush()
        (finding,) = found(own_client, "slot forgotten")
        assert finding.level is Level.WARNING
        assert "physical slot forgotten is used by nobody; it keeps" in finding.text
        assert finding.data["retained"] > 0
        assert "pg_drop_replication_slot('forgotten')" in finding.advice
        assert found(own_client, "slot forgotten", Limits(retained_wal_bytes=0))[0].level is Level.PROBLEM
        administrator.execute("select pg_drop_replication_slot('forgotten')")
        assert found(own_client, "slot") == []


def test_a_standby_that_pins_the_horizon_is_told(own: CrashServer, url: str) -> None:
    """A standby's feedback, sent by hand: what a WAL receiver sends while an old query runs there."""
    superuser = sqlalchemy.make_url(own.server.superuser_url)
    monitor = superuser.set(database=sqlalchemy.make_url(url).database).render_as_string(hide_password=False)
    with own.server.administrator() as connection:
        xid, lsn = connection.execute("select pg_current_xact_id()::text::bigint, pg_current_wal_lsn()").fetchone() or ()
    address = superuser.set(drivername="postgresql").update_query_dict(
        {"replication": "database", "application_name": "standby_1"}
    )
    standby = psycopg.pq.PGconn.connect(address.render_as_string(hide_password=False).encode())
    try:
        assert standby.status == psycopg.pq.ConnStatus.OK, standby.error_message
        started = standby.exec_(f"START_REPLICATION PHYSICAL {lsn}".encode())
        assert started.status == psycopg.pq.ExecStatus.COPY_BOTH, started.error_message
        microseconds = int((time.time() - 946_684_800) * 1_000_000)
        standby.put_copy_data(b"h" + struct.pack(">qIIII", microseconds, xid & 0xFFFFFFFF, xid >> 32, 0, 0))
        standby.flush()
        with msgtx.connect(monitor) as client:
            (finding,) = wait_until(lambda: found(client, "standby standby_1"), "the standby's feedback has arrived")
            assert finding.level is Level.WARNING
            assert finding.data["age"] >= 0
            assert found(client, "standby", Limits()) == []
    finally:
        standby.finish()


def test_commits_that_standbys_do_not_have_yet_are_told(own: CrashServer, url: str) -> None:
    database = url.rsplit("/", 1)[1]
    with own.server.administrator() as administrator:
        administrator.execute(f"alter database {database} set synchronous_commit = local")
        administrator.execute("alter system set synchronous_standby_names = 'standby_1'")
        administrator.execute("select pg_reload_conf()")
    try:
        with msgtx.connect(url) as client:
            (finding,) = wait_until(lambda: found(client, "setting synchronous_commit"), "the setting is read")
            assert finding.level is Level.WARNING
            assert "standby_1" in finding.text
    finally:
        with own.server.administrator() as administrator:
            administrator.execute("set synchronous_commit = local")
            administrator.execute("alter system reset synchronous_standby_names")
            administrator.execute("select pg_reload_conf()")
