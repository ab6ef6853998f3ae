"""Retention: the log start moves, rows go from the front, and nothing else changes (internals: cleaning#retention)."""

from typing import Any

import psycopg
import pytest

import msgtx
from msgtx import errors
from msgtx.coordinator.sweep import SELDOM_SECONDS, Sweeper, sweep
from msgtx.database.calls import query
from msgtx.database.pool import Engine
from msgtx.store.fetch.fetch import list_offsets
from msgtx.store.fetch.records import count_records, first_records
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.sweeps import sweeps
from msgtx.store.topics.retention import LOG_END, delete_records
from msgtx.store.topics.topics import alter_topic
from msgtx.store.transactions.producers import describe_producers, init_producer_id
from msgtx.store.transactions.transactions import mark
from msgtx.types import GroupMetadata, OffsetAndMetadata, TransactionId
from tests.databases import Clock, Connection, Sessions
from tests.refusals import refuses
from tests.store.conftest import Settings
from tests.store.steps import (
    COMMITTED,
    UNCOMMITTED,
    Writer,
    append_one,
    batch,
    count,
    ends,
    fill,
    forget,
    look,
    new_partition,
    new_topic,
    plain,
    plain_batches,
    read,
    spoiled,
    swept_by,
    to_its_end,
    topic_of,
    values,
)

pytestmark = pytest.mark.usefixtures("bare")
HOUR_MS = 3_600_000


def retain(connection: Connection) -> int:
    """Run the sweep to its end. Returns how many rows it removed."""
    return sum(retained(connection))


def retained(connection: Connection) -> list[int]:
    """Run the sweep to its end. Returns how many rows each call removed."""
    return [done["batches_removed"] for done in to_its_end(connection, sweeps.remove_old_batches)]


def now_ms(connection: Connection) -> int:
    ((milliseconds,),) = query(connection, "select floor(extract(epoch from msgtx.clock()) * 1000)::bigint")
    return int(milliseconds)


def rows(connection: Connection, partition: int) -> int:
    return count(connection, "record_batch", "partition_id = %s", partition)


def verified(client: msgtx.Client) -> None:
    report = client.admin.verify()
    assert report.violations == []


# ── delete_records ──


def test_the_log_start_moves_at_once_also_into_a_row(connection: Connection, partition: int) -> None:
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
    other, (first, second) = new_partition(connection), new_topic(connection, 2)
    for partition in (first, second):
        plain(connection, partition, b"a", b"b", b"c")
    assert delete_records(connection, {second: LOG_END, first: 1}) == {first: 1, second: 3}
    assert delete_records(connection, {first: 0, second: 2}) == {first: 1, second: 3}
    place = f"{topic_of(connection, second)}-1"
    for wrong in (4, -2):
        with refuses(errors.OffsetOutOfRange, offset=wrong, limit=3):
            delete_records(connection, {first: 2, second: wrong})
    with refuses(errors.OffsetOutOfRange, offset=1, limit=0):
        delete_records(connection, {other: 1})
    with pytest.raises(psycopg.Error, match=f"{place}: offset NULL is not in the log"):
        connection.execute("select msgtx.delete_records(%s, array[2, null]::bigint[])", [[first, second]])
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
    assert read(connection, partition, 3) == [(3, b"d")]


