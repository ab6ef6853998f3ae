"""Topics: names, settings, deletion."""

import itertools
from typing import Any, Final

import pytest

from msgtx import errors
from msgtx.declared.settings import TOPIC, Setting
from msgtx.store.sweeps.sweeps import Position, remove_deleted_logs
from msgtx.store.topics.topics import (
    LOGS_AT_ONCE,
    alter_topic,
    create_topic,
    delete_topic,
    describe_topics,
    topics_version,
)
from msgtx.store.transactions.transactions import mark
from tests.databases import PATIENCE_SECONDS, Background, Connection, Sessions
from tests.refusals import refuses
from tests.store.steps import Writer, append_one, batch, count, fill, forget, named_topic, plain, spoiled, unique, values


def test_a_topic_has_its_partitions_in_order_and_every_default(connection: Connection) -> None:
    name, _ = named_topic(connection, 3)
    topic = describe_topics(connection, [name])[name]
    assert list(topic.partition_ids) == sorted(topic.partition_ids)
    assert len(topic.partition_ids) == 3
    assert topic.settings == {one.name: one.initial for one in TOPIC}


def test_settings_are_kept(connection: Connection) -> None:
    name = unique("topic")
    given = {one.name: one.choices[-1] if one.choices else one.least + at for at, one in enumerate(TOPIC, 3)}
    create_topic(connection, name, 1, given)
    assert describe_topics(connection, [name])[name].settings == given


def test_settings_come_by_name_and_may_be_more_than_are_known(connection: Connection) -> None:
    """A later version adds some: its functions come first, then the clients."""
    name, _ = named_topic(connection, 2)
    before = describe_topics(connection, [name])[name]
    (body,) = connection.execute("select pg_get_functiondef('msgtx.describe_topics(text[])'::regprocedure)").fetchone() or (
        "",
    )
    assert "to_jsonb(t)" in body
    with connection.transaction(force_rollback=True):
        connection.execute(body.replace("to_jsonb(t)", """'{"a_later_one": 7}' || to_jsonb(t)""").encode())
        after = describe_topics(connection, [name])[name]
    assert after.settings == {**before.settings, "a_later_one": 7}
    assert list(after.settings) == [*(one.name for one in TOPIC), "a_later_one"]
    assert after.partition_ids == before.partition_ids


