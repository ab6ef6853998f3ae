"""mark: phase two and the floors (internals: transactions#markers)."""

from dataclasses import replace
from typing import Literal

import pytest

from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.sweeps import sweeps
from msgtx.store.sweeps.coordinators import lease_shards
from msgtx.store.sweeps.sweeps import purge_transactions, remove_idle_producers
from msgtx.store.transactions.producers import fence_producer
from msgtx.store.transactions.transactions import mark, mark_in_turn, mark_partitions
from tests.databases import Background, Clock, Connection, Sessions
from tests.store.conftest import Blocked
from tests.store.steps import (
    Writer,
    count,
    counts,
    decide_widely,
    delete_topic_of,
    ends,
    expire_transactions,
    new_partition,
    new_topic,
    offsets_of,
    plain,
    read,
    spent,
    spoiled,
    unique,
    values,
)


def floor(connection: Connection, partition: int) -> int:
    found = "select coalesce(max(stable_floor), 0) from msgtx.partition_floor where partition_id = %s"
    ((at,),) = query(connection, found, partition)
    return int(at)


def markers(connection: Connection, partition: int) -> list[tuple[str, int, int]]:
    return connection.execute(
        "select outcome, first_offset, last_offset from msgtx.transaction_marker where partition_id = %s"
        " order by first_offset",
        [partition],
    ).fetchall()


def backdate(connection: Connection, writer: Writer) -> None:
    """Date what a writer has decided an hour earlier."""
    connection.execute(
        "update msgtx.transaction_decision set decided_at = decided_at - interval '1 hour' where producer_id = %s",
        [writer.id.producer_id],
    )


def hide(connection: Connection, writer: Writer) -> None:
    """Let what a writer has decided not be found by its date: others have been marked meanwhile."""
    backdate(connection, writer)
    elsewhere, newest = new_partition(connection), Writer(connection)
    newest.commit_whole(newest.row(elsewhere, b"x"))
    mark(connection)


def test_each_touched_partition_gets_one_marker_and_a_repetition_adds_none(connection: Connection) -> None:
    mark(connection, everything=True)
    first, second, untouched = new_topic(connection, 3)
    writer = Writer(connection)
    writer.send(first, b"a", b"b")
    writer.send_and_commit(second, b"c")
    assert mark(connection) == (2, 2)
    assert mark(connection) == (0, 0)
    assert markers(connection, first) == [("COMMIT", 0, 1)]
    assert markers(connection, second) == [("COMMIT", 0, 0)]
    assert markers(connection, untouched) == []
    assert (floor(connection, first), floor(connection, second)) == (2, 1)


def test_a_client_rests_when_another_has_just_marked(connection: Connection, writer: Writer) -> None:
    """Of many clients that commit, one works: each looks at all decisions of the last seconds."""
    partition, other = new_topic(connection, 2)
    writer.commit_whole(writer.row(partition, b"a"), writer.row(other, b"a"))
    assert mark_in_turn(connection, rest_ms=0)
    assert markers(connection, partition) == [("COMMIT", 0, 0)]
    writer.commit_whole(writer.row(partition, b"b"))
    assert not mark_in_turn(connection, rest_ms=60_000)
    assert (markers(connection, partition), floor(connection, partition)) == ([("COMMIT", 0, 0)], 1)
    assert mark_in_turn(connection, rest_ms=0)
    assert floor(connection, partition) == 2


def test_a_sweep_takes_what_dates_find_before_it_goes_from_partition_to_partition(connection: Connection) -> None:
    """Also when it comes to the dates again, as after a call that has found much."""
    mark(connection, everything=True)
    partition, writer = new_partition(connection), Writer(connection)
    for position in (None, sweeps.DATES):
        writer.commit_whole(writer.row(partition, b"a"))
        swept = sweeps.mark_step(connection, position, None)
        assert (swept.done, swept.after) == ({"markers_written": 1, "floors_moved": 1}, sweeps.FIRST_PLACE)


