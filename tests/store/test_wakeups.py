"""Readers of commits that no client notifies: what listeners find between two looks; no COMMIT notifies."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg.pq.abc import PGresult

import msgtx
from msgtx.database.calls import query
from msgtx.database.wire import Arriving
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.append.append_once import KeyedRecord, append_once
from msgtx.store.fetch.wakeups import look, prepare_looks, remove_wake_ups, seen, tell_readers, woken_since
from msgtx.store.shares.shares import ensure_dead_letters
from msgtx.store.spark import BatchName, abort_batch, decide_batch
from msgtx.store.sweeps import sweeps
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.producers import fence_producer
from msgtx.store.transactions.seal import Kind, Sealed, complete_prepared, decide_sealed, seal
from msgtx.store.transactions.transactions import end_transaction
from tests.databases import Clock, Connection, Sessions, wait_until
from tests.store.batches import attempt
from tests.store.sharing import ShareGroup
from tests.store.steps import Writer, batch, count, ends, expire_transaction, new_partition, new_topic, plain, unique

SQL = Path(msgtx.__file__).parent / "sql"


def test_no_function_notifies_but_for_sessions_that_listen() -> None:
    """PostgreSQL lets one notifying COMMIT through at a time, in all its databases, and each waits for its flush."""
    notify = {
        path.stem
        for path in SQL.glob("*/*.sql")
        if re.search(r"pg_notify|\bnotify\b", re.sub(r"--.*", "", path.read_text(encoding="utf-8")), re.IGNORECASE)
    }
    assert notify == {"notify_listeners", "notify_readers"}  # the second one is called after a client's commit


def test_a_look_finds_what_became_visible_since_the_last_one_and_once(
    connection: Connection, partition: int, session: Connection
) -> None:
    snapshot, words = woken_since(session, None)
    assert words is None
    plain(connection, partition, b"a")
    snapshot, words = woken_since(session, snapshot)
    assert words == str(partition)
    snapshot, words = woken_since(session, snapshot)
    assert words is None


def test_looks_whose_answers_nobody_waits_for_find_the_same(connection: Connection, session: Connection) -> None:
    """Each goes on where the last one came to. An answer that is an error is told of: the caller connects anew."""
    first, second = new_partition(connection), new_partition(connection)
    plain(connection, first, b"before")
    snapshot, found = prepare_looks(session), []
    for partition in (first, None, second, None):
        if partition is not None:
            plain(connection, partition, b"a")
        snapshot, words = seen(looked(session, snapshot))
        found.append(words)
    assert found == [str(first), None, str(second), None]
    query(session, "deallocate all")
    with pytest.raises(OSError, match="msgtx_look"):
        seen(looked(session, snapshot))


def looked(session: Connection, snapshot: str) -> list[PGresult]:
    """Look, and return the answer when it is there."""
    raw, arriving = session.pgconn, Arriving()
    look(raw, snapshot)
    found: list[PGresult] = wait_until(lambda: (raw.consume_input(), arriving.take(raw))[1], "the answer")
    return found


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


def sealed(writer: Writer, kind: Kind) -> Sealed:
    answer = seal(writer.connection, writer.name, kind, tails=writer.tails)
    assert answer.sealed is not None
    return answer.sealed


def expired(writer: Writer, clock: Clock) -> None:
    clock("1 hour")
    assert expire_transaction(writer.connection, writer.name)


DECISIONS: dict[str, Callable[[Writer, Clock], object]] = {
    "a commit": lambda writer, _: writer.commit(),
    "an abort": lambda writer, _: writer.abort(),
    "an outside party's commit": lambda writer, _: complete_prepared(writer.connection, writer.name, "COMMIT"),
    "an outside party's abort": lambda writer, _: complete_prepared(writer.connection, writer.name, "ABORT"),
    "a session's commit": lambda writer, _: None,
    "an administrator": lambda writer, _: end_transaction(writer.connection, writer.name, "admin"),
    "a timeout": expired,
    "a fence": lambda writer, _: fence_producer(writer.connection, writer.transactional_id),
    "an init": lambda writer, _: writer.init(),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_whatever_decides_a_transaction_wakes_the_readers_of_all_its_partitions(
    connection: Connection, open_connection: Sessions, clock: Clock, decision: str
) -> None:
    listener, writer, other = open_connection(), Writer(connection), Writer(connection)
    *partitions, elsewhere = new_topic(connection, 3)
    for one in (writer, other):  # what shares two parts of the name wrote elsewhere
        for epoch, number in ((0, 0), (0, 1), (1, 0), (1, 1)):
            if (epoch, number) == (1, 0):
                one.init()
            if one is other or (epoch, number) != (1, 1):
                one.send_and_commit(elsewhere, b"before")
    for partition in partitions:
        writer.send(partition, b"a")
    by_a_session = sealed(writer, "session") if decision == "a session's commit" else None
    if decision.startswith("an outside party"):
        sealed(writer, "external")
    snapshot, _ = woken_since(listener, None)
    DECISIONS[decision](writer, clock)
    if by_a_session is not None:
        decide_sealed(connection, by_a_session)
    _, words = woken_since(listener, snapshot)
    assert words is not None
    assert set(words.split(",")) == {str(partition) for partition in partitions}


@pytest.mark.parametrize("by", ["abort_batch", "decide_batch"])
def test_an_abort_of_attempts_of_spark_wakes_the_readers_of_all_their_partitions(
    connection: Connection, session: Connection, by: str
) -> None:
    *partitions, elsewhere = new_topic(connection, 3)
    other, of = (BatchName(unique("app"), "", 0) for _ in range(2))
    attempt(connection, other, elsewhere, b"before")
    assert abort_batch(connection, other) == 1
    for partition in partitions:
        attempt(connection, of, partition, b"a")
    snapshot, _ = woken_since(session, None)
    aborted = abort_batch(connection, of) if by == "abort_batch" else decide_batch(connection, of, []).aborted
    assert aborted == 2
    _, words = woken_since(session, snapshot)
    assert words is not None
    assert set(words.split(",")) == {str(partition) for partition in partitions}


CALLS: dict[str, Callable[[Writer, int, bool], object]] = {
    "append": lambda writer, partition, wake: append(writer.connection, [batch(partition, b"a")], wake=wake),
    "append of several": lambda writer, partition, wake: append(
        writer.connection, [batch(partition, b"a"), batch(2**31 - 1, b"a")], wake=wake
    ),
    "append and decide": lambda writer, partition, wake: append_and_decide(
        writer.connection, writer.name, [writer.row(partition, b"a")], wake=wake
    ),
    "append once": lambda writer, partition, wake: append_once(
        writer.connection, [KeyedRecord(partition, "dedup key", b"a", None, 1)], wake=wake
    ),
    "decide": lambda writer, partition, wake: decide(
        writer.connection, writer.name, "COMMIT", tails={partition: writer.send(partition, b"a") * 0}, wake=wake
    ),
}


@pytest.mark.parametrize("wake", [False, True])
@pytest.mark.parametrize("made", CALLS)
def test_a_call_wakes_readers_unless_its_client_notifies_them(
    connection: Connection, open_connection: Sessions, made: str, wake: bool
) -> None:
    listener, writer, partition = open_connection(), Writer(connection), new_partition(connection)
    snapshot, _ = woken_since(listener, None)
    CALLS[made](writer, partition, wake)
    assert woken_since(listener, snapshot)[1] == (str(partition) if wake else None)
    assert ends(connection, partition) == (0, 1, 1)


def test_a_dead_letter_wakes_the_readers_of_its_topic(connection: Connection, open_connection: Sessions) -> None:
    """And an answer that writes none wakes nobody."""
    listener, group = open_connection(), ShareGroup(connection, new_partition(connection))
    plain(connection, group.partition, b"a", b"b")
    group.acquire("a")
    ensure_dead_letters(connection, group.name)
    ((letters,),) = connection.execute(
        "select msgtx.dead_letter_partition(%s, %s)", [group.name, group.partition]
    ).fetchall()
    snapshot, _ = woken_since(listener, None)
    group.answer("a", {0: "accept"})
    assert woken_since(listener, snapshot)[1] is None
    group.answer("a", {1: "reject"})
    assert woken_since(listener, snapshot)[1] == str(letters)


def test_what_is_rolled_back_is_found_by_nobody(connection: Connection, partition: int, session: Connection) -> None:
    snapshot, _ = woken_since(session, None)
    with connection.transaction(force_rollback=True):
        plain(connection, partition, b"a")
    assert woken_since(session, snapshot)[1] is None


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


def test_what_was_seen_long_ago_is_removed(connection: Connection, partition: int, clock: Clock) -> None:
    remove_wake_ups(connection)
    before = count(connection, "wake_up")
    tell_readers(connection, [partition])
    assert remove_wake_ups(connection) == 0
    assert count(connection, "wake_up") == before + 1
    clock("61 seconds")
    assert remove_wake_ups(connection) == before + 1
    assert count(connection, "wake_up") == 0


def test_many_that_were_seen_long_ago_go_in_steps(connection: Connection) -> None:
    """At most 10,000 in a call."""
    remove_wake_ups(connection)
    connection.execute(
        "insert into msgtx.wake_up (woken_at, words)"
        " select msgtx.clock() - interval '1 day', 'x' from generate_series(1, 10003)"
    )
    found = [sweeps.remove_old_wake_ups(connection, None, None) for _ in range(2)]
    assert [(swept.done["wake_ups_removed"], swept.after is None) for swept in found] == [(10_000, False), (3, True)]
