"""fetch: what a log reader is given, and where it stands afterwards (internals: visibility#fetch)."""

import gc

import pytest

from msgtx.store.fetch.fetch import Position, fetch
from msgtx.store.fetch.records import uncollected
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.transactions import mark
from tests.databases import Clock, Connection
from tests.store.steps import (
    COMMITTED,
    UNCOMMITTED,
    Writer,
    append_one,
    batch,
    delete_topic_of,
    ends,
    look,
    new_partition,
    new_topic,
    plain,
    plain_batches,
    read,
    spent,
    values,
)


def test_an_empty_partition_has_equal_ends_and_nothing_to_read(connection: Connection, partition: int) -> None:
    answer = look(connection, partition)
    assert (answer.log_start_offset, answer.last_stable_offset, answer.log_end_offset) == (0, 0, 0)
    assert (answer.batches, answer.position, answer.token, answer.truncated) == ([], 0, None, False)


def test_a_partition_that_is_gone_is_absent(connection: Connection) -> None:
    kept, gone = new_partition(connection), new_partition(connection)
    delete_topic_of(connection, gone)
    asked = {kept: Position(0), gone: Position(0), 2**31 - 1: Position(0)}
    assert fetch(connection, asked, isolation=COMMITTED, max_bytes=1).keys() == {kept}


def test_all_columns_come_back(connection: Connection, partition: int) -> None:
    headers = [[("a", b"1"), ("b", None)], []]
    row = batch(partition, b"\xff", None, keys=[b"", None], timestamps=[7, 5], headers=headers)
    append_one(connection, row)
    (found,) = look(connection, partition).batches
    assert (found.base_offset, found.last_offset, found.max_timestamp) == (0, 1, 7)
    assert (found.keys, found.values, found.timestamps) == ([b"", None], [b"\xff", None], [7, 5])
    assert (found.header_counts, found.header_keys, found.header_values) == ([2, 0], ["a", "b"], [b"1", None])
    assert found.offset_deltas is None


@pytest.mark.parametrize("isolation", [COMMITTED, UNCOMMITTED])
def test_a_read_may_begin_at_any_record(connection: Connection, partition: int, isolation: object) -> None:
    for base in (0, 3, 6):
        plain(connection, partition, *[b"%d" % (base + i) for i in range(3)])
    for start in range(10):
        expected = [(i, b"%d" % i) for i in range(start, 9)]
        assert read(connection, partition, start, isolation=isolation) == expected