def test_the_states_go_from_prepare_to_complete(connection: Connection, partition: int, writer: Writer) -> None:
    seen = [writer.state]
    for outcome in ("COMMIT", "ABORT"):
        writer.send(partition, b"a")
        seen.append(writer.state)
        writer.decide(outcome)
        writer.next()
        seen.append(writer.state)
        mark(connection)
        seen.append(writer.state)
    assert seen == [
        "Empty",
        *("Ongoing", "PrepareCommit", "CompleteCommit"),
        *("Ongoing", "PrepareAbort", "CompleteAbort"),
    ]


def test_the_floor_stops_at_the_first_undecided_transaction(connection: Connection, partition: int) -> None:
    early, late = Writer(connection), Writer(connection)
    plain(connection, partition, b"x")
    early.send(partition, b"a")
    late.send_and_commit(partition, b"b")
    mark(connection, everything=True)
    assert floor(connection, partition) == 1
    early.commit()
    mark(connection)
    assert floor(connection, partition) == 3


def test_the_floor_does_not_pass_an_abort_without_its_marker(connection: Connection, partition: int) -> None:
    """P36: below the floor, absence of an ABORT marker means committed."""
    writer, other = Writer(connection), Writer(connection)
    writer.send_and_abort(partition, b"aborted")
    other.send_and_commit(partition, b"b")
    mark(connection)
    assert ("ABORT", 0, 0) in markers(connection, partition)
    assert floor(connection, partition) == 2
    assert values(connection, partition) == [b"b"]


def test_an_abort_that_becomes_visible_late_is_marked_before_the_floor_passes(connection: Connection) -> None:
    """A decision dated long before the newest marked one: its session stalled before COMMIT."""
    partition, other = new_topic(connection, 2)
    stalled, writer = Writer(connection), Writer(connection)
    stalled.send(partition, b"aborted")
    writer.send_and_commit(other, b"a")
    mark(connection)
    stalled.decide("ABORT")
    backdate(connection, stalled)
    writer.send_and_commit(partition, b"b")
    for _ in range(3):
        mark(connection, everything=True)
    assert ("ABORT", 0, 0) in markers(connection, partition)
    assert floor(connection, partition) == 2
    assert values(connection, partition) == [b"b"]


@pytest.mark.parametrize("first", ["1 hour", "-1 hour"])
def test_a_clock_that_was_set_hides_no_decision(connection: Connection, clock: Clock, first: str) -> None:
    """Decisions of the other hour stand before and behind those of now; each round finds those of now by their dates."""
    mark(connection, everything=True)
    partitions = new_topic(connection, 4)
    writer = Writer(connection)
    clock(first)
    writer.send_and_abort(partitions[0], b"a")
    assert mark(connection) == (1, 1)
    writer.send(partitions[1], b"b")
    writer.abort()  # not yet marked when the clock is set
    clock(None)
    for number, partition in enumerate(partitions[2:]):
        writer.send_and_abort(partition, b"c")
        writer.send_and_commit(partition, b"d")
        found = mark(connection)
        assert [outcome for outcome, *_ in markers(connection, partition)] == ["ABORT", "COMMIT"], (number, found)
        assert floor(connection, partition) == 2
    mark(connection, everything=True)
    assert [floor(connection, partition) for partition in partitions] == [1, 1, 2, 2]
    assert [values(connection, partition) for partition in partitions] == [[], [], [b"d"], [b"d"]]


@pytest.mark.usefixtures("bare")
def test_nobody_rests_for_a_date_in_the_future(connection: Connection, partition: int, writer: Writer, clock: Clock) -> None:
    """The clock was set back: what was marked before tells nothing of now."""
    clock("1 hour")
    writer.commit_whole(writer.row(partition, b"a"))
    mark(connection)
    clock(None)
    assert mark_in_turn(connection, rest_ms=0)


