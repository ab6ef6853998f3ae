"""Readers of commits that no client notifies: what listeners find between two looks; no COMMIT notifies."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import msgtx
from msgtx.store.wakeups import remove_wake_ups, tell_readers, woken_since
from tests.databases import Connection
from tests.store.steps import count, new_partition, plain

Sessions = Callable[[], Connection]
SQL = Path(msgtx.__file__).parent / "sql"


def test_no_function_notifies() -> None:
    """PostgreSQL lets one notifying COMMIT through at a time, in all its databases, and each waits for its flush."""
    for path in SQL.glob("*/*.sql"):
        code = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
        assert not re.search(r"pg_notify|\bnotify\b", code, re.IGNORECASE), path.name


def test_a_look_finds_what_became_visible_since_the_last_one_and_once(
    connection: Connection, open_connection: Sessions
) -> None:
    listener = open_connection()
    partition = new_partition(connection)
    snapshot, words = woken_since(listener, None)
    assert words is None
    plain(connection, partition, b"a")
    snapshot, words = woken_since(listener, snapshot)
    assert words == str(partition)
    snapshot, words = woken_since(listener, snapshot)
    assert words is None


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_commits_are_found_in_whatever_order_they_come(
    connection: Connection, open_connection: Sessions, order: tuple[str, ...]
) -> None:
    """Sessions begin one after the other, some before a look; each is found by the first look behind its COMMIT."""
    listener = open_connection()
    sessions = {name: open_connection() for name in "abc"}
    partitions = {name: new_partition(connection) for name in "abc"}
    snapshot, _ = woken_since(listener, None)
    for name, session in sessions.items():
        session.execute("begin")
        plain(session, partitions[name], b"x")
        if name == "b":
            snapshot, words = woken_since(listener, snapshot)
            assert words is None
    for name in order:
        sessions[name].execute("commit")
        snapshot, words = woken_since(listener, snapshot)
        assert words == str(partitions[name])
    assert woken_since(listener, snapshot)[1] is None


def test_what_is_rolled_back_is_found_by_nobody(connection: Connection, open_connection: Sessions) -> None:
    listener = open_connection()
    partition = new_partition(connection)
    snapshot, _ = woken_since(listener, None)
    with connection.transaction(force_rollback=True):
        plain(connection, partition, b"a")
    assert woken_since(listener, snapshot)[1] is None


def test_a_look_reads_what_is_new_however_much_is_dead(connection: Connection, open_connection: Sessions) -> None:
    """P21: an old snapshot keeps every row that was removed."""
    observer, listener = open_connection(), open_connection()
    observer.execute("begin isolation level repeatable read")
    observer.execute("select 1")
    partition = new_partition(connection)
    for _ in range(3):
        connection.execute("insert into msgtx.wake_up (words) select 'g0' from generate_series(1, 3000)")
        connection.execute("delete from msgtx.wake_up where words = 'g0'")
    snapshot, _ = woken_since(listener, None)
    plain(connection, partition, b"a")
    with listener.transaction():
        assert woken_since(listener, snapshot)[1] == str(partition)
        (read,) = listener.execute(
            "select pg_stat_get_xact_tuples_fetched(i) + pg_stat_get_xact_tuples_returned(i)"
            " from cast('msgtx.wake_up_pkey'::regclass as oid) i"
        ).fetchone() or (None,)
    assert read is not None
    assert read < 10
    observer.execute("rollback")


def test_what_was_seen_long_ago_is_removed(connection: Connection, clock: Callable[..., None]) -> None:
    partition = new_partition(connection)
    remove_wake_ups(connection)
    before = count(connection, "wake_up")
    tell_readers(connection, [partition])
    assert remove_wake_ups(connection) == 0
    assert count(connection, "wake_up") == before + 1
    clock("61 seconds")
    assert remove_wake_ups(connection) == before + 1
    assert count(connection, "wake_up") == 0
