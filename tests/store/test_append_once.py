"""append_once: a key of deduplication stores one record, also when repeated (internals: append#deduplication-by-key)."""

import random
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from msgtx import errors
from msgtx.coordinator.sweep import sweep
from msgtx.database.pool import Engine
from msgtx.database.translation import translate
from msgtx.generated import calls
from msgtx.store.append.append_once import KeyedRecord, Placed, append_once
from msgtx.store.sweeps import sweeps
from msgtx.store.sweeps.coordinators import lease_shards
from msgtx.store.topics.retention import LOG_END, delete_records
from msgtx.store.topics.topics import alter_topic, create_topic, delete_topic, describe_topics
from tests.databases import Background, Clock, Connection, Sessions
from tests.refusals import refuses
from tests.store.conftest import Blocked, Settings
from tests.store.steps import (
    append_one,
    batch,
    count,
    delete_topic_of,
    ends,
    named_topic,
    new_partition,
    new_topic,
    plain,
    read,
    unique,
    values,
)

pytestmark = pytest.mark.usefixtures("bare")
SECONDS = 30.0
AT_ONCE = 10_000  # rows that one call of the sweep removes at most


def record(partition: int, dedup_key: str, value: bytes | None = b"value", **columns: Any) -> KeyedRecord:
    return KeyedRecord(
        **{"partition_id": partition, "dedup_key": dedup_key, "value": value, "key": None, "timestamp": 7, **columns}
    )


def once(connection: Connection, partition: int, dedup_key: str, value: bytes | None = b"value", **columns: Any) -> Placed:
    """Append one record with a key."""
    (answer,) = append_once(connection, [record(partition, dedup_key, value, **columns)])
    return answer


def places(answers: Sequence[Placed]) -> list[tuple[int, int, bool]]:
    assert [answer.error for answer in answers] == [None] * len(answers)
    return [(answer.partition, answer.offset, answer.duplicate) for answer in answers]


def held(connection: Connection) -> list[str]:
    return [key for (key,) in connection.execute("select dedup_key from msgtx.dedup_key order by 1").fetchall()]


# ── what is stored, and what is not ──


def test_a_key_that_comes_again_gets_the_place_and_time_of_the_first_record(connection: Connection) -> None:
    """I1: whatever its own content, timestamp and partition are; the first one wins."""
    first, second = new_topic(connection, 2)
    plain(connection, second, b"before")
    assert once(connection, second, "a", b"1", timestamp=41) == Placed(None, 1, 1, 41, duplicate=False)
    again = [once(connection, partition, "a", b"other", timestamp=99) for partition in (first, second)]
    assert again == [Placed(None, 1, 1, 41, duplicate=True)] * 2
    assert (values(connection, first), values(connection, second)) == ([], [b"before", b"1"])


def test_a_new_key_moves_no_other_one(connection: Connection) -> None:
    """Neither of its topic nor of another one, nor when its record is refused."""
    here, there = new_partition(connection), new_partition(connection)
    plain(connection, there, b"before")
    for partition, key in ((here, "a"), (here, "b"), (there, "a")):
        once(connection, partition, key)
    assert isinstance(once(connection, here, "c", b"x" * 2_000_000).error, errors.RecordTooLarge)
    found = [once(connection, partition, key) for partition, key in ((here, "a"), (here, "b"), (there, "a"))]
    assert [(each.offset, each.duplicate) for each in found] == [(0, True), (1, True), (1, True)]


def test_keys_are_of_a_topic_and_compared_byte_by_byte(connection: Connection) -> None:
    partitions = [new_partition(connection), new_partition(connection)]
    keys = ["a", "A", "a ", "ä", "a\u0308", "x" * 256]
    answers = append_once(connection, [record(partition, key) for partition in partitions for key in keys])
    assert places(answers) == [(0, offset, False) for _ in partitions for offset in range(len(keys))]


def test_one_call_serves_records_of_several_topics_and_answers_in_their_order(connection: Connection) -> None:
    low, high = new_topic(connection, 2)
    other = new_partition(connection)
    once(connection, high, "c")
    plain(connection, low, b"before")
    answers = append_once(
        connection,
        [
            record(other, "c", b"1"),
            record(high, "b", b"2"),
            record(low, "c", b"held by its topic"),
            record(low, "a", b"3"),
            record(high, "a0", b"4"),
            record(other, "b", b"5"),
        ],
    )
    assert places(answers) == [
        *((0, 0, False), (1, 1, False), (1, 0, True)),
        *((0, 1, False), (1, 2, False), (0, 1, False)),
    ]
    assert [values(connection, partition) for partition in (low, high, other)] == [
        *([b"before", b"3"], [b"value", b"2", b"4"], [b"1", b"5"])
    ]


