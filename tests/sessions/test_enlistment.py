"""Which sessions may hold messages, what is refused and how, and that nothing is left behind (I16)."""

import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import errors, orm
from msgtx.admin.failover import after_failover
from msgtx.database.pool import Engine
from msgtx.session import enlistment, side_connection
from tests.databases import wait_until
from tests.refusals import refuses
from tests.roles import PASSWORD, open_roles
from tests.sessions.conftest import LEVELS, NARROW, Order, Shop, application_url, insert
from tests.store.steps import unique

pytestmark = pytest.mark.slow

SECONDS = 30.0


# ── sessions that cannot hold a message ──


def test_what_is_no_session_is_refused(shop: Shop) -> None:
    for thing in (shop.app, sessionmaker(shop.app), None, "session"):
        with refuses(TypeError, name="session"):
            orm.publish(thing, shop.topic, b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Session, sqlalchemy.Connection])
def test_autocommit_is_refused(shop: Shop, kind: type) -> None:
    made: Any = (
        Session(shop.app.execution_options(isolation_level="AUTOCOMMIT"))
        if kind is Session
        else shop.app.connect().execution_options(isolation_level="AUTOCOMMIT")
    )
    with made as session:
        with refuses(errors.ConfigError, reason="autocommit"):
            orm.publish(session, shop.topic, b"x")
        session.execute(insert(1))
        session.commit()
    assert shop.seen() == ([], [1])


def test_two_phases_are_refused(shop: Shop) -> None:
    with Session(shop.app, twophase=True) as session, refuses(errors.ConfigError, reason="two phases"):
        orm.publish(session, shop.topic, b"x")
    with shop.app.connect() as connection, connection.begin_twophase(), refuses(errors.ConfigError, reason="two phases"):
        orm.publish(connection, shop.topic, b"x")


def test_a_connection_that_is_closed_is_refused(shop: Shop) -> None:
    connection = shop.app.connect()
    connection.close()
    with refuses(errors.IllegalState, reason="closed"):
        orm.publish(connection, shop.topic, b"x")
    with shop.app.connect() as connection:
        connection.invalidate()
        with refuses(errors.IllegalState, reason="closed"):
            orm.publish(connection, shop.topic, b"x")


def test_a_session_that_is_closed_for_good_is_refused(shop: Shop) -> None:
    session = Session(shop.app, close_resets_only=False)
    session.close()
    with refuses(errors.IllegalState, reason="unusable"):
        orm.publish(session, shop.topic, b"x")


def test_a_connection_whose_block_was_rolled_back_is_refused(shop: Shop) -> None:
    """SQLAlchemy lets it do nothing more within the block."""
    with shop.app.connect() as connection, connection.begin() as block:
        block.rollback()
        with refuses(errors.IllegalState, reason="unusable"):
            orm.publish(connection, shop.topic, b"x")


def test_a_closed_session_that_begins_again_is_taken(shop: Shop) -> None:
    session = Session(shop.app)
    session.close()
    orm.publish(session, shop.topic, b"x")
    session.commit()
    assert shop.seen() == ([b"x"], [])


def test_a_session_that_must_be_rolled_back_first_is_refused(shop: Shop) -> None:
    with Session(shop.app) as session:
        orm.publish(session, shop.topic, b"gone")
        session.add(Order(number=None))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.flush()
        # A flush that fails rolls back by itself; the session raises until it is rolled back.
        with pytest.raises(sqlalchemy.exc.PendingRollbackError):
            session.scalar(sqlalchemy.text("select 1"))
        with refuses(errors.IllegalState, reason="unusable"):
            orm.publish(session, shop.topic, b"too late")
        session.rollback()
        orm.publish(session, shop.topic, b"good")
        session.commit()
    assert shop.seen() == ([b"good"], [])


