"""Every wait ends: a server that is stopped, a COMMIT that waits, a host that does not answer (I9, I16)."""

import concurrent.futures
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import make_url as url_of

import msgtx
from msgtx import errors
from msgtx.database.calls import query
from msgtx.database.connection import Connection, until
from msgtx.database.pool import Engine
from tests.client.steps import store
from tests.databases import PATIENCE_SECONDS, wait_until
from tests.links import Link, deaf_server, unix_link
from tests.refusals import refuses

pytestmark = pytest.mark.slow

SECONDS = PATIENCE_SECONDS
SOON = 25.0  # an answer that has not come by then never comes: the limits below are a few seconds


@pytest.fixture
def link(database_url: str) -> Iterator[Link]:
    with unix_link(database_url) as made:
        yield made


@pytest.fixture
def far(link: Link) -> Iterator[msgtx.Client]:
    with msgtx.connect(link.url) as client:
        yield client
        link.thaw()


@pytest.fixture
def topic(client: msgtx.Client, unique: Callable[[str], str]) -> str:
    return client.topics.create(unique("deadline"), partitions=2).name


@contextlib.contextmanager
def within(seconds: float = SOON) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def test_a_commit_that_is_not_answered_is_of_unknown_outcome_in_time_and_is_learned_later(
    link: Link, far: msgtx.Client, topic: str
) -> None:
    with far.producer(transactional_id=topic) as producer:
        for fused in (True, False):
            producer.begin_transaction()
            sent = producer.send(topic, b"x")
            if not fused:
                producer.flush(SECONDS)
            link.freeze()
            with within(), pytest.raises(errors.OutcomeUnknown):
                producer.commit_transaction(timeout=1.0)
            link.thaw()
            producer.commit_transaction(SECONDS)  # the same call again
            assert sent.result(SECONDS).offset >= 0


@pytest.mark.parametrize("call", ["init", "abort", "begin a prepared one's successor"])
def test_every_call_of_a_transaction_ends_in_time(link: Link, far: msgtx.Client, topic: str, call: str) -> None:
    producer = far.producer(transactional_id=topic, max_block_ms=4_000)
    if call == "init":
        link.freeze()
        with within(), pytest.raises(errors.DatabaseUnavailable):
            producer.init_transactions()
    else:
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.send(topic, b"x").result(SECONDS) if call == "abort" else producer.send(topic, b"x")
        if call == "abort":
            link.freeze()
            with within(), pytest.raises(errors.OutcomeUnknown):
                producer.abort_transaction()
        else:
            producer.prepare_transaction(SECONDS)
            link.freeze()
            with within(), pytest.raises(errors.DatabaseUnavailable):
                producer.begin_transaction()
    with within(SOON + 10):
        producer.close(1.0)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_send_that_is_not_answered_fails_in_time(link: Link, far: msgtx.Client, topic: str, keyed: bool) -> None:
    with far.producer(delivery_timeout_ms=6_000) as producer:
        producer.send(topic, b"a", partition=0, dedup_key="a" if keyed else None).result(SECONDS)
        link.freeze()
        with within():
            future = producer.send(topic, b"b", partition=0, dedup_key="b" if keyed else None)
            assert isinstance(future.exception(SECONDS), errors.DeliveryTimeout)
        link.thaw()
        assert producer.send(topic, b"c", partition=0, dedup_key="c" if keyed else None).result(SECONDS).offset >= 1


@pytest.mark.parametrize("what", ["send", "send with a key", "commit"])
def test_a_request_without_an_answer_is_repeated_over_another_connection(
    link: Link, far: msgtx.Client, topic: str, what: str
) -> None:
    """`request_timeout_ms` of a producer: a connection lost in a firewall costs that long, not the delivery timeout."""
    transactional_id = topic if what == "commit" else None
    key = "key" if what == "send with a key" else None
    with far.producer(transactional_id=transactional_id, request_timeout_ms=500) as producer:
        if transactional_id is not None:
            producer.begin_transaction()
        producer.send(topic, b"a", partition=0).result(SECONDS)
        link.strand()
        with within():
            if transactional_id is not None:
                producer.commit_transaction(SECONDS)
            else:
                assert producer.send(topic, b"b", partition=0, dedup_key=key).result(SECONDS).offset == 1
        link.cut()


def test_what_waits_in_the_buffer_fails_in_time_too(link: Link, far: msgtx.Client, topic: str) -> None:
    """It is not sent while the call before it is on its way."""
    with far.producer(delivery_timeout_ms=6_000, linger_ms=0) as producer:
        producer.send(topic, b"a", partition=0).result(SECONDS)
        link.freeze()
        first = producer.send(topic, b"b", partition=0)
        time.sleep(0.7)
        later = producer.send(topic, b"c", partition=1)
        with within():
            assert isinstance(first.exception(SECONDS), errors.DeliveryTimeout)
            assert isinstance(later.exception(SECONDS), errors.DeliveryTimeout)