def test_a_key_that_comes_twice_in_a_call_is_stored_once(connection: Connection) -> None:
    low, high = new_topic(connection, 2)
    keys = ["a", "b", "a", "a"]
    records = [record(p, key, b"%d" % i) for i, (p, key) in enumerate(zip((high, low, low, high), keys, strict=True))]
    assert places(append_once(connection, records)) == [(1, 0, False), (0, 0, False), (1, 0, True), (1, 0, True)]
    assert (values(connection, low), values(connection, high)) == ([b"1"], [b"0"])


def test_a_batch_keeps_every_column_of_the_records_that_are_new(connection: Connection, partition: int) -> None:
    once(connection, partition, "held")
    append_once(
        connection,
        [
            record(partition, "a", None, key=b"k", timestamp=5, headers=[("h", b"1"), ("h", None)]),
            record(partition, "held", b"x", key=b"no", timestamp=100, headers=[("no", b"")]),
            record(partition, "b", b"", timestamp=9),
            record(partition, "c", b"\xff\x00", key=b"", timestamp=7, headers=[("ü", b"")]),
        ],
    )
    stored = connection.execute(
        'select last_offset, record_count, max_timestamp, keys, "values", timestamps, header_counts, header_keys,'
        " header_values, producer_id, transaction_number from msgtx.record_batch"
        " where partition_id = %s and base_offset = 1",
        [partition],
    ).fetchone()
    assert stored == (
        *(3, 3, 9, [b"k", None, b""], [None, b"", b"\xff\x00"], [5, 9, 7]),
        *([2, 0, 1], ["h", "h", "ü"], [b"1", None, b""], None, None),
    )
    again = append_once(connection, [record(partition, key) for key in "abc"])
    assert [answer.timestamp for answer in again] == [5, 9, 7]


def test_each_partition_of_a_call_gets_its_own_records_headers(connection: Connection) -> None:
    partitions = new_topic(connection, 3)
    append_once(connection, [record(partitions[at], f"{at}", headers=[(f"h{at}", b"%d" % at)] * at) for at in (1, 2, 0)])
    rows = connection.execute(
        "select header_counts, header_keys, header_values from msgtx.record_batch order by partition_id"
    ).fetchall()
    assert rows == [(None, None, None), ([1], ["h1"], [b"1"]), ([2], ["h2", "h2"], [b"2", b"2"])]


def test_columns_that_all_records_lack_take_no_room(connection: Connection, partition: int) -> None:
    append_once(connection, [record(partition, "a"), record(partition, "b")])
    stored = connection.execute(
        "select keys, timestamps, header_counts, header_keys, header_values from msgtx.record_batch where partition_id = %s",
        [partition],
    ).fetchone()
    assert stored == (None,) * 5


def test_the_time_of_a_topic_that_stamps_its_records_is_told_and_told_again(connection: Connection) -> None:
    partition = new_partition(connection, timestamp_type="LogAppendTime")
    first = append_once(connection, [record(partition, key, timestamp=n) for n, key in enumerate("ab")])
    stored = connection.execute("select max_timestamp from msgtx.record_batch where partition_id = %s", [partition])
    assert {answer.timestamp for answer in first} == {row[0] for row in stored.fetchall()}
    assert once(connection, partition, "b").timestamp == first[1].timestamp


def test_each_record_of_a_call_keeps_its_own_time(connection: Connection) -> None:
    """Of batches at equal offsets of several partitions, also of other topics."""
    partitions = [*new_topic(connection, 2), new_partition(connection)]
    records = [record(partition, f"k{at}", timestamp=100 + at) for at, partition in enumerate(partitions)]
    first, again = append_once(connection, records), append_once(connection, records)
    assert [answer.timestamp for answer in first] == [answer.timestamp for answer in again] == [100, 101, 102]


def test_a_record_that_retention_has_removed_is_still_the_first(connection: Connection, partition: int) -> None:
    place = once(connection, partition, "a")
    delete_records(connection, {partition: LOG_END})
    assert once(connection, partition, "a") == Placed(None, 0, place.offset, place.timestamp, duplicate=True)
    assert ends(connection, partition) == (1, 1, 1)


