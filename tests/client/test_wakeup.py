"""Which readers are notified of commits, by whom, and when: none depends on another commit."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from psycopg import pq
from sqlalchemy import make_url

import msgtx
from msgtx.coordinator import notifier as notifiers
from msgtx.coordinator.notifier import (
    CLAIM_SECONDS,
    HEAR_SECONDS,
    INTERVAL_MOST_SECONDS,
    INTERVAL_SECONDS,
    NOTIFY_ANSWER_SECONDS,
    Notifier,
)
from msgtx.database.pool import Engine
from msgtx.database.wire import readable
from msgtx.receiving.wakeup import POLL_LEAST_SECONDS, POLL_MOST_SECONDS, Listener, Waiter
from msgtx.store.append.append import append
from msgtx.store.fetch.fetch import fetch
from msgtx.store.topics.topics import describe_topics
from tests.client.steps import asleep as asleep_in
from tests.client.steps import listens, store
from tests.databases import PATIENCE_SECONDS, Connection, Server, wait_until
from tests.hooks import Hook, away
from tests.store.steps import batch

pytestmark = pytest.mark.slow


@pytest.fixture
def notifier(engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notifier]:
    """A notifier with a connection. Only the test tends it. The next test hears nothing of it."""
    sessions: list[int] = []
    dedicated = engine.dedicated

    def noted() -> Connection:
        opened = dedicated()
        sessions.append(opened.info.backend_pid)
        return opened

    monkeypatch.setattr(engine, "dedicated", noted)
    made = Notifier(engine, threading.Condition())
    made.tend()
    yield made
    made.close()
    patience_ms = int(1000 * PATIENCE_SECONDS)
    connection.execute("select pg_terminate_backend(s, %s) from unnest(%s::int[]) s", [patience_ms, sessions])


@pytest.fixture
def heard(connection: Connection) -> Callable[[], list[int]]:
    """The partitions notified since the last call, at least one."""
    connection.execute("listen msgtx")

    def hear() -> list[int]:
        words = [each.payload for each in connection.notifies(timeout=PATIENCE_SECONDS, stop_after=1)]
        words += [each.payload for each in connection.notifies(timeout=0)]
        return [int(word) for each in words for word in each.split(",")]

    return hear


def in_time(notifier: Notifier) -> None:
    """Tend the notifier when it is due."""
    assert notifier.due is not None
    time.sleep(max(0.0, notifier.due - time.monotonic()))
    notifier.tend()


def raw(notifier: Notifier) -> pq.abc.PGconn:
    """Its connection."""
    assert notifier._connection is not None
    return notifier._connection.pgconn


def say(notifier: Notifier, statement: bytes, *, ago: float = 0.0) -> None:
    """Have partition 1 be notified by another statement, so many seconds ago."""
    raw(notifier).send_query(statement)
    notifier._said, notifier._last = [1], time.monotonic() - ago


@contextlib.contextmanager
def one_interval(notifier: Notifier) -> Iterator[None]:
    """Let all that is told within the block come in one interval, however slow this machine is."""
    with notifier._changed:
        notifier._last = time.monotonic() + PATIENCE_SECONDS
    yield
    notifier._last -= PATIENCE_SECONDS


def test_whoever_commits_tells_without_a_thread_and_others_are_told_together(
    notifier: Notifier, heard: Callable[[], list[int]]
) -> None:
    notifier.tell([1])
    assert heard() == [1]
    with one_interval(notifier):
        for ids in ([4], [2], [3, 2]):
            notifier.tell(ids)
        notifier.tend()
        assert notifier.waiting == {2, 3, 4}, "the thread came for something else"
    wait_until(lambda: notifier.tend() or not notifier.waiting, "the next notification")
    assert heard() == [2, 3, 4]


def test_the_faster_commits_come_the_more_of_them_are_told_at_once(notifier: Notifier) -> None:
    """A notification costs a busy client as much as some commits; a quiet one's readers are soon notified at once again."""
    notifier.tell([0])
    for interval in (INTERVAL_SECONDS, 0.004, INTERVAL_MOST_SECONDS, INTERVAL_MOST_SECONDS):
        assert notifier._interval == interval
        with one_interval(notifier):
            for number in range(100):
                notifier.tell([number])
        while notifier.waiting:
            in_time(notifier)
    time.sleep(INTERVAL_MOST_SECONDS)
    wait_until(lambda: notifier.tend() or not notifier._said, "the answer")
    notifier.tell([1])
    assert notifier._interval == INTERVAL_SECONDS


