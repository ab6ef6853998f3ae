"""The short way to call a function gives what a cursor gives, and leaves a connection that can be used."""

import concurrent.futures
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from msgtx import errors
from msgtx.database.calls import call, call_and_notify, call_together
from msgtx.database.connection import Connection, until
from msgtx.database.pool import Engine
from msgtx.database.wire import Statements
from msgtx.declared.function import Function
from tests.databases import wait_until
from tests.refusals import refuses

ECHO = Function("echo", "a int8, b text, c int4[], d bool", tuple)
SLEEP = Function("doze", "seconds float8", tuple)
LARGE = Function("large", "bytes int8", tuple)
FAIL = Function("fail", "message text", tuple)
KEEP = Function("keep", "number int8", tuple)
FUNCTIONS = (
    "create function msgtx.echo(a bigint, b text, c int[], d boolean, out e bigint, out f text, out g int[], out h boolean)"
    " language sql immutable as 'select $1, $2, $3, $4'",
    "create function msgtx.doze(seconds float8) returns boolean language sql volatile return pg_sleep(seconds) is null",
    "create function msgtx.large(bytes bigint) returns text language sql return repeat('x', bytes::int)",
    "create function msgtx.fail(message text) returns boolean language plpgsql as"
    " $$ begin raise exception using errcode = 'MX003', message = message; end $$",
    "create function msgtx.keep(number bigint) returns bigint language plpgsql as"
    " $$ begin insert into kept values (number); return number; end $$",
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


Asked = Callable[..., list[tuple[Any, ...]]]


def and_notified(session: Connection, function: Function[Any], *arguments: object) -> list[tuple[Any, ...]]:
    return call_and_notify(session, function, *arguments, words="1")[0]


@pytest.fixture(params=[call, and_notified])
def asked(request: pytest.FixtureRequest) -> Asked:
    """A call by itself, or with a notification behind it."""
    found: Asked = request.param
    return found


def prepared(session: Connection) -> int:
    row = session.execute("select count(*) from pg_prepared_statements where name like 'msgtx_%'").fetchone()
    assert row is not None
    return int(row[0])


def dozes(observer: Connection, pid: int) -> bool:
    return observer.execute("select 1 from pg_stat_activity where pid = %s and wait_event = 'PgSleep'", [pid]).rowcount == 1


@pytest.mark.parametrize(
    "arguments", [(1, "a", [1, 2], True), (-(2**63), "", [], False), (None, None, None, None), (5, "ä€\n", None, True)]
)
def test_it_gives_what_a_cursor_gives(session: Connection, arguments: tuple[Any, ...]) -> None:
    for _ in range(3):
        assert call(session, ECHO, *arguments) == [arguments]
    assert prepared(session) == 1
    with session.transaction():  # where a cursor does it
        assert call(session, ECHO, *arguments) == [arguments]


def test_a_large_answer_comes_whole(asked: Asked, session: Connection) -> None:
    for size in (1, 100_000, 30_000_000, 1):
        assert len(asked(session, LARGE, size)[0][0]) == size


def test_a_slow_answer_is_waited_for(asked: Asked, session: Connection) -> None:
    assert asked(session, SLEEP, 2.5 * Statements.QUICK_MS / 1000) == [(False,)]
    assert asked(session, ECHO, 1, "a", [], True) == [(1, "a", [], True)]


def test_an_error_is_translated_and_the_next_call_works(asked: Asked, session: Connection) -> None:
    for _ in range(2):
        with pytest.raises(errors.UnknownTopicOrPartition, match="no such thing"):
            asked(session, FAIL, "no such thing")
        with pytest.raises(errors.InvalidRequest):
            asked(session, FAIL, "a\0b")
        with refuses(errors.ConfigError, reason="no schema"):
            asked(session, Function("there_is_none", "", tuple))
        assert asked(session, ECHO, 1, "a", [], True) == [(1, "a", [], True)]


@pytest.mark.parametrize("forget", ["deallocate all", "discard all"])
def test_a_session_that_was_told_to_forget_prepares_again(asked: Asked, session: Connection, forget: str) -> None:
    assert asked(session, ECHO, 1, "a", [], True) == [(1, "a", [], True)]
    session.pgconn.exec_(forget.encode())
    assert asked(session, ECHO, 2, "b", [], True) == [(2, "b", [], True)]
    session.pgconn.exec_(b"deallocate msgtx_1")
    assert asked(session, ECHO, 3, "c", [], True) == [(3, "c", [], True)]


def test_it_keeps_no_more_statements_than_it_may(session: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Statements, "MOST", 2)
    for arguments in ((1, None, None, None), (None, "a", None, None), (None, None, [1], None), (None, None, None, True)):
        assert call(session, ECHO, *arguments) == [arguments]
    assert prepared(session) == 2


def test_no_call_waits_past_its_deadline(asked: Asked, session: Connection) -> None:
    began = time.monotonic()
    with until(began + 0.3), pytest.raises(errors.DatabaseUnavailable, match="time is over"):
        asked(session, SLEEP, 20)
    assert time.monotonic() - began < 5
    assert session.closed


def test_a_session_that_is_ended_while_it_answers_is_lost(asked: Asked, engine: Engine, session: Connection) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as other, contextlib.closing(engine.dedicated()) as killer:
        waiting = other.submit(asked, session, SLEEP, 20)
        wait_until(lambda: dozes(killer, session.info.backend_pid))
        killer.execute("select pg_terminate_backend(%s)", [session.info.backend_pid])
        with pytest.raises(errors.DatabaseUnavailable):
            waiting.result(timeout=20)
    assert session.closed


@pytest.mark.parametrize("after", [0.02, 3 * Statements.QUICK_MS / 1000])
def test_an_interrupted_call_is_cancelled_and_its_connection_leaves_the_pool(
    asked: Asked, engine: Engine, after: float
) -> None:
    """Ctrl-C, in the short wait and in psycopg's own."""
    began = time.monotonic()
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    with engine.connection() as used:
        pid = used.info.backend_pid
    timer.start()
    with pytest.raises(KeyboardInterrupt), engine.connection() as used:
        asked(used, SLEEP, 20)
    timer.join()
    assert time.monotonic() - began < 10
    with contextlib.closing(engine.dedicated()) as observer:
        wait_until(lambda: not dozes(observer, pid))
    with engine.connection() as used:
        assert asked(used, ECHO, 1, "a", [], True) == [(1, "a", [], True)]
        assert used.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_listeners_are_notified_with_the_answer(engine: Engine, session: Connection) -> None:
    with contextlib.closing(engine.dedicated()) as listener:
        listener.execute("listen msgtx")
        assert call_and_notify(session, ECHO, 1, "a", [], True, words="7,8") == ([(1, "a", [], True)], True)
        assert [each.payload for each in listener.notifies(timeout=5, stop_after=1)] == ["7,8"]


def test_a_notification_has_a_sql_transaction_of_its_own(session: Connection) -> None:
    """PostgreSQL lets one notifying COMMIT through at a time, flush included; and what fails here undoes nothing."""
    session.execute("create temporary table kept (number bigint)")
    too_long = "1" * 9_000
    assert call_and_notify(session, KEEP, 1, words=too_long) == ([(1,)], False)
    assert call_and_notify(session, KEEP, 2, words="1") == ([(2,)], True)
    assert session.execute("select number from kept order by 1").fetchall() == [(1,), (2,)]


def test_a_commit_that_fails_is_an_error_and_its_connection_can_be_used(asked: Asked, session: Connection) -> None:
    """The statement itself has answered by then."""
    session.execute("create temporary table kept (number bigint)")
    session.execute(
        "create or replace function pg_temp.refuse() returns trigger language plpgsql as"
        " $$ begin raise exception using errcode = 'MX003', message = 'at COMMIT'; end $$"
    )
    session.execute(
        "create constraint trigger late after insert on kept deferrable initially deferred"
        " for each row when (new.number > 1) execute function pg_temp.refuse()"
    )
    for _ in range(2):
        with pytest.raises(errors.UnknownTopicOrPartition, match="at COMMIT"):
            asked(session, KEEP, 2)
        assert asked(session, KEEP, 1) == [(1,)]
    assert session.execute("select number from kept").fetchall() == [(1,), (1,)]


@pytest.mark.parametrize("keeps", [True, False])
def test_calls_that_go_together_are_one_sql_transaction(session: Connection, keeps: bool) -> None:
    if not keeps:
        session.prepare_threshold = None  # behind a pooler
    session.execute("create temporary table kept (number bigint)")
    sent: list[str] = []
    several = [(KEEP, (number,)) for number in (1, 2)]
    assert call_together(session, several, lambda: sent.append("two")) == [[(1,)], [(2,)]]
    assert call_together(session, [(KEEP, (4,))], lambda: sent.append("one")) == [[(4,)]]
    assert sent == ["two", "one"]
    rows = session.execute("select number, xmin::text from kept order by 1").fetchall()
    assert [number for number, _ in rows] == [1, 2, 4]
    assert rows[0][1] == rows[1][1] != rows[2][1]
    assert (prepared(session) > 0) == keeps


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_an_error_undoes_all_calls_that_go_together(session: Connection, fails: int) -> None:
    """And their connection can be used."""
    session.execute("create temporary table kept (number bigint)")
    calls: list[tuple[Function[Any], tuple[object, ...]]] = [(KEEP, (0,)), (KEEP, (1,)), (KEEP, (2,))]
    calls[fails] = (FAIL, ("no such thing",))
    for _ in range(2):
        with pytest.raises(errors.UnknownTopicOrPartition, match="no such thing"):
            call_together(session, calls, lambda: None)
        assert call(session, ECHO, 1, "a", [], True) == [(1, "a", [], True)]
    assert session.execute("select from kept").rowcount == 0


def test_a_connection_that_keeps_no_statements_notifies_nobody(session: Connection) -> None:
    session.prepare_threshold = None
    assert call_and_notify(session, ECHO, 1, "a", [], True, words="1") == ([(1, "a", [], True)], False)
