"""A producer outside transactions: futures, batches, back-pressure, errors (internals: producers, append)."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import psycopg
import pytest

import msgtx
from msgtx import errors
from msgtx.database.connection import Connection as OurConnection
from msgtx.database.pool import Engine
from msgtx.store.topics.topics import describe_topics
from tests.client.steps import SECONDS, lose_rows, lower_limit, require_in_order, values, without_function
from tests.databases import Connection, partitions_held, wait_until, waiting_backends
from tests.hooks import Hook
from tests.refusals import refuses

Read = Callable[..., list[msgtx.Record]]


def test_a_future_tells_the_records_place(client: msgtx.Client, topic: str, read: Read) -> None:
    with client.producer() as producer:
        futures = [producer.send(topic, b"%d" % i, key=b"k", timestamp=1_000 + i) for i in range(3)]
        found = [future.result(SECONDS) for future in futures]
    assert [(m.topic, m.partition, m.offset, m.timestamp, m.duplicate) for m in found] == [
        (topic, 0, i, 1_000 + i, False) for i in range(3)
    ]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read(topic)] == [
        (i, 1_000 + i, b"k", b"%d" % i) for i in range(3)
    ]


def test_a_future_completes_by_itself_without_flush_or_poll(client: msgtx.Client, topic: str) -> None:
    with client.producer(linger_ms=1) as producer:
        future = producer.send(topic, b"a")
        wait_until(future.done, "the future is done")
        assert future.exception() is None


def test_a_look_for_losses_is_repeated_in_an_outage_and_not_after_a_refusal(
    client: msgtx.Client, topic: str, hook: Hook
) -> None:
    """Decision 0176; else a refused producer would ask without a pause, for ever."""
    with client.producer(retry_backoff_ms=5) as producer:
        producer.send(topic, b"1").result(SECONDS)
        away = errors.DatabaseUnavailable("away")
        with hook.at("check out", away, times=2, thread="msgtx-sender"):
            producer._sender.losses.server_moved()
            wait_until(lambda: not producer._sender.losses.due and not producer._sender._busy, "it has looked")
        producer.send(topic, b"2").result(SECONDS)
        with hook.at("check out", errors.AuthorizationFailed("refused"), thread="msgtx-sender"):
            producer._sender.losses.server_moved()
            wait_until(lambda: producer._state.has_failed, "it was refused")
            assert not producer._sender.losses.due
        assert isinstance(producer._state.error, errors.AuthorizationFailed)


def test_linger_gathers_records_into_one_row(client: msgtx.Client, topic: str, connection: Connection) -> None:
    with client.producer(linger_ms=60_000) as producer:
        futures = [producer.send(topic, b"a") for _ in range(50)]
        assert not any(future.done() for future in futures)
        producer.flush(SECONDS)
        assert all(future.done() for future in futures)
    rows = connection.execute("select batches from msgtx.partitions where topic = %s", [topic]).fetchone()
    assert rows == (1,)


@pytest.mark.parametrize(("settings", "rows"), [({"batch_records": 10}, 5), ({"batch_bytes": 1_000}, 17)])
def test_batches_are_bounded(
    client: msgtx.Client, topic: str, connection: Connection, settings: dict[str, int], rows: int
) -> None:
    with client.producer(linger_ms=60_000, **settings) as producer:
        for _ in range(50):
            producer.send(topic, b"x" * 236)  # 300 bytes with a record's overhead in memory
    found = connection.execute("select batches from msgtx.partitions where topic = %s", [topic]).fetchone()
    assert found == (rows,)


@pytest.mark.parametrize("max_in_flight", [1, 2, 3, 4, 5])
def test_order_is_kept_with_any_number_in_flight(client: msgtx.Client, wide: str, read: Read, max_in_flight: int) -> None:
    """I1, I3."""
    with client.producer(max_in_flight=max_in_flight, batch_records=3, linger_ms=0) as producer:
        futures = [producer.send(wide, b"%d" % i, partition=i % 3) for i in range(300)]
        assert [future.result(SECONDS).offset for future in futures] == [i // 3 for i in range(300)]
    require_in_order(read(wide), 300)


@pytest.mark.parametrize("acks", [0, 1, "all", "-1"])
def test_every_level_of_acknowledgement_stores(client: msgtx.Client, topic: str, read: Read, acks: object) -> None:
    with client.producer(acks=acks) as producer:
        future = producer.send(topic, b"a")
        assert future.result(SECONDS).offset == (-1 if acks == 0 else 0)
    wait_until(lambda: [record.value for record in read(topic)] == [b"a"], "it is stored")


@pytest.mark.parametrize(("settings", "with_id"), [({}, True), ({"enable_idempotence": False}, False), ({"acks": 1}, False)])
def test_only_an_idempotent_producer_gets_an_id(
    client: msgtx.Client, topic: str, connection: Connection, settings: dict[str, Any], with_id: bool
) -> None:
    """The batches of the others carry none, so no append looks for duplicates or locks a producer."""
    with client.producer(**settings) as producer:
        producer.send(topic, b"a").result(SECONDS)
    partitions = describe_topics(connection, [topic])[topic].partition_ids
    rows = connection.execute("select producer_id from msgtx.record_batch where partition_id = any(%s)", [[*partitions]])
    assert [producer_id is not None for (producer_id,) in rows] == [with_id]


def test_without_a_wait_the_future_is_done_at_once(client: msgtx.Client, topic: str) -> None:
    with client.producer(acks=0, linger_ms=60_000) as producer:
        future = producer.send(topic, b"a")
        assert future.done()
        assert future.result().offset == -1


def test_two_sends_of_equal_content_are_two_records(client: msgtx.Client, topic: str, read: Read) -> None:
    with client.producer() as producer:
        for _ in range(2):
            producer.send(topic, b"same", key=b"same")
    assert len(read(topic)) == 2


def test_back_pressure_blocks_and_loses_nothing(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer(buffer_bytes=4_096, batch_bytes=1_024, linger_ms=60_000) as producer:
        futures = [producer.send(wide, b"%d" % i + b"." * 200, key=b"%d" % i) for i in range(300)]
    assert all(future.result(SECONDS).offset >= 0 for future in futures)
    assert sorted(int(record.value.split(b".")[0]) for record in read(wide) if record.value) == list(range(300))


def test_columns_do_not_mix_with_what_another_thread_sends(client: msgtx.Client, topic: str, read: Read) -> None:
    """Both wait for room; each record keeps its timestamp, and each future returns its own record's place."""
    with client.producer(buffer_bytes=4_000, batch_bytes=2_000) as producer, ThreadPoolExecutor(2) as threads:

        def columns() -> int:
            futures = [
                producer.send_batch(
                    topic, [b"%d" % (i * 10 + j) for j in range(10)], timestamps=[i * 10 + j for j in range(10)]
                )
                for i in range(100)
            ]
            return sum(future.result(SECONDS).count for future in futures)

        counted = threads.submit(columns)
        singles = [producer.send(topic, b"%d" % i, timestamp=i) for i in range(5_000, 6_000)]
        assert counted.result() == 1_000
        offsets = {int(future.result(SECONDS).offset): i for i, future in enumerate(singles, 5_000)}
    records = read(topic)
    assert sorted(int(record.value or b"") for record in records) == [*range(1_000), *range(5_000, 6_000)]
    assert all(int(record.value or b"") == record.timestamp for record in records)
    assert all(record.timestamp == offsets[record.offset] for record in records if record.timestamp >= 5_000)


