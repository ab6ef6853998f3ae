"""The connection on which a client hears of commits: when it opens, looks, gives up and ends (internals: notifications)."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import msgtx
from msgtx import errors
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.receiving import wakeup
from msgtx.receiving.wakeup import LOOK_FOR_COMMITS_SECONDS, LOOK_SOON_SECONDS, MOST_HEARD, Listener, Waiter
from msgtx.store.append.append import append
from msgtx.store.topics.topics import describe_topics
from tests.client.steps import asleep, listens
from tests.databases import PATIENCE_SECONDS, Connection, wait_until
from tests.hooks import Hook, away
from tests.store.steps import batch

pytestmark = pytest.mark.slow

Kill = Callable[[], int]


@pytest.fixture
def listener(engine: Engine) -> Iterator[Listener]:
    made = Listener(engine)
    yield made
    made.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[RawConnection]:
    """The connections that listeners have opened."""
    found: list[RawConnection] = []
    dedicated = Engine.dedicated

    def noted(engine: Engine) -> RawConnection:
        found.append(dedicated(engine))
        return found[-1]

    monkeypatch.setattr(Engine, "dedicated", noted)
    return found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When listeners have looked for what nobody notifies of."""
    found: list[float] = []
    look = wakeup.look

    def noted(*arguments: Any) -> None:
        found.append(time.monotonic())
        look(*arguments)

    monkeypatch.setattr(wakeup, "look", noted)
    return found


# ── whom it wakes ──


def test_a_waiter_is_woken_for_what_it_watches_now_and_its_neighbours_too(listener: Listener) -> None:
    one, other = Waiter(listener), Waiter(listener)
    for waiter in (one, other):
        waiter.watch([17, 18])
    one.watch([19])
    assert listener._wake("18")
    assert not one.sleep(0.0)
    assert other.sleep(0.0)
    assert listener._wake("5,19")
    assert one.clear() == {19}
    listener._wake_all()
    assert one.sleep(0.0)
    assert other.sleep(0.0)
    for waiter in (one, other):
        waiter.watch(())
    assert not listener._waiters
    assert not listener._wake("17,18,19")


def test_of_a_flood_it_only_counts_that_it_came(listener: Listener) -> None:
    """Whoever waits looks, and the thread rests."""
    waiter = Waiter(listener)
    waiter.watch([17])
    wait_until(lambda: listener.confirmed)
    waiter.clear()
    begun = time.monotonic()
    listener._take(["18"] * (MOST_HEARD + 1))
    assert time.monotonic() - begun >= LOOK_SOON_SECONDS
    assert waiter.sleep(0.0)


# ── its thread ──


def test_it_has_one_thread_once_somebody_waits_and_none_at_the_end(engine: Engine, opened: list[RawConnection]) -> None:
    listener = Listener(engine)
    waiter = Waiter(listener)
    waiter.watch(())
    assert not listener._thread.started
    for partition in (17, 18):
        waiter.watch([partition])
    wait_until(lambda: listener.confirmed)
    assert len(opened) == 1
    listener.close()
    assert not listener._thread.lives
    assert opened[0].closed
    for end in (listener._wake_read, listener._wake_write):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


