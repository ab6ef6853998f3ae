"""What monitoring reads of topics and groups: right, whatever transactions did, and at a bounded cost."""

import time
from collections.abc import Callable

import pytest

import msgtx
from msgtx.database.calls import query
from msgtx.store.monitoring import (
    MeasuredGroup,
    MeasuredLag,
    MeasuredPartition,
    MeasuredShare,
    measure_dead_letters,
    measure_groups,
    measure_lags,
    measure_partitions,
    measure_shares,
)
from msgtx.types import Acknowledgement, TopicPartition
from tests.databases import Clock, Connection
from tests.store.steps import Writer, plain, seal
from tests.store.test_growth import LOOKS

Unique = Callable[[str], str]


@pytest.fixture
def topic(client: msgtx.Client, unique: Unique) -> str:
    name = unique("measured")
    client.topics.create(name)
    return name


def partition_of(connection: Connection, topic: str) -> MeasuredPartition:
    (found,) = [one for one in measure_partitions(connection, most=10_000) if one is not None and one.topic == topic]
    return found


def lag_of(connection: Connection, group: str) -> MeasuredLag:
    (found,) = [one for one in measure_lags(connection, most=10_000) if one is not None and one.group_name == group]
    return found


def commit(client: msgtx.Client, group: str, topic: str, offset: int) -> None:
    client.admin.groups.reset(group, {TopicPartition(topic, 0): offset})


def share_of(connection: Connection, group: str) -> MeasuredShare:
    (found,) = [one for one in measure_shares(connection, most=10_000) if one is not None and one.group_name == group]
    return found


def group_of(connection: Connection, group: str) -> MeasuredGroup:
    (found,) = [one for one in measure_groups(connection, most=10_000) if one is not None and one.group_name == group]
    return found


def configured(client: msgtx.Client, connection: Connection, group: str) -> int:
    """Make a share group that begins at the log start. Return its id."""
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    ((group_id,),) = connection.execute("select group_id from msgtx.consumer_group where name = %s", [group]).fetchall()
    return int(group_id)


def stored_bytes(connection: Connection, partition: int) -> int:
    ((exact,),) = query(
        connection, "select sum(byte_size)::bigint from msgtx.record_batch where partition_id = %s", partition
    )
    return int(exact)


def send(client: msgtx.Client, topic: str, *values: bytes) -> None:
    with client.producer() as producer:
        producer.send_batch(topic, values).result()


def send_aborted(client: msgtx.Client, topic: str, count: int, *, each: bool = False) -> None:
    with client.producer(transactional_id=f"aborts-{topic}") as producer:
        for _ in range(count if each else 1):
            producer.begin_transaction()
            for _ in range(1 if each else count):
                producer.send(topic, b"aborted")
            producer.flush()
            producer.abort_transaction()


def test_a_group_is_measured_by_its_members(
    client: msgtx.Client, connection: Connection, topic: str, unique: Unique, clock: Clock
) -> None:
    """And more than are asked for are told of by a None behind them."""
    group, empty = unique("group"), unique("empty")
    commit(client, empty, topic, 0)
    with client.consumer(topic, group=group, enable_auto_commit=False) as consumer:
        consumer.poll(0)
        assert group_of(connection, group)[:4] == (group, 1, 0, True)
        clock("1 day")
        assert group_of(connection, group).overdue == 1
        clock(None)
    found = group_of(connection, empty)
    assert (found.members, found.overdue) == (0, 0)
    assert list(measure_groups(connection, most=0)) == [None]


def test_ends_and_bytes_are_those_of_the_log(client: msgtx.Client, connection: Connection, topic: str) -> None:
    with client.producer() as producer:
        for size in (10, 2_000, 300):
            producer.send(topic, b"x" * size).result()
    with client.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open").result()
        found = partition_of(connection, topic)
        producer.abort_transaction()
    assert (found.log_start_offset, found.last_stable_offset, found.log_end_offset) == (0, 3, 4)
    exact = stored_bytes(connection, found.partition_id)
    assert found.bytes == exact > 2_310