def test_many_threads_share_a_producer(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer(buffer_bytes=8_192, batch_bytes=1_024) as producer, ThreadPoolExecutor(8) as threads:

        def work(thread: int) -> list[int]:
            futures = [producer.send(wide, b"%d-%d" % (thread, i), partition=thread % 3) for i in range(100)]
            return [future.result(SECONDS).offset for future in futures]

        for offsets in threads.map(work, range(8)):
            assert offsets == sorted(offsets)
    records = read(wide)
    for thread in range(8):
        mine = [r.value for r in records if r.value and r.value.startswith(b"%d-" % thread)]
        assert mine == [b"%d-%d" % (thread, i) for i in range(100)]


def test_a_buffer_that_stays_full_is_an_error_after_max_block(
    client: msgtx.Client, topic: str, connection: Connection
) -> None:
    with client.producer(buffer_bytes=2_000, max_block_ms=50, linger_ms=0) as producer:
        with partitions_held(connection, topic):

            def fill() -> None:
                for _ in range(100):
                    producer.send(topic, b"x" * 500)

            with refuses(errors.DeliveryTimeout, name="buffer_bytes"):
                fill()
        producer.flush(SECONDS)


# ── keys and partitions ──


def test_keys_choose_the_partition(client: msgtx.Client, wide: str) -> None:
    keys = [b"%d" % i for i in range(50)]
    with client.producer() as producer:
        placed = [producer.send(wide, b"", key=key) for key in keys]
        assert [f.result(SECONDS).partition for f in placed] == [crc32(key) % 3 for key in keys]
    with client.producer(partitioner="murmur2") as producer:
        assert producer.send(wide, b"", key=b"foobar").result(SECONDS).partition == (-790332482 & 0x7FFFFFFF) % 3
        assert producer.send(wide, b"", key=b"foobar", partition=1).result(SECONDS).partition == 1


@pytest.mark.parametrize("key", [None, b""])
def test_keyless_records_stick_to_a_partition_for_a_batch(
    client: msgtx.Client, wide: str, connection: Connection, key: bytes | None
) -> None:
    with client.producer(linger_ms=60_000) as producer:
        for _ in range(40):
            futures = [producer.send(wide, b"a", key=key) for _ in range(5)]
            producer.flush(SECONDS)
            assert len({future.result().partition for future in futures}) == 1
    used = connection.execute(
        "select count(*) from msgtx.partitions where topic = %s and log_end_offset > 0", [wide]
    ).fetchone()
    assert used == (3,)


def test_what_is_not_there_is_refused_at_once_and_created_by_nobody(
    client: msgtx.Client, wide: str, unique: Callable[[str], str]
) -> None:
    name = unique("nowhere")
    with client.producer() as producer:
        for partition in (3, -1, 99):
            with refuses(errors.UnknownTopicOrPartition, topic=wide, partition=partition):
                producer.send(wide, b"a", partition=partition)
        with refuses(errors.UnknownTopicOrPartition, topic=name):
            producer.send(name, b"a")
    assert name not in client.topics.list()


def test_what_a_topic_has_become_is_known_when_the_client_looks(
    client: msgtx.Client, topic: str, wide: str, connection: Connection
) -> None:
    """Each producer learns it of its own topics: new partitions, also for keys, and another limit."""
    with client.producer(linger_ms=60_000) as producer, client.producer() as other:
        other.send(wide, b"x").result(SECONDS)
        producer.send(topic, b"x", key=b"k")
        client.topics.alter(topic, partitions=4, max_message_bytes=10)
        client.runtime.look_at_topics(connection)
        places = [producer.send(topic, b"x", key=b"%d" % number) for number in range(50)]
        large = producer.send(topic, b"x" * 11)
        assert (large.done(), type(large.exception())) == (True, errors.RecordTooLarge)
        producer.flush(SECONDS)
        assert {future.result().partition for future in places} == {0, 1, 2, 3}


# ── values ──


def test_bytes_are_data_whatever_they_hold(client: msgtx.Client, topic: str, read: Read) -> None:
    contents = [b"\x00\xff\xfe", b"", None, bytes(range(256)), bytearray(b"mutable"), memoryview(b"view")]
    with client.producer() as producer:
        for value in contents:
            producer.send(topic, value, key=value)
    expected = [None if value is None else bytes(value) for value in contents]
    assert [(r.key, r.value) for r in read(topic)] == [(value, value) for value in expected]


def test_serializers_apply_to_send(client: msgtx.Client, topic: str, read: Read) -> None:
    with client.producer(key_serializer=str.encode, value_serializer=lambda n: b"%d" % n) as producer:
        producer.send(topic, 5, key="ä")
    assert [(r.key, r.value) for r in read(topic)] == [("ä".encode(), b"5")]


def test_headers_come_back_as_pairs(client: msgtx.Client, topic: str, read: Read) -> None:
    headers = [("source", b"web"), ("source", b"again"), ("none", None), ("ünï", b"\xff")]
    with client.producer(linger_ms=60_000) as producer:
        producer.send(topic, b"a")
        producer.send(topic, b"b", headers=headers)
        producer.send(topic, b"c", headers=[])
        producer.send(topic, b"d", headers={"source": b"web", "none": None})
    assert [r.headers for r in read(topic)] == [(), tuple(headers), (), (("source", b"web"), ("none", None))]


def test_a_header_that_cannot_be_is_refused_at_once(client: msgtx.Client, topic: str) -> None:
    with client.producer() as producer:
        for headers, complaint in (
            ([(1, b"")], "the name of a header is str, not int"),
            ([("a", "text")], "the content of a header is bytes or None, not str: a='text'"),
            ({"a": "text"}, "the content of a header is bytes or None, not str: a='text'"),
            ("ab", r'headers are pairs, \[\("name", b"content"\)\], or \{"name": b"content"\}, not \'ab\''),
            ([("a", b"b", b"c")], "headers are pairs"),
            ({"abc"}, "headers are pairs"),
            (5, "headers are pairs"),
        ):
            with pytest.raises(TypeError, match=complaint):
                producer.send(topic, b"a", headers=headers)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_header_name_that_is_no_text_of_postgresql_harms_only_its_own_record(
    client: msgtx.Client, topic: str, read: Read, name: str
) -> None:
    """I16: refused with a typed error; the producer continues."""
    with client.producer() as producer:
        with pytest.raises(errors.InvalidRequest):
            producer.send(topic, b"bad", headers=[(name, b"")])
        assert producer.send(topic, b"good").result(SECONDS).offset == 0
    assert [record.value for record in read(topic)] == [b"good"]


def test_timestamps_are_milliseconds_or_aware_datetimes(client: msgtx.Client, topic: str, read: Read) -> None:
    with client.producer(linger_ms=60_000) as producer:
        producer.send(topic, b"a")
        producer.send(topic, b"b", timestamp=datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC))
        producer.send(topic, b"c", timestamp=7)
        with pytest.raises(TypeError):
            producer.send(topic, b"x", timestamp=datetime(2020, 1, 1))  # noqa: DTZ001 - naive on purpose
        for wrong in (datetime(2020, 1, 1), "now", 1.5, True):  # noqa: DTZ001 - naive on purpose
            with pytest.raises(TypeError):
                producer.send_batch(topic, [b"x", b"x"], timestamps=[1, wrong])  # type: ignore[list-item]
    stamps = [record.timestamp for record in read(topic)]
    assert stamps[1:] == [2_000, 7]
    assert stamps[0] > 1_600_000_000_000


