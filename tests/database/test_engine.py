"""Connections: what goes back to the pool, and how errors are translated."""

import gc
import math
import re
import threading
import time
from typing import Any

import psycopg
import pytest
import sqlalchemy

from msgtx import errors
from msgtx.database.address import public_url
from msgtx.database.calls import call, driver_of, query, savepoint
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.database.translation import translate
from msgtx.declared.function import Function
from msgtx.store.operator.installation import describe_installation
from tests.databases import Connection, backend, wait_until
from tests.faults import Faults
from tests.interrupts import interrupts


def test_a_connection_is_lent_and_comes_back(engine: Engine) -> None:
    with engine.connection() as first:
        pid = backend(first)
    with engine.connection() as again:
        assert backend(again) == pid


def test_a_broken_connection_leaves_the_pool(engine: Engine, connection: Connection) -> None:
    with pytest.raises(errors.DatabaseUnavailable), engine.connection() as lent:  # noqa: PT012 - the block raises at its end
        pid = backend(lent)
        connection.execute("select pg_terminate_backend(%s)", [pid])
        wait_until(
            lambda: connection.execute("select count(*) from pg_stat_activity where pid = %s", [pid]).fetchone() == (0,)
        )
        query(lent, "select 1")
    with engine.connection() as fresh:
        assert query(fresh, "select 1") == [(1,)]


def test_a_connection_that_ended_while_it_was_idle_is_replaced_before_a_call_meets_it(
    engine: Engine, connection: Connection
) -> None:
    """A restart of the server, idle_session_timeout: afterwards a single call of an administrator works at once."""
    for use in (engine.connection, engine.transaction):
        with engine.connection() as lent:
            pid = backend(lent)
        connection.execute("select pg_terminate_backend(%s, 10000)", [pid])
        with use():
            pass
        with engine.connection() as lent:
            assert query(lent, "select 1") == [(1,)]
            assert backend(lent) != pid


def test_idle_connections_leave_room_for_an_sql_transaction(database_url: str) -> None:
    with Engine(database_url, pool_size=2) as engine:
        with engine.connection() as first, engine.connection() as second:
            assert backend(first) != backend(second)
        with engine.transaction():
            assert [first.closed, second.closed] == [True, False]
        with engine.connection() as again:
            assert again is second
    assert second.closed


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a connection that was in use
def test_an_interrupt_at_any_line_of_a_call_leaves_the_pool_whole(database_url: str) -> None:
    with Engine(database_url, pool_size=2) as engine:
        for interrupt in interrupts("database/pool.py", least=30):
            with interrupt:
                with engine.connection() as used:
                    query(used, "select 1")
                with engine.transaction() as session:
                    session.execute(sqlalchemy.text("select 1"))
            gc.collect()
            with until(time.monotonic() + 2), engine.connection() as one, engine.connection() as other:
                assert query(one, "select 1") == query(other, "select 1") == [(1,)], interrupt.place


def test_no_call_enters_a_condition(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is Python: an interrupt between its lock and its block would leave it held, and every later call would wait."""
    here = threading.get_ident()

    def entered(condition: Any) -> Any:
        assert threading.get_ident() != here
        return condition._lock.__enter__()

    monkeypatch.setattr(threading.Condition, "__enter__", entered)
    for _ in range(2):
        with engine.connection() as used, engine.transaction() as session:
            query(used, "select 1")
            session.execute(sqlalchemy.text("select 1"))


def test_a_connection_that_would_not_commit_is_not_lent(database_url: str) -> None:
    with Engine(database_url, pool_size=1) as engine:
        with engine.connection() as first:
            first.autocommit = False
        with engine.connection() as second:
            query(second, "begin")
        with engine.connection() as third:
            pass
        with engine.connection() as fourth:
            assert fourth.autocommit
    assert fourth is third
    assert len({id(each) for each in (first, second, third)}) == 3


def test_an_engine_that_nobody_closes_leaves_no_connection_open(database_url: str) -> None:
    engine = Engine(database_url)
    with engine.connection() as lent:
        pass
    del engine
    gc.collect()  # a warning of an open connection would fail the test
    assert lent.closed


def test_an_idle_connection_that_is_refused_has_the_others_asked(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(database_url) as engine:
        with engine.connection() as first, engine.connection() as second:
            idle = {first, second}
        asked = []

        def ask(connection: Any) -> None:
            asked.append(connection)
            if connection in idle:
                raise errors.IncarnationChanged("another one")

        monkeypatch.setattr(engine, "ask_who_answers", ask)
        engine._asked = -math.inf  # as if a minute were over
        with engine.connection() as third:
            assert third not in idle
    assert {*asked[:2]} == idle


def test_a_connection_that_is_out_when_its_pool_is_closed_is_closed_with_the_call(database_url: str) -> None:
    engine = Engine(database_url)
    with engine.connection() as idle:
        pass
    with engine.connection() as lent, engine.connection() as other:
        assert idle in (lent, other)
        engine.close()
        assert not lent.closed
    assert lent.closed
    assert other.closed


def test_a_server_is_not_taken_for_a_pooler(engine: Engine) -> None:
    with engine.connection() as lent:
        assert lent.prepare_threshold == 0
    assert not engine.pooled


def test_a_new_connection_is_asked_once_who_it_is(database_url: str) -> None:
    """For the session's number, which reveals a pooler, and for the incarnation."""
    faults = Faults()
    with Engine(database_url, connect=faults.connect) as engine:
        with engine.connection() as lent:
            engine.expect(describe_installation(lent).incarnation)
        faults.crossed.clear()
        engine.dedicated().close()
        assert faults.crossed == [
            f"{side} {name}" for name in ("connect", "describe_installation") for side in ("before", "after")
        ]


def test_an_error_leaves_a_usable_connection(engine: Engine) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero), engine.connection() as lent:
        query(lent, "select 1/0")
    with engine.connection() as again:
        assert query(again, "select 1") == [(1,)]


