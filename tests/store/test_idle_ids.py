"""Idle ids: what was not used for as long as its expiry goes, and what is open or unfinished never (I13)."""

from collections.abc import Callable
from typing import Any

import pytest

from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.sweeps import sweeps
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.producers import fence_producer, init_producer_id
from msgtx.store.transactions.transactions import mark, transaction_outcome
from msgtx.types import Outcome, ProducerId, TransactionId
from tests.databases import Clock, Connection
from tests.store.conftest import Blocked, Settings
from tests.store.steps import (
    Writer,
    append_one,
    batch,
    count,
    counts,
    delete_topic_of,
    expire_transactions,
    new_partition,
    new_topic,
    note_sequence,
    offsets_of,
    read,
    seal,
    spoiled,
    swept_by,
    to_its_end,
    values,
)

pytestmark = pytest.mark.usefixtures("bare")
LATER = "7 days 1 minute"  # than the expiry of a transactional id


def remove(connection: Connection) -> int:
    """Run the sweep to its end."""
    return sum(done["producer_ids_removed"] for done in to_its_end(connection, sweeps.remove_idle_producers))


def known(connection: Connection, producer_id: int) -> bool:
    return count(connection, "producer", "producer_id = %s", producer_id) == 1


def plain_id(connection: Connection, *, raised: bool = True) -> ProducerId:
    """A producer without transactional id; raised: it has a row, since it once recovered."""
    first = init_producer_id(connection, None, timeout_ms=60_000)
    return init_producer_id(connection, None, timeout_ms=60_000, expected=first) if raised else first


def use(connection: Connection, producer: ProducerId, partition: int, sequence: int = 0) -> Any:
    answer = append_one(connection, batch(partition, b"a", producer=producer, sequence=sequence))
    assert answer.error is None
    return answer


# ── idle since when ──


def test_an_id_that_was_only_initialized_is_idle_since_then(connection: Connection, writer: Writer, clock: Clock) -> None:
    clock("6 days 23 hours")
    assert remove(connection) == 0
    clock(LATER)
    assert remove(connection) == 1
    assert not known(connection, writer.id.producer_id)


@pytest.mark.parametrize("use", ["init", "fence", "open", "commit", "abort", "whole", "offsets only", "timeout"])
def test_an_id_is_idle_since_it_was_used_last(connection: Connection, clock: Clock, use: str) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"first")
    if use not in {"commit", "abort", "timeout"}:
        writer.commit()
        mark(connection)
    clock("5 days")
    match use:
        case "init":
            writer.init()
        case "fence":
            fence_producer(connection, writer.transactional_id)
        case "open":
            writer.send(partition, b"x")
        case "commit" | "abort":
            writer.decide("COMMIT" if use == "commit" else "ABORT")
        case "whole":
            writer.commit_whole(writer.row(partition, b"x"))
        case "offsets only":
            writer.commit(offsets_of(("group", partition, 1)))
        case "timeout":
            expire_transactions(connection)
    mark(connection, everything=True)
    clock("11 days 23 hours")
    assert remove(connection) == 0
    clock("12 days 1 hour")
    expire_transactions(connection)
    mark(connection, everything=True)
    # What was open until now was decided just now.
    assert remove(connection) == int(use != "open")
    clock("20 days")
    assert remove(connection) == int(use == "open")


def test_an_id_that_commits_all_the_time_is_never_idle_however_old_its_init(connection: Connection, clock: Clock) -> None:
    """P34: nothing on the hot path updates the producer's row."""
    partition, writer = new_partition(connection), Writer(connection)
    for days in range(0, 30, 5):
        clock(f"{days} days")
        writer.commit_whole(writer.row(partition, b"x"))
        mark(connection)
        assert remove(connection) == 0
    assert len(read(connection, partition)) == 6


def test_each_id_has_the_expiry_of_its_kind(connection: Connection, clock: Clock, settings: Settings) -> None:
    settings(transactional_id_expiration_ms=3_600_000, producer_id_expiration_ms=60_000)
    transactional, raised = Writer(connection).id, plain_id(connection)
    clock("30 seconds")
    assert remove(connection) == 0
    clock("2 minutes")
    assert (remove(connection), known(connection, transactional.producer_id)) == (1, True)
    assert not known(connection, raised.producer_id)
    clock("2 hours")
    assert remove(connection) == 1