@pytest.mark.parametrize("transactional_id", [None, "stamping"])
def test_where_the_log_gives_the_time_a_future_tells_it(
    client: msgtx.Client, unique: Callable[[str], str], read: Read, transactional_id: str | None
) -> None:
    topic = unique("stamped")
    client.topics.create(topic, timestamp_type="LogAppendTime")
    with client.producer(transactional_id=transactional_id) as producer:
        with contextlib.nullcontext() if transactional_id is None else producer.transaction():
            future = producer.send(topic, b"a", timestamp=1)
        assert future.result(SECONDS).timestamp == read(topic)[0].timestamp > 1


@pytest.mark.parametrize("timestamp", [2**63, -(2**63) - 1, -1])
def test_a_timestamp_beyond_64_bits_harms_only_its_own_record(client: msgtx.Client, topic: str, timestamp: int) -> None:
    with client.producer() as producer:
        with pytest.raises(errors.InvalidRequest):
            producer.send(topic, b"bad", timestamp=timestamp)
        with pytest.raises(errors.InvalidRequest):
            producer.send_batch(topic, [b"bad"], timestamps=[timestamp])
        assert producer.send(topic, b"good").result(SECONDS).offset == 0


def test_a_wrong_timestamp_leaves_the_batch_that_it_would_have_joined_as_it_was(
    client: msgtx.Client, topic: str, read: Read
) -> None:
    """I16: refused at once, and it changes nothing."""
    with client.producer(linger_ms=60_000) as producer:
        first = producer.send(topic, b"a", timestamp=1)
        with pytest.raises(TypeError):
            producer.send(topic, b"bad", timestamp="now")
        second = producer.send(topic, b"b", timestamp=2)
        producer.flush(SECONDS)
        assert [first.result().offset, second.result().offset] == [0, 1]
    assert [(record.timestamp, record.value) for record in read(topic)] == [(1, b"a"), (2, b"b")]