@pytest.mark.parametrize("known", [False, True])
def test_a_connection_whose_sql_transaction_has_failed_commits_nothing(shop: Shop, known: bool) -> None:
    """Whether or not the database was asked before."""
    with shop.app.connect() as connection:
        if known:
            orm.publish(connection, shop.topic, b"before")
            connection.commit()
        with pytest.raises(sqlalchemy.exc.ProgrammingError):
            connection.execute(sqlalchemy.text("select * from nowhere"))
        with refuses(errors.IllegalState, reason="failed"):
            orm.publish(connection, shop.topic, b"gone")
        connection.rollback()
        orm.publish(connection, shop.topic, b"gone")
        with pytest.raises(sqlalchemy.exc.ProgrammingError):
            connection.execute(sqlalchemy.text("select * from nowhere"))
        with refuses(errors.IllegalState, reason="failed"):
            connection.commit()
        connection.rollback()
        orm.publish(connection, shop.topic, b"good")
        connection.commit()
    assert sorted(shop.seen()[0]) == ([b"before"] if known else []) + [b"good"]  # type: ignore[type-var]  # none is null


def test_a_connection_that_is_lost_before_its_commit_is_replaced(shop: Shop) -> None:
    with shop.engine().connect() as user:
        user.execute(insert(1))
        orm.publish(user, shop.topic, b"gone")
        pid = user.scalar(sqlalchemy.text("select pg_backend_pid()"))
        shop.connection.execute("select pg_terminate_backend(%s, 5000)", [pid])
        with pytest.raises(errors.DatabaseUnavailable):
            user.commit()
        user.rollback()
        user.execute(insert(2))
        orm.publish(user, shop.topic, b"there")
        user.commit()
    assert shop.seen() == ([b"there"], [2])


def test_a_session_without_a_default_bind_is_refused(shop: Shop) -> None:
    with Session(binds={Order: shop.app}) as session:
        with refuses(errors.ConfigError, reason="no bind"):
            orm.publish(session, shop.topic, b"x")
        session.add(Order(number=1))
        orm.publish(session.connection(bind_arguments={"mapper": Order}), shop.topic, b"by hand")
        session.commit()
    assert shop.seen() == ([b"by hand"], [1])


def test_a_session_of_another_driver_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.app.connect() as connection:
        monkeypatch.setattr(type(connection.connection), "driver_connection", object())
        with refuses(errors.ConfigError, reason="driver"):
            orm.publish(connection, shop.topic, b"x")


@pytest.mark.parametrize("level", LEVELS)
def test_a_database_without_msgtx_is_refused_and_the_sql_transaction_stays_good(
    shop: Shop, make_database: Callable[..., str], level: str
) -> None:
    engine = shop.engine(make_database(schema=False), isolation_level=level)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("create table kept (x int)"))
        for _ in range(2):
            with refuses(errors.ConfigError, reason="no schema"):
                orm.publish(connection, "topic", b"x")
        connection.execute(sqlalchemy.text("insert into kept values (1)"))
        connection.commit()
        assert connection.execute(sqlalchemy.text("select x from kept")).all() == [(1,)]


def test_an_older_schema_is_refused(shop: Shop, make_database: Callable[..., str]) -> None:
    url = make_database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("update msgtx.installation set schema_version = 4")
    engine = shop.engine(url)
    with Session(engine) as session:
        with refuses(errors.ConfigError, reason="schema version"):
            orm.publish(session, "topic", b"x")
        assert session.scalar(sqlalchemy.text("select 1")) == 1


@pytest.mark.parametrize("level", LEVELS[:1])
def test_the_encoding_of_a_session_limits_what_it_can_say(shop: Shop, level: str) -> None:
    with Session(shop.engine(isolation_level=level, connect_args={"client_encoding": "latin1"})) as session:
        orm.publish(session, shop.topic, b"gone", headers={"\u65e5": b""})
        with pytest.raises(errors.InvalidRequest, match=r"'\u65e5' .* client_encoding \(latin-1\): set that to UTF8"):
            session.commit()
        session.rollback()
        orm.publish(session, shop.topic, b"there", headers={"\xfc": b""})
        session.commit()
    assert shop.seen()[0] == [b"there"]