def test_a_commit_brings_its_notification_while_nothing_waits(notifier: Notifier) -> None:
    assert notifier.claim()
    assert not notifier.claim(), "so soon after another one"
    notifier.tell([1])
    time.sleep(CLAIM_SECONDS)
    assert not notifier.claim(), "another commit's readers wait"
    in_time(notifier)
    assert not notifier.waiting
    time.sleep(CLAIM_SECONDS)
    assert notifier.claim()


def test_commits_that_come_slowly_do_not_wake_the_thread_each_time(engine: Engine) -> None:
    """It comes for the answer to the first one; for a commit that has to wait it comes earlier."""
    woken: list[float | None] = []

    class Noted(threading.Condition):
        def notify_all(self) -> None:
            woken.append(notifier.due)

    notifier = Notifier(engine, Noted())
    notifier.tend()
    for number in range(5):
        notifier.tell([number])
        wait_until(lambda: notifier._hear(time.monotonic()), "the answer")
        time.sleep(INTERVAL_SECONDS)
    assert len(woken) == 1
    with notifier._changed:
        notifier._last = time.monotonic()
        notifier._interval = PATIENCE_SECONDS  # however slow this machine is, the next one comes in it
        notifier.due = notifier._last + 2 * PATIENCE_SECONDS
    notifier.tell([5])
    assert woken[1:] == [notifier._last + notifier._interval]
    notifier.close()


def test_a_commit_to_no_partition_tells_nobody(notifier: Notifier) -> None:
    notifier.tell([])
    assert notifier.due is None


def test_thousands_of_partitions_are_told_in_several_notifications(
    notifier: Notifier, heard: Callable[[], list[int]]
) -> None:
    """PostgreSQL refuses a notification of 8000 bytes."""
    ids = list(range(2_000_000_000, 2_000_002_000))
    notifier.tell(ids)
    told: list[int] = []
    while len(told) < len(ids):
        notifier.tend(closing=True)
        told += heard()
    assert told == ids


def test_closing_leaves_no_reader_untold(engine: Engine, heard: Callable[[], list[int]]) -> None:
    """Neither if the connection is only opened then, nor if it is lost at that moment, whoever finds that."""
    notifier = Notifier(engine, threading.Condition())
    notifier.tell([1])
    notifier.tend(closing=True)
    assert heard() == [1]
    raw(notifier).finish()
    notifier.tell([2])
    notifier.tend(closing=True)
    assert heard() == [2]
    with one_interval(notifier):  # the commit is left to the thread, which waits for no time
        notifier.tell([3])
        raw(notifier).finish()
        notifier.tend(closing=True)
        assert heard() == [3]
    notifier.close()


