"""History: complete transactions past their time go, and no reader notices (internals: transactions; P29, P37)."""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

import msgtx
from msgtx import errors
from msgtx.coordinator.sweep import STEPS, Sweeper, sweep
from msgtx.database.pool import Engine
from msgtx.store.groups.groups import committed_offsets
from msgtx.store.transactions.seal import complete_prepared
from msgtx.store.transactions.transactions import end_transaction, mark, transaction_outcome
from msgtx.types import Outcome, TransactionId
from tests.databases import Clock, Connection
from tests.refusals import refuses
from tests.store.conftest import Settings
from tests.store.steps import (
    UNCOMMITTED,
    Writer,
    append_one,
    count,
    counts,
    decide_by_hand,
    decide_widely,
    delete_topic_of,
    ends,
    expire_transaction,
    expire_transactions,
    look,
    new_partition,
    new_topic,
    offsets_of,
    plain,
    plain_batches,
    read,
    seal,
    spoiled,
    swept_by,
    unique,
    values,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare")]
LATER = "7 days 1 minute"
HISTORY = ("transaction", "transaction_partition", "transaction_seal", "transaction_decision")
VIEWS = ("committed_records", "committed_records_now")


def purge(connection: Connection, most: int = 500) -> int:
    """Run the sweep to its end."""
    return sum(swept_by(connection, "purge_transactions", most))


def history(connection: Connection) -> dict[str, int]:
    return {table: count(connection, table) for table in HISTORY}


def outcomes(connection: Connection, *names: TransactionId) -> list[str]:
    return [transaction_outcome(connection, name).outcome.value for name in names]


def everything_seen(connection: Connection, partition: int) -> Any:
    """What a partition shows, by every way to read it, from every offset."""
    _, _, end = ends(connection, partition)
    seen = [
        read(connection, partition, start, isolation=isolation)
        for isolation in (UNCOMMITTED, msgtx.Isolation.READ_COMMITTED)
        for start in range(end + 1)
    ]
    rows = [
        connection.execute(
            f'select "offset", value from msgtx.{view} where partition_id = %s order by 1', [partition]
        ).fetchall()
        for view in VIEWS
    ]
    return seen, rows, ends(connection, partition)


def markers(connection: Connection, partition: int) -> list[tuple[str, int]]:
    return connection.execute(
        "select outcome, first_offset from msgtx.transaction_marker where partition_id = %s order by 2", [partition]
    ).fetchall()


def mixed(connection: Connection, partitions: list[int]) -> Writer:
    """Transactions of every kind over these partitions, marked: kept, aborted, fused, interleaved, offsets only."""
    writer, other = Writer(connection), Writer(connection)
    plain(connection, partitions[0], b"plain")
    for number in range(6):
        for partition in partitions:
            writer.send(partition, b"%d" % number, b"%d+" % number)
        other.send(partitions[0], b"other %d" % number)
        (writer.abort if number % 3 == 1 else writer.commit)()
        (other.commit if number % 2 else other.abort)()
        writer.commit_whole(*(writer.row(partition, b"whole %d" % number) for partition in partitions))
    writer.commit(offsets_of(("group", partitions[0], 1)))
    writer.decide("ABORT", tails={partitions[0]: 99})
    writer.next()
    mark(connection, everything=True)
    writer.commit_whole(writer.row(partitions[0], b"newest"))
    other.commit_whole(other.row(partitions[0], b"newest of other"))
    mark(connection, everything=True)
    return writer


# ── reading ──


def test_nothing_that_is_read_changes_when_history_goes(connection: Connection, clock: Clock) -> None:
    """P29."""
    partitions = new_topic(connection, 2)
    mixed(connection, partitions)
    before = [everything_seen(connection, partition) for partition in partitions]
    clock(LATER)
    assert purge(connection) == 20
    assert history(connection)["transaction_decision"] == 2
    assert [everything_seen(connection, partition) for partition in partitions] == before
    for partition in partitions:
        left = [outcome for outcome, _ in markers(connection, partition)]
        assert left.count("ABORT") == (5 if partition == partitions[0] else 2)
        assert left.count("COMMIT") == (2 if partition == partitions[0] else 0), "those of the newest transactions"
    expire_transactions(connection)
    mark(connection, everything=True)
    assert [everything_seen(connection, partition) for partition in partitions] == before


def test_a_reader_goes_on_with_its_token_over_a_purge(connection: Connection, clock: Clock) -> None:
    (partition,) = new_topic(connection)
    mixed(connection, [partition])
    expected = read(connection, partition)
    answer = look(connection, partition, max_rows=4)
    first = [row.base_offset + i for row in answer.batches for i in range(len(row.values))]
    clock(LATER)
    assert purge(connection) > 0
    again = look(connection, partition, answer.position, token=answer.token)
    assert not again.truncated
    rest = [row.base_offset + i for row in again.batches for i in range(len(row.values))]
    assert first + rest == [offset for offset, _ in expected]


def test_an_abort_marker_goes_with_the_last_batch_of_its_transaction(connection: Connection, clock: Clock) -> None:
    """By retention, which is not there yet: by hand, from the front."""
    partition, gone, half, kept = new_partition(connection), Writer(connection), Writer(connection), Writer(connection)
    for writer in (gone, half, half, kept):
        writer.send(partition, b"a")
    for writer in (gone, half, kept):
        writer.abort()
        writer.commit(offsets_of(("group", partition, 1)))  # a newer one, so that the aborted one may go
    mark(connection, everything=True)
    connection.execute("delete from msgtx.record_batch where base_offset < 2")
    connection.execute("update msgtx.partition set log_start_offset = 2")
    clock(LATER)
    assert purge(connection) == 3
    assert markers(connection, partition) == [("ABORT", 1), ("ABORT", 3)]
    assert values(connection, partition, 2) == []
    plain(connection, partition, b"next")
    assert read(connection, partition, 2) == [(4, b"next")]


# ── what may go ──


def test_history_goes_when_its_time_and_the_expiry_of_ids_are_over(
    connection: Connection, clock: Clock, settings: Settings
) -> None:
    (partition,) = new_topic(connection)
    mixed(connection, [partition])
    clock("6 days 23 hours")
    assert purge(connection) == 0
    settings(transaction_history_ms=1)
    clock(LATER.replace("7", "6"))
    assert purge(connection) == 0, "an id could still be asked for it"
    settings(transactional_id_expiration_ms=1)
    clock("23 hours")
    assert purge(connection) == 0, "an id without transactional id could, too"
    clock("25 hours")
    assert purge(connection) == 20
    assert purge(connection) == 0


def test_a_transaction_is_purged_with_all_its_rows(connection: Connection, clock: Clock) -> None:
    first, second, writer = new_partition(connection), new_partition(connection), Writer(connection)
    writer.send(first, b"a")
    done = writer.send_and_commit(second, b"b")
    newest = writer.commit_whole(writer.row(first, b"c")) and writer.name._replace(transaction_number=1)
    mark(connection, everything=True)
    clock(LATER)
    assert purge(connection) == 1
    assert history(connection) == dict(zip(HISTORY, [0, 0, 0, 1], strict=True))
    assert outcomes(connection, done, newest) == ["UNKNOWN", "COMMITTED"]
    assert (markers(connection, first), markers(connection, second)) == ([("COMMIT", 1)], [])


def test_the_newest_transaction_of_an_id_stays_as_long_as_the_id(connection: Connection, clock: Clock) -> None:
    """Else its number could be used again: a late request could not be distinguished from the next one."""
    partition, writer = new_partition(connection), Writer(connection)
    for _ in range(3):
        writer.send_and_commit(partition, b"a")
    mark(connection, everything=True)
    clock("1 year")
    assert purge(connection) == 2
    assert purge(connection) == 0
    assert append_one(connection, writer.row(partition, b"b")).error is None, "its next number is still the next one"
    writer.decide("ABORT")
    mark(connection, everything=True)
    clock("2 years")
    connection.execute("delete from msgtx.producer")
    assert purge(connection) == 2
    assert history(connection) == dict.fromkeys(HISTORY, 0)


def test_an_open_transaction_is_the_newest_of_its_id(connection: Connection, clock: Clock) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    done = writer.send_and_commit(partition, b"a")
    mark(connection, everything=True)
    writer.send(partition, b"open")
    clock(LATER)
    assert purge(connection) == 1
    assert outcomes(connection, done, writer.name) == ["UNKNOWN", "OPEN"]
    assert values(connection, partition) == [b"a"]
    writer.commit()
    assert values(connection, partition) == [b"a", b"open"]


def test_the_newest_of_an_older_epoch_is_the_newest_while_the_new_epoch_has_none(
    connection: Connection, partition: int, writer: Writer, clock: Clock
) -> None:
    writer.send_and_commit(partition, b"a")
    writer.init()
    mark(connection, everything=True)
    clock(LATER)
    assert purge(connection) == 0
    writer.send(partition, b"b")
    assert purge(connection) == 1


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_what_is_not_complete_stays(connection: Connection, clock: Clock, outcome: Any) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    writer.decide(outcome)
    writer.next()
    writer.commit(offsets_of(("group", partition, 1)))
    clock(LATER)
    assert purge(connection) == 0
    mark(connection, everything=True)
    assert purge(connection) == 1
    assert len(values(connection, partition)) == int(outcome == "COMMIT")


def test_an_older_prepared_transaction_holds_what_lies_above_it(connection: Connection, clock: Clock) -> None:
    """P37: without their decisions, committed records above the floor would never be delivered."""
    first, second = new_topic(connection, 2)
    prepared, writer = Writer(connection), Writer(connection)
    prepared.send(first, b"prepared")
    seal(connection, prepared.name, "external")
    for partition in (first, second):
        writer.send(partition, b"above")
    held = writer.commit()
    writer.commit_whole(writer.row(second, b"newest"))
    mark(connection, everything=True)
    clock("30 days")
    expire_transactions(connection)
    mark(connection, everything=True)
    assert purge(connection) == 0
    assert outcomes(connection, prepared.name, held) == ["OPEN", "COMMITTED"]
    assert (values(connection, first), values(connection, second)) == ([], [b"above", b"newest"])
    connection.execute("delete from msgtx.transaction_seal")
    prepared.commit()
    mark(connection, everything=True)
    assert purge(connection) == 1
    assert (values(connection, first), values(connection, second)) == ([b"prepared", b"above"], [b"above", b"newest"])


def test_transactions_without_records_are_history_too(connection: Connection, clock: Clock) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.commit(offsets_of(("group", partition, 1)))
    writer.decide("ABORT", tails={partition: 0})
    writer.next()
    writer.commit(offsets_of(("group", partition, 2)))
    clock(LATER)
    assert purge(connection) == 2
    assert count(connection, "transaction_decision") == 1


def test_a_transaction_whose_acknowledgements_are_not_settled_holds_no_namesake(
    connection: Connection, clock: Clock
) -> None:
    """P10: it stays itself; one that shares two parts of its name goes."""
    writer, other = Writer(connection), Writer(connection)
    old = [writer.commit(), writer.commit(), other.commit(), other.commit()]
    writer.init()
    old += [writer.commit(), writer.commit()]
    newest = [writer.commit(), other.commit()]
    goes = old[1]
    holds = [
        goes._replace(transaction_number=0),
        goes._replace(producer_epoch=1),
        goes._replace(producer_id=other.id.producer_id),
    ]
    for name in holds:
        connection.execute(
            "insert into msgtx.share_pending (producer_id, producer_epoch, transaction_number, group_id, partition_id)"
            " values (%s, %s, %s, 1, 1)",
            name,
        )
    clock(LATER)
    purge(connection)
    left = [name for name in (*old, *newest) if transaction_outcome(connection, name).outcome is not Outcome.UNKNOWN]
    assert sorted(left) == sorted([*holds, *newest])


def test_a_deleted_topic_holds_no_history(connection: Connection, clock: Clock) -> None:
    gone, kept, writer = new_partition(connection), new_partition(connection), Writer(connection)
    writer.send(gone, b"a")
    writer.send(kept, b"b")
    delete_topic_of(connection, gone)
    writer.commit()
    writer.send(kept, b"c")
    mark(connection, everything=True)
    clock(LATER)
    assert purge(connection) == 1
    assert markers(connection, gone) == []
    assert count(connection, "transaction_partition", "partition_id = %s", gone) == 0
    assert values(connection, kept) == [b"b"]


# ── offsets ──


def test_offsets_of_a_commit_stay_and_count_those_of_an_abort_go(connection: Connection, clock: Clock) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.commit(offsets_of(("committed", partition, 1)))
    for outcome, group in (("COMMIT", "sealed and committed"), ("ABORT", "sealed and aborted")):
        seal(connection, writer.name, "external", offset=(group, partition, 2))
        decide_by_hand(connection, writer.name, outcome)
        writer.next()
    writer.commit_whole(writer.row(partition, b"newest"))
    mark(connection)
    clock(LATER)
    assert purge(connection) == 3
    assert history(connection) == dict(zip(HISTORY, [0, 0, 0, 1], strict=True))
    assert count(connection, "group_offset") == 2
    found = {
        group: [at.offset for at, _ in _offsets(connection, group, partition)]
        for group in ("committed", "sealed and committed", "sealed and aborted")
    }
    assert found == {"committed": [1], "sealed and committed": [2], "sealed and aborted": []}


def test_with_an_abort_go_its_own_offsets_and_no_others(connection: Connection, clock: Clock) -> None:
    """I10: not those of others that share two parts of its name."""
    partition, writer, other = new_partition(connection), Writer(connection), Writer(connection)
    for one in (writer, other):
        one.commit(offsets_of((unique("number"), partition, 1)))
    seal(connection, writer.name, "external", offset=("aborted", partition, 2))
    complete_prepared(connection, writer.name, "ABORT")
    other.commit(offsets_of((unique("producer"), partition, 1)))
    writer.init()
    for _ in range(2):
        writer.commit(offsets_of((unique("epoch"), partition, 1)))
    assert count(connection, "group_offset") == 6
    for one in (writer, other):
        one.commit()
    mark(connection)
    clock(LATER)
    assert purge(connection) == 6
    assert count(connection, "group_offset") == 5
    assert _offsets(connection, "aborted", partition) == []


def test_with_a_transaction_goes_its_own_seal_and_no_others(connection: Connection, clock: Clock) -> None:
    """P42: what another producer, or a later epoch, has prepared under the same number stays prepared."""
    others, writer = [Writer(connection) for _ in range(2)], Writer(connection)
    others.append(Writer(connection))
    others[1].commit(offsets_of(("group", new_partition(connection), 0)))
    others[1].init()
    for each in (*others, writer):
        seal(connection, each.name, "external")
    complete_prepared(connection, writer.name, "COMMIT")
    writer.next()
    writer.commit()
    mark(connection)
    clock(LATER)
    assert purge(connection) == 2
    left = connection.execute("select producer_id from msgtx.transaction_seal order by producer_id").fetchall()
    assert left == [(each.id.producer_id,) for each in others]


def test_an_abort_marker_stays_as_long_as_its_own_partition_has_the_batch(connection: Connection, clock: Clock) -> None:
    """I5, P29: whatever lies at its offsets elsewhere."""
    partition, other = new_topic(connection, 2)
    writer = Writer(connection)
    writer.send_and_abort(partition, *[b"aborted"] * 4)
    plain_batches(connection, other, *[b"plain"] * 3)
    writer.commit()
    mark(connection)
    clock(LATER)
    assert purge(connection) == 1
    assert values(connection, partition) == []


def _offsets(connection: Connection, group: str, partition: int) -> list[Any]:
    found = committed_offsets(connection, group, [partition])
    return [(each.at, each.pending) for each in found.values()]


# ── late requests ──


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
@pytest.mark.parametrize("call", ["commit", "abort", "offsets only", "append", "append more", "whole", "expire", "resolve"])
def test_a_late_request_by_the_name_of_what_was_purged_writes_nothing(
    connection: Connection, partition: int, writer: Writer, clock: Clock, call: str, outcome: Any
) -> None:
    """I4, I8 (internals: transactions#the-name): a number that is not the newest and has no rows is over."""
    row = writer.row(partition, b"a")
    writer.send(partition, b"a")
    name = writer.name
    writer.decide(outcome)
    writer.next()
    more = writer.row(partition, b"more", number=0)
    writer.commit_whole(writer.row(partition, b"newest"))
    mark(connection, everything=True)
    clock(LATER)
    assert purge(connection) == 1
    before, seen = counts(connection), everything_seen(connection, partition)
    assert transaction_outcome(connection, name).outcome is Outcome.UNKNOWN
    match call:
        case "commit" | "abort":
            answer = writer.decide("COMMIT" if call == "commit" else "ABORT", name=name, tails={partition: 0})
            assert (type(answer.error), answer.outcome) == (errors.InvalidTransactionState, None)
        case "offsets only":
            answer = writer.decide("COMMIT", name=name, tails={}, offsets=offsets_of(("group", partition, 1)))
            assert type(answer.error) is errors.InvalidTransactionState
        case "append":  # its batch is still in the log
            late = append_one(connection, row)
            assert (late.error, late.base_offset, late.duplicate) == (None, 0, True)
        case "append more":
            assert type(append_one(connection, more).error) is errors.InvalidTransactionState
        case "whole":
            writer.number = 0
            assert type(writer.whole(row)[0].error) is errors.InvalidTransactionState
        case "expire":
            assert not expire_transaction(connection, name)
        case "resolve":
            assert end_transaction(connection, name, "resolve") is Outcome.UNKNOWN
    assert counts(connection) == before
    assert everything_seen(connection, partition) == seen


def test_a_late_request_of_an_older_epoch_is_fenced(connection: Connection, clock: Clock) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    row = writer.row(partition, b"a")
    name = writer.send_and_abort(partition, b"a")
    writer.init()
    writer.commit_whole(writer.row(partition, b"newest"))
    mark(connection, everything=True)
    clock(LATER)
    assert purge(connection) == 1
    before = counts(connection)
    assert type(writer.decide("COMMIT", name=name, tails={partition: 0}).error) is errors.ProducerFenced
    assert type(append_one(connection, row).error) is errors.InvalidProducerEpoch
    assert counts(connection) == before


# ── the sweep ──


@pytest.mark.parametrize("most", [1, 2, 3, 7, 500])
def test_a_pass_goes_on_where_it_came_to_also_among_decisions_of_one_moment(
    connection: Connection, partition: int, clock: Clock, most: int
) -> None:
    """What may not go stands between what may, and each is looked at once."""
    clock(datetime(2026, 1, 1, 12, 0, 0, 123_457, tzinfo=UTC))
    writers = [Writer(connection) for _ in range(3)]
    for number in range(3):
        for writer in writers:
            writer.commit_whole(writer.row(partition, b"%d" % number))
            writer.commit(offsets_of(("group", partition, number)))
    writers[0].commit_whole(writers[0].row(partition, b"newest"))
    mark(connection, everything=True)
    clock(datetime(2026, 2, 1, tzinfo=UTC))
    assert purge(connection, most) == 16
    assert count(connection, "transaction_decision") == 3
    assert len(values(connection, partition)) == 10


def test_wide_transactions_go_in_more_than_one_call(connection: Connection, clock: Clock) -> None:
    """Each is looked at once, and those behind it are the next call's."""
    clock("-8 days")
    decide_widely(connection, 5)
    clock(None)
    assert swept_by(connection, "purge_transactions", 500) == [2, 2, 1]


def test_one_bad_transaction_does_not_stop_the_rest(connection: Connection, partition: int, clock: Clock) -> None:
    """P12. And nothing of the bad one is gone."""
    writers = [Writer(connection) for _ in range(5)]
    for writer in writers:
        writer.send_and_commit(partition, b"a")
        writer.commit_whole(writer.row(partition, b"newest"))
    mark(connection, everything=True)
    clock(LATER)
    bad = writers[2].id.producer_id
    with spoiled(connection, "transaction_decision", "delete", f"old.producer_id = {bad}"):
        assert purge(connection) == 4
        assert {table: count(connection, table, "producer_id = %s", bad) for table in HISTORY} == dict(
            zip(HISTORY, [1, 1, 0, 2], strict=True)
        )
    assert purge(connection) == 1
    assert len(values(connection, partition)) == 10


def test_while_somebody_marks_history_stays(connection: Connection, session: Connection, clock: Clock) -> None:
    mixed(connection, new_topic(connection))
    clock(LATER)
    with session.transaction():
        session.execute("select msgtx.try_lock_marking()")
        assert purge(connection) == 0
    assert purge(connection) == 20


@pytest.mark.parametrize("only", [(), ("history",), ("overdue", "markers")])
def test_a_dry_run_tells_what_would_be_done_and_changes_nothing(
    connection: Connection, engine: Engine, clock: Clock, only: tuple[str, ...]
) -> None:
    (partition,) = new_topic(connection)
    mixed(connection, [partition])
    Writer(connection).send(partition, b"overdue")
    clock(LATER)
    before = {
        table: connection.execute(f"select t::text from msgtx.{table} t order by 1").fetchall()
        for table in counts(connection)
    }
    told = sweep(engine, only=only, dry_run=True)
    assert told == sweep(engine, only=only, dry_run=True)
    assert before == {
        table: connection.execute(f"select t::text from msgtx.{table} t order by 1").fetchall() for table in before
    }
    assert (told.transactions_purged > 0) == (not only or "history" in only)
    assert (told.transactions_aborted > 0) == (not only or "overdue" in only)
    assert sweep(engine, only=only) == told


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(("state", "kind"), [("55P03", errors.LockTimeout), ("P0001", psycopg.errors.RaiseException)])
def test_a_step_that_fails_does_not_stop_the_others_and_is_told(
    connection: Connection, engine: Engine, clock: Clock, state: str, kind: type[Exception], dry_run: bool
) -> None:
    """A failure that the library knows, and one that it does not."""
    (partition,) = new_topic(connection)
    mixed(connection, [partition])
    overdue = Writer(connection)
    overdue.send(partition, b"overdue")
    clock(LATER)
    sweeper = Sweeper()
    with spoiled(connection, "partition_floor", "insert", "true", state=state):
        with pytest.raises(kind, match="spoiled"):
            sweep(engine, dry_run=dry_run)
        assert (transaction_outcome(connection, overdue.name).outcome is Outcome.OPEN) == dry_run
        assert (count(connection, "transaction_decision") > 10) == dry_run
        with engine.rolled_back() if dry_run else engine.connection() as borrowed:
            report = sweeper.round(borrowed)
    assert list(sweeper.failures) == ["markers"]
    assert (report.transactions_purged > 0) == dry_run, "the other call has done it"


def test_an_unknown_sweep_is_named(engine: Engine) -> None:
    with refuses(errors.ConfigError, name="steps"):
        sweep(engine, only=["markers", "histories"])
    with pytest.raises(errors.ConfigError):
        Sweeper(["x"])


def test_a_sweep_goes_to_the_end_of_everything(
    connection: Connection, engine: Engine, clock: Clock, settings: Settings
) -> None:
    settings(offsets_retention_ms=90 * 86_400_000)
    partition = new_partition(connection)
    for _ in range(3):
        writer = Writer(connection)
        writer.send(partition, b"a")
        writer.commit(offsets_of(("group", partition, 1)))
    mark(connection, everything=True)
    clock(LATER)
    Writer(connection).send(partition, b"b")
    clock("8 days")
    report = sweep(engine)
    assert (report.transactions_aborted, report.producer_ids_removed, report.transactions_purged) == (1, 3, 3)
    assert (report.offsets_removed, report.floors_removed) == (2, 1)
    clock("30 days")
    report = sweep(engine)
    assert (report.producer_ids_removed, report.transactions_purged) == (1, 1)
    assert history(connection) == dict.fromkeys(HISTORY, 0)
    assert [count(connection, table) for table in ("producer", "partition_floor", "group_offset")] == [0, 1, 1]
    assert values(connection, partition) == [b"a"] * 3
    assert not any(vars_of(sweep(engine)).values()), "a second round finds nothing"


def vars_of(report: msgtx.SweepReport) -> dict[str, int]:
    return {name: getattr(report, name) for name in report.__slots__}


def test_the_steps_of_sweeping_stand_in_the_order_that_lets_each_use_what_the_one_before_did() -> None:
    assert list(STEPS) == [
        "overdue", "markers", "acknowledgements", "seals", "deleted", "retention", "compaction", "ids", "history",
        "offsets", "floors", "members", "heartbeats", "shares", "spark", "dedup", "wakeups",
    ]  # fmt: skip


def test_a_transaction_of_offsets_alone_stays_until_its_history_is_over(connection: Connection, clock: Clock) -> None:
    writer, partition = Writer(connection), new_partition(connection)
    older, _ = (writer.commit(offsets_of(("group", partition, at))) for at in (1, 2))
    assert purge(connection) == 0
    assert outcomes(connection, older) == ["COMMITTED"]
    clock("1 year")
    assert purge(connection) == 1
