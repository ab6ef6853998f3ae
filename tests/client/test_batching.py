"""What becomes of records in open batches: their bounds, the buffer, who is woken, and columns beside single records."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import msgtx
from msgtx import OutputRecord, TopicPartition, errors
from msgtx.producer.batches import PendingBatch, RecordFuture
from tests.databases import Connection, partitions_held, wait_until
from tests.refusals import refuses

Read = Callable[..., list[msgtx.Record]]
SECONDS = 30.0
NEVER: Any = {"linger_ms": 60_000}  # is a batch sent because it has lingered


def rows_of(connection: Connection, topic: str) -> list[int]:
    """Return how many rows each partition of a topic has."""
    rows = connection.execute("select batches from msgtx.partitions where topic = %s order by partition", [topic]).fetchall()
    return [count for (count,) in rows]


@pytest.mark.parametrize("record", [{"key": b"k" * 236}, {"headers": [("h", b"v" * 235)]}], ids=["key", "headers"])
def test_keys_and_headers_count(client: msgtx.Client, topic: str, connection: Connection, record: dict[str, Any]) -> None:
    with client.producer(**NEVER, batch_bytes=1_000) as producer:
        for _ in range(50):
            producer.send(topic, None, **record)
    assert rows_of(connection, topic) == [17]


def test_the_batches_of_several_partitions_do_not_end_each_other(
    client: msgtx.Client, wide: str, connection: Connection
) -> None:
    with client.producer(**NEVER) as producer:
        for number in range(30):
            producer.send(wide, b"a", partition=number % 3)
    assert rows_of(connection, wide) == [1, 1, 1]


def test_what_is_full_is_sent_at_once(client: msgtx.Client, wide: str) -> None:
    with client.producer(**NEVER, batch_records=2) as producer:
        futures = [producer.send(wide, b"a", partition=0) for _ in range(3)]
        assert futures[1].result(5).offset == 1
        assert producer.send_batch(wide, [b"b"], partition=1).result(5).count == 1
        assert not futures[2].done()


def test_a_producer_that_was_idle_wakes_up(client: msgtx.Client, topic: str) -> None:
    with client.producer() as producer:
        for offset in range(2):
            assert producer.send(topic, b"a").result(5).offset == offset
            wait_until(lambda: producer._accumulator.sender_sleeps, "its thread sleeps")


def test_a_batch_that_is_opened_while_its_thread_waits_for_work_is_sent(client: msgtx.Client, topic: str) -> None:
    with client.producer(linger_ms=300) as producer:
        producer.send(topic, b"a").result(5)
        time.sleep(0.1)  # by now it waits for as long as a batch may linger
        assert producer.send(topic, b"b").result(5).offset == 1


def test_the_next_look_is_for_the_batch_that_lingers_longest(client: msgtx.Client, wide: str) -> None:
    """A look that comes later would have it wait for up to twice its linger."""
    with client.producer(**NEVER) as producer:
        lingers = [producer.send(wide, b"a", partition=partition)._batch.created_at + 60 for partition in (0, 1, 2)]
        with producer._accumulator.lock:
            now = lingers[0] - 1
            assert producer._accumulator.close_lingering(now) == pytest.approx(min(lingers) - now)


def test_a_batch_that_is_finished_while_its_future_waits_for_the_lock_is_not_waited_for() -> None:
    class Lock:
        def __enter__(self) -> None:
            batch.base_offset, batch.finished = 7, True  # as the sender does, which had the lock

        def __exit__(self, *error: object) -> None:
            pass

    batch = PendingBatch(TopicPartition("topic", 0), None, Lock())
    batch.values.append(b"a")
    batch.keys.append(None)
    assert RecordFuture.of(batch, 0).result(1).offset == 7


def test_open_batches_make_room_for_what_waits(client: msgtx.Client, unique: Callable[[str], str]) -> None:
    """None of them is full, and none would be sent for a minute."""
    name = unique("wider")
    client.topics.create(name, partitions=12)
    with client.producer(**NEVER, buffer_bytes=2_000, max_block_ms=5_000) as producer:
        futures = [producer.send(name, b"x" * 400, partition=partition) for partition in range(12)]
    assert [future.result(0).offset for future in futures] == [0] * 12


def test_the_buffer_is_empty_behind_what_was_sent(client: msgtx.Client, topic: str) -> None:
    with client.producer(**NEVER, buffer_bytes=100_000, max_block_ms=5_000) as producer:
        for _ in range(20):
            producer.send(topic, b"a")
            producer.flush(SECONDS)
            assert producer._accumulator.buffered == 0


def test_a_batch_for_which_another_partition_is_drawn_goes_on_with_what_is_open_there(
    client: msgtx.Client, wide: str, read: Read
) -> None:
    with client.producer(**NEVER, batch_records=2) as producer:
        futures = [producer.send(wide, b"of %d" % partition, partition=partition) for partition in range(3)]
        futures += [producer.send(wide, b"%d" % number) for number in range(40)]
        producer.flush(SECONDS)
        assert all(future.done() for future in futures)
    assert len(read(wide)) == 43


@pytest.mark.parametrize(
    "settings", [{"key_serializer": str.encode}, {"value_serializer": str.encode}], ids=["key", "value"]
)
def test_a_serializer_for_one_of_both_is_enough(client: msgtx.Client, topic: str, read: Read, settings: Any) -> None:
    with client.producer(**settings) as producer:
        text: list[Any] = ["a" if name in settings else b"a" for name in ("value_serializer", "key_serializer")]
        producer.send(topic, text[0], key=text[1])
    assert [(r.key, r.value) for r in read(topic)] == [(b"a", b"a")]


def test_a_record_without_a_timestamp_has_its_own_behind_one_with_it(client: msgtx.Client, topic: str, read: Read) -> None:
    before = time.time_ns() // 1_000_000
    with client.producer(**NEVER) as producer:
        for timestamp in (None, 5, None, 7):
            producer.send(topic, b"a", timestamp=timestamp)
    found = [record.timestamp for record in read(topic)]
    assert found[1::2] == [5, 7]
    assert all(before <= timestamp <= time.time_ns() // 1_000_000 for timestamp in found[::2])


@pytest.mark.parametrize("dedup_key", [None, "once"])
@pytest.mark.parametrize("later", [{"deliver_at": 5}, {"delay_ms": 0}], ids=["at", "behind"])
def test_a_record_for_later_keeps_its_own_headers(
    client: msgtx.Client, topic: str, read: Read, later: dict[str, Any], dedup_key: str | None
) -> None:
    with client.producer() as producer:
        given = [("msgtx.deliver-at", b"9"), ("own", b"1")]  # the first one is replaced
        producer.send(topic, b"a", headers=given, dedup_key=dedup_key, **later).result(SECONDS)
        producer.send(topic, b"b", **later)
    first, second = (record.headers for record in read(topic))
    assert [name for name, _ in first] == ["own", *(name for name, _ in second)]
    assert len(second) == 1


@pytest.mark.parametrize("more", [(b"k",), (None,), (b"k", 0, 5)])
def test_all_but_the_topic_and_the_value_of_a_send_is_named(
    client: msgtx.Client, topic: str, read: Read, more: tuple[Any, ...]
) -> None:
    """It is a `TypeError`, as that of any call with too many arguments."""
    with client.producer() as producer:
        with refuses(errors.WrongType, name="key"):
            producer.send(topic, b"a", *more)
        producer.send(topic, b"b")
    assert [record.value for record in read(topic)] == [b"b"]


# ── columns ──


@pytest.mark.parametrize("partition", [0, None])
def test_columns_are_batches_of_their_own_beside_open_ones(
    client: msgtx.Client, wide: str, read: Read, partition: int | None
) -> None:
    with client.producer(**NEVER) as producer:
        singles = [producer.send(wide, b"of %d" % at, partition=at, timestamp=at) for at in range(3)]
        columns = [producer.send_batch(wide, [b"a", b"b"], partition=partition, timestamps=[7, 8]) for _ in range(3)]
        assert [each.result(SECONDS).count for each in columns] == [2] * 3
        producer.flush(SECONDS)
        assert [each.result(0).offset for each in singles] == [0] * 3
    assert sorted((r.timestamp, r.value) for r in read(wide)) == sorted(
        [*((at, b"of %d" % at) for at in range(3)), *[(7, b"a"), (8, b"b")] * 3]
    )


def test_columns_may_lack_keys_and_name_a_partition_in_spite_of_them(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer() as producer:
        found = producer.send_batch(wide, [b"a", b"b", None], [b"k", None, b""], partition=2).result(SECONDS)
        assert found.offsets == {TopicPartition(wide, 2): [(0, 2)]}
        producer.send_batch(wide, [b"c", b"d"], [b"k", None]).result(SECONDS)
    assert [(r.key, r.value) for r in read(wide) if r.partition == 2][:3] == [(b"k", b"a"), (None, b"b"), (b"", None)]
    assert {(r.key, r.value) for r in read(wide)} >= {(b"k", b"c"), (None, b"d")}


def test_a_column_of_records_larger_than_a_batch_is_sent_one_by_one(
    client: msgtx.Client, topic: str, connection: Connection
) -> None:
    with client.producer(batch_bytes=1_000) as producer:
        assert producer.send_batch(topic, [b"x" * 2_000] * 3).result(SECONDS).count == 3
    assert rows_of(connection, topic) == [3]


def test_a_key_of_a_column_is_bytes(client: msgtx.Client, topic: str, read: Read) -> None:
    keys: Any = [b"k", "text"]
    with client.producer() as producer, refuses(TypeError, name="key"):
        producer.send_batch(topic, [b"a", b"b"], keys)
    assert read(topic) == []


def test_a_column_of_which_a_record_was_taken_out_says_so(
    client: msgtx.Client, topic: str, connection: Connection, read: Read
) -> None:
    """The client knows an old limit; the others are stored."""
    with client.producer() as producer:
        producer.send_batch(topic, [b"warm"]).result(SECONDS)
        connection.execute("update msgtx.topic set max_message_bytes = 10 where name = %s", [topic])
        columns = producer.send_batch(topic, [b"a", b"x" * 50, b"b"])
        assert isinstance(columns.exception(SECONDS), errors.RecordTooLarge)
        with pytest.raises(errors.RecordTooLarge):
            columns.result()
    assert [record.value for record in read(topic)] == [b"warm", b"a", b"b"]


def test_columns_call_back_once_when_all_of_them_are_there(client: msgtx.Client, topic: str, connection: Connection) -> None:
    heard: list[bool] = []
    called = threading.Event()
    with client.producer(batch_records=1, max_in_flight=1) as producer:
        with partitions_held(connection, topic):
            columns = producer.send_batch(topic, [b"a"] * 5)
            columns.add_done_callback(lambda future: (heard.append(future.done()), called.set()))
            time.sleep(0.1)
            assert heard == []
        assert called.wait(SECONDS)
        producer.flush(SECONDS)
    assert heard == [True]


def test_a_transaction_of_several_batches_of_a_partition_keeps_their_order(
    client: msgtx.Client, topic: str, unique: Callable[[str], str], read: Read
) -> None:
    with client.producer(transactional_id=unique("id"), batch_records=1, **NEVER) as producer, producer.transaction():
        for number in range(5):
            producer.send(topic, b"%d" % number)
    assert [record.value for record in read(topic)] == [b"%d" % number for number in range(5)]


# ── outputs of a worker ──


def sent_one_by_one(producer: msgtx.Producer) -> list[Any]:
    """Replace `send`, as traces do. Return the values that it gets."""
    got, send = [], producer.send

    def watched(topic: str, value: Any, **rest: Any) -> RecordFuture:
        got.append(value)
        return send(topic, value, **rest)

    producer.send = watched  # type: ignore[assignment, method-assign]
    return got


OUTPUTS: Any = {
    "plain": [OutputRecord(b"%d" % at) for at in range(20)],
    "keys": [OutputRecord(b"%d" % at, key=b"%d" % (at % 4)) for at in range(20)],
    "some keys and times": [
        OutputRecord(b"a", key=b"k"), OutputRecord(b"b", timestamp=5), OutputRecord(None, b"k", timestamp=6),
        OutputRecord(b"c", b""),
    ],
    "other kinds of bytes": [OutputRecord(bytearray(b"a"), memoryview(b"k")), OutputRecord(b"b", b"k")],  # type: ignore[arg-type]
    "headers": [OutputRecord(b"a", b"k"), OutputRecord(b"b", b"k", [("h", b"1")]), OutputRecord(b"c", b"k")],
    "a partition": [OutputRecord(b"a", b"k"), OutputRecord(b"b", b"k", partition=2)],
    "none": [],
}  # fmt: skip


@pytest.mark.parametrize("outputs", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_by_columns_are_those_that_are_sent_one_by_one(
    client: msgtx.Client, unique: Callable[[str], str], read: Read, outputs: list[OutputRecord]
) -> None:
    found: list[list[Any]] = []
    for watched in (False, True):
        name = unique("wide")
        client.topics.create(name, partitions=3)
        with client.producer() as producer:
            got = sent_one_by_one(producer) if watched else None
            before = time.time_ns() // 1_000_000
            producer._send_outputs(name, outputs)
        assert got is None or got == [output.value for output in outputs]
        stored = sorted(read(name), key=lambda record: str(record.key))  # within a key as they are
        times = [record.timestamp if record.timestamp < before else None for record in stored]
        found.append([(r.partition if r.key else None, r.key, r.value, r.headers) for r in stored] + times)
    assert found[0] == found[1]
    assert len(found[0]) == 2 * len(outputs)


@pytest.mark.parametrize("keys", [None, b"k"])
def test_outputs_with_and_without_a_key_keep_their_order_in_a_partition(
    client: msgtx.Client, topic: str, read: Read, keys: bytes | None
) -> None:
    values = [b"%d" % at for at in range(9)]
    with client.producer() as producer:
        producer._send_outputs(topic, [OutputRecord(value, b"k" if at % 3 else keys) for at, value in enumerate(values)])
    assert [record.value for record in read(topic)] == values


def test_an_output_names_another_topic(client: msgtx.Client, topic: str, wide: str, read: Read) -> None:
    with client.producer() as producer:
        producer._send_outputs(topic, [OutputRecord(b"a"), OutputRecord(b"b", topic=wide), OutputRecord(b"c")])
    assert ([r.value for r in read(topic)], [r.value for r in read(wide)]) == ([b"a", b"c"], [b"b"])


@pytest.mark.parametrize(
    ("settings", "rows"), [({"batch_records": 8}, 5), ({"batch_bytes": 1_100}, 5), ({}, 1)], ids=["records", "bytes", "none"]
)
def test_outputs_fill_batches_to_their_bounds(
    client: msgtx.Client, topic: str, connection: Connection, read: Read, settings: Any, rows: int
) -> None:
    """Eight records of 136 bytes, with their objects, fit. A portion of three does not go into two batches."""
    values = [b"%02d" % at + b"x" * 70 for at in range(30)]
    with client.producer(**NEVER, **settings) as producer:
        for at in range(0, 30, 3):
            producer._send_outputs(topic, [OutputRecord(value) for value in values[at : at + 3]])
    assert rows_of(connection, topic) == [rows]
    assert [r.value for r in read(topic)] == values


@pytest.mark.parametrize("settings", [{"batch_records": 8}, {"batch_bytes": 8 * 65}], ids=["records", "bytes"])
@pytest.mark.parametrize("count", [1, 3])
def test_outputs_for_which_another_partition_is_drawn_keep_the_bounds_of_what_is_open_there(
    client: msgtx.Client, wide: str, connection: Connection, settings: Any, count: int
) -> None:
    with client.producer(**NEVER, **settings) as producer:
        for _ in range(30):
            for partition in range(3):
                for _ in range(8):
                    producer.send(wide, b"a", partition=partition)
            producer._send_outputs(wide, [OutputRecord(b"b")] * count)
    largest = connection.execute(
        "select max(last_offset - base_offset + 1) from msgtx.record_batch join msgtx.partition using (partition_id)"
        " join msgtx.topic using (topic_id) where name = %s",
        [wide],
    ).fetchone()
    assert largest is not None
    assert largest[0] <= 8


def test_an_output_that_is_too_large_fails_the_transaction_with_the_others(
    client: msgtx.Client, topic: str, unique: Callable[[str], str], read: Read
) -> None:
    client.topics.alter(topic, max_message_bytes=100)
    outputs = [OutputRecord(b"a"), OutputRecord(b"x" * 200), OutputRecord(b"b")]
    with client.producer(transactional_id=unique("id")) as producer:
        with pytest.raises(errors.RecordTooLarge), producer.transaction():
            producer._send_outputs(topic, outputs)
        with producer.transaction():
            producer._send_outputs(topic, outputs[::2])
    assert [r.value for r in read(topic)] == [b"a", b"b"]


def test_outputs_of_a_wrong_type_are_refused_as_send_refuses_them(client: msgtx.Client, topic: str, read: Read) -> None:
    said = []
    for watched in (False, True):
        with client.producer() as producer:
            if watched:
                sent_one_by_one(producer)
            with refuses(errors.WrongType, name="key") as refused:
                producer._send_outputs(topic, [OutputRecord(b"a", "text")])  # type: ignore[arg-type]
            said.append(str(refused.value))
    assert said[0] == said[1]
    assert read(topic) == []
