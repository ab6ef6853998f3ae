"""A client that is held back by an overdue transaction aborts it, and waits for no lock to do so (I12)."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from msgtx.store.fetch.fetch import EARLIEST, LATEST
from msgtx.store.fetch.holders import Holder, expire_holders, stable_cut, stable_ends, stable_offsets
from msgtx.store.transactions.seal import Kind, decide_sealed, seal
from msgtx.store.transactions.transactions import transaction_outcome
from msgtx.types import Isolation, Outcome
from tests.databases import Clock, Connection
from tests.store.steps import COMMITTED, UNCOMMITTED, Writer, new_partition, new_topic, offsets_of, plain, unique

pytestmark = pytest.mark.usefixtures("nothing_left_open")


def aborted(connection: Connection, writer: Writer) -> bool:
    return transaction_outcome(connection, writer.name).outcome is Outcome.ABORTED


def sealed_offset(connection: Connection, group: str, partition: int, offset: int = 5, kind: Kind = "session") -> Writer:
    """A transaction of offsets only that waits for its decision."""
    writer = Writer(connection)
    answer = seal(connection, writer.name, kind, tails={}, offsets=offsets_of((group, partition, offset)))
    assert answer.sealed is not None
    return writer


LOOKS: dict[str, Callable[[Connection, int], Any]] = {
    "the end": lambda c, p: stable_ends(c, {p: LATEST}, COMMITTED)[p].offset,
    "by time": lambda c, p: stable_ends(c, {p: 1_000}, COMMITTED)[p].last_stable_offset,
    "a cut": lambda c, p: stable_cut(c, [p])[p].end,
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_passes_what_is_overdue(name: str, connection: Connection, clock: Clock) -> None:
    """Several in a row, too; what is not overdue stays, and holds the reader back."""
    partition, overdue, young = new_partition(connection), [Writer(connection) for _ in range(3)], Writer(connection)
    for writer in overdue:
        writer.send(partition, b"x")
    clock("40 seconds")
    young.send(partition, b"x")
    plain(connection, partition, b"behind")
    assert LOOKS[name](connection, partition) == 0
    clock("61 seconds")
    assert LOOKS[name](connection, partition) == 3
    assert [aborted(connection, writer) for writer in (*overdue, young)] == [True, True, True, False]


def test_who_is_not_held_back_aborts_nothing(connection: Connection, partition: int, writer: Writer, clock: Clock) -> None:
    writer.send(partition, b"x")
    clock("61 seconds")
    assert stable_ends(connection, {partition: EARLIEST}, COMMITTED)[partition].offset == 0
    assert stable_ends(connection, {partition: LATEST}, UNCOMMITTED)[partition].offset == 1
    assert stable_ends(connection, {new_partition(connection): LATEST}, COMMITTED)
    assert not aborted(connection, writer)


def test_holders_are_named_per_partition(connection: Connection, clock: Clock) -> None:
    """Only the first one of a partition holds it back; one may hold several."""
    first, second, free = new_topic(connection, 3)
    one, other = Writer(connection), Writer(connection)
    one.send(first, b"x")
    one.send(second, b"x")
    other.send(second, b"x")
    wanted = [Holder(first, one.name, None, False), Holder(second, one.name, None, False)]
    assert expire_holders(connection, [free, second, first, first]) == wanted
    assert expire_holders(connection, []) == []
    clock("61 seconds")
    told = expire_holders(connection, [first, second])
    assert [(holder.partition_id, holder.transaction_id, holder.expired) for holder in told] == [
        (first, one.name, True),
        (second, one.name, True),
        (second, other.name, True),
    ]


def test_a_call_aborts_a_hundred_at_most(connection: Connection, clock: Clock) -> None:
    """Who is still held back comes again."""
    partitions = new_topic(connection, 101)
    overdue = {partition: Writer(connection) for partition in partitions}
    for partition, writer in overdue.items():
        writer.send(partition, b"x")
    clock("61 seconds")
    assert sum(holder.expired for holder in expire_holders(connection, partitions)) == 100
    assert sum(aborted(connection, writer) for writer in overdue.values()) == 100
    assert [holder.expired for holder in expire_holders(connection, partitions)] == [True]


def test_a_lock_that_is_taken_is_not_waited_for(connection: Connection, session: Connection, clock: Clock) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"x")
    clock("61 seconds")
    connection.execute("set lock_timeout = '1s'")
    with session.transaction():
        session.execute("select msgtx.lock_producer(%s)", [writer.id[0]])
        assert [holder.expired for holder in expire_holders(connection, [partition])] == [False]
        assert stable_ends(connection, {partition: LATEST}, COMMITTED)[partition].offset == 0
    assert stable_ends(connection, {partition: LATEST}, COMMITTED)[partition].offset == 1


@pytest.mark.parametrize("how", ["read only", "kept snapshot"])
def test_who_may_not_write_is_told_and_goes_on(
    partition: int, writer: Writer, how: str, connection: Connection, session: Connection, clock: Clock
) -> None:
    """A reader of a replica waits for the primary's sweep."""
    writer.send(partition, b"x")
    clock("61 seconds")
    if how == "read only":
        session.read_only = True
    else:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    warned: list[str | None] = []
    session.add_notice_handler(lambda notice: warned.append(notice.message_primary))
    with session.transaction():
        assert expire_holders(session, [partition]) == [Holder(partition, writer.name, None, False)]
        assert stable_ends(session, {partition: LATEST}, COMMITTED)[partition].offset == 0
    assert (aborted(connection, writer), warned) == (False, []), "it was not tried"