def test_a_topic_that_was_made_anew_holds_no_keys(connection: Connection) -> None:
    name = unique("topic")
    for _ in range(2):
        create_topic(connection, name, 1, {})
        (partition,) = describe_topics(connection, [name])[name].partition_ids
        assert places([once(connection, partition, "a")]) == [(0, 0, False)]
        delete_topic(connection, name)


# ── refusals ──


@pytest.mark.parametrize(
    ("settings", "columns", "mended", "error"),
    [
        ({"max_message_bytes": 10}, {"value": b"x" * 11}, {"value": b"x"}, errors.RecordTooLarge),
        ({"cleanup_policy": "compact"}, {"key": None}, {"key": b"k"}, errors.InvalidRecord),
    ],
    ids=["too large", "compacted without key"],
)
def test_a_refused_record_keeps_no_key_and_the_others_go_on(
    connection: Connection,
    settings: dict[str, object],
    columns: dict[str, Any],
    mended: dict[str, Any],
    error: type[Exception],
) -> None:
    refusing, taking = new_partition(connection, **settings), new_partition(connection)
    once(connection, taking, "bad")  # a key of another topic
    answers = append_once(
        connection,
        [
            record(refusing, "bad", **columns),
            record(taking, "good", b"x"),
            record(refusing, "beside", key=b"k"),
            record(refusing, "bad", b"x", key=b"k"),
        ],
    )
    assert [type(answer.error) for answer in answers] == [error, type(None), error, error]
    assert answers[0] == Placed(answers[0].error, -1, -1, -1, duplicate=False)
    assert all("max_message_bytes" in str(answer.error) or "needs a key" in str(answer.error) for answer in answers[2:])
    assert (held(connection), ends(connection, refusing)[2], ends(connection, taking)[2]) == (["bad", "good"], 0, 2)
    assert places([once(connection, refusing, "bad", **mended)]) == [(0, 0, False)]


def test_a_refused_record_does_not_bring_back_a_key_that_was_past_its_window(connection: Connection, clock: Clock) -> None:
    partition = new_partition(connection, max_message_bytes=10)
    once(connection, partition, "a")
    clock("2 hours")
    assert isinstance(once(connection, partition, "a", b"x" * 11).error, errors.RecordTooLarge)
    assert places([once(connection, partition, "a")]) == [(0, 1, False)]


def test_an_unknown_partition_is_refused_and_the_others_go_on(connection: Connection, partition: int) -> None:
    answers = append_once(connection, [record(2_000_000_000, "a"), record(partition, "a"), record(2_000_000_000, "b")])
    assert isinstance(answers[0].error, errors.UnknownTopicOrPartition)
    assert "2000000000" in str(answers[2].error)
    assert places(answers[1:2]) == [(0, 0, False)]


def test_a_topic_that_is_deleted_while_its_key_is_waited_for_keeps_nothing(connection: Connection, blocked: Blocked) -> None:
    partition = new_partition(connection)
    with connection.transaction():
        delete_topic_of(connection, partition)
        answer = blocked(once, partition, "a")
    assert isinstance(answer.result(SECONDS).error, errors.UnknownTopicOrPartition)
    assert held(connection) == []


@pytest.mark.parametrize("key", ["", "x" * 257, "ü" * 129, None])
def test_a_key_has_1_to_256_bytes(connection: Connection, partition: int, key: Any) -> None:
    with refuses(errors.InvalidRequest, name="dedup_key", limit=256):
        append_once(connection, [record(partition, "a"), record(partition, key)])
    assert (held(connection), ends(connection, partition)[2]) == ([], 0)


@pytest.mark.parametrize("columns", ["'{}', '{}', '{}', '{}', '{}'", "null, null, null, null, null"])
def test_a_call_without_records_is_refused(connection: Connection, columns: str) -> None:
    with pytest.raises(psycopg.Error, match="a call needs at least one record"):
        connection.execute(f"select * from msgtx.append_once({columns})".encode())


@pytest.mark.parametrize(
    "columns",
    [
        {"partition_ids": []},
        {"partition_ids": None},
        {"dedup_keys": ["a", "b"]},
        {"timestamps": [None]},
        {"timestamps": []},
        {"record_keys": []},
        {"record_values": None},
        {"header_counts": [1]},
        {"header_counts": [0, 0]},
        {"header_keys": ["a"], "header_values": [b""]},
        {"header_counts": [1], "header_keys": ["a"], "header_values": []},
    ],
    ids=str,
)
def test_columns_of_unequal_length_are_refused(connection: Connection, columns: dict[str, Any]) -> None:
    given = {
        "partition_ids": [new_partition(connection)], "dedup_keys": ["a"], "timestamps": [1], "record_keys": [None],
        "record_values": [b"x"], "header_counts": None, "header_keys": None, "header_values": None, "wake": True, **columns,
    }  # fmt: skip
    with pytest.raises(psycopg.Error) as raised:
        connection.execute(calls.APPEND_ONCE.statement, list(given.values()))
    assert isinstance(translate(raised.value), errors.InvalidRequest)
    assert held(connection) == []