def test_a_transaction_commits_at_the_end_and_rolls_back_on_an_exception(engine: Engine) -> None:
    with engine.transaction() as transaction:
        transaction.execute(sqlalchemy.text("create table public.kept (a int)"))
    with pytest.raises(ZeroDivisionError), engine.transaction() as transaction:  # noqa: PT012 - the block raises at its end
        transaction.execute(sqlalchemy.text("insert into public.kept values (1)"))
        raise ZeroDivisionError
    with engine.connection() as lent:
        assert query(lent, "select count(*) from public.kept") == [(0,)]
        assert lent.autocommit


def test_a_transaction_does_not_get_the_same_broken_connection_for_ever(database_url: str) -> None:
    engine = Engine(database_url, pool_size=1)

    def broken() -> None:
        with engine.transaction() as transaction:
            lent = transaction.connection.driver_connection
            assert isinstance(lent, psycopg.Connection)
            lent.close()
            transaction.exec_driver_sql("select 1")

    with pytest.raises(errors.DatabaseUnavailable):
        broken()
    with engine.transaction() as transaction:
        assert transaction.exec_driver_sql("select 1").scalar() == 1
    engine.close()


@pytest.mark.parametrize("estimate", ["rows 1000", "rows 1 cost 0.0001", "rows 1 cost 1000000"])
def test_an_unflushed_call_is_relaxed_first_whatever_the_planner_thinks(
    engine: Engine, connection: Connection, estimate: str
) -> None:
    """I9: relaxed after the call, it would undo the flush that the function has asked for."""
    connection.execute(
        "create function msgtx.flushes_at(number int8) returns table (before text) language plpgsql volatile as $$"
        " begin before := current_setting('synchronous_commit'); perform msgtx.flush_at_commit(); return next; end $$"
    )
    connection.execute(f"alter function msgtx.flushes_at(int8) {estimate}")
    try:
        relaxed = Function("flushes_at", "number int8", tuple, flushed=False)
        with engine.rolled_back() as lent:
            assert call(lent, relaxed, 1) == [("off",)]
            assert query(lent, "show synchronous_commit") == [("on",)]
        plan = "\n".join(line for (line,) in connection.execute(f"explain verbose {relaxed.statement}", [1]))
        assert re.search(r"Function Call: .*CASE .*set_config", plan), "the call needs the setting"
    finally:
        connection.execute("drop function msgtx.flushes_at(int8)")


