"""A consumer: positions, polls, commits, waiting, trouble (internals: visibility, groups)."""

import contextlib
import gc
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import msgtx
from msgtx import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition, errors
from msgtx.coordinator.compactor import Compactor
from msgtx.database.wire import readable
from msgtx.receiving.sole_use import SoleUse
from msgtx.store.fetch.fetch import FetchedBatch
from tests.client.steps import SECONDS, asleep, listens, lose_rows, store
from tests.databases import Connection, wait_until
from tests.hooks import Hook, away
from tests.interrupts import interrupts, require_each_once, write_rows
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Unique = Callable[[str], str]
Read = Callable[..., list[msgtx.Record]]


def fill(client: msgtx.Client, topic: str, count: int, *, start: int = 0, partition: int = 0) -> None:
    with client.producer() as producer:
        for i in range(start, start + count):
            producer.send(topic, b"%d" % i, partition=partition, timestamp=1_000 + i)


def abort(client: msgtx.Client, topic: str, count: int, unique: Unique) -> None:
    with client.producer(transactional_id=unique("aborting")) as producer:
        producer.begin_transaction()
        for _ in range(count):
            producer.send(topic, b"aborted", partition=0)
        producer.flush(SECONDS)
        producer.abort_transaction()


def numbers(records: list[msgtx.Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


@pytest.fixture
def tp(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)


# ── positions ──


def test_earliest_latest_and_none(client: msgtx.Client, topic: str, tp: TopicPartition) -> None:
    fill(client, topic, 3)
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        assert numbers(consumer.poll(SECONDS)) == [0, 1, 2]
    with client.consumer(topic) as consumer:
        assert consumer.poll(0) == []
        assert consumer.position(tp) == 3
    for group in ({}, {"group": topic}):
        with client.consumer(topic, auto_offset_reset="none", **group) as consumer, pytest.raises(errors.NoOffset):
            consumer.poll(0)


def test_a_sought_position_is_read_with_the_first_poll(client: msgtx.Client, topic: str, tp: TopicPartition) -> None:
    """Also in the middle of a batch, and without waiting."""
    fill(client, topic, 10)
    with client.consumer(topic) as consumer:
        for offset in (4, 0, 9, 1):
            consumer.seek(tp, offset)
            assert consumer.position(tp) == offset
            assert numbers(consumer.poll(0)) == list(range(offset, 10))
            assert consumer.position(tp) == 10


@pytest.mark.parametrize("way", ["seek", "seek_to_beginning", "rewind"])
def test_nothing_that_was_fetched_before_a_seek_is_handed_out_behind_it(
    client: msgtx.Client, topic: str, tp: TopicPartition, way: str
) -> None:
    """Two rows of the log are there, of the first one a part is handed out."""
    for start in (0, 3):
        fill(client, topic, 3, start=start)
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        assert numbers(consumer.poll(SECONDS, max_records=1)) == [0]
        getattr(consumer, way)(*([tp, 0] if way == "seek" else []))
        assert consumer.position(tp) == 0
        assert numbers(consumer.poll(0)) == [0, 1, 2, 3, 4, 5]


def test_seeking_to_ends_and_times(client: msgtx.Client, topic: str, tp: TopicPartition) -> None:
    fill(client, topic, 5)
    with client.consumer(topic) as consumer:
        consumer.seek_to_beginning()
        assert consumer.position(tp) == 0
        consumer.seek_to_end([tp])
        assert consumer.position(tp) == 5
        consumer.seek_to_time(1_003)
        assert numbers(consumer.poll(0)) == [3, 4]
        consumer.seek_to_time(99_999)
        assert consumer.position(tp) == 5
        for wrong in (lambda: consumer.seek(tp, -1), lambda: consumer.seek_to_time(-1)):
            with pytest.raises(errors.InvalidRequest):
                wrong()
        with refuses(errors.IllegalState, reason="not assigned"):
            consumer.seek(TopicPartition("other", 0), 1)


def test_max_records_bounds_a_poll_and_the_position_is_exact(client: msgtx.Client, topic: str, tp: TopicPartition) -> None:
    fill(client, topic, 10)
    with client.consumer(topic, auto_offset_reset="earliest", max_poll_records=4) as consumer:
        assert numbers(consumer.poll(SECONDS)) == [0, 1, 2, 3]
        assert consumer.position(tp) == 4
        assert numbers(consumer.poll(SECONDS, max_records=1)) == [4]
        assert consumer.position(tp) == 5
        with pytest.raises(errors.InvalidRequest):
            consumer.poll(0, max_records=0)


def test_records_are_made_when_they_are_handed_out(client: msgtx.Client, topic: str) -> None:
    """Else they would outlive several rounds of the garbage collector, which took half of the time of `poll`."""
    count = 60_000
    with client.producer() as producer:
        producer.send_batch(topic, [b"value"] * count)
    began = sum(generation["collections"] for generation in gc.get_stats())
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        while records := consumer.poll(1):
            count -= len(records)
    assert count == 0
    assert sum(generation["collections"] for generation in gc.get_stats()) - began < 6  # 10, when a batch was made at once


def test_nothing_is_kept_of_what_was_handed_out(client: msgtx.Client, wide: str) -> None:
    """Else each partition would keep a batch, whatever `fetch_max_bytes` says."""

    def fetched() -> int:
        gc.collect()  # what tests before this one have left goes at any time
        return sum(isinstance(each, FetchedBatch) for each in gc.get_objects())

    for partition in range(3):
        fill(client, wide, 10, partition=partition)
    before = fetched()
    with client.consumer(wide, auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll(SECONDS, 29)) == 29
        assert fetched() == before + 1
        assert len(consumer.poll(SECONDS)) == 1
        assert fetched() == before


def test_a_position_passes_aborted_data(client: msgtx.Client, topic: str, tp: TopicPartition, unique: Unique) -> None:
    """P19: never stuck where only aborted records remain; lag 0 at the end."""
    fill(client, topic, 1)
    abort(client, topic, 5, unique)
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        assert numbers(consumer.poll(SECONDS)) == [0]
        assert consumer.poll(0) == []
        assert consumer.position(tp) == 6
        assert consumer.lag() == {tp: 0}


def test_a_partition_that_is_fed_all_the_time_does_not_starve_the_others(client: msgtx.Client, wide: str) -> None:
    for partition in (1, 2):
        fill(client, wide, 5, partition=partition)
    with client.consumer(wide, auto_offset_reset="earliest", max_poll_records=5) as consumer, client.producer() as fed:
        seen: set[int] = set()
        for _ in range(20):
            fed.send_batch(wide, [b"0"] * 5, partition=0).result(SECONDS)
            seen |= {record.partition for record in consumer.poll(SECONDS)}
    assert seen == {0, 1, 2}


def test_what_is_at_a_known_position_is_fetched_by_one_call(client: msgtx.Client, topic: str, hook: Hook) -> None:
    """Architecture: the path of a record. The ends are asked for to find a position, and not again."""
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        assert consumer.poll(0) == []
        fill(client, topic, 2)
        hook.seen.clear()
        assert numbers(consumer.poll(SECONDS)) == [0, 1]
        assert [hook.seen[f"before {name}"] for name in ("fetch_batches", "list_offsets")] == [1, 0]


def test_small_fetches_read_everything(client: msgtx.Client, topic: str) -> None:
    for start in range(0, 50, 10):
        fill(client, topic, 10, start=start)
    with client.consumer(topic, auto_offset_reset="earliest", fetch_max_bytes=1) as consumer:
        found: list[int] = []
        while len(found) < 50:
            found += numbers(consumer.poll(SECONDS))
    assert found == list(range(50))


# ── assignment ──


def test_assign_keeps_the_positions_of_what_stays(client: msgtx.Client, wide: str) -> None:
    for partition in range(3):
        fill(client, wide, 2, partition=partition)
    first, second, _ = (TopicPartition(wide, partition) for partition in range(3))
    with client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([first])
        assert len(consumer.poll(SECONDS)) == 2
        consumer.assign([first, second])
        assert consumer.assignment() == {first, second}
        assert {record.partition for record in consumer.poll(SECONDS)} == {1}
        assert consumer.position(first) == 2


def test_unknown_topics_and_partitions_are_refused(client: msgtx.Client, wide: str, unique: Unique) -> None:
    for group in (None, unique("group")):
        with pytest.raises(errors.UnknownTopicOrPartition):
            client.consumer(unique("nowhere"), group=group)
    with client.consumer() as consumer:
        for partition in (3, -1):
            with refuses(errors.UnknownTopicOrPartition, topic=wide, partition=partition):
                consumer.assign([TopicPartition(wide, partition)])
        with refuses(errors.IllegalState, reason="nothing assigned"):
            consumer.poll(0)
        for _ in range(2):
            with refuses(errors.IllegalState, reason="nothing assigned"):
                next(iter(consumer))
            consumer.stop()
        with refuses(TypeError, name="topics"):
            consumer.subscribe(wide)
        for wrong in ({}, {"topics": [wide], "pattern": "x"}, {"pattern": "("}):
            with pytest.raises(errors.ConfigError):
                consumer.subscribe(**wrong)


def test_a_pattern_matches_whole_names(client: msgtx.Client, unique: Unique) -> None:
    stem = unique("pattern")
    for name in (f"{stem}.a", f"{stem}.b", f"x{stem}.a"):
        client.topics.create(name)
    told: list[TopicPartition] = []
    with client.consumer() as consumer:
        consumer.subscribe(pattern=f"{stem}\\..*", on_assign=told.extend)
        expected = {TopicPartition(f"{stem}.a", 0), TopicPartition(f"{stem}.b", 0)}
        assert consumer.assignment() == expected == set(told)


@pytest.mark.parametrize("polled", [True, False])
def test_a_deleted_topic_is_told(client: msgtx.Client, topic: str, polled: bool) -> None:
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        if polled:
            consumer.poll(0)
        client.topics.delete(topic)
        with pytest.raises(errors.UnknownTopicOrPartition):
            consumer.poll(0)


def test_paused_partitions_hand_out_nothing(client: msgtx.Client, wide: str) -> None:
    for partition in range(2):
        fill(client, wide, 2, partition=partition)
    with client.consumer(wide, auto_offset_reset="earliest") as consumer:
        paused = TopicPartition(wide, 1)
        consumer.pause([paused])
        assert {record.partition for record in consumer.poll(0)} == {0}
        assert consumer.poll(0) == []
        assert consumer.position(paused) == 0
        client.admin.partitions.delete_records({paused: 1})
        consumer.resume([paused])
        assert [(record.partition, record.offset) for record in consumer.poll(0)] == [(1, 1)], "it was fetched while paused"
        with pytest.raises(errors.IllegalState):
            consumer.pause([TopicPartition("other", 0)])


def test_a_poll_waits_for_others_beside_what_is_paused_with_records(client: msgtx.Client, wide: str) -> None:
    fill(client, wide, 2, partition=1)
    paused = TopicPartition(wide, 1)
    with client.consumer(wide, auto_offset_reset="earliest") as consumer, ThreadPoolExecutor(1) as threads:
        assert len(consumer.poll(SECONDS, max_records=1)) == 1
        consumer.pause([paused])
        polling = asleep(threads, consumer)
        fill(client, wide, 1, partition=0)
        assert [record.partition for record in polling.result(SECONDS)] == [0]
        consumer.resume([paused])
        assert [(record.partition, record.offset) for record in consumer.poll(0)] == [(1, 1)]


# ── iteration ──


def test_iteration_moves_the_position_record_by_record(client: msgtx.Client, topic: str, tp: TopicPartition) -> None:
    fill(client, topic, 10)
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        for record in consumer:
            assert consumer.position(tp) == record.offset + 1
            if record.offset == 4:
                break
        assert numbers(consumer.poll(0)) == [5, 6, 7, 8, 9]
        consumer.seek(tp, 2)
        assert next(iter(consumer)).offset == 2


def test_an_iteration_takes_turns(client: msgtx.Client, wide: str) -> None:
    """From each partition come `max_poll_records`, then others have their turn; each iteration begins with another one."""
    for partition in range(3):
        fill(client, wide, 9, partition=partition)
    with client.consumer(wide, auto_offset_reset="earliest", max_poll_records=2) as consumer:
        assert {next(iter(consumer)).partition for _ in range(3)} == {0, 1, 2}
        source = iter(consumer)
        turns = [next(source).partition for _ in range(6)]
        assert turns[::2] == turns[1::2]
        assert {*turns} == {0, 1, 2}


@pytest.mark.parametrize("call", ["stop", "close", "pause", "assign"])
def test_an_iteration_heeds_what_its_block_says(client: msgtx.Client, wide: str, call: str) -> None:
    """With the next record: another partition's is none of a consumer that was stopped, or that has let go of it."""
    for partition in range(3):
        fill(client, wide, 3, partition=partition)
    seen: list[int] = []
    with client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions := [TopicPartition(wide, partition) for partition in range(3)])
        for record in consumer:
            seen.append(record.partition)
            match call:
                case "pause":
                    consumer.pause([TopicPartition(wide, record.partition)])
                case "assign":
                    consumer.assign(partitions := [other for other in partitions if other.partition != record.partition])
                case _:
                    getattr(consumer, call)()
            if len(seen) == 3:
                break
    assert sorted(seen) == [0, 1, 2] if call in {"pause", "assign"} else len(seen) == 1


def test_stop_from_another_thread_ends_a_waiting_iteration(client: msgtx.Client, topic: str) -> None:
    fill(client, topic, 1)
    with client.consumer(topic, auto_offset_reset="earliest") as consumer, ThreadPoolExecutor(1) as threads:
        seen: list[int] = []
        running = threads.submit(lambda: seen.extend(record.offset for record in consumer))
        wait_until(lambda: seen, "the iteration runs")
        consumer.stop()
        running.result(SECONDS)
        consumer.seek_to_beginning()
        for record in consumer:
            seen.append(record.offset)
            consumer.stop()
        assert seen == [0, 0]


def test_stop_ends_a_waiting_poll_and_the_next_one_reads(client: msgtx.Client, topic: str) -> None:
    settings: Any = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 60_000}
    with client.consumer(topic, **settings) as consumer, ThreadPoolExecutor(1) as threads:
        listens(client)
        polling = asleep(threads, consumer)
        began = time.monotonic()
        consumer.stop()
        assert polling.result(SECONDS) == []
        assert time.monotonic() - began < SECONDS / 2
        fill(client, topic, 1)
        assert numbers(consumer.poll(SECONDS)) == [0]