def test_a_reader_at_the_log_start_does_not_pass_what_was_opened_in_front_of_it(connection: Connection) -> None:
    """I5: its position is not stable there, though it is not above the last stable offset (P22)."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    plain(connection, partition, b"b")
    delete_records(connection, {partition: 1})
    answer = look(connection, partition, 1)
    for value in (b"c", b"d"):
        writer.send(partition, value)
        answer = look(connection, partition, answer.position, token=answer.token)
        assert (answer.position, answer.last_stable_offset, answer.batches) == (1, 1, [])
        assert answer.blocked_by == writer.name
    writer.commit()
    answer = look(connection, partition, answer.position, token=answer.token)
    assert [row.base_offset for row in answer.batches] == [1, 2, 3]


def test_a_row_that_the_log_start_divides_is_read_when_it_is_stable(connection: Connection) -> None:
    """I5: by fetch, views, look-ups and counts."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"open")
    plain(connection, partition, b"a", b"b", timestamp=500)
    delete_records(connection, {partition: 2})

    def views() -> list[tuple[int]]:
        return connection.execute(
            'select "offset" from msgtx.committed_records where partition_id = %s', [partition]
        ).fetchall()

    assert ends(connection, partition) == (2, 2, 3)
    assert read(connection, partition, 2) == []
    assert views() == []
    assert count_records(connection, {partition: 2}, COMMITTED) == {partition: 0}
    assert list_offsets(connection, {partition: 400}, COMMITTED)[partition].offset is None
    assert first_records(connection, {partition: 2}) == {}
    assert read(connection, partition, 2, isolation=UNCOMMITTED) == [(2, b"b")]
    writer.commit()
    assert read(connection, partition, 2) == [(2, b"b")]
    assert views() == [(2,)]
    assert count_records(connection, {partition: 2}, COMMITTED) == {partition: 1}
    assert list_offsets(connection, {partition: 400}, COMMITTED)[partition].offset == 2
    assert first_records(connection, {partition: 2})[partition].record_offset == 2


