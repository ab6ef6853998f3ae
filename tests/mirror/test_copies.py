"""What a mirror copies from one database to another, and where it stops."""

import contextlib
from collections.abc import Callable
from functools import partial

import pytest

import msgtx
from msgtx import errors
from msgtx.mirror import source
from msgtx.mirror import target as written
from msgtx.store.fetch.fetch import FetchedBatch
from tests.hooks import Hook, away
from tests.mirror.conftest import contents
from tests.refusals import refuses

Copy = Callable[..., msgtx.MirrorReport]
Make = Callable[..., msgtx.Producer]
Unique = Callable[[str], str]


def test_a_copy_has_the_keys_values_headers_timestamps_and_partitions_of_its_source(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique
) -> None:
    with client.producer() as producer:
        for number in range(300):
            producer.send(
                wide,
                None if number % 7 == 0 else b"v%d" % number,
                key=None if number % 5 == 0 else b"k%d" % number,
                partition=number % 3,
                timestamp=1_700_000_000_000 + number,
                headers=[("n", b"%d" % number), ("n", None), ("", b"")] if number % 2 else None,
            )
    name = unique("mirror")
    assert copy(wide, name=name).records == 300
    assert contents(target, wide) == contents(client, wide)
    assert copy(wide, name=name).records == 0, "the target has its progress"
    assert not list(target.admin.verify().violations)


def test_a_portion_divides_no_transaction_whatever_its_limit(
    client: msgtx.Client,
    target: msgtx.Client,
    wide: str,
    copy: Copy,
    make: Make,
    unique: Unique,
) -> None:
    """The transactions of two producers overlap: the end of one lies within the other, on another partition (I15)."""
    long, short = make(), make()
    sent = 0
    for step in range(30):
        with long.transaction():
            for partition in range(3):
                long.send(wide, b"long-%d" % step, partition=partition)
            long.flush()
            for number in range(3):
                with short.transaction():
                    short.send(wide, b"short-%d-%d" % (step, number), partition=number)
                    short.send(wide, b"short-%d-%d" % (step, number), partition=(number + 1) % 3)
                sent += 2
            long.send(wide, b"long-%d" % step, partition=1)
        sent += 4
    seen: list[dict[bytes, int]] = []

    def look(_: object) -> None:
        counts: dict[bytes, int] = {}
        for records in contents(target, wide).values() if wide in target.topics.list() else ():
            for record in records:
                counts[record[1]] = counts.get(record[1], 0) + 1
        seen.append(counts)

    report = copy(wide, name=unique("mirror"), max_records=1, max_bytes=1, on_progress=look)
    assert report.records == sent
    assert report.transactions > 2
    assert contents(target, wide) == contents(client, wide)
    assert all(count == (4 if value.startswith(b"long") else 2) for counts in seen for value, count in counts.items())


def test_aborted_and_open_transactions_are_not_copied(
    client: msgtx.Client,
    target: msgtx.Client,
    wide: str,
    copy: Copy,
    make: Make,
    unique: Unique,
) -> None:
    producer, other, name = make(), make(), unique("mirror")
    producer.begin_transaction()
    producer.send(wide, b"aborted", partition=0)
    producer.flush()
    producer.abort_transaction()
    with producer.transaction():
        producer.send(wide, b"committed", partition=0)
    other.begin_transaction()
    other.send(wide, b"open", partition=0)
    other.flush()
    assert copy(wide, name=name).records == 1
    other.commit_transaction()
    assert copy(wide, name=name).records == 1
    assert contents(target, wide) == contents(client, wide)


def fenced(client: msgtx.Client, target: msgtx.Client, topic: str, *, name: str, by: Callable[[], object]) -> None:
    """Copy a record, then fence the mirror and send another one: it ends."""

    def fence(report: msgtx.MirrorReport) -> None:
        if report.records == 1:
            client.producer().send(topic, b"2", partition=0).result()
            by()

    client.producer().send(topic, b"1", partition=0).result()
    with refuses(errors.MirrorFenced, name=name):
        client.mirror(topic, name=name, target=target, on_progress=fence)