@pytest.mark.usefixtures("bare")
def test_a_client_does_not_rest_for_a_decision_that_touches_no_partition(
    connection: Connection, partition: int, writer: Writer, clock: Clock
) -> None:
    """Which never has a marker: whether there was a round is told by the oldest decision that has."""
    writer.commit(offsets_of((unique("group"), partition, 1)))
    clock("1 second")
    writer.commit_whole(writer.row(partition, b"a"))
    mark(connection)
    writer.commit_whole(writer.row(partition, b"b"))
    assert not mark_in_turn(connection, rest_ms=60_000)


@pytest.mark.usefixtures("bare")
def test_a_marker_of_a_namesake_hides_no_decision(connection: Connection, clock: Clock) -> None:
    """P10: of the same number and epoch, producer and number, or producer and epoch; nor does a client rest for it."""
    partition, other = new_topic(connection, 2)
    writer, stranger = Writer(connection), Writer(connection)
    for each in (writer, stranger):
        for _ in range(2):
            each.commit_whole(each.row(partition, b"namesake"))
        each.init()
    writer.commit_whole(writer.row(partition, b"namesake"))
    for _ in range(2):
        stranger.commit_whole(stranger.row(partition, b"namesake"))
    mark(connection)
    clock("1 hour")
    stranger.commit_whole(stranger.row(other, b"older"))
    clock("1 hour 10 seconds")
    writer.commit_whole(writer.row(partition, b"a"))
    assert mark_in_turn(connection, rest_ms=5_000)
    assert markers(connection, partition)[-1] == ("COMMIT", 7, 7)
    assert markers(connection, other) == [("COMMIT", 0, 0)]


@pytest.mark.usefixtures("bare")
def test_a_round_leaves_alone_what_is_marked(connection: Connection, partition: int, writer: Writer) -> None:
    """What lies behind it is for those who look at all partitions. Who has found nothing answers zeros: it has looked."""
    writer.send_and_commit(partition, b"a")
    assert mark(connection) == (1, 1)
    plain(connection, partition, b"b")
    assert connection.execute("select markers, floors from msgtx.mark(rest_ms => 0)").fetchone() == (0, 0)
    assert floor(connection, partition) == 1
    assert mark(connection, everything=True) == (0, 1)


@pytest.mark.usefixtures("bare")
def test_a_round_does_not_go_through_decisions_of_the_future(connection: Connection, clock: Clock) -> None:
    """The clock was set back: they would be looked at in every round until their time comes."""
    partition, writer = new_partition(connection), Writer(connection)
    clock("1 hour")
    for _ in range(50):
        writer.commit_whole(writer.row(partition, b"a"))
    mark(connection)
    clock(None)
    writer.commit_whole(writer.row(partition, b"b"))
    assert spent(connection, "transaction_decision", "idx_tup_fetch", lambda: mark(connection)) < 20
    assert len(markers(connection, partition)) == 51


@pytest.mark.usefixtures("bare")
def test_markers_of_wide_transactions_are_written_in_several_rounds(connection: Connection) -> None:
    decide_widely(connection, 3)
    assert [mark(connection)[0] for _ in range(3)] == [20_002, 10_001, 0]


def test_decisions_that_are_not_found_by_date_are_all_found_by_place_in_one_round(connection: Connection) -> None:
    """More than one turn finds, between commits that hide them from each other."""
    partition, other = new_topic(connection, 2)
    writer = Writer(connection)
    for number in range(120):
        writer.send(partition, b"%d" % number)
        writer.commit() if number % 60 else writer.abort()
    for _ in range(110):
        writer.send_and_abort(partition, b"aborted")
    backdate(connection, writer)
    newest = Writer(connection)
    newest.send_and_commit(other, b"a")
    mark(connection)
    assert floor(connection, partition) == 0
    mark(connection, everything=True)
    assert floor(connection, partition) == 230
    assert [value for value in values(connection, partition) if value == b"aborted"] == []


