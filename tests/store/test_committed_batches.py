"""Rows for readers that take whole columns: what is committed, in order; and a range that is still what was planned."""

import itertools

import pytest

from msgtx import errors
from msgtx.coordinator.sweep import sweep
from msgtx.database.pool import Engine
from msgtx.database.translation import translated
from msgtx.store.operator.installation import describe_installation
from msgtx.store.topics.retention import delete_records
from tests.databases import Connection
from tests.store.steps import Writer, new_partition, plain, read

FOREIGN = "0f8fad5b-d9cb-469f-a165-70867728950e"


def seen(connection: Connection, partition: int, upto: int) -> list[tuple[int, bytes | None]]:
    """Take the view's rows apart as its header says it."""
    rows = connection.execute(
        'select log_start_offset, base_offset, record_count, offset_deltas, "values" from msgtx.committed_batches'
        " where partition_id = %s and base_offset < %s",
        [partition, upto],
    ).fetchall()
    return [
        (offset, value)
        for start, base, count, deltas, values in rows
        for delta, value in zip(deltas or range(count), values, strict=True)
        if start <= (offset := base + delta) < upto
    ]


@pytest.mark.parametrize("marked", [False, True])
def test_what_is_committed_is_there_on_both_sides_of_the_floor(engine: Engine, connection: Connection, marked: bool) -> None:
    """I5: an aborted row is known by its marker below the floor, by its decision above it."""
    partition = new_partition(connection)
    writers = [Writer(connection) for _ in range(3)]
    for at, writer in enumerate(itertools.chain(writers, writers)):
        writer.send(partition, b"%d" % at, b"")
        plain(connection, partition, b"plain")
        (writer.abort if at % 2 else writer.commit)()
    if marked:
        sweep(engine, only=["markers"])
    expected = read(connection, partition)
    assert seen(connection, partition, 18) == expected
    assert len(expected) == 12
    writers[0].send(partition, b"open")
    plain(connection, partition, b"behind it")
    assert seen(connection, partition, 18) == expected
    assert seen(connection, partition, 20) == [*expected, (19, b"behind it")], "of this snapshot: bounds are the reader's"


def test_headers_begin_where_the_view_says(connection: Connection, partition: int) -> None:
    pairs = [[("a", b"1"), ("b", None)], [], [("c", b"")]]
    plain(connection, partition, b"x", b"y", b"z", headers=pairs)
    plain(connection, partition, b"none")
    rows = connection.execute(
        "select header_starts, header_counts, header_keys, header_values from msgtx.committed_batches"
        " where partition_id = %s",
        [partition],
    ).fetchall()
    (starts, counts, keys, values), (no_starts, *_) = rows
    found = [
        list(zip(keys[start : start + count], values[start : start + count], strict=True))
        for start, count in zip(starts, counts, strict=True)
    ]
    assert found == pairs
    assert no_starts == []


def test_a_range_is_refused_where_it_is_not_what_was_planned(partition: int, connection: Connection) -> None:
    """I5, I14."""
    plain(connection, partition, b"a", b"b", b"c")
    Writer(connection).send(partition, b"open")
    incarnation = describe_installation(connection).incarnation
    check = "select msgtx.check_range(%s, %s, %s, %s, %s)"

    def answer(start: int, end: int, *, strict: bool = True, of: object = incarnation, where: int = partition) -> int:
        with translated():
            ((base,),) = connection.execute(check, [where, start, end, of, strict]).fetchall()
        return int(base)

    assert (answer(0, 3), answer(2, 3), answer(3, 3)) == (0, 0, 3)
    for strict in (True, False):
        with pytest.raises(errors.LogTruncated) as refused:
            answer(0, 4, strict=strict)
        assert (refused.value.offset, refused.value.limit) == (4, 3)
        with pytest.raises(errors.IncarnationChanged):
            answer(0, 3, strict=strict, of=FOREIGN)
    delete_records(connection, {partition: 2})
    with pytest.raises(errors.OffsetOutOfRange) as refused:
        answer(0, 3)
    assert (refused.value.offset, refused.value.limit) == (0, 2)
    assert (answer(2, 3), answer(0, 3, strict=False)) == (0, 0)
    with pytest.raises(Exception, match=f"partition {2**31 - 1} was deleted since"):
        answer(0, 3, where=2**31 - 1)
    assert answer(7, 9, strict=False, where=2**31 - 1) == 7
