"""All that is stored of one transaction: its state, its partitions, offsets and acknowledgements (decision 0160)."""

import time

import pytest

from msgtx.database.calls import query
from msgtx.store.append.append import append
from msgtx.store.spark import BatchName, begin_attempt
from msgtx.store.topics.retention import delete_records
from msgtx.store.transactions.producers import fence_producer
from msgtx.store.transactions.showing import (
    Shown,
    show_acknowledgements,
    show_offsets,
    show_partitions,
    show_transaction,
)
from msgtx.store.transactions.transactions import end_transaction, mark
from msgtx.types import TransactionId
from tests.databases import Clock, Connection
from tests.store.batches import write
from tests.store.sharing import ShareGroup, four_records
from tests.store.steps import (
    Writer,
    delete_topic_of,
    expire_transactions,
    forget,
    new_partition,
    new_topic,
    offsets_of,
    plain,
    seal,
    topic_of,
    unique,
)


def shown(connection: Connection, name: TransactionId) -> Shown:
    found = show_transaction(connection, name)
    assert found is not None
    return found


def places(connection: Connection, name: TransactionId) -> list[tuple[object, ...]]:
    """Return of each partition: offsets, batches, records, whether they are estimated, what is removed."""
    return [
        (row.first_offset, row.last_offset, row.batches, row.records, row.is_estimate, row.removed)
        for row in show_partitions(connection, name, skip=0, most=100)
    ]


def stored_bytes(connection: Connection, name: TransactionId) -> int:
    ((found,),) = query(
        connection,
        "select sum(byte_size) from msgtx.record_batch"
        " where (producer_id, producer_epoch, transaction_number) = (%s, %s, %s)",
        *name,
    )
    return int(found)


def offsets(connection: Connection, name: TransactionId) -> list[tuple[str, int, int]]:
    found, rest = show_offsets(connection, name, None, most=10_000)
    assert rest is None
    return [(row.group_name, row.partition_index, row.committed_offset) for row in found]