# ── too large ──


def test_a_record_over_the_limit_fails_alone(client: msgtx.Client, unique: Callable[[str], str], read: Read) -> None:
    name = unique("limited")
    client.topics.create(name, max_message_bytes=100)
    with client.producer(linger_ms=60_000) as producer:
        futures = [producer.send(name, b"x" * size) for size in (10, 101, 100)]
        producer.flush(SECONDS)
        assert [type(future.exception()) for future in futures] == [
            type(None), errors.RecordTooLarge, type(None),
        ]  # fmt: skip
        assert [futures[0].result().offset, futures[2].result().offset] == [0, 1]
        with pytest.raises(errors.RecordTooLarge):
            producer.send_batch(name, [b"x" * 101]).result(SECONDS)
    assert [len(record.value or b"") for record in read(name)] == [10, 100]


def test_a_limit_that_was_lowered_meanwhile_takes_the_record_out_of_its_batch(
    client: msgtx.Client, topic: str, connection: Connection, read: Read
) -> None:
    """The client knows an old limit; the batch's other records are stored, in order, each once."""
    with client.producer(linger_ms=60_000) as producer:
        producer.send(topic, b"warm")
        producer.flush(SECONDS)
        lower_limit(connection, topic, 10)
        sizes = (5, 50, 6, 60, 7)
        futures = [producer.send(topic, b"x" * size) for size in sizes]
        producer.flush(SECONDS)
        found = [future.exception() for future in futures]
        assert [type(error) for error in found] == [errors.RecordTooLarge if size > 10 else type(None) for size in sizes]
        assert [f.result().offset for f in futures if f.exception() is None] == [1, 2, 3]
        after = producer.send(topic, b"next")
        producer.flush(SECONDS)
        assert after.result().offset == 4
    assert [len(record.value or b"") for record in read(topic)] == [4, 5, 6, 7, 4]


# ── callbacks ──


def test_on_delivery_is_called_once_for_success_and_failure(client: msgtx.Client, limited: str) -> None:
    heard: list[object] = []
    with client.producer() as producer:
        producer.send(limited, b"a", on_delivery=lambda future: heard.append(future.result().offset))
        producer.send(limited, b"x" * 11, on_delivery=lambda future: heard.append(type(future.exception())))
        producer.flush(SECONDS)
        late = producer.send(limited, b"b")
        late.result(SECONDS)
        late.add_done_callback(lambda future: heard.append(future.result().offset))
    assert sorted(map(str, heard)) == sorted(map(str, [0, errors.RecordTooLarge, 1]))


