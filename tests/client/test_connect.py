"""Connecting: addresses, schemas, rights; each mistake is reported in one line (internals: errors-and-retries)."""

import concurrent.futures
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import msgtx
from msgtx import errors
from msgtx.database import embedded
from msgtx.store.installation import SCHEMA_VERSION
from tests.databases import Server, connect

Databases = Callable[..., str]


def test_the_address_is_shown_without_its_password(client: msgtx.Client) -> None:
    assert "***" in client.url
    assert client.url.startswith("postgresql://")


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://a@b/c", "postgresql://u@127.0.0.1:notaport/x"])
def test_an_address_that_is_none_is_a_config_error(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("MSGTX_DATABASE_URL", url or "also nonsense")
    with pytest.raises(errors.ConfigError, match="postgresql://"):
        msgtx.connect(url or None)


def test_nobody_at_the_address_is_database_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and never listened to: refused
        port = taken.getsockname()[1]
        with pytest.raises(errors.DatabaseUnavailable):
            msgtx.connect(f"postgresql://a:b@127.0.0.1:{port}/c")


def test_a_wrong_password_and_a_missing_database_are_told(database_url: str, server: Server) -> None:
    with pytest.raises(errors.AuthorizationFailed):
        msgtx.connect(database_url.replace(server.password, "wrong"))
    with pytest.raises(errors.ConfigError, match="does not exist"):
        msgtx.connect(server.url("no_such_database"))


def test_a_missing_schema_says_what_to_run(make_database: Databases) -> None:
    url = make_database(schema=False)
    with pytest.raises(errors.ConfigError, match="msgtx db init"):
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
    with pytest.raises(errors.ConfigError, match=todo):
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
        with pytest.raises(errors.ConfigError, match="read-only"):
            client.topics.create("more")
        with pytest.raises(errors.ConfigError, match="read-only"), client.producer(max_block_ms=1_000) as producer:
            producer.send("orders", b"b").result(30)
        with (
            pytest.raises(errors.ConfigError, match="read-only"),
            client.producer(transactional_id="t", max_block_ms=1_000),
        ):
            pass


def test_a_full_pool_is_told(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msgtx.database.pool.POOL_TIMEOUT_SECONDS", 0.05)
    with msgtx.connect(database_url, pool_size=1) as client, client.engine.connection():  # noqa: SIM117 - one after the other reads better
        with pytest.raises(errors.DatabaseUnavailable, match="busy"):
            client.topics.list()


def test_topics_by_their_own_names(client: msgtx.Client) -> None:
    described = client.topics.create("described", partitions=2, retention_ms=5)
    assert (described.name, described.partitions, described.settings["retention_ms"]) == ("described", 2, 5)
    assert client.topics.describe("described") == described
    with pytest.raises(errors.TopicExists):
        client.topics.create("described")
    with pytest.raises(errors.ConfigError, match="retention"):
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
    with pytest.raises(errors.ConfigError, match=r"client\.process"):
        client.producer(config={"processing.guarantee": "exactly_once_v2"})
    with pytest.raises(errors.InvalidTransactionTimeout):
        client.producer(transactional_id="t", transaction_timeout_ms=0)
    with client.producer(config={"linger.ms": 7, "batch.size": 9}, linger_ms=8) as producer:
        assert (producer.config.linger_ms, producer.config.batch_bytes) == (8, 9)
    with (
        pytest.raises(errors.InvalidTransactionTimeout),
        client.producer(transactional_id="t", transaction_timeout_ms=900_001),
    ):
        pass


def test_a_failed_init_may_be_repeated(database_url: str) -> None:
    """It failed because its time was over."""
    with msgtx.connect(database_url) as client, connect(database_url) as holder:
        with client.producer(transactional_id="held") as first, first.transaction() as transaction:
            pass
        signature = holder.execute(
            "select oid::regprocedure from pg_proc where proname = 'init_producer_id'"
            " and pronamespace = 'msgtx'::regnamespace"
        ).fetchone()[0]
        holder.execute(f"alter function {signature} set lock_timeout = '20ms'")
        producer = client.producer(transactional_id="held", retry_backoff_ms=5)
        try:
            with holder.transaction():
                holder.execute("select msgtx.lock_producer(%s)", [transaction.id.producer_id])
                with pytest.raises((errors.LockTimeout, errors.DatabaseUnavailable)):
                    producer.init_transactions(timeout=0.1)
        finally:
            holder.execute(f"alter function {signature} set lock_timeout = '10s'")
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
    assert client._open == [kept]
    assert first.closed
    assert second.closed