def test_a_second_mirror_of_a_name_fences_the_first(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique
) -> None:
    name = unique("mirror")
    fenced(client, target, wide, name=name, by=lambda: copy(wide, name=name))
    assert [record[1] for record in contents(target, wide)[wide, 0]] == [b"1", b"2"]


def test_a_reset_fences_a_mirror_and_lets_it_begin_anew(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique
) -> None:
    name = unique("mirror")
    fenced(client, target, wide, name=name, by=lambda: target.admin.mirrors.reset(name))
    assert copy(wide, name=name).records == 2
    with refuses(errors.MirrorNotFound, name="nobody"):
        target.admin.mirrors.reset("nobody")


def test_new_topics_and_partitions_are_followed(
    client: msgtx.Client, target: msgtx.Client, copy: Copy, unique: Unique
) -> None:
    prefix, name = unique("followed"), unique("mirror")
    first, second = f"{prefix}.1", f"{prefix}.2"
    client.topics.create(first, retention_ms="7d")
    client.producer().send(first, b"1").result()
    assert copy(pattern=rf"{prefix}\..*", name=name).records == 1
    assert target.topics.describe(first).settings == client.topics.describe(first).settings
    client.topics.alter(first, partitions=3)
    client.topics.create(second, partitions=2)
    client.producer().send(first, b"2", partition=2).result()
    client.producer().send(second, b"3", partition=1).result()
    assert copy(pattern=rf"{prefix}\..*", name=name).records == 2
    assert contents(target, first, second) == contents(client, first, second)


def test_partitions_that_are_added_while_a_mirror_runs_are_followed(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique
) -> None:
    def widen(report: msgtx.MirrorReport) -> None:
        if report.records == 1:
            client.topics.alter(wide, partitions=5)
            client.producer().send(wide, b"2", partition=4).result()

    client.producer().send(wide, b"1", partition=0).result()
    assert copy(wide, name=unique("mirror"), on_progress=widen).records == 2
    assert contents(target, wide) == contents(client, wide)


def test_a_topic_that_another_program_makes_or_widens_at_the_same_time_is_written_to(
    client: msgtx.Client, target_url: str, target: msgtx.Client, wide: str, unique: Unique
) -> None:
    hook, name = Hook(target.runtime.engine), unique("mirror")
    moves: list[tuple[str, Callable[[msgtx.Client], object]]] = [
        ("before create_topic", lambda other: other.topics.create(wide, partitions=1)),
        ("before alter_topic", lambda other: other.topics.alter(wide, partitions=5)),
    ]
    with msgtx.connect(target_url) as other, contextlib.ExitStack() as block:
        for moment, move in moves:
            block.enter_context(hook.at(moment, partial(move, other), times=1))
        client.producer().send(wide, b"1", partition=2).result()
        assert client.mirror(wide, name=name, target=target, until_caught_up=True).records == 1
    assert (hook.seen["before create_topic"], hook.seen["before alter_topic"]) == (1, 1)
    assert contents(target, wide) == contents(client, wide)


def test_a_transaction_over_an_old_topic_and_a_new_one_is_not_divided(
    client: msgtx.Client,
    target: msgtx.Client,
    database_url: str,
    copy: Copy,
    make: Make,
    unique: Unique,
) -> None:
    """The new topic is made behind the mirror's look at the topics, and in front of its look at their ends (I15)."""
    prefix = unique("followed")
    old, new = f"{prefix}.1", f"{prefix}.2"
    client.topics.create(old)
    producer = make()

    def begin_new() -> None:
        with msgtx.connect(database_url) as other:
            other.topics.create(new)
        with producer.transaction():
            producer.send(old, b"1")
            producer.send(new, b"1")

    producer.begin_transaction()  # the hook finds a producer that is ready
    producer.send(old, b"0")
    producer.commit_transaction()
    with Hook(client.runtime.engine).at("before consistent_cut", begin_new, times=1):
        report = copy(pattern=rf"{prefix}\..*", name=unique("mirror"))
    assert (report.records, report.transactions) == (3, 1)
    assert contents(target, old, new) == contents(client, old, new)