@pytest.mark.parametrize("level", LEVELS[:2])
def test_a_client_that_was_made_after_a_failover_is_taken(shop: Shop, make_database: Callable[..., str], level: str) -> None:
    """The engine is as it was: its pool has new connections by itself."""
    url = make_database()
    engine = shop.engine(url, isolation_level=level, pool_pre_ping=True)

    def commits(client: msgtx.Client) -> None:
        with client.producer(transactional_id="id") as producer, Session(engine) as session:
            with producer.transaction(session=session) as transaction:
                producer.send("topic", b"sent")
            orm.publish(session, "topic", b"published")
            session.commit()
            assert client.transaction_outcome(transaction.id) is msgtx.Outcome.COMMITTED

    with msgtx.connect(url) as client:
        client.topics.create("topic")
        commits(client)
        with Engine(url) as administrator:
            after_failover(administrator)
        with pytest.raises(errors.IncarnationChanged):
            commits(client)
    with msgtx.connect(url) as client:
        for _ in range(2):
            commits(client)


def test_a_commit_after_a_failover_finds_an_id_however_many_were_fenced(
    shop: Shop, make_database: Callable[..., str]
) -> None:
    """Ids of what many sessions have committed at once above READ COMMITTED are kept for the next ones."""
    url = make_database()
    engine = shop.engine(url, isolation_level="SERIALIZABLE", pool_pre_ping=True, pool_size=9)
    inner = ["topic"] * (side_connection.NAMES_TRIED + 3)

    def commits(topic: str) -> None:
        with Session(engine) as session:
            orm.publish(session, topic, b"x")
            session.commit()

    with msgtx.connect(url) as client:
        client.topics.create("topic")
        commits("topic")
        event.listen(engine, "commit", lambda _: [commits(inner.pop()) for _ in inner[:1]])
        commits("topic")
        with Engine(url) as administrator:
            after_failover(administrator)
        commits("topic")


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_published_during_the_commit_is_refused_and_does_not_slip_into_the_next(shop: Shop, level: str) -> None:
    """By an event listener of the application that is called after ours."""
    app = shop.engine(pool_size=1, max_overflow=0, isolation_level=level)
    with app.connect() as user:
        orm.publish(user, shop.topic, b"first", partition=0)
        user.commit()

        def late(user: sqlalchemy.Connection) -> None:
            orm.publish(user, shop.topic, b"late")

        event.listen(app, "commit", late)
        user.execute(insert(1))
        orm.publish(user, shop.topic, b"gone")
        with refuses(errors.IllegalState, reason="being committed"):
            user.commit()
        event.remove(app, "commit", late)
        assert shop.nothing_is_open()
        user.rollback()
        user.execute(insert(2))
        user.commit()
    assert shop.seen() == ([b"first"], [2])


# ── records that are refused at once ──


def test_bad_records_are_refused_at_once_and_the_session_goes_on(shop: Shop) -> None:
    compacted, small = unique("compacted"), unique("small")
    shop.client.topics.create(compacted, cleanup_policy="compact")
    shop.client.topics.create(small, max_message_bytes=100)
    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (errors.UnknownTopicOrPartition, "nowhere", {"value": b"x"}),
        (errors.UnknownTopicOrPartition, shop.topic, {"value": b"x", "partition": 3}),
        (errors.UnknownTopicOrPartition, shop.topic, {"value": b"x", "partition": -1}),
        (errors.RecordTooLarge, small, {"value": b"x" * 101}),
        (errors.RecordTooLarge, small, {"value": b"x" * 60, "key": b"k" * 41}),
        (errors.RecordTooLarge, small, {"value": b"", "headers": [("n" * 50, b"v" * 51)]}),
        (errors.InvalidRecord, compacted, {"value": b"x"}),
        (TypeError, shop.topic, {"value": "text"}),
        (TypeError, shop.topic, {"value": b"x", "key": "text"}),
        (TypeError, shop.topic, {"value": b"x", "headers": [("name", "text")]}),
    ]
    with Session(shop.app) as session:
        session.add(Order(number=1))
        orm.publish(session, shop.topic, b"before", partition=0)
        for error, name, record in refused:
            with pytest.raises(error):
                orm.publish(session, name, record.pop("value"), **record)
        orm.publish(session, small, b"x" * 100)
        orm.publish(session, shop.topic, b"after", partition=0)
        session.commit()
    assert shop.seen() == ([b"before", b"after"], [1])


