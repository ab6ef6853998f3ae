"""The facade's consumer."""

from collections.abc import Callable

from msgtx.compat.confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

WAIT = 60.0


def test_messages_come_one_by_one_and_then_the_end(
    make_producer: Callable[..., Producer], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    producer, consumer = make_producer(), make_consumer(**{"enable.partition.eof": True})
    for value in ("a", "b"):
        producer.produce(topic, value, timestamp=5)
    producer.flush(WAIT)
    told: list[list[TopicPartition]] = []
    consumer.subscribe([topic], on_assign=lambda _, places: told.append(places))
    assert consumer.assignment() == []
    assert not told
    first, second, end = (consumer.poll(WAIT) for _ in range(3))
    assert told == [[TopicPartition(topic, 0)]]
    assert first is not None
    assert second is not None
    assert end is not None
    assert (first.value(), first.offset(), first.timestamp(), first.error()) == (b"a", 0, (1, 5), None)
    assert second.value() == b"b"
    error = end.error()
    assert error is not None
    assert error.code() == KafkaError._PARTITION_EOF
    assert end.offset() == 2
    assert consumer.commit(asynchronous=False) == [TopicPartition(topic, 0, 2)]
    assert [each.offset for each in consumer.committed([TopicPartition(topic, 0)])] == [2]
