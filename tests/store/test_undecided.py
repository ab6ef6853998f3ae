"""What an operator asks about producers and undecided transactions (internals: transactions, coordinator)."""

import pytest

from msgtx.store.transactions.producers import describe_producers, fence_producer, init_producer_id
from msgtx.store.transactions.transactions import end_transaction, mark, transaction_outcome
from msgtx.store.transactions.undecided import Undecided, undecided_seals, undecided_transactions, unfinished_decisions
from msgtx.types import Outcome, ProducerId, TransactionId
from tests.databases import Clock, Connection
from tests.store.steps import (
    Writer,
    append_one,
    batch,
    delete_topic_of,
    ends,
    new_partition,
    new_topic,
    note_sequence,
    plain,
    seal,
    values,
)


def undecided(connection: Connection, *partitions: int, each: int = 1, most: int = 100) -> list[Undecided]:
    return undecided_transactions(connection, partitions, each_partition=each, most=most)[0]


def overdue(connection: Connection, *partitions: int, limit_ms: int | None = None) -> list[TransactionId]:
    found, _ = undecided_transactions(
        connection, partitions, each_partition=100, most=100, overdue_only=True, limit_ms=limit_ms
    )
    return [one.transaction_id for one in found]


def test_what_is_decided_ends_in_front_of_the_first_open_transaction_of_the_same_partition(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    writer = Writer(connection)
    writer.send(first, b"open")
    for partition in (first, second, second):
        plain(connection, partition, b"plain")
    found = connection.execute("select msgtx.decided_end(%s), msgtx.decided_end(%s)", [first, second]).fetchone()
    assert found == (0, 2)


def test_what_is_decided_ends_by_the_partitions_own_floor(connection: Connection, writer: Writer) -> None:
    """Not by another one's, which may be higher (P29)."""
    first, second = new_topic(connection, 2)
    for _ in range(3):
        writer.send_and_commit(first, b"done")
    mark(connection)
    writer.send(second, b"open")
    plain(connection, second, b"plain")
    found = connection.execute("select msgtx.decided_end(%s), msgtx.decided_end(%s)", [first, second]).fetchone()
    assert found == (3, 0)


def test_what_is_decided_ends_in_front_of_a_number_that_an_earlier_epoch_has_decided(connection: Connection) -> None:
    """The numbers of an epoch begin anew: by producer and number alone, it would be taken for decided."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send_and_commit(partition, b"done")
    writer.init()
    writer.send(partition, b"open")
    assert connection.execute("select msgtx.decided_end(%s)", [partition]).fetchone() == (1,)


# ── producers ──


def test_a_partition_tells_its_producers_with_their_newest_epoch_and_sequence(connection: Connection) -> None:
    partition, other = new_topic(connection, 2)
    idle = init_producer_id(connection, None, timeout_ms=60_000)
    for sequence in range(3):
        assert append_one(connection, batch(partition, b"x", b"y", producer=idle, sequence=2 * sequence)).error is None
    writer = Writer(connection)
    writer.send_and_commit(partition, b"old")
    writer.init()
    writer.send(other, b"elsewhere")
    start = writer.send(partition, b"a", b"b")
    writer.send(partition, b"c")
    plain(connection, partition, b"nobody")
    first, second = describe_producers(connection, partition)
    assert (first.producer_id, first.epoch, first.last_sequence) == (idle.producer_id, 0, 5)
    assert (first.coordinator_epoch, first.transaction_start_offset) == (-1, None)
    assert (second.producer_id, second.epoch, second.last_sequence) == (writer.id.producer_id, 1, 2)
    assert second.transaction_start_offset == start
    assert second.last_timestamp >= first.last_timestamp > 1_600_000_000_000
    writer.commit()
    mark(connection, everything=True)
    assert [state.transaction_start_offset for state in describe_producers(connection, partition)] == [None, None]
    assert describe_producers(connection, partition)[1].coordinator_epoch == 0
    assert describe_producers(connection, new_partition(connection)) == []


def test_what_retention_kept_of_a_producer_is_told_and_newer_rows_count_more(connection: Connection, partition: int) -> None:
    for producer_id, epoch in ((7, 3), (2**40, 0)):
        note_sequence(connection, partition, producer_id, 41, epoch=epoch, offset=99)
    newer = ProducerId(init_producer_id(connection, None, timeout_ms=60_000).producer_id, 0)
    append_one(connection, batch(partition, b"x", producer=newer, sequence=0))
    note_sequence(connection, partition, newer.producer_id, -1)
    found = {state.producer_id: (state.epoch, state.last_sequence) for state in describe_producers(connection, partition)}
    assert found == {7: (3, 41), newer.producer_id: (0, 0), 2**40: (0, 41)}


def test_more_producers_than_one_answer_holds_are_all_told(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msgtx.store.transactions.producers.DESCRIBED_AT_ONCE", 3)
    partition = new_partition(connection)
    ids = [init_producer_id(connection, None, timeout_ms=60_000) for _ in range(7)]
    for name in ids:
        append_one(connection, batch(partition, b"x", producer=name, sequence=0))
    assert [state.producer_id for state in describe_producers(connection, partition)] == [name.producer_id for name in ids]


# ── undecided transactions ──


def test_an_undecided_transaction_is_told_with_who_opened_it(connection: Connection) -> None:
    partition, writer, behind = new_partition(connection), Writer(connection), Writer(connection)
    plain(connection, partition, b"before")
    writer.send(partition, b"a", timeout_ms=5_000)
    behind.send(partition, b"b")
    (found,) = undecided(connection, partition)
    assert (found.transaction_id, found.transactional_id) == (writer.name, writer.transactional_id)
    assert (found.first_offset, found.log_end_offset, found.timeout_ms) == (1, 3, 5_000)
    assert found.database_backend == connection.info.backend_pid
    assert (found.current_epoch, found.coordinator_epoch, found.seal_kind) == (0, -1, None)
    assert [one.transaction_id for one in undecided(connection, partition, each=10)] == [writer.name, behind.name]
    seal(connection, writer.name, "session")
    assert undecided(connection, partition)[0].seal_kind == "session"
    assert end_transaction(connection, writer.name, "admin") is Outcome.ABORTED
    assert [one.transaction_id for one in undecided(connection, partition, each=10)] == [behind.name]
    behind.abort()
    assert undecided(connection, partition) == []


def test_the_answer_is_bounded_and_tells_how_many_there_are(connection: Connection, writer: Writer) -> None:
    partitions = new_topic(connection, 5)
    for partition in partitions:
        writer.send(partition, b"x")
    found, total = undecided_transactions(connection, partitions, each_partition=1, most=2)
    assert ([one.partition.partition for one in found], total) == ([0, 1], 5)
    writer.abort()


def test_overdue_is_what_passed_its_own_timeout_or_the_given_one(connection: Connection, clock: Clock) -> None:
    partition = new_partition(connection)
    short, long = Writer(connection, timeout_ms=10_000), Writer(connection, timeout_ms=600_000)
    short.send(partition, b"a")
    long.send(partition, b"b")
    assert overdue(connection, partition) == []
    assert overdue(connection, partition, limit_ms=600_000) == []
    clock("1 minute")
    assert overdue(connection, partition) == [short.name]
    assert overdue(connection, partition, limit_ms=30_000) == [short.name, long.name]
    assert overdue(connection, partition, limit_ms=120_000) == []


@pytest.mark.parametrize("table", ["transaction", "producer"])
def test_what_lost_its_row_is_found_at_once_and_can_be_aborted(connection: Connection, table: str) -> None:
    """A transaction that no sweep finds would hold its partition back forever (I8)."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"lost")
    plain(connection, partition, b"waits")
    assert overdue(connection, partition) == []
    connection.execute(f"delete from msgtx.{table} where producer_id = %s", [writer.id.producer_id])
    assert overdue(connection, partition) == [writer.name]
    assert end_transaction(connection, writer.name, "admin") is Outcome.ABORTED
    assert overdue(connection, partition) == []
    assert values(connection, partition) == [b"waits"]
    mark(connection, everything=True)
    assert ends(connection, partition) == (0, 2, 2)
    assert values(connection, partition) == [b"waits"]


def test_an_administrator_leaves_what_waits_for_an_outside_decision(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"prepared")
    seal(connection, writer.name, "external")
    assert end_transaction(connection, writer.name, "admin") is Outcome.OPEN
    fence_producer(connection, writer.transactional_id)
    assert transaction_outcome(connection, writer.name).outcome is Outcome.ABORTED


def test_prepared_transactions_are_told_also_without_partitions(connection: Connection) -> None:
    writer, decided = Writer(connection), Writer(connection)
    seal(connection, writer.name, "external")
    decided.send(new_partition(connection), b"x")
    seal(connection, decided.name, "session")
    assert end_transaction(connection, decided.name, "admin") is Outcome.ABORTED
    found, total = undecided_seals(connection, most=10)
    mine = [one for one in found if one.transaction_id.producer_id in {writer.id.producer_id, decided.id.producer_id}]
    assert [(one.transaction_id, one.kind, one.partitions) for one in mine] == [(writer.name, "external", 0)]
    assert total == len(found)


# ── phase two ──


def test_a_decision_without_markers_is_unfinished_after_a_while(connection: Connection, clock: Clock) -> None:
    first, second = new_topic(connection, 2)
    mark(connection, everything=True)
    writer = Writer(connection)
    writer.send(first, b"a")
    name = writer.send_and_commit(second, b"b")
    whole = Writer(connection)
    whole.commit_whole(whole.row(first, b"c"))
    assert unfinished_decisions(connection, older_than_ms=5_000, most=10) == ([], 0)
    clock("1 minute")
    found, total = unfinished_decisions(connection, older_than_ms=5_000, most=1)
    assert [(one.transaction_id, one.outcome, one.missing) for one in found] == [(name, "COMMIT", 2)]
    assert total == 2
    mark(connection)
    assert unfinished_decisions(connection, older_than_ms=5_000, most=10) == ([], 0)


def test_what_misses_no_marker_is_not_unfinished(connection: Connection, clock: Clock) -> None:
    """Below the floor a COMMIT needs none; above it, it has its own; of a deleted topic nobody asks."""
    below, held, gone = (new_partition(connection) for _ in range(3))
    settled, stalled, lost = (Writer(connection) for _ in range(3))
    committed = settled.send_and_commit(below, b"below")
    stalled.send(held, b"open")
    settled.send_and_commit(held, b"behind it")
    mark(connection)
    lost.send_and_commit(gone, b"gone")
    delete_topic_of(connection, gone)
    connection.execute("delete from msgtx.transaction_marker where producer_id = %s and partition_id = %s",
                       [committed.producer_id, below])  # fmt: skip
    clock("1 minute")
    assert unfinished_decisions(connection, older_than_ms=5_000, most=10) == ([], 0)
    clock(None)
    stalled.abort()


def test_of_decisions_with_many_partitions_the_newest_are_looked_at(connection: Connection, clock: Clock) -> None:
    """The sum is bounded: each request for metrics asks for it."""
    partition, size = new_partition(connection), 60_000
    names = []
    for _ in range(3):
        writer = Writer(connection)
        writer.send(partition, b"a")
        names.append(writer.commit())
        connection.execute(
            "update msgtx.transaction_decision set partitions = array_fill(%s, array[%s]), first_offsets ="
            " array_fill(0::bigint, array[%s]), last_offsets = array_fill(last_offsets[1], array[%s])"
            " where producer_id = %s",
            [partition, size, size, size, writer.name.producer_id],
        )
    clock("1 minute")
    found, total = unfinished_decisions(connection, older_than_ms=5_000, most=10)
    mine = [one for one in found if one.missing == size]
    assert [one.transaction_id for one in mine] == names[1:]
    assert total == len(found)
    connection.execute(
        "update msgtx.transaction_decision set partitions = partitions[:1], first_offsets = first_offsets[:1],"
        " last_offsets = last_offsets[:1] where producer_id = any(%s)",
        [[name.producer_id for name in names]],
    )


def test_each_undecided_transaction_is_told_with_what_is_its_own(connection: Connection, clock: Clock) -> None:
    """Its partition's end, and its producer's newest row and marker there."""
    partitions = new_topic(connection, 2)
    marked, other = Writer(connection), Writer(connection)
    marked.send_and_commit(partitions[0], b"done")
    connection.execute(
        "update msgtx.coordinator_shard set coordinator_epoch = 7 where shard ="
        " (select shard from msgtx.producer where producer_id = %s)",
        [marked.id.producer_id],
    )
    mark(connection)
    times = {}
    for number, (writer, partition) in enumerate(
        [(marked, partitions[0]), (other, partitions[1]), (marked, partitions[1]), (other, partitions[0])], 1
    ):
        clock(f"{number} seconds")
        writer.send(partition, b"open")
        times[partition, writer.id.producer_id] = connection.execute("select msgtx.clock()").fetchone()
    for _ in range(2):
        plain(connection, partitions[1], b"plain")
    ids = dict(enumerate(partitions))
    found = undecided(connection, *partitions, each=2)
    assert len(found) == 4
    for one in found:
        partition = ids[one.partition.partition]
        assert one.log_end_offset == {partitions[0]: 3, partitions[1]: 4}[partition]
        assert one.last_appended_at is not None
        last = times[partition, one.transaction_id.producer_id]
        assert last is not None
        assert abs((one.last_appended_at - last[0]).total_seconds()) < 0.5
        is_marked = one.transaction_id.producer_id == marked.id.producer_id and partition == partitions[0]
        assert one.coordinator_epoch == (7 if is_marked else -1)
    connection.execute("update msgtx.coordinator_shard set coordinator_epoch = 0")


@pytest.mark.usefixtures("bare")
def test_each_prepared_transaction_is_told_with_its_own_producer(connection: Connection) -> None:
    writers = [Writer(connection, timeout_ms=timeout_ms) for timeout_ms in (30_000, 40_000, 50_000)]
    for writer in writers:
        writer.send(new_partition(connection), b"x", timeout_ms=writer.timeout_ms)
        seal(connection, writer.name, "external")
    found, total = undecided_seals(connection, most=10)
    assert total == 3
    assert {one.transaction_id: (one.transactional_id, one.timeout_ms) for one in found} == {
        writer.name: (writer.transactional_id, writer.timeout_ms) for writer in writers
    }
