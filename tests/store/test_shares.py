"""Share groups in the database: who holds a record, and what becomes of answers (internals: shares; I17)."""

import concurrent.futures
import contextlib
import copy
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from msgtx import errors
from msgtx.coordinator.sweep import sweep
from msgtx.database.pool import Engine
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.groups.groups import delete_group
from msgtx.store.shares.answers import (
    acknowledge_in_session,
    acknowledge_in_transaction,
    acknowledge_records,
    last_share_call,
)
from msgtx.store.shares.shares import (
    Acquiring,
    acquire_records,
    configure_share_group,
    describe_share_groups,
    ensure_dead_letters,
    reset_share_offsets,
)
from msgtx.store.topics.retention import delete_records
from msgtx.store.topics.topics import create_topic, delete_topic, describe_topics
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.seal import complete_prepared
from msgtx.store.transactions.seal import seal as seal_it
from msgtx.store.transactions.transactions import mark, transaction_outcome
from msgtx.store.verify import verify_batches
from msgtx.types import Outcome
from tests.databases import Connection, backend, wait_for_lock
from tests.refusals import refuses
from tests.store.sharing import ANYTHING, ShareGroup, answers_of, four_records, join
from tests.store.steps import (
    Ending,
    Writer,
    append_one,
    batch,
    count,
    delete_topic_of,
    new_partition,
    new_topic,
    plain,
    values,
)
from tests.store.test_compaction import compact, compacted_topic, put
from tests.store.test_retention import retain, topic_of

Clock = Callable[..., None]
Sessions = Callable[[], Connection]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare")]


@pytest.fixture
def partition(connection: Connection) -> int:
    return four_records(connection)


@pytest.fixture
def group(connection: Connection, partition: int) -> ShareGroup:
    return ShareGroup(connection, partition)


@pytest.fixture
def compacted(connection: Connection) -> ShareGroup:
    return ShareGroup(connection, compacted_topic(connection))


def put_rows(group: ShareGroup, *rows: str) -> None:
    for pairs in rows:
        put(group.connection, group.partition, pairs)


def settle(connection: Connection) -> int:
    row = connection.execute("select settled from msgtx.settle_shares()").fetchone()
    assert row is not None
    return int(row[0])


# ── locks ──


def test_a_lock_outlasts_a_setting_that_became_shorter(connection: Connection, group: ShareGroup) -> None:
    """I17: it was given for the longer time. Until that is over, its records are nobody else's, and no dead letters."""
    group.configure(record_lock_duration_ms=600_000, delivery_count_limit=1)
    held = group.acquire("a")
    group.configure(record_lock_duration_ms=1_000)
    assert (len(held), group.acquire("b")) == (4, {})
    assert connection.execute("select buried from msgtx.bury_dead_shares()").fetchone() == (0,)
    assert group.answer("a", dict.fromkeys(held, "accept")) == []
    assert "longest_lock_ms" not in describe_share_groups(connection, [group.name])[0].settings


def test_what_is_dead_and_cannot_be_written_counts_as_in_flight(connection: Connection, group: ShareGroup) -> None:
    """Its spans stay in the state, which each poll copies: no more than max_record_locks may be there."""
    group.configure(delivery_count_limit=1, max_record_locks=2)
    connection.execute("update msgtx.share_group set writes_dead_letters = false where group_id = %s", [group.group_id])
    for offset in range(2):
        assert group.acquire("a", 1) == {offset: 1}
        assert group.answer("a", {offset: "release"}) == []
    assert group.acquire("a") == {}
    assert group.letters == []
    group.configure()  # who may configure it allows it
    found = group.acquire("a")
    assert (found or group.acquire("a"), len(group.letters)) == ({2: 1, 3: 1}, 2)


# ── transactions ──


def test_records_of_one_row_may_belong_to_different_transactions(connection: Connection, group: ShareGroup) -> None:
    """T1 acknowledges 0, then 1; T2 acknowledges 2, and is aborted: 2 is delivered again, 0 and 1 are pending."""
    one, two = Writer(connection), Writer(connection)
    group.acquire("a")
    group.answer_in(one.name, "a", {0: "accept"})
    group.answer_in(one.name, "a", {1: "accept"})
    group.answer_in(two.name, "a", {2: "accept"})
    two.abort()
    group.expire_locks("a")
    assert group.acquire("b") == {2: 2, 3: 2}
    assert group.spans[:2] == [(0, 0, "pending", 1), (1, 1, "pending", 1)]
    one.commit()
    group.expire_locks("b")
    assert group.acquire("b") == {2: 3, 3: 3}


@pytest.mark.parametrize(("outcome", "left"), [("COMMIT", {}), ("ABORT", {0: 2, 1: 2})])
def test_what_is_pending_becomes_real_with_the_decision(
    group: ShareGroup, outcome: Ending, left: dict[int, int], writer: Writer
) -> None:
    group.acquire("a", 2)
    group.answer_in(writer.name, "a", {0: "accept", 1: "accept"})
    group.expire_locks("a")
    assert group.acquire("b", 1) == {2: 1}, "it is pending, whatever became of the lock"
    writer.end(outcome)
    assert group.acquire("b", 2) == (left or {3: 1})


@pytest.mark.parametrize("beside", ["another producer's", "an earlier epoch's", "an earlier one"])
@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_what_is_pending_is_not_decided_with_another_transaction(
    connection: Connection, group: ShareGroup, beside: str, outcome: Ending
) -> None:
    """Which has nearly the same name."""
    writer, elsewhere = Writer(connection), new_partition(connection)
    other = Writer(connection) if beside == "another producer's" else writer
    other.send(elsewhere, b"x")
    other.end(outcome)
    if beside == "an earlier epoch's":
        writer.init()
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept", 1: "release"})
    group.expire_locks("a")
    assert group.acquire("b") == {2: 2, 3: 2}
    assert group.spans[:2] == [(0, 0, "pending", 1), (1, 1, "pending", 1)]
    writer.commit()
    assert group.acquire("b") == {1: 2}


@pytest.mark.parametrize("own", ["older", "newer"])
def test_a_member_holds_records_as_long_as_its_own_session_lasts(
    connection: Connection, partition: int, clock: Clock, own: str
) -> None:
    """Whatever the timeout of another member is, and whenever that was heard."""
    group = ShareGroup(connection, partition, record_lock_duration_ms=900_000)
    names = ["own", "long"] if own == "older" else ["long", "own"]
    for name in names:
        timeout_ms = 10_000 if name == "own" else 1_000_000
        _, group.numbers[name] = join(connection, group.name, member=name, session_timeout_ms=timeout_ms)
    heard = (
        "insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at) values (%s, %s, msgtx.clock())"
    )
    assert (group.acquire("own", 2), group.acquire("long", 2)) == ({0: 1, 1: 1}, {2: 1, 3: 1})
    clock("20 s")
    connection.execute(heard, [group.numbers["own"], 1])
    assert group.acquire("long") == {}
    assert group.answer("own", {0: "accept"}) == []
    clock("40 s")
    connection.execute(heard, [group.numbers["long"], 1_000])
    assert [name for name, _ in group.answer("own", {1: "accept"})] == ["InvalidRecordState"]
    assert group.acquire("long") == {1: 2}


def test_a_release_in_a_transaction_holds_with_its_commit(group: ShareGroup, writer: Writer) -> None:
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "release", 1: "accept"})
    assert group.acquire("b") == {}
    writer.commit()
    assert group.acquire("b") == {0: 2}