def test_bytes_of_a_long_log_are_estimated_from_its_rows_and_follow_its_start(
    client: msgtx.Client, connection: Connection, topic: str
) -> None:
    """A few rows of many records beside many of few: each offset counts as much as another."""
    with client.producer() as producer:
        for number in range(400):
            producer.send_batch(topic, [b"x" * 100] * (200 if number % 20 == 0 else 1)).result()
    found = partition_of(connection, topic)
    exact = stored_bytes(connection, found.partition_id)
    assert abs(found.bytes - exact) < 0.1 * exact
    client.admin.partitions.delete_records({TopicPartition(topic, 0): found.log_end_offset // 2})
    assert partition_of(connection, topic).bytes < 0.6 * exact


def test_lag_is_counted_to_the_last_stable_offset_and_dated_by_the_records(
    group: str, client: msgtx.Client, connection: Connection, clock: Clock, topic: str
) -> None:
    send(client, topic, *[b"x"] * 5)
    commit(client, group, topic, 2)
    with client.producer(transactional_id=group) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open").result()
        clock("90 seconds")
        found = lag_of(connection, group)
        clock(None)
        producer.abort_transaction()
    assert (found.topic, found.records) == (topic, 3)
    assert found.age_ms is not None
    assert 90_000 <= found.age_ms < 120_000
    described = client.admin.groups.describe(group)
    assert described.lag == 3


def test_a_group_that_has_read_all_but_aborted_records_has_no_lag(
    group: str, client: msgtx.Client, connection: Connection, topic: str
) -> None:
    send(client, topic, b"read")
    commit(client, group, topic, 1)
    send_aborted(client, topic, 4)
    found = lag_of(connection, group)
    assert (found.records, found.age_ms) == (0, None)
    send(client, topic, b"unread")
    assert lag_of(connection, group).records == 1


def test_lag_begins_at_the_first_record_that_the_group_would_be_given(
    client: msgtx.Client, connection: Connection, topic: str, unique: Unique
) -> None:
    """Not at what compaction has emptied or a transaction aborted, nor behind the last stable offset."""
    group, partition = unique("group"), partition_of(connection, topic).partition_id
    aborted, open_one = Writer(connection), Writer(connection)
    commit(client, group, topic, 0)
    plain(connection, partition, b"emptied")
    connection.execute(
        "update msgtx.record_batch set record_count = 0, \"values\" = '{}', offset_deltas = '{}' where partition_id = %s",
        [partition],
    )
    aborted.send_and_abort(partition, b"1")
    open_one.send(partition, b"2")
    plain(connection, partition, b"3")
    found = lag_of(connection, group)
    assert (found.records, found.age_ms) == (0, None)
    open_one.commit()
    assert lag_of(connection, group).records == 2


def test_a_group_behind_which_compaction_has_left_no_record_has_no_lag(
    client: msgtx.Client, connection: Connection, topic: str, unique: Unique
) -> None:
    """Its offset is in the middle of a row whose last records are gone, such as tombstones."""
    group, partition = unique("group"), partition_of(connection, topic).partition_id
    with client.producer() as producer:
        producer.send_batch(topic, [b"0", b"1", b"2", None], [b"a", b"b", b"c", b"d"])
    connection.execute(
        'update msgtx.record_batch set record_count = 2, keys = keys[2:3], "values" = "values"[2:3],'
        " offset_deltas = '{1,2}' where partition_id = %s",
        [partition],
    )
    for offset, records in ((3, 0), (2, 2)):
        commit(client, group, topic, offset)
        found = lag_of(connection, group)
        assert (found.records, found.age_ms is None) == (records, records == 0)


def test_a_share_group_that_reads_uncommitted_has_open_records_before_it(
    client: msgtx.Client, connection: Connection, topic: str, unique: Unique
) -> None:
    partition, writer = partition_of(connection, topic).partition_id, Writer(connection)
    writer.send(partition, b"open")
    for isolation, records in (("read_committed", 0), ("read_uncommitted", 1)):
        group = unique("share")
        group_id = configured(client, connection, group)
        client.admin.shares.configure(group, {"isolation": isolation})
        connection.execute(
            "insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)"
            " values (%s, %s, 1, 0, '{}')",
            [group_id, partition],
        )
        assert share_of(connection, group).records == records
    writer.abort()


def test_a_group_before_more_aborted_rows_than_are_looked_at_is_not_taken_for_caught_up(
    group: str, client: msgtx.Client, connection: Connection, topic: str
) -> None:
    commit(client, group, topic, 0)
    send_aborted(client, topic, 100, each=True)
    assert lag_of(connection, group).records == 0
    send_aborted(client, topic, 20, each=True)
    send(client, topic, b"unread")
    assert 1 <= lag_of(connection, group).records <= 21


def test_a_group_whose_offset_is_in_front_of_the_log_start_lags_from_there(
    group: str, client: msgtx.Client, connection: Connection, topic: str
) -> None:
    send(client, topic, *[b"x"] * 10)
    commit(client, group, topic, 0)
    client.admin.partitions.delete_records({TopicPartition(topic, 0): 7})
    assert lag_of(connection, group).records == 3


def test_a_share_group_has_what_is_not_done(
    client: msgtx.Client, connection: Connection, clock: Clock, topic: str, unique: Unique
) -> None:
    """Delayed, held, released, accepted; then aborted and committed records that nobody has seen yet."""
    group = unique("share")
    configured(client, connection, group)
    with client.producer() as producer:
        producer.send_batch(topic, [b"x"] * 5).result()
        producer.send(topic, b"later", delay_ms="1h").result()
    assert all(one is None or one.group_name != group for one in measure_shares(connection, most=10_000))
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
        for record in consumer.poll(10, max_records=5)[:2]:
            consumer.acknowledge(record)
        consumer.commit()
        assert consumer.poll(0) == []  # it meets the delayed one
        found = share_of(connection, group)
        assert (found.records, found.in_flight, found.parked, found.members) == (4, 3, 1, 1)
        send_aborted(client, topic, 4)
        send(client, topic, b"unseen")
        clock("90 seconds")
        found = share_of(connection, group)
        clock(None)
        assert (found.topic, found.records, found.in_flight) == (topic, 5, 3)
        assert found.age_ms is not None
        assert 90_000 <= found.age_ms < 120_000
    assert (share_of(connection, group).members, share_of(connection, group).in_flight) == (0, 3)
    described = client.admin.shares.describe(group)
    assert described.lag == 5


def test_a_share_group_that_has_done_all_but_aborted_records_has_no_lag(
    client: msgtx.Client, connection: Connection, topic: str, unique: Unique
) -> None:
    """Its own place in its dead letters is none either; what retention removes is done."""
    group = unique("share")
    configured(client, connection, group)
    send(client, topic, *[b"x"] * 3)
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
        first, second, _ = consumer.poll(10)
        consumer.acknowledge(first, Acknowledgement.REJECT)
        consumer.acknowledge(second)
        consumer.commit()
        client.admin.partitions.delete_records({TopicPartition(topic, 0): 3})
        send_aborted(client, topic, 4)
        client.admin.shares.redrive(group, max_records=0)
        found = share_of(connection, group)
        assert (found.records, found.in_flight, found.parked, found.age_ms) == (0, 0, 0, None)
    assert client.admin.shares.redrive(group).sent == 1
    assert share_of(connection, group).records == 1


@pytest.mark.parametrize("kind", ["in flight", "parked", "unread"])
def test_the_age_of_a_share_group_is_that_of_the_oldest_record_that_is_not_done(
    client: msgtx.Client, connection: Connection, topic: str, unique: Unique, kind: str
) -> None:
    """In its own log: another one has newer rows, closer to that offset, and newer ones lie behind it."""
    beside, group = unique("beside"), unique("share")
    client.topics.create(beside)
    configured(client, connection, group)
    now = int(time.time() * 1000)
    with client.producer() as producer:
        for name, back in ((beside, 1), (topic, 9)):
            for _ in range(2):
                delay = "1h" if kind == "parked" else None
                sent = producer.send(name, b"x", timestamp=now - back * 3_600_000, delay_ms=delay)
                if name == beside:
                    sent.result()
        producer.flush()
        with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
            records = consumer.poll(0 if kind == "parked" else 10)
            for record in records[: {"in flight": 1, "parked": 0, "unread": 2}[kind]]:
                consumer.acknowledge(record)
            consumer.commit()
            producer.send(topic, b"y", timestamp=now - 5 * 3_600_000).result()
            found = share_of(connection, group)
    assert found.age_ms is not None
    assert round(found.age_ms / 3_600_000) == (5 if kind == "unread" else 9)


def test_a_groups_lag_is_from_its_own_decided_offsets(client: msgtx.Client, connection: Connection, unique: Unique) -> None:
    """Not from another group's, from those of another partition, or from ones that wait for a decision."""
    topics, group, other = [unique("measured") for _ in range(2)], unique("group"), unique("group")
    for topic in topics:
        client.topics.create(topic)
        client.producer().send_batch(topic, [b"x"] * 5).result()
    for name, topic, offset in ((group, topics[0], 1), (group, topics[1], 4), (other, topics[0], 3)):
        commit(client, name, topic, offset)
    partition = partition_of(connection, topics[0]).partition_id
    seal(connection, Writer(connection).name, "external", offset=(group, partition, 5))
    lags = {(one.group_name, one.topic): one.records for one in measure_lags(connection, most=10_000) if one is not None}
    assert lags.items() >= {(group, topics[0]): 4, (group, topics[1]): 1, (other, topics[0]): 2}.items()


def test_dead_letters_of_several_groups_are_told_apart(client: msgtx.Client, connection: Connection, unique: Unique) -> None:
    """Two of them have one topic of dead letters, from which one group has sent back its own."""
    topic, shared = unique("measured"), unique("letters")
    groups = [unique("share") for _ in range(3)]
    client.topics.create(topic)
    client.topics.create(shared)
    client.producer().send_batch(topic, [b"x"] * 5).result()
    for place, group in enumerate(groups):
        configured(client, connection, group)
        if place < 2:
            client.admin.shares.configure(group, {"dead_letter_topic": shared})
        with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
            for record in consumer.poll(10)[place:]:
                consumer.acknowledge(record, Acknowledgement.REJECT)
            consumer.commit()
    assert client.admin.shares.redrive(groups[0]).sent == 5
    letters = dict(one[:2] for one in measure_dead_letters(connection, most=10_000) if one is not None)
    assert [letters[group] for group in groups] == [0, 9, 3]


def test_dead_letters_are_those_that_were_not_sent_back(
    client: msgtx.Client, connection: Connection, topic: str, unique: Unique
) -> None:
    """Retention may have removed some."""

    def letters() -> int:
        return dict(one[:2] for one in measure_dead_letters(connection, most=10_000) if one is not None)[group]

    group = unique("share")
    configured(client, connection, group)
    assert letters() == 0
    send(client, topic, *[b"x"] * 5)
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
        for record in consumer.poll(10):
            consumer.acknowledge(record, Acknowledgement.REJECT)
        consumer.commit()
    assert letters() == 5
    client.admin.partitions.delete_records({TopicPartition(f"{group}-dead-letters", 0): 1})
    assert letters() == 4
    assert client.admin.shares.redrive(group, max_records=3).sent == 3
    assert letters() == 1


def test_pages_leave_nothing_out_and_a_limit_is_told(
    client: msgtx.Client, connection: Connection, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, group = unique("paged"), unique("group")
    client.topics.create(name, partitions=7)
    client.admin.groups.reset(group, {TopicPartition(name, index): 0 for index in range(7)})
    gone = unique("gone")
    client.topics.create(gone)
    commit(client, unique("of-gone"), gone, 0)
    client.topics.delete(gone)
    share = unique("share")
    configured(client, connection, share)
    for topic in (name, gone):
        client.topics.create(topic, 7, if_not_exists=True)
        with client.share_consumer(topic, group=share) as consumer:
            consumer.poll(0)
    client.topics.delete(gone)
    whole = list(measure_partitions(connection, most=10_000))
    shares = {(one.group_name, one.topic) for one in measure_shares(connection, most=10_000) if one is not None}
    assert (share, name) in shares
    lags = {(one.group_name, one.topic) for one in measure_lags(connection, most=10_000) if one is not None}
    assert (group, name) in lags
    monkeypatch.setattr("msgtx.store.monitoring.MEASURED_AT_ONCE", 3)
    monkeypatch.setattr("msgtx.store.monitoring.LAGS_AT_ONCE", 1)
    monkeypatch.setattr("msgtx.store.monitoring.SHARES_AT_ONCE", 1)
    assert list(measure_partitions(connection, most=10_000)) == whole
    assert {(one.group_name, one.topic) for one in measure_lags(connection, most=10_000) if one is not None} == lags
    assert [one is None for one in measure_partitions(connection, most=3)] == [False] * 3 + [True]
    assert list(measure_lags(connection, most=1))[-1] is None
    assert {(one.group_name, one.topic) for one in measure_shares(connection, most=10_000) if one is not None} == shares
    assert list(measure_shares(connection, most=1))[-1] is None
    assert list(measure_dead_letters(connection, most=1))[-1] is None
    letters = [one[0] for one in measure_dead_letters(connection, most=10_000) if one is not None]
    assert share in letters
    assert len(letters) == len(set(letters))
    over = time.monotonic()
    assert list(measure_shares(connection, most=10_000, deadline=over)) == [None]
    assert list(measure_partitions(connection, most=10_000, deadline=over)) == [None]
    assert list(measure_lags(connection, most=10_000, deadline=over)) == [None]


def test_a_page_with_nothing_to_show_says_where_it_came_to(
    client: msgtx.Client, connection: Connection, unique: Unique
) -> None:
    """As of deleted topics, or, of consumer groups, where share groups are: the look goes on behind them."""
    topics, group, share = [unique("measured") for _ in range(2)], unique("group"), unique("share")
    for topic in topics:
        client.topics.create(topic)
        commit(client, group, topic, 0)
    first, second = (partition_of(connection, topic).partition_id for topic in topics)
    shares = configured(client, connection, share)
    for topic in topics:
        with client.share_consumer(topic, group=share) as consumer:
            consumer.poll(0)
    client.topics.delete(topics[1])
    ((groups,),) = connection.execute("select group_id from msgtx.consumer_group where name = %s", [group]).fetchall()

    def page(what: str, *after: int, most: int = 1) -> list[tuple[str | None, list[int] | None]]:
        return connection.execute(
            f"select group_name, next_after from msgtx.measure_{what}(%s, %s)", [list(after), most]
        ).fetchall()

    for what, name, number in (("lags", group, groups), ("shares", share, shares)):
        assert page(what, number, first - 1) == [(name, [number, first])]
        assert page(what, number, first) == [(None, [number, second])]
        assert page(what, number, first, most=9) == page(what, number, second) == []
        assert page(what, number, first - 1, most=9) == [(name, None)]
    assert page("groups", groups - 1) == [(group, [groups])]
    assert page("groups", groups) == [(None, [shares])]
    assert page("groups", groups, most=9) == page("groups", shares) == []
    assert page("groups", groups - 1, most=9) == [(group, None)]


def test_a_measurement_looks_at_few_rows_however_long_the_logs_are(
    client: msgtx.Client, connection: Connection, unique: Unique
) -> None:
    group, name = unique("group"), unique("long")
    client.topics.create(name)
    commit(client, group, name, 10)
    (partition_id,) = connection.execute(
        "select p.partition_id from msgtx.partition p join msgtx.topic t using (topic_id) where t.name = %s", [name]
    ).fetchone() or (0,)
    connection.execute(
        """insert into msgtx.record_batch (partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count,
           byte_size, "values") select %s, i, i, now(), 0, 1, 1, array['x'::bytea] from generate_series(0, 20000) i""",
        [partition_id],
    )
    after = partition_id - 1
    (group_id,) = connection.execute("select group_id from msgtx.consumer_group where name = %s", [group]).fetchone() or (0,)
    share = unique("share")
    share_id = configured(client, connection, share)
    connection.execute(
        "insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans) values (%s, %s, 1, 10, '{}')",
        [share_id, partition_id],
    )
    for statement, arguments in (
        ("select * from msgtx.measure_partitions(%s, 1)", [after]),
        ("select * from msgtx.measure_groups(array[%s], 1)", [group_id - 1]),
        ("select * from msgtx.measure_lags(array[%s, -1], 1)", [group_id]),
        ("select * from msgtx.measure_shares(array[%s, -1], 1)", [share_id]),
    ):
        with connection.transaction(force_rollback=True):
            (before,) = connection.execute(LOOKS).fetchone() or (0,)
            assert connection.execute(statement, arguments).fetchall()
            (looks,) = connection.execute(LOOKS).fetchone() or (0,)
        assert looks - before <= 60, statement
