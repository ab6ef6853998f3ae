"""Who is told of commits, by whom, and when: no reader depends on another commit coming."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

import msgtx
from msgtx.coordinator import completion
from msgtx.database.engine import Engine, RawConnection
from msgtx.store.append import append
from msgtx.store.topics import describe_topics
from msgtx.wakeup import (
    INTERVAL_MOST_SECONDS,
    INTERVAL_SECONDS,
    POLL_MOST_SECONDS,
    POLL_SECONDS,
    Listener,
    Notifier,
    Waiter,
)
from tests.databases import PATIENCE_SECONDS, Connection, wait_until
from tests.store.steps import batch


def test_commits_that_come_fast_are_notified_together() -> None:
    notifier = Notifier(threading.Condition())
    notifier.tell([1])
    assert notifier.take(closing=False) == [1]
    notifier.tell([2])
    notifier.tell([3, 2])
    assert wait_until(lambda: notifier.take(closing=False), "the notification is due") == [2, 3]
    assert notifier.take(closing=False) == []


def test_the_faster_commits_come_the_more_of_them_are_told_at_once() -> None:
    """Each notification costs a busy client what some commits do; a quiet one's readers hear at once again."""
    notifier = Notifier(threading.Condition())
    for interval in (INTERVAL_SECONDS, 0.004, INTERVAL_MOST_SECONDS, INTERVAL_MOST_SECONDS):
        before = time.monotonic()
        for number in range(100):
            notifier.tell([number])
        assert notifier.due is not None
        assert notifier.due <= before + interval
        wait_until(lambda: notifier.take(closing=False), "the notification is due")
    notifier.tell([1])
    wait_until(lambda: notifier.take(closing=False), "the notification is due")
    notifier.tell([1])
    assert notifier.due is not None
    assert notifier.due <= time.monotonic() + INTERVAL_SECONDS


def test_a_commit_to_no_partition_tells_nobody() -> None:
    notifier = Notifier(threading.Condition())
    notifier.tell([])
    assert notifier.due is None


def test_thousands_of_partitions_are_told_in_several_notifications() -> None:
    """PostgreSQL refuses a notification of 8000 bytes."""
    notifier = Notifier(threading.Condition())
    notifier.tell(range(2_000_000_000, 2_000_002_000))
    told: list[int] = []
    while numbers := notifier.take(closing=True):
        assert len(",".join(map(str, numbers))) < 8_000
        told += numbers
    assert told == list(range(2_000_000_000, 2_000_002_000))


def test_closing_leaves_no_reader_untold() -> None:
    notifier = Notifier(threading.Condition())
    notifier.tell([1])
    assert notifier.take(closing=True) == [1]
    notifier.tell([2])
    assert notifier.take(closing=True) == [2]


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
    waiter.clear()  # and was looked at
    begun = time.monotonic()
    waiter.wait(10.0)
    assert POLL_SECONDS <= time.monotonic() - begun < POLL_MOST_SECONDS
    listener.close()


def test_a_reader_that_goes_to_sleep_behind_its_notification_is_awake(engine: Engine) -> None:
    """COMMIT and notification come between its look and its sleep."""
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


# ── with a server. A reader here would look by itself once a minute ──

Asleep = Callable[[str], Future[list[msgtx.Record]]]


@pytest.fixture
def asleep(client: msgtx.Client, background: ThreadPoolExecutor) -> Iterator[Asleep]:
    """Have a consumer wait for the first records of a topic."""
    open_ones: list[msgtx.Consumer] = []

    def wait(topic: str, **settings: object) -> Future[list[msgtx.Record]]:
        settings = {"fetch_max_wait_ms": 60_000, **settings}
        consumer = client.consumer(topic, auto_offset_reset="earliest", **settings)
        open_ones.append(consumer)
        assert consumer.poll(0.01) == []
        wait_until(lambda: client._listener.confirmed, "the channel is confirmed")
        polled = background.submit(consumer.poll, PATIENCE_SECONDS)
        wait_until(lambda: consumer._waiter._waited, "it waits")
        return polled

    yield wait
    for consumer in open_ones:
        consumer.close()


def test_a_commit_that_nobody_follows_is_noticed(connection: Connection, topic: str, asleep: Asleep) -> None:
    """Plain SQL: no code of ours runs behind its COMMIT."""
    waiting = asleep(topic)
    connection.execute("select msgtx.publish(%s, 'x')", [topic])
    assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]


@pytest.mark.parametrize("kind", ["plain", "transactional", "unflushed"])
def test_a_producer_that_lives_for_a_moment_tells_its_readers(
    database_url: str, topic: str, asleep: Asleep, kind: str
) -> None:
    waiting = asleep(topic)
    settings = {"transactional": {"transactional_id": topic}, "unflushed": {"acks": 0}}.get(kind, {})
    with (
        msgtx.connect(database_url) as other,
        other.producer(**settings) as producer,
        producer.transaction() if kind == "transactional" else contextlib.nullcontext(),
    ):
        producer.send(topic, b"x")
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

    def full(_connection: RawConnection, words: str) -> None:
        refused.append(words)
        raise psycopg.errors.ProgramLimitExceeded("too many notifications in the NOTIFY queue")

    monkeypatch.setattr(completion, "notify", full)
    with client.producer() as producer:
        producer.send(topic, b"x").result(PATIENCE_SECONDS)
        assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]
    assert refused


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


def test_a_flood_of_notifications_keeps_nobody_from_reading(
    client: msgtx.Client, connection: Connection, topic: str, asleep: Asleep
) -> None:
    """The channel is open to every login of the database."""
    waiting = asleep(topic)
    for size in (1, 3_900):
        connection.execute("select pg_notify('msgtx', repeat('1,', %s) || i) from generate_series(1, 3000) i", [size])
    with client.producer() as producer:
        producer.send(topic, b"x").result(PATIENCE_SECONDS)
    assert [record.value for record in waiting.result(PATIENCE_SECONDS)] == [b"x"]
