"""The facade's consumer."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from msgtx import errors as refusals
from msgtx.compat.confluent_kafka import OFFSET_END, Consumer, KafkaError, Producer, TopicPartition
from msgtx.compat.confluent_kafka import consumer as module

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


def test_the_end_is_that_of_the_assignment_and_none_is_told_of_what_is_paused(
    make_producer: Callable[..., Producer], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    producer, consumer = make_producer(), make_consumer(**{"enable.partition.eof": True})
    producer.produce(topic, "before")
    producer.flush(WAIT)
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    producer.produce(topic, "behind")
    producer.flush(WAIT)
    message = consumer.poll(WAIT)
    assert message is not None
    assert (message.value(), message.offset()) == (b"behind", 1)
    latest = make_consumer(**{"auto.offset.reset": "latest"})
    latest.assign([TopicPartition(topic, 0)])
    producer.produce(topic, "later")
    producer.flush(WAIT)
    for each, offset in ((latest, 2), (consumer, 2)):
        message = each.poll(WAIT)
        assert message is not None
        assert message.offset() == offset
    consumer.pause([TopicPartition(topic, 0)])
    assert consumer.poll(0.1) is None
    consumer.resume([TopicPartition(topic, 0)])
    end = consumer.poll(WAIT)
    assert end is not None
    assert (end.offset(), end.error()) == (3, KafkaError(KafkaError._PARTITION_EOF))


@pytest.mark.parametrize("listens", [True, False])
def test_each_look_at_a_database_that_is_away_is_followed_by_a_pause(
    make_consumer: Callable[..., Consumer], topic: str, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    def refuse(*_: object) -> None:
        raise refusals.DatabaseUnavailable("away")

    told: list[KafkaError] = []
    pauses: list[float] = []
    consumer = make_consumer(**({"error_cb": told.append} if listens else {}))
    consumer.assign([TopicPartition(topic, 0)])
    with monkeypatch.context() as patch:
        patch.setattr(consumer._inner(), "begin", refuse)
        patch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append))
        assert [consumer.poll(0) for _ in range(3)] == [None] * 3
    assert pauses == [module.REFUSED_SECONDS] * 3
    assert [error.code() for error in told] == [KafkaError._ALL_BROKERS_DOWN] * (3 if listens else 0)


def test_a_consumer_leaves_in_the_poll_behind_its_unsubscribe(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    send(topic, "a")
    consumer = make_consumer()
    told: list[str] = []
    consumer.subscribe([topic], on_revoke=lambda _, places: told.append(f"{len(places)}"))
    assert consumer.poll(WAIT) is not None
    consumer.unsubscribe()
    assert told == []
    assert consumer.poll(0.1) is None
    assert told == ["1"]
    assert consumer.assignment() == []


def test_a_seek_to_no_offset_begins_as_a_new_group_does(
    send: Callable[..., None], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    send(topic, "a")
    consumer = make_consumer(**{"enable.auto.commit": False})
    consumer.subscribe([topic])
    for _ in range(2):
        message = consumer.poll(WAIT)
        assert message is not None
        assert message.offset() == 0
        consumer.seek(consumer.committed([TopicPartition(topic, 0)])[0])