@pytest.mark.parametrize("call", ["stop", "close"])
def test_a_poll_ends_while_the_database_is_away(client: msgtx.Client, topic: str, hook: Hook, call: str) -> None:
    with client.consumer(topic, fetch_max_wait_ms=60_000) as consumer, ThreadPoolExecutor(1) as threads:
        listens(client)
        ended = []

        def fails() -> None:
            if not ended:
                ended.append(threads.submit(getattr(consumer, call)))
                wait_until(lambda: not consumer._waiter._wakes.empty(), "it is told")
            away()

        hook.at("before fetch_batches", fails)
        began = time.monotonic()
        assert consumer.poll(SECONDS) == []
        ended[0].result(SECONDS)
        assert time.monotonic() - began < SECONDS / 2


def test_a_second_thread_is_refused(client: msgtx.Client, topic: str) -> None:
    with client.consumer(topic) as consumer, ThreadPoolExecutor(1) as threads:
        polling = threads.submit(consumer.poll, SECONDS)
        wait_until(lambda: consumer._sole_use.user is not None, "the poll runs")
        with refuses(errors.IllegalState, reason="thread"):
            consumer.poll(0)
        consumer.stop()
        polling.result(SECONDS)


# ── waiting ──


@pytest.mark.parametrize("kind", ["plain", "fused", "transaction"])
def test_a_waiting_consumer_is_woken_by_a_commit(
    client: msgtx.Client, database_url: str, topic: str, unique: Unique, kind: str
) -> None:
    """R6: by another client, long before the fetch interval is over."""
    with client.consumer(topic, fetch_max_wait_ms=20_000) as consumer, msgtx.connect(database_url) as other:
        consumer.poll(0)
        listens(client)
        with other.producer(transactional_id=None if kind == "plain" else unique("id")) as producer:
            if kind != "plain":
                producer.begin_transaction()
                producer.send(topic, b"1")
                if kind == "transaction":
                    producer.flush(SECONDS)
            with ThreadPoolExecutor(1) as threads:
                polling = asleep(threads, consumer, 20.0)
                started = time.monotonic()
                if kind == "plain":
                    producer.send(topic, b"1").result(SECONDS)
                else:
                    producer.commit_transaction()
                assert numbers(polling.result(SECONDS)) == [1]
                assert time.monotonic() - started < 10