@pytest.mark.parametrize(
    "name",
    [None, "", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\n", "a\nb", "a;drop table", "a'b"],
)
def test_a_name_that_is_not_allowed_is_refused(connection: Connection, name: Any) -> None:
    with pytest.raises(errors.InvalidTopic, match="use 1 to 249 of a-z"):
        create_topic(connection, name, 1, {})


@pytest.mark.parametrize("name", ["x" * 249, "a.b", "A-1_2", "...", "__consumer_offsets"])
def test_a_name_that_is_allowed_is_created(connection: Connection, name: str) -> None:
    create_topic(connection, name, 1, {})
    assert name in describe_topics(connection, None)


def wrong(one: Setting) -> list[object]:
    """Values that a setting cannot have."""
    return ["no word of it"] if one.choices else ["many", one.least - 1, one.most + 1, 1.5]


REFUSED: Final = [{"unknown": 1}, *({one.name: value} for one in TOPIC for value in wrong(one))]


@pytest.mark.parametrize(
    ("partitions", "settings", "error"),
    [
        *((1, settings, errors.ConfigError) for settings in REFUSED),
        *((partitions, {}, errors.InvalidRequest) for partitions in (0, -1, 100_001, None)),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_nothing_is_created(
    connection: Connection, partitions: Any, settings: dict[str, object], error: type[Exception]
) -> None:
    """I16."""
    name = unique("topic")
    with pytest.raises(error):
        create_topic(connection, name, partitions, settings)
    assert describe_topics(connection, [name]) == {}


def test_a_name_that_is_taken_is_refused(connection: Connection) -> None:
    name, _ = named_topic(connection)
    with refuses(errors.TopicExists, topic=name):
        create_topic(connection, name, 2, {})


def test_unknown_names_are_absent_and_the_rest_is_in_order(connection: Connection) -> None:
    second, first = unique("topic-b"), unique("topic-a")
    for name in (second, first):
        create_topic(connection, name, 1, {})
    assert list(describe_topics(connection, [second, "nothing", first])) == [first, second]
    assert describe_topics(connection, []) == {}


def test_members_of_groups_notice_each_change_of_the_topics_by_a_number(connection: Connection) -> None:
    name = unique("topic")
    versions = [topics_version(connection)]
    for change in (
        lambda: create_topic(connection, name, 1, {}),
        lambda: alter_topic(connection, name, 2, {}),
        lambda: delete_topic(connection, name),
    ):
        change()
        versions.append(topics_version(connection))
    assert versions == sorted(set(versions))


def test_a_deleted_topic_leaves_nothing_of_its_log(connection: Connection) -> None:
    name, (first, second) = named_topic(connection, 2)
    plain(connection, first, b"a")
    plain(connection, second, b"b")
    delete_topic(connection, name)
    for table in ("record_batch", "partition", "partition_floor", "transaction_marker"):
        assert count(connection, table, "partition_id in (%s, %s)", first, second) == 0
    with pytest.raises(errors.UnknownTopicOrPartition):
        delete_topic(connection, name)


def test_a_name_may_be_used_again_and_begins_at_zero(connection: Connection) -> None:
    name, _ = named_topic(connection)
    plain(connection, describe_topics(connection, [name])[name].partition_ids[0], b"old")
    delete_topic(connection, name)
    create_topic(connection, name, 1, {})
    (partition,) = describe_topics(connection, [name])[name].partition_ids
    assert plain(connection, partition, b"new") == 0
    assert values(connection, partition) == [b"new"]


def test_a_topic_may_be_deleted_under_an_open_transaction(connection: Connection) -> None:
    """What was acknowledged elsewhere can still be committed."""
    gone, kept = unique("topic"), unique("topic")
    for name in (gone, kept):
        create_topic(connection, name, 1, {})
    topics = describe_topics(connection, [gone, kept])
    writer = Writer(connection)
    writer.send(topics[gone].partition_ids[0], b"a")
    writer.send(topics[kept].partition_ids[0], b"b")
    delete_topic(connection, gone)
    writer.commit()
    assert values(connection, topics[kept].partition_ids[0]) == [b"b"]


def test_of_a_deleted_topic_only_what_is_open_is_found_there(connection: Connection) -> None:
    """I8: also where what was decided has two parts of its name."""
    name, (partition,) = named_topic(connection)
    writers = [Writer(connection) for _ in range(3)]
    for writer, ends in zip(writers, ((Writer.commit, Writer.abort), (Writer.abort, Writer.commit), ()), strict=True):
        for end in ends:
            writer.send(partition, b"decided")
            end(writer)
        writer.init()
    for writer in writers[:2]:
        writer.send(partition, b"open")
    writers[2].send(partition, b"decided")
    writers[2].commit()
    delete_topic(connection, name)
    left = connection.execute(
        "select producer_id, producer_epoch, transaction_number from msgtx.transaction_partition"
        " where partition_id = %s order by 1",
        [partition],
    ).fetchall()
    assert left == [tuple(writer.name) for writer in writers[:2]]
    for writer in writers[:2]:
        writer.abort()


# ── topics of many partitions ──


def advisory_locks(connection: Connection) -> int:
    row = connection.execute(
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_deleting_a_topic_of_many_partitions_takes_few_locks_and_leaves_nothing(connection: Connection) -> None:
    """I16: what can be created can be deleted, whatever the lock table holds."""
    name, ids = named_topic(connection, 1_000)
    plain(connection, ids[0], b"first")
    plain(connection, ids[-1], b"last")
    with connection.transaction():
        connection.execute("select msgtx.delete_topic(%s)", [name])
        assert advisory_locks(connection) <= 256
    assert describe_topics(connection, [name]) == {}
    assert connection.execute("select from msgtx.records where partition_id = %s", [ids[-1]]).fetchall() == []
    assert count(connection, "deleted_partition", "partition_id = any(%s)", list(ids)) == 1_000 - 256
    after: Position | None = None
    while True:
        with connection.transaction():
            swept = remove_deleted_logs(connection, after, None)
            assert advisory_locks(connection) <= 256
        after = swept.after
        if after is None:
            break
    for table in ("record_batch", "partition", "deleted_partition"):
        assert count(connection, table, "partition_id = any(%s)", list(ids)) == 0


def test_the_library_deletes_a_topic_of_many_partitions_and_of_many_rows_at_once(connection: Connection) -> None:
    name, ids = named_topic(connection, 600)
    for partition in (ids[0], ids[-1]):
        fill(connection, partition, 2_500, byte_size=1)
    delete_topic(connection, name)
    for table in ("record_batch", "deleted_partition"):
        assert count(connection, table, "partition_id = any(%s)", list(ids)) == 0


def test_a_write_on_its_way_to_a_topic_that_is_deleted_leaves_nothing_either(
    connection: Connection, session: Connection
) -> None:
    """It is as if it had come before: nothing waits, and its row goes with the next sweep."""
    name, ids = named_topic(connection, 300)
    with session.transaction():
        assert append_one(session, batch(ids[-1], b"a")).error is None
        delete_topic(connection, name)
        assert count(connection, "deleted_partition", "partition_id = any(%s)", list(ids)) == 1
    assert append_one(session, batch(ids[-1], b"b")).error is not None
    remove_deleted_logs(connection, None, None)
    for table in ("record_batch", "deleted_partition"):
        assert count(connection, table, "partition_id = any(%s)", list(ids)) == 0


GONE: Final = itertools.count(3_000_000)  # ids of partitions that no topic has any more


def deleted_log(connection: Connection, rows: int, byte_size: int = 1) -> int:
    """What a deleted topic has left of a partition. Returns its id."""
    partition = next(GONE)
    connection.execute("insert into msgtx.deleted_partition (partition_id) values (%s)", [partition])
    fill(connection, partition, rows, byte_size)
    return partition


def sweep_deleted(connection: Connection, after: int, most: int = 250) -> tuple[int, list[int] | None]:
    row = connection.execute("select * from msgtx.remove_deleted_logs(array[%s]::bigint[], %s)", [after, most]).fetchone()
    assert row is not None
    return row[0], row[1]


def test_logs_of_deleted_topics_go_page_by_page_past_one_that_is_in_use(connection: Connection, session: Connection) -> None:
    """A row of each log and the note of its partition: two for each."""
    used, *others = [deleted_log(connection, 1) for _ in range(4)]
    with session.transaction():
        session.execute("select msgtx.try_lock_partition(%s)", [used])
        assert sweep_deleted(connection, used - 1, 1) == (0, [used])
        assert sweep_deleted(connection, used, 2) == (4, [others[1]])
        assert sweep_deleted(connection, others[1], 2) == (2, None)
    assert sweep_deleted(connection, used - 1) == (2, None)


def test_deleting_a_topic_ends_however_many_logs_of_others_are_in_use(
    connection: Connection, open_connection: Sessions, background: Background
) -> None:
    """Each call goes on behind those that the last one has met."""
    name, user = unique("topic"), open_connection()
    create_topic(connection, name, 1, {})
    used = [deleted_log(connection, 0) for _ in range(LOGS_AT_ONCE + 1)]
    with user.transaction():
        user.execute("select msgtx.try_lock_partition(u) from unnest(%s) u", [used])
        background.submit(delete_topic, connection, name).result(PATIENCE_SECONDS)
        assert count(user, "deleted_partition") == len(used)
    assert sweep_deleted(connection, used[0] - 1, len(used) + 1) == (len(used), None)


def test_large_logs_of_deleted_topics_go_one_after_the_other(connection: Connection) -> None:
    """A call begins no row beyond 32 MiB."""
    first, second = deleted_log(connection, 3, byte_size=20 << 20), deleted_log(connection, 1)
    assert sweep_deleted(connection, first - 1) == (2, [first - 1])
    assert count(connection, "record_batch", "partition_id = %s", second) == 1
    assert sweep_deleted(connection, first - 1) == (4, None)


def test_one_bad_log_of_a_deleted_topic_does_not_stop_the_rest(connection: Connection) -> None:
    """P12."""
    bad, _ = deleted_log(connection, 1), deleted_log(connection, 1)
    with spoiled(connection, "record_batch", "delete", f"old.partition_id = {bad}"):
        assert sweep_deleted(connection, bad - 1) == (2, None)
    assert sweep_deleted(connection, bad - 1) == (2, None)


# ── what is left of a log ──


def left_of(connection: Connection, partition: int) -> dict[str, list[tuple[int, ...]]]:
    """What the database holds of a partition, but for its row."""
    tables = {
        "record_batch": "base_offset",
        "producer_state": "producer_id",
        "transaction_partition": "producer_id, producer_epoch, transaction_number",
        "transaction_marker": "producer_id, producer_epoch, transaction_number",
        "partition_floor": "stable_floor",
    }
    return {
        table: connection.execute(
            f"select {key} from msgtx.{table} where partition_id = %s order by {key}", [partition]
        ).fetchall()
        for table, key in tables.items()
    }


def delete_at_once(connection: Connection, name: str) -> int:
    """Delete a topic in one call. Returns how many rows it removed."""
    row = connection.execute("select msgtx.delete_topic(%s)", [name]).fetchone()
    assert row is not None
    return int(row[0])


def test_a_deletion_counts_what_it_removes_and_another_topic_keeps_all(connection: Connection) -> None:
    """P29: of the aborted ones, whose rows all go, the marker of the one without history goes at once, and no other."""
    names = [unique("topic"), unique("topic")]
    for name in names:
        create_topic(connection, name, 1, {})
    kept, gone = (describe_topics(connection, [name])[name].partition_ids[0] for name in names)
    writers = [Writer(connection), Writer(connection)]
    aborted = []
    for writer in writers:
        for _ in range(2):
            for _ in range(2):
                writer.send(kept, b"a")
                writer.send(gone, b"a")
                aborted.append(writer.abort())
            writer.init()
    mark(connection, everything=True)
    forget(connection, aborted[-1])
    connection.execute(
        "insert into msgtx.producer_state (partition_id, producer_id, producer_epoch, last_sequence, last_offset,"
        " appended_at) select p, n, 0, 0, 0, msgtx.clock() from unnest(%s::int[]) p, generate_series(1, 2) n",
        [[kept, gone]],
    )
    connection.execute(
        "insert into msgtx.partition_floor (partition_id, stable_floor)"
        " select p, n from unnest(%s::int[]) p, generate_series(1, 2) n",
        [[kept, gone]],
    )
    before = left_of(connection, kept)
    assert [len(rows) for rows in before.values()] == [8, 2, 7, 8, 3]
    assert delete_at_once(connection, names[1]) == 8 + 2 + 7 + 3 + 1
    assert left_of(connection, kept) == before
    left = left_of(connection, gone)
    assert left.pop("transaction_marker") == [tuple(each) for each in aborted[:-1]]
    assert not any(left.values())
    assert count(connection, "deleted_partition", "partition_id = %s", gone) == 0


def test_large_rows_of_a_deleted_log_go_in_steps(connection: Connection) -> None:
    """Some 32 MiB in a call."""
    name, (partition,) = named_topic(connection)
    fill(connection, partition, 5, byte_size=20_000_000)
    connection.execute("insert into msgtx.partition_floor (partition_id, stable_floor) values (%s, 1)", [partition])
    assert delete_at_once(connection, name) == 2
    assert left_of(connection, partition)["record_batch"] == [(2,), (3,), (4,)]
    swept = remove_deleted_logs(connection, (partition - 1,), None)
    assert (swept.done, swept.after) == ({"log_rows_removed": 2}, (partition - 1,))
    swept = remove_deleted_logs(connection, swept.after, None)
    assert swept.done == {"log_rows_removed": 1 + 1 + 1}
    assert not any(left_of(connection, partition).values())


def test_much_that_is_known_beside_a_deleted_log_goes_in_steps(connection: Connection) -> None:
    """At most 1,000 rows in a call, of whatever kind."""
    name, (partition,) = named_topic(connection)
    connection.execute(
        "insert into msgtx.producer_state (partition_id, producer_id, producer_epoch, last_sequence, last_offset,"
        " appended_at) select %s, n, 0, 0, 0, msgtx.clock() from generate_series(1, 1500) n",
        [partition],
    )
    connection.execute(
        "insert into msgtx.partition_floor (partition_id, stable_floor) select %s, n from generate_series(1, 700) n",
        [partition],
    )
    assert delete_at_once(connection, name) == 1_000
    for removed in (1_000, 201):
        assert remove_deleted_logs(connection, (partition - 1,), None).done == {"log_rows_removed": removed}
    assert not any(left_of(connection, partition).values())


# ── altering ──


def test_what_is_altered_changes_and_the_rest_stays(connection: Connection) -> None:
    name, _ = named_topic(connection, 2, retention_ms=5, cleanup_policy="compact")
    before, version = describe_topics(connection, [name])[name], topics_version(connection)
    alter_topic(connection, name, None, {"retention_bytes": 7, "max_message_bytes": 8})
    after = describe_topics(connection, [name])[name]
    assert after.settings == {**before.settings, "retention_bytes": 7, "max_message_bytes": 8}
    assert after.partition_ids == before.partition_ids
    assert topics_version(connection) == version + 1, "members of groups see that a topic was altered"


def test_a_topic_gets_more_partitions_behind_those_that_it_has(connection: Connection) -> None:
    name, before = named_topic(connection, 2)
    for _ in range(2):  # the same again changes nothing
        alter_topic(connection, name, 4, {})
        after = describe_topics(connection, [name])[name].partition_ids
        assert (list(after[:2]), len(after)) == (before, 4)
    assert plain(connection, after[3], b"a") == 0


@pytest.mark.parametrize(
    ("partitions", "settings", "error"),
    [
        (1, {}, errors.InvalidRequest),
        (0, {}, errors.InvalidRequest),
        (100_001, {}, errors.InvalidRequest),
        *((None, settings, errors.ConfigError) for settings in REFUSED),
        (3, {"timestamp_type": "Never"}, errors.ConfigError),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(
    connection: Connection, partitions: int | None, settings: dict[str, object], error: type[Exception]
) -> None:
    """I16."""
    name, _ = named_topic(connection, 2)
    before, version = describe_topics(connection, [name])[name], topics_version(connection)
    with pytest.raises(error):
        alter_topic(connection, name, partitions, settings)
    assert describe_topics(connection, [name])[name] == before
    assert topics_version(connection) == version


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("cleanup_policy", "keep", "cleanup_policy is delete or compact or compact,delete, not 'keep'"),
        ("timestamp_type", "", "timestamp_type is CreateTime or LogAppendTime, not ''"),
        ("max_message_bytes", 0, "max_message_bytes is a number from 1 to 1000000000, not 0"),
        ("delete_retention_ms", -1, "delete_retention_ms is a number from 0 to 9223372036854775807, not -1"),
    ],
)
def test_a_setting_that_cannot_be_is_told_with_what_it_can_be(
    connection: Connection, setting: str, value: object, text: str
) -> None:
    """I16."""
    name = unique("topic")
    with pytest.raises(errors.ConfigError) as caught:
        create_topic(connection, name, 1, {setting: value})
    create_topic(connection, name, 1, {})
    with pytest.raises(errors.ConfigError) as again:
        alter_topic(connection, name, None, {setting: value})
    assert [str(caught.value), str(again.value)] == [text, text]


def test_a_topic_that_is_not_there_cannot_be_altered(connection: Connection) -> None:
    with refuses(errors.UnknownTopicOrPartition, topic="nowhere"):
        alter_topic(connection, "nowhere", 2, {})
