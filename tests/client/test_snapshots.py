"""Snapshots: a cut as a value, and what reading it returns (I14, I15)."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import msgtx
from msgtx import CommittedRange, Snapshot, TopicPartition, errors
from msgtx.admin.failover import after_failover
from msgtx.database.pool import Engine
from tests.client.steps import store
from tests.databases import Connection
from tests.hooks import Hook
from tests.refusals import refuses

Unique = Callable[[str], str]
INCARNATION = "0f8fad5b-d9cb-469f-a165-70867728950e"


def values(client: msgtx.Client, cut: Snapshot, start: Snapshot | None = None) -> list[bytes | None]:
    return [record.value for record in client.read(cut, start)]


def test_a_cut_leaves_out_what_an_open_transaction_holds_back(client: msgtx.Client, wide: str, unique: Unique) -> None:
    with (
        client.producer(transactional_id=unique("open")) as open_one,
        client.producer(transactional_id=unique("split")) as split,
    ):
        with split.transaction():
            for partition in range(3):
                split.send(wide, b"whole", partition=partition)
        open_one.begin_transaction()
        open_one.send(wide, b"open", partition=0).result(10)
        with split.transaction():
            for partition in range(3):
                split.send(wide, b"behind", partition=partition)
        cut = client.snapshot([wide])
        assert cut.ends == {TopicPartition(wide, partition): 1 for partition in range(3)}
        assert values(client, cut) == [b"whole"] * 3
        open_one.abort_transaction()
    later = client.snapshot([wide])
    assert values(client, later, cut) == [b"behind"] * 3
    assert values(client, later) == [b"whole", b"behind"] * 3
    assert values(client, cut) == [b"whole"] * 3, "an earlier cut reads the same"


def test_two_topics_are_cut_together(client: msgtx.Client, topic: str, wide: str, unique: Unique) -> None:
    with client.producer(transactional_id=unique("id")) as producer, producer.transaction():
        producer.send(topic, b"one")
        producer.send(wide, b"two", partition=2)
    cut = client.snapshot([topic, wide])
    assert sorted(filter(None, values(client, cut))) == [b"one", b"two"]
    assert values(client, cut, cut) == []
    assert client.snapshot([]).ends == {}


def test_a_topic_that_was_made_again_is_another_one_for_a_cut(client: msgtx.Client, topic: str) -> None:
    """I14: otherwise what came to the new one would be taken for what was read, and left out."""
    with client.producer() as producer:
        producer.send_batch(topic, [b"old"] * 2, partition=0).result(10)
        before = client.snapshot([topic])
        client.topics.delete(topic)
        client.topics.create(topic)
        producer.send_batch(topic, [b"new"] * 3, partition=0).result(10)
    cut = client.snapshot([topic])
    for start in (before, Snapshot.parse(str(before)), pickle.loads(pickle.dumps(before))):  # noqa: S301 - our own
        assert values(client, cut, start) == [b"new"] * 3
        assert client.snapshots.ranges(start=start, end=cut)[TopicPartition(topic, 0)].records == 3
        for refused in (lambda start=start: values(client, start), lambda start=start: client.snapshots.ranges(end=start)):
            with refuses(errors.UnknownTopicOrPartition, reason="made again"):
                refused()


def test_a_topic_that_is_deleted_while_a_cut_is_read_is_unknown(client: msgtx.Client, topic: str, hook: Hook) -> None:
    """I16: between two looks at what is there."""
    cut = client.snapshot([topic])
    hook.at("before list_offsets", lambda: client.topics.delete(topic))
    with pytest.raises(errors.UnknownTopicOrPartition):
        values(client, cut)


def test_text_and_pickle_bring_a_cut_back(client: msgtx.Client, wide: str) -> None:
    cut = client.snapshot([wide])
    assert Snapshot.parse(str(cut)) == cut == pickle.loads(pickle.dumps(cut))  # noqa: S301 - our own
    text = f"{INCARNATION} a.b-c_d:0=1,12=34 z:0=0"
    assert str(Snapshot.parse(text)) == text
    text = f"{INCARNATION} a.b-c_d:0=1@7,12=34@8 z:0=0"
    assert str(Snapshot.parse(text)) == text
    assert Snapshot.parse(INCARNATION).ends == {}


@pytest.mark.parametrize(
    "text", ["", "x", "orders:0=1", f"{INCARNATION} orders", f"{INCARNATION} orders:0=-1", f"{INCARNATION} o:=1"]
)
def test_a_text_that_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        Snapshot.parse(text)


def test_what_cannot_be_read_says_why(client: msgtx.Client, topic: str, unique: Unique, connection: Connection) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition):
        client.snapshot([unique("nowhere")])
    for call in (client.snapshot, client.snapshots.take, client.snapshots.ranges, client.admin.verify):
        with refuses(TypeError, name="topics"):
            call(topic)
    begin = client.snapshot([topic])
    store(client, topic, b"a", b"b", b"c")
    cut = client.snapshot([topic])
    with pytest.raises(errors.IncarnationChanged):
        values(client, Snapshot(cut.ends, INCARNATION))
    with pytest.raises(errors.LogTruncated):
        values(client, Snapshot({TopicPartition(topic, 0): 9}, cut.incarnation))
    client.admin.partitions.delete_records({TopicPartition(topic, 0): 2})
    with refuses(errors.OffsetOutOfRange, topic=topic, partition=0):
        values(client, cut, begin)
    assert values(client, cut) == [b"c"]


# ── names ──


def test_a_saved_cut_is_found_again_by_every_client(
    client: msgtx.Client, wide: str, unique: Unique, database_url: str
) -> None:
    name = unique("cut")
    cut = client.snapshot([wide])
    saved = client.snapshots.save(name, cut)
    with msgtx.connect(database_url) as other:
        assert other.snapshots.get(name) == cut
        assert saved in other.snapshots.list()
    assert client.snapshots.save(name, cut) == saved, "the same call again gets the same answer"
    another = client.snapshots.save(unique("cut"), cut)
    client.snapshots.delete(name)
    assert another in client.snapshots.list()
    with refuses(errors.SnapshotNotFound, name=name):
        client.snapshots.get(name)
    with refuses(errors.SnapshotNotFound, name=name):
        client.snapshots.delete(name)
    with pytest.raises(errors.SnapshotNotFound):
        client.snapshots.get("")


def test_a_name_keeps_its_cut_unless_it_is_replaced(client: msgtx.Client, topic: str, unique: Unique) -> None:
    name = unique("cut")
    before = client.snapshot([topic])
    client.snapshots.save(name, before)
    store(client, topic, b"a")
    after = client.snapshot([topic])
    with refuses(errors.SnapshotExists, name=name):
        client.snapshots.save(name, after)
    assert client.snapshots.get(name) == before
    assert client.snapshots.save(name, after, replace=True).snapshot == after
    assert client.snapshots.get(name) == after


def test_of_two_that_save_a_name_at_once_one_is_refused(
    client: msgtx.Client, topic: str, unique: Unique, background: ThreadPoolExecutor
) -> None:
    name = unique("cut")
    cuts = [Snapshot({TopicPartition(topic, 0): end}, client.snapshot([]).incarnation) for end in range(8)]

    def save(cut: Snapshot) -> Snapshot | None:
        try:
            return client.snapshots.save(name, cut).snapshot
        except errors.SnapshotExists:
            return None

    saved = [cut for cut in background.map(save, cuts) if cut is not None]
    assert saved == [client.snapshots.get(name)]


@pytest.mark.parametrize("name", ["", "two words", "ü", "x" * 250, "a/b", "a\n"])
def test_a_name_that_could_be_taken_for_something_else_is_refused(client: msgtx.Client, name: str) -> None:
    with refuses(errors.InvalidRequest, name=name):
        client.snapshots.save(name, client.snapshot([]))


def test_of_another_incarnation_nothing_is_saved_and_what_was_saved_is_not_read(
    make_database: Callable[..., str],
) -> None:
    url = make_database()
    with msgtx.connect(url) as old:
        old.topics.create("t")
        with old.producer() as producer:
            producer.send("t", b"a").result(10)
        cut = old.snapshots.save("yesterday", old.snapshot(["t"])).snapshot
    with Engine(url) as engine:
        after_failover(engine)
    with msgtx.connect(url) as new:
        assert new.snapshots.get("yesterday") == cut
        for call in (
            lambda: values(new, cut),
            lambda: new.snapshots.ranges(start=cut),
            lambda: new.snapshots.ranges(end=cut),
            lambda: new.snapshots.save("today", cut),
        ):
            with pytest.raises(errors.IncarnationChanged):
                call()
        replaced = new.snapshots.save("yesterday", new.snapshot(["t"]), replace=True)
        assert values(new, replaced.snapshot) == [b"a"]


# ── what is read again ──


def test_a_saved_cut_reads_the_same_after_more_data(client: msgtx.Client, wide: str, unique: Unique) -> None:
    """I14."""
    name = unique("cut")
    with client.producer(transactional_id=unique("id")) as producer:
        with producer.transaction():
            for partition in range(3):
                producer.send(wide, b"%d" % partition, partition=partition)
        client.snapshots.save(name, client.snapshot([wide]))
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            for partition in range(3):
                producer.send(wide, b"later", partition=partition)
            end()
        later = client.snapshot([wide])
        assert all(later.ends[at] >= end for at, end in client.snapshots.get(name).ends.items())
        client.sweep(only=["markers", "history", "floors"])
        assert values(client, client.snapshots.get(name)) == [b"0", b"1", b"2"]
        assert values(client, later, client.snapshots.get(name)) == [b"later"] * 3


def test_after_compaction_a_cut_reads_what_is_left_below_it(
    client: msgtx.Client, unique: Unique, clock: Callable[..., None]
) -> None:
    """I14 ends there: a superseded record below the cut is gone, and its successor is above it."""
    topic = unique("compacted")
    client.topics.create(topic, cleanup_policy="compact")
    with client.producer() as producer:
        for key, value in ((b"a", b"1"), (b"b", b"1"), (b"c", b"1")):
            producer.send(topic, value, key=key).result(10)
        cut = client.snapshot([topic])
        for _ in range(3):
            producer.send(topic, b"2", key=b"a").result(10)
            producer.send(topic, b"2", key=b"b").result(10)
    clock("1 hour")
    client.sweep()
    assert values(client, cut) == [b"1"]
    at = TopicPartition(topic, 0)
    assert client.snapshots.ranges(end=cut)[at].records == 1
    assert client.snapshots.ranges(start=cut)[at] == CommittedRange(
        3, 9, 0, 2, client.snapshots.ranges(start=cut)[at].bytes, 0
    )
    assert values(client, client.snapshot([topic])) == [b"1", b"2", b"2"]


def test_after_retention_a_cut_reads_from_the_log_start_and_its_range_counts_what_is_gone(
    client: msgtx.Client, topic: str
) -> None:
    at = TopicPartition(topic, 0)
    begin = client.snapshot([topic])
    with client.producer() as producer:
        for value in (b"a", b"b", b"c", b"d"):
            producer.send(topic, value).result(10)
        cut = client.snapshot([topic])
        client.admin.partitions.delete_records({at: 3})
        client.sweep()
        assert values(client, cut) == [b"d"]
        found = client.snapshots.ranges(start=begin, end=cut)[at]
        assert (found.start, found.end, found.removed, found.records) == (0, 4, 3, 1)
        producer.send(topic, b"e").result(10)
        client.admin.partitions.delete_records({at: 5})
        assert values(client, cut) == []
        found = client.snapshots.ranges(start=begin, end=cut)[at]
        assert (found.start, found.end, found.removed, found.records) == (0, 4, 4, 0)
        found = client.snapshots.ranges(end=cut)[at]
        assert (found.start, found.end, found.records) == (4, 4, 0)


# ── ranges, and what holds a cut back ──


def test_ranges_count_what_is_committed_and_nothing_else(client: msgtx.Client, wide: str, unique: Unique) -> None:
    with client.producer(transactional_id=unique("id"), batch_records=7) as producer:
        for count, end in ((10, producer.commit_transaction), (5, producer.abort_transaction)):
            producer.begin_transaction()
            for _ in range(count):
                producer.send(wide, b"x" * 100, partition=0)
            producer.flush(10)
            end()
        middle = client.snapshot([wide])
        with producer.transaction():
            for _ in range(4):
                producer.send(wide, b"x" * 100, partition=2)
    first = client.snapshots.ranges([wide], end=middle)
    assert [(one.start, one.end, one.records) for one in first.values()] == [(0, 15, 10), (0, 0, 0), (0, 0, 0)]
    assert 10 * 100 < first[TopicPartition(wide, 0)].bytes < 10 * 150
    second = client.snapshots.ranges(start=middle)
    assert [(one.start, one.end, one.records) for one in second.values()] == [(15, 15, 0), (0, 0, 0), (0, 4, 4)]
    assert {*client.snapshots.ranges()} >= {*first}
    within = Snapshot({TopicPartition(wide, 0): 3}, middle.incarnation)
    found = client.snapshots.ranges(end=within)
    assert [(one.records, one.bytes // 3 // 100) for one in found.values()] == [(3, 1)], "a part of a row"


def test_ranges_say_what_cannot_be_between_two_cuts(client: msgtx.Client, topic: str, wide: str, unique: Unique) -> None:
    early = client.snapshot([topic])
    store(client, topic, b"a")
    late = client.snapshot([topic])
    with refuses(errors.InvalidRequest, topic=topic, partition=0):
        client.snapshots.ranges(start=late, end=early)
    with refuses(errors.InvalidRequest, topic=wide):
        client.snapshots.ranges([topic, wide], end=late)
    with pytest.raises(errors.UnknownTopicOrPartition):
        client.snapshots.ranges([unique("nowhere")])


def test_a_cut_names_who_holds_it_back_where(client: msgtx.Client, topic: str, wide: str, unique: Unique) -> None:
    with (
        client.producer(transactional_id=unique("open")) as open_one,
        client.producer(transactional_id=unique("split")) as split,
    ):
        blocking = open_one.begin_transaction().id
        open_one.send(wide, b"open", partition=0).result(10)
        with split.transaction() as transaction:
            split.send(wide, b"behind", partition=0)
            split.send(wide, b"beside", partition=1)
        taken = client.snapshots.take([topic, wide])
        assert taken.held_by == {TopicPartition(wide, 0): blocking, TopicPartition(wide, 1): transaction.id}
        open_one.abort_transaction()
    assert client.snapshots.take([topic, wide]).held_by == {}
    assert client.snapshots.take().snapshot.ends.keys() >= taken.snapshot.ends.keys()