def test_a_transactional_ids_own_expiry_counts_whatever_it_wrote_lately(
    connection: Connection, clock: Clock, settings: Settings
) -> None:
    """Also behind an id without one, which is looked for on the partitions."""
    settings(transactional_id_expiration_ms=3_600_000, producer_id_expiration_ms=86_400_000)
    raised = plain_id(connection)
    clock("25 hours")
    writer = Writer(connection)
    assert writer.id.producer_id > raised.producer_id
    writer.init()
    writer.send_and_commit(new_partition(connection), b"a")
    mark(connection, everything=True)
    clock("27 hours")
    assert remove(connection) == 2


# ── what stays ──


@pytest.mark.parametrize("kind", ["open", "session", "external", "of an older epoch"])
def test_an_id_with_something_undecided_is_never_removed(connection: Connection, clock: Clock, kind: Any) -> None:
    writer = Writer(connection)
    writer.send(new_partition(connection), b"a")
    if kind == "of an older epoch":  # by hand: init aborts what is open
        connection.execute("update msgtx.producer set epoch = epoch + 1")
    elif kind != "open":
        seal(connection, writer.name, kind)
    clock("1 year")
    assert remove(connection) == 0


@pytest.mark.parametrize("differs", ["epoch", "number"])
def test_an_id_whose_newest_transaction_is_open_is_not_removed(connection: Connection, clock: Clock, differs: str) -> None:
    """Though an earlier one is decided whose name differs from it in one part alone."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send_and_commit(partition, b"a")
    mark(connection, everything=True)
    if differs == "epoch":
        writer.init()
    writer.send(partition, b"b")
    clock("1 year")
    assert remove(connection) == 0


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_an_id_with_an_unfinished_transaction_is_not_removed(connection: Connection, clock: Clock, outcome: Any) -> None:
    writer = Writer(connection)
    writer.send(new_partition(connection), b"a")
    writer.decide(outcome)
    clock("1 year")
    assert remove(connection) == 0
    mark(connection, everything=True)
    assert remove(connection) == 1


def test_an_id_with_an_unfinished_transaction_before_its_newest_is_not_removed(connection: Connection, clock: Clock) -> None:
    """The newest one has no records at all; an older one lies above the floor."""
    partition, holder, writer = new_partition(connection), Writer(connection), Writer(connection)
    holder.send(partition, b"held")
    seal(connection, holder.name, "external")
    writer.send_and_commit(partition, b"a")
    writer.commit(offsets_of(("group", partition, 1)))
    mark(connection, everything=True)
    clock("1 year")
    assert remove(connection) == 0
    holder.decide("COMMIT")
    connection.execute("delete from msgtx.transaction_seal")
    holder.decide("COMMIT")
    mark(connection, everything=True)
    assert remove(connection) == 1


def test_the_last_offset_of_an_idle_ids_transaction_lies_below_the_floor_of_each_partition(
    connection: Connection, clock: Clock
) -> None:
    first, second, holder, writer = (
        new_partition(connection),
        new_partition(connection),
        Writer(connection),
        Writer(connection),
    )
    holder.send(second, b"held")
    writer.send(first, b"a")
    writer.send_and_commit(second, b"b")
    mark(connection, everything=True)
    clock(LATER)
    assert remove(connection) == 0
    holder.abort()
    mark(connection, everything=True)
    assert remove(connection) == 1
    assert known(connection, holder.id.producer_id)


def test_a_deleted_topic_keeps_no_id(connection: Connection, partition: int, writer: Writer, clock: Clock) -> None:
    writer.send_and_commit(partition, b"a")
    delete_topic_of(connection, partition)
    clock(LATER)
    assert remove(connection) == 1


# ── ids without a transactional id ──


def test_a_plain_id_is_idle_since_its_newest_batch(connection: Connection, clock: Clock) -> None:
    first, second, who = new_partition(connection), new_partition(connection), plain_id(connection)
    use(connection, who, first)
    clock("20 hours")
    use(connection, who, second)
    clock("30 hours")
    assert remove(connection) == 0
    clock("45 hours")
    assert remove(connection) == 1


def test_a_plain_id_whose_newest_batch_was_removed_by_retention_is_idle_since_that_batch(
    connection: Connection, clock: Clock
) -> None:
    """Retention keeps the producer's state, and the id lives as long as that."""
    partition, who = new_partition(connection), plain_id(connection)
    clock("30 hours")
    use(connection, who, partition)
    connection.execute(
        "insert into msgtx.producer_state (partition_id, producer_id, producer_epoch, last_sequence, last_offset,"
        " appended_at) select partition_id, producer_id, producer_epoch, last_sequence, last_offset, appended_at"
        " from msgtx.record_batch"
    )
    connection.execute("delete from msgtx.record_batch")
    clock("50 hours")
    assert remove(connection) == 0
    use(connection, who, partition, sequence=1)


