"""commit_in_session: records and offsets just before a user's COMMIT; and append_plain, which stores the usual records."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from msgtx import errors
from msgtx.database.calls import call, query
from msgtx.database.translation import translated
from msgtx.database.wire import BatchColumns
from msgtx.generated import calls
from msgtx.store.append.append import append
from msgtx.store.operator.server import describe_lock_table
from msgtx.store.shares.answers import acknowledge_in_session
from msgtx.store.topics.topics import create_topic, describe_topics
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.seal import commit_in_session
from msgtx.types import GroupMetadata
from tests.databases import Clock, Connection, Sessions
from tests.refusals import refuses
from tests.store.sharing import ShareGroup, four_records
from tests.store.steps import (
    batch,
    committed_at,
    count,
    named_topic,
    new_partition,
    new_topic,
    offsets_of,
    plain,
    unique,
    values,
)

Level = psycopg.IsolationLevel


def test_records_and_offsets_of_a_session_come_with_its_commit(connection: Connection, open_connection: Sessions) -> None:
    """P32: with the limit of its idle time, locally."""
    partition, group, user = new_partition(connection), unique("group"), open_connection()
    with user.transaction():
        assert commit_in_session(user, [batch(partition, b"x")], offsets_of((group, partition, 5)))
        query(user, "set constraints all immediate")  # as its COMMIT does
        assert query(user, "show idle_in_transaction_session_timeout") == [("5s",)]
        assert values(connection, partition) == []
        assert committed_at(connection, group, partition) == (None, False)
    assert query(user, "show idle_in_transaction_session_timeout") == [("0",)]
    assert values(connection, partition) == [b"x"]
    assert committed_at(connection, group, partition) == (5, False)


@pytest.mark.parametrize("level", [Level.REPEATABLE_READ, Level.SERIALIZABLE])
def test_a_session_with_a_kept_snapshot_writes_nothing_itself(
    connection: Connection, open_connection: Sessions, level: Level
) -> None:
    """P24, P39."""
    partition, group, user = four_records(connection), unique("group"), open_connection()
    share = ShareGroup(connection, partition)
    share.acquire("a")
    user.isolation_level = level
    with user.transaction():
        assert not commit_in_session(user, [batch(partition, b"x")], offsets_of((group, partition, 5)))
        answered = call(user, calls.ACKNOWLEDGE_IN_SESSION, *share.answers("a", {0: "accept"}).arguments())
        assert answered == [("stale", None)]
    assert len(values(connection, partition)) == 4
    assert committed_at(connection, group, partition) == (None, False)
    assert share.spans == [(0, 3, "acquired", 1)]


def test_refused_offsets_of_a_session_let_no_record_through(connection: Connection, open_connection: Sessions) -> None:
    partition, user = new_partition(connection), open_connection()
    offsets = offsets_of((GroupMetadata(unique("group"), "no-such-member", 1), partition, 5))
    with pytest.raises(errors.UnknownMember), translated(user), user.transaction():
        commit_in_session(user, [batch(partition, b"x")], offsets)
    assert values(connection, partition) == []


@pytest.mark.parametrize("kind", ["published", "appended"])
@pytest.mark.parametrize("beside", ["offsets", "answers"])
def test_one_record_comes_with_the_offsets_and_answers_beside_it(
    connection: Connection, open_connection: Sessions, beside: str, kind: str
) -> None:
    """I10, I17."""
    topic, group, user = unique("topic"), unique("group"), open_connection()
    create_topic(connection, topic, 1, {})
    (partition,) = describe_topics(connection, [topic])[topic].partition_ids
    plain(connection, partition, b"read")
    share = ShareGroup(connection, partition)
    share.acquire("a")
    with user.transaction():
        if beside == "offsets":
            commit_in_session(user, [], offsets_of((group, partition, 1)))
        else:
            acknowledge_in_session(user, share.answers("a", {0: "accept"}))
        if kind == "published":
            query(user, "select msgtx.publish(%s, value => 'written')", topic)
        else:
            commit_in_session(user, [batch(partition, b"written")])
    assert values(connection, partition) == [b"read", b"written"]
    assert committed_at(connection, group, partition) == (1 if beside == "offsets" else None, False)
    assert share.spans == ([] if beside == "answers" else [(0, 0, "acquired", 1)])


def test_a_call_of_a_session_with_nothing_in_it_changes_nothing(connection: Connection, open_connection: Sessions) -> None:
    partition, user = new_partition(connection), open_connection()
    with user.transaction():
        commit_in_session(user, [])
        commit_in_session(user, [batch(partition, b"x")])
    assert values(connection, partition) == [b"x"]


@pytest.mark.parametrize("kind", ["publish", "append", "answer"])
def test_many_calls_of_a_session_fire_one_trigger(connection: Connection, session: Connection, kind: str) -> None:
    topic, (partition,) = named_topic(connection)
    share = ShareGroup(connection, partition)
    calls: dict[str, Callable[[], object]] = {
        "publish": lambda: query(session, "select msgtx.publish(%s, value => 'x')", topic),
        "append": lambda: commit_in_session(session, [batch(partition, b"x")]),
        "answer": lambda: acknowledge_in_session(session, share.answers("a", {})),
    }
    with session.transaction():
        for _ in range(3):
            calls[kind]()
        assert count(session, "staged_commit", "round is not null") == 1
    assert values(connection, partition) == ([] if kind == "answer" else [b"x"] * 3)


def test_a_session_whose_calls_want_more_locks_than_there_are_is_refused(
    connection: Connection, open_connection: Sessions
) -> None:
    """I16: a full lock table is everybody's. Each call alone wants few enough."""
    user, wanted = open_connection(), describe_lock_table(connection).places // 4 + 1
    query(user, "begin")
    for first in (10**9, 10**9 + wanted):
        commit_in_session(user, [batch(first + n, b"x") for n in range(wanted)])
    with refuses(errors.InvalidRequest, name="max_locks_per_transaction"):
        query(user, "commit")


