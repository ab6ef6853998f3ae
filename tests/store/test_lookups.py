"""Looking without reading: offsets by time, counts, views (internals: visibility)."""

from typing import Any

import pytest

from msgtx.store.fetch.fetch import EARLIEST, LATEST, ListedOffset, list_offsets
from msgtx.store.fetch.records import count_records
from msgtx.store.transactions.transactions import mark
from tests.databases import Background, Connection, Sessions, backend, wait_for_lock
from tests.store.steps import COMMITTED, UNCOMMITTED, Writer, append_one, batch, new_partition, new_topic, plain, seal


def listed(connection: Connection, partition: int, time: int, isolation: Any = COMMITTED) -> ListedOffset:
    return list_offsets(connection, {partition: time}, isolation)[partition]


def found(connection: Connection, partition: int, time: int, isolation: Any = COMMITTED) -> tuple[int | None, int | None]:
    at = listed(connection, partition, time, isolation)
    return at.offset, at.timestamp


def counted(connection: Connection, partition: int, position: int, isolation: Any = COMMITTED) -> int:
    return count_records(connection, {partition: position}, isolation)[partition]


# ── offsets by time ──


def test_the_first_record_at_or_after_a_time_is_found_inside_its_batch(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a", b"b", b"c", timestamps=[10, 30, 20])
    plain(connection, partition, b"d", b"e", timestamp=40)
    assert [found(connection, partition, time) for time in (0, 10, 11, 30, 31, 40, 41)] == [
        (0, 10),
        (0, 10),
        (1, 30),
        (1, 30),
        (3, 40),
        (3, 40),
        (None, None),
    ]


def test_earliest_and_latest_respect_isolation(connection: Connection, partition: int, writer: Writer) -> None:
    plain(connection, partition, b"a", b"b")
    writer.send(partition, b"open")
    connection.execute("update msgtx.partition set log_start_offset = 1 where partition_id = %s", [partition])
    ends = (1, 2, 3)
    assert listed(connection, partition, EARLIEST) == ListedOffset(*ends, 1, None)
    assert listed(connection, partition, LATEST) == ListedOffset(*ends, 2, None)
    assert listed(connection, partition, LATEST, UNCOMMITTED) == ListedOffset(*ends, 3, None)


@pytest.mark.parametrize("marked", [False, True])
def test_a_time_looks_past_aborted_records_and_not_past_the_last_stable_offset(connection: Connection, marked: bool) -> None:
    partition, writer, other = new_partition(connection), Writer(connection), Writer(connection)
    writer.send_and_abort(partition, b"aborted", timestamp=50)
    writer.send_and_commit(partition, b"a", timestamp=60)
    if marked:
        mark(connection, everything=True)
    other.send(partition, b"open", timestamp=70)
    assert found(connection, partition, 50) == (1, 60)
    assert found(connection, partition, 61) == (None, None)
    assert found(connection, partition, 50, UNCOMMITTED) == (0, 50)
    assert found(connection, partition, 61, UNCOMMITTED) == (2, 70)
    other.commit()
    assert found(connection, partition, 61) == (2, 70)


def test_a_time_does_not_look_below_the_log_start(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a", b"b", b"c", timestamps=[10, 20, 30])
    connection.execute("update msgtx.partition set log_start_offset = 1 where partition_id = %s", [partition])
    assert found(connection, partition, 0) == (1, 20)


def test_several_partitions_are_asked_at_once_and_unknown_ones_are_absent(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    plain(connection, first, b"a", timestamp=5)
    answers = list_offsets(connection, {first: 0, second: LATEST, 2**31 - 1: 0}, COMMITTED)
    assert {partition: at.offset for partition, at in answers.items()} == {first: 0, second: 0}


# ── counts ──


def test_a_count_is_what_a_reader_would_still_be_given(connection: Connection) -> None:
    partition, writer, other = new_partition(connection), Writer(connection), Writer(connection)
    plain(connection, partition, b"a", b"b", b"c")
    writer.send_and_abort(partition, b"x", b"y")
    plain(connection, partition, b"d")
    other.send(partition, b"open")
    plain(connection, partition, b"behind")
    assert [counted(connection, partition, position) for position in (0, 1, 3, 4, 5, 6, 8)] == [4, 3, 1, 1, 1, 0, 0]
    assert [counted(connection, partition, position, UNCOMMITTED) for position in (0, 4, 7, 8)] == [8, 4, 1, 0]


def test_a_count_begins_at_the_log_start(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a", b"b", b"c", b"d")
    connection.execute("update msgtx.partition set log_start_offset = 3 where partition_id = %s", [partition])
    assert counted(connection, partition, 0) == 1


def test_records_that_compaction_removed_do_not_count(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a", b"b", b"c", b"d")
    connection.execute(
        "update msgtx.record_batch set \"values\" = array['a'::bytea, 'd'], offset_deltas = array[0, 3],"
        " record_count = 2 where partition_id = %s",
        [partition],
    )
    assert [counted(connection, partition, position) for position in (0, 1, 3, 4)] == [2, 1, 1, 0]


# ── views ──


def test_records_show_every_column_of_every_record(connection: Connection, partition: int, writer: Writer) -> None:
    headers = [[("a", b"1"), ("b", None)], [], [("c", b"")]]
    row = writer.row(partition, b"x", None, b"z", keys=[b"k", None, b""], timestamps=[1, 3, 2], headers=headers)
    append_one(connection, row)
    rows = connection.execute(
        'select "offset", "timestamp", key, value, header_keys, header_values, base_offset, producer_id,'
        " producer_epoch, transaction_number from msgtx.records where partition_id = %s order by 1",
        [partition],
    ).fetchall()
    assert rows == [
        (0, 1, b"k", b"x", ["a", "b"], [b"1", None], 0, *writer.name),
        (1, 3, None, None, None, None, 0, *writer.name),
        (2, 2, b"", b"z", ["c"], [b""], 0, *writer.name),
    ]


def test_records_without_keys_timestamps_or_headers_show_what_is_there(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"x", b"y", timestamp=9)
    rows = connection.execute(
        'select "offset", "timestamp", key, value, header_keys from msgtx.records where partition_id = %s order by 1',
        [partition],
    ).fetchall()
    assert rows == [(0, 9, None, b"x", None), (1, 9, None, b"y", None)]


def test_records_begin_at_the_log_start_also_inside_a_row(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"x", b"y", b"z")
    connection.execute("update msgtx.partition set log_start_offset = 2 where partition_id = %s", [partition])
    for view in ("records", "committed_records", "committed_records_now"):
        rows = connection.execute(f"select value from msgtx.{view} where partition_id = %s", [partition]).fetchall()
        assert rows == [(b"z",)], view


def test_committed_records_now_shows_a_transaction_on_all_partitions_or_on_none(connection: Connection) -> None:
    """I6: also behind open transactions; a log reader still waits there."""
    first, second = new_topic(connection, 2)
    blocker, writer = Writer(connection), Writer(connection)
    blocker.send(first, b"open")
    writer.send(first, b"a")
    writer.send(second, b"b")

    def rows(view: str) -> list[bytes]:
        found = connection.execute(
            f"select value from msgtx.{view} where partition_id in (%s, %s) order by 1", [first, second]
        ).fetchall()
        return [value for (value,) in found]

    assert rows("committed_records_now") == []
    writer.commit()
    assert rows("committed_records_now") == [b"a", b"b"]
    assert rows("committed_records") == [b"b"]


def test_committed_records_are_those_of_the_statement_that_asks(
    connection: Connection, partition: int, writer: Writer, open_connection: Sessions, background: Background
) -> None:
    """I5: with a bound that is newer than the rows, what is behind the open transaction would come before it."""
    writer.send(partition, b"open")
    plain(connection, partition, b"behind")
    holder, reader, observer = open_connection(), open_connection(), open_connection()
    statement = (
        "with held as materialized (select length(pg_advisory_xact_lock(1)::text) * 0 as zero)"
        " select r.value from held cross join lateral ("
        " select c.value from msgtx.committed_records c where c.partition_id = %s + held.zero offset 0) r"
    )
    with holder.transaction():
        holder.execute("select pg_advisory_xact_lock(1)")
        reading = background.submit(lambda: reader.execute(statement, [partition]).fetchall())
        wait_for_lock(observer, backend(reader))
        writer.commit()
    assert reading.result(30) == []
    assert reader.execute(statement, [partition]).fetchall() == [(b"open",), (b"behind",)]


def test_partitions_show_their_ends_and_sizes(connection: Connection, partition: int, writer: Writer) -> None:
    plain(connection, partition, b"x" * 100)
    writer.send(partition, b"open")
    row = connection.execute(
        "select log_start_offset, last_stable_offset, log_end_offset, batches, bytes > 100 from msgtx.partitions"
        " where partition_id = %s",
        [partition],
    ).fetchone()
    assert row == (0, 1, 2, 2, True)


def transaction_row(connection: Connection, writer: Writer, columns: str) -> tuple[Any, ...]:
    row = connection.execute(
        f"select {columns} from msgtx.transactions where producer_id = %s", [writer.id.producer_id]
    ).fetchone()
    assert row is not None
    return tuple(row)


def test_transactions_name_the_open_one_and_where_it_begins(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    plain(connection, second, b"before")
    writer = Writer(connection)
    writer.send(first, b"a", timeout_ms=1_234)
    writer.send(second, b"b")
    columns = (
        "transactional_id, current_epoch, producer_epoch, transaction_number, state, timeout_ms, partitions, first_offsets"
    )
    assert transaction_row(connection, writer, columns) == (
        *(writer.transactional_id, 0, 0, 0, "Ongoing", 1_234),
        *([first, second], [0, 1]),
    )


def test_transactions_show_a_sealed_one_as_prepared(connection: Connection, writer: Writer) -> None:
    writer.send(new_partition(connection), b"a")
    seal(connection, writer.name, "external")
    assert transaction_row(connection, writer, "state") == ("Prepared",)


@pytest.mark.parametrize(("outcome", "before", "after"), [("COMMIT", "PrepareCommit", "CompleteCommit")])
def test_a_fused_transaction_has_its_states_too(connection: Connection, outcome: str, before: str, after: str) -> None:
    writer = Writer(connection)
    writer.commit_whole(writer.row(new_partition(connection), b"a"))
    assert transaction_row(connection, writer, "state, decided_by") == (before, "client")
    mark(connection)
    assert transaction_row(connection, writer, "state") == (after,)


def test_a_transaction_with_a_marker_on_one_of_two_partitions_is_not_complete(connection: Connection) -> None:
    """Readers notice nothing; the marker follows."""
    first, second = new_topic(connection, 2)
    writer = Writer(connection)
    writer.send(first, b"a")
    writer.send_and_commit(second, b"b")
    connection.execute(
        "insert into msgtx.transaction_marker (partition_id, producer_id, producer_epoch, transaction_number, outcome,"
        " first_offset, last_offset) values (%s, %s, %s, 0, 'COMMIT', 0, 0)",
        [first, *writer.id],
    )
    assert transaction_row(connection, writer, "state") == ("PrepareCommit",)
    mark(connection)
    assert transaction_row(connection, writer, "state") == ("CompleteCommit",)


def test_plain_producers_are_no_transactions(connection: Connection, partition: int) -> None:
    before = connection.execute("select count(*) from msgtx.transactions").fetchone()
    append_one(connection, batch(partition, b"a", producer=(2**50, 0), sequence=0))
    assert connection.execute("select count(*) from msgtx.transactions").fetchone() == before
