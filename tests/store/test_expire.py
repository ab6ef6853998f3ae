"""Timeouts: any client that meets an overdue transaction aborts it, by name (I12)."""

import pytest

from msgtx.store.fetch.fetch import Position, fetch
from msgtx.store.transactions.transactions import Decision, end_transaction, mark, transaction_outcome
from msgtx.types import Isolation, Outcome, TransactionId
from tests.databases import Background, Clock, Connection, Sessions, backend, wait_until
from tests.store.conftest import Blocked
from tests.store.steps import (
    Writer,
    append_one,
    count,
    ends,
    expire_transaction,
    expire_transactions,
    new_partition,
    new_topic,
    plain,
    seal,
    spoiled,
    swept_by,
    unique,
    values,
)

pytestmark = pytest.mark.usefixtures("nothing_left_open")


def test_each_transaction_has_its_own_timeout(connection: Connection, partition: int, clock: Clock) -> None:
    """P11."""
    short, long, own = Writer(connection, timeout_ms=10_000), Writer(connection), Writer(connection, timeout_ms=10_000)
    for writer in (short, long):
        writer.send(partition, b"a")
    own.send(partition, b"a", timeout_ms=60_000)
    clock("30 seconds")
    assert expire_transactions(connection) == 1
    outcomes = [transaction_outcome(connection, writer.name) for writer in (short, long, own)]
    assert outcomes == [Decision(Outcome.ABORTED, "timeout"), *[Decision(Outcome.OPEN, None)] * 2]
    clock("61 seconds")
    assert expire_transactions(connection) == 2
    assert expire_transactions(connection) == 0


def test_one_that_is_not_overdue_is_left(connection: Connection, writer: Writer) -> None:
    writer.send(new_partition(connection), b"a")
    assert not expire_transaction(connection, writer.name)
    assert transaction_outcome(connection, writer.name).outcome is Outcome.OPEN


def test_a_transaction_of_a_future_that_was_taken_back_is_ended_with_its_session(
    connection: Connection, partition: int, open_connection: Sessions, clock: Clock
) -> None:
    """The clock was set back: its age is not known. While the session that opened it is there, it is left."""
    clock("1 hour")
    theirs = open_connection()
    ended, alive = Writer(theirs), Writer(connection)
    ended.send(partition, b"a")
    alive.send(partition, b"b")
    clock(None)
    assert expire_transactions(connection) == 0
    assert not expire_transaction(connection, ended.name)
    pid = backend(theirs)
    theirs.close()
    wait_until(
        lambda: connection.execute("select count(*) from pg_stat_activity where pid = %s", [pid]).fetchone() == (0,),
        "the session is gone",
    )
    assert fetch(connection, {partition: Position(0)}, isolation=Isolation.READ_COMMITTED, max_bytes=1)[
        partition
    ].blocked_overdue
    assert expire_transactions(connection) == 1
    assert transaction_outcome(connection, ended.name) == Decision(Outcome.ABORTED, "timeout")
    assert alive.decide("COMMIT").error is None
    assert values(connection, partition) == [b"b"]


def test_a_transaction_that_was_opened_a_moment_in_the_future_has_its_time(
    connection: Connection, open_connection: Sessions, clock: Clock
) -> None:
    """A small step back, by less than the timeout: the transaction ends that much later."""
    clock("30 seconds")
    theirs = open_connection()
    writer = Writer(theirs)
    writer.send(new_partition(connection), b"a")
    theirs.close()
    clock(None)
    assert expire_transactions(connection) == 0
    clock("91 seconds")
    assert expire_transactions(connection) == 1


def test_one_by_name_is_ended_once_and_the_answer_repeats(connection: Connection, writer: Writer, clock: Clock) -> None:
    writer.send(new_partition(connection), b"a")
    clock("1 hour")
    assert [expire_transaction(connection, writer.name) for _ in range(2)] == [True, True]
    assert count(connection, "transaction_decision", "producer_id = %s", writer.id.producer_id) == 1


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_what_the_client_decided_is_left(connection: Connection, writer: Writer, clock: Clock, outcome: str) -> None:
    writer.send(new_partition(connection), b"a")
    writer.decide(outcome)
    clock("1 hour")
    assert not expire_transaction(connection, writer.name)
    assert expire_transactions(connection) == 0


def test_a_name_that_is_not_known_is_not_expired(connection: Connection) -> None:
    assert not expire_transaction(connection, TransactionId(2**50, 0, 0))
    assert not expire_transaction(connection, Writer(connection).name)