def test_nothing_is_kept_of_those_who_waited(client: msgtx.Client, topic: str, unique: Unique) -> None:
    """A client may live for long, and make a consumer in a group of its own for each of its questions."""
    for _ in range(3):
        with client.consumer(topic, group=unique("group")) as consumer:
            consumer.poll(0)
    assert client.runtime.listener._waiters == {}


def test_a_waiting_consumer_is_woken_by_an_abort_that_held_it_back(client: msgtx.Client, topic: str, unique: Unique) -> None:
    with client.producer(transactional_id=unique("id")) as blocking, client.producer() as producer:
        blocking.begin_transaction()
        blocking.send(topic, b"0")
        blocking.flush(SECONDS)
        producer.send(topic, b"1").result(SECONDS)
        with client.consumer(topic, auto_offset_reset="earliest", fetch_max_wait_ms=20_000) as consumer:
            assert consumer.poll(0) == []
            listens(client)
            with ThreadPoolExecutor(1) as threads:
                polling = asleep(threads, consumer, 20.0)
                started = time.monotonic()
                blocking.abort_transaction()
                assert numbers(polling.result(SECONDS)) == [1]
                assert time.monotonic() - started < 10


def test_consumers_of_one_client_wait_beside_each_other(client: msgtx.Client, wide: str, topic: str) -> None:
    """Each waits for its own partitions; a consumer of others sleeps on."""
    with client.consumer(wide, fetch_max_wait_ms=20_000) as one, client.consumer(topic) as other:
        one.poll(0)
        other.poll(0)
        with ThreadPoolExecutor(2) as threads:
            polling = threads.submit(one.poll, 20.0)
            fill(client, wide, 1, start=7)
            assert numbers(polling.result(SECONDS)) == [7]
            assert other.poll(0) == []