# ── the rows are those of append ──

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HEADERS: list[list[tuple[str, bytes | None]]] = [[("a", b"1"), ("b", None)], [], [("c", b"")]]
SETS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "values": ({}, [{"values": [b"a", None, b""]}]),
    "keys": ({}, [{"values": [b"a", b"b"], "keys": [b"", None]}]),
    "timestamps": ({}, [{"values": [b"a", b"b"], "timestamps": [9, 5]}]),
    "headers": ({}, [{"values": [b"a", b"b", b"c"], "headers": HEADERS}]),
    "time of the log": (
        {"timestamp_type": "LogAppendTime"},
        [{"values": [b"a", b"b"], "timestamps": [9, 5]}, {"values": [b"c"]}],
    ),
    "compacted": ({"cleanup_policy": "compact"}, [{"values": [b"a", None], "keys": [b"k", b""]}]),
    "large, of small records": ({"max_message_bytes": 100}, [{"values": [bytes(60), bytes(60)]}]),
    "several": ({}, [{"values": [b"a"] * 3}, {"values": [b"b"], "keys": [b"k"]}, {"values": [b"c"]}]),
}


def rows(connection: Connection, partition: int) -> list[dict[str, Any]]:
    found = query(
        connection,
        "select (to_jsonb(r) - 'partition_id')::text from msgtx.record_batch r where r.partition_id = %s"
        " order by r.base_offset",
        partition,
    )
    return [json.loads(row) for (row,) in found]


@pytest.mark.parametrize("name", SETS)
def test_its_rows_are_those_of_append(connection: Connection, clock: Clock, name: str) -> None:
    """I2: offsets go on. No row is dated before the row in front of it."""
    settings, contents = SETS[name]
    given = [(content.pop("values"), content) for content in ({**each} for each in contents)]
    clock(NOON)
    partitions = [new_partition(connection, **settings) for _ in range(2)]
    for partition in partitions:
        plain(connection, partition, b"before", keys=[b"before"])
    for hours in (-1, 1):
        clock(NOON + timedelta(hours=hours))
        for content, columns in given:
            (stored,) = append(connection, [batch(partitions[0], *content, **columns)])
            assert stored.error is None
            assert commit_in_session(connection, [batch(partitions[1], *content, **columns)])
    assert rows(connection, partitions[1]) == rows(connection, partitions[0])
    assert len(rows(connection, partitions[1])) == 1 + 2 * len(contents)


def test_an_emptied_partition_goes_on_where_its_log_starts(connection: Connection, partition: int) -> None:
    plain(connection, partition, b"a", b"b")
    connection.execute("delete from msgtx.record_batch where partition_id = %s", [partition])
    connection.execute("update msgtx.partition set log_start_offset = 2 where partition_id = %s", [partition])
    commit_in_session(connection, [batch(partition, b"c")])
    assert [row["base_offset"] for row in rows(connection, partition)] == [2]


def test_a_batch_with_a_producer_is_stored_as_append_does(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    producer = init_producer_id(connection, None, timeout_ms=60_000)
    commit_in_session(connection, [batch(first, b"a"), batch(second, b"b", producer=producer, sequence=0)])
    commit_in_session(connection, [batch(first, b"a"), batch(second, b"b", producer=producer, sequence=0)])  # a duplicate
    assert (values(connection, first), values(connection, second)) == ([b"a", b"a"], [b"b"])


# ── what is refused ──

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[errors.MsgtxError]]] = {
    "large": ({"max_message_bytes": 100}, {}, errors.RecordTooLarge),
    "without a key": ({"cleanup_policy": "compact"}, {"keys": [None]}, errors.InvalidRecord),
    "without keys": ({"cleanup_policy": "compact"}, {}, errors.InvalidRecord),
    "gone": ({}, {}, errors.UnknownTopicOrPartition),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_one_that_is_refused_takes_all_of_the_session_back(
    connection: Connection, open_connection: Sessions, name: str, first: bool
) -> None:
    """Refused as append does, whether a batch that is fine stands in front of it or behind."""
    settings, columns, error = REFUSED[name]
    fine, user = new_partition(connection), open_connection()
    bad, last = new_partition(connection, **settings), new_partition(connection)
    gone = name == "gone"
    if gone:
        connection.execute("delete from msgtx.partition where partition_id = %s", [bad])
    refused = batch(bad, bytes(101), **columns)
    batches: Sequence[BatchColumns] = [refused, batch(last, b"x")] if first else [batch(fine, b"x"), refused]
    answers = append(user, [refused])
    with pytest.raises(error) as told, translated(user), user.transaction():
        commit_in_session(user, batches)
    assert str(told.value) == str(answers[0].error)
    assert values(connection, fine) == values(connection, last) == []
    assert gone or values(connection, bad) == []