@pytest.mark.parametrize("again", [Writer.next, Writer.init], ids=["number", "epoch"])
def test_each_transaction_of_a_producer_is_as_old_as_it_is(
    connection: Connection, partition: int, writer: Writer, clock: Clock, again: Callable[[Writer], None]
) -> None:
    writer.send(partition, b"patient", timeout_ms=600_000)
    writer.decide("COMMIT")
    again(writer)
    writer.send(partition, b"x", timeout_ms=1_000)
    clock("10 seconds")
    assert expire_holders(connection, [partition]) == [Holder(partition, writer.name, None, True)]


# ── offsets of groups ──


def test_offsets_that_wait_for_an_overdue_seal_are_stable_again(connection: Connection, clock: Clock) -> None:
    """I10, I12: it had until its deadline; afterwards its inputs may be read again."""
    group, partition = unique("group"), new_partition(connection)
    writer = sealed_offset(connection, group, partition)
    found, holders = stable_offsets(connection, group, [partition])
    assert (found[partition].at, found[partition].pending) == (None, True)
    assert holders == {partition: Holder(partition, writer.name, "session", False)}
    clock("61 seconds")
    assert stable_offsets(connection, group, [partition]) == ({}, {})
    assert aborted(connection, writer)


def test_a_prepared_transaction_is_named_for_ever(connection: Connection, clock: Clock) -> None:
    group, partition, other = unique("group"), *new_topic(connection, 2)
    writer = sealed_offset(connection, group, partition, kind="external")
    clock("30 days")
    found, holders = stable_offsets(connection, group, [partition, other])
    assert found[partition].pending
    assert holders == {partition: Holder(partition, writer.name, "external", False)}
    assert str(writer.name) in str(holders[partition])
    assert "prepared" in str(holders[partition])


def test_a_seal_that_a_newer_commit_has_superseded_holds_nobody(connection: Connection, group: str, partition: int) -> None:
    sealed_offset(connection, group, partition)
    assert Writer(connection).commit(offsets_of((group, partition, 9)))
    assert expire_holders(connection, [partition], group) == []
    assert expire_holders(connection, [partition], unique("no group")) == []


def test_offsets_wait_for_their_own_groups_seals_on_their_own_partitions(connection: Connection) -> None:
    """Beside another group, also one that has committed there since, and where the group has committed elsewhere since."""
    group, other = unique("group"), unique("group")
    partition, second = new_topic(connection, 2)
    writers = {
        (name, each): sealed_offset(connection, name, each) for name in (other, group) for each in (second, partition)
    }
    third = new_partition(connection)
    assert Writer(connection).commit(offsets_of((group, third, 9)))
    assert Writer(connection).commit(offsets_of((other, partition, 9)))
    Writer(connection).send(partition, b"open, which holds no offset back")
    found = expire_holders(connection, [partition, third], group)
    assert found == [Holder(partition, writers[group, partition].name, "session", False)]


def test_a_seal_whose_session_commits_now_is_left_to_it(
    connection: Connection, group: str, partition: int, writer: Writer, session: Connection, clock: Clock
) -> None:
    """Its session holds the producer's lock until its COMMIT."""
    answer = seal(connection, writer.name, "session", tails={}, offsets=offsets_of((group, partition, 5)))
    assert answer.sealed is not None
    with session.transaction():
        decide_sealed(session, answer.sealed)
        clock("61 seconds")
        assert stable_offsets(connection, group, [partition])[0][partition].pending
    found, holders = stable_offsets(connection, group, [partition])
    assert (found[partition].at is not None and found[partition].at.offset, holders) == (5, {})


def test_read_uncommitted_is_no_reader_that_is_held_back(connection: Connection, partition: int, writer: Writer) -> None:
    writer.send(partition, b"x")
    assert stable_ends(connection, {partition: LATEST}, Isolation.READ_UNCOMMITTED)[partition].last_stable_offset == 0
