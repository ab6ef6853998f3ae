"""The facade's producer."""

from collections.abc import Callable

from msgtx.compat.confluent_kafka import KafkaError, Message, Producer

WAIT = 60.0


def test_a_delivery_callback_runs_in_flush_with_the_place_of_its_message(
    make_producer: Callable[..., Producer], topic: str
) -> None:
    producer = make_producer()
    told: list[tuple[KafkaError | None, Message]] = []
    for value in ("a", b"b", None):
        producer.produce(topic, value, key="k", headers={"h": "1"}, on_delivery=lambda *each: told.append(each))
    assert len(producer) == 3
    assert not told
    assert producer.flush(WAIT) == 0
    assert len(producer) == 0
    assert [error for error, _ in told] == [None] * 3
    assert [(message.offset(), message.key(), message.value()) for _, message in told] == [
        (0, b"k", b"a"),
        (1, b"k", b"b"),
        (2, b"k", None),
    ]
