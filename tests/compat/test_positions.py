"""The facade's consumer: rebalances, positions, and what it commits."""

import threading
import time
from collections.abc import Callable

import pytest

import msgtx
from msgtx.compat.confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    OFFSET_STORED,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from tests.compat.conftest import Group

WAIT = 60.0


def value(message: Message | None) -> bytes | None:
    """Return the value of a message that is one."""
    assert message is not None
    assert message.error() is None
    return message.value()


def interrupted(*_: object) -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


def poll_until(done: Callable[[], object], *consumers: Consumer) -> None:
    """Poll consumers in turn until something holds."""
    deadline = time.monotonic() + WAIT
    while not done():
        assert time.monotonic() < deadline
        for consumer in consumers:
            consumer.poll(0.05)


def test_a_second_member_gets_a_part_and_the_first_is_told_of_all(
    make_producer: Callable[..., Producer],
    make_consumer: Callable[..., Consumer],
    client: msgtx.Client,
    unique: Callable[[str], str],
) -> None:
    wide, group = unique("wide"), unique("group")
    client.topics.create(wide, partitions=2)
    told: list[tuple[str, int]] = []
    first, second = (make_consumer(**{"group.id": group, "heartbeat.interval.ms": 50}) for _ in range(2))
    first.subscribe(
        [wide],
        on_assign=lambda _, places: told.append(("gets", len(places))),
        on_revoke=lambda _, places: told.append(("gives", len(places))),
    )
    poll_until(lambda: told == [("gets", 2)], first)
    second.subscribe([wide])
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
    assert told == [("gets", 2), ("gives", 2), ("gets", 1)]
    second.close()
    poll_until(lambda: len(first.assignment()) == 2, first)
    assert told[3:] == [("gives", 1), ("gets", 2)]


def test_with_cooperative_sticky_callbacks_are_told_of_what_moves(
    make_consumer: Callable[..., Consumer], client: msgtx.Client, unique: Callable[[str], str]
) -> None:
    wide, group = unique("wide"), unique("group")
    client.topics.create(wide, partitions=2)
    told: list[tuple[str, int]] = []
    given = {"group.id": group, "heartbeat.interval.ms": 50, "partition.assignment.strategy": "cooperative-sticky"}
    first, second = make_consumer(**given), make_consumer(**given)
    first.subscribe(
        [wide],
        on_assign=lambda _, places: told.append(("gets", len(places))),
        on_revoke=lambda _, places: told.append(("gives", len(places))),
    )
    poll_until(lambda: told == [("gets", 2)], first)
    second.subscribe([wide])
    poll_until(lambda: len(second.assignment()) == 1, first, second)
    assert told == [("gets", 2), ("gives", 1)]


def test_what_was_not_returned_is_not_committed(
    make_producer: Callable[..., Producer], make_consumer: Callable[..., Consumer], topic: str, unique: Callable[[str], str]
) -> None:
    """Many records are there, of which the program has taken two: after its end the third one comes."""
    producer, group = make_producer(), unique("group")
    for number in range(100):
        producer.produce(topic, str(number))
    producer.flush(WAIT)
    first = make_consumer(**{"group.id": group, "auto.commit.interval.ms": 1})
    first.subscribe([topic])
    assert [value(first.poll(WAIT)) for _ in range(2)] == [b"0", b"1"]
    first.close()
    second = make_consumer(**{"group.id": group})
    second.subscribe([topic])
    assert [value(each) for each in second.consume(98, WAIT)] == [b"%d" % number for number in range(2, 100)]


def test_a_consumer_goes_on_after_an_interrupt_where_it_was(
    send: Callable[..., None],
    make_consumer: Callable[..., Consumer],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send(topic, "a", "b", "c")
    consumer = make_consumer()
    consumer.subscribe([topic])
    assert value(consumer.poll(WAIT)) == b"a"
    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "_messages", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT)
    assert [value(consumer.poll(WAIT)) for _ in range(2)] == [b"b", b"c"]
    assert [each.offset for each in consumer.commit(asynchronous=False) or ()] == [3]


