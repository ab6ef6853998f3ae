"""decide: every line of its table (internals: transactions#decide)."""

from collections.abc import Callable
from typing import Literal

import pytest

from msgtx import errors
from msgtx.database.pool import Engine
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.groups.groups import committed_offsets, offset_columns
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.producers import fence_producer, init_producer_id
from msgtx.store.transactions.seal import complete_prepared, seal
from msgtx.store.transactions.transactions import end_transaction
from msgtx.types import GroupMetadata, OffsetAndMetadata, Outcome, ProducerId, TransactionId
from tests.databases import Clock, Connection
from tests.refusals import refuses
from tests.store.steps import (
    UNCOMMITTED,
    Writer,
    append_one,
    batch,
    count,
    delete_topic_of,
    ends,
    expire_transaction,
    forget,
    new_partition,
    new_topic,
    note_sequence,
    offsets_of,
    plain,
    unique,
    values,
)

pytestmark = pytest.mark.slow

COMMIT: Literal["COMMIT"] = "COMMIT"
ABORT: Literal["ABORT"] = "ABORT"


def decisions(connection: Connection, name: TransactionId) -> list[tuple[str, str]]:
    return connection.execute(
        "select outcome, decided_by from msgtx.transaction_decision"
        " where (producer_id, producer_epoch, transaction_number) = (%s, %s, %s)",
        name,
    ).fetchall()


def test_a_commit_makes_the_records_readable_and_says_where_they_are(connection: Connection, writer: Writer) -> None:
    first, second = new_topic(connection, 2)
    for _ in range(2):
        writer.send(first, b"a", b"b")
    writer.send(second, b"c")
    assert values(connection, first) == []
    name = writer.commit()
    assert values(connection, first) == [b"a", b"b"] * 2
    assert values(connection, second) == [b"c"]
    spans = connection.execute(
        "select outcome, decided_by, partitions, first_offsets, last_offsets from msgtx.transaction_decision"
        " where producer_id = %s and transaction_number = %s",
        [name.producer_id, name.transaction_number],
    ).fetchall()
    assert spans == [("COMMIT", "client", [first, second], [0, 0], [3, 0])]


def test_an_abort_hides_the_records_and_tells_the_last_stored_sequences(connection: Connection, writer: Writer) -> None:
    first, second, untouched = new_topic(connection, 3)
    writer.send_and_commit(first, b"a")
    writer.send(first, b"b", b"c")
    writer.tails = {first: 7, second: 4, untouched: 0}
    answer = writer.decide(ABORT)
    assert (answer.error, answer.outcome) == (None, "ABORT")
    assert answer.last_sequences == {first: 2, second: -1, untouched: -1}
    assert values(connection, first) == [b"a"]
    assert values(connection, first, isolation=UNCOMMITTED) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