@pytest.mark.parametrize("level", LEVELS)
def test_a_read_only_sql_transaction_is_told_so(shop: Shop, level: str) -> None:
    app = shop.engine(isolation_level=level)
    with Session(app) as session:
        session.connection(execution_options={"postgresql_readonly": True})
        orm.publish(session, shop.topic, b"x")
        with refuses(errors.ConfigError, reason="read-only"):
            session.commit()
        session.rollback()
    assert shop.seen() == ([], [])
    assert shop.nothing_is_open()


def test_rights_are_those_of_the_sessions_role(shop: Shop, server: Any) -> None:
    with open_roles(server, shop.url) as roles:
        url = roles.url_of(roles.make("consume:*"))
        for level in LEVELS:
            engine = shop.engine(url, isolation_level=level)
            with Session(engine) as session:
                orm.publish(session, shop.topic, b"x")
                with pytest.raises(errors.AuthorizationFailed):
                    session.commit()
        url = roles.url_of(roles.make(f"produce:{shop.topic}"))
        for level in LEVELS:
            engine = shop.engine(url, isolation_level=level)
            shop.publish(engine, level.encode(), partition=0)
    assert shop.seen() == ([level.encode() for level in LEVELS], [])


# ── engines, levels, connections ──


def test_the_level_may_be_set_wherever_sqlalchemy_lets_one(shop: Shop) -> None:
    app = shop.engine(**NARROW)
    for level in LEVELS:
        optioned = app.execution_options(isolation_level=level)
        shop.publish(optioned, b"engine", partition=0)
        with Session(app) as session:
            session.connection(execution_options={"isolation_level": level})
            orm.publish(session, shop.topic, b"session", partition=0)
            session.commit()
        with app.connect().execution_options(isolation_level=level) as connection:
            orm.publish(connection, shop.topic, b"connection", partition=0)
            connection.commit()
        with Session(app) as session:
            session.execute(sqlalchemy.text(f"set transaction isolation level {level}"))
            orm.publish(session, shop.topic, b"statement", partition=0)
            session.commit()
    assert shop.seen() == ([b"engine", b"session", b"connection", b"statement"] * 3, [])


@pytest.mark.parametrize("where", ["role", "url", "session"])
def test_the_default_level_of_role_or_address_may_be_any(shop: Shop, server: Any, where: str) -> None:
    """Also of our own connections beside it."""
    with open_roles(server, shop.url) as roles:
        role = roles.make(f"produce:{shop.topic}")
        url, options = roles.url_of(role), {}
        if where == "role":
            roles.sql(f"alter role {role} set default_transaction_isolation = 'serializable'")
        elif where == "url":
            options = {"options": r"-c default_transaction_isolation=repeatable\ read"}
        engine = shop.engine(url, connect_args=options)
        if where == "session":
            event.listen(
                engine,
                "connect",
                lambda driver, _: (
                    driver.execute("set session characteristics as transaction isolation level serializable"),
                    driver.commit(),
                ),
            )
        for value in (b"a", b"b"):
            with Session(engine) as session:
                assert session.scalar(sqlalchemy.text("show transaction_isolation")) != "read committed"
                orm.publish(session, shop.topic, value, partition=0)
                session.commit()
    assert shop.seen() == ([b"a", b"b"], [])