# ── its position ──


def test_ends_lags_and_times(client: msgtx.Client, topic: str, tp: TopicPartition, unique: Unique) -> None:
    fill(client, topic, 3)
    abort(client, topic, 2, unique)
    fill(client, topic, 1, start=5)
    blocking = client.producer(transactional_id=unique("id"))
    blocking.init_transactions()
    blocking.begin_transaction()
    blocking.send(topic, b"open")
    blocking.flush(SECONDS)
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        assert consumer.beginning_offsets() == {tp: 0}
        assert consumer.end_offsets([tp]) == {tp: 6}
        assert consumer.lag() == {tp: 4}
        assert consumer.offset_lag() == {tp: 6}
        consumer.poll(SECONDS, max_records=1)
        assert (consumer.lag(), consumer.offset_lag(), consumer._known_lag()) == ({tp: 3}, {tp: 5}, {tp: 5})
        consumer.seek_to_time(99_999)
        assert consumer._known_lag() == {}, "its position has to be found first"
        assert consumer.position(tp) == 6
        assert consumer.offsets_for_times({tp: 1_002}) == {tp: OffsetAndTimestamp(2, 1_002)}
        with pytest.raises(errors.InvalidRequest):
            consumer.offsets_for_times({tp: -1})
    with client.consumer(topic, isolation="read_uncommitted") as consumer:
        assert consumer.end_offsets() == {tp: 7}
        consumer.seek_to_time(4_000_000_000_000)
        assert consumer.position(tp) == 7
        consumer.poll(0)
        consumer.seek(tp, 5)
        assert consumer._known_lag() == {tp: 2}
    blocking.abort_transaction()
    with client.consumer(topic) as consumer:
        assert consumer.offsets_for_times({tp: 1_006}) == {tp: None}


# ── committing ──


