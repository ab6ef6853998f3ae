"""Tests of the foundation on which the other tests rest."""

import concurrent.futures
from collections.abc import Callable

import msgtx
from tests.databases import Connection, backend, wait_for_lock

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