def test_each_state_is_named_as_the_view_names_it(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    seen = []
    for outcome in ("COMMIT", "ABORT"):
        writer.send(partition, b"a")
        name = writer.name
        seen.append((shown(connection, name).state, writer.state))
        writer.end(outcome)  # type: ignore[arg-type]
        seen.append((shown(connection, name).state, writer.state))
        mark(connection, everything=True)
        seen.append((shown(connection, name).state, writer.state))
    writer.send(partition, b"a")
    seal(connection, writer.name, "external")
    seen.append((shown(connection, writer.name).state, writer.state))
    assert [one for one, _ in seen] == [other for _, other in seen]
    assert [one for one, _ in seen] == [
        "Ongoing", "PrepareCommit", "CompleteCommit", "Ongoing", "PrepareAbort", "CompleteAbort", "Prepared",
    ]  # fmt: skip
    fence_producer(connection, writer.transactional_id)


def test_an_older_transaction_of_a_producer_is_shown_with_what_is_its_own(connection: Connection, clock: Clock) -> None:
    partition, writer, other = new_partition(connection), Writer(connection), Writer(connection)
    first = writer.send_and_commit(partition, b"a", b"b")
    writer.send(partition, b"c")
    other.send_and_commit(partition, b"between")
    clock("1 minute")
    writer.send(partition, b"d", b"e")
    second = writer.abort()
    writer.send_and_commit(partition, b"f")
    assert places(connection, first) == [(0, 1, 1, 2, False, None)]
    assert places(connection, second) == [(2, 5, 2, 3, False, None)]
    (row,) = show_partitions(connection, second, skip=0, most=1)
    assert (row.last_appended_at - row.first_appended_at).total_seconds() > 50
    assert row.bytes == stored_bytes(connection, second)
    assert (row.topic, row.partition_index) == (topic_of(connection, partition), 0)
    assert shown(connection, second).decided_by == "client"
    assert shown(connection, second).database_backend == connection.info.backend_pid


def test_a_transaction_of_one_call_was_never_open(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    name = writer.name
    writer.commit_whole(writer.row(partition, b"a"))
    found = shown(connection, name)
    assert (found.opened_at, found.outcome, found.partitions) == (None, "COMMIT", 1)
    assert places(connection, name) == [(0, 0, 1, 1, False, None)]


def test_who_decided_is_told(connection: Connection, clock: Clock) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    names = {}
    for by in ("client", "admin", "fence", "timeout"):
        writer.send(partition, b"x")
        names[by] = writer.name
        match by:
            case "client":
                writer.abort()
            case "admin":
                end_transaction(connection, writer.name, "admin")
                writer.next()
                writer.init()
            case "fence":
                writer.init()
            case _:
                clock("1 day")
                expire_transactions(connection)
                clock(None)
    assert {by: shown(connection, name).decided_by for by, name in names.items()} == {by: by for by in names}


def test_nothing_is_shown_of_a_name_without_rows(connection: Connection, writer: Writer) -> None:
    name = writer.send_and_commit(new_partition(connection), b"a")
    for unknown in (name._replace(transaction_number=9), name._replace(producer_epoch=9), name._replace(producer_id=2**62)):
        assert show_transaction(connection, unknown) is None
        assert list(show_partitions(connection, unknown, skip=0, most=10)) == []
        assert offsets(connection, unknown) == []
    forget(connection, name)
    assert show_transaction(connection, name) is None


def test_what_is_removed_is_told_and_is_not_zero(connection: Connection) -> None:
    deleted, front, behind = (new_partition(connection) for _ in range(3))
    writer = Writer(connection)
    for partition in (deleted, front, behind):
        writer.send(partition, b"a", b"b")
        writer.send(partition, b"c")
    name = writer.commit()
    plain(connection, behind, b"later")
    delete_topic_of(connection, deleted)
    delete_records(connection, {front: 2, behind: 4})
    connection.execute("delete from msgtx.record_batch where partition_id = %s and base_offset < 2", [front])
    connection.execute("delete from msgtx.record_batch where partition_id = %s and base_offset < 3", [behind])
    assert places(connection, name) == [
        (0, 2, None, None, False, "topic"),
        (0, 2, 1, 1, False, "retention"),
        (0, 2, None, None, False, "retention"),
    ]


def test_what_compaction_removed_is_told(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a", b"b", b"c")
    writer.send(partition, b"d")
    name = writer.commit()
    connection.execute(
        "update msgtx.record_batch set \"values\" = array['a'::bytea], offset_deltas = array[0], record_count = 1"
        " where partition_id = %s and base_offset = 0",
        [partition],
    )
    assert places(connection, name) == [(0, 3, 2, 2, False, "compaction")]


def test_what_is_counted_is_bounded_and_the_rest_is_estimated(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send_and_commit(partition, b"before")
    writer.send(partition, b"first")
    size = 30_000
    connection.execute(
        "insert into msgtx.record_batch (partition_id, base_offset, last_offset, producer_id, producer_epoch,"
        ' transaction_number, base_sequence, last_sequence, appended_at, max_timestamp, record_count, byte_size, "values")'
        " select %s, 1 + n, 1 + n, %s, %s, %s, 1 + n, 1 + n, msgtx.clock(), 1, 1, 10, array['x'::bytea]"
        " from generate_series(1, %s) n",
        [partition, *writer.name, size],
    )
    began = time.perf_counter()
    (row,) = show_partitions(connection, writer.name, skip=0, most=1)
    assert time.perf_counter() - began < 5
    assert (row.first_offset, row.last_offset, row.records, row.is_estimate) == (1, size + 1, size + 1, True)
    assert row.batches == pytest.approx(size, rel=0.01)
    assert row.bytes == pytest.approx(10 * size, rel=0.01)
    writer.tails[partition] = size + 1
    name = writer.commit()
    assert places(connection, name)[0][3:5] == (size + 1, True)


def test_partitions_come_in_pages(connection: Connection) -> None:
    partitions, writer = new_topic(connection, 2_000), Writer(connection)
    rows = [writer.row(partition, b"wide") for partition in partitions]
    for at in range(0, len(rows), 250):
        append(connection, rows[at : at + 250], flushed=False)
    for row in rows:
        writer.counted(row)
    for name in (writer.name, writer.commit()):
        assert shown(connection, name).partitions == 2_000
        pages = [show_partitions(connection, name, skip=skip, most=800) for skip in (0, 800, 1_600, 2_400)]
        assert [len(page) for page in pages] == [800, 800, 400, 0]
        assert [row.partition_index for page in pages for row in page] == list(range(2_000))
        assert {row.records for page in pages for row in page} == {1}


def test_the_mark_of_each_partition_is_told(connection: Connection) -> None:
    settled, held, writer, stuck = *new_topic(connection, 2), Writer(connection), Writer(connection)
    stuck.send(held, b"open")
    writer.send(settled, b"a")
    name = writer.send_and_commit(held, b"b")
    assert [row.marked for row in show_partitions(connection, name, skip=0, most=9)] == [None, None]
    mark(connection)
    connection.execute("delete from msgtx.transaction_marker where partition_id = %s", [settled])
    rows = show_partitions(connection, name, skip=0, most=9)
    assert [(row.marked, row.coordinator_epoch) for row in rows] == [("floor", None), ("marker", 0)]
    stuck.abort()


# ── offsets, acknowledgements, Spark ──


def test_the_offsets_of_a_transaction_are_found_until_newer_ones_replace_them(connection: Connection, group: str) -> None:
    partitions, writer = new_topic(connection, 3), Writer(connection)
    writer.send(partitions[0], b"a")
    name = writer.commit(offsets_of((group, partitions[1], 7), (group, partitions[2], 8)))
    alone = writer.commit(offsets_of((group, partitions[1], 9)))
    assert offsets(connection, name) == [(group, 1, 7), (group, 2, 8)]
    assert offsets(connection, alone) == [(group, 1, 9)]
    assert shown(connection, alone).partitions == 0
    connection.execute("delete from msgtx.group_offset o where committed_offset = 7 and partition_id = %s", [partitions[1]])
    assert offsets(connection, name) == [(group, 2, 8)]


def test_the_search_for_offsets_goes_on_where_it_came_to(connection: Connection, group: str) -> None:
    partitions, writer = new_topic(connection, 5), Writer(connection)
    name = writer.commit(offsets_of(*((group, partition, 1) for partition in partitions)))
    found: list[int] = []
    after = None
    while True:
        rows, after = show_offsets(connection, name, after, most=2)
        found += [row.partition_index for row in rows]
        if after is None:
            break
    assert found == [0, 1, 2, 3, 4]


def test_offsets_that_wait_for_the_decision_are_told_by_the_seal(connection: Connection, group: str) -> None:
    from msgtx.store.transactions.seal import seal as seal_it

    partitions, writer = new_topic(connection, 2), Writer(connection)
    writer.send(partitions[0], b"a")
    answer = seal_it(connection, writer.name, "external", tails=writer.tails, offsets=offsets_of((group, partitions[1], 5)))
    assert answer.error is None
    assert offsets(connection, writer.name) == [(group, 1, 5)]
    assert shown(connection, writer.name).seal_kind == "external"
    fence_producer(connection, writer.transactional_id)


def test_acknowledgements_that_wait_for_the_decision_are_told(connection: Connection) -> None:
    partition, writer = four_records(connection), Writer(connection)
    group = ShareGroup(connection, partition)
    group.acquire("a")
    group.answer_in(writer.name, "a", {1: "accept", 2: "accept"})
    rows = [(row.group_name, row.first_offset, row.last_offset, row.answer) for row in
            show_acknowledgements(connection, writer.name)]  # fmt: skip
    assert rows == [(group.name, 1, 1, "accept"), (group.name, 2, 2, "accept")]
    writer.abort()


def test_a_transaction_of_spark_names_its_batch(connection: Connection) -> None:
    partition, of = new_partition(connection), BatchName(unique("app"), "query", 7)
    producer = begin_attempt(connection, of, timeout_ms=60_000)
    assert producer is not None
    write(connection, producer, partition, b"a")
    found = shown(connection, TransactionId(producer, 0, 0))
    assert (found.app_id, found.query_id, found.batch_id) == of
    end_transaction(connection, TransactionId(producer, 0, 0), "admin")
