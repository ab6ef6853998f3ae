"""Connections that workers of Spark keep between tasks: used again, given up when idle, never to another database."""

from collections.abc import Callable

import pytest

import msgtx
from msgtx.database.calls import driver_of
from msgtx.database.pool import Engine
from msgtx.spark_jobs.runtime import kept
from msgtx.store.operator.installation import change_incarnation, describe_installation
from tests.databases import wait_until


def session_of(url: str, incarnation: str | None = None) -> int:
    with kept.lent(url, incarnation) as engine, engine.connection() as connection:
        return connection.info.backend_pid


def incarnation_of(engine: Engine) -> str:
    with engine.connection() as connection:
        return str(describe_installation(connection).incarnation)


def test_the_next_task_has_the_same_session(database_url: str, engine: Engine) -> None:
    incarnation = incarnation_of(engine)
    first = session_of(database_url, incarnation)
    assert session_of(database_url, incarnation) == first
    with engine.connection() as connection:
        connection.execute("select pg_terminate_backend(%s)", [first])
    assert session_of(database_url, incarnation) != first


def test_two_borrowers_at_once_share_an_engine(database_url: str) -> None:
    with kept.lent(database_url, None) as one:
        with kept.lent(database_url, None) as other:
            assert one is other
        with one.connection() as connection:
            connection.execute("select 1")


def test_an_idle_worker_holds_no_session(database_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEEP_SECONDS", 0.2)
    session = session_of(database_url)

    def is_gone() -> bool:
        with engine.connection() as connection:
            return not connection.execute("select from pg_stat_activity where pid = %s", [session]).fetchall()

    wait_until(is_gone, "the session has ended", seconds=20)


def test_another_incarnation_is_noticed_on_a_connection_that_was_kept(make_database: Callable[[], str]) -> None:
    url = make_database()
    with msgtx.connect(url) as client:
        incarnation = incarnation_of(client.runtime.engine)
        session_of(url, incarnation)
        with client.runtime.engine.transaction() as connection:
            change_incarnation(driver_of(connection))
    with pytest.raises(msgtx.errors.IncarnationChanged):
        session_of(url, incarnation)