def test_an_append_behind_an_emptied_log_gets_the_next_offset(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a", b"b")
    delete_records(connection, {partition: LOG_END})
    assert append_one(connection, batch(partition, b"c")).base_offset == 2
    assert values(connection, partition, 2) == [b"c"]


# ── by age ──


def test_old_rows_go_from_the_front_and_the_log_start_moves_with_them(connection: Connection, client: msgtx.Client) -> None:
    partition, now = new_partition(connection, retention_ms=HOUR_MS), now_ms(connection)
    for age in (3, 2, 0, 2):
        plain(connection, partition, b"a", b"b", timestamp=now - age * HOUR_MS)
    assert retain(connection) == 2
    assert ends(connection, partition) == (4, 8, 8)
    assert [offset for offset, _ in read(connection, partition, 4)] == [4, 5, 6, 7], "an old one behind a new one stays"
    assert retain(connection) == 0
    verified(client)


def test_an_emptied_log_goes_on_where_it_was(connection: Connection, client: msgtx.Client) -> None:
    """I2: offsets are not used again (P24)."""
    partition = new_partition(connection, retention_ms=HOUR_MS)
    plain(connection, partition, b"a", b"b")
    assert retain(connection) == 1
    assert (rows(connection, partition), ends(connection, partition)) == (0, (2, 2, 2))
    assert plain(connection, partition, b"c", timestamp=now_ms(connection)) == 2
    assert read(connection, partition, 2) == [(2, b"c")]
    verified(client)


def test_the_age_of_a_log_is_that_of_its_own_first_row(connection: Connection) -> None:
    other, partition = new_partition(connection), new_partition(connection, retention_ms=HOUR_MS)
    plain(connection, other, *[b"new"] * 10, timestamp=now_ms(connection))
    for _ in range(2):
        plain(connection, partition, b"old")
        assert retain(connection) == 1


@pytest.mark.parametrize(
    ("timestamp", "goes"),
    [(1_000, True), (0, True), (-1, False), (-5_000, False), (253_370_764_799_999, False), (1 << 60, False)],
    ids=["long ago", "1970", "none", "below none", "in the future", "beyond all times"],
)
def test_a_timestamp_that_cannot_be_the_age_counts_as_the_time_of_the_append(
    connection: Connection, clock: Clock, timestamp: int, goes: bool
) -> None:
    """A clock that is ahead does not keep what lies behind its records forever."""
    partition = new_partition(connection, retention_ms=HOUR_MS)
    plain(connection, partition, b"a", timestamp=0)
    # Not by an append: it refuses times that no record may have.
    connection.execute("update msgtx.record_batch set max_timestamp = %s where partition_id = %s", [timestamp, partition])
    assert (retain(connection) == 1) is goes
    clock("61 minutes")
    retain(connection)
    assert rows(connection, partition) == 0


def test_without_retention_and_on_a_compacted_topic_age_removes_nothing(connection: Connection) -> None:
    for settings in ({"retention_ms": -1}, {"retention_ms": 1, "cleanup_policy": "compact"}):
        plain(connection, new_partition(connection, **settings), b"a", keys=[b"k"])
    both = new_partition(connection, retention_ms=1, cleanup_policy="compact,delete")
    plain(connection, both, b"a", keys=[b"k"])
    assert retain(connection) == 1
    assert rows(connection, both) == 0


# ── by size ──


def test_the_front_goes_as_long_as_the_rest_is_large_enough(connection: Connection, client: msgtx.Client) -> None:
    """As in Kafka: retention_bytes is what is kept at least."""
    partition = new_partition(connection, retention_bytes=5_000)
    plain_batches(connection, partition, *[b"x" * 1_000] * 10)
    (size,) = connection.execute(
        "select max(byte_size) from msgtx.record_batch where partition_id = %s", [partition]
    ).fetchone() or (0,)
    kept = -(-5_000 // size)
    assert retain(connection) == 10 - kept
    assert ends(connection, partition) == (10 - kept, 10, 10)
    assert retain(connection) == 0
    plain(connection, partition, b"x" * 1_000)
    assert retain(connection) == 1
    alter_topic(connection, topic_of(connection, partition), None, {"retention_bytes": 0})
    assert retain(connection) == kept
    assert ends(connection, partition) == (11, 11, 11)
    verified(client)


def counters(connection: Connection, partition: int) -> tuple[int, int]:
    (row,) = query(
        connection, "select counted_offset, counted_bytes from msgtx.partition where partition_id = %s", partition
    )
    return row[0], row[1]


def test_a_long_log_is_counted_once(connection: Connection) -> None:
    """What was counted is not read again; what goes is taken off."""
    partition = new_partition(connection, retention_bytes=1 << 40)
    fill(connection, partition, 12_000)
    assert sweeps.remove_old_batches(connection, None, None).after is not None
    assert counters(connection, partition) == (10_000, 1_000_000)
    assert retain(connection) == 0
    assert counters(connection, partition) == (12_000, 1_200_000)
    plain(connection, partition, b"x")
    assert retain(connection) == 0
    assert counters(connection, partition) == (12_000, 1_200_000), "few rows more are not worth an update"
    topic = topic_of(connection, partition)
    alter_topic(connection, topic, None, {"retention_bytes": 300_000})
    assert retain(connection) == 9_000
    assert counters(connection, partition) == (12_000, 300_000)
    alter_topic(connection, topic, None, {"retention_bytes": 0})
    assert retain(connection) == 3_001
    assert counters(connection, partition) == (12_000, 0)


def test_each_log_is_counted_by_its_own_rows(connection: Connection) -> None:
    """Beside a log that is larger than this one may be."""
    counted = {}
    for rows, retention_bytes in ((3_000, 1 << 40), (1_001, 150_000)):
        partition = new_partition(connection, retention_bytes=retention_bytes)
        fill(connection, partition, rows)
        counted[partition] = (rows, 100 * rows)
    for _ in range(2):
        assert retain(connection) == 0
        assert {partition: counters(connection, partition) for partition in counted} == counted


# ── what is undecided stays ──


@pytest.mark.parametrize("settings", [{"retention_ms": 1}, {"retention_bytes": 0}, {"deleted": True}])
def test_what_is_undecided_stays_whatever_the_policy(
    connection: Connection, client: msgtx.Client, settings: dict[str, Any]
) -> None:
    """And what lies behind it; once it is decided both go."""
    deleted = settings.pop("deleted", False)
    partition, writer = new_partition(connection, **settings), Writer(connection)
    plain(connection, partition, b"before")
    writer.send(partition, b"open")
    plain(connection, partition, b"behind")
    if deleted:
        delete_records(connection, {partition: LOG_END})
    assert retain(connection) == 1
    assert rows(connection, partition) == 2
    assert ends(connection, partition) == ((3, 3, 3) if deleted else (1, 1, 3))
    (writer.abort if deleted else writer.commit)()
    assert retain(connection) == 2
    assert ends(connection, partition) == (3, 3, 3)
    writer.send_and_commit(partition, b"next")
    assert read(connection, partition, 3) == [(3, b"next")]
    verified(client)


def test_a_row_that_holds_the_log_start_stays(connection: Connection, client: msgtx.Client) -> None:
    """However old it is, where age removes nothing."""
    partition = new_partition(connection, cleanup_policy="compact", retention_ms=1)
    for _ in range(2):
        plain(connection, partition, b"a", b"b", keys=[b"k", b"l"])
    delete_records(connection, {partition: 1})
    assert retain(connection) == 0
    delete_records(connection, {partition: 3})
    assert retain(connection) == 1
    assert read(connection, partition, 3) == [(3, b"b")]
    verified(client)


# ── what is known of producers ──


def test_a_retry_of_a_batch_that_is_gone_is_a_duplicate(connection: Connection, client: msgtx.Client) -> None:
    """I1: dedup survives retention."""
    partition, producer = new_partition(connection, retention_bytes=0), init_producer_id(connection, None, timeout_ms=1_000)
    for sequence in (0, 2):
        append_one(connection, batch(partition, b"a", b"b", producer=producer, sequence=sequence))
    assert retain(connection) == 2
    for sequence in (2, 0):
        retried = append_one(connection, batch(partition, b"a", b"b", producer=producer, sequence=sequence))
        assert (retried.error, retried.duplicate, retried.base_offset) == (None, True, -1)
    gap = append_one(connection, batch(partition, b"c", producer=producer, sequence=5))
    assert isinstance(gap.error, errors.OutOfOrderSequence)
    assert append_one(connection, batch(partition, b"c", producer=producer, sequence=4)).base_offset == 4
    (known,) = describe_producers(connection, partition)
    assert known.last_sequence == 4
    assert retain(connection) == 1
    (known,) = describe_producers(connection, partition)
    assert (known.producer_id, known.epoch, known.last_sequence) == (*producer, 4), "the newest is what is kept"
    verified(client)


def test_what_is_kept_of_a_producer_is_what_it_wrote_to_that_partition(connection: Connection, client: msgtx.Client) -> None:
    """I1: it has written more to another one."""
    other, partition = new_partition(connection), new_partition(connection, retention_bytes=0)
    producer = init_producer_id(connection, None, timeout_ms=1_000)
    for place, sequence in ((other, 0), (partition, 0), (other, 2), (other, 4)):
        append_one(connection, batch(place, b"a", b"b", producer=producer, sequence=sequence))
    assert retain(connection) == 1
    retried = append_one(connection, batch(partition, b"a", b"b", producer=producer, sequence=0))
    assert (retried.error, retried.duplicate, retried.base_offset) == (None, True, -1)
    assert append_one(connection, batch(partition, b"c", producer=producer, sequence=2)).base_offset == 2
    verified(client)


def test_a_transactional_producer_goes_on_behind_what_is_gone(connection: Connection, client: msgtx.Client) -> None:
    partition, writer = new_partition(connection, retention_bytes=0), Writer(connection)
    writer.send_and_commit(partition, b"a", b"b")
    (whole,) = writer.commit_whole(writer.row(partition, b"c"))
    assert retain(connection) == 2
    writer.send(partition, b"d")
    assert writer.decide("ABORT").last_sequences == {partition: 3}
    writer.next()
    assert retain(connection) == 1
    assert writer.decide("ABORT", tails={partition: 9}).last_sequences == {partition: 3}, "told from what is kept"
    writer.next()
    writer.commit_whole(writer.row(partition, b"e"))
    assert read(connection, partition, whole + 2) == [(4, b"e")]
    verified(client)


def test_a_call_that_decided_is_answered_by_its_decision(connection: Connection) -> None:
    partition, writer = new_partition(connection, retention_bytes=0), Writer(connection)
    row = writer.row(partition, b"a")
    (first,) = writer.whole(row)
    assert retain(connection) == 1
    (again,) = writer.whole(row)
    assert (again.error, again.duplicate, again.base_offset) == (None, True, first.base_offset)


def test_only_the_newest_row_of_a_producer_is_worth_keeping_and_only_for_its_time(
    connection: Connection, clock: Clock, settings: Settings
) -> None:
    settings(producer_id_expiration_ms=HOUR_MS)
    partition = new_partition(connection, retention_bytes=100)
    stays, goes = (init_producer_id(connection, None, timeout_ms=1_000) for _ in range(2))
    for sequence, producer in ((0, stays), (0, goes), (1, stays)):
        append_one(connection, batch(partition, b"x" * 200, producer=producer, sequence=sequence))
    assert retain(connection) == 2
    kept = connection.execute("select producer_id, last_sequence from msgtx.producer_state").fetchall()
    assert kept == [(goes.producer_id, 0)]
    clock("61 minutes")
    sweep_ids(connection)
    assert count(connection, "producer_state") == 0, "what is kept expires with the producer's id"
    delete_records(connection, {partition: LOG_END})
    assert retain(connection) == 1
    assert count(connection, "producer_state") == 0, "what has expired is not kept"


def sweep_ids(connection: Connection) -> None:
    assert sweeps.remove_idle_producers(connection, None, None).after is None


# ── history ──


@pytest.mark.parametrize("first", ["retention", "history"])
def test_an_abort_marker_goes_with_its_history_and_its_last_batch(
    connection: Connection, partition: int, writer: Writer, clock: Clock, client: msgtx.Client, first: str
) -> None:
    """P29: while one of them is there, it is."""
    writer.send(partition, b"a")
    writer.send_and_abort(partition, b"b")
    writer.commit_whole(writer.row(partition, b"c"))
    mark(connection, everything=True)
    clock("8 days")
    aborts = ("transaction_marker", "outcome = 'ABORT'")
    for step in (first, {"retention": "history", "history": "retention"}[first]):
        assert count(connection, *aborts) == 1
        if step == "history":
            assert sweeps.purge_transactions(connection, None, None).done == {"transactions_purged": 1}
        else:
            delete_records(connection, {partition: 1})
            assert retain(connection) == 1
            assert values(connection, partition, 1) == [b"c"]
            assert count(connection, *aborts) == 1
            delete_records(connection, {partition: 2})
            assert retain(connection) == 1
    assert count(connection, *aborts) == 0
    assert values(connection, partition, 2) == [b"c"]
    verified(client)


def test_with_a_log_go_its_own_abort_markers_and_no_others(connection: Connection) -> None:
    """I5, P10: those that share all but one part of their name with another, or their name with another partition's."""
    before, partition, behind = (new_partition(connection) for _ in range(3))
    writer, stranger = Writer(connection), Writer(connection)
    others = [Writer(connection) for _ in range(2)]

    def aborted(*writers: Writer) -> list[TransactionId]:
        for each in writers:
            for place in (before, partition, behind):
                each.send(place, b"aborted")
        return [each.abort() for each in writers]

    plain(connection, partition, b"x")
    gone = [*aborted(writer, stranger), *aborted(writer)]
    writer.init()
    gone += aborted(writer)
    upto = ends(connection, partition)[2]
    for place in (before, behind):
        plain_batches(connection, place, b"a", b"b")
    writer.init()
    kept = aborted(others[0], writer, others[1])  # what is in the history keeps no marker of a namesake
    mark(connection, everything=True)
    for name in gone:
        forget(connection, name)
    delete_records(connection, {partition: upto})
    assert retain(connection) == 5

    def marked(place: int) -> list[TransactionId]:
        found = connection.execute(
            "select producer_id, producer_epoch, transaction_number from msgtx.transaction_marker"
            " where partition_id = %s order by first_offset",
            [place],
        ).fetchall()
        return [TransactionId(*name) for name in found]

    assert marked(partition) == kept
    assert [marked(place) for place in (before, behind)] == [[*gone, *kept]] * 2
    assert [values(connection, place) for place in (before, behind)] == [[b"a", b"b"]] * 2


def test_the_history_of_an_emptied_log_can_go(connection: Connection, writer: Writer, clock: Clock) -> None:
    """What retention removed before its markers were written is below the floor, too."""
    full, partition = new_partition(connection), new_partition(connection, retention_bytes=0)
    for _ in range(3):
        writer.commit_whole(writer.row(partition, b"a"))
    plain(connection, full, b"a")
    assert retain(connection) == 3
    mark(connection, everything=True)
    clock("8 days")
    assert sweeps.purge_transactions(connection, None, None).done == {"transactions_purged": 2}
    plain(connection, new_partition(connection, retention_bytes=0), b"a")
    assert retain(connection) == 1
    assert mark(connection, everything=True) == (0, 1)
    assert mark(connection, everything=True) == (0, 0), "an emptied log is settled once"


# ── readers ──


def test_a_reader_goes_on_with_its_token_and_its_commits_over_a_cleaning(connection: Connection, partition: int) -> None:
    """A row that retention removed is no truncation; one below the log start is out of range."""
    plain_batches(connection, partition, b"a", b"b", b"c", b"d")
    answer = look(connection, partition, max_rows=2)
    assert answer.position == 2
    assert answer.token is not None
    metadata = GroupMetadata("cleaned", read_identities={partition: answer.token.partition(" ")[2]})
    for before in (1, 2):
        delete_records(connection, {partition: before})
        retain(connection)
        again = look(connection, partition, 2, token=answer.token)
        assert (again.truncated, again.batches[0].base_offset) == (False, 2)
        commit_offsets(connection, {metadata: {partition: OffsetAndMetadata(2)}})
    delete_records(connection, {partition: LOG_END})
    retain(connection)
    again = look(connection, partition, 2, token=answer.token)
    assert (again.truncated, again.log_start_offset, again.batches) == (False, 4, [])
    commit_offsets(connection, {metadata: {partition: OffsetAndMetadata(2)}})


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_a_consumer_that_retention_has_overtaken_is_reset(client: msgtx.Client, connection: Connection, reset: str) -> None:
    partition = new_partition(connection)
    topic = topic_of(connection, partition)
    plain_batches(connection, partition, b"a", b"b", b"c")
    with client.consumer(topic, auto_offset_reset=reset) as consumer:
        consumer.seek(msgtx.TopicPartition(topic, 0), 0)
        client.admin.partitions.delete_records({msgtx.TopicPartition(topic, 0): 2})
        if reset == "none":
            with pytest.raises(errors.OffsetOutOfRange):
                consumer.poll(5)
            return
        found = consumer.poll(5 if reset == "earliest" else 0.2)
        plain(connection, partition, b"d")
        found += consumer.poll(5)
        assert [record.value for record in found] == ([b"c", b"d"] if reset == "earliest" else [b"d"])


# ── beside others ──


def test_producers_are_not_held_up_and_another_cleaner_is_passed_by(
    connection: Connection, open_connection: Sessions
) -> None:
    partition, writer = new_partition(connection, retention_bytes=0), Writer(connection)
    writer.commit_whole(writer.row(partition, b"a"))
    cleaner, other = open_connection(), open_connection()
    with cleaner.transaction():
        assert retain(cleaner) == 1
        assert retain(other) == 0
        writer.connection = other
        writer.send_and_commit(partition, b"b")
        (again,) = writer.whole(writer.row(partition, b"c"))
        assert (again.error, again.base_offset) == (None, 2)
        assert read(other, partition) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert ends(connection, partition) == (1, 3, 3)
    assert read(connection, partition, 1) == [(1, b"b"), (2, b"c")]
    assert retain(connection) == 2


def test_behind_a_partition_that_another_cleaner_has_the_others_are_cleaned(
    connection: Connection, session: Connection
) -> None:
    partitions = new_topic(connection, 3, retention_bytes=0)
    for partition in partitions:
        plain(connection, partition, b"a")
    with session.transaction():
        session.execute("select from msgtx.partition where partition_id = %s for update", [partitions[1]])
        assert retain(connection) == 2
    assert [ends(connection, partition)[0] for partition in partitions] == [1, 0, 1]


def test_a_pass_that_removes_nothing_writes_nothing(connection: Connection) -> None:
    partition = new_partition(connection, retention_bytes=1 << 40)
    plain(connection, partition, b"a")
    version = ("select ctid from msgtx.partition where partition_id = %s", [partition])
    before = connection.execute(*version).fetchone()
    assert retain(connection) == 0
    assert connection.execute(*version).fetchone() == before


@pytest.mark.parametrize("bad", [0, 1])
def test_one_bad_partition_does_not_stop_the_rest(connection: Connection, bad: int) -> None:
    """P12: also where it comes first."""
    partitions = new_topic(connection, 3, retention_bytes=0)
    for partition in partitions:
        plain(connection, partition, b"a")
    with spoiled(connection, "record_batch", "delete", f"old.partition_id = {partitions[bad]}"):
        assert retain(connection) == 2
    assert [ends(connection, partition)[0] for partition in partitions] == [int(place != bad) for place in range(3)]
    assert retain(connection) == 1


def test_a_long_front_goes_in_bounded_batches(connection: Connection) -> None:
    partition, other = new_topic(connection, 2, retention_ms=1)
    for where in (partition, other):
        fill(connection, where, 2_500)
    assert retained(connection) == [1_000] * 5 + [0]
    assert (ends(connection, partition)[0], ends(connection, other)[0]) == (2_500, 2_500)


def test_large_rows_go_in_bounded_batches(connection: Connection) -> None:
    """A call begins no row beyond 32 MiB, and a pass goes on to the end."""
    partition, other = new_topic(connection, 2, retention_ms=1)
    for where in (partition, other):
        fill(connection, where, 5, byte_size=20 << 20)
    removed = retained(connection)
    assert (sum(removed), max(removed)) == (10, 2)


@pytest.mark.parametrize("most", [1, 2, 500])
def test_a_pass_over_partitions_goes_on_where_it_came_to(connection: Connection, most: int) -> None:
    for partition in new_topic(connection, 5, retention_bytes=0):
        plain(connection, partition, b"a")
    removed = swept_by(connection, "remove_old_batches", most)
    assert (sum(removed), len(removed) <= 6) == (5, True)


def test_large_rows_go_in_steps_also_where_each_is_of_another_partition(connection: Connection) -> None:
    """Some 32 MiB in a call."""
    partitions = new_topic(connection, 5, retention_bytes=0)
    for partition in partitions:
        fill(connection, partition, 1)
    connection.execute("update msgtx.record_batch set byte_size = 20000000")
    assert retained(connection) == [2, 2, 1]


def test_a_dry_run_removes_nothing(connection: Connection, engine: Engine) -> None:
    partition = new_partition(connection, retention_bytes=0)
    plain(connection, partition, b"a")
    assert sweep(engine, dry_run=True).batches_removed == 1
    assert ends(connection, partition) == (0, 1, 1)
    assert sweep(engine).batches_removed == 1
    assert ends(connection, partition) == (1, 1, 1)


def test_in_a_daemon_the_sweep_rests_after_a_pass(connection: Connection) -> None:
    """What it looks for takes its time; cron's round does all at once."""
    partition, sweeper = new_partition(connection, retention_bytes=0), Sweeper(["retention"])
    assert SELDOM_SECONDS["retention"] > 1
    removed = []
    for seconds in (0.1, 0.1, None):
        plain(connection, partition, b"a")
        removed.append(sweeper.round(connection, step_seconds=seconds).batches_removed)
    assert removed == [1, 0, 2]