def test_a_consumer_polls_commits_and_closes_in_time(
    link: Link, far: msgtx.Client, client: msgtx.Client, topic: str
) -> None:
    store(client, topic, b"x")
    consumer = far.consumer(
        topic, group=topic, auto_offset_reset="earliest", request_timeout_ms=1_000, session_timeout_ms=6_000
    )
    while not consumer.poll(SECONDS):
        pass
    link.freeze()
    with within(), pytest.raises(errors.DatabaseUnavailable):
        [consumer.poll(0.1) for _ in range(1_000)]
    with within(), pytest.raises(errors.DatabaseUnavailable):
        consumer.commit()
    with within(SOON + 10):
        consumer.close()


def test_a_client_closes_in_time_whatever_it_is_doing(link: Link, topic: str, database_url: str) -> None:
    with msgtx.connect(link.url) as far:
        producer = far.producer(delivery_timeout_ms=1_000)
        producer.send(topic, b"a").result(SECONDS)
        transactional = far.producer(transactional_id=topic, max_block_ms=4_000, delivery_timeout_ms=1_000)
        transactional.init_transactions()
        transactional.begin_transaction()
        transactional.send(topic, b"b").result(SECONDS)
        consumer = far.consumer(topic, group=topic, request_timeout_ms=1_000, session_timeout_ms=6_000)
        consumer.poll(0.1)
        link.freeze()
        producer.send(topic, b"c")
        with within(60.0):
            far.close()
    link.thaw()


def test_a_call_of_an_administrator_ends_in_time_and_its_connection_is_not_used_again(link: Link, far: msgtx.Client) -> None:
    assert far.topics.list() is not None
    link.freeze()
    with within(), until(silence=0.5), pytest.raises(errors.DatabaseUnavailable, match="did not answer"):
        far.topics.list()
    link.thaw()
    assert far.topics.list() is not None


def test_a_long_answer_is_not_silence(database_url: str) -> None:
    """Only silence counts: a result that keeps arriving is awaited for longer than that."""
    with contextlib.closing(Connection.connect(database_url, autocommit=True)) as connection, until(silence=0.4):
        rows = query(connection, "select repeat('x', 20000), pg_sleep(0.02) from generate_series(1, 60)")
        assert len(rows) == 60
        with pytest.raises(errors.DatabaseUnavailable, match="nothing for"):
            query(connection, "select pg_sleep(20)")
        assert connection.closed


def test_the_inner_silence_and_the_earlier_deadline_count(database_url: str) -> None:
    with contextlib.closing(Connection.connect(database_url, autocommit=True)) as connection, until(silence=0.2):
        with until(silence=5.0):
            query(connection, "select pg_sleep(0.5)")
        with until(time.monotonic() + 0.3, silence=5.0), until(time.monotonic() + 60), within(15.0):  # noqa: SIM117
            with pytest.raises(errors.DatabaseUnavailable, match="time is over"):
                query(connection, "select pg_sleep(20)")


def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    with deaf_server() as url, within(SOON + 10), pytest.raises(errors.DatabaseUnavailable):
        msgtx.connect(url + "?connect_timeout=2")
    with deaf_server() as url, within(), until(time.monotonic() + 1.0), pytest.raises(errors.DatabaseUnavailable):
        Engine(url).dedicated()


def test_hosts_that_say_nothing_share_the_time_of_a_call() -> None:
    """Each had all of it: a call took three times as long as it may."""
    with contextlib.ExitStack() as servers:
        ports = [url_of(servers.enter_context(deaf_server())).port for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        with within(13.0), until(time.monotonic() + 6.0), pytest.raises(errors.DatabaseUnavailable):
            Engine(f"postgresql://u@{hosts}/d").dedicated()


def test_a_name_that_nobody_resolves_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def hang(*_: object, **__: object) -> None:
        asked.wait(SECONDS)
        raise OSError("never")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with within(), until(time.monotonic() + 1.0), pytest.raises(errors.DatabaseUnavailable, match="resolve"):
        Engine("postgresql://u@database.example/d").dedicated()
    asked.set()


def test_a_pool_that_is_in_use_is_waited_for_until_the_deadline(database_url: str) -> None:
    with Engine(database_url, pool_size=1) as engine, engine.connection():  # noqa: SIM117 - one after the other reads better
        with until(time.monotonic() + 0.2), within(), refuses(errors.DatabaseUnavailable, reason="pool busy"):
            with engine.connection():
                pass


def test_ctrl_c_in_the_middle_of_a_call_leaves_no_connection_in_use(
    database_url: str, client: msgtx.Client, request: pytest.FixtureRequest
) -> None:
    # Also if the tests were started in the background by a shell that makes them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with Engine(database_url, pool_size=1) as engine:
        main = threading.main_thread().ident
        assert main is not None
        with concurrent.futures.ThreadPoolExecutor(1) as background:

            def interrupt() -> None:
                wait_until(lambda: client.admin and _sleeps(database_url), "the call is on its way", seconds=SECONDS)
                signal.pthread_kill(main, signal.SIGINT)

            hit = background.submit(interrupt)
            with within(), pytest.raises(KeyboardInterrupt), engine.connection() as connection:
                query(connection, "select pg_sleep(20)")
            hit.result(SECONDS)
        with engine.connection() as again:
            assert query(again, "select 1") == [(1,)]


def _sleeps(url: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "select from pg_stat_activity where query = 'select pg_sleep(20)' and state = 'active'"
        ).fetchone()
        return found is not None