def test_a_fetch_from_the_middle_of_a_batch_returns_that_batch(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a", b"b", b"c")
    answer = look(connection, partition, 2)
    assert [row.base_offset for row in answer.batches] == [0]
    assert answer.position == 3


def test_bytes_bound_an_answer_but_one_row_always_comes(connection: Connection, partition: int) -> None:
    """A consumer is never stuck on a large row."""
    plain_batches(connection, partition, *[b"x" * 1_000] * 5)
    assert len(look(connection, partition, max_bytes=1).batches) == 1
    assert len(look(connection, partition, max_bytes=2_500).batches) == 3
    assert read(connection, partition, max_bytes=1) == [(i, b"x" * 1_000) for i in range(5)]


def test_rows_bound_an_answer(connection: Connection, partition: int) -> None:
    plain_batches(connection, partition, *[b"x"] * 5)
    assert len(look(connection, partition, max_rows=2).batches) == 2
    assert len(read(connection, partition, max_rows=1)) == 5


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_rows_bound_an_answer_over_many_partitions(connection: Connection, outcome: str) -> None:
    """Also rows that are not visible: a large abort must not fill the memory of those who only pass it."""
    partitions, rows = new_topic(connection, 12), 1_000
    writer = Writer(connection)
    for partition in partitions:
        writer.send(partition, b"first")
    connection.execute(
        "insert into msgtx.record_batch (partition_id, base_offset, last_offset, producer_id, producer_epoch,"
        ' transaction_number, base_sequence, last_sequence, appended_at, max_timestamp, record_count, byte_size, "values")'
        " select b.partition_id, n, n, b.producer_id, b.producer_epoch, b.transaction_number, n, n, b.appended_at,"
        ' b.max_timestamp, 1, b.byte_size, b."values"'
        " from msgtx.record_batch b cross join generate_series(1, %s) n where b.partition_id = any(%s)",
        [rows - 1, partitions],
    )
    decide(connection, writer.name, outcome, tails=dict.fromkeys(partitions, rows - 1) if outcome == "COMMIT" else {})
    positions = {partition: Position(0) for partition in partitions}
    left, calls = len(partitions) * rows, 0
    while left:
        answers = fetch(connection, positions, isolation=COMMITTED, max_bytes=1 << 23, total_bytes=1 << 23)
        passed = sum(answer.position - positions[partition].offset for partition, answer in answers.items())
        assert 0 < passed <= 10_000 + len(partitions)
        assert sum(len(answer.batches) for answer in answers.values()) == (passed if outcome == "COMMIT" else 0)
        positions = {partition: Position(answer.position, answer.token) for partition, answer in answers.items()}
        left, calls = left - passed, calls + 1
    assert calls == 2


# ── isolation ──


@pytest.mark.parametrize("total", [1, 2_500, 5_500, 1 << 20])
def test_a_limit_on_all_partitions_counts_their_sum(total: int, connection: Connection) -> None:
    """But for the first row of all: then a large record moves. No row is left out in front of one that came (I5)."""
    partitions = new_topic(connection, 4)
    for partition in partitions:
        for i in range(3):
            plain(connection, partition, b"%d" % i * 1_000)
    asked = {partition: Position(0) for partition in partitions}
    answers = fetch(connection, asked, isolation=COMMITTED, max_bytes=1 << 20, total_bytes=total)
    assert answers.keys() == set(partitions), "each tells its ends"
    counts = [len(answers[partition].batches) for partition in partitions]
    assert sum(counts) == {1: 1, 2_500: 2, 5_500: 5}.get(total, 12)
    assert counts == sorted(counts, reverse=True), "those named first come first"
    for partition, taken in zip(partitions, counts, strict=True):
        assert [batch.base_offset for batch in answers[partition].batches] == list(range(taken))
        assert answers[partition].position == taken
        assert (answers[partition].last_stable_offset, answers[partition].log_end_offset) == (3, 3)


def test_under_a_limit_on_all_partitions_each_with_records_gets_its_share(connection: Connection, writer: Writer) -> None:
    """Those without records take none, and what is not visible counts nothing."""
    full, empty, aborted, other = new_topic(connection, 4)
    writer.send_and_abort(aborted, b"x" * 5_000)
    for partition in (full, other):
        plain_batches(connection, partition, *[b"x" * 1_000] * 20)
    asked = {partition: Position(0) for partition in (full, empty, aborted, other)}
    answers = fetch(connection, asked, isolation=COMMITTED, max_bytes=1 << 20, total_bytes=12_000)
    assert [len(answers[partition].batches) for partition in (full, empty, aborted, other)] == [4, 0, 0, 4]
    assert answers[aborted].position == 1
    alone = fetch(
        connection, {empty: Position(0), full: Position(0)}, isolation=COMMITTED, max_bytes=1 << 20, total_bytes=12_000
    )
    assert len(alone[full].batches) == 11


def test_of_what_does_not_fit_nothing_leaves_the_database(connection: Connection) -> None:
    """Its partition tells its ends in one row, and so does an empty one behind it."""
    full, later, empty = new_topic(connection, 3)
    plain(connection, full, b"x" * 1_000)
    for _ in range(2):
        plain(connection, later, b"v", keys=[b"k"], timestamps=[1], headers=[[("h", b"1")]])
    rows = connection.execute(
        "select partition_id, log_end_offset, base_offset, num_nonnulls(last_offset, identity, visible, max_timestamp, keys,"
        ' "values", timestamps, header_counts, header_keys, header_values, offset_deltas)'
        " from msgtx.fetch_batches(%s, '{0,0,0}', '{null,null,null}', 'read_committed', total_bytes => 500)",
        [[full, later, empty]],
    ).fetchall()
    assert rows == [(full, 1, 0, 5), (later, 2, None, 0), (empty, 0, None, 0)]


def test_read_committed_stops_at_the_first_undecided_record(connection: Connection, partition: int) -> None:
    """I5, P2: records above an open transaction are not delivered first."""
    writer, other = Writer(connection), Writer(connection)
    plain(connection, partition, b"before")
    writer.send(partition, b"open")
    other.send_and_commit(partition, b"behind")
    plain(connection, partition, b"plain behind")
    assert values(connection, partition) == [b"before"]
    assert ends(connection, partition) == (0, 1, 4)
    assert look(connection, partition).position == 1
    assert values(connection, partition, isolation=UNCOMMITTED) == [b"before", b"open", b"behind", b"plain behind"]
    writer.commit()
    assert values(connection, partition) == [b"before", b"open", b"behind", b"plain behind"]


def test_a_position_above_the_last_stable_offset_gets_nothing_until_it_has_been_passed(connection: Connection) -> None:
    """P22: the search begins at the floor, never at a position that was only sought."""
    partition = new_partition(connection)
    writer = Writer(connection)
    writer.send(partition, b"open")
    plain_batches(connection, partition, b"behind", b"last")
    for position in (1, 2):
        answer = look(connection, partition, position)
        assert (answer.batches, answer.position, answer.last_stable_offset) == ([], position, 0)
    writer.abort()
    assert values(connection, partition, 1) == [b"behind", b"last"]


def test_a_sought_position_inside_an_open_transaction_gets_nothing(connection: Connection) -> None:
    """P22: nor does the position move, past what may still be committed."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    writer.send(partition, b"b")
    answer = look(connection, partition, 1)
    assert (answer.last_stable_offset, answer.position, answer.batches) == (0, 1, [])
    writer.commit()
    assert values(connection, partition, 1) == [b"b"]


@pytest.mark.parametrize("marked", [False, True])
def test_aborted_data_is_never_delivered_and_always_passed(connection: Connection, marked: bool) -> None:
    """P3, P19: dense progress over aborted rows, markers or not."""
    partition, writer = new_partition(connection), Writer(connection)
    for _ in range(20):
        writer.send_and_abort(partition, b"x" * 500)
    if marked:
        mark(connection, everything=True)
    answer = look(connection, partition, max_bytes=1)
    assert (answer.batches, answer.position) == ([], 20), "aborted bytes do not count against the limit"
    plain(connection, partition, b"after")
    assert read(connection, partition, max_rows=3) == [(20, b"after")]
    assert ends(connection, partition) == (0, 21, 21)


@pytest.mark.parametrize("marked", [False, True])
def test_of_aborted_data_nothing_leaves_the_database(connection: Connection, marked: bool) -> None:
    """I5: a row says where it ends, and has no array."""
    partition, writer = new_partition(connection), Writer(connection)
    columns = {"keys": [b"k", b"l"], "timestamps": [1, 2], "headers": [[("h", b"1")], []]}
    writer.send_and_abort(partition, b"a", b"b", **columns)
    if marked:
        mark(connection, everything=True)
    rows = connection.execute(
        'select last_offset, visible, num_nonnulls(keys, "values", timestamps, header_counts, header_keys, header_values)'
        " from msgtx.fetch_batches(array[%s], array[0], array[null], 'read_committed')",
        [partition],
    ).fetchall()
    assert rows == [(1, False, 0)]


def test_markers_take_no_offsets(connection: Connection, partition: int, writer: Writer) -> None:
    """P5."""
    for i in range(3):
        writer.send_and_commit(partition, b"%d" % i)
        mark(connection)
    assert read(connection, partition) == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert look(connection, partition, 3).position == 3


def test_a_commit_is_readable_at_once_before_its_markers(connection: Connection, partition: int, writer: Writer) -> None:
    writer.send_and_commit(partition, b"a")
    assert values(connection, partition) == [b"a"]


def test_interleaved_transactions_are_read_in_offset_order_whatever_commits_first(connection: Connection) -> None:
    partition = new_partition(connection)
    first, second = Writer(connection), Writer(connection)
    first.send(partition, b"1a")
    second.send(partition, b"2a")
    first.send(partition, b"1b")
    second.send_and_commit(partition, b"2b")
    assert values(connection, partition) == []
    first.commit()
    assert values(connection, partition) == [b"1a", b"2a", b"1b", b"2b"]


def test_partitions_of_a_transaction_have_their_own_last_stable_offsets(connection: Connection) -> None:
    """I6: a log reader sees each partition up to its own."""
    first, second = new_topic(connection, 2)
    blocker, writer = Writer(connection), Writer(connection)
    blocker.send(first, b"open")
    writer.send(first, b"a")
    writer.send_and_commit(second, b"a")
    assert (values(connection, first), values(connection, second)) == ([], [b"a"])


# ── who holds it back ──


def test_the_transaction_that_holds_a_reader_back_is_named(connection: Connection, partition: int, clock: Clock) -> None:
    """I12."""
    earliest, later = Writer(connection, timeout_ms=60_000), Writer(connection, timeout_ms=1)
    earliest.send(partition, b"a")
    later.send(partition, b"b")
    answer = look(connection, partition)
    assert (answer.blocked_by, answer.blocked_overdue) == (earliest.name, False)
    clock("61 seconds")
    answer = look(connection, partition)
    assert (answer.blocked_by, answer.blocked_overdue) == (earliest.name, True)
    earliest.abort()
    clock(None)
    answer = look(connection, partition)
    assert (answer.blocked_by, answer.blocked_overdue) == (later.name, True)


def test_nobody_is_named_when_nothing_holds_a_reader_back(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a")
    assert look(connection, partition).blocked_by is None


# ── tokens ──


def test_a_stable_token_lets_the_search_begin_at_the_position(connection: Connection) -> None:
    """With it the undecided row below is not looked for: it cannot be there for a reader that has read past it."""
    partition, writer = new_partition(connection), Writer(connection)
    plain(connection, partition, b"a")
    token = look(connection, partition).token
    assert token is not None
    assert token.startswith("stable ")
    writer.send(partition, b"b")
    answer = look(connection, partition, 1, token=token)
    assert (answer.last_stable_offset, answer.batches, answer.token) == (1, [], token)
    writer.commit()
    answer = look(connection, partition, 1, token=token)
    assert [row.values for row in answer.batches] == [[b"b"]]


def test_a_reader_with_a_stable_token_does_not_pay_for_what_has_no_marker_yet(connection: Connection) -> None:
    """The floor may be far behind: without the token each transaction above it is looked at."""
    partition, writer = new_partition(connection), Writer(connection)
    for _ in range(20):
        writer.send_and_commit(partition, b"a")
    token = look(connection, partition).token
    writer.send_and_abort(partition, b"aborted: no usual case")
    looked = [
        spent(connection, "transaction_partition", "idx_tup_fetch", lambda at=at: look(connection, partition, 20, token=at))
        for at in (token, None)
    ]
    assert looked == [1, 21]


def test_a_position_read_as_uncommitted_gives_no_stable_token(connection: Connection) -> None:
    """P45: the identity of a row is no proof that it was decided."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"open")
    plain(connection, partition, b"behind")
    token = look(connection, partition, isolation=UNCOMMITTED).token
    assert token is not None
    assert token.startswith("seen ")
    answer = look(connection, partition, 2, token=token)
    assert (answer.last_stable_offset, answer.batches) == (0, [])


def test_a_sought_position_above_the_last_stable_offset_gets_no_stable_token(connection: Connection) -> None:
    """P45."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"open")
    writer.send(partition, b"open")
    token = look(connection, partition, 1).token
    assert token is None or token.startswith("seen ")
    assert look(connection, partition, 1, token=token).batches == []
    assert look(connection, partition, 1, token=token).last_stable_offset == 0


def test_what_is_appended_behind_a_stable_token_is_searched(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a")
    token = look(connection, partition).token
    writer = Writer(connection)
    writer.send(partition, b"open")
    plain(connection, partition, b"behind")
    answer = look(connection, partition, 1, token=token)
    assert (answer.last_stable_offset, answer.batches) == (1, [])


def truncate(connection: Connection, partition: int, start: int) -> None:
    """Take back rows as a crash of the server does that lost what was not flushed."""
    with connection.transaction():
        for table, column in (
            ("record_batch", "base_offset"),
            ("transaction_partition", "first_offset"),
        ):
            connection.execute(f"delete from msgtx.{table} where partition_id = %s and {column} >= %s", [partition, start])


def test_a_reader_beyond_a_truncated_log_is_told(connection: Connection, partition: int) -> None:
    """P38."""
    plain_batches(connection, partition, b"a", b"b", b"c")
    first = look(connection, partition)
    truncate(connection, partition, 1)
    answer = look(connection, partition, first.position, token=first.token)
    assert (answer.truncated, answer.batches, answer.log_end_offset) == (True, [], 1)
    assert answer.token is None


def test_a_reader_whose_last_row_was_replaced_is_told(connection: Connection, partition: int) -> None:
    """P38: the log has grown past the position again with other rows."""
    plain_batches(connection, partition, b"a", b"b")
    first = look(connection, partition)
    truncate(connection, partition, 1)
    plain_batches(connection, partition, b"x", b"y", b"z")
    answer = look(connection, partition, first.position, token=first.token)
    assert (answer.truncated, answer.batches) == (True, [])


def test_a_token_from_before_a_truncation_is_no_stable_one(connection: Connection, partition: int) -> None:
    """P38: what was written below it after the crash is not skipped."""
    plain(connection, partition, b"a")
    token = look(connection, partition).token
    truncate(connection, partition, 0)
    writer = Writer(connection)
    writer.send(partition, b"open")
    answer = look(connection, partition, 1, token=token)
    assert answer.truncated
    assert answer.last_stable_offset == 0


def test_a_truncation_above_the_position_is_not_noticed(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a")
    token = look(connection, partition).token
    plain(connection, partition, b"b")
    truncate(connection, partition, 1)
    assert not look(connection, partition, 1, token=token).truncated


def test_rows_that_retention_removed_are_no_truncation(connection: Connection, partition: int) -> None:
    plain_batches(connection, partition, b"a", b"b")
    answer = look(connection, partition)
    with connection.transaction():
        connection.execute("delete from msgtx.record_batch where partition_id = %s", [partition])
        connection.execute("update msgtx.partition set log_start_offset = 2 where partition_id = %s", [partition])
    again = look(connection, partition, answer.position, token=answer.token)
    assert (again.truncated, again.log_start_offset, again.log_end_offset) == (False, 2, 2)
    assert plain(connection, partition, b"c") == 2
    again = look(connection, partition, answer.position, token=answer.token)
    assert [row.values for row in again.batches] == [[b"c"]]


def test_what_was_replaced_in_front_of_the_log_start_is_no_truncation(connection: Connection, partition: int) -> None:
    """Whether its rows are there still, or retention has removed them: who reads on needs nothing of them."""
    plain_batches(connection, partition, b"a", b"b")
    token = look(connection, partition).token
    truncate(connection, partition, 1)
    plain_batches(connection, partition, b"x", b"c")
    assert look(connection, partition, 2, token=token).truncated
    connection.execute("update msgtx.partition set log_start_offset = 2 where partition_id = %s", [partition])
    for removed in (False, True):
        if removed:
            connection.execute("delete from msgtx.record_batch where partition_id = %s and base_offset < 2", [partition])
        answer = look(connection, partition, 2, token=token)
        assert (answer.truncated, [row.values for row in answer.batches]) == (False, [[b"c"]])


def test_a_position_beyond_the_end_without_a_token_is_told(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a")
    answer = look(connection, partition, 2)
    assert (answer.truncated, answer.batches) == (True, [])


# ── the log start ──


def test_a_position_below_the_log_start_gets_the_ends_only(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a", b"b", b"c")
    connection.execute("update msgtx.partition set log_start_offset = 2 where partition_id = %s", [partition])
    answer = look(connection, partition, 1)
    assert (answer.batches, answer.log_start_offset, answer.truncated) == ([], 2, False)
    assert values(connection, partition, 2) == [b"c"]


def test_the_ends_stay_in_order_when_the_log_start_lies_above_an_open_transaction(connection: Connection) -> None:
    """Log start ≤ last stable offset ≤ log end, always."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a", b"b", b"c")
    connection.execute("update msgtx.partition set log_start_offset = 2 where partition_id = %s", [partition])
    assert ends(connection, partition) == (2, 2, 3)
    writer.commit()
    assert ends(connection, partition) == (2, 3, 3)


def test_a_sparse_row_keeps_its_offsets(connection: Connection, partition: int) -> None:
    """Compaction leaves rows with holes; offsets never change."""
    plain(connection, partition, b"a", b"b", b"c", b"d")
    connection.execute(
        "update msgtx.record_batch set \"values\" = array['a'::bytea, 'd'], offset_deltas = array[0, 3],"
        " record_count = 2 where partition_id = %s",
        [partition],
    )
    plain(connection, partition, b"e")
    assert read(connection, partition) == [(0, b"a"), (3, b"d"), (4, b"e")]
    assert read(connection, partition, 1) == [(3, b"d"), (4, b"e")]


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_rests_while_records_are_made_and_then_goes_on_as_before(*, collecting: bool) -> None:
    """Also when that fails."""
    (gc.enable if collecting else gc.disable)()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() is collecting
        with pytest.raises(ZeroDivisionError), uncollected():
            _ = 1 // 0
        assert gc.isenabled() is collecting
    finally:
        gc.enable()