def test_a_group_goes_on_where_it_committed(client: msgtx.Client, topic: str, tp: TopicPartition, unique: Unique) -> None:
    fill(client, topic, 6)
    group = unique("group")
    with client.consumer(topic, group=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        assert consumer.committed() == {tp: None}
        consumer.poll(SECONDS, max_records=2)
        consumer.commit()
        consumer.poll(SECONDS, max_records=2)
        assert consumer.committed() == {tp: OffsetAndMetadata(2)}
        consumer.rewind()
        assert numbers(consumer.poll(SECONDS, max_records=1)) == [2]
        consumer.commit({tp: OffsetAndMetadata(5, "note")})
        assert consumer.committed([tp]) == {tp: OffsetAndMetadata(5, "note")}
        consumer.commit({tp: 4}, wait=False)
    for reset in ("latest", "none"):
        with client.consumer(group=group, auto_offset_reset=reset, enable_auto_commit=False) as consumer:
            consumer.assign([tp])
            assert numbers(consumer.poll(SECONDS)) == [4, 5]


def test_auto_commit_stores_positions_at_the_interval_and_at_close(
    client: msgtx.Client, topic: str, tp: TopicPartition, unique: Unique
) -> None:
    fill(client, topic, 6)
    group = unique("group")
    with client.consumer(topic, group=group, auto_offset_reset="earliest", auto_commit_interval_ms=1) as consumer:
        consumer.poll(SECONDS, max_records=2)
        wait_until(lambda: consumer.poll(0, max_records=1) and consumer.committed()[tp] is not None, "it commits by itself")
    with client.consumer(topic, group=group) as consumer:
        at = consumer.committed()[tp]
        assert at is not None
        assert consumer.position(tp) == at.offset > 2


def test_a_consumer_that_never_polled_commits_nothing(client: msgtx.Client, topic: str, unique: Unique) -> None:
    group = unique("group")
    with client.consumer(topic, group=group):
        pass
    with client.consumer(topic, group=group) as consumer:
        assert set(consumer.committed().values()) == {None}


def test_without_a_group_committing_is_illegal(client: msgtx.Client, topic: str) -> None:
    with client.consumer(topic) as consumer:
        calls = [consumer.commit, consumer.committed, consumer.group_metadata]
        for call in [*calls, consumer._transaction_offsets, consumer.committing.commit_starts]:
            with refuses(errors.IllegalState, reason="no group"):
                call()


def test_a_pending_offset_is_waited_for(
    client: msgtx.Client, topic: str, tp: TopicPartition, unique: Unique, connection: Connection
) -> None:
    group = unique("group")
    with client.consumer(topic, group=group, enable_auto_commit=False, retry_backoff_ms=5) as consumer:
        consumer.commit({tp: 1})
        connection.execute(
            "insert into msgtx.transaction_seal (producer_id, producer_epoch, transaction_number, kind, sealed_at,"
            " partitions, first_offsets, last_offsets) values (987654321, 0, 0, 'external', now(), '{}', '{}', '{}')"
        )
        connection.execute(
            "insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, producer_id,"
            " producer_epoch, transaction_number, committed_at) select g.group_id, p.partition_id,"
            " nextval('msgtx.commit_sequence'), 9, 987654321, 0, 0, now() from msgtx.consumer_group g, msgtx.partitions p"
            " where g.name = %s and p.topic = %s",
            [group, topic],
        )
        assert consumer.committed(require_stable=False) == {tp: OffsetAndMetadata(1)}
        with pytest.raises(errors.UnstableOffset):
            consumer.committed(timeout=0.02)
        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(consumer.committed, None, None, SECONDS)
            connection.execute(
                "insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome,"
                " decided_at, decided_by, partitions, first_offsets, last_offsets)"
                " values (987654321, 0, 0, 'COMMIT', now(), 'client', '{}', '{}', '{}')"
            )
            assert asking.result(SECONDS) == {tp: OffsetAndMetadata(9)}


# ── deserializers ──


@pytest.mark.parametrize("of_values", [{}, {"value_deserializer": int}], ids=["of keys", "of both"])
@pytest.mark.parametrize("iterate", [False, True])
def test_deserializers_apply(client: msgtx.Client, topic: str, iterate: bool, of_values: dict[str, Any]) -> None:
    with client.producer(key_serializer=str.encode) as producer:
        producer.send(topic, b"5", key="k", headers=[("h", b"1")])
    with client.consumer(topic, auto_offset_reset="earliest", key_deserializer=bytes.decode, **of_values) as consumer:
        record = next(iter(consumer)) if iterate else consumer.poll(SECONDS)[0]
    assert (record.key, record.value, record.headers) == ("k", 5 if of_values else b"5", (("h", b"1"),))


@pytest.mark.parametrize("iterate", [False, True])
def test_a_tombstone_and_a_key_that_is_none_reach_no_deserializer(client: msgtx.Client, topic: str, iterate: bool) -> None:
    store(client, topic, None, b"1")
    functions: Any = {"key_deserializer": bytes.decode, "value_deserializer": json.loads}
    with client.consumer(topic, auto_offset_reset="earliest", **functions) as consumer:
        records = list(itertools.islice(consumer, 2)) if iterate else consumer.poll(SECONDS)
    assert [(record.key, record.value) for record in records] == [(None, None), (None, 1)]


@pytest.mark.parametrize("iterate", [False, True])
def test_a_deserializer_that_fails_loses_nothing(
    client: msgtx.Client, topic: str, tp: TopicPartition, iterate: bool
) -> None:
    store(client, topic, b"0", b"1", b"bad", b"3")
    with client.consumer(topic, auto_offset_reset="earliest", value_deserializer=int) as consumer:
        source = iter(consumer)

        def read() -> list[int]:
            return [next(source).value] if iterate else [record.value for record in consumer.poll(SECONDS)]

        found: list[int] = []
        while len(found) < 2:
            found += read()
        assert found == [0, 1]
        for _ in range(2):
            source = iter(consumer)
            with refuses(errors.DeserializationError, offset=2):
                read()
            assert consumer.position(tp) == 2
        consumer.seek(tp, 3)
        source = iter(consumer)
        assert read() == [3]


@pytest.mark.parametrize("iterate", [False, True])
def test_what_an_interrupt_kept_from_its_caller_is_not_committed(client: msgtx.Client, topic: str, iterate: bool) -> None:
    """Ctrl-C, while a poll deserializes: what it would have returned is read by who comes next."""
    fill(client, topic, 4)

    def deserialize(value: bytes | None) -> bytes | None:
        if value == b"2":
            raise KeyboardInterrupt
        return value

    settings: Any = {"group": topic, "auto_offset_reset": "earliest"}
    with (
        contextlib.suppress(KeyboardInterrupt),
        client.consumer(topic, value_deserializer=deserialize, **settings) as consumer,
    ):
        _ = list(consumer) if iterate else consumer.poll(SECONDS)
    with client.consumer(topic, **settings) as consumer:
        assert numbers(consumer.poll(SECONDS)) == [0, 1, 2, 3]


def test_what_cannot_be_deserialized_is_at_the_position_also_behind_what_compaction_removed(
    client: msgtx.Client, unique: Unique, connection: Connection
) -> None:
    """So that a seek to the offset behind the position passes it."""
    topic = unique("topic")
    client.topics.create(topic, partitions=1, cleanup_policy="compact")
    with client.producer() as producer:
        producer.send_batch(topic, [b"old", b"bad"], keys=[b"a", b"b"]).result(SECONDS)
        producer.send_batch(topic, [b"new"], keys=[b"a"]).result(SECONDS)
        producer.send_batch(topic, [b"end"], keys=[b"z"]).result(SECONDS)
    compactor = Compactor(min_dirty_ratio=0)
    wait_until(lambda: compactor(connection, None, None).done.get("records_compacted"), "the older record is removed")

    def deserialize(value: bytes | None) -> bytes | None:
        if value == b"bad":
            raise ValueError
        return value

    tp = TopicPartition(topic, 0)
    with client.consumer(topic, auto_offset_reset="earliest", value_deserializer=deserialize) as consumer:
        with pytest.raises(errors.DeserializationError):
            consumer.poll(SECONDS)
        assert consumer.position(tp) == 1
        consumer.seek(tp, consumer.position(tp) + 1)
        assert [record.value for record in consumer.poll(SECONDS)] == [b"new", b"end"]


def test_a_consumer_that_was_interrupted_is_rewound_before_it_goes_on(client: msgtx.Client, topic: str) -> None:
    interrupts = iter([KeyboardInterrupt])

    def deserialize(value: bytes | None) -> bytes | None:
        for interrupt in interrupts if value == b"2" else ():
            raise interrupt
        return value

    fill(client, topic, 4)
    with client.consumer(topic, group=topic, auto_offset_reset="earliest", value_deserializer=deserialize) as consumer:
        assert numbers(consumer.poll(SECONDS, 1)) == [0]
        consumer.commit()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(SECONDS)
        calls: list[Callable[[], object]] = [
            consumer.poll, lambda: next(iter(consumer)), consumer.commit, consumer.group_metadata,
            consumer._transaction_offsets, lambda: consumer.subscribe([topic]),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(errors.IllegalState) as refused:
                call()
            assert refused.value.reason == "interrupted"
        consumer.rewind()
        assert numbers(consumer.poll(SECONDS)) == [1, 2, 3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a connection that was in use
@pytest.mark.parametrize("iterate", [False, True])
def test_an_interrupt_at_any_line_of_handing_out_loses_and_repeats_nothing(
    client: msgtx.Client, unique: Unique, iterate: bool
) -> None:
    """Once the consumer that refuses to go on is rewound. And no later call, of another thread, waits for a lock."""
    topic = unique("topic")
    client.topics.create(topic, partitions=2)
    write_rows(client, topic)
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "fetch_max_bytes": 1, "max_poll_records": 4}
    files = [
        "store/fetch/records.py",
        "receiving/sole_use.py",
        "receiving/reader.py",
        "consumer/consumer.py",
        "consumer/fetcher.py",
    ]
    with (
        client.consumer(topic, group=topic, value_deserializer=bytes, **settings) as consumer,
        ThreadPoolExecutor(1) as pool,
    ):

        def take() -> list[msgtx.Record]:
            return [next(iter(consumer))] if iterate else consumer.poll(SECONDS)

        def take_and_commit() -> list[msgtx.Record]:
            try:
                records = take()
            except errors.IllegalState:
                consumer.rewind()
                records = take()
            consumer.commit()
            return records

        got: list[msgtx.Record] = []
        for interrupt in interrupts(*files, least=50):
            with interrupt:
                got += take()
            got += pool.submit(take_and_commit).result(SECONDS)
            require_each_once(got, interrupt)
    assert gc.isenabled()


def test_a_call_that_failed_leaves_its_thread_no_user(background: ThreadPoolExecutor) -> None:
    """Its next call keeps other threads out again."""
    use = SoleUse("consumer")

    def call() -> None:
        with use.call():
            pass

    with pytest.raises(ZeroDivisionError), use.call():
        _ = 1 // 0
    with use.call(), refuses(errors.IllegalState, reason="thread"):
        background.submit(call).result(SECONDS)
    background.submit(call).result(SECONDS)


def test_a_second_close_does_nothing(client: msgtx.Client, topic: str, hook: Hook) -> None:
    """It could wait once more for a database that is away."""
    consumer = client.consumer(topic, group=topic)
    consumer.poll(0)
    consumer.close()
    before = hook.seen.copy()
    consumer.close()
    assert hook.seen == before


# ── trouble ──


def test_a_lost_connection_is_no_error_by_itself(client: msgtx.Client, topic: str, killer: Callable[[], int]) -> None:
    fill(client, topic, 20)
    with client.consumer(topic, auto_offset_reset="earliest", max_poll_records=5, retry_backoff_ms=5) as consumer:
        found = numbers(consumer.poll(SECONDS))
        killer()
        fill(client, topic, 20, start=20)
        while len(found) < 40:
            found += numbers(consumer.poll(SECONDS))
    assert found == list(range(40))


@pytest.mark.parametrize("deleted", [False, True])
def test_a_fetch_that_fails_is_tried_again_after_the_backoff(
    client: msgtx.Client, topic: str, hook: Hook, deleted: bool
) -> None:
    """However often the consumer is notified meanwhile; only of a topic that is deleted it asks what became of it."""
    tries: list[float] = []
    with client.consumer(topic, retry_backoff_ms=50, **({"group": topic} if deleted else {})) as consumer:

        def fails() -> None:
            tries.append(time.monotonic())
            consumer._waiter.wake()
            raise errors.UnknownTopicOrPartition("deleted") if deleted else errors.DatabaseUnavailable("it is away")

        hook.at("before fetch_batches", fails)
        hook.seen.clear()
        assert consumer.poll(0.2) == []
    assert len(tries) > 1
    between = [later - earlier for earlier, later in itertools.pairwise(tries[:-1])]  # the last one comes when time is over
    assert all(seconds > 0.045 for seconds in between), between
    assert hook.seen["before describe_topics"] == 0


def test_a_database_that_stays_away_is_told(client: msgtx.Client, topic: str, hook: Hook) -> None:
    """After `request_timeout_ms`, however short the polls are, and be it from the first one on."""
    hook.at("before fetch_batches", away)
    with client.consumer(topic, request_timeout_ms=300, retry_backoff_ms=1) as consumer:
        began = time.monotonic()
        with pytest.raises(errors.DatabaseUnavailable):
            [consumer.poll(0.01) for _ in range(500)]
        assert time.monotonic() - began > 0.3


def test_a_poll_that_has_time_left_tries_again_though_another_one_has_failed_long_ago(
    client: msgtx.Client, topic: str, hook: Hook
) -> None:
    """Between the two nobody looked: the database may have been there."""
    fill(client, topic, 1)
    hook.at("before fetch_batches", away, times=2)
    with client.consumer(topic, auto_offset_reset="earliest", request_timeout_ms=300, retry_backoff_ms=1) as consumer:
        assert (consumer.poll(0), hook.seen["before fetch_batches"]) == ([], 1)
        time.sleep(0.35)
        assert len(consumer.poll(SECONDS)) == 1


def test_a_truncated_log_is_told_and_a_seek_goes_on(
    client: msgtx.Client, topic: str, tp: TopicPartition, connection: Connection
) -> None:
    """P38: it never skips silently."""
    fill(client, topic, 3)
    with client.consumer(topic, auto_offset_reset="earliest", isolation="read_uncommitted") as consumer:
        assert numbers(consumer.poll(SECONDS)) == [0, 1, 2]
        lose_rows(connection, topic)
        fill(client, topic, 5, start=10)
        for _ in range(2):
            with refuses(errors.LogTruncated, topic=topic, partition=0, offset=3):
                consumer.poll(0)
        consumer.seek_to_beginning()
        assert numbers(consumer.poll(SECONDS)) == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("by", ["poll", "iteration"])
def test_a_group_is_told_which_row_stands_before_the_position(
    client: msgtx.Client, topic: str, tp: TopicPartition, unique: Unique, connection: Connection, by: str
) -> None:
    """P38: of the records handed out, not of the prefetched ones; in the middle of a row, after aborted rows."""
    for _ in range(2):
        fill(client, topic, 3)
        abort(client, topic, 2, unique)
    fill(client, topic, 1)

    def row_before(position: int) -> list[tuple[str]]:
        return connection.execute(
            "select msgtx.batch_identity(base_offset, producer_id, producer_epoch, base_sequence, appended_at)"
            " from msgtx.record_batch join msgtx.partitions p using (partition_id)"
            " where p.topic = %s and base_offset < %s order by base_offset desc limit 1",
            [topic, position],
        ).fetchall()

    with client.consumer(topic, group=unique("group"), auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        positions = []

        def look() -> None:
            positions.append(consumer.position(tp))
            told = consumer.group_metadata().read_identities.values()
            assert [(each,) for each in told if each is not None] == row_before(positions[-1])

        if by == "poll":
            for _ in range(7):
                assert len(consumer.poll(SECONDS, max_records=1)) == 1
                look()
        else:
            for _, _ in zip(range(7), consumer, strict=False):
                look()
        assert len(set(positions)) == 7
        assert positions[-1] == 11
        consumer.seek(tp, 2)
        assert list(consumer.group_metadata().read_identities.values()) == [None]


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [2, 3]), ("latest", [])])
def test_a_position_below_the_log_start_is_reset(
    client: msgtx.Client, topic: str, tp: TopicPartition, connection: Connection, reset: str, expected: list[int]
) -> None:
    fill(client, topic, 4)
    connection.execute(
        "update msgtx.partition set log_start_offset = 2 where partition_id ="
        " (select partition_id from msgtx.partitions where topic = %s)",
        [topic],
    )
    for position in (0, 99):
        with client.consumer(topic, auto_offset_reset=reset) as consumer:
            consumer.seek(tp, position)
            assert numbers(consumer.poll(0)) == expected
        with client.consumer(topic, auto_offset_reset="none") as consumer:
            consumer.seek(tp, position)
            with refuses(errors.OffsetOutOfRange, offset=position):
                consumer.poll(0)