def test_a_plain_id_is_kept_alive_by_its_own_batches_alone(connection: Connection, clock: Clock) -> None:
    """Neither by rows of others nor by what retention has noted of them; by its own on any partition."""
    first, second = new_topic(connection, 2)
    clock("-8 days")
    other, idle, alive = (plain_id(connection) for _ in range(3))
    for who in (other, idle, alive):
        use(connection, who, first)
    connection.execute("delete from msgtx.record_batch")
    clock(None)
    use(connection, other, first, sequence=0)
    for place, who, age in ((first, other, "0"), (first, idle, "8 days"), (first, alive, "8 days"), (second, alive, "0")):
        note_sequence(connection, place, who.producer_id, 0, epoch=1, age=age)
    remove(connection)
    assert [known(connection, each.producer_id) for each in (other, idle, alive)] == [True, False, True]


def test_an_id_without_transactional_id_that_holds_transactions_is_idle_since_the_later_of_both_uses(
    connection: Connection, clock: Clock
) -> None:
    partition, who = new_partition(connection), plain_id(connection)
    append_one(connection, batch(partition, b"a", producer=who, number=0, sequence=0), flushed=False)
    decide(connection, TransactionId(*who, 0), "COMMIT", tails={partition: 0})
    mark(connection, everything=True)
    clock("20 hours")
    use(connection, who, partition, sequence=1)
    mark(connection, everything=True)
    clock("30 hours")
    assert remove(connection) == 0
    clock("45 hours")
    assert remove(connection) == 1


def test_a_plain_id_that_was_removed_is_not_known_at_its_epoch(connection: Connection, clock: Clock) -> None:
    partition, who = new_partition(connection), plain_id(connection)
    use(connection, who, partition)
    clock("2 days")
    assert remove(connection) == 1
    late = append_one(connection, batch(partition, b"b", producer=who, sequence=1))
    assert isinstance(late.error, errors.InvalidProducerIdMapping)
    with pytest.raises(errors.InvalidProducerIdMapping):
        init_producer_id(connection, None, timeout_ms=1_000, expected=who)


def test_a_plain_id_at_its_first_epoch_needs_no_row(connection: Connection, clock: Clock) -> None:
    partition, who = new_partition(connection), plain_id(connection, raised=False)
    use(connection, who, partition)
    clock("2 days")
    assert remove(connection) == 0
    use(connection, who, partition, sequence=1)


@pytest.mark.parametrize("kind", ["old", "young"])
def test_what_retention_left_of_a_producer_expires_with_the_ids_of_its_kind(
    connection: Connection, clock: Clock, kind: str
) -> None:
    note_sequence(connection, 1, 2, 5)
    clock("1 day 1 minute" if kind == "old" else "23 hours")
    remove(connection)
    assert count(connection, "producer_state") == int(kind == "young")


def test_more_than_one_call_may_remove_of_what_retention_left_goes_in_several(connection: Connection, clock: Clock) -> None:
    Writer(connection)
    connection.execute(
        "insert into msgtx.producer_state (partition_id, producer_id, producer_epoch, last_sequence, last_offset,"
        " appended_at) select 1, p, 0, 5, 5, msgtx.clock() from generate_series(1, 10001) p"
    )
    clock(LATER)
    assert remove(connection) == 1
    assert count(connection, "producer_state") == 0


def test_what_retention_left_of_others_on_the_same_partition_stays(connection: Connection) -> None:
    """I1: they may still send again what is gone."""
    for producer_id, age in ((1, "0"), (2, "2 days"), (3, "0")):
        note_sequence(connection, 1, producer_id, 5, age=age)
    remove(connection)
    left = connection.execute("select producer_id from msgtx.producer_state order by producer_id").fetchall()
    assert left == [(1,), (3,)]