def test_the_same_outcome_again_is_a_success(connection: Connection, outcome: Literal["COMMIT", "ABORT"]) -> None:
    """I4: idempotent by name."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    answers = [writer.decide(outcome) for _ in range(3)]
    assert [(answer.error, answer.outcome) for answer in answers] == [(None, outcome)] * 3
    if outcome == ABORT:
        assert [answer.last_sequences for answer in answers] == [{partition: 0}] * 3
    assert decisions(connection, writer.name) == [(outcome, "client")]


def test_a_doubled_commit_does_not_end_a_later_transaction(connection: Connection, partition: int, writer: Writer) -> None:
    """P10."""
    first = writer.send_and_commit(partition, b"a")
    writer.send(partition, b"b")
    assert writer.decide(COMMIT, name=first, tails={partition: 0}).error is None
    assert writer.decide(ABORT, name=first).outcome == "COMMIT"
    assert decisions(connection, writer.name) == []
    assert values(connection, partition) == [b"a"]


def overdue(writer: Writer, clock: Clock) -> None:
    clock("2 hours")
    assert expire_transaction(writer.connection, writer.name)


# Each party that may abort: its call, its name in `decided_by`, and the error of the producer's commit.
ABORTS: dict[str, tuple[Callable[[Writer, Clock], object], str, type[Exception]]] = {
    "itself": (lambda w, _: w.decide(ABORT), "client", errors.TransactionAborted),
    "an administrator": (lambda w, _: end_transaction(w.connection, w.name, "admin"), "admin", errors.TransactionAborted),
    "a reader": (lambda w, _: end_transaction(w.connection, w.name, "resolve"), "resolve", errors.TransactionAborted),
    "its timeout": (overdue, "timeout", errors.TransactionAborted),
    "a fence": (lambda w, _: fence_producer(w.connection, w.transactional_id), "fence", errors.ProducerFenced),
    "its successor": (lambda w, _: Writer(w.connection, w.transactional_id), "fence", errors.ProducerFenced),
}


@pytest.mark.parametrize("who", ABORTS)
def test_a_commit_after_an_abort_is_refused_with_the_reason(
    connection: Connection, partition: int, writer: Writer, clock: Clock, who: str
) -> None:
    """I7: zombie against successor. Unless it was fenced, the producer goes on: one transaction has ended."""
    abort, by, refusal = ABORTS[who]
    writer.send(partition, b"a")
    abort(writer, clock)
    answer = writer.decide(COMMIT)
    assert type(answer.error) is refusal
    assert decisions(connection, writer.name) == [("ABORT", by)]
    assert values(connection, partition) == []
    if refusal is errors.TransactionAborted:
        assert by in str(answer.error)
        assert (answer.outcome, answer.last_sequences) == ("ABORT", {partition: 0})
        again = writer.decide(ABORT)
        assert (again.error, again.last_sequences) == (None, {partition: 0})
        writer.next()
        writer.send_and_commit(partition, b"b")
        assert values(connection, partition) == [b"b"]


def test_an_abort_of_a_committed_transaction_is_refused(connection: Connection, partition: int, writer: Writer) -> None:
    writer.send(partition, b"a")
    writer.decide(COMMIT)
    answer = writer.decide(ABORT)
    assert isinstance(answer.error, errors.InvalidTransactionState)
    assert answer.outcome == "COMMIT"
    assert values(connection, partition) == [b"a"]


def test_a_zombie_learns_that_its_commit_had_succeeded(connection: Connection) -> None:
    """The decision is looked for before the epoch: a fenced producer gets its lost answer, too."""
    partition, zombie = new_partition(connection), Writer(connection)
    zombie.send(partition, b"a")
    zombie.decide(COMMIT)
    Writer(connection, zombie.transactional_id)
    assert (zombie.decide(COMMIT).error, zombie.decide(COMMIT).outcome) == (None, "COMMIT")


@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
@pytest.mark.parametrize("with_tails", [True, False])
def test_a_stale_epoch_decides_nothing(
    connection: Connection, outcome: Literal["COMMIT", "ABORT"], with_tails: bool
) -> None:
    partition, zombie = new_partition(connection), Writer(connection)
    Writer(connection, zombie.transactional_id)
    answer = zombie.decide(outcome, tails={partition: 0} if with_tails else {})
    assert type(answer.error) is errors.ProducerFenced
    assert answer.outcome is None
    assert decisions(connection, zombie.name) == []


@pytest.mark.parametrize("epoch", [0, 3])
def test_an_unknown_producer_id_is_refused(connection: Connection, epoch: int) -> None:
    answer = decide(connection, TransactionId(2**40, epoch, 0), COMMIT, tails={})
    assert isinstance(answer.error, errors.InvalidProducerIdMapping)


def test_a_plain_producer_cannot_decide(connection: Connection) -> None:
    producer = init_producer_id(connection, None, timeout_ms=60_000)
    answer = decide(connection, TransactionId(*producer, 0), COMMIT, tails={})
    assert isinstance(answer.error, errors.InvalidProducerIdMapping)


# ── names without rows ──


def test_offsets_only_commit(connection: Connection, partition: int, writer: Writer, group: str) -> None:
    """P35: no row, no tails, and still a COMMIT."""
    name = writer.commit(offsets_of((group, partition, 42)))
    assert decisions(connection, name) == [("COMMIT", "client")]
    assert committed_offsets(connection, group, None)[partition].at == OffsetAndMetadata(42)


def test_an_abort_by_name_without_rows_is_decided(connection: Connection, partition: int, writer: Writer) -> None:
    """P25."""
    answer = writer.decide(ABORT, tails={partition: 3})
    assert (answer.error, answer.outcome, answer.last_sequences) == (None, "ABORT", {partition: -1})
    assert decisions(connection, writer.name) == [("ABORT", "client")]


def test_an_abort_tells_the_last_sequences_that_retention_has_noted(connection: Connection) -> None:
    """I1: the producer goes on behind them; those of another producer or partition are not its own."""
    first, second = new_topic(connection, 2)
    writer, stranger = Writer(connection), Writer(connection)
    for who, partition, last in ((writer, first, 4), (stranger, second, 6)):
        note_sequence(connection, partition, who.id.producer_id, last, offset=2)
    answer = writer.decide("ABORT", tails={first: 5, second: 0})
    assert (answer.outcome, answer.last_sequences) == ("ABORT", {first: 4, second: -1})
    writer.init()
    answer = writer.decide("ABORT", tails={first: 5})
    assert (answer.outcome, answer.last_sequences) == ("ABORT", {first: -1}), "of the epoch before"


def test_what_retention_has_noted_is_not_taken_for_rows_of_the_transaction(connection: Connection, writer: Writer) -> None:
    """I6: a commit whose rows are lost is an abort, also if its tail is the sequence that was noted."""
    first, second = new_topic(connection, 2)
    note_sequence(connection, first, writer.id.producer_id, 4, offset=2)
    writer.send(second, b"x")
    answer = writer.decide("COMMIT", tails={first: 4, second: 0})
    assert (type(answer.error), answer.outcome) == (errors.TransactionAborted, "ABORT")


def test_a_commit_that_names_tails_but_has_no_rows_is_an_abort(connection: Connection) -> None:
    """What a crash took back does not commit, and what arrives later is refused."""
    partition, writer = new_partition(connection), Writer(connection)
    assert isinstance(writer.decide(COMMIT, tails={partition: 0}).error, errors.TransactionAborted)
    assert decisions(connection, writer.name) == [("ABORT", "tail")]
    assert isinstance(append_one(connection, writer.row(partition, b"late")).error, errors.TransactionAborted)


def test_offsets_are_not_applied_when_the_tail_is_missing(connection: Connection) -> None:
    """I10, P27."""
    partition, writer, group = new_partition(connection), Writer(connection), unique("group")
    writer.decide(COMMIT, tails={partition: 0}, offsets=offsets_of((group, partition, 9)))
    assert committed_offsets(connection, group, None) == {}


@pytest.mark.parametrize("number", [1, 1_000])
@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
def test_a_number_that_is_not_the_next_one_decides_nothing(
    connection: Connection, partition: int, writer: Writer, number: int, outcome: Literal["COMMIT", "ABORT"]
) -> None:
    """P46: deciding number 1000 by name would put the numbers below out of use."""
    answer = writer.decide(outcome, name=writer.name._replace(transaction_number=number), tails={partition: 0})
    assert isinstance(answer.error, errors.TransactionsLost)
    assert count(connection, "transaction_decision", "producer_id = %s", writer.id.producer_id) == 0
    writer.send_and_commit(partition, b"a")


def test_a_number_below_the_newest_without_rows_is_over(connection: Connection, partition: int, writer: Writer) -> None:
    """P46: it was purged, and nothing may be written for it."""
    for _ in range(3):
        writer.send_and_commit(partition, b"a")
    purged = writer.name._replace(transaction_number=1)
    forget(connection, purged)
    answer = writer.decide(COMMIT, name=purged, tails={partition: 1})
    assert isinstance(answer.error, errors.InvalidTransactionState)
    assert answer.outcome is None


def test_offsets_only_commit_waits_for_the_earlier_transaction(connection: Connection) -> None:
    """One whose records are missing does not (P25): that it may not begin yet is no reason to wait."""
    partition, writer, group = new_partition(connection), Writer(connection), unique("group")
    writer.send(partition, b"a")
    second = writer.name._replace(transaction_number=1)
    answer = writer.decide(COMMIT, name=second, tails={}, offsets=offsets_of((group, partition, 1)))
    assert isinstance(answer.error, errors.ConcurrentTransactions)
    assert decisions(connection, second) == []
    assert isinstance(writer.decide(COMMIT, name=second, tails={partition: 1}).error, errors.TransactionAborted)
    assert decisions(connection, second) == [("ABORT", "tail")]


@pytest.mark.parametrize("handed_over", [True, False])
def test_the_next_number_can_be_aborted_by_name_while_the_earlier_one_is_undecided(
    connection: Connection, partition: int, writer: Writer, handed_over: bool
) -> None:
    """P25: its first append may be on the way, and must meet the decision."""
    writer.send(partition, b"a")
    second = writer.name._replace(transaction_number=1)
    answer = writer.decide(ABORT, name=second, tails={partition: 1} if handed_over else {})
    assert (answer.error, answer.outcome) == (None, "ABORT")
    assert decisions(connection, writer.name) == []
    writer.commit()
    assert isinstance(append_one(connection, writer.row(partition, b"late")).error, errors.InvalidTransactionState)
    assert values(connection, partition) == [b"a"]


# ── the tail ──


@pytest.mark.parametrize("sent", [0, 2])
def test_a_commit_whose_tail_is_not_what_was_sent_is_an_abort(
    connection: Connection, partition: int, writer: Writer, group: str, sent: int
) -> None:
    """P27: outputs and offsets, or neither."""
    writer.send(partition, b"a", b"b")
    answer = writer.decide(COMMIT, tails={partition: sent}, offsets=offsets_of((group, partition, 1)))
    assert isinstance(answer.error, errors.TransactionAborted)
    assert answer.last_sequences == {partition: 1}
    assert decisions(connection, writer.name) == [("ABORT", "tail")]
    assert values(connection, partition) == []
    assert committed_offsets(connection, group, None) == {}


def test_a_tail_of_another_transaction_does_not_count(connection: Connection, writer: Writer) -> None:
    partition, other = new_topic(connection, 2)
    writer.send_and_commit(partition, b"a")
    writer.send(other, b"b")
    assert isinstance(writer.decide(COMMIT, tails={partition: 0, other: 0}).error, errors.TransactionAborted)


def test_the_tail_on_a_deleted_topic_is_not_asked_for(connection: Connection, writer: Writer) -> None:
    kept, gone = new_partition(connection), new_partition(connection)
    writer.send(kept, b"a")
    writer.send(gone, b"b")
    delete_topic_of(connection, gone)
    answer = writer.decide(COMMIT)
    assert (answer.error, answer.outcome) == (None, "COMMIT")
    assert values(connection, kept) == [b"a"]


# ── offsets ──


def test_offsets_are_there_with_the_commit_and_absent_with_the_abort(connection: Connection) -> None:
    """I10."""
    partition, writer, group = new_partition(connection), Writer(connection), unique("group")
    writer.send(partition, b"a")
    writer.commit(offsets_of((group, partition, OffsetAndMetadata(1, "first"))))
    writer.send(partition, b"b")
    writer.decide(ABORT, offsets=offsets_of((group, partition, 2)))
    assert committed_offsets(connection, group, None)[partition].at == OffsetAndMetadata(1, "first")


def test_a_repeated_commit_does_not_move_offsets_back(connection: Connection) -> None:
    """P17."""
    partition, writer, group = new_partition(connection), Writer(connection), unique("group")
    name = writer.commit(offsets_of((group, partition, 1)))
    writer.commit(offsets_of((group, partition, 2)))
    writer.decide(COMMIT, name=name, offsets=offsets_of((group, partition, 1)))
    assert committed_offsets(connection, group, None)[partition].at == OffsetAndMetadata(2)


def test_offsets_of_several_groups_travel_in_one_transaction(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    writer, one, other = Writer(connection), unique("group"), unique("group")
    writer.commit(offsets_of((one, first, 1), (one, second, 2), (other, first, 3)))
    found = {group: {p: o.at.offset for p, o in committed_offsets(connection, group, None).items() if o.at}
             for group in (one, other)}  # fmt: skip
    assert found == {one: {first: 1, second: 2}, other: {first: 3}}


@pytest.mark.parametrize(
    ("group", "at", "refusal"),
    [
        (GroupMetadata("g", member_id="member-1", generation=3), 1, errors.UnknownMember),
        ("g", OffsetAndMetadata(1, "é" * 2_049), errors.OffsetMetadataTooLarge),
        ("g", -1, errors.InvalidRequest),
        ("of a partition that is gone", 1, errors.UnknownTopicOrPartition),
    ],
)
def test_offsets_that_cannot_be_committed_decide_nothing(
    connection: Connection, group: str | GroupMetadata, at: int | OffsetAndMetadata, refusal: type[errors.MsgtxError]
) -> None:
    """I11, I16: the transaction stays open, for the client to abort."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    where = 2**31 - 1 if refusal is errors.UnknownTopicOrPartition else partition
    assert type(writer.decide(COMMIT, offsets=offsets_of((group, where, at))).error) is refusal
    assert decisions(connection, writer.name) == []
    assert writer.decide(ABORT).outcome == "ABORT"