def test_an_expired_transaction_takes_no_late_writes_and_its_producer_lives_on(connection: Connection, clock: Clock) -> None:
    """P11, I8."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    clock("1 hour")
    expire_transactions(connection)
    late = append_one(connection, writer.row(partition, b"late"))
    assert late.error is not None
    assert late.error.requires_abort
    writer.next()
    writer.send_and_commit(partition, b"b")
    assert values(connection, partition) == [b"b"]


def test_a_held_producer_is_passed_by_and_the_others_are_ended(
    connection: Connection, partition: int, session: Connection, clock: Clock
) -> None:
    """P32: it tries the lock, it never waits."""
    held, other = Writer(connection), Writer(connection)
    held.send(partition, b"a")
    other.send(partition, b"b")
    clock("1 hour")
    with session.transaction():
        session.execute("select msgtx.lock_producer_shared(%s)", [held.id.producer_id])
        assert not expire_transaction(connection, held.name)
        assert expire_transactions(connection) == 1
        assert transaction_outcome(connection, held.name).outcome is Outcome.OPEN
    assert expire_transactions(connection) == 1


def test_one_bad_row_does_not_stop_the_rest(connection: Connection, partition: int, clock: Clock) -> None:
    """P12."""
    writers = [Writer(connection) for _ in range(5)]
    for writer in writers:
        writer.send(partition, b"a")
    clock("1 hour")
    with spoiled(connection, "transaction_decision", "insert", f"new.producer_id = {writers[2].id.producer_id}"):
        assert expire_transactions(connection) == 4
    assert expire_transactions(connection) == 1


def test_a_transaction_sealed_for_an_outside_party_is_exempt(connection: Connection, partition: int, clock: Clock) -> None:
    external, session = Writer(connection), Writer(connection)
    external.send(partition, b"a")
    session.send(partition, b"b")
    seal(connection, external.name, "external")
    seal(connection, session.name, "session")
    clock("1 hour")
    assert expire_transactions(connection) == 1
    assert not expire_transaction(connection, external.name)
    assert transaction_outcome(connection, session.name) == Decision(Outcome.ABORTED, "timeout")
    assert end_transaction(connection, external.name, "admin") in {Outcome.OPEN, Outcome.ABORTED}


def test_a_sealed_transaction_with_offsets_only_is_found(connection: Connection, writer: Writer, clock: Clock) -> None:
    """P42: it has no row on any partition."""
    seal(connection, writer.name, "session")
    clock("1 hour")
    assert expire_transactions(connection) == 1


def test_one_that_opened_below_a_later_floor_of_another_partition_is_found(connection: Connection, clock: Clock) -> None:
    first, second = new_topic(connection, 2)
    stuck, busy = Writer(connection), Writer(connection)
    stuck.send(first, b"a")
    for _ in range(3):
        busy.send_and_commit(second, b"b")
        mark(connection, everything=True)
    clock("1 hour")
    assert expire_transactions(connection) == 1
    assert ends(connection, first) == (0, 1, 1)


def test_opened_at_is_the_time_of_the_append_also_late_in_a_long_sql_transaction(
    connection: Connection, session: Connection, clock: Clock
) -> None:
    """P33: not now(), which is as old as the SQL transaction: it would expire at birth."""
    partition, writer = new_partition(connection), Writer(connection, timeout_ms=60_000)
    with session.transaction():
        session.execute("select now()")
        clock("1 hour")
        writer.connection = session
        writer.send(partition, b"a")
    assert expire_transactions(connection) == 0
    assert transaction_outcome(connection, writer.name).outcome is Outcome.OPEN


def test_every_overdue_transaction_goes_in_bounded_batches(connection: Connection, partition: int, clock: Clock) -> None:
    for _ in range(7):
        Writer(connection).send(partition, b"a")
    clock("1 hour")
    assert [each for each in swept_by(connection, "expire_overdue", 3) if each] == [3, 3, 1]


def expired_at(connection: Connection, place: list[int], most: int) -> int:
    (found,) = connection.execute("select expired from msgtx.expire_overdue(%s, %s)", [place, most]).fetchone() or (-1,)
    return int(found)


@pytest.mark.parametrize("others", ["young", "prepared"])
def test_what_is_left_alone_takes_no_place_in_a_bounded_batch(connection: Connection, clock: Clock, others: str) -> None:
    partition = new_partition(connection)
    writers = [Writer(connection) for _ in range(5)]
    for writer in writers:
        writer.send(partition, b"a")
        if others == "prepared":
            seal(connection, writer.name, "external")
    overdue = Writer(connection, timeout_ms=10_000)
    overdue.send(partition, b"b")
    clock("1 hour" if others == "prepared" else "30 seconds")
    assert expired_at(connection, [2, partition - 1, 0], 1) == 1
    assert transaction_outcome(connection, overdue.name) == Decision(Outcome.ABORTED, "timeout")


def test_what_another_sweep_has_ended_meanwhile_is_not_counted(
    connection: Connection, partition: int, session: Connection, blocked: Blocked, clock: Clock
) -> None:
    """The sweep has found them all before it ends the first one, where it waits here."""
    first, *others = (Writer(connection) for _ in range(5))
    for writer in (first, *others):
        writer.send(partition, b"a")
    clock("1 hour")
    with session.transaction(force_rollback=True):
        session.execute("select msgtx.insert_decision(%s, %s, %s, 'ABORT', 'timeout')", first.name)
        found = blocked(expired_at, [2, partition - 1, 0], 9)
        ended = sum(expire_transaction(connection, writer.name) for writer in others)
    assert found.result(20) == 5 - ended
    outcomes = [transaction_outcome(connection, writer.name) for writer in (first, *others)]
    assert outcomes == [Decision(Outcome.ABORTED, "timeout")] * 5


# ── by hand ──


def test_resolve_aborts_what_is_open_and_what_would_be_next(connection: Connection, partition: int, writer: Writer) -> None:
    assert transaction_outcome(connection, writer.name) == Decision(Outcome.UNKNOWN, None)
    assert end_transaction(connection, writer.name, "resolve") is Outcome.ABORTED
    writer.next()
    writer.send(partition, b"a")
    assert end_transaction(connection, writer.name, "resolve") is Outcome.ABORTED
    assert end_transaction(connection, writer.name, "resolve") is Outcome.ABORTED
    assert values(connection, partition) == []


def test_resolve_leaves_what_is_decided_over_stale_or_unknown(connection: Connection) -> None:
    """I4, P46."""
    partition, writer = new_partition(connection), Writer(connection)
    done = writer.send_and_commit(partition, b"a")
    assert end_transaction(connection, done, "resolve") is Outcome.COMMITTED
    for number in (2, 1_000):
        name = done._replace(transaction_number=number)
        assert end_transaction(connection, name, "resolve") is Outcome.UNKNOWN
    next_name = writer.name
    writer.init()
    assert end_transaction(connection, next_name, "resolve") is Outcome.UNKNOWN
    assert end_transaction(connection, TransactionId(2**50, 0, 0), "resolve") is Outcome.UNKNOWN


@pytest.mark.parametrize("how", ["an administrator", "a timeout"])
@pytest.mark.parametrize("records", [0, 1])
def test_what_a_producer_that_is_gone_has_left_open_can_be_ended(
    connection: Connection, partition: int, writer: Writer, clock: Clock, records: int, how: str
) -> None:
    """I12: nobody else would, and readers would wait for ever. Without records, its offsets hold up a group."""
    if records:
        writer.send(partition, b"a")
    else:
        seal(connection, writer.name, "session")
    connection.execute("delete from msgtx.producer where producer_id = %s", [writer.id.producer_id])
    assert not expire_transaction(connection, writer.name)
    if how == "a timeout":
        clock("1 hour")
        assert expire_transaction(connection, writer.name)
    else:
        assert end_transaction(connection, writer.name, "admin") is Outcome.ABORTED
    plain(connection, partition, b"b")
    assert values(connection, partition) == [b"b"]


def test_an_administrator_does_not_decide_what_has_no_rows(connection: Connection, writer: Writer) -> None:
    assert end_transaction(connection, writer.name, "admin") is Outcome.UNKNOWN
    assert count(connection, "transaction_decision", "producer_id = %s", writer.id.producer_id) == 0


def test_a_reader_and_a_sweep_at_once_end_it_once(
    connection: Connection, open_connection: Sessions, background: Background, clock: Clock
) -> None:
    partition, writer = new_partition(connection), Writer(connection, unique("once"))
    writer.send(partition, b"a")
    clock("1 hour")
    sessions = [open_connection() for _ in range(8)]
    list(background.map(lambda session: expire_transaction(session, writer.name), sessions))
    assert expire_transaction(connection, writer.name)
    assert count(connection, "transaction_decision", "producer_id = %s", writer.id.producer_id) == 1
