"""Tests of the foundation on which the other tests rest."""

import concurrent.futures
from collections.abc import Callable

import psycopg
import pytest

import msgtx
from tests.databases import Connection, KeptSessions, backend, wait_for_lock

Executor = concurrent.futures.ThreadPoolExecutor


def test_tests_run_as_an_ordinary_role_that_owns_its_database(connection: Connection) -> None:
    superuser, owner = connection.execute(
        "select rolsuper, d.datdba = r.oid from pg_roles r, pg_database d"
        " where rolname = current_user and datname = current_database()"
    ).fetchone()
    assert not superuser
    assert owner


def test_the_clock_of_a_database_can_be_set_and_is_real_again(connection: Connection, clock: Callable[..., None]) -> None:
    clock("1 day")
    assert connection.execute("select msgtx.clock() > clock_timestamp() + interval '23 hours'").fetchone() == (True,)
    clock(None)
    assert connection.execute("select msgtx.clock() < clock_timestamp() + interval '1 hour'").fetchone() == (True,)


def test_a_session_that_waits_for_a_lock_is_seen(
    connection: Connection, open_connection: Callable[[], Connection], background: Executor
) -> None:
    second = open_connection()
    with connection.transaction():
        connection.execute("select msgtx.lock_partition(1)")
        waiting = background.submit(second.execute, "select msgtx.lock_partition(1)")
        wait_for_lock(open_connection(), backend(second))
        assert not waiting.done()
    assert waiting.result(30)


def test_a_client_sends_and_reads(client: msgtx.Client) -> None:
    client.topics.create("smoke")
    with client.producer() as producer:
        assert producer.send("smoke", b"a").result(30).offset == 0
    with client.consumer("smoke", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(10)] == [b"a"]


def test_a_session_that_is_used_again_is_as_new(kept_sessions: KeptSessions) -> None:
    """What a test has set, taken or left in it is gone."""
    session = kept_sessions.take()
    state = """
        select current_setting('search_path'), current_setting('lock_timeout'), to_regclass('pg_temp.left_behind'),
            (select count(*) from pg_listening_channels()), (select count(*) from pg_cursors),
            (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())
    """
    new, pid = session.execute(state).fetchone(), backend(session)
    session.isolation_level, session.read_only, session.prepare_threshold = psycopg.IsolationLevel.SERIALIZABLE, False, None
    session.execute("create temp table left_behind ()")
    session.execute("set search_path = msgtx; set lock_timeout = '1ms'; listen something")
    session.execute("declare kept cursor with hold for select 1")
    session.execute("select pg_advisory_lock(1)")
    assert session.execute(state).fetchone() != new
    session.autocommit = False
    kept_sessions.put(session)
    again = kept_sessions.take()
    assert backend(again) == pid
    assert again.execute(state).fetchone() == new
    assert again.autocommit
    assert again.prepare_threshold == 0
    assert again.execute("show transaction_isolation").fetchone() == ("read committed",)
    kept_sessions.put(again)


@pytest.mark.parametrize("ends", ["before", "after", "in a transaction"])
def test_a_session_that_has_ended_is_not_used_again(kept_sessions: KeptSessions, connection: Connection, ends: str) -> None:
    """Whether a test ended it, or another one since; nor one that was left in a transaction."""
    session = kept_sessions.take()
    pid = backend(session)
    if ends == "before":
        connection.execute("select pg_terminate_backend(%s, 30000)", [pid])
    if ends == "in a transaction":
        session.execute("begin")
    kept_sessions.put(session)
    if ends == "after":
        connection.execute("select pg_terminate_backend(%s, 30000)", [pid])
    again = kept_sessions.take()
    assert backend(again) != pid
    kept_sessions.put(again)
