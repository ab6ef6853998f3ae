"""Programs that make mistakes."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import msgtx
from msgtx.compat.confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.compat.conftest import Group
from tests.compat.test_positions import poll_until, value

WAIT = 60.0


def test_a_consumer_that_is_closed_in_on_revoke(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str, unique: Callable[[str], str]
) -> None:
    send(topic, "a", "b")
    told: list[int] = []

    def close(consumer: Consumer, places: list[TopicPartition]) -> None:
        told.append(len(places))
        consumer.close()

    given = {"group.id": unique("group")}
    for expected, leave in ((b"a", "close"), (b"b", "unsubscribe")):
        consumer = make_consumer(**given)
        consumer.subscribe([topic], on_revoke=close)
        assert value(consumer.poll(WAIT)) == expected
        getattr(consumer, leave)()
        if leave == "unsubscribe":
            assert consumer.poll(0) is None
        consumer.close()
    assert told == [1, 1]
    assert [each.offset for each in make_consumer(**given).committed([TopicPartition(topic, 0)])] == [2]


def test_reports_that_close_their_producer_or_send_more(make_producer: Callable[..., Producer], topic: str) -> None:
    first, second = make_producer(), make_producer()
    told: list[str] = []

    def more(error: KafkaError | None, _: object) -> None:
        assert error is None
        told.append("first")
        if len(told) < 3:
            first.produce(topic, "again", on_delivery=more)

    def close(error: KafkaError | None, _: object) -> None:
        assert error is None
        told.append("second")
        second.close()

    first.produce(topic, "a", on_delivery=more)
    first.close()
    second.produce(topic, "a", on_delivery=close)
    second.produce(topic, "b", on_delivery=close)
    assert second.flush(WAIT) == 0
    assert told == ["first"] * 3 + ["second"] * 2
    assert len(second) == 0


def test_two_threads_that_produce_and_flush_get_each_report_once(make_producer: Callable[..., Producer], topic: str) -> None:
    producer, count = make_producer(), 100
    told: Counter[int | None] = Counter()

    def run() -> None:
        for number in range(count):
            producer.produce(topic, str(number), on_delivery=lambda _, message: told.update([message.offset()]))
            if number % 10 == 0:
                producer.flush(WAIT)

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(run) for _ in range(2)]:
            each.result(WAIT)
    assert producer.flush(WAIT) == 0
    assert told == dict.fromkeys(range(2 * count), 1)


def test_offsets_of_partitions_that_were_taken_away_fail_their_transaction(group: Group) -> None:
    wide, producer, first, second = group.topic, group.producer, group.first, group.second
    positions, member = first.position(first.assignment()), first.consumer_group_metadata()
    producer.produce(wide, "of a member that was", partition=0)
    second.subscribe([wide])
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)

    def finish() -> None:
        producer.send_offsets_to_transaction(positions, member, WAIT)
        producer.commit_transaction(WAIT)

    with pytest.raises(KafkaException) as failed:
        finish()
    assert failed.value.args[0].txn_requires_abort()
    producer.abort_transaction(WAIT)
    places = [TopicPartition(wide, each) for each in (0, 1)]
    assert [each.offset for each in first.committed(places)] == [-1001, -1001]


def test_consume_of_nothing_returns_at_once(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    send(topic, "a")
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    assert consumer.consume(0) == consumer.consume(0, -1) == consumer.consume(0, WAIT) == []
    assert [value(each) for each in consumer.consume(1, -5)] == [b"a"]


@pytest.mark.parametrize("timeout", [0.0, 5.0])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_what_consume_has_found_is_returned_when_a_rebalance_closes_the_consumer(
    make_producer: Callable[..., Producer],
    make_consumer: Callable[..., Consumer],
    client: msgtx.Client,
    unique: Callable[[str], str],
    strategy: str,
    timeout: float,
) -> None:
    """Three messages of ten are there when a second member joins: none is committed that the program did not get."""
    wide, group, producer = unique("wide"), unique("group"), make_producer()
    client.topics.create(wide, partitions=2)
    for each in "abc":
        producer.produce(wide, each, partition=0)
    producer.flush(WAIT)
    given = {"group.id": group, "heartbeat.interval.ms": 50, "partition.assignment.strategy": strategy}
    first, second = make_consumer(**given), make_consumer(**given)
    told: list[TopicPartition] = []
    seen: list[Message | None] = []

    def close(consumer: Consumer, places: list[TopicPartition]) -> None:
        told.extend(places)
        consumer.close()

    with ThreadPoolExecutor(1) as threads:
        first.subscribe([wide], on_revoke=close)
        reading = threads.submit(first.consume, 10, WAIT)
        deadline = time.monotonic() + WAIT
        while first._stored.get(msgtx.TopicPartition(wide, 0)) != 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second.subscribe([wide])
        while not reading.done():
            seen.append(second.poll(0.05))
    assert [value(each) for each in reading.result(WAIT)] == [b"a", b"b", b"c"]
    assert sorted(each.partition for each in told) == [0, 1]
    assert not any(seen)
    for call in (lambda: first.poll(timeout), lambda: first.consume(1, timeout)):
        with pytest.raises(RuntimeError, match="closed"):
            call()


@pytest.mark.parametrize("timeout", [0.0, 5.0])
def test_a_poll_that_closes_its_consumer_returns_none(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str, timeout: float
) -> None:
    send(topic, "a")
    consumer = make_consumer()
    consumer.subscribe([topic], on_revoke=lambda given, _: given.close())
    assert value(consumer.poll(WAIT)) == b"a"
    consumer.unsubscribe()
    assert consumer.poll(timeout) is None
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll(timeout)


@pytest.mark.parametrize("again", ["subscribe", "assign", "incremental_assign"])
def test_each_call_that_runs_the_closing_callback_closes_the_consumer(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str, unique: Callable[[str], str], again: str
) -> None:
    send(topic, "a")
    told: list[int] = []
    given = {"group.id": unique("group")}
    consumer = make_consumer(**given)

    def close(_: Consumer, places: list[TopicPartition]) -> None:
        told.append(len(places))
        consumer.close()
        consumer.close()

    consumer.subscribe([topic], on_revoke=close)
    assert value(consumer.poll(WAIT)) == b"a"
    consumer.unsubscribe()
    if again == "subscribe":
        consumer.subscribe([topic], on_revoke=close)
    else:
        getattr(consumer, again)([TopicPartition(topic, 0)])
    with pytest.raises(RuntimeError, match="closed"):
        consumer.assignment()
    consumer.close()
    assert told == [1]
    assert [each.offset for each in make_consumer(**given).committed([TopicPartition(topic, 0)])] == [1]


def test_a_consumer_that_is_closed_when_a_commit_is_told(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    send(topic, "a", "b")
    told: list[KafkaError | None] = []

    def close(error: KafkaError | None, _: object) -> None:
        told.append(error)
        consumer.close()

    consumer = make_consumer(**{"on_commit": close, "enable.auto.commit": False})
    consumer.subscribe([topic])
    assert value(consumer.poll(WAIT)) == b"a"
    consumer.commit()
    assert consumer.consume(1, WAIT) == []
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll(0)
    assert told == [None]
