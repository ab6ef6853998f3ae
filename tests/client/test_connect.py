"""Connecting: addresses, schemas, rights; each mistake is reported in one line (internals: errors-and-retries)."""

import concurrent.futures
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

import msgtx
from msgtx import errors
from msgtx.database import address, embedded, opening
from msgtx.database.calls import query
from msgtx.store.operator.installation import SCHEMA_VERSION
from tests.client.steps import begun
from tests.databases import PATIENCE_SECONDS, Connection, Server, connect, wait_until, waiting_backends
from tests.hooks import Hook
from tests.refusals import refuses

Databases = Callable[..., str]
Unique = Callable[[str], str]


def test_the_address_is_shown_without_its_password(client: msgtx.Client) -> None:
    assert "***" in client.url
    assert client.url.startswith("postgresql://")


def test_a_connection_that_cannot_be_opened_beside_calls_that_are_answered_is_no_outage(
    client: msgtx.Client, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a worker, long afterwards, would count its `outage_timeout` from then on."""
    engine = client.runtime.engine
    with engine.connection() as lent:
        query(lent, "select 1")
    with caplog.at_level("INFO", logger="msgtx.database"):
        with hook.at("connect", errors.DatabaseUnavailable("too many clients")), refuses(errors.DatabaseUnavailable):
            engine.dedicated()
        with engine.connection() as lent:
            query(lent, "select 1")
    assert engine.outages.since is None
    assert caplog.messages == []


@pytest.mark.parametrize("form", ["as it is", "two hosts", "words and values"])
def test_a_client_makes_sqlalchemys_engine_of_its_address(database_url: str, form: str) -> None:
    """Its password is not shown, and a connection that the server has ended is replaced."""
    found = address.parse(database_url)
    several = {**found, "host": f"{found['host']},{found['host']}", "port": f"{found['port']},{found['port']}"}
    words = address.conninfo(several if form == "two hosts" else found)
    with msgtx.connect(database_url if form == "as it is" else words) as client:
        engine = client.engine(pool_size=1, connect_args={"application_name": "shop"})
        assert found["password"] not in repr(engine)
        with engine.connect() as connection:
            row = connection.execute(text("select current_setting('application_name'), pg_backend_pid()")).one()
        assert row[0] == "shop"
        with connect(database_url) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", [row[1]])
        with engine.connect() as connection:
            assert connection.execute(text("select 1")).scalar() == 1
        engine.dispose()


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://a@b/c", "postgresql://u@127.0.0.1:notaport/x"])
def test_an_address_that_is_none_is_a_config_error(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("MSGTX_DATABASE_URL", url or "also nonsense")
    with refuses(errors.ConfigError, name="url"):
        msgtx.connect(url or None)


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_address_starts_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty: str) -> None:
    monkeypatch.setenv("MSGTX_HOME", str(tmp_path / "home"))
    with refuses(errors.ConfigError, name="url"):
        msgtx.connect(empty)
    monkeypatch.setenv("MSGTX_DATABASE_URL", empty)
    with refuses(errors.ConfigError, name="url"):
        msgtx.connect()
    monkeypatch.delenv("MSGTX_DATABASE_URL")
    for how, name in (("never", "url"), ("sometimes", "MSGTX_EMBEDDED")):
        monkeypatch.setenv("MSGTX_EMBEDDED", how)
        with refuses(errors.ConfigError, name=name):
            msgtx.connect()
    assert not (tmp_path / "home").exists()


def test_a_setting_of_the_client_is_an_argument_or_of_the_environment(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(**given: Any) -> str:
        with msgtx.connect(database_url, **given) as client:
            return client.runtime.engine.on_failover

    assert (found(), found(on_failover="stop")) == ("trust", "stop")
    monkeypatch.setenv("MSGTX_ON_FAILOVER", "stop")
    assert (found(), found(on_failover="trust")) == ("stop", "trust")
    monkeypatch.setenv("MSGTX_ON_FAILOVER", "perhaps")
    with refuses(errors.ConfigError, name="on_failover"):
        found()


def test_a_program_that_names_no_database_is_told_which_one_it_uses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: Server
) -> None:
    """On stderr, once."""
    if "MSGTX_TEST_DATABASE_URL" in os.environ:
        pytest.skip("this run has no embedded server")
    monkeypatch.delenv("MSGTX_DATABASE_URL", raising=False)
    monkeypatch.setattr(opening, "_told", set())
    home = embedded.default_home()
    monkeypatch.setenv("MSGTX_EMBEDDED", "quiet")
    msgtx.connect().close()
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("MSGTX_EMBEDDED")
    for _ in range(2):
        msgtx.connect().close()
    said = capsys.readouterr().err
    assert said.startswith(f"msgtx: no database is named (MSGTX_DATABASE_URL): joined the embedded PostgreSQL in {home} (")
    assert said.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a place for the machine")
def test_root_in_another_home_has_a_server_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MSGTX_HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/root")
    assert embedded.default_home() == Path("/var/lib/msgtx")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert embedded.default_home() == tmp_path / ".local/share/msgtx"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert embedded.default_home() == tmp_path / "data/msgtx"


def test_names_that_are_nearly_there_are_asked_for(client: msgtx.Client) -> None:
    client.topics.create("nearly-there", if_not_exists=True)
    client.topics.create("nearly-there", partitions=5, if_not_exists=True)
    assert client.topics.describe("nearly-there").partitions == 1
    with pytest.raises(errors.TopicExists):
        client.topics.create("nearly-there")
    question = "there is no topic 'nearly-ther'; did you mean 'nearly-there'?"
    with client.producer(transactional_id="nearly-billing") as producer, client.consumer() as consumer:
        with producer.transaction():
            producer.send("nearly-there", b"")
        for call in (
            lambda: producer.send("nearly-ther", b""),
            lambda: consumer.subscribe(["nearly-ther"]),
            lambda: client.consumer("nearly-ther"),
            lambda: client.topics.describe("nearly-ther"),
            lambda: client.snapshot(["nearly-ther"]),
            lambda: client.process("nearly-ther", to="a", group="a", transactional_id="a", transform=lambda record: None),
        ):
            with pytest.raises(errors.UnknownTopicOrPartition) as caught:
                call()
            assert str(caught.value) == question
        with pytest.raises(errors.TransactionalIdNotFound, match="did you mean 'nearly-billing'"):
            client.admin.transactions.describe("nearly-biling")
    with refuses(errors.UnknownTopicOrPartition, topic="quite-another"):
        client.topics.describe("quite-another")
    client.consumer("nearly-there", group="nearly-a-group").close()
    with pytest.raises(errors.GroupNotFound, match="did you mean 'nearly-a-group'"):
        client.admin.groups.reset("nearly-a-grup", "earliest")


def test_settings_of_topics_have_units(client: msgtx.Client) -> None:
    made = client.topics.create("units", retention_ms="7d", retention_bytes="10GiB", delete_retention_ms=timedelta(hours=1))
    assert (made.settings["retention_ms"], made.settings["retention_bytes"]) == (604_800_000, 10 * 1024**3)
    assert made.settings["delete_retention_ms"] == 3_600_000
    assert client.topics.alter("units", retention_ms=-1, max_message_bytes="1MiB").settings["max_message_bytes"] == 1024**2
    with refuses(errors.ConfigError, name="retention_ms"):
        client.topics.alter("units", retention_ms="a week")


def test_a_list_of_topics_is_refused_in_words(client: msgtx.Client) -> None:
    with refuses(TypeError, name="topic"):
        client.consumer(["a", "b"])  # type: ignore[arg-type]


def test_nobody_at_the_address_is_database_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and never listened to: refused
        port = taken.getsockname()[1]
        with pytest.raises(errors.DatabaseUnavailable):
            msgtx.connect(f"postgresql://a:b@127.0.0.1:{port}/c")


def test_a_wrong_password_and_a_missing_database_are_told(database_url: str, server: Server) -> None:
    with pytest.raises(errors.LoginRefused):
        msgtx.connect(database_url.replace(server.password, "wrong"))
    with pytest.raises(errors.LoginRefused, match="nobody"):
        msgtx.connect(database_url.replace("://", "://nobody", 1))
    with pytest.raises(errors.DatabaseNotFound):
        msgtx.connect(server.url("no_such_database"))


def test_a_missing_schema_says_what_to_run(make_database: Databases) -> None:
    url = make_database(schema=False)
    with refuses(errors.ConfigError, reason="no schema"):
        msgtx.connect(url)
    with msgtx.connect(url, create=True) as client:
        client.topics.create("orders")
    with msgtx.connect(url) as client:
        assert client.topics.list() == ["orders"]


@pytest.mark.parametrize(("version", "todo"), [(0, "msgtx db upgrade"), (SCHEMA_VERSION + 2, "newer msgtx")])
def test_a_schema_of_another_version_says_what_to_do(make_database: Databases, version: int, todo: str) -> None:
    url = make_database()
    with connect(url) as connection:
        connection.execute("update msgtx.installation set schema_version = %s", [version])
    with refuses(errors.ConfigError, reason="schema version"):
        msgtx.connect(url)


def test_the_next_version_is_accepted(make_database: Databases) -> None:
    url = make_database()
    with connect(url) as connection:
        connection.execute("update msgtx.installation set schema_version = schema_version + 1")
    msgtx.connect(url).close()


def test_a_role_without_rights_is_told(make_database: Databases, server: Server) -> None:
    url = make_database()
    with server.administrator() as administrator:
        administrator.execute("create role stranger login password 'stranger'")
    try:
        with pytest.raises(errors.AuthorizationFailed):
            msgtx.connect(url.replace(server.role, "stranger").replace(server.password, "stranger"))
    finally:
        with server.administrator() as administrator:
            administrator.execute("drop role stranger")


def test_a_read_only_database_is_told_and_may_be_read(make_database: Databases) -> None:
    url = make_database()
    with msgtx.connect(url) as client, client.producer() as producer:
        client.topics.create("orders")
        producer.send("orders", b"a").result(30)
    with connect(url) as connection:
        name = connection.info.dbname
        connection.execute(f"alter database {name} set default_transaction_read_only = on")
    with msgtx.connect(url) as client:
        with client.consumer("orders", auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.poll(30)] == [b"a"]
        with refuses(errors.ConfigError, reason="read-only"):
            client.topics.create("more")
        with refuses(errors.ConfigError, reason="read-only"), client.producer(max_block_ms=1_000) as producer:
            producer.send("orders", b"b").result(30)
        with refuses(errors.ConfigError, reason="read-only"):
            client.producer(transactional_id="t", max_block_ms=1_000).init_transactions()


def test_a_full_pool_is_told(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msgtx.database.pool.POOL_TIMEOUT_SECONDS", 0.05)
    with msgtx.connect(database_url, pool_size=1) as client, client.runtime.engine.connection():  # noqa: SIM117 - one after the other reads better
        with refuses(errors.DatabaseUnavailable, reason="pool busy"):
            client.topics.list()


def test_topics_by_their_own_names(client: msgtx.Client) -> None:
    described = client.topics.create("described", partitions=2, retention_ms=5)
    assert (described.name, described.partitions, described.settings["retention_ms"]) == ("described", 2, 5)
    assert client.topics.describe("described") == described
    everything = client.topics.describe_all()
    assert described in everything
    assert [each.name for each in everything] == client.topics.list()
    with pytest.raises(errors.TopicExists):
        client.topics.create("described")
    with refuses(errors.ConfigError, name="retention"):
        client.topics.create("other", retention=5)
    for call in (client.topics.describe, client.topics.delete):
        with pytest.raises(errors.UnknownTopicOrPartition):
            call("nowhere")
    with pytest.raises(errors.UnknownTopicOrPartition):
        client.admin.partitions.describe(msgtx.TopicPartition("described", 2))
    client.topics.delete("described")
    assert "described" not in client.topics.list()


def test_settings_are_checked_before_anything_is_sent(client: msgtx.Client) -> None:
    with pytest.raises(errors.ConfigError, match="linger_ms"):
        client.producer(linger=5)
    with pytest.raises(errors.ConfigError, match=r"acks=1"):
        client.producer(transactional_id="t", acks=1)
    with refuses(errors.ConfigError, name="processing.guarantee"):
        client.producer(config={"processing.guarantee": "exactly_once_v2"})
    with pytest.raises(errors.InvalidTransactionTimeout):
        client.producer(transactional_id="t", transaction_timeout_ms=0)
    with client.producer(config={"linger.ms": 7, "batch.size": 9}, linger_ms=8) as producer:
        assert (producer.config.linger_ms, producer.config.batch_bytes) == (8, 9)
    with pytest.raises(errors.InvalidTransactionTimeout):
        client.producer(transactional_id="t", transaction_timeout_ms=900_001).init_transactions()


def test_a_failed_init_may_be_repeated(client: msgtx.Client, hook: Hook) -> None:
    """It failed because its time was over."""
    with client.producer(transactional_id="held") as first, first.transaction() as transaction:
        pass
    producer = client.producer(transactional_id="held", retry_backoff_ms=5)
    with hook.at("before init_producer_id", errors.LockTimeout("its lock is held")):
        with pytest.raises(errors.LockTimeout):
            producer.init_transactions(timeout=0.1)
        with pytest.raises(errors.LockTimeout):  # there is no time for a second attempt
            client.producer(transactional_id="held", retry_backoff_ms=20_000).init_transactions(timeout=10)
    producer.init_transactions()
    with producer.transaction() as again:
        pass
    assert again.id.producer_epoch > transaction.id.producer_epoch


def test_an_embedded_database_is_made_by_connect(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without any address: started or joined, created and upgraded; eight at once get the same one."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        clients = list(threads.map(lambda _: msgtx.connect(pool_size=1), range(8)))
    try:
        assert len({client.url for client in clients}) == 1
        assert Path(str(embedded.default_home())).exists()
        if "made-by-connect" not in clients[0].topics.list():
            clients[0].topics.create("made-by-connect")
        assert "made-by-connect" in clients[7].topics.list()
        with psycopg.connect(clients[0].secret_url) as program:
            assert program.execute("select current_schema").fetchone() == ("public",), "its tables are not among msgtx's"
            program.execute("create table a_table_of_a_program (n int)")
            program.rollback()
    finally:
        for client in clients:
            client.close()


def test_a_client_forgets_what_is_closed(client: msgtx.Client) -> None:
    with client.producer() as first, client.consumer() as second:
        assert not first.closed
        assert not second.closed
    for _ in range(3):
        with client.producer():
            pass
    kept = client.producer()
    assert client.runtime._open == [kept]
    assert first.closed
    assert second.closed


def test_a_producer_whose_block_could_not_begin_is_forgotten(client: msgtx.Client, unique: Unique) -> None:
    """A program that tries again and again would else keep all of them."""
    for _ in range(3):
        made = client.producer(transactional_id=unique("id"), transaction_timeout_ms=10**9)
        with pytest.raises(errors.InvalidTransactionTimeout), made:
            pass
    kept = client.producer()
    assert client.runtime._open == [kept]


def test_what_is_closed_has_ended_its_threads(client: msgtx.Client, database_url: str) -> None:
    """Each ends soon by itself: whether it was waited for shows in one of many."""
    client.topics.create("threads")

    def threads() -> set[str]:
        return {each.name for each in threading.enumerate() if each.name.startswith("msgtx-") and each not in others}

    others = set(threading.enumerate())  # of tests before
    begun = set()
    for number in range(10):
        with msgtx.connect(database_url) as other:
            with other.producer(transactional_id="threads") as transactional, transactional.transaction():
                transactional.send("threads", b"a")
            with other.producer() as producer:
                producer.send("threads", b"b", dedup_key=f"{number}").result(30)
                begun |= threads()
            assert threads() & {"msgtx-sender", "msgtx-deduplicator"} == set()
            with other.consumer(group="threads", auto_offset_reset="earliest") as consumer:
                consumer.subscribe(["threads"])
                assert consumer.poll(30)
                assert consumer.poll(0.02) == []
                begun |= threads()
            assert "msgtx-heartbeat" not in threads()
        assert threads() == set()
    assert begun >= {"msgtx-sender", "msgtx-deduplicator", "msgtx-heartbeat", "msgtx-listener", "msgtx-completion"}


def test_a_consumer_that_is_made_while_its_client_is_closed_is_no_member(
    database_url: str, client: msgtx.Client, connection: Connection, unique: Unique, background: Any
) -> None:
    """Nobody would close it, and it would keep its partitions from the others."""
    name = unique("topic")
    client.topics.create(name)
    other = msgtx.connect(database_url)
    with connection.transaction():
        connection.execute("select msgtx.lock_group(%s)", [name])
        making = background.submit(other.consumer, name, group=name)
        wait_until(lambda: waiting_backends(connection), "it joins")
        other.close()
    with refuses(errors.IllegalState, reason="closed"):
        making.result(30)
    assert client.admin.groups.members(name) == []


def test_a_close_that_fails_leaves_nothing_else_open(
    database_url: str, client: msgtx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = msgtx.connect(database_url)
    first, second = other.producer(), other.producer()

    def fails() -> None:
        raise KeyError("planted")

    monkeypatch.setattr(first, "close", fails)
    with pytest.raises(KeyError):
        other.close()
    assert second.closed
    monkeypatch.undo()
    other.close()
    assert first.closed


def test_a_close_that_was_interrupted_is_finished_by_the_next_one(
    database_url: str, client: msgtx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Ctrl-C in a notebook, where the process goes on."""
    name = unique("topic")
    client.topics.create(name)
    other = msgtx.connect(database_url)
    first, (second, transaction) = other.producer(), begun(other, name)
    second.send(name, b"a").result(30)

    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(first, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        other.close()
    other.close()
    assert first.closed
    assert client.transaction_outcome(transaction.id) is msgtx.Outcome.ABORTED


def test_objects_say_what_they_are(client: msgtx.Client, topic: str) -> None:
    """And no secret."""
    with (
        client.producer(transactional_id="billing") as billing,
        client.producer() as producer,
        client.consumer(topic, group=topic) as consumer,
        client.share_consumer(topic, group=f"{topic}-shares") as member,
    ):
        future = producer.send(topic, b"x")
        future.result(PATIENCE_SECONDS)
        batch = producer.send_batch(topic, [b"x"] * 3)
        batch.result(PATIENCE_SECONDS)
        assert repr(client) == f"<msgtx.Client of {client.url}>"
        assert repr(billing) == "<msgtx.Producer 'billing', READY>"
        assert repr(producer) == "<msgtx.Producer, READY>"
        assert repr(consumer) == f"<msgtx.Consumer of group {topic!r}, 1 partition>"
        assert repr(member) == f"<msgtx.ShareConsumer of group '{topic}-shares', {topic}>"
        assert repr(future) == f"<RecordFuture of {topic}-0, offset 0>"
        assert repr(batch) == "<BatchFuture of 3 records, finished>"
    assert repr(consumer).endswith(", closed>")


def test_each_wait_takes_a_duration_with_its_unit(client: msgtx.Client, topic: str) -> None:
    """A number alone is in seconds; a wrong one is refused by the argument's name."""
    with client.producer(transactional_id=topic) as producer, client.consumer(topic, group=topic) as consumer:
        assert consumer.poll("10ms") == consumer.poll(timedelta(milliseconds=10)) == []
        producer.begin_transaction("5s")
        producer.send(topic, json={"id": 1}).result("10s")
        producer.flush("10s")
        producer.commit_transaction("10s")
        (record,) = consumer.poll("10s")
        assert record.json() == {"id": 1}
        consumer.committed([], timeout="1s")
        for call in (consumer.poll, producer.flush, producer.commit_transaction, producer.close):
            with refuses(errors.ConfigError, name="timeout"):
                call("soon")
        with refuses(errors.ConfigError, name="timeout_ms"):
            producer.begin_transaction("soon")
        producer.close("1s")
