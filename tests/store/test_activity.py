"""What activity tells of records and transactions over time: right, honest about what is gone, at a bounded cost."""

from datetime import UTC, datetime, timedelta

from msgtx.database.calls import query
from msgtx.store.append.append import append
from msgtx.store.monitoring import MeasuredPiece, measure_activity
from msgtx.store.sweeps import sweeps
from msgtx.store.topics.retention import delete_records
from tests.databases import Clock, Connection
from tests.store.steps import Writer, batch, named_topic, to_its_end
from tests.store.test_growth import LOOKS

MINUTE_MS = 60_000
NOON = datetime(2040, 1, 1, 12, 0, 30, tzinfo=UTC)
MOST_LOOKS = 250_000


def at(clock: Clock, minutes: float) -> None:
    clock(NOON + timedelta(minutes=minutes))


def pieces(connection: Connection, topic: str, count: int = 5) -> list[MeasuredPiece]:
    return measure_activity(connection, topic, pieces=count, piece_ms=MINUTE_MS)


def records(connection: Connection, topic: str, count: int = 5) -> list[int | None]:
    return [one.records for one in pieces(connection, topic, count)]


def test_records_count_in_the_piece_in_which_they_were_stored(connection: Connection, clock: Clock) -> None:
    topic, (first, second, _) = named_topic(connection, 3)
    for minutes, partition, count in ((0, first, 3), (1, first, 1), (1, second, 2), (3, second, 4)):
        at(clock, minutes)
        append(connection, [batch(partition, *[b"x"] * count)])
    assert records(connection, topic) == [0, 3, 3, 0, 4]
    assert records(connection, topic, 2) == [0, 4]
    assert records(connection, topic, 1) == [4]
    found = pieces(connection, topic)
    assert {(one.removed, one.estimated) for one in found} == {(0, False)}
    assert [one.piece_start for one in found] == [
        datetime(2040, 1, 1, 11 + (59 + m) // 60, (59 + m) % 60, tzinfo=UTC) for m in range(5)
    ]
    assert [one.piece_end for one in found[:-1]] == [one.piece_start for one in found[1:]]
    at(clock, 60)
    assert records(connection, topic) == [0, 0, 0, 0, 0]


def test_many_rows_are_counted_as_few_are(connection: Connection, clock: Clock) -> None:
    """The search by halves finds each boundary, whatever the rows' sizes are."""
    topic, (partition,) = named_topic(connection)
    stored = []
    for minute in range(9):
        at(clock, minute)
        for row in range(minute * 3 % 7):
            append(connection, [batch(partition, *[b"x"] * (1 + row))])
        stored.append(sum(1 + row for row in range(minute * 3 % 7)))
    assert records(connection, topic, 9) == stored


def test_transactions_count_by_the_time_of_their_decision(connection: Connection, clock: Clock) -> None:
    topic, (partition,) = named_topic(connection)
    other, (elsewhere,) = named_topic(connection)
    at(clock, 0)
    late = Writer(connection, timeout_ms=600_000)
    late.send(partition, b"x")
    Writer(connection).send_and_commit(partition, b"x")
    Writer(connection).send_and_commit(elsewhere, b"x")
    at(clock, 1)
    Writer(connection).send_and_abort(partition, b"x")
    at(clock, 2)
    late.commit()
    assert [(one.committed, one.aborted) for one in pieces(connection, topic, 3)] == [(1, 0), (0, 1), (1, 0)]
    assert [(one.committed, one.aborted) for one in pieces(connection, other, 3)] == [(1, 0), (0, 0), (0, 0)]
    assert records(connection, topic, 3) == [2, 1, 0]


def test_what_retention_has_removed_is_unknown_and_not_nothing(connection: Connection, clock: Clock) -> None:
    topic, (first, second) = named_topic(connection, 2, retention_ms=-1)
    for minute in range(3):
        at(clock, minute)
        append(connection, [batch(first, b"x"), batch(second, b"x", b"x")])
    delete_records(connection, {first: 2})
    list(to_its_end(connection, sweeps.remove_old_batches))
    assert [(one.records, one.removed) for one in pieces(connection, topic, 3)] == [(2, 1), (2, 1), (2, 1)]
    delete_records(connection, {first: 3, second: 6})
    list(to_its_end(connection, sweeps.remove_old_batches))
    assert [(one.records, one.removed) for one in pieces(connection, topic, 3)] == [(None, 2), (None, 2), (None, 2)]


def test_transactions_whose_history_is_over_are_unknown(connection: Connection, clock: Clock) -> None:
    topic, _ = named_topic(connection)
    at(clock, 0)
    found = measure_activity(connection, topic, pieces=10, piece_ms=24 * 60 * MINUTE_MS)
    assert [one.committed for one in found] == [None] * 3 + [0] * 7
    assert [one.records for one in found] == [0] * 10


def test_a_busy_piece_is_estimated_and_says_so(connection: Connection, clock: Clock) -> None:
    """Of 48,000 decisions, spread evenly over four minutes, and a burst that stands at the beginning of the fifth."""
    topic, (partition,) = named_topic(connection)
    at(clock, 0)
    query(
        connection,
        """insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,
            decided_by, partitions, first_offsets, last_offsets)
           select 1000000 + i, 0, 0, case when i %% 4 = 0 then 'ABORT' else 'COMMIT' end,
                  case when i <= 48000 then %s - i * interval '5 ms' else %s + i * interval '1 microsecond' end,
                  'client', array[%s::int], '{0}', '{0}' from generate_series(1, 58000) i returning 1""",
        NOON.replace(second=0, minute=0),
        NOON.replace(second=0, minute=0),
        partition,
    )
    found = pieces(connection, topic)
    assert [one.estimated for one in found] == [True] * 5
    for one in found[:-1]:
        assert one.committed is not None
        assert one.aborted is not None
        assert 8_500 <= one.committed <= 9_500
        assert 2_700 <= one.aborted <= 3_300
    assert found[-1].committed is not None
    assert found[-1].committed < 20_000


def test_its_cost_has_a_bound(connection: Connection, clock: Clock) -> None:
    """12,000 partitions, all of them written to; a sample of them stands for all."""
    topic, _ = named_topic(connection, 10)
    query(
        connection,
        """with made as (
               insert into msgtx.partition (topic_id, partition_index)
               select t.topic_id, i from msgtx.topic t cross join generate_series(10, 11999) i where t.name = %s
               returning partition_id)
           insert into msgtx.record_batch (partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count,
                                           byte_size, "values")
           select m.partition_id, i, i, %s::timestamptz + i * interval '1 minute', 0, 1, 1, array['x'::bytea]
           from made m cross join generate_series(0, 3) i returning 1""",
        topic,
        NOON,
    )
    at(clock, 3)
    with connection.transaction():
        before = query(connection, LOOKS)[0][0]
        found = measure_activity(connection, topic, pieces=60, piece_ms=MINUTE_MS)
        assert query(connection, LOOKS)[0][0] - before < MOST_LOOKS
    for one in found[-4:]:
        assert one.records is not None
        assert 11_000 <= one.records <= 12_000
        assert one.estimated
    assert {one.records for one in found[:-4]} == {0}


def test_an_empty_database_has_no_activity(connection: Connection) -> None:
    topic, _ = named_topic(connection)
    assert [(one.records, one.committed, one.aborted, one.estimated) for one in pieces(connection, topic)] == [
        (0, 0, 0, False)
    ] * 5