def test_an_unflushed_call_relaxes_nothing_beyond_itself(engine: Engine) -> None:
    relaxed = Function("setting_value", "setting_name text", tuple, flushed=False)
    with engine.connection() as lent:
        assert call(lent, relaxed, "lease_ms") == [(10_000,)]
        assert query(lent, "show synchronous_commit") == [("on",)]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select * from msgtx.nothing", errors.ConfigError),
        ("select msgtx.nothing()", errors.ConfigError),
        ("set lock_timeout = '1ms'; select pg_advisory_lock(1, 1)", errors.LockTimeout),
        ("set statement_timeout = '1ms'; select pg_sleep(1)", errors.LockTimeout),
        ("set default_transaction_read_only = on; create table public.x ()", errors.ConfigError),
        ("select 99999999999::int", errors.InvalidRequest),
        ("select * from pg_authid", errors.AuthorizationFailed),
        ("do $$ begin raise exception using errcode = 'MX090', message = 'fenced'; end $$", errors.ProducerFenced),
        (
            "do $$ begin raise 'function with OID 1 does not exist' using errcode = '42883'; end $$",
            errors.DatabaseUnavailable,
        ),
        (
            "do $$ begin raise 'cache lookup failed for function 1' using errcode = 'XX000'; end $$",
            errors.DatabaseUnavailable,
        ),
    ],
)
def test_errors_of_the_database_are_ours(
    engine: Engine, connection: Connection, statement: str, expected: type[errors.MsgtxError]
) -> None:
    connection.execute("select pg_advisory_lock(1, 1)")
    lent = engine.dedicated()
    try:
        *before, last = statement.split("; ") if not statement.startswith("do") else [statement]
        for prepare in before:
            query(lent, prepare)
        with pytest.raises(expected) as raised:
            query(lent, last)
        assert isinstance(raised.value.__cause__, psycopg.Error)
    finally:
        lent.close()


@pytest.mark.parametrize("standby", [True, False])
@pytest.mark.parametrize("way", ["connection", "in a savepoint"])
def test_a_server_that_became_a_standby_is_left_and_another_attempt_finds_the_primary(
    database_url: str, monkeypatch: pytest.MonkeyPatch, standby: bool, way: str
) -> None:
    """After a switchover that the session survives, the pool kept it: every write raised ConfigError."""
    if standby:
        monkeypatch.setattr("msgtx.database.pool.PASSES", "select true")
    with Engine(database_url, pool_size=1) as engine:
        with engine.connection() as lent:
            pid = backend(lent)
            query(lent, "set default_transaction_read_only = on")

        def write() -> None:
            with engine.connection() as lent, savepoint(lent) if way == "connection" else lent.transaction():
                query(lent, "create table public.never (id int)")

        with pytest.raises(errors.DatabaseUnavailable if standby else errors.ConfigError, match=r"standby|read-only"):
            write()
        with engine.connection() as lent:
            assert (backend(lent) != pid) == standby
            assert query(lent, "show default_transaction_read_only") == [("off" if standby else "on",)]


@pytest.mark.parametrize("standby", [True, False])
def test_an_sql_transaction_on_a_standby_says_so(database_url: str, monkeypatch: pytest.MonkeyPatch, standby: bool) -> None:
    if standby:
        monkeypatch.setattr("msgtx.database.pool.PASSES", "select true")
    expected = errors.DatabaseUnavailable if standby else errors.ConfigError
    with (
        Engine(f"{database_url}?options=-cdefault_transaction_read_only%3Don") as engine,
        pytest.raises(expected, match=r"standby|read-only"),
        engine.transaction() as transaction,
    ):
        transaction.exec_driver_sql("create table public.never (id int)")


def test_what_is_not_ours_goes_through() -> None:
    error = ValueError("x")
    assert translate(error) is error


@pytest.mark.parametrize(
    "asked",
    [
        "select pg_catalog.array_fill(0::float8, array[134217727])",
        "select pg_catalog.octet_length(pg_catalog.string_agg(pg_catalog.repeat('x', 100000000), '')) from"
        " pg_catalog.generate_series(1, 11)",
        "select pg_catalog.octet_length(pg_catalog.repeat('x', n) || pg_catalog.repeat('y', n)) from"
        " (values (540000000)) v(n)",
    ],
    ids=["an array", "a text that grows", "an allocation"],
)
def test_what_postgresql_cannot_hold_is_too_large_and_not_tried_again(engine: Engine, asked: str) -> None:
    with engine.connection() as lent, pytest.raises(errors.RecordTooLarge, match="1 GB") as refused:
        query(lent, asked)
    assert not refused.value.retriable


def test_a_password_is_never_shown() -> None:
    shown = public_url("postgresql://user:secret@host:5432/database")
    assert "secret" not in shown
    assert "user" in shown


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_schemes_of_sqlalchemy_are_understood(database_url: str, scheme: str) -> None:
    with Engine(database_url.replace("postgresql", scheme, 1), pool_size=1) as engine, engine.connection() as lent:
        assert query(lent, "select 1") == [(1,)]


@pytest.mark.parametrize("kind", ["connection", "transaction"])
def test_a_connection_that_is_lent_while_the_pool_is_closed_is_closed_when_it_comes_back(
    database_url: str, kind: str
) -> None:
    """As happens in a thread whose call is answered late."""
    engine = Engine(database_url)
    with getattr(engine, kind)() as lent:
        driver = lent if isinstance(lent, psycopg.Connection) else driver_of(lent)
        engine.close()
        assert not driver.closed
    assert driver.closed