@pytest.mark.parametrize("acks", ["0", "all"])
def test_a_callback_that_raises_is_no_failed_send_and_harms_nobody(
    client: msgtx.Client, limited: str, read: Read, acks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is on its way: if `send` raised, a caller would send it again, and have it twice."""
    called: list[object] = []

    def explode(future: object) -> None:
        called.append(future)
        raise RuntimeError("callback")

    with client.producer(acks=acks) as producer:
        sent = producer.send(limited, b"a", on_delivery=explode)
        sent.result(SECONDS)
        wait_until(lambda: called == [sent], "it is called")
        sent.add_done_callback(explode)
        large = producer.send(limited, b"x" * 11, on_delivery=explode)
        columns = producer.send_batch(limited, [b"b"])
        columns.result(SECONDS)
        columns.add_done_callback(explode)
        producer.send_batch(limited, []).add_done_callback(explode)
    assert called[1:4] == [sent, large, columns]
    assert caplog.text.count("RuntimeError: callback") == len(called) == 5
    assert values(read(limited)) == [b"a", b"b"]


def test_a_callback_may_wait_for_another_thread_that_sends(client: msgtx.Client, limited: str) -> None:
    """Also the callback of a record that is too large, which is called at once."""
    places: list[int] = []
    with client.producer() as producer, ThreadPoolExecutor(1) as threads:

        def instead(_: object) -> None:
            places.append(threads.submit(lambda: producer.send(limited, b"too large").result(5).offset).result(10))

        assert isinstance(producer.send(limited, b"x" * 11, on_delivery=instead).exception(SECONDS), errors.RecordTooLarge)
    assert places == [0]


def test_result_times_out(client: msgtx.Client, topic: str) -> None:
    with client.producer(linger_ms=60_000) as producer:
        future = producer.send(topic, b"a")
        with pytest.raises(TimeoutError):
            future.result(0.01)
        with pytest.raises(TimeoutError):
            future.exception(0.01)
        producer.flush(SECONDS)


def test_flush_times_out_and_raises_nothing_for_failed_sends(
    client: msgtx.Client, topic: str, connection: Connection
) -> None:
    with client.producer() as producer:
        with partitions_held(connection, topic):
            producer.send(topic, b"a")
            with pytest.raises(TimeoutError):
                producer.flush(0.05)
        producer.flush(SECONDS)
        client.topics.delete(topic)
        producer.send(topic, b"b")
        producer.flush(SECONDS)


# ── send_batch ──


def test_columns_are_stored_and_their_places_told(client: msgtx.Client, wide: str, read: Read) -> None:
    keys = [b"%d" % i for i in range(100)]
    with client.producer() as producer:
        found = producer.send_batch(wide, values=[b"v" + key for key in keys], keys=keys).result(SECONDS)
    assert found.count == 100
    assert sum(last - first + 1 for spans in found.offsets.values() for first, last in spans) == 100
    records = read(wide)
    assert {(r.key, r.value) for r in records} == {(key, b"v" + key) for key in keys}
    assert all(record.partition == crc32(record.key or b"") % 3 for record in records)


def test_columns_go_to_a_partition_with_their_timestamps_in_order(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer(batch_records=7) as producer:
        values = [b"%d" % i for i in range(30)]
        found = producer.send_batch(wide, values, partition=2, timestamps=list(range(30))).result(SECONDS)
    assert set(found.offsets) == {msgtx.TopicPartition(wide, 2)}
    assert [(r.offset, r.timestamp, r.value) for r in read(wide)] == [(i, i, b"%d" % i) for i in range(30)]


def test_columns_without_keys_and_empty_columns(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer() as producer:
        assert producer.send_batch(wide, []).result(SECONDS).count == 0
        assert producer.send_batch(wide, [None, b"", b"a"]).result(SECONDS).count == 3
    assert [record.value for record in read(wide)] == [None, b"", b"a"]


@pytest.mark.parametrize("columns", [{"keys": [b"a"]}, {"timestamps": [1, 2, 3]}])
def test_columns_of_unequal_length_are_refused(client: msgtx.Client, wide: str, columns: dict[str, list[object]]) -> None:
    with client.producer() as producer, pytest.raises(errors.InvalidRequest):
        producer.send_batch(wide, [b"a", b"b"], **columns)


def test_columns_that_are_not_answered_yet_have_no_outcome(client: msgtx.Client, topic: str, connection: Connection) -> None:
    with client.producer() as producer:
        with partitions_held(connection, topic):
            columns = producer.send_batch(topic, [b"a"])
            with pytest.raises(TimeoutError):
                columns.result(0.01)
            with pytest.raises(TimeoutError):
                columns.exception(0.01)
        assert columns.exception(SECONDS) is None


def test_columns_larger_than_the_buffer_go_through_it(client: msgtx.Client, topic: str, read: Read) -> None:
    with client.producer(buffer_bytes=20_000, batch_bytes=5_000) as producer:
        assert producer.send_batch(topic, [b"x" * 500] * 200).result(SECONDS).count == 200
    assert len(read(topic)) == 200


@pytest.mark.parametrize(
    "columns",
    [
        {"values": [*[b"x"] * 9, b"x" * 101]},
        {"values": [b"x"] * 10, "keys": [*[b"%d" % i for i in range(9)], b"k" * 100]},
    ],
    ids=["value", "key"],
)
def test_columns_with_a_record_that_is_too_large_are_refused_as_a_whole(
    client: msgtx.Client, unique: Callable[[str], str], read: Read, columns: dict[str, list[bytes]]
) -> None:
    """I16: refused, they change nothing; without that record they can be sent again."""
    name = unique("limited")
    client.topics.create(name, partitions=3, max_message_bytes=100)
    with client.producer(batch_records=2) as producer:
        with pytest.raises(errors.RecordTooLarge):
            producer.send_batch(name, **columns)
        producer.send_batch(name, [b"x" * 99], keys=[b"k"]).result(SECONDS)
    assert [len(record.value or b"") for record in read(name)] == [99]


def test_columns_that_find_no_more_room_say_so_in_their_future(
    client: msgtx.Client, topic: str, connection: Connection, read: Read
) -> None:
    """What raises has sent nothing; of these a part is on its way."""
    with client.producer(buffer_bytes=2_000, batch_bytes=1_000, max_block_ms=50) as producer:
        with partitions_held(connection, topic):
            columns = producer.send_batch(topic, [b"x" * 400] * 20)
            assert not columns.done()
            with refuses(errors.DeliveryTimeout, name="buffer_bytes"):
                producer.send_batch(topic, [b"x" * 400] * 20)
        with refuses(errors.DeliveryTimeout, name="buffer_bytes"):
            columns.result(SECONDS)
    assert len(read(topic)) == 4


def test_half_of_some_columns_is_not_committed(client: msgtx.Client, topic: str, connection: Connection, read: Read) -> None:
    """I1: their future is not looked at, and the transaction fails as it does for a record that could not be sent."""
    settings: Any = {"buffer_bytes": 2_000, "batch_bytes": 1_000, "max_block_ms": 50}
    with client.producer(transactional_id=topic, **settings) as producer:
        producer.begin_transaction()
        with partitions_held(connection, topic):
            producer.send_batch(topic, [b"x" * 400] * 20)
        with refuses(errors.DeliveryTimeout, name="buffer_bytes"):
            producer.commit_transaction(SECONDS)
        producer.abort_transaction(SECONDS)
        producer.begin_transaction()
        producer.send_batch(topic, [b"x" * 400] * 2)
        producer.commit_transaction(SECONDS)
    assert len(read(topic)) == 2


# ── close ──


def test_close_flushes_and_may_be_called_twice(client: msgtx.Client, topic: str, read: Read) -> None:
    producer = client.producer(linger_ms=60_000)
    future = producer.send(topic, b"a")
    producer.close()
    producer.close()
    assert future.result(0).offset == 0
    with pytest.raises(errors.IllegalState):
        producer.send(topic, b"b")
    with pytest.raises(errors.IllegalState):
        producer.send_batch(topic, [b"b"])
    assert len(read(topic)) == 1


def test_a_closed_producer_calls_nothing_back_any_more(client: msgtx.Client, topic: str) -> None:
    told: list[object] = []

    def late(future: object) -> None:
        time.sleep(0.1)
        told.append(future)

    with client.producer() as producer:
        future = producer.send(topic, b"a", on_delivery=late)
    assert told == [future]


def test_a_closed_producer_takes_no_record_that_is_too_large_either(client: msgtx.Client, limited: str) -> None:
    """Its future would tell another reason, which a smaller record seems to help against."""
    with client.producer() as producer:
        producer.send(limited, b"x").result(SECONDS)
    with pytest.raises(errors.IllegalState):
        producer.send(limited, b"x" * 11)


def test_close_waits_as_long_as_it_may_and_no_second_time(
    client: msgtx.Client, topic: str, connection: Connection, background: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    producer = client.producer(linger_ms=0)
    with partitions_held(connection, topic):
        sent = producer.send(topic, b"a")
        wait_until(lambda: waiting_backends(connection), "the append waits")
        background.submit(producer.close, 0.05).result(5)
        background.submit(producer.close).result(5)
    assert sent.result(SECONDS).offset == 0
    assert [record.getMessage() for record in caplog.records if record.name == "msgtx.producer"] == [
        "closing: 1 records may be lost: 1 batches are not acknowledged after 0.05 s"
    ]


def test_closing_a_producer_that_never_sent_does_nothing(client: msgtx.Client) -> None:
    producer = client.producer()
    producer.close()


def test_closing_the_client_closes_its_producers(database_url: str, topic: str) -> None:
    client = msgtx.connect(database_url)
    producer = client.producer(linger_ms=60_000)
    future = producer.send(topic, b"a")
    client.close()
    client.close()
    assert future.result(0).offset == 0
    with pytest.raises(errors.IllegalState):
        client.producer()


# ── trouble ──


def test_a_lost_connection_is_no_error_by_itself(
    client: msgtx.Client, wide: str, read: Read, killer: Callable[[], int]
) -> None:
    """I1, I3: calls in flight are repeated on a new connection; nothing is lost, doubled or reordered."""
    with client.producer(batch_records=5, linger_ms=0, retry_backoff_ms=5) as producer:
        futures = []
        for i in range(600):
            futures.append(producer.send(wide, b"%d" % i, partition=i % 3))
            if i % 150 == 100:
                killer()
        assert all(future.exception(SECONDS) is None for future in futures)
    require_in_order(read(wide), 600)


@pytest.fixture
def failing_commits(connection: Connection) -> Iterator[Callable[[int], None]]:
    """Make the COMMITs of a given number of appends fail, after their answers."""
    connection.execute("create sequence failures")
    connection.execute("create table failing (most int)")
    connection.execute(
        "create function fail() returns trigger language plpgsql as $$ begin"
        " if nextval('failures') <= (select most from failing) then"
        " raise exception using errcode = '40001', message = 'planted'; end if; return null; end $$"
    )
    connection.execute(
        "create constraint trigger failing after insert on msgtx.record_batch deferrable initially deferred"
        " for each row execute function fail()"
    )
    yield lambda most: connection.execute("insert into failing values (%s)", [most])
    connection.execute("drop function fail cascade")
    connection.execute("drop table failing")
    connection.execute("drop sequence failures")


def test_a_batch_whose_commit_fails_is_not_acknowledged(
    client: msgtx.Client, topic: str, read: Read, failing_commits: Callable[[int], None]
) -> None:
    """P13: an answer from before the COMMIT does not count."""
    failing_commits(3)
    with client.producer(batch_records=1, linger_ms=0, retry_backoff_ms=5) as producer:
        futures = [producer.send(topic, b"%d" % i) for i in range(10)]
        assert [future.result(SECONDS).offset for future in futures] == list(range(10))
    assert [record.value for record in read(topic)] == [b"%d" % i for i in range(10)]


def test_a_producer_that_lost_its_sequence_recovers_by_itself(
    client: msgtx.Client, topic: str, connection: Connection, read: Read
) -> None:
    """Idempotent recovery: a gap (here: rows lost in a crash) raises the epoch, and nothing is lost or doubled."""
    with client.producer() as producer:
        for i in range(3):
            producer.send(topic, b"%d" % i).result(SECONDS)
        lose_rows(connection, topic, start=2)
        assert producer.send(topic, b"3").result(SECONDS).offset == 2
        assert producer.send(topic, b"4").result(SECONDS).offset == 3
    assert [record.value for record in read(topic)] == [b"0", b"1", b"3", b"4"]


def test_what_keeps_the_epoch_from_being_raised_stops_no_partition_for_good(
    client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str], read: Read
) -> None:
    """What a refusal stops goes on with the next epoch; if there is none, the producer lives all the same."""
    compacted = unique("compacted")
    client.topics.create(compacted, cleanup_policy="compact")
    with client.producer(linger_ms=1_900, delivery_timeout_ms=2_000) as producer:
        producer.send(topic, b"lost")
        producer.flush(SECONDS)
        lose_rows(connection, topic)
        futures = producer.send(topic, b"refused, for its sequence"), producer.send(compacted, b"refused, has no key")
        with without_function(connection, "init_producer_id"):
            producer.flush(SECONDS)
        assert [type(future.exception()) for future in futures] == [errors.ConfigError, errors.InvalidRecord]
        for name in (topic, compacted):
            producer.send(name, b"later", key=b"k")
        producer.flush(SECONDS)
    assert [[record.value for record in read(name)] for name in (topic, compacted)] == [[b"later"], [b"later"]]


def test_delivery_timeout_fails_the_records_and_the_producer_goes_on(
    client: msgtx.Client, topic: str, connection: Connection, server: object
) -> None:
    with client.producer(retry_backoff_ms=5) as producer:
        producer.send(topic, b"a").result(SECONDS)
    with client.producer(delivery_timeout_ms=1_000, retry_backoff_ms=5) as producer:
        connection.execute("alter function msgtx.lock_partitions(msgtx.batch[]) set lock_timeout = '20ms'")
        try:
            with partitions_held(connection, topic):
                assert isinstance(producer.send(topic, b"late").exception(SECONDS), errors.DeliveryTimeout)
        finally:
            connection.execute("alter function msgtx.lock_partitions(msgtx.batch[]) reset lock_timeout")
        assert producer.send(topic, b"b").result(SECONDS).offset == 1


def test_two_producers_share_a_pool_of_one_connection(database_url: str, topic: str, read: Read) -> None:
    with msgtx.connect(database_url, pool_size=1) as client, client.producer() as one, client.producer() as other:
        futures = [producer.send(topic, b"a") for _ in range(50) for producer in (one, other)]
        assert all(future.exception(SECONDS) is None for future in futures)
        with client.producer(transactional_id="pool-of-one") as third, third.transaction():
            third.send(topic, b"b")
    assert len(read(topic)) == 101


def test_a_waiting_send_is_freed_by_close(client: msgtx.Client, topic: str, connection: Connection) -> None:
    producer = client.producer(buffer_bytes=1_000, linger_ms=0)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                producer.send(topic, b"x" * 400)
        except errors.MsgtxError as error:
            raised.append(error)

    with partitions_held(connection, topic):
        thread = threading.Thread(target=work)
        thread.start()
        wait_until(lambda: not producer._accumulator.buffered < 400, "the buffer is full")
        closing = threading.Thread(target=producer.close, args=(0.05,))
        closing.start()
        thread.join(2)  # the lock is held longer: only `close` can have freed it
        freed = not thread.is_alive()
    closing.join(SECONDS)
    assert freed
    assert [type(error) for error in raised] == [errors.IllegalState]


def test_a_recovery_of_one_partition_disturbs_no_other(
    client: msgtx.Client, wide: str, connection: Connection, read: Read
) -> None:
    """P26: batches of unknown outcome are repeated under the old epoch first; nothing is lost, doubled or reordered."""
    (partition_id,) = connection.execute(
        "select partition_id from msgtx.partitions where topic = %s and partition = 1", [wide]
    ).fetchone()
    with client.producer(batch_records=3, linger_ms=0) as producer:
        futures = []
        for i in range(900):
            futures.append(producer.send(wide, b"%d" % i, partition=i % 3))
            if i == 400:
                futures[-1].result(SECONDS)
                producer.flush(SECONDS)
                lose_rows(connection, wide, partition=1, start=100)
        assert all(future.exception(SECONDS) is None for future in futures)
    records = read(wide)
    require_in_order(records, 900, partitions=(0, 2))
    found = [int(r.value or b"") for r in records if r.partition == 1]
    (first,) = connection.execute(
        "select last_offset + 1 from msgtx.record_batch where partition_id = %s and base_offset < 100"
        " order by base_offset desc limit 1",
        [partition_id],
    ).fetchone()
    assert found == [*range(1, first * 3, 3), *range(403, 900, 3)]


def test_close_ends_while_the_database_is_away(database_url: str, topic: str, connection: Connection) -> None:
    """A batch's answer is lost, and the database stays away: the epoch would have to be raised, and never is."""
    away = threading.Event()

    def dial(*arguments: Any, **keywords: Any) -> OurConnection:
        if away.is_set():
            raise psycopg.OperationalError("the database is away")
        return OurConnection.connect(*arguments, **keywords)

    with msgtx.Client(Engine(database_url, pool_size=1, connect=dial)) as client:
        producer = client.producer(delivery_timeout_ms=200, retry_backoff_ms=10)
        producer.send(topic, b"a").result(SECONDS)
        with partitions_held(connection, topic):
            lost = producer.send(topic, b"b")
            waiting = wait_until(lambda: waiting_backends(connection), "the append waits")
            away.set()
            for pid in waiting:
                connection.execute("select pg_terminate_backend(%s)", [pid])
        assert isinstance(lost.exception(SECONDS), errors.DeliveryTimeout)
        closing = threading.Thread(target=producer.close, daemon=True)
        closing.start()
        closing.join(5)
        assert not closing.is_alive()


@pytest.mark.parametrize("how", ["alone", "once", "in a transaction"])
def test_a_batch_that_postgresql_cannot_take_is_refused_at_once_and_the_producer_goes_on(
    client: msgtx.Client, topic: str, read: Read, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It was sent again and again until `delivery_timeout_ms`: the server ends the connection of who sends 1 GiB."""
    transactional_id = unique("id") if how == "in a transaction" else None
    with client.producer(transactional_id=transactional_id) as producer:

        def send(value: bytes) -> None:
            if transactional_id is None:
                producer.send(topic, value, partition=0, dedup_key=value[:1].decode() if how == "once" else None).result(
                    SECONDS
                )
                return
            with producer.transaction():
                producer.send(topic, value, partition=0)

        send(b"before")
        monkeypatch.setattr("msgtx.database.wire.ARGUMENT_BYTES", 1_000)
        began = time.monotonic()
        with pytest.raises(errors.RecordTooLarge, match="PostgreSQL takes at most 1000"):
            send(b"x" * 1_001)
        assert time.monotonic() - began < 10
        monkeypatch.undo()
        send(b"after")
    assert [record.value for record in read(topic)] == [b"before", b"after"]