@pytest.mark.parametrize("answered", [True, False])
def test_closing_waits_for_what_was_said_and_not_for_a_server_that_says_nothing(
    notifier: Notifier, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """Nor does it ask in a circle meanwhile."""
    said: list[list[int]] = []
    rounds: list[Callable[[], None]] = []
    open_one = notifier._open

    def slow(raw: pq.abc.PGconn, partition_ids: Iterable[int]) -> None:
        said.append(list(partition_ids))
        assert len(said) < 20, "it is over"
        raw.send_query(b"select pg_sleep(0.3)" if answered else b"select pg_sleep(60)")

    def noted() -> None:
        rounds.append(open_one)
        open_one()

    monkeypatch.setattr(notifiers, "send_notification", slow)
    monkeypatch.setattr(notifier, "_open", noted)
    if not answered:
        monkeypatch.setattr(notifiers, "NOTIFY_ANSWER_SECONDS", 0.2)
    notifier.tell([1])
    began = time.monotonic()
    notifier.tend(closing=True)
    assert len(rounds) <= 4 + 2 * (time.monotonic() - began) / HEAR_SECONDS
    if answered:
        assert (said, notifier._said) == ([[1]], [])


def test_with_nothing_said_no_answer_is_waited_for(notifier: Notifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a close nor by commits that wait for their time."""
    waits: list[Any] = []
    monkeypatch.setattr(notifiers, "readable", lambda *wait: waits.append(wait))
    notifier.tend(closing=True)
    notifier.tell([1])
    wait_until(lambda: notifier._hear(time.monotonic()), "the answer")
    with one_interval(notifier):
        notifier.tell([2])
        notifier.tend()
        assert notifier.waiting == {2}
    notifier._last -= INTERVAL_MOST_SECONDS
    notifier.tend()
    assert notifier._said == [2]
    assert waits == []


def test_a_database_that_refuses_connections_is_asked_again_after_a_second_and_by_no_close(
    engine: Engine, engine_hook: Hook, heard: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = Notifier(engine, threading.Condition())
    monkeypatch.setattr(notifiers, "SPEAK_SECONDS", PATIENCE_SECONDS)  # however slow this machine is
    began = time.monotonic()
    with engine_hook.at("connect", away):
        notifier.tend()
        assert notifier.due is None, "nothing waits"
        notifier.tell([1])
        assert notifier.due is not None
        assert notifier.due >= began + PATIENCE_SECONDS
        notifier.tend()
        notifier.tend(closing=True)
        assert engine_hook.seen["connect"] == 1
    assert time.monotonic() < began + NOTIFY_ANSWER_SECONDS
    notifier._silent_until = time.monotonic()
    notifier.tend()
    assert heard() == [1]
    notifier.close()


def test_what_was_said_to_a_session_that_ended_is_said_again(
    notifier: Notifier, connection: Connection, heard: Callable[[], list[int]]
) -> None:
    say(notifier, b"select pg_sleep(600)", ago=PATIENCE_SECONDS / 10)  # no answer comes
    session = raw(notifier).backend_pid
    connection.execute("select pg_terminate_backend(%s)", [session])
    wait_until(
        lambda: not connection.execute("select from pg_stat_activity where pid = %s", [session]).fetchall(), "it is gone"
    )
    notifier.tell([2])
    assert notifier.due is not None
    assert notifier.due < time.monotonic() + HEAR_SECONDS, "at once"
    wait_until(lambda: notifier.tend() or not notifier.waiting, "the notification")  # the connection's end may be seen later
    assert heard() == [1, 2]


def test_what_was_not_answered_before_the_connection_was_closed_is_said_again(
    notifier: Notifier, engine_hook: Hook, heard: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next thread, if an error has ended the one before; it rests while the database refuses connections."""
    notifier.tell([1])
    assert heard() == [1]
    notifier.close()
    monkeypatch.setattr(notifiers, "SPEAK_SECONDS", PATIENCE_SECONDS)  # however slow this machine is
    with engine_hook.at("connect", away):
        notifier.tend()
        assert notifier.due is not None
        assert notifier.due > time.monotonic() + HEAR_SECONDS
    notifier._silent_until = 0.0
    wait_until(lambda: notifier.tend() or not notifier.waiting, "the notification")
    assert heard() == [1]


def test_a_connection_that_is_found_lost_is_opened_before_a_commit_needs_it(
    notifier: Notifier, heard: Callable[[], list[int]]
) -> None:
    raw(notifier).finish()
    notifier.tend()
    in_time(notifier)
    notifier.tell([1])
    assert heard() == [1], "by the commit's own thread"


def test_what_could_not_be_sent_is_sent_over_another_connection(
    notifier: Notifier, heard: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was lost after the last look at it."""
    send = notifiers.send_notification

    def gone(raw: pq.abc.PGconn, partition_ids: Iterable[int]) -> None:
        raw.finish()
        send(raw, partition_ids)

    with monkeypatch.context() as patched:
        patched.setattr(notifiers, "send_notification", gone)
        notifier.tell([1])
    assert notifier.waiting == {1}
    in_time(notifier)
    assert heard() == [1]


def test_a_session_that_notifies_nobody_any_more_is_replaced(notifier: Notifier, heard: Callable[[], list[int]]) -> None:
    """Nothing is sent over it behind the answer that shows it."""
    say(notifier, b"begin")
    wait_until(lambda: notifier._hear(time.monotonic()), "it has begun")
    say(notifier, b"select 1/0", ago=INTERVAL_MOST_SECONDS)
    readable([raw(notifier).socket], PATIENCE_SECONDS)
    notifier.tell([2])
    in_time(notifier)
    assert heard() == [1, 2]


def test_a_server_that_refuses_to_notify_is_asked_over_one_new_connection_and_then_once_a_second(
    notifier: Notifier, engine: Engine, engine_hook: Hook, server: Server, heard: Callable[[], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As where the right to do so was revoked. The first connection may have been at fault itself."""
    monkeypatch.setattr(notifiers, "SPEAK_SECONDS", PATIENCE_SECONDS)  # however slow this machine is
    with server.administrator(make_url(engine.url).database) as administrator:
        administrator.execute("revoke execute on function pg_catalog.pg_notify from public")
        try:
            notifier.tell([1])
            while notifier.due is not None and notifier.due < time.monotonic() + HEAR_SECONDS:
                in_time(notifier)
                assert engine_hook.seen["connect"] < 10, "it is asked in a circle"
        finally:
            administrator.execute("grant execute on function pg_catalog.pg_notify to public")
    assert engine_hook.seen["connect"] == 1
    assert notifier.waiting == {1}
    notifier._silent_until = time.monotonic()
    notifier.tend()
    assert heard() == [1]
    wait_until(lambda: notifier._hear(time.monotonic()), "the answer")
    raw(notifier).finish()
    notifier.tell([2])
    while notifier.waiting:
        assert notifier.due is not None
        assert notifier.due < time.monotonic() + HEAR_SECONDS, "at once again"
        in_time(notifier)
    assert heard() == [2]


def test_what_the_server_does_not_answer_is_said_again_over_another_connection(
    notifier: Notifier, heard: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: the first one is not waited for any longer."""
    waits: list[Any] = []
    say(notifier, b"select pg_sleep(60)", ago=NOTIFY_ANSWER_SECONDS)
    with monkeypatch.context() as patched:
        patched.setattr(notifiers, "readable", lambda *wait: waits.append(wait))
        notifier.tend()
    assert waits == []
    in_time(notifier)
    assert heard() == [1]


def test_what_the_server_could_not_notify_is_not_forgotten_with_the_connection(
    engine: Engine, engine_hook: Hook, heard: Callable[[], list[int]]
) -> None:
    """The queue was full, and the connection is lost before a row can be written instead."""
    notifier = Notifier(engine, threading.Condition())
    notifier.tend()
    say(notifier, b"do $$ begin raise program_limit_exceeded; end $$", ago=INTERVAL_MOST_SECONDS)
    readable([raw(notifier).socket], PATIENCE_SECONDS)
    with engine_hook.at("before tell_readers", away):
        notifier.tend()
    in_time(notifier)
    assert heard() == [1]
    assert engine_hook.seen["before tell_readers"] == 1
    notifier.close()


def test_a_connection_that_another_thread_finds_lost_is_opened_again(
    notifier: Notifier, heard: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment when the tending thread does not hold the lock."""
    say(notifier, b"select pg_sleep(600)")
    first = raw(notifier)
    notifier.tell([2])

    class Losing(threading.Condition):
        def __exit__(self, *error: Any) -> None:
            first.finish()
            super().__exit__(*error)

    monkeypatch.setattr(notifier, "_changed", Losing())
    while notifier.waiting:
        in_time(notifier)
    assert heard() == [1, 2]


@pytest.mark.parametrize("waiting", ["nothing", "in its interval", "longer"])
def test_a_server_that_is_slow_to_notify_is_waited_for_and_not_asked_in_a_circle(
    notifier: Notifier, heard: Callable[[], list[int]], waiting: str
) -> None:
    """A notification waits while any database of the server commits one with a flush."""
    say(notifier, b"select pg_sleep(0.3)", ago=INTERVAL_MOST_SECONDS if waiting == "longer" else 0.0)
    notifier.due = notifier._last + HEAR_SECONDS
    if waiting != "nothing":
        notifier.tell([2])
        notifier.tell([3])
    rounds = 0
    while notifier.waiting or notifier._said == [1]:
        in_time(notifier)
        rounds += 1
    assert rounds < 2 * 0.3 / HEAR_SECONDS
    if waiting != "nothing":
        assert heard() == [2, 3]
        assert notifier._interval == INTERVAL_SECONDS, "two commits in so long are few"


def test_without_notifications_a_consumer_looks_often_after_data_and_seldom_in_silence(engine: Engine) -> None:
    listener = Listener(engine)
    waiter = Waiter(listener)
    looks = []
    for _ in range(6):
        waiter.clear()
        begun = time.monotonic()
        waiter.wait(10.0)
        looks.append(time.monotonic() - begun)
    assert min(looks[-2:]) >= POLL_MOST_SECONDS
    waiter.clear()  # data came,
    waiter.clear()  # and was read
    begun = time.monotonic()
    waiter.wait(10.0)
    assert POLL_LEAST_SECONDS <= time.monotonic() - begun < POLL_MOST_SECONDS
    listener.close()


def test_without_notifications_a_consumer_fetches_whenever_it_looks(
    database_url: str, topic: str, background: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is named to it, and its `fetch_max_wait_ms` is not what it waits for."""
    monkeypatch.setattr(Listener, "watch", lambda *_: None)
    with (
        msgtx.connect(database_url) as client,
        client.producer() as producer,
        client.consumer(topic, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as consumer,
    ):
        assert consumer.poll(0) == []
        polled = asleep_in(background, consumer, 5.0)
        producer.send(topic, b"x").result(PATIENCE_SECONDS)
        assert [record.value for record in polled.result(PATIENCE_SECONDS)] == [b"x"]


def test_a_listener_may_be_closed_twice(engine: Engine) -> None:
    """Two threads may close a client at once."""
    listener = Listener(engine)
    listener.close()
    listener.close()


def test_a_reader_that_goes_to_sleep_behind_its_notification_is_awake(engine: Engine) -> None:
    """COMMIT and notification come between its last look and its sleep."""
    listener = Listener(engine)
    waiter = Waiter(listener)
    listener.confirmed = True  # as if notifications arrived: it would sleep for all of its time
    waiter.watch([17])
    waiter.clear()
    listener._wake("16,17")
    begun = time.monotonic()
    waiter.wait(10.0)
    assert time.monotonic() - begun < 5.0
    listener.close()


# ── with a server. A reader here looks by itself only once a minute ──

Asleep = Callable[[str], Future[list[msgtx.Record]]]


@pytest.fixture
def asleep(client: msgtx.Client, background: ThreadPoolExecutor) -> Iterator[Asleep]:
    """Have a consumer wait for the first records of a topic."""
    open_ones: list[tuple[msgtx.Consumer, Future[list[msgtx.Record]]]] = []

    def sleep(topic: str, **settings: object) -> Future[list[msgtx.Record]]:
        settings = {"fetch_max_wait_ms": 60_000, **settings}
        consumer = client.consumer(topic, auto_offset_reset="earliest", **settings)
        assert consumer.poll(0.01) == []
        listens(client)
        polled = asleep_in(background, consumer, PATIENCE_SECONDS + 5.0)  # its last look at the end comes too late
        open_ones.append((consumer, polled))
        return polled

    yield sleep
    for consumer, polled in open_ones:
        wait([polled])
        consumer.close()


def test_a_commit_that_nobody_follows_is_noticed(connection: Connection, topic: str, asleep: Asleep) -> None:
    """Plain SQL: no code of msgtx runs after its COMMIT."""
    waiting = asleep(topic)
    connection.execute("select msgtx.publish(%s, 'x')", [topic])
    assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]


@pytest.mark.parametrize("kind", ["plain", "transactional", "in steps", "unflushed", "once"])
def test_a_producer_that_lives_for_a_moment_tells_its_readers(
    database_url: str, topic: str, asleep: Asleep, kind: str
) -> None:
    waiting = asleep(topic)
    in_transaction = kind in {"transactional", "in steps"}
    settings = {"transactional_id": topic} if in_transaction else {"acks": 0} if kind == "unflushed" else {}
    with (
        msgtx.connect(database_url) as other,
        other.producer(**settings) as producer,
        producer.transaction() if in_transaction else contextlib.nullcontext(),
    ):
        producer.send(topic, b"x", dedup_key="x" if kind == "once" else None)
        if kind == "in steps":
            producer.flush(PATIENCE_SECONDS)
    assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]


def test_who_dies_before_it_tells_delays_readers_until_they_look(connection: Connection, topic: str, asleep: Asleep) -> None:
    """By `fetch_max_wait_ms` at most."""
    waiting = asleep(topic, fetch_max_wait_ms=500)
    (partition,) = describe_topics(connection, [topic])[topic].partition_ids
    append(connection, [batch(partition, b"x")], wake=False)
    assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]


def test_a_full_queue_of_notifications_fails_nothing(
    client: msgtx.Client, topic: str, asleep: Asleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asleep(topic)
    refused = []

    def full(raw: pq.abc.PGconn, partition_ids: Iterable[int]) -> None:
        refused.extend(partition_ids)
        raw.send_query_params(b"do $$ begin raise program_limit_exceeded; end $$", None)

    monkeypatch.setattr(notifiers, "send_notification", full)
    with client.producer() as producer:
        producer.send(topic, b"x").result(PATIENCE_SECONDS)
        assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]
    assert refused


@pytest.mark.parametrize("fails", [False, True])
def test_a_small_transaction_brings_its_notification(
    client: msgtx.Client, topic: str, asleep: Asleep, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """In the same round trip; if that one fails, its client's notifier sends it."""
    told: list[list[int]] = []
    tell = Notifier.tell

    def noted(notifier: Notifier, partition_ids: Iterable[int]) -> None:
        told.append(list(partition_ids))
        tell(notifier, partition_ids)

    monkeypatch.setattr(Notifier, "tell", noted)
    if fails:
        monkeypatch.setattr("msgtx.database.calls.NOTIFY_SOON", "select pg_notify('msgtx', %s || 1/0)")
    waiting = asleep(topic)
    with client.producer(transactional_id=topic) as producer:
        time.sleep(CLAIM_SECONDS)
        with producer.transaction():
            producer.send(topic, b"x")
        assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]
    assert bool(told) == fails


@pytest.mark.parametrize("how", ["plain", "transaction"])
def test_a_session_that_listens_with_sql_is_notified(
    client: msgtx.Client, topic: str, open_connection: Callable[[], Connection], how: str
) -> None:
    session = open_connection()
    session.execute("select msgtx.listen(%s, 'group')", [topic])
    assert session.execute("select has_records from msgtx.listen(%s, 'group')", [topic]).fetchone() == (False,)
    with client.producer(transactional_id=topic if how == "transaction" else None) as producer:
        with producer.transaction() if how == "transaction" else contextlib.nullcontext():
            producer.send(topic, b"x")
        producer.flush()
        assert len(list(session.notifies(timeout=PATIENCE_SECONDS, stop_after=1))) == 1
    assert session.execute("select has_records from msgtx.listen(%s, 'group')", [topic]).fetchone() == (True,)


def test_a_client_whose_sessions_were_ended_tells_again(
    client: msgtx.Client, topic: str, asleep: Asleep, killer: Callable[[], int], unique: Callable[[str], str]
) -> None:
    other = unique("topic")
    client.topics.create(other)
    with client.producer() as producer:
        producer.send(topic, b"x").result(PATIENCE_SECONDS)
        assert killer()
        waiting = asleep(other)
        producer.send(other, b"y").result(PATIENCE_SECONDS)
        assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"y"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The partitions of each fetch."""
    found: list[set[int]] = []

    def noted(connection: Any, positions: dict[int, Any], **rest: Any) -> Any:
        found.append(set(positions))
        return fetch(connection, positions, **rest)

    monkeypatch.setattr("msgtx.consumer.fetcher.fetch", noted)
    return found


def test_only_what_a_notification_names_is_fetched(
    client: msgtx.Client, connection: Connection, topic: str, asleep: Asleep, asked: list[set[int]]
) -> None:
    client.topics.alter(topic, partitions=3)
    ids = describe_topics(connection, [topic])[topic].partition_ids
    waiting = asleep(topic, fetch_max_wait_ms=60_000)
    wait_until(lambda: asked)
    assert asked.pop() == set(ids)
    asked.clear()
    with client.producer() as producer:
        producer.send(topic, b"x", partition=2).result(PATIENCE_SECONDS)
    assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]
    assert asked[-1] == {ids[2]}


def test_who_is_notified_all_the_time_looks_at_the_others_too(
    client: msgtx.Client, connection: Connection, topic: str, asleep: Asleep, asked: list[set[int]]
) -> None:
    """After `fetch_max_wait_ms`, as if nobody had notified."""
    client.topics.alter(topic, partitions=2)
    first, second = describe_topics(connection, [topic])[topic].partition_ids
    waiting = asleep(topic, fetch_max_wait_ms=300)
    wait_until(lambda: asked)
    append(connection, [batch(second, b"x")], wake=False)
    began = time.monotonic()
    while not waiting.done() and time.monotonic() < began + PATIENCE_SECONDS:
        connection.execute("select pg_notify('msgtx', %s)", [str(first)])
        time.sleep(0.02)
    assert [record.value for record in waiting.result(0)] == [b"x"]
    assert {first} in asked


def test_what_is_read_to_its_end_is_not_asked_again_without_a_notification(
    client: msgtx.Client, topic: str, asleep: Asleep, asked: list[set[int]]
) -> None:
    waiting = asleep(topic)
    with (
        client.producer() as producer,
        client.consumer(topic, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as other,
    ):
        producer.send(topic, b"x").result(PATIENCE_SECONDS)
        waiting.result(PATIENCE_SECONDS)
        assert [record.value for record in other.poll(PATIENCE_SECONDS)] == [b"x"]

        def rests() -> bool:  # once the last notification has come
            asked.clear()
            return other.poll(0.1) == [] and not asked

        wait_until(rests)
        assert other.poll(0.0) == [], "who does not wait looks"
        assert len(asked) == 1
        other.seek(msgtx.TopicPartition(topic, 0), 0)
        assert [record.value for record in other.poll(PATIENCE_SECONDS)] == [b"x"]
        other.rewind()
        assert [record.value for record in other.poll(PATIENCE_SECONDS)] == [b"x"]


def test_what_came_while_a_partition_was_paused_is_there_when_it_is_resumed(
    client: msgtx.Client, topic: str, asleep: Asleep
) -> None:
    waiting = asleep(topic)
    place = msgtx.TopicPartition(topic, 0)
    with (
        client.producer() as producer,
        client.consumer(topic, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as other,
    ):
        assert other.poll(0.1) == []
        other.pause([place])
        producer.send(topic, b"x").result(PATIENCE_SECONDS)
        waiting.result(PATIENCE_SECONDS)
        assert other.poll(0.3) == []
        other.resume([place])
        assert [record.value for record in other.poll(PATIENCE_SECONDS)] == [b"x"]


def test_what_was_named_to_a_poll_that_was_interrupted_is_there_at_the_next_one(
    client: msgtx.Client, topic: str, asleep: Asleep, hook: Hook
) -> None:
    """Ctrl-C, which a caller may catch, or any other exception that comes from outside."""
    client.topics.alter(topic, partitions=2)
    other = asleep(topic)
    with client.consumer(topic, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as interrupted:
        assert interrupted.poll(0.1) == []
        store(client, topic, b"x")
        other.result(PATIENCE_SECONDS)
        wait_until(lambda: interrupted._waiter._named)
        with hook.at("before fetch_batches", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            interrupted.poll(PATIENCE_SECONDS)
        assert [record.value for record in interrupted.poll(PATIENCE_SECONDS)] == [b"x"]


def test_a_consumer_that_does_not_poll_keeps_each_name_once(client: msgtx.Client, topic: str) -> None:
    with client.consumer(topic) as consumer:
        waiter = consumer._waiter
        waiter.clear()
        for number in range(10_000):
            waiter.wake(str(number % 3))
        assert (waiter._wakes.qsize(), waiter.clear(), waiter._wakes.qsize()) == (1, {0, 1, 2}, 0)
        assert not waiter.sleep(0.0)


def test_a_flood_of_notifications_keeps_nobody_from_reading(
    client: msgtx.Client, connection: Connection, topic: str, asleep: Asleep
) -> None:
    """The channel is open to every login of the database."""
    waiting = asleep(topic)
    for size in (1, 3_900):
        connection.execute("select pg_notify('msgtx', repeat('1,', %s) || i) from generate_series(1, 3000) i", [size])
    store(client, topic, b"x")
    assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]