def test_a_topic_that_is_created_later_is_read(
    make_producer: Callable[..., Producer], make_consumer: Callable[..., Consumer], unique: Callable[[str], str]
) -> None:
    name, consumer, producer = unique("later"), make_consumer(), make_producer()
    consumer.subscribe([name])
    absent = consumer.poll(WAIT)
    assert absent is not None
    error = absent.error()
    assert error is not None
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    producer.produce(name, "a")
    producer.flush(WAIT)
    assert value(consumer.poll(WAIT)) == b"a"


def test_positions_move_by_seek_pause_and_logical_offsets(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    send(topic, "a", "b", "c", "d")
    consumer = make_consumer(**{"enable.auto.commit": False})
    for offset, expected in ((2, b"c"), (OFFSET_BEGINNING, b"a"), (-2001, b"d"), (OFFSET_INVALID, b"a")):
        consumer.assign([])
        consumer.assign([TopicPartition(topic, 0, offset)])
        assert value(consumer.poll(WAIT)) == expected
    consumer.pause([TopicPartition(topic, 0)])
    assert consumer.poll(0) is None
    consumer.seek(TopicPartition(topic, 0, 3))
    consumer.resume([TopicPartition(topic, 0)])
    assert value(consumer.poll(WAIT)) == b"d"
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0)) == (0, 4)
    consumer.incremental_unassign([TopicPartition(topic, 0)])
    assert consumer.assignment() == []


def test_a_transaction_moves_offsets_with_its_messages(
    make_producer: Callable[..., Producer], make_consumer: Callable[..., Consumer], topic: str, unique: Callable[[str], str]
) -> None:
    source, producer = make_producer(), make_producer(**{"transactional.id": unique("id")})
    source.produce(topic, "a")
    source.flush(WAIT)
    consumer = make_consumer(**{"enable.auto.commit": False})
    consumer.subscribe([topic])
    assert value(consumer.poll(WAIT)) == b"a"
    producer.init_transactions(WAIT)
    for ends, offset in ((producer.abort_transaction, OFFSET_INVALID), (producer.commit_transaction, 1)):
        producer.begin_transaction()
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT)
        ends(WAIT)
        assert [each.offset for each in consumer.committed([TopicPartition(topic, 0)])] == [offset]


def test_settings_of_a_consumer_are_refused_as_there() -> None:
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        Consumer({})
    for config in (
        {"auto.offset.reset": "some"},
        {"enable.auto.commit": "maybe"},
        {"odd.name": 1},
        {"max.poll.interval.ms": 0},
    ):
        with pytest.raises(KafkaException) as refused:
            Consumer({"group.id": "x", **config})
        assert refused.value.args[0].code() == KafkaError._INVALID_ARG
    with pytest.raises(TypeError, match="error_cb"):
        Consumer({"group.id": "x", "error_cb": "text"})
    Consumer({"group.id": "x", "session.timeout.ms": 1000, "auto.offset.reset": "smallest", "acks": 1}).close()