def test_what_a_topic_has_become_is_known_after_a_while(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(shop.app) as session:
        orm.publish(session, shop.topic, b"x")
        shop.client.topics.alter(shop.topic, partitions=4)
        with pytest.raises(errors.UnknownTopicOrPartition):
            orm.publish(session, shop.topic, b"x", partition=3)
        monkeypatch.setattr(enlistment, "TOPIC_SECONDS", -1.0)
        orm.publish(session, shop.topic, b"x", partition=3)


def test_two_engines_in_one_process_do_not_hear_of_each_other(shop: Shop, make_database: Callable[..., str]) -> None:
    """The other one's database has a topic of the same name, with other partitions."""
    url = make_database()
    with msgtx.connect(url) as client:
        client.topics.create("filler", partitions=5)
        client.topics.create(shop.topic)
        here, there = shop.engine(isolation_level="REPEATABLE READ"), shop.engine(url)
        with Session(here) as first, Session(there) as second:
            for session, value in ((first, b"here"), (second, b"there")):
                orm.publish(session, shop.topic, value)
            second.rollback()
            first.commit()
            assert shop.seen() == ([b"here"], [])
            orm.publish(second, shop.topic, b"there")
            second.commit()
        with client.consumer(shop.topic, auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.poll(10)] == [b"there"]


def test_our_own_connections_that_the_server_has_ended_are_replaced(shop: Shop) -> None:
    app = shop.engine(isolation_level="SERIALIZABLE")
    with Session(app) as session:
        for value in (b"a", b"b"):
            orm.publish(session, shop.topic, value, partition=0)
            mine = session.connection().connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
            shop.connection.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database()"
                " and usename = current_user and pid not in (pg_backend_pid(), %s)",
                [mine],
            )
            session.commit()
    assert shop.seen() == ([b"a", b"b"], [])