# ── the window ──


def test_after_the_window_of_the_first_record_a_key_may_be_used_anew(
    connection: Connection, clock: Clock, settings: Settings
) -> None:
    """Counted from the first record: duplicates do not make it longer."""
    settings(dedup_window_ms=60_000)
    partition = new_partition(connection)
    offsets = []
    for at in (0, 40, 59, 61, 100, 120, 122):
        clock(f"{at} seconds")
        offsets.append((once(connection, partition, "a").offset, at))
    assert [offset for offset, _ in offsets] == [0, 0, 0, 1, 1, 1, 2]
    assert count(connection, "dedup_key") == 1


def test_the_window_is_an_hour_unless_it_is_changed(connection: Connection, partition: int, clock: Clock) -> None:
    once(connection, partition, "a")
    clock("59 minutes")
    assert once(connection, partition, "a").duplicate
    clock("61 minutes")
    assert not once(connection, partition, "a").duplicate


# ── several at once ──


def test_a_key_that_another_call_holds_is_waited_for_and_answered_with_its_offset(
    connection: Connection, blocked: Blocked
) -> None:
    low, high = new_topic(connection, 2)
    with connection.transaction():
        place = once(connection, high, "a", b"first", timestamp=1)
        answer = blocked(once, low, "a", b"second")
    assert answer.result(SECONDS) == Placed(None, 1, place.offset, 1, duplicate=True)
    assert (values(connection, low), values(connection, high)) == ([], [b"first"])


def test_a_key_whose_holder_rolls_back_goes_to_who_waits(connection: Connection, partition: int, blocked: Blocked) -> None:
    with connection.transaction(force_rollback=True):
        once(connection, partition, "a", b"first")
        answer = blocked(once, partition, "a", b"second")
    assert places([answer.result(SECONDS)]) == [(0, 0, False)]
    assert values(connection, partition) == [b"second"]


def test_a_key_past_its_window_is_replaced_by_one_of_two(connection: Connection, blocked: Blocked, clock: Clock) -> None:
    partition = new_partition(connection)
    once(connection, partition, "a")
    clock("2 hours")
    with connection.transaction():
        assert places([once(connection, partition, "a", b"first")]) == [(0, 1, False)]
        answer = blocked(once, partition, "a", b"second")
    assert places([answer.result(SECONDS)]) == [(0, 1, True)]


def test_a_holder_that_does_not_end_is_waited_for_no_longer_than_the_lock_timeout(
    connection: Connection, open_connection: Sessions
) -> None:
    partition, session = new_partition(connection), open_connection()
    arguments = "int[], text[], bigint[], bytea[], bytea[], int[], text[], bytea[], boolean"
    connection.execute(f"alter function msgtx.append_once({arguments}) set lock_timeout = '20ms'")
    try:
        with session.transaction():
            once(session, partition, "a")
            with pytest.raises(errors.LockTimeout):
                once(connection, partition, "a")
    finally:
        connection.execute(f"alter function msgtx.append_once({arguments}) set lock_timeout = '10s'")
    assert once(connection, partition, "a").duplicate


def test_calls_whose_keys_and_partitions_cross_never_wait_for_each_other(
    connection: Connection, open_connection: Sessions, background: Background, clock: Clock
) -> None:
    """Each stores what is new, in whatever order it names it; some keys are past their window, some are new."""
    partitions = [*new_topic(connection, 2), new_partition(connection)]
    keys = [f"key-{n}" for n in range(12)]
    append_once(connection, [record(partitions[0], key) for key in keys[::3]])
    clock("2 hours")

    def work(seed: int) -> list[Placed]:
        session, draw = open_connection(), random.Random(seed)
        found = []
        for _ in range(40):
            some = [(draw.choice(partitions), key) for key in draw.sample(keys, 8)]
            found += append_once(session, [record(*each, b"%d" % seed) for each in some])
        return found

    answers = [answer for future in [background.submit(work, n) for n in range(6)] for answer in future.result(60)]
    assert [answer.error for answer in answers if answer.error is not None] == []
    topics = count(connection, "dedup_key")
    assert sum(not answer.duplicate for answer in answers) == topics == 2 * len(keys)
    assert sum(len(values(connection, partition)) for partition in partitions) == topics + len(keys[::3])