def test_the_floor_stops_at_a_late_abort_that_the_round_of_markers_has_not_reached(connection: Connection) -> None:
    """P36: a round looks at a hundred transactions above the floor; this abort is the next one."""
    partition, other = new_topic(connection, 2)
    stalled, writer = Writer(connection), Writer(connection)
    for _ in range(100):
        stalled.send_and_commit(partition, b"a")
    stalled.send_and_abort(partition, b"aborted")
    backdate(connection, stalled)
    writer.send_and_commit(other, b"x")
    mark(connection)
    mark(connection, everything=True)
    assert floor(connection, partition) == 100
    assert values(connection, partition) == [b"a"] * 100
    mark(connection, everything=True)
    assert floor(connection, partition) == 101
    assert values(connection, partition) == [b"a"] * 100


def test_a_late_commit_needs_no_marker_once_the_floor_is_above_it(connection: Connection) -> None:
    partition, other = new_topic(connection, 2)
    stalled, writer = Writer(connection), Writer(connection)
    stalled.send(partition, b"a")
    writer.send_and_commit(other, b"x")
    mark(connection)
    stalled.decide("COMMIT")
    backdate(connection, stalled)
    mark(connection, everything=True)
    assert floor(connection, partition) == 1
    assert values(connection, partition) == [b"a"]
    assert stalled.state == "CompleteCommit"


def test_reading_does_not_change_with_markers_and_floors(connection: Connection, partition: int, writer: Writer) -> None:
    """Readers notice nothing of phase two."""
    for i in range(6):
        writer.send(partition, b"%d" % i)
        (writer.abort if i % 3 == 1 else writer.commit)()
    before = read(connection, partition)
    mark(connection)
    assert read(connection, partition) == before == [(i, b"%d" % i) for i in range(6) if i % 3 != 1]


def test_committed_data_below_the_floor_needs_no_decision_any_more(connection: Connection) -> None:
    """P29: the decisions may be purged; the markers of aborts stay."""
    partition, writer = new_partition(connection), Writer(connection)
    for i in range(4):
        writer.send(partition, b"%d" % i)
        (writer.abort if i % 2 else writer.commit)()
    mark(connection)
    for table in ("transaction", "transaction_partition", "transaction_decision"):
        connection.execute(f"delete from msgtx.{table} where producer_id = %s", [writer.id.producer_id])
    assert read(connection, partition) == [(0, b"0"), (2, b"2")]
    assert ends(connection, partition) == (0, 4, 4)


def test_fused_transactions_are_marked_too(connection: Connection, partition: int, writer: Writer) -> None:
    writer.commit_whole(writer.row(partition, b"a"))
    writer.commit_whole(writer.row(partition, b"b"))
    mark(connection)
    assert markers(connection, partition) == [("COMMIT", 0, 0), ("COMMIT", 1, 1)]
    assert floor(connection, partition) == 2


def test_a_decision_without_partitions_needs_no_marker(connection: Connection, writer: Writer) -> None:
    writer.decide("ABORT", tails={new_partition(connection): 0})
    mark(connection)
    assert count(connection, "transaction_marker", "producer_id = %s", writer.id.producer_id) == 0
    assert writer.state == "CompleteAbort"