def test_offsets_of_a_group_without_a_name_decide_nothing(connection: Connection, partition: int, writer: Writer) -> None:
    """I16: they are not even sent."""
    writer.send(partition, b"a")
    with refuses(errors.InvalidRequest, name="a group"):
        writer.decide(COMMIT, offsets=offsets_of(("", partition, 1)))
    assert decisions(connection, writer.name) == []
    assert writer.decide(ABORT).outcome == "ABORT"


def test_metadata_of_4096_bytes_is_stored(connection: Connection, partition: int, writer: Writer, group: str) -> None:
    writer.commit(offsets_of((group, partition, OffsetAndMetadata(1, "é" * 2_048))))
    assert committed_offsets(connection, group, [partition])[partition].at == OffsetAndMetadata(1, "é" * 2_048)


# ── one call ──


def test_a_whole_transaction_in_one_call_leaves_a_decision_and_no_rows_of_an_open_one(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    writer, group = Writer(connection), unique("group")
    name = writer.name
    rows = [writer.row(first, b"a", b"b"), writer.row(second, b"c")]
    assert writer.commit_whole(*rows, offsets=offsets_of((group, first, 7))) == [0, 0]
    assert values(connection, first) == [b"a", b"b"]
    assert committed_offsets(connection, group, None)[first].at == OffsetAndMetadata(7)
    assert decisions(connection, name) == [("COMMIT", "client")]
    for table in ("transaction", "transaction_partition"):
        assert count(connection, table, "producer_id = %s", writer.id.producer_id) == 0


def test_a_whole_transaction_again_is_answered_with_the_stored_offsets(connection: Connection, writer: Writer) -> None:
    """I1: acknowledgement lost and retried."""
    first, second = new_topic(connection, 2)
    rows = [writer.row(first, b"a"), writer.row(second, b"b")]
    before = writer.whole(*rows)
    again = writer.whole(*rows)
    assert [(a.base_offset, a.duplicate) for a in before] == [(0, False), (0, False)]
    assert [(a.base_offset, a.duplicate) for a in again] == [(0, True), (0, True)]
    assert [ends(connection, p)[2] for p in (first, second)] == [1, 1]


def test_a_whole_transaction_again_keeps_its_log_append_time(connection: Connection) -> None:
    partition, writer = new_partition(connection, timestamp_type="LogAppendTime"), Writer(connection)
    row = writer.row(partition, b"a")
    (before,), (again,) = writer.whole(row), writer.whole(row)
    assert again.timestamp == before.timestamp


def test_each_of_several_whole_transactions_again_has_its_own_offsets(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    sent = []
    for value in (b"a", b"b", b"c"):
        row = writer.row(partition, value)
        sent.append((writer.name, row))
        writer.commit_whole(row)
    for at, (name, row) in enumerate(sent):
        (again,) = append_and_decide(connection, name, [row])
        assert (again.error, again.base_offset, again.duplicate) == (None, at, True)


def test_a_whole_transaction_again_is_not_taken_for_one_of_an_older_epoch(partition: int, writer: Writer) -> None:
    """I1: numbers start again with each epoch."""
    writer.commit_whole(writer.row(partition, b"older", b"older"))
    writer.init()
    row = writer.row(partition, b"newer")
    before, again = writer.whole(row), writer.whole(row)
    assert [(a.error, a.base_offset, a.duplicate) for a in (*before, *again)] == [(None, 2, False), (None, 2, True)]


def test_a_transaction_that_has_rows_is_not_committed_as_a_whole(connection: Connection) -> None:
    """I8: what was appended in steps has tails, which a whole transaction does not name."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"in steps")
    (refused,) = writer.whole(writer.row(partition, b"whole"))
    assert isinstance(refused.error, errors.InvalidTransactionState)
    assert f"transaction {writer.id.producer_id}.{writer.id.epoch}.0 has rows" in str(refused.error)
    assert ends(connection, partition) == (0, 0, 1)


def test_what_is_refused_as_a_whole_tells_of_each_batch_what_would_have_become_of_it(connection: Connection) -> None:
    first, second, third = new_topic(connection, 3, max_message_bytes=100)
    writer = Writer(connection)
    writer.commit_whole(writer.row(third, b"a", b"b"))
    rows = (writer.row(first, b"x" * 101), writer.row(second, b"x" * 101), writer.row(third, b"c"))
    answers = writer.whole(*rows)
    assert [type(answer.error) for answer in answers] == [errors.RecordTooLarge, errors.RecordTooLarge, type(None)]
    assert all("at most 100 bytes" in str(answer.error) for answer in answers[:2])
    assert [answer.base_offset for answer in answers] == [0, 0, 2]
    assert min(answer.timestamp for answer in answers) > 1_600_000_000_000


@pytest.mark.parametrize("size", [1, 100])
def test_a_whole_transaction_keeps_its_columns_also_if_only_its_records_are_below_the_limit(
    connection: Connection, writer: Writer, size: int
) -> None:
    """Records that are together larger than one may be are looked at one by one."""
    partitions = [
        new_partition(connection, max_message_bytes=120, timestamp_type=kind) for kind in ("CreateTime", "LogAppendTime")
    ]
    for partition in partitions:
        plain(connection, partition, b"before")
    content = [bytes([letter]) * size for letter in b"abc"]
    answers = writer.whole(*(writer.row(partition, *content, timestamps=[5, 7, 6]) for partition in partitions))
    assert [(answer.error, answer.base_offset) for answer in answers] == [(None, 1)] * 2
    stored = connection.execute(
        "select last_offset, last_sequence, max_timestamp, timestamps from msgtx.record_batch"
        " where producer_id = %s order by partition_id",
        [writer.id.producer_id],
    ).fetchall()
    assert stored == [(3, 2, 7, [5, 7, 6]), (3, 2, answers[1].timestamp, None)]
    spans = connection.execute(
        "select partitions, first_offsets, last_offsets from msgtx.transaction_decision where producer_id = %s",
        [writer.id.producer_id],
    ).fetchall()
    assert spans == [(partitions, [1, 1], [3, 3])]


@pytest.mark.parametrize(
    ("bad", "refusal"),
    [
        ("large", errors.RecordTooLarge),
        ("unkeyed", errors.InvalidRecord),
        ("partly unkeyed", errors.InvalidRecord),
        ("sequence", errors.OutOfOrderSequence),
        ("unknown", errors.UnknownTopicOrPartition),
    ],
)
def test_one_refused_batch_undoes_the_whole_call(connection: Connection, bad: str, refusal: type[errors.MsgtxError]) -> None:
    """P36: all or nothing, and the name is not used up."""
    good = new_partition(connection)
    limited = new_partition(connection, max_message_bytes=5)
    compacted = new_partition(connection, cleanup_policy="compact")
    writer, group = Writer(connection), unique("group")
    row = {
        "large": lambda: writer.row(limited, b"too large"),
        "unkeyed": lambda: writer.row(compacted, b"a"),
        "partly unkeyed": lambda: writer.row(compacted, b"a", b"b", keys=[b"k", None]),
        "sequence": lambda: writer.row(limited, b"a", sequence=3),
        "unknown": lambda: writer.row(2**31 - 1, b"a"),
    }[bad]()
    answers = writer.whole(writer.row(good, b"a"), row, offsets=offsets_of((group, good, 1)))
    assert [answer.error and type(answer.error) for answer in answers] == [None, refusal]
    assert ends(connection, good) == (0, 0, 0)
    assert decisions(connection, writer.name) == []
    assert committed_offsets(connection, group, None) == {}
    assert writer.commit_whole(writer.row(good, b"a")) == [0]


@pytest.mark.parametrize(
    ("prepare", "refusal"),
    [
        pytest.param(lambda w, p: w.send(p, b"a"), errors.InvalidTransactionState, id="it has rows"),
        pytest.param(lambda w, p: w.decide("ABORT", tails={p: 0}), errors.InvalidTransactionState, id="aborted"),
        pytest.param(
            lambda w, p: end_transaction(w.connection, w.name, "resolve"), errors.TransactionAborted, id="resolved"
        ),
        pytest.param(lambda w, p: Writer(w.connection, w.transactional_id), errors.ProducerFenced, id="stale"),
        pytest.param(lambda w, p: setattr(w, "number", 4), errors.TransactionsLost, id="not the next number"),
        pytest.param(
            lambda w, p: setattr(w, "id", ProducerId(2**40, 0)), errors.InvalidProducerIdMapping, id="unknown producer"
        ),
    ],
)
def test_a_whole_transaction_is_refused(
    connection: Connection, prepare: Callable[[Writer, int], object], refusal: type[errors.MsgtxError]
) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    prepare(writer, partition)
    before = ends(connection, partition)
    (answer,) = writer.whole(writer.row(partition, b"x"))
    assert type(answer.error) is refusal
    assert ends(connection, partition) == before
    assert not any(outcome == "COMMIT" for outcome, _ in decisions(connection, writer.name))


def test_a_whole_transaction_behind_an_open_one_waits(partition: int, writer: Writer) -> None:
    writer.send(partition, b"a")
    writer.number = 1
    (answer,) = writer.whole(writer.row(partition, b"b"))
    assert isinstance(answer.error, errors.ConcurrentTransactions)


@pytest.mark.parametrize("newest", ["another producer's", "an older epoch's"])
def test_a_whole_transaction_whose_number_is_not_the_next_of_its_own_epoch_is_refused(
    connection: Connection, newest: str
) -> None:
    """P46."""
    partition, writer, other = new_partition(connection), Writer(connection), Writer(connection)
    for _ in range(3):
        one = other if newest == "another producer's" else writer
        one.commit_whole(one.row(partition, b"before"))
    if one is writer:
        writer.init()
    writer.number = 3
    (answer,) = writer.whole(writer.row(partition, b"a"))
    assert isinstance(answer.error, errors.TransactionsLost)
    assert ends(connection, partition) == (0, 3, 3)


@pytest.mark.parametrize("at", [OffsetAndMetadata(1, "x" * 4_097), OffsetAndMetadata(-1)])
def test_bad_offsets_undo_the_whole_call(connection: Connection, at: OffsetAndMetadata) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    (answer,) = writer.whole(writer.row(partition, b"a"), offsets=offsets_of((unique("group"), partition, at)))
    assert isinstance(answer.error, errors.OffsetMetadataTooLarge | errors.InvalidRequest)
    assert ends(connection, partition) == (0, 0, 0)


def test_batches_of_another_name_or_out_of_order_are_refused(connection: Connection) -> None:
    """I8: a batch of another name would belong to a transaction that nobody decides."""
    first, second = new_topic(connection, 2)
    writer, other = Writer(connection), Writer(connection)
    wrong = [
        [writer.row(second, b"a"), writer.row(first, b"b")],
        [writer.row(first, b"a"), writer.row(first, b"b", sequence=1)],
        [writer.row(first, b"a", number=1)],
        [writer.row(first, b"a", producer=(writer.id.producer_id, 1))],
        [writer.row(first, b"a", producer=other.id)],
        [batch(first, b"a")],
    ]
    for rows in wrong:
        with pytest.raises(errors.InvalidRequest):
            append_and_decide(connection, writer.name, rows)
    assert ends(connection, first) == (0, 0, 0)


def test_one_call_goes_on_where_steps_ended_and_the_other_way_round(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send_and_commit(partition, b"a", b"b")
    assert writer.commit_whole(writer.row(partition, b"c")) == [2]
    writer.send_and_abort(partition, b"d")
    assert writer.commit_whole(writer.row(partition, b"e")) == [4]
    assert values(connection, partition) == [b"a", b"b", b"c", b"e"]


# ── a way in for the database's own users ──


def test_a_decision_may_stand_in_a_users_transaction_and_rolls_back_with_it(engine: Engine, connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    with engine.connection() as other, other.transaction(force_rollback=True):
        assert decide(other, writer.name, COMMIT, tails=writer.tails).outcome == "COMMIT"
    assert decisions(connection, writer.name) == []
    writer.commit()


def test_offset_columns_name_member_and_generation() -> None:
    columns = offset_columns({GroupMetadata("g", "m", 4): {1: OffsetAndMetadata(2, "x")}, GroupMetadata("h"): {}})
    assert columns.arguments() == (("g",), (1,), (2,), ("x",), ("m",), (4,), (None,), (None,))


@pytest.mark.parametrize("ending", ["append", "fused", "commit", "abort", "timeout", "fence"])
def test_a_transaction_over_thousands_of_partitions_can_end(connection: Connection, ending: str, clock: Clock) -> None:
    """P9: what tells the readers would not fit into one notification of PostgreSQL's."""
    partitions = sorted(new_topic(connection, 2_000))
    producer = init_producer_id(connection, unique("id"), timeout_ms=60_000)
    name = TransactionId(*producer, 0)
    number = None if ending == "append" else 0
    rows = [batch(partition, b"v", producer=producer, number=number, sequence=0) for partition in partitions]
    if ending == "fused":
        assert {answer.error for answer in append_and_decide(connection, name, rows)} == {None}
        return
    assert {answer.error for answer in append(connection, rows)} == {None}
    match ending:
        case "commit":
            assert decide(connection, name, COMMIT, tails=dict.fromkeys(partitions, 0)).error is None
        case "abort":
            assert end_transaction(connection, name, "admin") is Outcome.ABORTED
        case "timeout":
            clock("2 minutes")
            assert expire_transaction(connection, name)
        case "fence":
            init_producer_id(connection, None, timeout_ms=60_000, expected=producer)


# ── what is not asked for ──


def test_an_abort_judges_no_offsets_and_stores_none(connection: Connection, partition: int, writer: Writer) -> None:
    """I10: what an abort names is not committed, and need not be right."""
    writer.send(partition, b"a")
    before = count(connection, "group_offset")
    answer = writer.decide(ABORT, offsets=offsets_of(("group", partition, 10**9), ("group", 2**31 - 1, 0)))
    assert (answer.error, answer.outcome) == (None, ABORT)
    assert count(connection, "group_offset") == before


def test_what_is_sealed_is_committed_as_it_was_sealed(connection: Connection, partition: int, writer: Writer) -> None:
    """Tails and offsets were judged by the seal, and are not asked for again."""
    writer.send(partition, b"a")
    group = unique("group")
    sealed = seal(connection, writer.name, "external", tails=writer.tails, offsets=offsets_of((group, partition, 1)))
    assert sealed.error is None
    before = count(connection, "group_offset")
    for offsets in (offsets_of((group, 2**31 - 1, 0)), offsets_of((group, partition, 0))):
        answer = writer.decide(COMMIT, tails={partition: 99}, offsets=offsets)
        assert (answer.error, answer.outcome) == (None, COMMIT)
    assert count(connection, "group_offset") == before
    found = committed_offsets(connection, group, [partition])[partition]
    assert found.at is not None
    assert (found.at.offset, found.pending) == (1, False)


def test_a_refusal_says_what_is_wrong(connection: Connection, partition: int, writer: Writer) -> None:
    committed = writer.send_and_commit(partition, b"a")
    told = writer.decide(ABORT, name=committed).error
    assert str(told) == f"transaction {committed} is committed and cannot be aborted"
    old = writer.name
    writer.init()
    assert str(writer.decide(COMMIT, name=old).error).startswith(f"producer {old.producer_id} is at epoch 1; epoch 0 was")
    writer.send(partition, b"open")
    earlier = append_one(connection, batch(partition, b"b", producer=writer.id, number=1, sequence=1)).error
    assert str(earlier) == f"an earlier transaction of producer {old.producer_id} is undecided"
    outside = append_one(connection, batch(partition, b"b", producer=writer.id, sequence=1)).error
    assert str(outside) == f"producer {old.producer_id} has a transaction open; an append outside it is refused"
    with refuses(errors.InvalidRequest, name="decided_by"):
        decide(connection, writer.name, ABORT, tails={}, decided_by="coordinator")  # type: ignore[arg-type]


def test_a_decision_names_the_last_row_of_its_own_epoch(connection: Connection, partition: int, writer: Writer) -> None:
    """The sequences of an epoch begin anew, and so do its numbers."""
    for _ in range(3):
        writer.send(partition, b"a", b"b")
    writer.commit()
    writer.init()
    name = writer.send_and_commit(partition, b"c")
    found = connection.execute(
        "select first_offsets, last_offsets from msgtx.transaction_decision"
        " where (producer_id, producer_epoch, transaction_number) = (%s, %s, %s)",
        name,
    ).fetchall()
    assert found == [([6], [6])]


def test_what_an_outside_party_has_committed_is_told_as_committed(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    assert seal(connection, writer.name, "external", tails=writer.tails).error is None
    complete_prepared(connection, writer.name, "COMMIT")
    late = append_one(connection, writer.row(partition, b"b")).error
    assert isinstance(late, errors.InvalidTransactionState)
    assert str(late) == f"transaction {writer.name} is over: it ended with COMMIT"


def test_the_outcome_of_a_number_is_that_of_its_epoch(partition: int, writer: Writer) -> None:
    """I4: the numbers of an epoch begin anew, and a repeated decision is answered by its own name."""
    aborted = writer.send_and_abort(partition, b"a")
    writer.init()
    committed = writer.send_and_commit(partition, b"b")
    assert aborted.transaction_number == committed.transaction_number
    answer = writer.decide(COMMIT, name=committed, tails={partition: 0})
    assert (answer.error, answer.outcome) == (None, COMMIT)