# ── afterwards ──


@pytest.fixture
def removed(connection: Connection, clock: Clock) -> tuple[Writer, int]:
    """A producer whose id was removed behind its back, and its partition."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send_and_commit(partition, b"a")
    mark(connection, everything=True)
    clock(LATER)
    assert remove(connection) == 1
    return writer, partition


def initialized(writer: Writer, _: int) -> errors.MsgtxError | None:
    with pytest.raises(errors.MsgtxError) as refused:
        init_producer_id(writer.connection, writer.transactional_id, timeout_ms=1_000, expected=writer.id)
    return refused.value


LATE: dict[str, Callable[[Writer, int], errors.MsgtxError | None]] = {
    "append": lambda writer, partition: append_one(writer.connection, writer.row(partition, b"late")).error,
    "whole": lambda writer, partition: writer.whole(writer.row(partition, b"late"))[0].error,
    "commit": lambda writer, partition: writer.decide("COMMIT", tails={partition: 1}).error,
    "abort": lambda writer, _: writer.decide("ABORT").error,
    "offsets only": lambda writer, at: writer.decide("COMMIT", tails={}, offsets=offsets_of(("group", at, 1))).error,
    "init with expected": initialized,
}


@pytest.mark.parametrize("call", LATE)
def test_the_old_producers_next_use_is_refused(connection: Connection, removed: tuple[Writer, int], call: str) -> None:
    writer, partition = removed
    before = counts(connection)
    refused = LATE[call](writer, partition)
    assert isinstance(refused, errors.InvalidProducerIdMapping), refused
    assert refused.fatal
    assert counts(connection) == before


def test_a_new_producer_starts_afresh(connection: Connection, removed: tuple[Writer, int]) -> None:
    old, partition = removed
    new = Writer(connection, old.transactional_id)
    assert new.id.epoch == 0
    assert new.id.producer_id != old.id.producer_id
    new.send_and_commit(partition, b"b")
    assert values(connection, partition) == [b"a", b"b"]
    # The old one's expectation is of another producer now.
    with pytest.raises(errors.ProducerFenced):
        init_producer_id(connection, old.transactional_id, timeout_ms=1_000, expected=old.id)
    assert isinstance(append_one(connection, old.row(partition, b"late")).error, errors.InvalidProducerIdMapping)


def test_the_outcomes_of_its_transactions_are_known_until_history_goes(
    connection: Connection, removed: tuple[Writer, int]
) -> None:
    writer, partition = removed
    name = writer.name._replace(transaction_number=0)
    assert transaction_outcome(connection, name).outcome is Outcome.COMMITTED
    assert writer.decide("COMMIT", name=name, tails={partition: 0}).outcome == "COMMIT"
    assert sweeps.purge_transactions(connection, None, None).done == {"transactions_purged": 1}
    assert transaction_outcome(connection, name).outcome is Outcome.UNKNOWN
    assert isinstance(writer.decide("COMMIT", name=name, tails={partition: 0}).error, errors.InvalidProducerIdMapping)
    assert values(connection, partition) == [b"a"]


def test_fencing_an_id_that_was_removed_finds_nothing(connection: Connection, removed: tuple[Writer, int]) -> None:
    with pytest.raises(errors.TransactionalIdNotFound):
        fence_producer(connection, removed[0].transactional_id)


# ── the sweep ──


def test_one_bad_id_does_not_stop_the_rest(connection: Connection, clock: Clock) -> None:
    """P12."""
    writers = [Writer(connection) for _ in range(5)]
    clock(LATER)
    with spoiled(connection, "producer", "delete", f"old.producer_id = {writers[2].id.producer_id}"):
        assert remove(connection) == 4
    assert remove(connection) == 1


def test_one_bad_row_of_retentions_leavings_stops_neither_the_others_nor_the_ids(
    connection: Connection, clock: Clock
) -> None:
    """P12."""
    Writer(connection)
    for partition in range(1, 6):
        note_sequence(connection, partition, 2, 5)
    clock(LATER)
    with spoiled(connection, "producer_state", "delete", "old.partition_id = 3"):
        assert remove(connection) == 1
    assert count(connection, "producer_state") == 1


def test_a_producer_that_is_in_use_right_now_is_passed_by(connection: Connection, session: Connection, clock: Clock) -> None:
    held = Writer(connection)
    Writer(connection)
    clock(LATER)
    with session.transaction():
        session.execute("select msgtx.lock_producer_shared(%s)", [held.id.producer_id])
        assert remove(connection) == 1
    assert remove(connection) == 1


def test_a_pass_goes_on_where_it_came_to(connection: Connection, clock: Clock) -> None:
    for _ in range(7):
        Writer(connection)
    clock(LATER)
    assert swept_by(connection, "remove_idle_producers", 3) == [3, 3, 1]


def step(connection: Connection, after: object = None, most: int = 250) -> tuple[int, list[int] | None]:
    """Run one call of the sweep."""
    (row,) = query(connection, "select * from msgtx.remove_idle_producers(%s::bigint[], %s::int)", after, most)
    return row[0], row[1]


def test_a_pass_goes_on_behind_ids_that_stay(connection: Connection) -> None:
    ids = [Writer(connection).id.producer_id for _ in range(3)]
    after, seen = None, []
    for _ in ids:
        removed, after = step(connection, after, most=1)
        seen.append((removed, after))
    assert seen == [(0, [each]) for each in ids]
    assert step(connection, after, most=1) == (0, None)


def test_an_id_and_its_few_partitions_take_no_more_than_one_call(connection: Connection, clock: Clock) -> None:
    who = plain_id(connection)
    for partition in new_topic(connection, 2):
        use(connection, who, partition)
    clock("2 days")
    assert step(connection) == (1, None)


def test_ids_of_many_transactions_take_more_than_one_call(connection: Connection, clock: Clock) -> None:
    """And one with more than a thousand in the history stays until that has gone."""
    ids = [Writer(connection).id.producer_id for _ in range(7)]
    for producer_id in ids:
        connection.execute(
            "insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,"
            " decided_by, partitions, first_offsets, last_offsets) select %s, 0, n, 'COMMIT', msgtx.clock(), 'client',"
            " '{}', '{}', '{}' from generate_series(1, %s) n",
            [producer_id, 1_001 if producer_id == ids[0] else 1_000],
        )
    clock(LATER)
    assert step(connection) == (4, [ids[5] - 1])
    assert step(connection, [ids[5] - 1]) == (2, None)
    assert [known(connection, each) for each in ids] == [True] + [False] * 6
    connection.execute("delete from msgtx.transaction_decision where transaction_number = 1")
    assert step(connection) == (1, None)


def test_ids_on_many_partitions_take_more_than_one_call(connection: Connection, clock: Clock) -> None:
    """Each is looked for on all of them, and again behind its lock."""
    new_topic(connection, 2_600)
    ids = [plain_id(connection).producer_id for _ in range(3)]
    clock("2 days")
    assert step(connection) == (1, [ids[1] - 1])
    assert step(connection, [ids[1] - 1]) == (1, [ids[2] - 1])
    assert step(connection, [ids[2] - 1]) == (1, None)


def test_an_id_on_so_many_partitions_that_they_take_more_than_one_call_stays_when_it_is_used_meanwhile(
    connection: Connection, clock: Clock
) -> None:
    """I13: also on one that an earlier call has looked at."""
    partitions, who = new_topic(connection, 5_001), plain_id(connection)
    clock("2 days")
    removed, after = step(connection)
    assert (removed, after) == (0, [who.producer_id, partitions[-2]])
    use(connection, who, partitions[0])
    assert step(connection, after) == (0, None)
    use(connection, who, partitions[0], sequence=1)


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_an_id_that_is_used_while_it_is_looked_at_stays(
    connection: Connection, partition: int, blocked: Blocked, clock: Clock, kind: str
) -> None:
    """I13: what it does between the first look and the lock counts."""
    writer, plain = Writer(connection), plain_id(connection)
    writer.send_and_commit(partition, b"a")
    mark(connection, everything=True)
    connection.execute(
        "delete from msgtx.producer where producer_id = %s",
        [writer.id.producer_id if kind == "plain" else plain.producer_id],
    )
    clock(LATER)
    with connection.transaction():
        connection.execute(f"lock table msgtx.{'partition_floor' if kind == 'transactional' else 'producer_state'}")
        waiting = blocked(remove)
        if kind == "transactional":
            writer.send(partition, b"b")
        else:
            use(connection, plain, partition)
    assert waiting.result(30) == 0