def test_a_commit_of_another_thread_comes_between_two_looks(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    send(topic, "a")
    consumer = make_consumer(**{"enable.auto.commit": False})
    consumer.subscribe([topic])
    assert value(consumer.poll(WAIT)) == b"a"
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            consumer.poll(0.2)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(3):
            consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    finally:
        stop.set()
        reader.join()
    assert [each.offset for each in consumer.committed([TopicPartition(topic, 0)])] == [1]


@pytest.mark.parametrize("count", [1, 3])
def test_a_program_that_hears_of_rebalances_reads_again_what_it_has_not_committed(
    make_producer: Callable[..., Producer],
    make_consumer: Callable[..., Consumer],
    client: msgtx.Client,
    unique: Callable[[str], str],
    count: int,
) -> None:
    """A partition that a member keeps begins at its committed offset, or where on_assign says, before it is read on."""
    wide, group, producer = unique("wide"), unique("group"), make_producer()
    client.topics.create(wide, partitions=2)
    for each in (0, 1):
        for text in "abc":
            producer.produce(wide, text, partition=each)
    producer.flush(WAIT)
    given = {"group.id": group, "heartbeat.interval.ms": 50, "enable.auto.commit": False}
    first, second = make_consumer(**given), make_consumer(**given)
    told: list[int] = []

    def note(consumer: Consumer, places: list[TopicPartition]) -> None:
        told.append(len(places))

    first.subscribe([wide], on_assign=note)
    seen = [first.poll(WAIT) for _ in range(6)]
    assert all(seen)
    second.subscribe([wide])
    again: list[Message] = []

    def is_read() -> bool:
        again.extend(first.consume(count, 0.1))
        return len(again) >= 3

    poll_until(is_read, second)
    assert [each.value() for each in again] == [b"a", b"b", b"c"]
    assert told == [2, 1]


def test_a_consume_that_fails_loses_nothing(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    send(topic, "a", "b")
    consumer = make_consumer()
    consumer.subscribe([topic])
    read = consumer._read
    found: list[Message] = []

    def fail(most: int, deadline: float) -> list[Message]:
        if found:
            raise KeyboardInterrupt
        found.extend(read(most, deadline))
        return found

    consumer._read = fail  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        consumer.consume(3, WAIT)
    del consumer._read
    assert consumer._stored == {msgtx.TopicPartition(topic, 0): 0}
    assert [each.value() for each in consumer.consume(2, WAIT)] == [b"a", b"b"]


def test_a_sought_position_is_kept_after_an_interrupt(
    send: Callable[..., None],
    make_consumer: Callable[..., Consumer],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send(topic, "a", "b", "c")
    consumer = make_consumer()
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.assign([TopicPartition(topic, 0, 2)])
    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "_messages", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT)
    assert value(consumer.poll(WAIT)) == b"c"


def test_a_partition_without_an_offset_begins_at_the_committed_one(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    send(topic, "a", "b", "c")
    consumer = make_consumer(**{"enable.auto.commit": False})
    place = TopicPartition(topic, 0, OFFSET_BEGINNING)
    consumer.assign([place])
    assert value(consumer.poll(WAIT)) == b"a"
    consumer.commit(asynchronous=False)
    for again in (consumer.seek, lambda each: consumer.assign([each])):
        assert value(consumer.poll(WAIT)) == b"b"
        again(TopicPartition(topic, 0, OFFSET_STORED))
    assert value(consumer.poll(WAIT)) == b"b"


def test_a_commit_that_failed_in_the_background_is_made_again(
    send: Callable[..., None],
    make_consumer: Callable[..., Consumer],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send(topic, "a")
    consumer = make_consumer(**{"enable.auto.commit": False})
    consumer.subscribe([topic])
    assert value(consumer.poll(WAIT)) == b"a"
    with monkeypatch.context() as patch:
        patch.setattr(consumer._inner(), "commit", lambda *_, **__: None)
        consumer.commit()
    assert [each.offset for each in consumer.commit(asynchronous=False) or ()] == [1]
    assert [each.offset for each in consumer.committed([TopicPartition(topic, 0)])] == [1]


def test_a_rebalance_after_a_transaction_with_all_offsets_is_no_loss(group: Group) -> None:
    producer, first, second = group.producer, group.first, group.second
    producer.send_offsets_to_transaction(first.position(first.assignment()), first.consumer_group_metadata(), WAIT)
    producer.commit_transaction(WAIT)
    second.subscribe([group.topic])
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
    first.consumer_group_metadata()


def test_an_offset_out_of_range_is_the_error_of_the_reset(
    make_producer: Callable[..., Producer], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    consumer = make_consumer(**{"auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, 9)])
    message = consumer.poll(WAIT)
    assert message is not None
    assert message.error() == KafkaError(KafkaError._AUTO_OFFSET_RESET)


def test_an_on_revoke_that_raises_takes_no_commit_away(
    make_producer: Callable[..., Producer], make_consumer: Callable[..., Consumer], topic: str, unique: Callable[[str], str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    producer, group = make_producer(), unique("group")
    for each in "ab":
        producer.produce(topic, each)
    producer.flush(WAIT)
    first = make_consumer(**{"group.id": group, "auto.commit.interval.ms": 0})
    first.subscribe([topic], on_revoke=fail)
    assert value(first.poll(WAIT)) == b"a"
    with pytest.raises(ZeroDivisionError):
        first.close()
    second = make_consumer(**{"group.id": group})
    second.subscribe([topic])
    assert value(second.poll(WAIT)) == b"b"
