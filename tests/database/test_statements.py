"""The short way to call a function gives what a cursor gives, and leaves a connection that can be used."""

import concurrent.futures
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from msgtx import errors
from msgtx.database.calls import Function, call
from msgtx.database.connection import Connection, until
from msgtx.database.pool import Engine
from msgtx.database.wire import Statements
from tests.databases import wait_until

ECHO = Function("echo", {"a": "int8", "b": "text", "c": "int4[]", "d": "bool"})
SLEEP = Function("doze", {"seconds": "float8"})
LARGE = Function("large", {"bytes": "int8"})
FAIL = Function("fail", {"message": "text"})
FUNCTIONS = (
    "create function msgtx.echo(a bigint, b text, c int[], d boolean, out e bigint, out f text, out g int[], out h boolean)"
    " language sql immutable as 'select $1, $2, $3, $4'",
    "create function msgtx.doze(seconds float8) returns boolean language sql volatile return pg_sleep(seconds) is null",
    "create function msgtx.large(bytes bigint) returns text language sql return repeat('x', bytes::int)",
    "create function msgtx.fail(message text) returns boolean language plpgsql as"
    " $$ begin raise exception using errcode = 'MX003', message = message; end $$",
)


@pytest.fixture(scope="module")
def functions(engine: Engine) -> None:
    with contextlib.closing(engine.dedicated()) as connection:
        for text in FUNCTIONS:
            connection.execute(text.encode())


@pytest.fixture
def session(engine: Engine, functions: None) -> Iterator[Connection]:
    del functions
    with contextlib.closing(engine.dedicated()) as made:
        assert isinstance(made, Connection)
        yield made


def prepared(session: Connection) -> int:
    row = session.execute("select count(*) from pg_prepared_statements where name like 'msgtx_%'").fetchone()
    assert row is not None
    return int(row[0])


def dozes(observer: Connection, pid: int) -> bool:
    return observer.execute("select 1 from pg_stat_activity where pid = %s and wait_event = 'PgSleep'", [pid]).rowcount == 1


@pytest.mark.parametrize(
    "arguments",
    [(1, "a", [1, 2], True), (-(2**63), "", [], False), (None, None, None, None), (5, "ä€\n", None, True)],
)
def test_it_gives_what_a_cursor_gives(session: Connection, arguments: tuple[Any, ...]) -> None:
    for _ in range(3):
        assert call(session, ECHO, *arguments) == [arguments]
    assert prepared(session) == 1
    with session.transaction():  # where a cursor does it
        assert call(session, ECHO, *arguments) == [arguments]


def test_a_large_answer_comes_whole(session: Connection) -> None:
    for size in (1, 100_000, 30_000_000, 1):
        assert len(call(session, LARGE, size)[0][0]) == size


def test_a_slow_answer_is_waited_for(session: Connection) -> None:
    assert call(session, SLEEP, 2.5 * Statements.QUICK_MS / 1000) == [(False,)]
    assert call(session, ECHO, 1, "a", [], True) == [(1, "a", [], True)]


def test_an_error_is_translated_and_the_next_call_works(session: Connection) -> None:
    for _ in range(2):
        with pytest.raises(errors.UnknownTopicOrPartition, match="no such thing"):
            call(session, FAIL, "no such thing")
        with pytest.raises(errors.InvalidRequest):
            call(session, FAIL, "a\0b")
        with pytest.raises(errors.ConfigError, match="msgtx db init"):
            call(session, Function("there_is_none", {}))
        assert call(session, ECHO, 1, "a", [], True) == [(1, "a", [], True)]


@pytest.mark.parametrize("forget", ["deallocate all", "discard all"])
def test_a_session_that_was_told_to_forget_prepares_again(session: Connection, forget: str) -> None:
    assert call(session, ECHO, 1, "a", [], True) == [(1, "a", [], True)]
    session.pgconn.exec_(forget.encode())
    assert call(session, ECHO, 2, "b", [], True) == [(2, "b", [], True)]
    session.pgconn.exec_(b"deallocate msgtx_1")
    assert call(session, ECHO, 3, "c", [], True) == [(3, "c", [], True)]


def test_it_keeps_no_more_statements_than_it_may(session: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Statements, "MOST", 2)
    for arguments in ((1, None, None, None), (None, "a", None, None), (None, None, [1], None), (None, None, None, True)):
        assert call(session, ECHO, *arguments) == [arguments]
    assert prepared(session) == 2


def test_no_call_waits_past_its_deadline(session: Connection) -> None:
    began = time.monotonic()
    with until(began + 0.3), pytest.raises(errors.DatabaseUnavailable, match="time is over"):
        call(session, SLEEP, 20)
    assert time.monotonic() - began < 5
    assert session.closed


def test_a_session_that_is_ended_while_it_answers_is_lost(engine: Engine, session: Connection) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as other, contextlib.closing(engine.dedicated()) as killer:
        waiting = other.submit(call, session, SLEEP, 20)
        wait_until(lambda: dozes(killer, session.info.backend_pid))
        killer.execute("select pg_terminate_backend(%s)", [session.info.backend_pid])
        with pytest.raises(errors.DatabaseUnavailable):
            waiting.result(timeout=20)
    assert session.closed


@pytest.mark.parametrize("after", [0.02, 3 * Statements.QUICK_MS / 1000])
def test_an_interrupted_call_is_cancelled_and_its_connection_leaves_the_pool(engine: Engine, after: float) -> None:
    """Ctrl-C, in the short wait and in psycopg's own."""
    began = time.monotonic()
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    with engine.connection() as used:
        pid = used.info.backend_pid
    timer.start()
    with pytest.raises(KeyboardInterrupt), engine.connection() as used:
        call(used, SLEEP, 20)
    timer.join()
    assert time.monotonic() - began < 10
    with contextlib.closing(engine.dedicated()) as observer:
        wait_until(lambda: not dozes(observer, pid))
    with engine.connection() as used:
        assert call(used, ECHO, 1, "a", [], True) == [(1, "a", [], True)]
        assert used.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
