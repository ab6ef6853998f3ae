"""Retention: the log start moves, rows go from the front, and nothing else changes (semantics 8)."""

import pytest

from msgtx import errors
from msgtx.store.retention import LOG_END, delete_records
from tests.databases import Connection
from tests.store.steps import (
    COMMITTED,
    UNCOMMITTED,
    Writer,
    append_one,
    batch,
    count,
    ends,
    look,
    new_partition,
    new_topic,
    plain,
    read,
    values,
)

# ── delete_records ──


def test_the_log_start_moves_at_once_also_into_a_row(connection: Connection) -> None:
    partition = new_partition(connection)
    plain(connection, partition, b"a", b"b", b"c")
    plain(connection, partition, b"d")
    assert delete_records(connection, {partition: 2}) == {partition: 2}
    assert ends(connection, partition) == (2, 4, 4)
    assert read(connection, partition, 2) == [(2, b"c"), (3, b"d")]
    assert look(connection, partition, 0).batches == []
    assert count(connection, "record_batch", "partition_id = %s", partition) == 2
    seen = connection.execute(
        'select "offset" from msgtx.committed_records where partition_id = %s order by 1', [partition]
    ).fetchall()
    assert seen == [(2,), (3,)]


def test_below_the_log_start_nothing_changes_and_beyond_the_end_it_is_refused(connection: Connection) -> None:
    """I2; and nothing of a call that is refused takes effect."""
    first, second = new_topic(connection, 2)
    for partition in (first, second):
        plain(connection, partition, b"a", b"b", b"c")
    assert delete_records(connection, {second: LOG_END, first: 1}) == {first: 1, second: 3}
    assert delete_records(connection, {first: 0, second: 2}) == {first: 1, second: 3}
    for wrong in (4, -2):
        with pytest.raises(errors.OffsetOutOfRange, match=f"offset {wrong} is not in the log, which goes from 3 to 3"):
            delete_records(connection, {first: 2, second: wrong})
    with pytest.raises(errors.UnknownTopicOrPartition):
        delete_records(connection, {first: 2, 1_000_000: 0})
    assert (ends(connection, first), ends(connection, second)) == ((1, 3, 3), (3, 3, 3))


def test_the_log_start_passes_an_open_transaction_whose_later_records_stay_readable(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a", b"b")
    writer.send(partition, b"c")
    assert delete_records(connection, {partition: 1}) == {partition: 1}
    assert ends(connection, partition) == (1, 1, 3)
    assert values(connection, partition, 1, isolation=UNCOMMITTED) == [b"b", b"c"]
    assert delete_records(connection, {partition: LOG_END}) == {partition: 3}
    assert ends(connection, partition) == (3, 3, 3)
    writer.send(partition, b"d")
    assert ends(connection, partition) == (3, 3, 4)
    writer.commit()
    assert read(connection, partition, 3, isolation=COMMITTED) == [(3, b"d")]


def test_an_append_behind_an_emptied_log_gets_the_next_offset(connection: Connection) -> None:
    partition = new_partition(connection)
    plain(connection, partition, b"a", b"b")
    delete_records(connection, {partition: LOG_END})
    assert append_one(connection, batch(partition, b"c")).base_offset == 2
    assert values(connection, partition, 2) == [b"c"]