def test_a_call_that_is_repeated_beside_itself_stores_once(
    open_connection: Sessions, connection: Connection, background: Background
) -> None:
    partitions = new_topic(connection, 3)
    records = [record(partitions[n % 3], f"{n}", b"%d" % n) for n in range(200)]
    calls = [background.submit(append_once, open_connection(), records) for _ in range(8)]
    answers = [places(call.result(SECONDS)) for call in calls]
    assert len({tuple(place[:2] for place in each) for each in answers}) == 1
    assert sum(not place[2] for each in answers for place in each) == len(records)


# ── what it leaves behind ──


def keys_removed(connection: Connection) -> int:
    return sweeps.remove_dedup_keys(connection, None, None).done["dedup_keys_removed"]


def test_the_sweep_removes_keys_past_their_window_and_no_others(
    connection: Connection, clock: Clock, settings: Settings
) -> None:
    settings(dedup_window_ms=60_000)
    partition = new_partition(connection)
    for at, key in ((0, "old"), (30, "young")):
        clock(f"{at} seconds")
        once(connection, partition, key)
    clock("59 seconds")
    assert keys_removed(connection) == 0
    clock("65 seconds")
    assert (keys_removed(connection), held(connection)) == (1, ["young"])
    assert [value for _, value in read(connection, partition)] == [b"value"] * 2


def test_the_sweep_removes_keys_of_topics_that_are_gone(connection: Connection, engine: Engine, clock: Clock) -> None:
    name, _ = named_topic(connection)
    once(connection, describe_topics(connection, [name])[name].partition_ids[0], "a")
    delete_topic(connection, name)
    clock("2 hours")
    assert sweep(engine, only=["dedup"]).dedup_keys_removed == 1


def test_the_sweep_passes_by_a_key_that_is_being_replaced(connection: Connection, session: Connection, clock: Clock) -> None:
    partition = new_partition(connection)
    append_once(connection, [record(partition, "a"), record(partition, "b")])
    clock("2 hours")
    with session.transaction():
        once(session, partition, "a")
        assert (keys_removed(connection), held(connection)) == (1, ["a"])
    assert once(connection, partition, "a").duplicate


def test_a_coordinator_removes_the_keys_of_its_shards(connection: Connection, partition: int, clock: Clock) -> None:
    once(connection, partition, "a")
    (topic_id,) = connection.execute("select topic_id from msgtx.dedup_key").fetchone()
    clock("2 hours")
    leases = lease_shards(connection, None, host="host", process=1)
    for mine, removed in ((False, 0), (True, 1)):
        shards = [shard for shard in leases.epochs if (shard == topic_id % 50) is mine]
        epochs = [leases.epochs[shard] for shard in shards]
        row = connection.execute("select removed from msgtx.remove_dedup_keys(null, 500, %s, %s)", [shards, epochs])
        assert row.fetchone() == (removed,)


def test_a_call_of_the_sweep_is_bounded_and_the_next_one_goes_on(connection: Connection, engine: Engine) -> None:
    partition = new_partition(connection)
    connection.execute(
        "insert into msgtx.dedup_key (topic_id, dedup_key, partition_id, record_offset, record_timestamp, appended_at)"
        " select 1, n::text, %s, n, 0, msgtx.clock() - interval '2 hours' from generate_series(1, %s) n",
        [partition, AT_ONCE + 5],
    )
    swept = sweeps.remove_dedup_keys(connection, None, None)
    assert (swept.done["dedup_keys_removed"], swept.after is None) == (AT_ONCE, False)
    assert sweep(engine, only=["dedup"]).dedup_keys_removed == 5


def test_keys_beside_records_of_producers_and_plain_ones(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"plain")
    once(connection, partition, "a", b"keyed")
    append_one(connection, batch(partition, b"plain again"))
    assert values(connection, partition) == [b"plain", b"keyed", b"plain again"]


def test_a_limit_that_is_lowered_does_not_touch_what_is_held(connection: Connection) -> None:
    name, (partition,) = named_topic(connection)
    once(connection, partition, "a", b"x" * 100)
    alter_topic(connection, name, None, {"max_message_bytes": 10})
    assert once(connection, partition, "a", b"x" * 100).duplicate