def test_a_position_that_is_removed_while_it_is_waited_at_is_reset_at_once(client: msgtx.Client, topic: str) -> None:
    """Not with the next look at all partitions, which comes after `fetch_max_wait_ms`."""
    with client.consumer(topic, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as consumer:
        listens(client)
        consumer.poll(0)
        fill(client, topic, 3)
        client.admin.partitions.delete_records({TopicPartition(topic, 0): 2})
        assert numbers(consumer.poll(SECONDS / 3)) == [2]


def test_close_ends_everything(client: msgtx.Client, topic: str) -> None:
    consumer = client.consumer(topic)
    consumer.close()
    for call in (lambda: consumer.poll(0), consumer.commit, consumer.seek_to_end):
        with refuses(errors.IllegalState, reason="closed"):
            call()


def test_a_second_close_commits_nothing(client: msgtx.Client, topic: str, tp: TopicPartition) -> None:
    """Others have gone on, and left: the group would take what is older."""
    fill(client, topic, 6)
    settings: Any = {"group": topic, "auto_offset_reset": "earliest"}
    first = client.consumer(topic, **settings)
    assert len(first.poll(SECONDS, max_records=2)) == 2
    first.close()
    with client.consumer(topic, **settings) as second:
        assert len(second.poll(SECONDS)) == 4
    first.close()
    assert client.admin.groups.offsets(topic)[tp].offset == 6


def test_close_from_another_thread_ends_a_poll_that_waits(client: msgtx.Client, topic: str) -> None:
    """As `client.close()` does it, which any thread may call."""
    with ThreadPoolExecutor(1) as threads:
        consumer = client.consumer(topic, group=topic, fetch_max_wait_ms=60_000)
        listens(client)
        polling = asleep(threads, consumer)
        began = time.monotonic()
        consumer.close()
        assert polling.result(SECONDS) == []
        assert time.monotonic() - began < SECONDS / 2
        assert client.admin.groups.members(topic) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 warns of the fork tested here
def test_a_child_process_that_closes_its_parents_client_leaves_the_parents_alone(
    database_url: str, topic: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that ends by an exception, out of its parent's `with`. The parent's listener would wake up for ever.

    What the parent has fetched and not handed out is not the child's.
    """

    def backends() -> list[tuple[int]]:
        return connection.execute(
            "select pid from pg_stat_activity where application_name = %s order by pid", [f"msgtx {os.getpid()}"]
        ).fetchall()

    with (
        msgtx.connect(database_url) as client,
        client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer,
        client.share_consumer(topic, group=f"{topic}-share") as share,
        ThreadPoolExecutor(1) as threads,
    ):
        fill(client, topic, 2)
        assert len(consumer.poll(SECONDS, max_records=1)) == 1
        polling = asleep(threads, share)
        listens(client)
        before = backends()
        child = os.fork()
        if child == 0:
            began = time.monotonic()
            with contextlib.suppress(errors.IllegalState):
                consumer.poll(0)
                os._exit(2)
            caplog.clear()
            for inherited in (share, consumer, client):
                inherited.close()
            os._exit(int(time.monotonic() - began > SECONDS / 2 or bool(caplog.records)))
        assert os.waitpid(child, 0)[1] == 0
        assert readable([client.runtime.listener._wake_read], 0.2) == set()
        assert backends() == before
        assert len(client.admin.groups.members(topic)) == 1
        share.stop()
        assert polling.result(SECONDS) == []


# ── consume, transform, produce ──


def test_process_turns_each_input_into_its_outputs_once(
    client: msgtx.Client, wide: str, topic: str, unique: Unique, read: Read
) -> None:
    """A transform that raises in the middle aborts; the second run continues at the last commit."""
    group, failed = unique("group"), []
    for partition in range(3):
        fill(client, wide, 20, partition=partition, start=partition * 20)

    def transform(record: msgtx.Record) -> object:
        if record.value == b"37" and not failed:
            failed.append(record.offset)
            raise ZeroDivisionError
        number = int(record.value or b"")
        if number % 5 == 0:
            return None
        if number % 5 == 1:
            return record.value
        if number % 5 == 2:
            return msgtx.OutputRecord(record.value, key=b"k", headers=[("from", b"x")])
        return [record.value or b"", msgtx.OutputRecord(record.value)]

    settings = {"to": topic, "group": group, "transactional_id": unique("id"), "transaction_ms": 1, "failure": msgtx.Stop()}
    with pytest.raises(ZeroDivisionError):
        client.process(wide, transform=transform, idle_timeout=0.05, **settings)
    client.process(wide, transform=transform, idle_timeout=0.05, **settings)
    found = sorted(numbers(read(topic)))
    assert found == sorted(n for n in range(60) for _ in range((0, 1, 1, 2, 2)[n % 5]))
    with client.consumer(wide, group=group) as consumer:
        assert set(consumer.lag().values()) == {0}


def test_process_begins_an_aborted_transaction_again(
    client: msgtx.Client, topic: str, wide: str, unique: Unique, read: Read
) -> None:
    """I10: what another client aborted is read, transformed and committed again, from its first input on."""
    fill(client, topic, 5)
    transactional_id, stop = unique("id"), threading.Event()

    def transform(record: msgtx.Record) -> object:
        owner = client.admin.transactions.describe(transactional_id)
        first = msgtx.TransactionId(owner.producer_id, owner.producer_epoch, 0)
        if record.value == b"3":
            client.transaction_outcome(first, resolve=True)
        return record.value

    report = client.process(
        topic, to=wide, group=unique("group"), transactional_id=transactional_id, transform=transform, stop=stop,
        transaction_ms=5_000,  # ends when no input is left: even on a slow machine one transaction holds all
        idle_timeout=3.0,  # otherwise it would wait forever for inputs that did not come again
        on_commit=lambda _: stop.set(),
    )  # fmt: skip
    assert (report.records_in, report.records_out, report.transactions, report.aborted) == (5, 5, 1, 1)
    assert sorted(numbers(read(wide))) == list(range(5))


def test_process_stops_at_the_event(client: msgtx.Client, topic: str, wide: str, unique: Unique) -> None:
    fill(client, topic, 3)
    stop = threading.Event()
    names = {"group": unique("group"), "transactional_id": unique("id")}
    report = client.process(
        topic, to=wide, **names, transform=lambda record: record.value, stop=stop, on_commit=lambda _: stop.set()
    )
    assert (report.records_in, report.records_out, report.transactions) == (3, 3, 1)


def test_process_of_an_unknown_topic_says_which(client: msgtx.Client, topic: str, unique: Unique) -> None:
    for source, target in ((unique("nowhere"), topic), (topic, unique("nowhere"))):
        with refuses(errors.UnknownTopicOrPartition, topic=source if target == topic else target):
            client.process(source, to=target, group="g", transactional_id="t", transform=lambda record: None)


def test_a_limit_on_a_fetch_counts_all_partitions_and_starves_none(client: msgtx.Client, unique: Unique) -> None:
    """Each has more than the limit; a partition that brought records comes last in the next fetch."""
    topic = unique("topic")
    client.topics.create(topic, partitions=12)
    with client.producer() as producer:
        for partition in range(12):
            for _ in range(4):
                producer.send_batch(topic, [b"x" * 1_000] * 3, partition=partition)
                producer.flush()
    with client.consumer(topic, auto_offset_reset="earliest", fetch_max_bytes=10_000) as consumer:
        seen: list[int] = []
        while len(seen) < 12 * 12:
            seen += [record.partition for record in consumer.poll(SECONDS, max_records=1)]
            fetched = [batch for each in consumer._fetcher.assigned.values() for batch in each.batches]
            assert sum(len(value or b"") for batch in fetched for value in batch.values) <= 10_000
        assert len({*seen[: 12 * 4]}) == 12, "a partition waited until others were read to their ends"
