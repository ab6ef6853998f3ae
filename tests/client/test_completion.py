"""What a client does for its transactions behind their commits (internals: transactions#markers)."""

import threading
import time
from collections.abc import Callable
from typing import NoReturn

import psycopg
import pytest

import msgtx
from msgtx.coordinator import completion
from msgtx.coordinator.completion import MARK_SECONDS
from msgtx.store.transactions import mark
from tests.databases import Connection, wait_until
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
    client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread, which also tells readers of commits, goes on."""
    refused: list[object] = []

    def broken(*_: object, **__: object) -> NoReturn:
        refused.append(threading.current_thread())
        raise psycopg.errors.InternalError_("could not read a block")

    with client.producer(transactional_id=unique("producer")) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(completion, "mark_in_turn", broken)
            commit(producer, topic)
            wait_until(lambda: refused, "a round was refused")
        commit(producer, topic)
        wait_until(lambda: marked(connection, producer) > 0)
    assert refused == [client._completion._thread]


def commit(producer: msgtx.Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, b"a")


def marked(connection: Connection, producer: msgtx.Producer) -> int:
    """Return how many markers the transactions of a producer have."""
    its = "producer_id = (select producer_id from msgtx.producer where transactional_id = %s)"
    return count(connection, "transaction_marker", its, producer.config.transactional_id)