def test_who_does_not_get_the_marking_lock_does_nothing(connection: Connection, session: Connection) -> None:
    """P40: crosswise markers deadlocked."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send_and_commit(partition, b"a")
    with session.transaction():
        assert session.execute("select msgtx.try_lock_marking()").fetchone() == (True,)
        assert mark(connection, everything=True) == (0, 0)
        assert mark_partitions(connection, (partition - 1,)) == (0, 0, None)
        assert (markers(connection, partition), floor(connection, partition)) == ([], 0)
    assert mark(connection)[0] == 1


def test_partitions_are_marked_page_by_page(connection: Connection, writer: Writer) -> None:
    first, second = new_topic(connection, 2)
    for partition in (first, second):
        writer.send(partition, b"a")
    writer.abort()

    def page(after: int) -> object:
        found = connection.execute("select markers, floors, next_after from msgtx.mark_partitions(%s, 1)", [[after]])
        return found.fetchone()

    assert page(first - 1) == (2, 1, [first])
    assert (floor(connection, first), floor(connection, second)) == (1, 0)
    assert page(first) == (0, 1, [second])
    assert page(second) == (0, 0, None)


def test_who_leads_no_shards_any_more_marks_no_partition(connection: Connection, partition: int, writer: Writer) -> None:
    writer.send_and_commit(partition, b"a")
    leases = lease_shards(connection, None, host="here", process=1)
    stale = replace(leases, epochs={**leases.epochs, 7: 0})
    with pytest.raises(errors.CoordinatorFenced):
        mark_partitions(connection, (partition - 1,), leases=stale)
    assert (markers(connection, partition), floor(connection, partition)) == ([], 0)


def test_the_floor_does_not_pass_a_transaction_that_has_not_yet_committed_its_first_append(
    connection: Connection, partition: int, open_connection: Sessions
) -> None:
    """P44, P1: what is not yet visible lies above the log end that the marker sees."""
    plain(connection, partition, b"x")
    late, other = open_connection(), Writer(open_connection())
    other.send(partition, b"first")
    with late.transaction():
        opened = Writer(connection)
        opened.connection = late
        opened.send(partition, b"open")
        other.decide("COMMIT")
        mark(connection, everything=True)
        assert floor(connection, partition) == 2
    mark(connection, everything=True)
    assert floor(connection, partition) == 2
    assert values(connection, partition) == [b"x", b"first"]
    assert ends(connection, partition) == (0, 2, 3)


def test_a_transaction_that_opens_while_markers_are_written_holds_the_floor(
    connection: Connection, session: Connection, blocked: Blocked
) -> None:
    """P44: what is undecided and where the log ends are seen at one moment."""
    partition, decided, opened = new_partition(connection), Writer(connection), Writer(connection)
    decided.send_and_commit(partition, b"a")
    with session.transaction(force_rollback=True):
        session.execute(
            "insert into msgtx.transaction_marker (partition_id, producer_id, producer_epoch, transaction_number, outcome,"
            " first_offset, last_offset, coordinator_epoch) values (%s, %s, %s, 0, 'COMMIT', 0, 0, 0)",
            [partition, *decided.id],
        )
        waiting = blocked(mark)
        opened.send(partition, b"open")
    waiting.result(30)
    assert floor(connection, partition) == 1
    assert values(connection, partition) == [b"a"]
    assert ends(connection, partition) == (0, 1, 2)


def test_a_commit_that_waits_in_its_session_holds_the_floor(
    connection: Connection, partition: int, session: Connection, blocked: Blocked
) -> None:
    """P44."""
    stalled, writer = Writer(connection), Writer(connection)
    stalled.send(partition, b"a")
    writer.send(partition, b"b")
    stalled.connection = session
    with session.transaction():
        stalled.decide("COMMIT")
        writer.decide("COMMIT")
        mark(connection, everything=True)
        assert floor(connection, partition) == 0
        waiting = blocked(fence_producer, stalled.transactional_id)
        assert mark(connection, everything=True) == (0, 0)
    waiting.result(30)
    mark(connection, everything=True)
    assert floor(connection, partition) == 2
    assert values(connection, partition) == [b"a", b"b"]


@pytest.mark.parametrize("everything", [False, True])
def test_a_deleted_topic_leaves_nothing_to_mark(connection: Connection, writer: Writer, everything: bool) -> None:
    kept, gone = new_partition(connection), new_partition(connection)
    writer.send(kept, b"a")
    writer.send(gone, b"b")
    delete_topic_of(connection, gone)
    writer.commit()
    mark(connection, everything=everything)
    mark(connection, everything=everything)
    assert floor(connection, kept) == 1
    assert writer.state == "CompleteCommit"


def test_two_sweeps_at_once_end_everything_once(
    connection: Connection, open_connection: Sessions, background: Background, clock: Clock
) -> None:
    clock("1 hour")
    expire_transactions(connection)  # what other tests of this module left open
    clock(None)
    partitions = new_topic(connection, 4)
    writers = [Writer(connection, unique("sweep")) for _ in range(20)]
    for i, writer in enumerate(writers):
        for partition in partitions if i % 2 else reversed(partitions):
            writer.send(partition, b"a")
    clock("1 hour")
    sessions = [open_connection() for _ in range(4)]
    expired = sum(background.map(expire_transactions, sessions))
    expired += expire_transactions(connection)
    assert expired == len(writers)
    list(background.map(lambda session: mark(session, everything=True), sessions))
    mark(connection, everything=True)
    assert [ends(connection, partition) for partition in partitions] == [(0, 20, 20)] * 4
    assert [floor(connection, partition) for partition in partitions] == [20] * 4


# ── one partition cannot take its marker now ──


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
@pytest.mark.parametrize("everything", [False, True])
def test_a_partition_that_cannot_take_its_marker_now_holds_up_no_other(
    connection: Connection, outcome: Literal["COMMIT", "ABORT"], everything: bool
) -> None:
    """Readers notice nothing, the marker follows."""
    good, bad, writer, holder = new_partition(connection), new_partition(connection), Writer(connection), Writer(connection)
    holder.send(bad, b"open")  # else the floor would complete a commit without its marker
    for partition in (bad, good):
        writer.send(partition, b"a")
    writer.decide(outcome)
    expected = [b"a"] if outcome == "COMMIT" else []
    with spoiled(connection, "transaction_marker", "insert", f"new.partition_id = {bad}"):
        for written in (1, 0):
            assert mark(connection, everything=everything)[0] == written
            assert (markers(connection, good), markers(connection, bad)) == ([(outcome, 0, 0)], [])
            assert (floor(connection, good), floor(connection, bad)) == (1, 0)
            assert writer.state == {"COMMIT": "PrepareCommit", "ABORT": "PrepareAbort"}[outcome]
            assert (values(connection, good), values(connection, bad)) == (expected, [])
        holder.commit()
        mark(connection, everything=everything)
        assert (values(connection, good), values(connection, bad)) == (expected, [b"open", *expected])
        # The floor passes a commit without its marker, never an abort.
        assert floor(connection, bad) == (2 if outcome == "COMMIT" else 1)
    mark(connection, everything=everything)
    assert markers(connection, bad)[-1] == (outcome, 1, 1)
    assert floor(connection, bad) == 2
    assert writer.state == {"COMMIT": "CompleteCommit", "ABORT": "CompleteAbort"}[outcome]
    assert (values(connection, good), values(connection, bad)) == (expected, [b"open", *expected])


@pytest.mark.usefixtures("bare")
def test_an_abort_that_could_not_be_marked_for_long_is_marked_when_it_can_be(connection: Connection) -> None:
    """Others are marked meanwhile: it is found from the floor."""
    good, bad, writer = new_partition(connection), new_partition(connection), Writer(connection)
    writer.send(bad, b"aborted")
    with spoiled(connection, "transaction_marker", "insert", f"new.partition_id = {bad}"):
        writer.abort()
        mark(connection)
        connection.execute("update msgtx.transaction_decision set decided_at = decided_at - interval '1 hour'")
        writer.commit_whole(writer.row(good, b"x"))
        mark(connection)
    assert mark(connection, everything=True)[0] == 1
    assert markers(connection, bad) == [("ABORT", 0, 0)]
    assert (floor(connection, bad), values(connection, bad)) == (1, [])


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("kind", ["whole", "in steps"])
def test_a_commit_that_becomes_visible_late_is_complete_after_the_next_sweep(connection: Connection, kind: str) -> None:
    """A call in a SQL transaction of somebody who takes his time: others have been marked meanwhile."""
    partition, other = new_topic(connection, 2)
    stalled, writer = Writer(connection), Writer(connection)
    writer.commit_whole(writer.row(other, b"x"))
    mark(connection)
    if kind == "whole":
        stalled.commit_whole(stalled.row(partition, b"late"))
    else:
        stalled.send_and_commit(partition, b"late")
    plain(connection, other, b"a longer log, and no transaction at its end")
    backdate(connection, stalled)
    mark(connection, everything=True)
    assert stalled.state == "CompleteCommit"


@pytest.mark.usefixtures("bare")
def test_what_was_marked_within_the_last_seconds_keeps_nothing_newer_from_its_marker(connection: Connection) -> None:
    """A call looks at 20,000 decisions at most, and a fast server makes more of them in two seconds."""
    partition, other = new_topic(connection, 2)
    writer = Writer(connection)
    writer.commit_whole(writer.row(other, b"x"))
    mark(connection)
    many = 20_100
    connection.execute(
        "insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,"
        " decided_by, partitions, first_offsets, last_offsets) select 5000000 + n, 0, 0, 'COMMIT', msgtx.clock(), 'client',"
        " array[%s], array[0], array[0] from generate_series(1, %s) n",
        [other, many],
    )
    connection.execute(
        "insert into msgtx.transaction_marker (partition_id, producer_id, producer_epoch, transaction_number, outcome,"
        " first_offset, last_offset) select %s, 5000000 + n, 0, 0, 'COMMIT', 0, 0 from generate_series(1, %s) n",
        [other, many],
    )
    writer.commit_whole(writer.row(partition, b"newest"))
    mark(connection)
    assert markers(connection, partition) == [("COMMIT", 0, 0)]


@pytest.mark.usefixtures("bare")
def test_what_is_found_by_its_place_is_found_under_its_own_name(connection: Connection) -> None:
    """Beside commits that have two parts of that name."""
    other, partition = new_topic(connection, 2)
    first, stalled = Writer(connection), Writer(connection)
    for writer, numbers in ((first, (2, 2)), (stalled, (2, 1))):
        for number in numbers:
            for _ in range(number):
                writer.send_and_commit(other, b"a")
            if writer.id.epoch == 0:
                writer.init()
    mark(connection, everything=True)
    stalled.send_and_abort(partition, b"aborted")
    hide(connection, stalled)
    assert mark(connection) == (0, 0)
    assert mark(connection, everything=True) == (1, 1)
    assert (markers(connection, partition), floor(connection, partition)) == ([("ABORT", 0, 0)], 1)


@pytest.mark.usefixtures("bare")
def test_what_is_found_by_its_place_is_not_behind_what_another_partition_has(connection: Connection) -> None:
    """A hundred transactions are looked at in each partition."""
    other, partition = new_topic(connection, 2)
    busy, stalled = Writer(connection), Writer(connection)
    for _ in range(101):
        busy.send_and_commit(other, b"a")
    mark(connection, everything=True)
    plain(connection, partition, *[b"x"] * 200)
    stalled.send_and_abort(partition, b"aborted")
    plain(connection, partition, b"behind")
    hide(connection, stalled)
    assert mark(connection, everything=True) == (1, 1)
    assert floor(connection, partition) == 202


@pytest.mark.usefixtures("bare")
def test_the_marker_of_an_earlier_epoch_lets_the_floor_pass_that_one_alone(connection: Connection) -> None:
    """P36."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send_and_abort(partition, b"aborted")
    mark(connection, everything=True)
    writer.init()
    writer.send(partition, b"aborted, too")
    assert writer.name.transaction_number == 0
    writer.abort()
    with spoiled(connection, "transaction_marker", "insert", f"new.partition_id = {partition}"):
        mark(connection, everything=True)
    assert floor(connection, partition) == 1
    assert values(connection, partition) == []


