"""What a client does for its transactions behind their commits (internals: transactions#markers)."""

import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import psycopg
import pytest

import msgtx
from msgtx.coordinator import completion
from msgtx.coordinator.completion import MARK_SECONDS, Completion
from msgtx.coordinator.notifier import HEAR_SECONDS
from msgtx.database.pool import Engine
from msgtx.store.transactions.transactions import mark
from tests.databases import PATIENCE_SECONDS, Connection, wait_until
from tests.hooks import Hook
from tests.store.steps import Writer, count, new_partition


def test_what_a_client_left_to_another_one_it_marks_in_the_next_round(
    client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str]
) -> None:
    """The other one has looked before the last commit, and looks no more."""
    other, elsewhere = Writer(connection), new_partition(connection)
    with client.producer(transactional_id=unique("producer")) as producer:
        commit(producer, topic)
        due = time.monotonic() + MARK_SECONDS
        while time.monotonic() < due - 0.2:
            other.commit_whole(other.row(elsewhere, b"of the other one"))
            mark(connection)
        commit(producer, topic)
        wait_until(lambda: marked(connection, producer) == 2)


def test_a_client_that_finds_another_one_at_work_marks_in_the_next_round(
    client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str]
) -> None:
    """The other one may have looked before the commit."""
    with client.producer(transactional_id=unique("producer")) as producer:
        with connection.transaction():
            assert connection.execute("select msgtx.try_lock_marking()").fetchone() == (True,)
            commit(producer, topic)
            time.sleep(1.5 * MARK_SECONDS)
            assert marked(connection, producer) == 0
        wait_until(lambda: marked(connection, producer) == 1)


def test_a_round_that_the_server_cannot_do_is_left_to_the_next_one(
    client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str], hook: Hook
) -> None:
    """The thread, which also tells readers of commits, goes on."""
    refused: list[object] = []

    def broken() -> NoReturn:
        refused.append(threading.current_thread())
        raise psycopg.errors.InternalError_("could not read a block")

    hook.at("before mark", broken, times=1)
    with client.producer(transactional_id=unique("producer")) as producer:
        commit(producer, topic)
        wait_until(lambda: refused, "a round was refused")
        commit(producer, topic)
        wait_until(lambda: marked(connection, producer) > 0)
    assert refused == [client.runtime.completion._thread._thread]


def test_a_thread_whose_loop_an_error_has_ended_goes_on(
    client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str], hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One that nobody expects."""
    monkeypatch.setattr(completion, "MARK_SECONDS", 0.05)
    hook.at("before mark", MemoryError(), times=1)
    with client.producer(transactional_id=unique("producer")) as producer:
        commit(producer, topic)
        wait_until(lambda: hook.seen["before mark"], "its loop has ended")
        commit(producer, topic)
        wait_until(lambda: marked(connection, producer) == 2)


def test_many_commits_are_marked_together_by_one_thread(
    client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str], hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Once in `MARK_SECONDS`, and only if something was committed."""
    rounds: list[threading.Thread] = []
    before = threading.enumerate()
    hook.at("before mark", lambda: rounds.append(threading.current_thread()))
    monkeypatch.setattr(completion, "MARK_SECONDS", 0.1)
    monkeypatch.setattr(completion, "REST_MS", 0)
    with client.producer(transactional_id=unique("producer")) as producer, client.producer():
        began, commits = time.monotonic(), 0
        while len(rounds) < 2:
            commit(producer, topic)
            commits += 1
        wait_until(lambda: marked(connection, producer) == commits)
        assert len(rounds) <= (time.monotonic() - began) / 0.1
        assert len(set(rounds)) == 1
        new = [each for each in threading.enumerate() if each not in before]
        assert not [each for each in new if each.name == rounds[0].name and each not in rounds]


def test_a_client_that_closes_marks_what_it_has_committed(
    database_url: str, topic: str, connection: Connection, unique: Callable[[str], str]
) -> None:
    """At once, and whatever others have done just before: it has no next round."""
    other, elsewhere = Writer(connection), new_partition(connection)
    with msgtx.connect(database_url) as client, client.producer(transactional_id=unique("producer")) as producer:
        other.commit_whole(other.row(elsewhere, b"of the other one"))
        mark(connection)
        commit(producer, topic)
    assert marked(connection, producer) == 1


def test_a_client_without_a_producer_marks_what_it_completes(
    database_url: str, client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(completion, "MARK_SECONDS", 0.05)
    monkeypatch.setattr(completion, "REST_MS", 0)
    with client.producer(transactional_id=unique("producer")) as producer:
        transaction = producer.begin_transaction()
        producer.send(topic, b"a")
        token = transaction.prepare()
        with msgtx.connect(database_url) as other:
            other.complete(token, commit=True)
            wait_until(lambda: marked(connection, producer) == 1)


def test_a_client_that_closes_tells_of_its_last_commits(engine: Engine, connection: Connection) -> None:
    """Though it is not the time for the next notification."""
    connection.execute("listen msgtx")
    made = Completion(engine, lambda _: None)
    made.start()
    wait_until(lambda: made.notifier._connection)
    with made._changed:
        made.notifier._last = time.monotonic() + PATIENCE_SECONDS
    made.notifier.tell([17])
    made.close()
    assert [each.payload for each in connection.notifies(timeout=PATIENCE_SECONDS, stop_after=1)] == ["17"]


def test_a_client_that_is_closed_starts_no_thread(engine: Engine) -> None:
    """For a decision of which it is told by another thread."""
    made = Completion(engine, lambda _: None)
    made.close()
    made.decided()
    assert not made._thread.started


def test_topics_are_looked_at_when_it_is_their_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not again before the next time, though there is something else to do; over a connection that works."""
    looks: list[list[Any]] = []
    with monkeypatch.context() as patched:
        patched.setattr(completion, "TOPIC_CHANGES_SECONDS", 0.0)
        made = Completion(engine, lambda connection: looks.append(connection.execute("select 1").fetchall()))
    made.start()
    made.notifier.tell([1])
    wait_until(lambda: looks)
    made.close()
    assert looks == [[(1,)]]


def test_the_thread_sleeps_while_an_answer_is_due(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the answer to a notification is to be read, and then until it comes."""
    made = Completion(engine, lambda _: None)
    notifier, turns = made.notifier, []
    tend = notifier.tend

    def noted(**options: bool) -> None:
        turns.append(time.monotonic())
        tend(**options)

    monkeypatch.setattr(notifier, "tend", noted)
    made.start()
    connection = wait_until(lambda: notifier._connection)
    with made._changed:
        connection.pgconn.send_query(b"select pg_sleep(0.3)")
        notifier._said, notifier._last = [1], time.monotonic()
        notifier.due = notifier._last + HEAR_SECONDS
        made._changed.notify_all()
    wait_until(lambda: not notifier._said, "the answer")
    made.close()
    assert len(turns) <= 4 + 2 * (turns[-1] - turns[0]) / HEAR_SECONDS


def commit(producer: msgtx.Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, b"a")


def marked(connection: Connection, producer: msgtx.Producer) -> int:
    """Return how many markers the transactions of a producer have."""
    its = "producer_id = (select producer_id from msgtx.producer where transactional_id = %s)"
    return count(connection, "transaction_marker", its, producer.config.transactional_id)
