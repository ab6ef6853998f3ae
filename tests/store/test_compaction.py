"""Compaction: the newest committed record of each key stays in place; readers notice nothing (internals: cleaning)."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import msgtx
from msgtx import errors
from msgtx.coordinator.compactor import MIN_DIRTY_RATIO, Compactor
from msgtx.coordinator.sweep import Sweeper, sweep
from msgtx.database.pool import Engine
from msgtx.store.fetch.fetch import list_offsets
from msgtx.store.fetch.records import count_records, records_of
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.sweeps import compaction, sweeps
from msgtx.store.sweeps.coordinators import Leases, lease_shards
from msgtx.store.topics.retention import LOG_END, delete_records
from msgtx.store.topics.topics import alter_topic
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.transactions import mark
from msgtx.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.databases import Clock, Connection, Sessions
from tests.store.steps import (
    COMMITTED,
    UNCOMMITTED,
    Writer,
    answers,
    append_one,
    batch,
    count,
    ends,
    look,
    new_partition,
    plain,
    read,
    spoiled,
    to_its_end,
    topic_of,
)
from tests.store.test_growth import looks_of
from tests.store.test_retention import now_ms, retain, verified

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare")]
NEVER = 10**15


def pieces(connection: Connection, compactor: Compactor) -> Iterator[int]:
    """Do one SQL transaction of a pass over everything after the other. Yields how many records each removed."""
    for done in to_its_end(connection, compactor):
        yield done.get("records_compacted", 0)


def compact(connection: Connection, **limits: Any) -> int:
    """Run the sweep to its end, also where there is little to win. Returns how many records it removed."""
    return sum(pieces(connection, Compactor(**{"min_dirty_ratio": 0, **limits})))


def went_on(
    compactor: Compactor, connection: Connection, after: Any, calls: int, leases: Leases | None = None
) -> tuple[int, ...] | None:
    """Do so many SQL transactions of a pass. Returns where it came to."""
    for _ in range(calls):
        after = compactor(connection, after, leases).after
    return after


def put(connection: Connection, partition: int, pairs: str) -> int:
    """Append a row of records written as `a1 b2 a-`: key and value, - for none. Returns its offset."""
    keys, values = [], []
    for pair in pairs.split():
        keys.append(pair[:1].encode() if pair[0] != "-" else None)
        values.append(None if pair[1:] == "-" else pair[1:].encode())
    return plain(connection, partition, *values, keys=keys)


def compacted_topic(connection: Connection, *rows: str, **settings: object) -> int:
    """Create a compacted topic of one partition, and append these rows. Returns the partition."""
    partition = new_partition(connection, **{"cleanup_policy": "compact", **settings})
    for pairs in rows:
        put(connection, partition, pairs)
    return partition


def row_columns(pairs: str) -> tuple[list[bytes], list[bytes]]:
    return [pair[:1].encode() for pair in pairs.split()], [pair[1:].encode() for pair in pairs.split()]


def seen(connection: Connection, partition: int, start: int = 0, **options: Any) -> str:
    """What a reader gets, as `offset:key value`."""
    return " ".join(
        f"{record.offset}:{(record.key or b'-').decode()}{'-' if record.value is None else record.value.decode()}"
        for position, answer in answers(connection, partition, start, **options)
        for fetched in answer.batches
        for record in records_of(fetched, TopicPartition("t", 0), position)
    )


def place(connection: Connection, partition: int) -> tuple[int, bool]:
    row = connection.execute(
        "select compacted_offset, tombstones_since is not null, counted_bytes, compacted_bytes, counted_offset"
        " from msgtx.partition where partition_id = %s",
        [partition],
    ).fetchone()
    assert row is not None
    compacted, waits, counted_bytes, compacted_bytes, counted = row
    for bound, stored in ((counted, counted_bytes), (compacted, compacted_bytes)):
        (found,) = connection.execute(
            "select coalesce(sum(byte_size), 0) from msgtx.record_batch where partition_id = %s and base_offset < %s",
            [partition, bound],
        ).fetchone() or (None,)
        assert stored == found
    return compacted, waits


# ── what stays ──


def test_the_newest_of_each_key_stays_where_it_was(connection: Connection, client: msgtx.Client) -> None:
    partition = compacted_topic(connection, "a1 b1 a2 c1", "a3", "b2 d1")
    assert compact(connection) == 3
    assert seen(connection, partition) == "3:c1 4:a3 5:b2 6:d1"
    assert ends(connection, partition) == (0, 7, 7)
    assert place(connection, partition) == (7, False)
    assert compact(connection) == 0
    put(connection, partition, "a4 c2")
    put(connection, partition, "e1 f1 g1")
    assert compact(connection) == 2
    assert seen(connection, partition) == "5:b2 6:d1 7:a4 8:c2 9:e1 10:f1 11:g1"
    assert plain(connection, partition, b"9", keys=[b"z"]) == 12
    verified(client)


def test_every_way_to_read_sees_the_same(connection: Connection, client: msgtx.Client) -> None:
    """Fetch from each offset, views, look-ups by time and counts, over sparse and emptied rows."""
    partition = compacted_topic(connection)
    for at, pairs in enumerate(("a1 b1", "a2 b2 c1 d1", "a3", "b3 c2 e1", "b4")):
        keys, values = row_columns(pairs)
        plain(connection, partition, *values, keys=keys, timestamps=[100 * at + n for n in range(len(keys))])
    compact(connection)
    left = {5: b"d1"[1:], 6: b"3", 8: b"2", 9: b"1", 10: b"4"}
    for start in range(12):
        expected = [(offset, value) for offset, value in left.items() if offset >= start]
        for options in ({}, {"isolation": UNCOMMITTED}, {"max_rows": 1}, {"max_bytes": 1}):
            if start <= 11:
                assert read(connection, partition, start, **options) == expected
        for isolation in (COMMITTED, UNCOMMITTED):
            assert count_records(connection, {partition: start}, isolation) == {partition: len(expected)}
    for view in ("records", "committed_records", "committed_records_now"):
        rows = connection.execute(
            f'select "offset", value from msgtx.{view} where partition_id = %s order by 1', [partition]
        )
        assert dict(rows.fetchall()) == left
    for time, offset in ((0, 5), (103, 5), (104, 6), (201, 8), (302, 9), (303, 10), (400, 10), (401, None)):
        assert list_offsets(connection, {partition: time}, COMMITTED)[partition].offset == offset, time
    verified(client)


def test_a_record_keeps_what_belongs_to_it(connection: Connection, client: msgtx.Client) -> None:
    partition = compacted_topic(connection)
    headers = [[("h", b"0")], [], [("x", None), ("y", b"2")], [("z", b"3")]]
    keys = [b"a", b"b", b"c", b"a"]
    plain(connection, partition, b"0", b"1", b"2", b"3", keys=keys, timestamps=[7, 8, 9, 6], headers=headers)
    plain(connection, partition, b"4", b"5", keys=[b"b", b"d"], timestamp=50)
    plain(connection, partition, b"6", keys=[b"d"])
    compact(connection)
    found = [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for fetched in look(connection, partition).batches
        for record in records_of(fetched, TopicPartition("t", 0), 0)
    ]
    assert found == [
        (2, 9, b"c", b"2", (("x", None), ("y", b"2"))),
        (3, 6, b"a", b"3", (("z", b"3"),)),
        (4, 50, b"b", b"4", ()),
        (6, 1_000, b"d", b"6", ()),
    ]
    verified(client)


def test_what_stays_may_have_no_headers_though_its_row_had_some(connection: Connection) -> None:
    partition = compacted_topic(connection)
    plain(connection, partition, b"0", b"1", keys=[b"a", b"b"], headers=[[("h", b"0")], []])
    put(connection, partition, "a2")
    compact(connection)
    (fetched, _) = look(connection, partition).batches
    found = records_of(fetched, TopicPartition("t", 0), 0)
    assert [(record.offset, record.key, record.headers) for record in found] == [(1, b"b", ())]


def test_a_row_of_which_nothing_stays_behind_a_position_is_passed(connection: Connection) -> None:
    """A reader gets no row without a record, and its position moves on."""
    partition = compacted_topic(connection, "a1 b1", "c1 d1 e1", "a2 b2 e2", "f1")
    compact(connection)

    def passed(position: int, rows: int) -> tuple[list[int], int]:
        answer = look(connection, partition, position, max_rows=rows)
        return [row.base_offset for row in answer.batches], answer.position

    assert [passed(0, 1), passed(0, 9)] == [([], 2), ([2, 5, 8], 9)]
    assert [passed(at, 1) for at in (2, 3, 4)] == [([2], 5), ([2], 5), ([], 5)]


def test_aborted_records_go_and_supersede_nothing(connection: Connection, client: msgtx.Client) -> None:
    """P3: with and without their markers."""
    for marked in (False, True):
        partition, writer = compacted_topic(connection, "a1 b1"), Writer(connection)
        writer.send_and_abort(partition, b"2", b"2", keys=[b"a", b"c"])
        writer.send_and_commit(partition, b"3", keys=[b"b"])
        writer.commit_whole(writer.row(partition, b"4", keys=[b"d"]))
        if marked:
            mark(connection, everything=True)
        assert compact(connection) == 3
        for isolation in (COMMITTED, UNCOMMITTED):
            assert seen(connection, partition, isolation=isolation) == "0:a1 4:b3 5:d4"
        mark(connection, everything=True)
        assert seen(connection, partition) == "0:a1 4:b3 5:d4"
    verified(client)


def test_what_is_undecided_is_left_alone_and_supersedes_nothing(connection: Connection, client: msgtx.Client) -> None:
    partition, writer = compacted_topic(connection, "a1 a2 b1"), Writer(connection)
    writer.send(partition, b"3", keys=[b"b"])
    put(connection, partition, "a4 a5")
    assert compact(connection) == 1
    assert seen(connection, partition) == "1:a2 2:b1"
    assert place(connection, partition) == (3, False)
    writer.abort()
    assert compact(connection) == 3
    assert seen(connection, partition) == "2:b1 5:a5"
    verified(client)


def test_a_record_without_key_stays(connection: Connection, partition: int, client: msgtx.Client) -> None:
    """Of a topic that was not compacted before."""
    put(connection, partition, "-1 a1 -2")
    plain(connection, partition, b"3")
    alter_topic(connection, topic_of(connection, partition), None, {"cleanup_policy": "compact"})
    put(connection, partition, "a2")
    assert compact(connection) == 1
    assert seen(connection, partition) == "0:-1 2:-2 3:-3 4:a2"
    assert isinstance(append_one(connection, batch(partition, b"4")).error, errors.InvalidRecord)
    verified(client)


def test_a_topic_that_is_not_compacted_is_left_alone(connection: Connection, partition: int) -> None:
    put(connection, partition, "a1 a2")
    assert compact(connection) == 0
    compacted = compacted_topic(connection)
    put(connection, compacted, "a1 a2")
    run = pieces(connection, Compactor())
    while not place_of_pass(run):
        pass
    alter_topic(connection, topic_of(connection, compacted), None, {"cleanup_policy": "delete"})
    assert sum(run) == 0, "the policy was changed in the middle of a pass"
    assert seen(connection, compacted) == "0:a1 1:a2"


def place_of_pass(run: Iterator[int]) -> bool:
    """Go on to where the keys are noted: found, noted, nothing more to note."""
    assert list(itertools.islice(run, 3)) == [0, 0, 0]
    return True


# ── tombstones ──


def test_a_tombstone_stays_for_its_time_from_the_first_pass_that_saw_it(
    connection: Connection, client: msgtx.Client, clock: Clock
) -> None:
    partition = compacted_topic(connection, "a1 b1", "a- c1", delete_retention_ms=60_000)
    clock("10 minutes")
    assert compact(connection) == 1
    assert seen(connection, partition) == "1:b1 2:a- 3:c1"
    assert place(connection, partition) == (4, True)
    clock("10 minutes 59 s")
    assert compact(connection) == 0
    put(connection, partition, "b2 d1 e- f1")
    assert compact(connection) == 1
    assert seen(connection, partition) == "2:a- 3:c1 4:b2 5:d1 6:e- 7:f1"
    clock("11 minutes 2 s")
    assert compact(connection) == 1, "its time alone is worth a pass"
    assert seen(connection, partition) == "3:c1 4:b2 5:d1 6:e- 7:f1"
    assert place(connection, partition) == (8, True)
    clock("13 minutes")
    assert compact(connection) == 1
    assert seen(connection, partition) == "3:c1 4:b2 5:d1 7:f1"
    assert place(connection, partition) == (8, False)
    assert compact(connection) == 0
    verified(client)


def test_a_tombstone_that_is_superseded_goes_at_once(connection: Connection) -> None:
    partition = compacted_topic(connection, "a1 a- a2 b-", "b3", delete_retention_ms=60_000)
    assert compact(connection) == 3
    assert seen(connection, partition) == "2:a2 4:b3"
    assert place(connection, partition) == (5, False)


def test_a_tombstone_without_time_goes_with_the_second_pass(connection: Connection, clock: Clock) -> None:
    partition = compacted_topic(connection, "a1 b1", "a-", delete_retention_ms=0)
    assert next(n for n in pieces(connection, Compactor()) if n) == 1
    assert seen(connection, partition) == "1:b1 2:a-"
    clock("1 s")
    compact(connection)
    assert seen(connection, partition) == "1:b1"


@pytest.mark.parametrize("pairs", ["a- b1", "a1 a- b1"])
def test_the_time_of_a_tombstone_begins_whether_or_not_the_pass_removes_something(
    connection: Connection, clock: Clock, pairs: str
) -> None:
    partition = compacted_topic(connection, delete_retention_ms=60_000)
    end = put(connection, partition, pairs) + len(pairs.split())
    clock("10 minutes")
    assert compact(connection) == end - 2
    assert place(connection, partition) == (end, True)
    clock("10 minutes 59 s")
    assert compact(connection) == 0
    clock("11 minutes 1 s")
    assert compact(connection) == 1
    assert (seen(connection, partition), place(connection, partition)) == (f"{end - 1}:b1", (end, False))


def test_a_tombstone_may_stay_for_ever(connection: Connection, clock: Clock) -> None:
    """And a time that is longer than any interval does no harm."""
    partition = compacted_topic(connection, "a1 a-", delete_retention_ms=2**63 - 1)
    assert compact(connection) == 1
    clock("100 years")
    assert compact(connection) == 0
    assert seen(connection, partition) == "1:a-"


# ── passes ──


def test_a_pass_is_worth_it_when_half_of_the_log_is_dirty(connection: Connection) -> None:
    partition = compacted_topic(connection)
    for key in "abcdefgh":
        put(connection, partition, f"{key}1")
    assert compact(connection, min_dirty_ratio=MIN_DIRTY_RATIO) == 0
    assert place(connection, partition) == (8, False)
    for key in "abcdefg":
        put(connection, partition, f"{key}2")
        assert compact(connection, min_dirty_ratio=MIN_DIRTY_RATIO) == 0
    put(connection, partition, "h2")
    assert compact(connection, min_dirty_ratio=MIN_DIRTY_RATIO) == 8
    assert place(connection, partition) == (16, False)


def rows_behind(connection: Connection, partition: int, rows: int) -> None:
    connection.execute(
        """insert into msgtx.record_batch (partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count,
               byte_size, keys, "values")
           select %s, e.at + i, e.at + i, now(), 0, 1, 2, array['k'::bytea], array['v'::bytea]
           from (select max(last_offset) + 1 as at from msgtx.record_batch where partition_id = %s) e
           cross join generate_series(0, %s - 1) i""",
        [partition, partition, rows],
    )


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_what_lies_behind_an_open_transaction_counts_for_nothing(connection: Connection, policy: str) -> None:
    """Neither as a part of the log that is compacted nor as one that is not; retention by size has counted it."""
    partition, writer = compacted_topic(connection, cleanup_policy=policy, retention_bytes=10**9), Writer(connection)
    for key in "abcdefgh":
        put(connection, partition, f"{key}1")
    assert compact(connection, min_dirty_ratio=MIN_DIRTY_RATIO) == 0
    for key in "abcdefg":
        put(connection, partition, f"{key}2")
    writer.send(partition, b"open", keys=[b"o"])
    rows_behind(connection, partition, 2_000)
    retain(connection)
    assert compact(connection, min_dirty_ratio=MIN_DIRTY_RATIO) == 0
    assert place(connection, partition) == (8, False)
    writer.abort()
    assert compact(connection, min_dirty_ratio=MIN_DIRTY_RATIO) == 7 + 1 + 1_999


def test_a_search_does_not_read_what_lies_behind_an_open_transaction(connection: Connection) -> None:
    """It may be much, and is no less the next time."""
    partition, writer = compacted_topic(connection, "a1 b1"), Writer(connection)
    assert compact(connection, min_dirty_ratio=MIN_DIRTY_RATIO) == 0
    put(connection, partition, "a2")
    writer.send(partition, b"open", keys=[b"o"])
    rows_behind(connection, partition, 10_000)
    connection.execute("analyze msgtx.record_batch")
    search = "select * from msgtx.find_dirty_log(null, 500, %s)"
    assert looks_of(connection, search, MIN_DIRTY_RATIO) <= 100


def test_what_is_decided_is_worth_a_pass_whatever_lies_behind_it_and_beside(connection: Connection) -> None:
    """Retention by size has counted more of the log than a pass covers; another log has rows at the same offsets."""
    settings = {"retention_bytes": 10**9, "retention_ms": -1}
    beside = new_partition(connection, **settings)
    plain(connection, beside, b"x" * 5_000)
    rows_behind(connection, beside, 2_500)
    retain(connection)
    partition, writer = compacted_topic(connection, cleanup_policy="compact,delete", **settings), Writer(connection)
    for key in "abcdefgh":
        put(connection, partition, f"{key}1")
    assert compact(connection, min_dirty_ratio=MIN_DIRTY_RATIO) == 0
    assert place(connection, partition) == (8, False)
    for key in "abcdefgh":
        put(connection, partition, f"{key}2")
    writer.send(partition, b"open", keys=[b"o"])
    rows_behind(connection, partition, 2_000)
    retain(connection)
    assert compact(connection, min_dirty_ratio=MIN_DIRTY_RATIO) == 8
    assert place(connection, partition) == (16, False)
    assert dirty(connection) == (None, None), "nothing more is decided"


def dirty(connection: Connection, after: int | None = None, *, most: int = 500) -> tuple[int | None, int | None]:
    """Look for a log that is worth a pass. Returns its partition, and where the look came to."""
    found, came_to = connection.execute(
        "select partition_id, next_after[1] from msgtx.find_dirty_log(%s::bigint[], %s, 0)",
        [None if after is None else [after], most],
    ).fetchone() or (None, None)
    return found, came_to


def test_a_search_goes_on_behind_the_partitions_that_it_has_looked_at(connection: Connection) -> None:
    places = [compacted_topic(connection) for _ in range(4)]
    for partition in places[:3]:
        put(connection, partition, "a1")
    compact(connection)
    put(connection, places[2], "a2")
    assert dirty(connection, most=2) == (None, places[1])
    assert dirty(connection, places[1], most=2) == (places[2], places[2])
    assert dirty(connection, places[2], most=2) == (None, None)


def test_a_search_counts_a_long_log_in_parts(connection: Connection) -> None:
    """It comes back to it before it goes on."""
    partition, _ = compacted_topic(connection, "a1"), compacted_topic(connection, "a1")
    rows_behind(connection, partition, 10_000)
    assert dirty(connection) == (None, partition - 1)
    assert dirty(connection, partition - 1) == (partition, partition)


def test_a_search_passes_by_what_another_cleaner_has(connection: Connection, session: Connection) -> None:
    """It does not wait, though the log has rows that nobody has counted."""
    partition, later = compacted_topic(connection, "a1"), compacted_topic(connection, "a1")
    rows_behind(connection, partition, 1_000)
    with session.transaction():
        session.execute("select from msgtx.partition where partition_id = %s for no key update", [partition])
        assert dirty(connection) == (later, later)


def test_a_small_window_takes_several_passes(connection: Connection, client: msgtx.Client) -> None:
    """Memory is bounded: a pass notes as many keys as fit, and the next one goes on there."""
    partition = compacted_topic(connection)
    for n in range(12):
        put(connection, partition, f"{'abcdef'[n % 6]}{n} {'ghij'[n % 4]}{n}")
    passes = []
    while True:
        compactor, after = Compactor(min_dirty_ratio=0, window_bytes=600, rows_at_once=2), None
        while (after := compactor(connection, after, None).after) is not None:
            passes.append(place(connection, partition)[0])
        if passes[-1] == 24:
            break
    assert 3 < len(set(passes)) < 14
    assert seen(connection, partition) == "12:a6 14:b7 16:c8 17:g8 18:d9 19:h9 20:e10 21:i10 22:f11 23:j11"
    verified(client)


def test_a_log_that_grows_all_the_time_keeps_no_other_waiting(connection: Connection) -> None:
    """What comes during a pass waits for the next round."""
    growing, other = compacted_topic(connection, "a1 a2"), compacted_topic(connection, "a1 a2")
    removed = []
    for number in itertools.islice(pieces(connection, Compactor(min_dirty_ratio=0)), 20):
        removed.append(number)
        put(connection, growing, "a3")
    assert sum(removed) == 2
    assert len(removed) < 20, "it comes to an end"
    assert seen(connection, other) == "1:a2"


def test_a_pass_that_another_one_has_overtaken_leaves_the_log_to_it(connection: Connection) -> None:
    """Though its window was full: two cleaners do not do everything twice."""
    partition = compacted_topic(connection, "a1", "b1", "a2")
    slow = Compactor(min_dirty_ratio=0, window_bytes=1)
    after = went_on(slow, connection, None, 3)  # found, noted, rewritten
    assert compact(connection) == 1
    put(connection, partition, "b2")
    assert slow(connection, after, None).after == (partition,)
    assert slow(connection, (partition,), None).after is None
    assert seen(connection, partition) == "1:b1 2:a2 3:b2"


@pytest.mark.parametrize("limits", [{"rows_at_once": 1}, {"rows_at_once": 2, "window_bytes": 400}, {}])
def test_a_pass_may_end_anywhere_and_another_one_goes_on(
    connection: Connection, client: msgtx.Client, clock: Clock, limits: dict[str, int]
) -> None:
    """Killed after each of its SQL transactions in turn, it has lost nothing, and the next one comes to the same end."""
    for stop in itertools.count():
        clock("0")
        partition, writer = compacted_topic(connection, delete_retention_ms=1_000), Writer(connection)
        put(connection, partition, "a1 b1 c1")
        put(connection, partition, "a- d1")
        writer.send_and_abort(partition, b"x", b"x", keys=[b"b", b"e"])
        put(connection, partition, "c2 b2")
        put(connection, partition, "f-")
        put(connection, partition, "g1 f1 d2")
        run = pieces(connection, Compactor(**limits))
        ended = len(list(itertools.islice(run, stop))) < stop
        latest = {found.split(":")[1][0]: found.split(":")[1] for found in seen(connection, partition).split()}
        assert latest == {"a": "a-", "b": "b2", "c": "c2", "d": "d2", "f": "f1", "g": "g1"}
        verified(client)
        clock("10 s")
        compact(connection, **limits)  # it goes on where the last one came to
        clock("20 s")
        compact(connection, **limits)  # the tombstones' time is up
        assert seen(connection, partition) == "7:c2 8:b2 10:g1 11:f1 12:d2"
        assert place(connection, partition) == (13, False)
        verified(client)
        if ended:
            break


def test_two_compactors_at_one_log_do_each_other_no_harm(connection: Connection, client: msgtx.Client) -> None:
    """Cron beside a daemon: who reads a row that the other has changed gives up."""
    for lead in range(8):
        partition = compacted_topic(connection, "a1 b1 a2 c1", "c2 a3 d1")
        first, second = pieces(connection, Compactor(rows_at_once=1)), pieces(connection, Compactor(rows_at_once=1))
        list(itertools.islice(first, lead))
        for _ in itertools.zip_longest(first, second):
            pass
        compact(connection)
        assert seen(connection, partition) == "1:b1 4:c2 5:a3 6:d1"
        place(connection, partition)
    verified(client)


def test_rows_that_were_changed_since_they_were_read_are_left_alone(connection: Connection) -> None:
    partition = compacted_topic(connection, "a1 b1")
    (row,) = compaction.read_keys(connection, partition, 0, 9, with_tombstones=True, most_rows=9, most_bytes=1 << 20)
    first = [compaction.Rewrite(row, [1], waits=False)]
    assert compaction.compact_batches(connection, partition, first, seen=[], leases=None)[0] is not None
    assert compaction.compact_batches(connection, partition, first, seen=[], leases=None)[0] is None
    assert seen(connection, partition) == "1:b1"
    connection.execute(
        "update msgtx.record_batch set record_count = 2, base_sequence = 7 where partition_id = %s", [partition]
    )
    assert compaction.compact_batches(connection, partition, first, seen=[], leases=None)[0] is None, "another row"


def test_one_bad_partition_does_not_stop_the_rest(connection: Connection) -> None:
    """P12; and the next pass over it begins anew."""
    partitions = [compacted_topic(connection, "a1 b1 a2") for _ in range(3)]
    sweeper = Sweeper(["compaction"])
    with spoiled(connection, "record_batch", "update", f"old.partition_id = {partitions[1]}"):
        assert sweeper.round(connection).records_compacted == 2
    assert [seen(connection, partition)[0] for partition in partitions] == ["1", "0", "1"]
    assert sweeper.round(connection).records_compacted == 1
    assert seen(connection, partitions[1]) == "1:b1 2:a2"


def test_a_dry_run_compacts_nothing(connection: Connection, engine: Engine) -> None:
    partition = compacted_topic(connection, "a1 a2")
    assert sweep(engine, dry_run=True).records_compacted == 1
    assert seen(connection, partition) == "0:a1 1:a2"
    assert sweep(engine).records_compacted == 1
    assert not sweep(engine).records_compacted


# ── dedup, readers, retention ──


def test_a_retry_of_a_batch_that_was_emptied_is_a_duplicate(connection: Connection, client: msgtx.Client) -> None:
    """I1: dedup survives compaction, with the offset as it was."""
    partition, producer = compacted_topic(connection), init_producer_id(connection, None, timeout_ms=1_000)
    rows = [
        batch(partition, b"1", b"1", keys=[b"a", b"b"], producer=producer, sequence=0),
        batch(partition, b"2", b"2", keys=[b"a", b"c"], producer=producer, sequence=2),
        batch(partition, b"3", keys=[b"b"], producer=producer, sequence=4),
    ]
    for row in rows:
        append_one(connection, row)
    assert compact(connection) == 2
    for row, offset in zip(rows, (0, 2, 4), strict=True):
        again = append_one(connection, row)
        assert (again.error, again.duplicate, again.base_offset) == (None, True, offset)
    assert append_one(connection, batch(partition, b"4", keys=[b"d"], producer=producer, sequence=5)).base_offset == 5
    assert seen(connection, partition) == "2:a2 3:c2 4:b3 5:d4"
    verified(client)


def test_a_reader_goes_on_with_its_token_and_its_commits_over_a_compaction(connection: Connection) -> None:
    partition = compacted_topic(connection, "a1 b1", "a2", "b2 c1")
    tokens = {}
    for most in (1, 2, 3):
        answer = look(connection, partition, max_rows=most)
        tokens[answer.position] = answer.token
    assert compact(connection) == 2
    for position, token in tokens.items():
        assert token is not None
        assert not look(connection, partition, position, token=token).truncated
        metadata = GroupMetadata("compacted", read_identities={partition: token.partition(" ")[2]})
        commit_offsets(connection, {metadata: {partition: OffsetAndMetadata(position)}})


def test_a_consumer_passes_what_is_empty(client: msgtx.Client, connection: Connection) -> None:
    """It is never stuck, and does not spin: thousands of emptied rows, and a sparse one in the middle of which it begins."""
    partition = compacted_topic(connection)
    for n in range(1_200):
        plain(connection, partition, b"%d" % n, keys=[b"k"])
    put(connection, partition, "a1 b1 k9 c1 c2")
    compact(connection)
    put(connection, partition, "b2 c3")
    compact(connection)
    topic = topic_of(connection, partition)
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        found = consumer.poll(10)
        assert [(record.offset, record.value) for record in found] == [
            (1200, b"1"),
            (1202, b"9"),
            (1205, b"2"),
            (1206, b"3"),
        ]
        for start, first in ((1, 1200), (1201, 1202), (1203, 1205), (1204, 1205)):
            consumer.seek(TopicPartition(topic, 0), start)
            assert consumer.poll(10)[0].offset == first
        assert consumer.lag()[TopicPartition(topic, 0)] == 0
        assert consumer.position(TopicPartition(topic, 0)) == 1207
        assert consumer.poll(0.05) == []


def test_compact_and_delete_do_both(connection: Connection, client: msgtx.Client) -> None:
    partition = compacted_topic(connection, cleanup_policy="compact,delete", retention_ms=3_600_000)
    now = now_ms(connection)
    for n, age in enumerate((7_200_000, 7_200_000, 0, 0)):
        keys, values = row_columns(f"a{n} b{n}" if n % 2 else f"a{n} c{n}")
        plain(connection, partition, *values, keys=keys, timestamp=now - age)
    assert compact(connection) == 5
    assert seen(connection, partition) == "5:c2 6:a3 7:b3"
    assert retain(connection) == 2
    assert ends(connection, partition) == (4, 8, 8)
    assert seen(connection, partition, 4) == "5:c2 6:a3 7:b3"
    place(connection, partition)
    verified(client)
    delete_records(connection, {partition: LOG_END})
    assert retain(connection) == 2
    put(connection, partition, "a9 a8")
    assert compact(connection) == 1
    assert seen(connection, partition, 8) == "9:a8"
    place(connection, partition)
    verified(client)


def test_what_retention_removes_behind_the_compacted_part_was_not_counted_with_it(connection: Connection) -> None:
    partition = compacted_topic(connection, "a1 b1", cleanup_policy="compact,delete")
    compact(connection)
    assert place(connection, partition)[0] == 2
    put(connection, partition, "c1")
    put(connection, partition, "d1")
    delete_records(connection, {partition: 3})
    assert retain(connection) == 2
    place(connection, partition)
    assert seen(connection, partition, 3) == "3:d1"


def test_producers_are_not_held_up_and_another_cleaner_is_passed_by(
    connection: Connection, open_connection: Sessions
) -> None:
    partition = compacted_topic(connection, "a1 a2")
    cleaner, other = open_connection(), open_connection()
    with cleaner.transaction():
        assert compact(cleaner) == 1
        assert compact(other) == 0
        assert put(other, partition, "b1") == 2
        assert seen(other, partition) == "0:a1 1:a2 2:b1"
    assert seen(connection, partition) == "1:a2 2:b1"


def test_history_may_go_before_and_after(connection: Connection, clock: Clock, client: msgtx.Client) -> None:
    """P29: an aborted row without its decision is known by its marker."""
    for first in ("history", "compaction"):
        clock("0")
        partition, writer = compacted_topic(connection), Writer(connection)
        writer.send_and_commit(partition, b"1", keys=[b"a"])
        writer.send_and_abort(partition, b"2", keys=[b"a"])
        writer.commit_whole(writer.row(partition, b"3", keys=[b"b"]))
        mark(connection, everything=True)
        clock("8 days")
        for step in (first, *({"history", "compaction"} - {first})):
            if step == "history":
                assert sweeps.purge_transactions(connection, None, None).done["transactions_purged"] >= 2
            else:
                assert compact(connection) == 1
            assert seen(connection, partition) == "0:a1 2:b3"
        verified(client)
    assert count(connection, "transaction_marker", "outcome = 'ABORT'") == 2


# ── beside other partitions ──


def rows_of(connection: Connection, partition: int) -> list[Any]:
    """All that is stored of a partition and its log."""
    return [
        connection.execute(
            f"select t.* from msgtx.{table} t where partition_id = %s order by {order}", [partition]
        ).fetchall()
        for table, order in (("partition", "1"), ("record_batch", "base_offset"))
    ]


def test_a_pass_changes_its_own_log_alone(connection: Connection, clock: Clock) -> None:
    """Of it the rows that it names; the time of a tombstone counts from the first pass that has seen it."""
    places = [compacted_topic(connection, "a1 b1", "c-", "d-", "a2") for _ in range(3)]
    connection.execute(
        "update msgtx.partition p set counted_offset = 5, counted_bytes = (select sum(r.byte_size) from msgtx.record_batch r"
        " where r.partition_id = p.partition_id)"
    )
    _, partition, _ = places
    others = [rows_of(connection, each) for each in (places[0], places[2])]
    (row, *_) = compaction.read_keys(connection, partition, 0, 9, with_tombstones=True, most_rows=9, most_bytes=1 << 20)

    def times() -> list[Any]:
        return [
            each
            for (each,) in connection.execute(
                "select compacted_at from msgtx.record_batch where partition_id = %s order by base_offset", [partition]
            ).fetchall()
        ]

    rewrite = compaction.Rewrite(row, [1], waits=False)
    done_at, _ = compaction.compact_batches(connection, partition, [rewrite], seen=[2], leases=None)
    assert (seen(connection, partition), times()) == ("1:b1 2:c- 3:d- 4:a2", [None, done_at, None, None])
    assert place(connection, partition) == (0, False), "the pass is not over"
    clock("1 hour")
    later_at, _ = compaction.compact_batches(connection, partition, [], seen=[2, 3], leases=None)
    assert times() == [None, done_at, later_at, None]
    log = compaction.DirtyLog(partition, 0, 5)
    for done in (True, False):
        assert compaction.finish_compaction(connection, log, until=5, tombstones_since=done_at, leases=None) is done
        assert place(connection, partition) == (5, True)
    assert [rows_of(connection, each) for each in (places[0], places[2])] == others


@pytest.mark.parametrize("beside", ["compact", "delete"])
def test_only_the_policy_of_its_own_topic_counts(connection: Connection, beside: str) -> None:
    own = {"compact": "delete", "delete": "compact"}[beside]
    _, partition, _ = (new_partition(connection, cleanup_policy=policy) for policy in (beside, own, beside))
    put(connection, partition, "a1 b1")
    (row,) = compaction.read_keys(connection, partition, 0, 9, with_tombstones=True, most_rows=9, most_bytes=1 << 20)
    rewrite = compaction.Rewrite(row, [1], waits=False)
    done_at, _ = compaction.compact_batches(connection, partition, [rewrite], seen=[], leases=None)
    assert (done_at is not None) is (own == "compact")
    assert seen(connection, partition) == ("1:b1" if own == "compact" else "0:a1 1:b1")


@pytest.mark.parametrize("own_ms", [0, 3_600_000])
def test_the_time_of_a_tombstone_is_that_of_its_own_topic(connection: Connection, clock: Clock, own_ms: int) -> None:
    beside_ms = 3_600_000 - own_ms
    _, partition, _ = (compacted_topic(connection, delete_retention_ms=ms) for ms in (beside_ms, own_ms, beside_ms))
    put(connection, partition, "a-")
    compaction.compact_batches(connection, partition, [], seen=[0], leases=None)
    clock("1 minute")
    (row,) = compaction.read_keys(connection, partition, 0, 9, with_tombstones=True, most_rows=9, most_bytes=1 << 20)
    assert row.keyed.tombstones_expired is (own_ms == 0)


# ── one answer ──


def test_an_answer_holds_at_most_so_many_rows_and_bytes_and_none_that_is_empty(connection: Connection) -> None:
    """Of values it says only which are null, and only if it is asked."""
    partition = compacted_topic(connection, "a1", "b1 c-", "d1", "e1")

    def read_rows(most_rows: int, most_bytes: int, *, with_tombstones: bool = True) -> list[tuple[int, list[int]]]:
        found = compaction.read_keys(
            connection, partition, 0, 5, with_tombstones=with_tombstones, most_rows=most_rows, most_bytes=most_bytes
        )
        return [(row.keyed.base_offset, list(row.keyed.tombstones)) for row in found]

    (first, *_) = compaction.read_keys(connection, partition, 0, 1, with_tombstones=True, most_rows=9, most_bytes=1)
    compaction.compact_batches(connection, partition, [compaction.Rewrite(first, [], waits=False)], seen=[], leases=None)
    assert read_rows(9, 1 << 20) == [(1, [1]), (3, []), (4, [])]
    assert read_rows(9, 1 << 20, with_tombstones=False) == [(1, []), (3, []), (4, [])]
    assert read_rows(2, 1 << 20) == [(1, [1]), (3, [])]
    assert read_rows(9, 1) == [(1, [1])], "one row, however large"


# ── coordinators ──


STEPS: dict[str, Callable[[Connection, int, Leases], object]] = {
    "find": lambda connection, _, leases: compaction.find_dirty_log(connection, None, min_dirty_ratio=0, leases=leases),
    "rewrite": lambda connection, partition, leases: compaction.compact_batches(
        connection, partition, [], seen=[0], leases=leases
    ),
    "finish": lambda connection, partition, leases: compaction.finish_compaction(
        connection, compaction.DirtyLog(partition, 0, 1), until=1, tombstones_since=None, leases=leases
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_each_step_of_a_pass_is_the_leaders(connection: Connection, step: str) -> None:
    partition = compacted_topic(connection, "a-")
    leases = lease_shards(connection, None, host="here", process=1)
    before = rows_of(connection, partition)
    with pytest.raises(errors.CoordinatorFenced):
        STEPS[step](connection, partition, replace(leases, epochs={**leases.epochs, 7: 0}))
    assert rows_of(connection, partition) == before


def test_a_coordinator_compacts_for_its_shards_and_only_as_long_as_it_leads_them(connection: Connection) -> None:
    partition = compacted_topic(connection, "a1 a2 b1")
    leases = lease_shards(connection, None, host="here", process=1)
    others = {shard: epoch for shard, epoch in leases.epochs.items() if shard != partition % 50}
    compactor = Compactor()
    assert compactor(connection, None, replace(leases, epochs=others)).after is None, "another one's"
    after = went_on(compactor, connection, None, 3, leases)  # found, noted, nothing more to note
    for stale, error in (
        ({**leases.epochs, 7: 0}, errors.CoordinatorFenced),
        ({**leases.epochs, 7: 99}, errors.NotCoordinator),
    ):
        with pytest.raises(error):
            compactor(connection, after, replace(leases, epochs=stale))
        assert seen(connection, partition) == "0:a1 1:a2 2:b1"
        after = went_on(compactor, connection, None, 3, leases)  # from the start
    assert compactor(connection, after, replace(leases, epochs=others)).done == {}, "its shard has passed to another"
    assert sum(done.get("records_compacted", 0) for done in to_its_end(connection, compactor, leases)) == 1
    assert seen(connection, partition) == "1:a2 2:b1"


def test_of_a_log_whose_shard_has_passed_to_another_nothing_is_known_in_the_next_one(connection: Connection) -> None:
    """A record of the same key at a higher offset of that log supersedes nothing here."""
    first, second = compacted_topic(connection), compacted_topic(connection)
    put(connection, second, "a1")
    assert compact(connection) == 0
    put(connection, second, "b1 b2")
    put(connection, first, "c1 c2 c3 a4")
    put(connection, first, "d1")
    leases = lease_shards(connection, None, host="here", process=1)
    compactor = Compactor(min_dirty_ratio=0, rows_at_once=1)
    after = went_on(compactor, connection, None, 5, leases)  # found, two rows noted, nothing more to note, one rewritten
    left = replace(leases, epochs={shard: epoch for shard, epoch in leases.epochs.items() if shard != first % 50})
    while after is not None:
        after = compactor(connection, after, left).after
    assert seen(connection, first) == "2:c3 3:a4 4:d1"
    assert seen(connection, second) == "0:a1 2:b2"