@pytest.mark.parametrize("changed", ["password", "login"])
def test_our_own_connections_log_in_as_the_newest_of_the_engine(shop: Shop, server: Any, changed: str) -> None:
    """Passwords may be tokens that end, and logins have a lease: SQLAlchemy asks for them at each connect."""
    with open_roles(server, shop.url) as roles:
        login = {"user": roles.make(f"produce:{shop.topic}"), "password": PASSWORD}
        engine = shop.engine(isolation_level="SERIALIZABLE", poolclass=sqlalchemy.NullPool)
        event.listen(engine, "do_connect", lambda *given: given[-1].update(login))
        for value in (b"a", b"b", b"c"):
            shop.publish(engine, value, partition=0)
            if changed == "password" and value == b"a":
                login["password"] *= 2
                roles.sql(f"alter role {login['user']} password '{login['password']}'")
            elif value == b"a":
                roles.sql(f"alter role {login['user']} nologin")
                login["user"] = roles.make(f"produce:{shop.topic}")
            roles.sql(f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = '{roles.made[0]}'")
    assert shop.seen() == ([b"a", b"b", b"c"], [])


# ── nothing is left behind ──


@pytest.mark.parametrize("level", LEVELS)
def test_engines_connections_and_records_are_let_go(shop: Shop, level: str) -> None:
    engine = sqlalchemy.create_engine(application_url(shop.url), isolation_level=level)
    connection = engine.connect()
    orm.publish(connection, shop.topic, b"x")
    connection.commit()
    orm.publish(connection, shop.topic, b"y")
    connection.rollback()
    gone = [weakref.ref(thing) for thing in (engine, connection)]
    connection.close()
    engine.dispose()
    del engine, connection
    gc.collect()
    assert [reference() for reference in gone] == [None] * 2


@pytest.mark.parametrize("level", LEVELS)
def test_a_connection_keeps_no_records_after_their_commit(shop: Shop, level: str) -> None:
    """It may live for long."""
    with shop.engine(isolation_level=level).connect() as connection:
        orm.publish(connection, shop.topic, b"x" * 1_000)
        riding = enlistment._enlistments[connection]
        assert len(riding.things) == 1
        connection.commit()
        assert not [thing for _, thing in riding.things if isinstance(thing, enlistment.Published)]


def test_our_connections_are_closed_with_the_applications(shop: Shop) -> None:
    app = shop.engine(isolation_level="REPEATABLE READ")
    ours = "select pid from pg_stat_activity where datname = current_database() and application_name like 'msgtx%'"
    before = set(shop.connection.execute(ours).fetchall())
    for value in (b"a", b"b"):
        shop.publish(app, value, partition=0)
        assert set(shop.connection.execute(ours).fetchall()) > before
        app.dispose()
        wait_until(lambda: set(shop.connection.execute(ours).fetchall()) == before, "they are closed")
    assert shop.seen() == ([b"a", b"b"], [])


def test_what_was_closed_with_the_applications_connections_does_not_add_up(shop: Shop) -> None:
    """An application may dispose of its connections now and then; its engine lives on."""
    app = shop.engine(isolation_level="REPEATABLE READ")
    shop.publish(app, b"x")
    gone = weakref.ref(side_connection._companions[app])
    app.dispose()
    gc.collect()
    assert gone() is None


def test_our_connections_are_closed_though_two_threads_needed_them_first(
    shop: Shop, background: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads share them: none is left over that nobody would close."""
    app, together, query = shop.engine(isolation_level="REPEATABLE READ"), threading.Barrier(2), side_connection.query
    ours = "select pid from pg_stat_activity where datname = current_database() and application_name like 'msgtx%'"
    before = set(shop.connection.execute(ours).fetchall())

    def asked_at_once(*arguments: Any) -> Any:
        together.wait(SECONDS)
        return query(*arguments)

    def work() -> None:
        shop.publish(app, b"x")

    monkeypatch.setattr(side_connection, "query", asked_at_once)
    for done in [background.submit(work) for _ in range(2)]:
        done.result(SECONDS)
    assert set(shop.connection.execute(ours).fetchall()) > before
    app.dispose()
    wait_until(lambda: set(shop.connection.execute(ours).fetchall()) == before, "they are closed")


@pytest.mark.parametrize("way", ["dispose", "no pool"])
def test_a_child_process_uses_connections_of_its_own(shop: Shop, way: str) -> None:
    """As a server that forks its workers does it: dispose(close=False) in the child, or an engine that keeps none."""
    app = shop.engine(isolation_level="REPEATABLE READ", poolclass=sqlalchemy.NullPool if way == "no pool" else None)

    def work(value: bytes) -> None:
        shop.publish(app, value, partition=0)

    work(b"parent")
    child = os.fork()
    if child == 0:
        try:
            if way == "dispose":
                app.dispose(close=False)
            work(b"child")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    work(b"parent")
    assert shop.seen() == ([b"parent", b"child", b"parent"], [])


def test_listeners_do_not_add_up(shop: Shop) -> None:
    app = shop.engine()
    for _ in range(3):
        for engine in (app, app.execution_options(isolation_level="SERIALIZABLE")):
            shop.publish(engine, b"x")
    heard = {name: list(getattr(app.dispatch, name)) for name in ("commit", "rollback", "rollback_savepoint")}
    assert {name: len(listeners) for name, listeners in heard.items()} == dict.fromkeys(heard, 1)
    assert list(app.dialect.dispatch.handle_error).count(enlistment._failed) == 1  # type: ignore[attr-defined]


def test_an_engine_with_options_for_each_request_opens_no_more_connections(shop: Shop) -> None:
    app = shop.engine(**NARROW)
    engines = [app.execution_options(isolation_level="REPEATABLE READ") for _ in range(20)]
    for engine in engines:
        shop.publish(engine, b"x")
    rows = shop.connection.execute(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'msgtx%%'"
    ).fetchone()
    assert rows is not None
    assert rows[0] <= 6, "one pool beside the application's"


def test_the_first_use_of_an_engine_by_many_threads_at_once_loses_nothing(
    shop: Shop, background: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that finds the engine known finds the listeners there."""
    app, slow = shop.engine(pool_size=8), event.listen

    def listen(*arguments: Any) -> None:
        threading.Event().wait(0.05)
        slow(*arguments)

    monkeypatch.setattr("msgtx.session.enlistment.event.listen", listen)

    def work(number: int) -> None:
        threading.Event().wait(0.02 * number)
        with Session(app) as session:
            session.add(Order(number=number))
            orm.publish(session, shop.topic, b"%d" % number, partition=0)
            session.commit()

    for done in [background.submit(work, number) for number in range(8)]:
        done.result()
    values, numbers = shop.seen()
    assert numbers == list(range(8))
    assert sorted(values) == [b"%d" % number for number in range(8)]  # type: ignore[type-var]  # none is null


def test_an_error_at_commit_that_msgtx_does_not_know_is_sqlalchemys(shop: Shop) -> None:
    """It was psycopg's own, and its own cause."""
    shop.connection.execute("create function fails() returns trigger language plpgsql as $$ begin return 1 / 0; end $$")
    shop.connection.execute("create trigger fails before insert on msgtx.record_batch for each row execute function fails()")
    try:
        with Session(shop.app) as session:
            orm.publish(session, shop.topic, b"x")
            with pytest.raises(sqlalchemy.exc.DataError, match="division by zero") as failed:
                session.commit()
        assert failed.value.__cause__ is not failed.value
    finally:
        shop.connection.execute("drop trigger fails on msgtx.record_batch")
        shop.connection.execute("drop function fails")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("goes_on", ["session", "another session", "connection"])
@pytest.mark.parametrize("heard", ["before", "behind"])
def test_what_another_listener_keeps_from_its_commit_is_in_no_later_one(
    shop: Shop, heard: str, goes_on: str, level: str
) -> None:
    """I6: SQLAlchemy takes it for ended, and would leave it open in the connection, for who has that next."""
    engine = shop.engine(pool_size=1, max_overflow=0, isolation_level=level)
    refusals: list[bool] = []

    def listener(_: sqlalchemy.Connection) -> None:
        if refusals:
            refusals.clear()
            raise ZeroDivisionError

    if heard == "before":
        event.listen(engine, "commit", listener)
    with Session(engine) as session:
        orm.publish(session, shop.topic, b"rolled back")
    if heard == "behind":
        event.listen(engine, "commit", listener)
    refusals.append(True)
    with engine.connect() if goes_on == "connection" else Session(engine) as holder:
        holder.execute(insert(1))
        orm.publish(holder, shop.topic, b"1")
        with pytest.raises(ZeroDivisionError):
            holder.commit()
        (holder.close if goes_on == "another session" else holder.rollback)()
        with Session(engine) if goes_on == "another session" else contextlib.nullcontext(holder) as following:
            following.execute(insert(2))
            orm.publish(following, shop.topic, b"2")
            following.commit()
    assert shop.seen() == ([b"2"], [2])


def test_a_commit_without_messages_that_another_listener_refuses_is_sqlalchemys(shop: Shop) -> None:
    engine = shop.engine(pool_size=1, max_overflow=0)
    with Session(engine) as session:
        orm.publish(session, shop.topic, b"rolled back")

    def listener(_: sqlalchemy.Connection) -> None:
        raise ZeroDivisionError

    event.listen(engine, "commit", listener)
    for _ in range(2):
        session = Session(engine)
        session.execute(insert(1))
        with pytest.raises(ZeroDivisionError):
            session.commit()
        session.close()


def test_an_error_at_commit_that_is_the_applications_own_is_sqlalchemys(shop: Shop) -> None:
    """Also with an SQLSTATE that has a name in msgtx."""
    shop.connection.execute(
        "create function fails() returns trigger language plpgsql as"
        " $$ begin raise exception using errcode = '55P03', message = 'the warehouse is busy'; end $$"
    )
    shop.connection.execute(
        "create constraint trigger fails after insert on orders deferrable initially deferred for each row"
        " execute function fails()"
    )
    try:
        with Session(shop.app) as session:
            session.execute(insert(1))
            orm.publish(session, shop.topic, b"x")
            with pytest.raises(sqlalchemy.exc.OperationalError, match="the warehouse is busy"):
                session.commit()
    finally:
        shop.connection.execute("drop trigger fails on orders")
        shop.connection.execute("drop function fails")
    assert shop.seen() == ([], [])


def test_an_engine_whose_server_is_gone_raises_sqlalchemys_error(shop: Shop) -> None:
    app = shop.engine(poolclass=sqlalchemy.NullPool)
    shop.publish(app, b"x")

    def gone(*_: object) -> None:
        raise psycopg.OperationalError("the server is gone")

    event.listen(app, "do_connect", gone)
    with pytest.raises(sqlalchemy.exc.OperationalError, match="the server is gone"):
        app.connect()


def test_the_pool_of_a_client_commits_the_calls_after_a_transaction_with_messages(shop: Shop) -> None:
    """Its connections commit by themselves, and those of an application do not."""
    with Engine(shop.url, pool_size=1) as engine:
        with engine.transaction() as connection:
            orm.publish(connection, shop.topic, b"x")
        with engine.connection() as lent:
            lent.execute("insert into orders (number) values (1)")
    assert shop.seen() == ([b"x"], [1])