def test_behind_a_pooler_it_ends(engine: Engine, opened: list[RawConnection], monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that others use must not listen."""
    dedicated = Engine.dedicated

    def pooled(of: Engine) -> RawConnection:
        connection = dedicated(of)
        of.pooled = True
        return connection

    monkeypatch.setattr(Engine, "dedicated", pooled)
    listener = Listener(engine)
    try:
        Waiter(listener).watch([17])
        assert listener._thread.join(PATIENCE_SECONDS)
        assert not listener._thread.lives
        assert [connection.closed for connection in opened] == [True]
        assert not listener.confirmed
    finally:
        engine.pooled = False
        listener.close()


@pytest.mark.parametrize(
    ("confirmed", "error", "pause"),
    [
        (True, OSError("lost"), 0.0),
        (False, OSError("lost"), wakeup.RECONNECT_SECONDS),
        (False, errors.AuthorizationFailed("refused"), wakeup.REFUSED_SECONDS),
        (True, errors.AuthorizationFailed("not any more"), wakeup.REFUSED_SECONDS),
    ],
    ids=["lost", "never there", "refused", "refused meanwhile"],
)
def test_it_connects_again_at_once_only_where_it_was_heard(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, confirmed: bool, error: Exception, pause: float
) -> None:
    listener = Listener(engine)

    def listen(_: RawConnection) -> None:
        listener.confirmed = confirmed
        raise error

    monkeypatch.setattr(listener, "_listen", listen)
    for _ in range(3):
        with pytest.raises(type(error)):
            listener._run()
        assert listener._pause(error) == pause
        assert not listener.confirmed
    listener.close()


@pytest.mark.parametrize("refused", [True, False])
def test_while_it_cannot_listen_it_does_not_ask_in_a_circle_and_it_can_be_closed(
    engine: Engine, engine_hook: Hook, refused: bool
) -> None:
    engine_hook.at("connect", errors.AuthorizationFailed("no right") if refused else away)
    listener = Listener(engine)
    Waiter(listener).watch([17])
    wait_until(lambda: engine_hook.seen["connect"])
    time.sleep(0.1)
    assert engine_hook.seen["connect"] == 1
    begun = time.monotonic()
    listener.close()
    assert time.monotonic() - begun < wakeup.REFUSED_SECONDS / 2


def test_readers_look_by_themselves_while_the_channel_is_lost(
    client: msgtx.Client, connection: Connection, topic: str, opened: list[RawConnection], background: ThreadPoolExecutor,
    hook: Hook,
) -> None:  # fmt: skip
    """They are woken for it: what comes next is named to nobody."""
    with client.consumer(topic, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as consumer:
        assert consumer.poll(0.01) == []
        listens(client)
        polled = asleep(background, consumer, 2 * PATIENCE_SECONDS)
        hook.at("connect", away)
        session = opened[0].info.backend_pid
        connection.execute("select pg_terminate_backend(%s)", [session])
        wait_until(lambda: not client.runtime.listener.confirmed, "it is lost")
        (partition,) = describe_topics(connection, [topic])[topic].partition_ids
        append(connection, [batch(partition, b"x")], wake=False)
        assert [record.value for record in polled.result(PATIENCE_SECONDS)] == [b"x"]


# ── its looks ──


def test_an_idle_client_looks_seldom_and_removes_nothing(
    engine_hook: Hook, listener: Listener, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "REMOVE_SECONDS", 0.0)
    Waiter(listener).watch([17])
    wait_until(lambda: len(looks) > 3)
    assert looks[3] - looks[0] > LOOK_FOR_COMMITS_SECONDS
    assert engine_hook.seen["before remove_wake_ups"] == 0


def test_it_looks_often_after_what_concerned_a_waiter(
    listener: Listener, connection: Connection, topic: str, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes from plain SQL often comes in rows."""
    monkeypatch.setattr(wakeup, "LOOK_SOON_FOR_SECONDS", 2 * PATIENCE_SECONDS)
    (partition,) = describe_topics(connection, [topic])[topic].partition_ids
    waiter = Waiter(listener)
    waiter.watch([partition])
    wait_until(lambda: listener.confirmed)
    connection.execute("select msgtx.publish(%s, 'x')", [topic])
    wait_until(lambda: partition in (waiter.clear() or ()), "it is named")
    monkeypatch.setattr(wakeup, "LOOK_FOR_COMMITS_SECONDS", 2 * PATIENCE_SECONDS)
    for _ in range(2):
        looks.clear()
        wait_until(lambda: len(looks) > 3, "further looks")


def test_what_was_looked_at_is_removed_now_and_then(
    engine_hook: Hook, listener: Listener, connection: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[float] = []
    engine_hook.at("before remove_wake_ups", lambda: removed.append(time.monotonic()))
    Waiter(listener).watch([17])
    wait_until(lambda: listener.confirmed)
    published(connection, topic, 3)
    assert removed == []
    monkeypatch.setattr(wakeup, "REMOVE_SECONDS", 0.5)
    while len(removed) < 2:
        published(connection, topic, 1)
    assert removed[1] - removed[0] > 0.3


def published(connection: Connection, topic: str, count: int) -> None:
    for _ in range(count):
        connection.execute("select msgtx.publish(%s, 'x')", [topic])
        time.sleep(LOOK_FOR_COMMITS_SECONDS)


def test_a_slow_answer_is_waited_for_and_a_missing_one_ends_the_connection(
    listener: Listener, opened: list[RawConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of an answer is none: here warnings come in front of it, time and again."""
    sent: list[None] = []
    rounds = int(2 * PATIENCE_SECONDS / LOOK_FOR_COMMITS_SECONDS)
    warned: list[object] = []

    def slow(raw: Any, _: str) -> None:
        sent.append(None)
        opened[-1].add_notice_handler(warned.append)
        said = f"for i in 1 .. {rounds} loop perform pg_sleep({LOOK_FOR_COMMITS_SECONDS}); raise warning 'soon'; end loop;"
        raw.exec_(b"set statement_timeout = 0")  # else the server might end it first
        raw.send_query(f"do $$ begin {said} end $$".encode())
        raw.flush()

    monkeypatch.setattr(wakeup, "look", slow)
    Waiter(listener).watch([17])
    wait_until(lambda: len(warned) > 3, "parts of the answer")
    assert (len(sent), len(opened)) == (1, 1)
    monkeypatch.setattr(wakeup, "LISTEN_ANSWER_SECONDS", 0.2)
    wait_until(lambda: len(opened) > 1, "another connection")