@pytest.mark.usefixtures("bare")
def test_a_floor_that_does_not_move_is_not_counted(connection: Connection, partition: int, writer: Writer) -> None:
    writer.send(partition, b"open")
    assert mark(connection, everything=True) == (0, 0)
    assert count(connection, "partition_floor") == 0


@pytest.mark.usefixtures("bare")
def test_by_place_a_coordinator_settles_the_partitions_of_its_shards(connection: Connection) -> None:
    partitions, writer = new_topic(connection, 3), Writer(connection)
    for partition in partitions:
        writer.send_and_commit(partition, b"a")
    hide(connection, writer)
    leases = lease_shards(connection, None, host="here", process=1)
    for number, partition in enumerate(partitions, 1):
        shard = partition % 50
        one = replace(leases, epochs={shard: leases.epochs[shard]})
        assert mark(connection, everything=True, leases=one) == (0, 1)
        assert [floor(connection, each) for each in partitions] == [1] * number + [0] * (3 - number)


# ── deleted topics ──


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("everything", [False, True])
def test_the_markers_of_a_deleted_topic_are_not_written_again(
    connection: Connection, everything: bool, clock: Clock
) -> None:
    kept, gone, writer = new_partition(connection), new_partition(connection), Writer(connection)
    for partition in (kept, gone):
        writer.send_and_commit(partition, b"a")
    writer.send_and_abort(gone, b"a")
    mark(connection, everything=True)
    delete_topic_of(connection, gone)
    assert mark(connection, everything=everything) == (0, 0)
    assert count(connection, "partition_floor", "partition_id = %s", gone) == 0
    row = connection.execute("select count(*) from msgtx.unsettled_partitions() where partition_id = %s", [gone]).fetchone()
    assert row == (0,)
    clock("8 days")
    for _ in range(2):
        remove_idle_producers(connection, None, None)
        purge_transactions(connection, None, None)
    assert count(connection, "transaction_marker", "partition_id = %s", gone) == 0