REFUSED = {
    "never acquired": (5, "InvalidRecordState"),
    "acknowledged": (0, "InvalidRecordState"),
    "acquired by another member": (2, "InvalidRecordState"),
    "pending elsewhere": (1, "TransactionConflict"),
    "behind the log": (17, "InvalidRecordState"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("kind", ["plain", "transaction", "whole"])
def test_what_a_member_does_not_hold_is_refused_and_nothing_changes(
    connection: Connection, group: ShareGroup, case: str, kind: str
) -> None:
    """I16. Also the answers beside it, which would hold."""
    offset, error = REFUSED[case]
    first, own = Writer(connection), Writer(connection)
    assert (group.acquire("a", 2), group.acquire("b", 1), group.acquire("a", 1)) == ({0: 1, 1: 1}, {2: 1}, {3: 1})
    append(connection, [batch(group.partition, b"4", b"5")])
    group.accept("a", 0)
    group.answer_in(first.name, "a", {1: "accept"})
    before, versions = group.spans, group.versions
    answers = {offset: "accept", 3: "accept"}
    if kind == "plain":
        assert [name for name, _ in group.answer("a", answers)] == [error]
    elif kind == "transaction":
        with refuses(getattr(errors, error), offset=offset):
            group.answer_in(own.name, "a", answers)
        assert transaction_outcome(connection, own.name).outcome is Outcome.UNKNOWN
    else:
        with refuses(getattr(errors, error), offset=offset):
            append_and_decide(connection, own.name, [own.row(group.partition, b"out")], answers=group.answers("a", answers))
        assert transaction_outcome(connection, own.name).outcome is Outcome.UNKNOWN
        assert b"out" not in values(connection, group.partition)
    assert (group.spans, group.versions) == (before, versions)


def test_a_record_is_acknowledged_once_in_a_transaction(connection: Connection, group: ShareGroup, writer: Writer) -> None:
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept"})
    with pytest.raises(errors.TransactionConflict):
        group.answer_in(writer.name, "a", {0: "accept"})
    with pytest.raises(errors.TransactionConflict):
        group.answer_in(Writer(connection).name, "a", {0: "accept"})
    assert [name for name, _ in group.answer("a", {0: "release"})] == ["TransactionConflict"]
    group.answer_in(writer.name, "a", {1: "release"}, delay=60_000)
    assert [name for name, _ in group.answer("a", {1: "accept"})] == ["TransactionConflict"]


def test_a_call_that_is_repeated_has_its_effect_once(group: ShareGroup, writer: Writer) -> None:
    group.acquire("a")
    for _ in range(2):
        group.answer_in(writer.name, "a", {0: "accept", 1: "release"}, call=77)
    assert group.spans[:2] == [(0, 0, "pending", 1), (1, 1, "pending", 1)]
    with pytest.raises(errors.TransactionConflict):
        group.answer_in(writer.name, "a", {0: "release"}, call=77)


def test_a_call_of_another_transaction_is_no_repeated_one(connection: Connection, group: ShareGroup) -> None:
    """Whose producer has counted as far."""
    one, two = Writer(connection), Writer(connection)
    group.acquire("a")
    group.answer_in(one.name, "a", {0: "accept"}, call=77)
    with pytest.raises(errors.TransactionConflict):
        group.answer_in(two.name, "a", {0: "accept"}, call=77)


def test_a_whole_transaction_that_is_repeated_acknowledges_once(connection: Connection, group: ShareGroup) -> None:
    writer = Writer(connection)
    group.acquire("a", 1)
    answers, rows = group.answers("a", {0: "accept"}), [writer.row(group.partition, b"out")]
    first = append_and_decide(connection, writer.name, rows, answers=answers)
    again = append_and_decide(connection, writer.name, rows, answers=answers)
    assert [each.base_offset for each in first] == [each.base_offset for each in again]
    assert again[0].duplicate
    assert group.acquire("b") == {1: 1, 2: 1, 3: 1, 4: 1}


def test_a_whole_transaction_may_be_acknowledgements_alone(connection: Connection, group: ShareGroup) -> None:
    writer = Writer(connection)
    group.acquire("a")
    for _ in range(2):
        assert append_and_decide(connection, writer.name, [], answers=group.answers("a", {0: "accept"})) == []
    assert transaction_outcome(connection, writer.name).outcome is Outcome.COMMITTED
    assert group.spans == [(1, 3, "acquired", 1)]


@pytest.mark.parametrize("beside", ["another producer's", "an earlier epoch's", "an earlier one"])
@pytest.mark.parametrize("rows", [0, 1])
def test_a_whole_transaction_is_repeated_by_its_whole_name(
    connection: Connection, group: ShareGroup, beside: str, rows: int
) -> None:
    """I4. Another one that is decided has nearly the same name, and these answers are not its."""
    writer, out = Writer(connection), new_partition(connection)
    group.acquire("a")
    if beside == "another producer's":
        other = Writer(connection)
        other.commit_whole(other.row(out, b"other"))
    else:
        writer.commit_whole(writer.row(out, b"before"))
        if beside == "an earlier epoch's":
            writer.init()
    answers = group.answers("a", {0: "accept"})
    append_and_decide(connection, writer.name, [writer.row(out, b"out")] * rows, answers=answers)
    assert group.spans == [(1, 3, "acquired", 1)]


@pytest.mark.parametrize("answer", ["accept", "reject"])
@pytest.mark.parametrize("sequences", [(), (1,), (0, 1), (1, 0)])
def test_a_whole_transaction_that_is_refused_answers_for_nothing(
    connection: Connection, group: ShareGroup, answer: str, sequences: tuple[int, ...]
) -> None:
    """I16. For a fenced producer (I7), or since one of its batches comes out of turn, whichever it is."""
    writer, places = Writer(connection), new_topic(connection, 2)
    group.acquire("a")
    batches = [writer.row(place, b"out", sequence=at) for at, place in zip(sequences, places, strict=False)]
    if not batches:
        Writer(connection, writer.transactional_id)
    found = append_and_decide(connection, writer.name, batches, answers=group.answers("a", {0: answer}))
    refusals = [type(each.error) for each in found if each.error is not None]
    assert refusals == [errors.OutOfOrderSequence if batches else errors.ProducerFenced]
    assert group.spans == [(0, 3, "acquired", 1)]
    assert group.letters == []


def test_a_refusal_names_the_topic_and_the_range(connection: Connection) -> None:
    """Of several topics, whichever is the first in the database."""
    for _ in range(2):
        group = ShareGroup(connection, new_topic(connection, 2)[1])
        one, topic = group.answers("a", {3: "accept"}), topic_of(connection, group.partition)
        for last, told in ((3, "offset 3: "), (5, "offset 3 to 5: ")):
            expected = {"group": group.name, "topic": topic, "partition": 1, "offset": 3}
            with refuses(errors.InvalidRecordState, **expected) as refused:
                acknowledge_in_transaction(connection, Writer(connection).name, replace(one, lasts=(last,)), call_number=1)
            assert told in str(refused.value)


def test_a_transaction_that_is_over_takes_no_acknowledgement(connection: Connection, group: ShareGroup) -> None:
    """I8."""
    writer = Writer(connection)
    group.acquire("a")
    over = writer.abort()
    writer.send(group.partition, b"x")
    seal_it(connection, writer.name, "external", tails=writer.tails)
    for name, reason in ((over, "over"), (writer.name, "sealed")):
        with refuses(errors.InvalidTransactionState, reason=reason):
            group.answer_in(name, "a", {0: "accept"})
    assert group.spans == [(0, 3, "acquired", 1)]


@pytest.mark.parametrize(("given", "stored"), [(None, 60_000), (2_000, 2_000)])
def test_an_acknowledgement_opens_its_transaction_as_a_record_does(
    connection: Connection, group: ShareGroup, given: int | None, stored: int, writer: Writer
) -> None:
    group.acquire("a")
    for offset, host in ((0, "h" * 300), (1, "another")):
        acknowledge_in_transaction(
            connection,
            writer.name,
            group.answers("a", {offset: "accept"}),
            call_number=group.call(),
            timeout_ms=given,
            client_host=host,
            client_process=7,
        )
    rows = connection.execute(
        "select transaction_number, timeout_ms, client_host, client_process, database_backend from msgtx.transaction"
        " where producer_id = %s",
        [writer.name.producer_id],
    ).fetchall()
    assert rows == [(writer.number, stored, "h" * 255, 7, backend(connection))]


@pytest.mark.parametrize("timeout_ms", [0, -1, 1 << 30])
def test_an_acknowledgement_opens_no_transaction_with_a_timeout_out_of_bounds(
    connection: Connection, group: ShareGroup, timeout_ms: int, writer: Writer
) -> None:
    group.acquire("a")
    with refuses(errors.InvalidTransactionTimeout, given=timeout_ms):
        acknowledge_in_transaction(
            connection, writer.name, group.answers("a", {0: "accept"}), call_number=group.call(), timeout_ms=timeout_ms
        )
    assert group.spans == [(0, 3, "acquired", 1)]


def test_a_fenced_producer_acknowledges_nothing(connection: Connection, group: ShareGroup, writer: Writer) -> None:
    """I7."""
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept"})
    old = writer.name
    Writer(connection, writer.transactional_id)
    with pytest.raises(errors.ProducerFenced):
        group.answer_in(old, "a", {1: "accept"})
    group.expire_locks("a")
    assert group.acquire("b", 1) == {0: 2}, "what it had acknowledged was aborted"


def test_a_prepared_transaction_holds_its_acknowledgements_until_it_is_decided(
    connection: Connection, group: ShareGroup, clock: Clock, writer: Writer
) -> None:
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept"})
    assert seal_it(connection, writer.name, "external", tails={}).error is None
    clock("1 day")
    settle(connection)
    group.numbers.clear()
    assert group.acquire("later") == {1: 2, 2: 2, 3: 2}
    complete_prepared(connection, writer.name, "ABORT")
    assert group.acquire("later") == {0: 2}


def test_an_overdue_transaction_in_the_log_is_aborted_by_the_member_that_it_holds_back(
    connection: Connection, partition: int, group: ShareGroup, clock: Clock
) -> None:
    """I12. One behind the other; what is not overdue, or may last, goes on holding back."""
    group.acquire("a")
    first, second = Writer(connection, timeout_ms=1_000), Writer(connection, timeout_ms=1_000)
    first.send(partition, b"4")
    second.send(partition, b"5")
    plain(connection, partition, b"6")
    later = Writer(connection, timeout_ms=600_000)
    later.send(partition, b"7")
    plain(connection, partition, b"8")
    assert group.acquire("a") == {}
    clock("2 s")
    assert group.acquire("a") == {6: 1}
    assert [transaction_outcome(connection, each.name).outcome for each in (first, second)] == [Outcome.ABORTED] * 2
    group.answer("a", dict.fromkeys((0, 1, 2, 3, 6), "accept"))
    seal_it(connection, later.name, "external", tails=later.tails)
    clock("900 s")
    assert group.acquire("a") == {}
    complete_prepared(connection, later.name, "COMMIT")
    assert group.acquire("a") == {7: 1, 8: 1}


def test_who_reads_uncommitted_records_is_held_back_by_nothing(connection: Connection, partition: int, clock: Clock) -> None:
    group = ShareGroup(connection, partition, isolation="read_uncommitted")
    writer = Writer(connection, timeout_ms=1_000)
    writer.send(partition, b"4")
    clock("2 s")
    assert len(group.acquire("a")) == 5
    assert transaction_outcome(connection, writer.name).outcome is Outcome.OPEN


def test_a_transaction_of_two_groups_acknowledgements_is_aborted_once(
    connection: Connection, group: ShareGroup, engine: Engine, clock: Clock
) -> None:
    writer = Writer(connection, timeout_ms=1000)
    for each in (group, ShareGroup(connection, group.partition)):
        each.acquire("a")
        each.answer_in(writer.name, "a", {0: "accept"})
    clock("2 seconds")
    report = sweep(engine)
    assert (report.shares_settled, report.transactions_aborted) == (2, 1)


def test_a_decision_is_kept_until_what_it_decides_is_settled(
    group: ShareGroup, engine: Engine, clock: Clock, writer: Writer
) -> None:
    """P29. Without it nobody would know what became of the record."""
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept"})
    writer.commit()
    writer.send(group.partition, b"x")
    writer.decide("COMMIT")
    clock("60 days")
    sweep(engine, only=["markers"])
    assert sweep(engine, only=["history"]).transactions_purged == 0
    sweep(engine, only=["acknowledgements"])
    assert sweep(engine, only=["history"]).transactions_purged == 1


def test_what_is_pending_on_a_partition_that_is_gone_is_forgotten(connection: Connection, group: ShareGroup) -> None:
    writer = Writer(connection)
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept"})
    delete_topic_of(connection, group.partition)
    writer.commit()
    assert settle(connection) == 1
    assert count(connection, "share_pending") == 0


def test_members_of_several_groups_answer_in_one_transaction(connection: Connection, group: ShareGroup) -> None:
    other, writer = ShareGroup(connection, group.partition), Writer(connection)
    group.acquire("a", 2)
    other.acquire("x", 3)
    answers = group.answers("a", {0: "accept"}) + other.answers("x", {2: "accept", 1: "accept"})
    append_and_decide(connection, writer.name, [], answers=answers)
    assert (group.spans, other.spans) == ([(1, 1, "acquired", 1)], [(0, 0, "acquired", 1)])


@pytest.mark.parametrize("over", ["lock", "session", "other member", "part"])
def test_the_usual_answer_is_refused_as_any_other(
    connection: Connection, group: ShareGroup, clock: Clock, over: str
) -> None:
    """All that was acquired in a call, accepted as one range, has a short way; what is refused has the same answer."""
    group.acquire("a")
    group.join("b")
    if over == "lock":
        group.expire_locks("a")
    elif over == "session":
        clock("1 hour")
    columns = group.answers("b" if over == "other member" else "a", {0: "accept"})
    columns = replace(columns, lasts=(4 if over == "part" else 3,))
    before = group.spans
    assert {name for name, _ in acknowledge_records(connection, columns, call_number=9)} == {"InvalidRecordState"}
    assert group.spans == before


def test_the_usual_answer_takes_out_one_span(connection: Connection, group: ShareGroup) -> None:
    for most in (1, 2, 1):
        group.acquire("a", most)
    assert acknowledge_records(connection, replace(group.answers("a", {1: "accept"}), lasts=(2,)), call_number=None) == []
    assert group.spans == [(0, 0, "acquired", 1), (3, 3, "acquired", 1)]
    assert group.answer("a", {3: "accept"}) == group.answer("a", {0: "accept"}) == []
    assert group.spans == []


@pytest.mark.parametrize(
    "answers",
    [{0: "maybe"}, {0: "renew"}],
)
def test_an_unknown_answer_is_refused(connection: Connection, group: ShareGroup, answers: dict[int, str]) -> None:
    group.acquire("a")
    with refuses(errors.InvalidRequest, name="answers"):
        group.answer_in(Writer(connection).name, "a", answers)


def test_ranges_that_overlap_are_refused(connection: Connection, group: ShareGroup) -> None:
    group.acquire("a")
    columns = group.answers("a", {0: "accept", 1: "release"})
    for lasts in ((1, 1), (0, 0)):
        with refuses(errors.InvalidRequest, name="answers"):
            acknowledge_records(connection, replace(columns, lasts=lasts), call_number=None)
    assert group.spans == [(0, 3, "acquired", 1)]


# ── what becomes of the log ──


def rest(group: ShareGroup, member: str = "z") -> dict[int, int]:
    """Return all that is delivered from here on, with its deliveries; each is accepted."""
    found: dict[int, int] = {}
    for _ in range(20):
        if got := group.acquire(member, 3):
            group.answer(member, dict.fromkeys(got, "accept"))
        found |= got
    return found


@pytest.mark.parametrize("before", [1, 3, 4, 7], ids=["below the start", "in flight", "at the end", "not met yet"])
def test_retention_takes_what_is_in_flight_with_it(connection: Connection, group: ShareGroup, before: int) -> None:
    """What it removes is done; an answer for it is refused, what is left is delivered."""
    append(connection, [batch(group.partition, *(b"x",) * 6)])
    group.acquire("a", 4)
    group.answer("a", {0: "accept"})
    group.remove_below(before)
    for offset in (1, 2, 3):
        assert [error for error, _ in group.answer("a", {offset: "accept"})] == []
    assert rest(group) == dict.fromkeys(range(max(4, before), 10), 1)
    assert group.spans == []


def test_what_retention_removes_is_not_delivered_again(group: ShareGroup) -> None:
    group.acquire("a")
    group.remove_below(2)
    group.expire_locks("a")
    assert rest(group) == {2: 2, 3: 2}


@pytest.mark.parametrize("in_flight", [0, 2, 6])
def test_compaction_below_and_above_the_start_offset(connection: Connection, in_flight: int, compacted: ShareGroup) -> None:
    """What it removes is never delivered; an answer for what it removed meanwhile holds."""
    put_rows(compacted, "a1 b1", "a2 c1", "b2 a3", "z1")
    held = compacted.acquire("a", in_flight) if in_flight else {}
    compact(connection)
    left = {3, 4, 5, 6}  # of a and b only the last
    assert not held or compacted.answer("a", dict.fromkeys(held, "accept")) == []
    assert rest(compacted) == dict.fromkeys(left - held.keys(), 1)
    compacted.expire_locks("a", "z")  # an offset whose record is gone is acquired with the record behind it
    assert rest(compacted) == {}
    assert compacted.spans == []


def test_a_compacted_row_behind_what_is_asked_for_stops_nobody(connection: Connection, compacted: ShareGroup) -> None:
    put_rows(compacted, "a1", "b1", "c1 d1", "c2", "z1")
    compact(connection)
    assert [compacted.acquire("a", 1) for _ in range(2)] == [{0: 1}, {1: 1}]
    assert compacted.acquire("a") == {3: 1, 4: 1, 5: 1}


def test_what_compaction_removes_while_it_is_held_is_delivered_no_more(
    connection: Connection, compacted: ShareGroup
) -> None:
    put_rows(compacted, "a1 b1", "a2", "b2", "z1")
    assert compacted.acquire("a", 2) == {0: 1, 1: 1}
    compact(connection)
    compacted.expire_locks("a")
    assert rest(compacted) == {2: 1, 3: 1, 4: 1}
    assert compacted.spans == []


@pytest.mark.parametrize("most", [1, 2])
def test_what_compaction_has_removed_counts_for_nothing(connection: Connection, most: int) -> None:
    """Else a member would get nothing, poll by poll, and wait each time: a log is mostly gaps."""
    group = ShareGroup(connection, compacted_topic(connection), max_record_locks=2)
    put_rows(group, "z1", " ".join(f"a{at}" for at in range(40)) + " b1 " + "a2 " * 9, "a3 c1", "d1")
    compact(connection)
    found = []
    while len(found) < 5:
        got = group.acquire("a", most)
        assert len(got) == min(most, 5 - len(found))
        assert group.answer("a", dict.fromkeys(got, "accept")) == []
        found += sorted(got)
    assert found == [0, 41, 51, 52, 53]
    assert group.spans == []


def test_who_meets_only_what_compaction_has_removed_asks_again_at_once(
    connection: Connection, compacted: ShareGroup
) -> None:
    put_rows(compacted, "a1 a2", "a3", "z1")
    compacted.answer("a", dict.fromkeys(compacted.acquire("a", 2), "release"))
    compact(connection)
    calls = [acquire_records(connection, compacted.asking("a", 1)) for _ in range(4)]
    assert [call.has_passed for call in calls] == [True, True, False, False]
    assert [len(call.records) for call in calls] == [0, 0, 1, 1]


def test_what_was_aborted_behind_what_compaction_has_removed_is_not_delivered(connection: Connection) -> None:
    """I5."""
    group, writer = ShareGroup(connection, compacted_topic(connection)), Writer(connection)
    put_rows(group, "a1 a2", "a3", "z1")
    group.acquire("a", 2)
    group.acquire("b")
    group.answer("a", {0: "release", 1: "release"})
    compact(connection)
    writer.send(group.partition, b"gone", keys=[b"k"])
    writer.abort()
    calls = [acquire_records(connection, group.asking("a", 9)) for _ in range(2)]
    assert [(call.records, call.has_passed) for call in calls] == [([], True), ([], False)]


def test_who_has_read_what_is_left_of_the_last_row_need_not_ask_again_at_once(connection: Connection) -> None:
    """Of the row compaction has removed what came next."""
    group = ShareGroup(connection, compacted_topic(connection, delete_retention_ms=0))
    put(connection, group.partition, "z1 a-")
    assert group.acquire("a", 1) == {0: 1}
    assert [compact(connection) for _ in range(2)] == [0, 1]
    found = acquire_records(connection, group.asking("a", 1))
    assert (found.records, found.has_passed) == ([], False)


def test_a_dead_letter_that_compaction_has_removed_is_forgotten(connection: Connection) -> None:
    group = ShareGroup(connection, compacted_topic(connection), delivery_count_limit=1)
    put_rows(group, "a1 b1", "a2")
    group.acquire("a")
    assert group.answer("a", {1: "accept", 2: "accept"}) == []
    group.expire_locks("a")
    compact(connection)
    assert group.acquire("a") == {}
    assert (group.spans, group.letters) == ([], [])


def test_a_topic_that_is_deleted_takes_what_is_in_flight_with_it(connection: Connection, group: ShareGroup) -> None:
    group.acquire("a")
    delete_topic_of(connection, group.partition)
    assert group.acquire("b") == {}
    assert [error for error, _ in group.answer("a", {0: "accept"})] == ["InvalidRecordState"]


def test_a_member_that_meets_only_aborted_records_is_not_stuck(connection: Connection, partition: int) -> None:
    group = ShareGroup(connection, partition, max_record_locks=5)
    rest(group)
    for _ in range(30):
        writer = Writer(connection)
        writer.send(partition, *[b"aborted"] * 20)
        writer.abort()
    mark(connection)
    assert group.acquire("a") == {}
    append(connection, [batch(partition, b"seen")])
    assert list(rest(group).values()) == [1]


def test_a_clock_that_is_set_back_by_less_than_a_lock_lasts_holds_it_longer_and_by_more_ends_sessions(
    group: ShareGroup, clock: Clock
) -> None:
    """A session whose heartbeat lies in the future is over: so is what it holds, whatever its lock says."""
    clock("10 minutes")
    group.acquire("a", 2)
    clock("9 minutes 40 seconds")
    assert group.acquire("b", 1) == {2: 1}
    assert group.answer("a", {0: "accept"}) == []
    clock("-1 hour")
    with pytest.raises(errors.UnknownMember):
        group.acquire("a")
    assert [error for error, _ in group.answer("a", {1: "accept"})] == ["InvalidRecordState"]
    assert group.acquire("late") == {1: 2, 2: 2, 3: 1}


# ── dead letters ──


def test_a_record_that_is_rejected_is_a_dead_letter(connection: Connection) -> None:
    made = new_partition(connection)
    rows = [
        batch(made, b"0", b"1", keys=[b"k", None], headers=[[("a", b"x")], [("b", None), ("c", b"z")]], timestamps=[5, 7])
    ]
    append(connection, rows)
    group = ShareGroup(connection, made)
    ensure_dead_letters(connection, group.name)
    group.acquire("a")
    assert acknowledge_records(connection, group.answers("a", {1: "reject"}, reason="no such customer"), call_number=9) == []
    ((key, value, timestamp, headers),) = group.whole_letters
    assert (key, value) == (None, b"1")
    assert abs(timestamp - time.time() * 1000) < 60_000, "retention counts from now"
    when = headers.pop("msgtx.dead-letter.time")
    assert re.fullmatch(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", when)
    name = headers.pop("msgtx.dead-letter.topic").decode()
    assert describe_topics(connection, [name])[name].partition_ids == (made,)
    assert headers == {
        "b": None,
        "c": b"z",
        "msgtx.dead-letter.group": group.name.encode(),
        "msgtx.dead-letter.partition": b"0",
        "msgtx.dead-letter.offset": b"1",
        "msgtx.dead-letter.deliveries": b"1",
        "msgtx.dead-letter.reason": b"no such customer",
        "msgtx.dead-letter.member": b"a",
        "msgtx.dead-letter.timestamp": b"7",
    }
    assert group.spans == [(0, 0, "acquired", 1)]


def test_a_record_that_is_delivered_as_often_as_it_may_be_is_a_dead_letter(connection: Connection, partition: int) -> None:
    """The reason is that of its last delivery. Its neighbours go on."""
    group = ShareGroup(connection, partition, delivery_count_limit=2)
    group.acquire("a")
    group.expire_locks("a")
    assert group.acquire("b") == {0: 2}, "it comes alone"
    acknowledge_records(connection, group.answers("b", {0: "release"}, reason="division by zero"), call_number=99)
    assert group.letters == []
    assert group.acquire("b") == {1: 2}
    assert group.letters == [(b"0", 0, 2, "delivery limit: division by zero")]
    group.expire_locks("b")
    assert group.acquire("b") == {2: 2}
    assert group.letters[1:] == [(b"1", 1, 2, "delivery limit: lock expired")]
    group.expire_locks("b")
    assert group.acquire("b", 2) == {3: 2}
    group.expire_locks("b")
    assert group.acquire("b") == {}
    assert [offset for _, offset, _, _ in group.letters] == [0, 1, 2, 3]
    assert group.spans == []


@pytest.mark.parametrize("how", ["lock expired", "session over", "transaction aborted", "busy"])
def test_a_dead_letter_says_how_its_last_delivery_ended(
    connection: Connection, partition: int, clock: Clock, how: str
) -> None:
    """What was given as a reason in a transaction that aborts is none."""
    group = ShareGroup(connection, partition, delivery_count_limit=1, record_lock_duration_ms=3_000_000)
    group.acquire("a", 1)
    match how:
        case "lock expired":
            group.expire_locks("a")
        case "session over":
            clock("1001 s")
        case _:
            writer = Writer(connection)
            answers = group.answers("a", {0: "release"}, reason="busy")
            acknowledge_in_transaction(connection, writer.name, answers, call_number=9)
            decide(connection, writer.name, "COMMIT" if how == "busy" else "ABORT", tails={})
    group.acquire("b")
    assert group.letters == [(b"0", 0, 1, f"delivery limit: {how}")]


def test_the_stored_size_of_a_dead_letter_is_that_of_its_columns(connection: Connection) -> None:
    """With a key and without one: `verify` finds nothing."""
    partition = new_partition(connection)
    append(connection, [batch(partition, b"0", b"1", keys=[None, b"k"])])
    group = ShareGroup(connection, partition)
    name = ensure_dead_letters(connection, group.name)
    group.acquire("a")
    group.answer("a", {0: "reject", 1: "reject"})
    topic = describe_topics(connection, [name])[name]
    looked = [verify_batches(connection, each, None) for each in topic.partition_ids]
    assert sum(piece.records for piece in looked) == 2
    assert [piece.broken for piece in looked] == [[] for _ in looked]


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
@pytest.mark.parametrize("by", ["member", "sweep"])
def test_a_record_that_is_rejected_in_a_transaction_is_a_dead_letter_after_its_commit(
    connection: Connection, group: ShareGroup, outcome: Ending, by: str, writer: Writer
) -> None:
    group.acquire("a", 2)
    group.answer_in(writer.name, "a", {0: "reject"})
    assert group.letters == []
    writer.end(outcome)
    for _ in range(2):
        if by == "member":
            group.acquire("b", 1)
        else:
            settle(connection)
    assert group.letters == ([(b"0", 0, 1, "rejected")] if outcome == "COMMIT" else [])


@pytest.mark.parametrize("refused", [False, True])
def test_a_whole_transaction_writes_its_dead_letters_with_its_records(
    connection: Connection, group: ShareGroup, refused: bool, writer: Writer
) -> None:
    ensure_dead_letters(connection, group.name)
    group.acquire("a", 2)
    answers = group.answers("a", {0: "reject", 1: "accept", **({2: "accept"} if refused else {})})
    for _ in range(2):
        with contextlib.suppress(errors.InvalidRecordState):
            append_and_decide(connection, writer.name, [writer.row(group.partition, b"out")], answers=answers)
    assert group.letters == ([] if refused else [(b"0", 0, 1, "rejected")])
    assert (b"out" in values(connection, group.partition)) is not refused


def test_a_session_writes_its_dead_letters_with_its_commit(connection: Connection, group: ShareGroup) -> None:
    ensure_dead_letters(connection, group.name)
    group.acquire("a", 2)
    with connection.transaction(force_rollback=True):
        assert acknowledge_in_session(connection, group.answers("a", {0: "reject"}))
        connection.execute("set constraints all immediate")
    assert group.letters == []
    with connection.transaction():
        assert acknowledge_in_session(connection, group.answers("a", {0: "reject"}))
        assert group.letters == []
    assert group.letters == [(b"0", 0, 1, "rejected")]


def test_without_a_topic_dead_letters_wait_for_who_makes_it(connection: Connection, group: ShareGroup) -> None:
    """A call that waits for locks makes none; also when it was deleted meanwhile."""
    group.acquire("a")
    group.answer("a", {0: "reject"})
    assert group.spans[0] == (0, 0, "rejected", 1)
    assert group.acquire("a") == {}
    assert group.letters == [(b"0", 0, 1, "rejected")]
    delete_topic(connection, f"{group.name}-dead-letters")
    group.answer("a", {1: "reject"})
    group.acquire("a")
    assert group.letters == [(b"1", 1, 1, "rejected")]


def test_a_dead_letter_says_which_of_several_partitions_and_members_it_was(connection: Connection) -> None:
    """A redrive sends it back there. Of several records of a row it has its own key and headers."""
    topics = [new_topic(connection, 2) for _ in range(3)]
    group = ShareGroup(connection, topics[1][1])
    row = batch(
        group.partition, b"0", b"1", b"2", keys=[b"k", None, b"m"], headers=[[("h", b"0")], [], [("h", b"2"), ("i", b"3")]]
    )
    append(connection, [row])
    for member in ("first", "own", "last"):
        group.join(member)
    group.acquire("own")
    ensure_dead_letters(connection, group.name)
    assert group.answer("own", {1: "reject", 2: "reject"}) == []
    assert [letter[:2] for letter in group.whole_letters] == [(None, b"1"), (b"m", b"2")]
    found = [headers for *_, headers in group.whole_letters]
    for offset, headers in enumerate(found, 1):
        told = [headers[f"msgtx.dead-letter.{name}"] for name in ("topic", "partition", "offset", "member")]
        assert told == [topic_of(connection, group.partition).encode(), b"1", b"%d" % offset, b"own"]
    assert [headers.get("h") for headers in found] == [None, b"2"]
    assert [headers.get("i") for headers in found] == [None, b"3"]


def test_who_answers_waits_for_who_has_the_lock_of_its_own_group(
    connection: Connection, group: ShareGroup, open_connection: Sessions
) -> None:
    """Else it would be judged by a state that is about to be superseded."""
    other, holder, caller = ShareGroup(connection, group.partition), open_connection(), open_connection()
    for each in (group, other):
        each.acquire("a")
        answers = each.answers("a", {1: "release"})
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            with holder.transaction():
                holder.execute("select msgtx.lock_share_partition(%s, %s)", [each.group_id, each.partition])
                waits = threads.submit(acknowledge_records, caller, answers, call_number=each.call())
                wait_for_lock(connection, backend(caller))
            assert waits.result(20) == []


def test_who_rejects_waits_for_who_writes_dead_letters(
    connection: Connection, group: ShareGroup, open_connection: Sessions
) -> None:
    """The letter is written with the answer. In a transaction it is not written yet, and nobody waits."""
    group.acquire("a")
    ensure_dead_letters(connection, group.name)
    other, caller = open_connection(), open_connection()
    answers = group.answers("a", {1: "reject"})
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with other.transaction():
            other.execute("select msgtx.lock_partition(msgtx.dead_letter_partition(%s, %s))", [group.name, group.partition])
            group.answer_in(Writer(connection).name, "a", {0: "reject"})
            assert group.answer("a", {2: "accept"}) == []
            waits = threads.submit(acknowledge_records, caller, answers, call_number=group.call())
            wait_for_lock(connection, backend(caller))
        assert waits.result(20) == []
    assert [offset for _, offset, *_ in group.letters] == [1]


@pytest.fixture
def many(connection: Connection) -> ShareGroup:
    """A group on 1,200 records."""
    made = ShareGroup(connection, new_partition(connection))
    made.fill("-" * 1200)
    return made


def test_many_dead_letters_are_written_in_parts(many: ShareGroup) -> None:
    many.configure(delivery_count_limit=1)
    assert len(many.acquire("a", 1200)) == 1200
    many.expire_locks("a")
    for count_now in (500, 1000, 1200, 1200):
        assert many.acquire("b") == {}
        assert [offset for _, offset, _, _ in many.letters] == list(range(count_now))


def test_an_answer_writes_all_of_its_dead_letters(connection: Connection, many: ShareGroup) -> None:
    """Perhaps nobody ever polls again."""
    ensure_dead_letters(connection, many.name)
    many.acquire("a", 1200)
    many.answer("a", dict.fromkeys(range(1200), "reject"))
    assert [offset for _, offset, _, _ in many.letters] == list(range(1200))
    assert many.spans == []


def test_a_dead_letter_is_stored_whatever_its_size(connection: Connection, group: ShareGroup) -> None:
    create_topic(connection, f"{group.name}-dead-letters", 3, {"max_message_bytes": 10})
    group.acquire("a")
    group.answer("a", {0: "reject"})
    assert len(group.letters) == 1


@pytest.mark.parametrize("how", ["answer", "transaction", "delivery limit"])
def test_what_retention_has_left_of_a_range_becomes_dead_letters(connection: Connection, how: str) -> None:
    """Though the range that is rejected, or was acquired, begins in front of the log."""
    group = ShareGroup(connection, new_partition(connection), delivery_count_limit=1)
    for value in (b"0", b"1", b"2"):
        plain(connection, group.partition, value)
    assert group.acquire("a") == {0: 1, 1: 1, 2: 1}
    ensure_dead_letters(connection, group.name)
    answers = group.answers("a", {0: "reject"})
    whole = replace(answers, lasts=(2,))
    if how == "transaction":
        writer = Writer(connection)
        acknowledge_in_transaction(connection, writer.name, whole, call_number=group.call())
        writer.commit()
    group.remove_below(1)
    assert retain(connection) == 1
    if how == "answer":
        assert acknowledge_records(connection, whole, call_number=group.call()) == []
    elif how == "delivery limit":
        group.expire_locks("a")
    assert group.acquire("b") == {}
    assert [(value, offset) for value, offset, *_ in group.letters] == [(b"1", 1), (b"2", 2)]
    assert group.spans == []


def test_dead_letters_of_a_partition_go_to_the_one_of_its_number(connection: Connection) -> None:
    partitions = new_topic(connection, 3)
    append(connection, [batch(each, b"x") for each in partitions])
    for index, partition in enumerate(partitions):
        group = ShareGroup(connection, partition)
        topic = f"{group.name}-dead-letters"
        create_topic(connection, topic, 2, {})
        group.acquire("a")
        group.answer("a", {0: "reject"})
        targets = describe_topics(connection, [topic])[topic].partition_ids
        assert [len(values(connection, target)) for target in targets] == [int(index % 2 == 0), int(index % 2 == 1)]


# ── beside other groups, partitions and members ──

KINDS: dict[str, dict[int, str]] = {
    "one": {0: "accept"},
    "several": {0: "accept", 2: "release"},
    "rejecting": {0: "reject", 3: "reject"},
    "renewing": {1: "renew"},
    "releasing": {1: "release"},
}


@pytest.mark.parametrize(
    ("how", "kind"),
    [(how, kind) for how in ("at once", "in a whole one", "with a poll") for kind in KINDS]
    + [("in a transaction", kind) for kind in KINDS if kind != "renewing"],
)
def test_an_answer_changes_what_its_group_has_of_its_partition(
    connection: Connection, partition: int, kind: str, how: str, writer: Writer
) -> None:
    """Though another group has newer states of that partition, and the group of another one; both hold the same offsets."""
    answers = KINDS[kind]
    elsewhere = new_partition(connection)
    append(connection, [batch(elsewhere, b"0", b"1", b"2", b"3")])
    group = ShareGroup(connection, partition, record_lock_duration_ms=900_000)
    before, behind = (ShareGroup(connection, partition, record_lock_duration_ms=900_000) for _ in range(2))
    there = copy.copy(group)
    there.partition = elsewhere
    ensure_dead_letters(connection, group.name)
    for each in (before, there, behind):
        for _ in range(3):
            each.acquire("b")
            each.answer("b", dict.fromkeys(range(4), "release"))
    for each in (before, there, behind, group):
        for offset in range(4):  # each is a range that came in one call
            assert list(each.acquire("a", 1)) == [offset]
    spans = {each: each.spans for each in (before, behind, there)}
    assert group.versions > 0
    if how == "at once":
        assert group.answer("a", answers) == []
    elif how == "in a transaction":
        group.answer_in(writer.name, "a", answers)
        assert [span[:3] for span in group.spans if span[2] == "pending"] == [(at, at, "pending") for at in answers]
        writer.commit()
        settle(connection)
    elif how == "in a whole one":
        append_and_decide(connection, writer.name, [], answers=group.answers("a", answers))
    else:
        asked = Acquiring(group.name, group.join("a"), group.call(), [partition], 0, 1, group.answers("a", answers))
        assert acquire_records(connection, asked) == ([], [], False)
    left = {0: 1, 1: 1, 2: 1, 3: 1}
    for offset, answer in answers.items():
        if answer in ("accept", "reject"):
            del left[offset]
        elif answer == "release":
            assert group.acquire("c", 1) == {offset: 2}
            left[offset] = 2
    assert group.acquire("c") == {}
    assert {offset: deliveries for first, last, _, deliveries in group.spans for offset in range(first, last + 1)} == left
    assert [offset for _, offset, *_ in group.letters] == [at for at, answer in answers.items() if answer == "reject"]
    assert {each: each.spans for each in spans} == spans
    assert (before.letters, behind.letters) == ([], [])


# ── a first try that is late, or still on its way ──


def test_an_answer_that_comes_late_has_no_effect(connection: Connection, group: ShareGroup) -> None:
    """I17. Its member has had the answer to a later call, and holds the record anew."""
    group.acquire("a", 1)
    late, number = group.answers("a", {0: "accept"}), group.call()
    group.answer("a", {0: "release"})
    assert group.acquire("a", 1) == {0: 2}
    assert acknowledge_records(connection, late, call_number=number) == []
    assert group.spans == [(0, 0, "acquired", 2)]
    assert acknowledge_records(connection, late, call_number=group.call()) == []
    assert group.spans == []


@pytest.mark.parametrize(
    "verb", ["acknowledge_records", "acknowledge_records, renewing", "acquire_records", "acquire_records, in two calls"]
)
def test_a_call_that_overtakes_its_first_try_is_not_refused(
    connection: Connection, group: ShareGroup, open_connection: Sessions, verb: str
) -> None:
    """I17. Its connection was given up, but the server goes on with it: the second try waits for its lock."""
    group.acquire("a", 2)
    call, number, place = group.call(), group.join("a"), group.partition
    kind = "renew" if "renewing" in verb else "accept"
    ranges = [(place, 0, 0, kind), (place, 1, 1, kind)] if "two" in verb else [(place, 0, 1, kind)]
    columns = answers_of(group.name, number, *ranges)

    def answer(over: Connection) -> Any:
        if "acknowledge" in verb:
            return acknowledge_records(over, columns, call_number=call)
        return acquire_records(over, Acquiring(group.name, number, call, [group.partition], 1, ANYTHING, columns))

    first, second = open_connection(), open_connection()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with first.transaction():
            before = answer(first)
            again = threads.submit(answer, second)
            wait_for_lock(connection, backend(second))
        assert again.result(20) == before
    assert before == [] if "acknowledge" in verb else before
    assert 0 not in group.acquire("b")
    assert connection.execute("select from msgtx.share_call where member_number = %s", [number]).rowcount == 1


def test_a_members_last_answered_call_is_known_until_the_sweep_removes_it(connection: Connection, group: ShareGroup) -> None:
    """A refused call is none, and a member that has left is known by it (decision 0180)."""
    number = group.join("a")
    assert last_share_call(connection, group.name, number) == 0
    group.acquire("a", call=1)
    answers = answers_of(group.name, number, (group.partition, 0, 0, "accept"))
    assert acknowledge_records(connection, answers, call_number=2) == []
    assert acknowledge_records(connection, answers, call_number=3) != []
    assert last_share_call(connection, group.name, number) == 2
    group.leave("a")
    assert last_share_call(connection, group.name, number) == 2
    assert last_share_call(connection, group.name, -1) == 0


def test_a_refusal_is_one_whatever_number_another_member_has_reached(connection: Connection, group: ShareGroup) -> None:
    """Members count their calls each by itself."""
    for member in ("a", "b"):
        group.acquire(member, 1)
    assert acknowledge_records(connection, group.answers("b", {1: "accept"}), call_number=1_000) == []
    assert [error for error, _ in group.answer("a", {2: "accept"})] == ["InvalidRecordState"]


# ── where a group begins ──


def starts(connection: Connection, group_id: int) -> list[tuple[int, int, int]]:
    """Partition, version and next offset of all states of a group."""
    return connection.execute(
        "select partition_id, version, next_offset from msgtx.share_state where group_id = %s order by 1, 2", [group_id]
    ).fetchall()


@pytest.mark.parametrize(
    ("setting", "offsets"),
    [
        ("latest", (3, 2)),
        ("earliest", (1, 0)),
        ("by_duration:PT1H", (2, 2)),
        ("by_duration:P9D", (1, 0)),
        ("by_duration:P36500D", (1, 0)),
        ("by_duration:P999999999DT999999999H999999999M999999999999.999999S", (1, 0)),
    ],
)
def test_a_group_begins_with_a_topic_when_a_member_for_it_joins(
    connection: Connection, setting: str, offsets: tuple[int, int]
) -> None:
    """In all partitions at once, at what is decided: not one by one, when somebody looks."""
    first, second = new_topic(connection, 2)
    (now,) = connection.execute("select floor(extract(epoch from msgtx.clock()) * 1000)::bigint").fetchone() or (0,)
    hours = [now - 7_200_000, now - 7_200_000, now]
    append_one(connection, batch(first, b"0", b"1", b"2", timestamps=hours))
    append_one(connection, batch(second, b"0", b"1", timestamps=hours[:2]))
    delete_records(connection, {first: 1})
    Writer(connection).send(second, b"open")
    configure_share_group(connection, "g", {"auto_offset_reset": setting})
    group_id, number = join(connection, "g", topic_of(connection, first))
    assert starts(connection, group_id) == [(first, 1, offsets[0]), (second, 1, offsets[1])]
    append_one(connection, batch(first, b"3"))
    assert join(connection, "g", topic_of(connection, first)) == (group_id, number)
    assert join(connection, "g", topic_of(connection, first), member="b") != (group_id, number)
    assert starts(connection, group_id) == [(first, 1, offsets[0]), (second, 1, offsets[1])]
    found = acquire_records(connection, Acquiring("g", number, 1, [first, second], 500, ANYTHING)).records
    acquired = [(each.range.partition_id, at) for each in found for at in range(each.range.first, each.range.last + 1)]
    assert acquired == [
        (place, at)
        for place, start, end in ((first, offsets[0], 3), (second, offsets[1], 1))
        for at in range(start, end + 1)
    ]


def test_a_group_begins_with_another_topic_when_somebody_joins_for_that(connection: Connection) -> None:
    first, second = new_partition(connection), new_partition(connection)
    group_id, _ = join(connection, "g", topic_of(connection, first))
    append_one(connection, batch(first, b"0"))
    append_one(connection, batch(second, b"0"))
    join(connection, "g", topic_of(connection, first), topic_of(connection, second), "nowhere", member="b")
    assert starts(connection, group_id) == [(first, 1, 0), (second, 1, 1)]
    assert join(connection, "empty") != (group_id, 0)


def test_a_group_begins_with_a_topic_that_only_another_one_knows(connection: Connection) -> None:
    partition = four_records(connection)
    known, _ = join(connection, "f", topic_of(connection, partition))
    append_one(connection, batch(partition, b"4"))
    group_id, _ = join(connection, "g", topic_of(connection, partition))
    assert (starts(connection, known), starts(connection, group_id)) == ([(partition, 1, 4)], [(partition, 1, 5)])


def test_a_join_that_is_refused_makes_nothing(connection: Connection) -> None:
    """I16: neither a member nor a group; and only a group's own members count."""
    for member in ("a", "b"):
        join(connection, "f", member=member)
    with connection.transaction(force_rollback=True):
        connection.execute("update msgtx.setting set value = 2 where name = 'group_max_members'")
        for member in ("a", "b"):
            join(connection, "g", member=member)
        with refuses(errors.GroupMaxSizeReached, group="g"):
            join(connection, "g", member="c")
        assert count(connection, "group_member") == 4
    for name in ("", "a b", "x" * 237, "é"):  # its dead letters could have no topic
        with refuses(errors.InvalidRequest, reason="group"):
            join(connection, name)
    connection.execute("insert into msgtx.consumer_group (name) values ('consumers')")
    with refuses(errors.ConfigError, group="consumers", reason="consumer group"):
        join(connection, "consumers")
    with refuses(errors.InvalidSessionTimeout, group="h") as refused:
        join(connection, "h", session_timeout_ms=1)
    assert "of member a is 1 ms; group_min_session_timeout_ms is 100" in str(refused.value)
    assert (count(connection, "consumer_group"), count(connection, "group_member")) == (1 + 1, 2)


@pytest.mark.parametrize("why", ["no group", "a consumer group", "a member", "no partition"])
def test_a_reset_that_is_refused_changes_nothing(connection: Connection, group: ShareGroup, why: str) -> None:
    """I16."""
    group.acquire("a", 2)
    name, places = group.name, {group.partition: 0}
    if why != "a member":
        group.leave("a")
    error: type[Exception] = errors.GroupNotFound
    if why == "no group":
        name = "nobody"
    elif why == "a consumer group":
        connection.execute("insert into msgtx.consumer_group (name) values ('consumers')")
        name = "consumers"
    elif why == "a member":
        error = errors.GroupNotEmpty
    else:
        error, places = errors.UnknownTopicOrPartition, {group.partition: 0, group.partition + 99: 0}
    versions = group.versions
    with refuses(error) as refused:
        reset_share_offsets(connection, name, places)
    assert refused.value.group == name
    assert f" {group.partition + 99 if why == 'no partition' else name} " in f"{refused.value} "
    assert (group.versions, [status for _, _, status, _ in group.spans]) == (versions, ["acquired"])


@pytest.mark.parametrize("stranger", ["another group's", "one that left", "nobody"])
def test_who_is_no_member_of_the_group_acquires_and_answers_nothing(
    connection: Connection, group: ShareGroup, stranger: str
) -> None:
    """I16: what a group's members hold is theirs, whoever else has a number."""
    place, other = group.partition, ShareGroup(connection, group.partition)
    number = {"another group's": other.join("a"), "one that left": group.join("b"), "nobody": 2**40}[stranger]
    if stranger == "one that left":
        group.leave("b")
    with refuses(errors.UnknownMember, group=group.name):
        acquire_records(connection, Acquiring(group.name, number, group.call(), [place], 500, ANYTHING))
    assert (group.spans, other.spans) == ([], [])
    group.acquire("a")
    answers = answers_of(group.name, number, (place, 0, 0, "accept"), (place, 1, 1, "release"))
    with refuses(errors.UnknownMember, group=group.name):
        acknowledge_records(connection, answers, call_number=group.call())
    assert group.spans == [(0, 3, "acquired", 1)]


# ── settings ──


def settings_of(connection: Connection, group: str) -> dict[str, object]:
    return describe_share_groups(connection, [group])[0].settings


def test_a_groups_settings_are_its_own(connection: Connection) -> None:
    """A change leaves what it does not name, and other groups, as they are."""
    configure_share_group(connection, "first", {"dead_letter_topic": "letters", "max_record_locks": 7})
    configure_share_group(connection, "second", {"delivery_count_limit": 3})
    configure_share_group(connection, "third", {})
    before = {name: settings_of(connection, name) for name in ("first", "second", "third")}
    assert [each["dead_letter_topic"] for each in before.values()] == [
        "letters",
        "second-dead-letters",
        "third-dead-letters",
    ]
    configure_share_group(connection, "first", {"delivery_count_limit": 9})
    configure_share_group(connection, "third", {"dead_letter_topic": "others"})
    assert {name: settings_of(connection, name) for name in before} == {
        "first": before["first"] | {"delivery_count_limit": 9},
        "second": before["second"],
        "third": before["third"] | {"dead_letter_topic": "others"},
    }


def test_only_the_topic_of_dead_letters_must_not_be_compacted(connection: Connection) -> None:
    for name, policy in (("earliest", "compact"), ("compacted", "compact"), ("letters", "delete")):
        create_topic(connection, name, 1, {"cleanup_policy": policy})
    settings = {"auto_offset_reset": "earliest", "dead_letter_topic": "letters"}
    configure_share_group(connection, "g", settings)
    assert settings_of(connection, "g").items() >= settings.items()
    with refuses(errors.ConfigError, group="g", reason="compacted"):
        configure_share_group(connection, "g", {"dead_letter_topic": "compacted"})


def test_a_setting_that_needs_an_empty_group_is_not_changed_in_one_with_members(
    connection: Connection, group: ShareGroup
) -> None:
    """I16: nor are those that come with it."""
    before = settings_of(connection, group.name)
    with pytest.raises(errors.GroupNotEmpty):
        group.configure(ordering="key", max_record_locks=7)
    assert settings_of(connection, group.name) == before


def test_a_topic_of_dead_letters_is_made_for_a_share_group_alone(connection: Connection, group: ShareGroup) -> None:
    connection.execute("insert into msgtx.consumer_group (name) values ('consumers')")
    for name in ("nobody", "consumers"):
        ensure_dead_letters(connection, name)
    assert sorted(describe_topics(connection, None)) == [topic_of(connection, group.partition)]


# ── a group that is deleted ──


def test_deleting_a_group_waits_for_no_call_of_a_member_that_is_gone(
    connection: Connection, group: ShareGroup, open_connection: Sessions, engine: Engine
) -> None:
    """Nor does it take a lock for each partition. What that call writes is swept. A group of the same name begins anew."""
    other = open_connection()
    asked = Acquiring(group.name, group.join("a"), group.call(), [group.partition], 2, ANYTHING)
    with other.transaction():
        assert acquire_records(other, asked).records
        group.leave("a")
        delete_group(connection, group.name)
    assert starts(connection, group.group_id)
    with pytest.raises(errors.GroupNotFound):
        acquire_records(connection, asked)
    sweep(engine)
    assert starts(connection, group.group_id) == []
    again = ShareGroup(connection, group.partition, name=group.name)
    assert again.acquire("a") == {0: 1, 1: 1, 2: 1, 3: 1}


def test_what_a_member_answers_while_its_group_is_deleted_is_settled(connection: Connection, group: ShareGroup) -> None:
    """Its state is there for a moment, and the group is not."""
    writer = Writer(connection)
    group.acquire("a", 1)
    group.answer_in(writer.name, "a", {0: "accept"})
    writer.commit()
    for table in ("share_group", "group_member", "consumer_group"):
        connection.execute(f"delete from msgtx.{table} where group_id = %s".encode(), [group.group_id])
    assert settle(connection) == 1


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_what_is_pending_of_a_group_that_is_deleted_is_forgotten(
    connection: Connection, group: ShareGroup, engine: Engine, outcome: Ending, writer: Writer
) -> None:
    group.acquire("a")
    group.answer_in(writer.name, "a", {0: "accept", 1: "reject"})
    group.leave("a")
    delete_group(connection, group.name)
    writer.end(outcome)
    settle(connection)
    sweep(engine)
    assert count(connection, "share_pending") == count(connection, "share_state") == 0


# ── what nobody asks for any more ──


@pytest.mark.parametrize("ends", ["released", "lock expired", "session over", "transaction aborted"])
def test_a_last_delivery_becomes_a_dead_letter_where_nobody_polls(
    connection: Connection, group: ShareGroup, clock: Clock, engine: Engine, ends: str
) -> None:
    connection.execute("update msgtx.share_group set delivery_count_limit = 1 where group_id = %s", [group.group_id])
    group.acquire("a", 2)
    group.answer("a", {1: "accept"})
    match ends:
        case "released":
            group.answer("a", {0: "release"})
        case "lock expired":
            sweep(engine)
            assert group.letters == [], "it is held"
            group.expire_locks("a")
        case "session over":
            group.leave("a")
        case _:
            writer = Writer(connection)
            group.answer_in(writer.name, "a", {0: "accept"})
            writer.abort()
    sweep(engine)
    assert [letter[1:] for letter in group.letters] == [(0, 1, f"delivery limit: {ends}")]
    assert group.spans == []
    versions = group.versions
    sweep(engine)
    assert (len(group.letters), group.versions) == (1, versions)


def test_an_answer_for_a_record_of_a_deleted_topic_is_refused(connection: Connection, group: ShareGroup) -> None:
    writer = Writer(connection)
    group.acquire("a", 2)
    group.acquire("b", 1)
    delete_topic_of(connection, group.partition)
    refused = [("InvalidRecordState", (group.partition, 0, 0)), ("InvalidRecordState", (group.partition, 1, 1))]
    for answer in ("accept", "release", "reject", "renew"):
        assert group.answer("a", dict.fromkeys((0, 1), answer)) == refused
    whole = answers_of(group.name, group.numbers["a"], (group.partition, 0, 1, "accept"))
    assert [name for name, _ in acknowledge_records(connection, whole, call_number=group.call())] == ["InvalidRecordState"]
    asked = group.asking("a")._replace(answers=whole)
    assert [name for name, _ in acquire_records(connection, asked).refused] == ["InvalidRecordState"]
    with refuses(errors.InvalidRecordState, group=group.name):
        group.answer_in(writer.name, "a", {0: "accept"})


def test_a_poll_looks_at_so_many_rows_that_compaction_has_emptied(connection: Connection, compacted: ShareGroup) -> None:
    """Others wait for the share partition meanwhile. It says that there may be more, and the next one looks behind them."""
    rows = 5_000
    connection.execute(
        "insert into msgtx.record_batch (partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count,"
        " byte_size, offset_deltas, \"values\") select %s, n, n, clock_timestamp(), 0, 0, 0, '{}', '{}'"
        " from generate_series(0, %s - 1) n",
        [compacted.partition, rows],
    )
    put(connection, compacted.partition, "a1")
    polls = 0
    while not (found := acquire_records(connection, compacted.asking("a"))).records:
        assert found.has_passed
        polls += 1
    assert polls == 2
    assert found.records[0].range[1:] == (rows, rows)