def send_chain(make: Make, topic: str) -> None:
    """Send 128 transactions, each of which overlaps the next one: no end within divides none."""
    producers = [make(), make()]
    producers[0].begin_transaction()
    producers[0].send(topic, b"0", partition=0)
    producers[0].flush()
    for number in range(1, 128):
        before, after = producers[(number + 1) % 2], producers[number % 2]
        after.begin_transaction()
        after.send(topic, b"%d" % number, partition=number % 2)
        after.flush()
        before.send(topic, b"%d" % (number - 1), partition=number % 2)
        before.commit_transaction()
    producers[1].commit_transaction()


def test_a_chain_of_overlapping_transactions_is_gone_through_a_few_times_only(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, make: Make, unique: Unique
) -> None:
    """Each longer piece that is read is gone through from the start."""
    send_chain(make, wide)
    hook = Hook(client.runtime.engine)
    assert copy(wide, name=unique("mirror"), max_records=1, max_bytes=1).transactions == 1
    assert 1 < hook.seen["before spans_of_transactions"] < 16
    assert contents(target, wide) == contents(client, wide)


@pytest.fixture
def holding_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion is read again, row by row, while it is written: none fits into memory."""
    monkeypatch.setattr(source, "MOST_HELD_BYTES", 1)
    monkeypatch.setattr(source, "ANSWER_BYTES", 1)


@pytest.mark.long
@pytest.mark.usefixtures("holding_nothing")
def test_a_portion_that_does_not_fit_into_memory_is_read_as_it_is_written(
    client: msgtx.Client,
    target: msgtx.Client,
    wide: str,
    copy: Copy,
    make: Make,
    unique: Unique,
) -> None:
    """It is one transaction nevertheless; one that fails in the middle is written again."""
    send_chain(make, wide)
    hook, name, reads = Hook(client.runtime.engine), unique("mirror"), [0]
    copy(wide, name=unique("mirror"), max_records=1, max_bytes=1)
    target.topics.delete(wide)
    half = hook.seen["before fetch_batches"] * 3 // 4  # while it is written

    def fail_in_the_middle() -> None:
        reads[0] += 1
        if reads[0] == half:
            away()

    with hook.at("before fetch_batches", fail_in_the_middle):
        report = copy(wide, name=name, max_records=1, max_bytes=1)
    assert reads[0] > half
    assert report.transactions == 1
    assert contents(target, wide) == contents(client, wide)


@pytest.mark.usefixtures("holding_nothing")
def test_what_is_read_as_it_is_written_is_of_one_history(
    client: msgtx.Client,
    target: msgtx.Client,
    wide: str,
    copy: Copy,
    make: Make,
    unique: Unique,
) -> None:
    """The source loses a partition in a failover after the mirror has read it, and gets other records there (I15)."""
    with (producer := make()).transaction():
        for partition in (0, 1):
            producer.send(wide, b"lost", partition=partition)
            producer.flush()
    hook, reads = Hook(client.runtime.engine), [0]

    def fail_over() -> None:
        reads[0] += hook.seen["after flush_log"] == 1
        if reads[0] == 2:
            with client.runtime.engine.transaction() as connection:
                connection.exec_driver_sql(
                    "delete from msgtx.record_batch b using msgtx.partition p, msgtx.topic t"
                    " where p.partition_id = b.partition_id and p.partition_index = 0"
                    f" and t.topic_id = p.topic_id and t.name = '{wide}'"
                )
            for _ in range(2):
                client.producer().send(wide, b"other", partition=0).result()

    with hook.at("before fetch_batches", fail_over):
        copy(wide, name=unique("mirror"))
    assert reads[0] >= 2
    assert [record[1] for record in contents(client, wide)[wide, 0]] == [b"other"] * 2
    assert contents(target, wide) == contents(client, wide)


def test_a_mirror_is_heard_of_while_it_writes_a_large_step(
    client: msgtx.Client,
    target: msgtx.Client,
    wide: str,
    copy: Copy,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(written, "NOTE_SECONDS", -1.0)
    with client.producer() as producer:
        for number in range(3):
            producer.send(wide, b"%d" % number, partition=0)
    hook = Hook(target.runtime.engine)
    assert copy(wide, name=unique("mirror")).records == 3
    assert hook.seen["after note_mirror"] >= 3
    assert contents(target, wide) == contents(client, wide)


def test_records_without_key_and_value_take_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MOST_HELD_BYTES", 100_000)
    held, batch = source._Held(), FetchedBatch(0, 999, "1", None, 0, None, [None] * 1_000, None, None, None, None, None)
    held.add(1, [batch])
    assert not held.fits
    assert not held.batches


@pytest.mark.parametrize("on_removed", ["stop", "skip"])
def test_records_that_are_removed_while_they_are_read_are_not_left_out_in_silence(
    client: msgtx.Client,
    target: msgtx.Client,
    database_url: str,
    wide: str,
    copy: Copy,
    unique: Unique,
    on_removed: str,
) -> None:
    """Retention comes between the look at the history and the first records (I14)."""
    hook, looks, name = Hook(client.runtime.engine), [0], unique("mirror")
    for value in (b"1", b"2", b"3"):
        client.producer().send(wide, value, partition=0).result()
        if value == b"1":
            copy(wide, name=name)

    def remove() -> None:
        looks[0] += 1
        if looks[0] == 2:  # the first one looks at the ends
            with msgtx.connect(database_url) as other:
                other.admin.partitions.delete_records({(wide, 0): 2})

    with hook.at("before fetch_batches", remove):
        if on_removed == "skip":
            copy(wide, name=name, on_removed="skip", outage_timeout=0)  # it is no outage
        else:
            with refuses(errors.OffsetOutOfRange, topic=wide, partition=0, offset=1, limit=2):
                copy(wide, name=name)
    assert [record[1] for record in contents(target, wide)[wide, 0]] == [b"1", b"3"][: 1 + (on_removed == "skip")]


def test_the_lag_counts_what_an_overlap_of_open_transactions_holds_back(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, make: Make, unique: Unique
) -> None:
    short, long, name = make(), make(), unique("mirror")
    long.begin_transaction()
    long.send(wide, b"open", partition=1)
    long.flush()
    with short.transaction():
        for partition in (0, 1):
            short.send(wide, b"committed", partition=partition)
    report = copy(wide, name=name)
    assert (report.records, report.lag_records) == (0, 1)
    long.commit_transaction()
    report = copy(wide, name=name)
    assert (report.records, report.lag_records) == (3, 0)
    assert contents(target, wide) == contents(client, wide)


def test_a_repartitioned_copy_has_all_records_of_a_key_in_one_partition_in_their_order(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique
) -> None:
    target.topics.create(wide, partitions=5)
    with client.producer() as producer:
        for number in range(200):
            producer.send(wide, b"%d" % number, key=b"k%d" % (number % 11))
    assert copy(wide, name=unique("mirror"), repartition=True).records == 200
    homes: dict[bytes, set[int]] = {}
    orders: dict[bytes, list[int]] = {}
    for (_, partition), records in contents(target, wide).items():
        for key, value, *_ in records:
            homes.setdefault(key, set()).add(partition)
            orders.setdefault(key, []).append(int(value))
    assert len({partition for home in homes.values() for partition in home}) > 3
    assert all(len(home) == 1 for home in homes.values())
    assert all(order == sorted(order) for order in orders.values())


def test_a_topic_that_was_made_again_stops_the_mirror(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique
) -> None:
    name = unique("mirror")
    client.producer().send(wide, b"1", partition=0).result()
    copy(wide, name=name)
    client.topics.delete(wide)
    client.topics.create(wide, partitions=3)
    client.producer().send(wide, b"2", partition=0).result()
    with refuses(errors.UnknownTopicOrPartition, topic=wide, reason="made again"):
        copy(wide, name=name)


def test_a_topic_that_was_deleted_on_the_target_stops_the_mirror(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique
) -> None:
    name = unique("mirror")
    client.producer().send(wide, b"1", partition=0).result()
    copy(wide, name=name)
    target.topics.delete(wide)
    client.producer().send(wide, b"2", partition=0).result()
    with refuses(errors.UnknownTopicOrPartition, topic=wide, reason="deleted"):
        copy(wide, name=name)
    assert wide not in target.topics.list()
    target.topics.create(wide, partitions=3)
    copy(wide, name=name)
    assert [record[1] for record in contents(target, wide)[wide, 0]] == [b"2"]


def test_a_topic_that_stamps_its_own_times_is_copied_with_them(
    client: msgtx.Client, target: msgtx.Client, copy: Copy, unique: Unique
) -> None:
    topic = unique("stamped")
    client.topics.create(topic, timestamp_type="LogAppendTime")
    client.producer().send(topic, b"1").result()
    copy(topic, name=unique("mirror"))
    assert target.topics.describe(topic).settings["timestamp_type"] == "CreateTime"
    assert contents(target, topic) == contents(client, topic)


def test_a_source_that_lost_records_and_grew_past_is_noticed(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique
) -> None:
    name = unique("mirror")
    for value in (b"1", b"2"):
        client.producer().send(wide, value, partition=0).result()
    copy(wide, name=name)
    with client.runtime.engine.transaction() as connection:  # what a failover without the last record leaves
        connection.exec_driver_sql(
            "delete from msgtx.record_batch b using msgtx.partition p, msgtx.topic t where p.partition_id = b.partition_id"
            f" and t.topic_id = p.topic_id and t.name = '{wide}' and b.base_offset = 1"
        )
    for value in (b"other", b"more"):
        client.producer().send(wide, value, partition=0).result()
    with refuses(errors.LogTruncated, topic=wide, partition=0, offset=2):
        copy(wide, name=name)
    assert "lost records" in str(target.admin.mirrors.describe(name).error)
    assert [record[1] for record in contents(target, wide)[wide, 0]] == [b"1", b"2"]


def test_retention_that_was_faster_stops_the_mirror_or_is_passed_if_asked(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique
) -> None:
    name = unique("mirror")
    for value in (b"1", b"2", b"3"):
        client.producer().send(wide, value, partition=0).result()
        if value == b"1":
            copy(wide, name=name)
    client.admin.partitions.delete_records({(wide, 0): 2})
    with refuses(errors.OffsetOutOfRange, topic=wide, partition=0, offset=1, limit=2):
        copy(wide, name=name)
    assert copy(wide, name=name, on_removed="skip").records == 1
    assert [record[1] for record in contents(target, wide)[wide, 0]] == [b"1", b"3"]


def test_a_mirror_is_described(client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique) -> None:
    name = unique("mirror")
    client.producer().send(wide, b"1", partition=2).result()
    copy(wide, name=name)
    found = target.admin.mirrors.describe(name)
    assert (found.records, found.lag_records, found.source) == (1, 0, str(client.runtime.engine.incarnation))
    assert [(place.topic, place.partition, place.offset) for place in found.places] == [(wide, 2, 1)]
    assert name in [each.name for each in target.admin.mirrors.list()]
    with refuses(errors.MirrorNotFound):
        target.admin.mirrors.describe("nobody")


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ("seen_at = seen_at - interval '1 hour'", "warning", "start it again"),
        ("lag_records = 5, moved_at = moved_at - interval '1 hour'", "warning", "has not moved"),
        ("lag_records = 5, lag_ms = 3600000", "warning", "60 min and 5 records behind"),
        ("error = 'the source has lost records'", "problem", "the source has lost records"),
    ],
)
def test_doctor_finds_a_mirror_that_does_not_keep_up(
    client: msgtx.Client, target: msgtx.Client, wide: str, copy: Copy, unique: Unique, change: str, level: str, words: str
) -> None:
    name = unique("mirror")
    copy(wide, name=name)
    assert f"mirror {name}" not in [each.subject for each in target.admin.doctor()]
    with target.runtime.engine.transaction() as connection:
        connection.exec_driver_sql(f"update msgtx.mirror set {change} where name = '{name}'")
    (found,) = [each for each in target.admin.doctor() if each.subject == f"mirror {name}"]
    assert found.level == level
    assert words in f"{found.text}; {found.advice}"