def test_a_marker_that_outlived_its_history_goes_with_its_topic(
    connection: Connection, partition: int, writer: Writer, clock: Clock
) -> None:
    writer.send_and_abort(partition, b"a")
    writer.commit_whole(writer.row(partition, b"b"))
    mark(connection, everything=True)
    clock("8 days")
    purge_transactions(connection, None, None)
    assert markers(connection, partition) == [("ABORT", 0, 0), ("COMMIT", 1, 1)]
    delete_topic_of(connection, partition)
    assert markers(connection, partition) == [("COMMIT", 1, 1)]


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_a_transaction_that_only_touched_a_deleted_topic_leaves_nothing_when_its_history_goes(
    connection: Connection, outcome: Literal["COMMIT", "ABORT"], clock: Clock
) -> None:
    gone, writer = new_partition(connection), Writer(connection)
    writer.send(gone, b"a")
    delete_topic_of(connection, gone)
    writer.decide(outcome)
    mark(connection, everything=True)
    assert writer.state == {"COMMIT": "CompleteCommit", "ABORT": "CompleteAbort"}[outcome]
    clock("8 days")
    remove_idle_producers(connection, None, None)
    purge_transactions(connection, None, None)
    assert counts(connection) == dict.fromkeys(counts(connection), 0)


@pytest.mark.usefixtures("bare")
def test_an_open_transaction_that_only_touched_a_deleted_topic_is_still_expired(
    connection: Connection, clock: Clock
) -> None:
    """I12: where it began tells where it is to be found."""
    gone, writer = new_partition(connection), Writer(connection)
    writer.send(gone, b"a")
    delete_topic_of(connection, gone)
    clock("1 hour")
    expire_transactions(connection)
    assert count(connection, "transaction_decision", "producer_id = %s and outcome = 'ABORT'", writer.id.producer_id) == 1
    mark(connection, everything=True)
    assert writer.state == "CompleteAbort"


def test_a_marker_hides_its_own_transaction_alone(connection: Connection) -> None:
    """I5: not those of other producers and epochs that have the same number."""
    partition, aborted, other = new_partition(connection), Writer(connection), Writer(connection)
    aborted.send_and_abort(partition, b"a")
    other.send_and_commit(partition, b"b")
    aborted.init()
    aborted.send_and_commit(partition, b"c")
    mark(connection)
    found = connection.execute(
        "select b.base_offset, msgtx.is_committed(b.partition_id, b.base_offset, b.producer_id, b.producer_epoch,"
        " b.transaction_number) from msgtx.record_batch b where b.partition_id = %s order by b.base_offset",
        [partition],
    ).fetchall()
    assert found == [(0, False), (1, True), (2, True)]
