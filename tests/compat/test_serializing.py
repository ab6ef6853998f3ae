"""Producers and consumers of the facade with serializers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.serialization import (
    IntegerDeserializer,
    IntegerSerializer,
    MessageField,
    SerializationContext,
    StringDeserializer,
    StringSerializer,
)

from msgtx.compat.confluent_kafka import DeserializingConsumer, Producer, SerializingProducer, error
from msgtx.compat.confluent_kafka.aio import AIOConsumer, AIOProducer, AsyncDeserializingConsumer, AsyncSerializingProducer

WAIT = 60.0
CONSUMER = {"group.id": "g", "auto.offset.reset": "earliest", "enable.partition.eof": True}


def test_keys_and_values_are_serialized_in_this_order(topic: str) -> None:
    seen: list[tuple[str, MessageField, Any]] = []

    def note(value: Any, context: SerializationContext) -> bytes:
        seen.append((context.topic, context.field, context.headers))
        return StringSerializer()(value) or b""

    producer = SerializingProducer({"key.serializer": IntegerSerializer(), "value.serializer": note})
    producer.produce(topic, key=5, value="ü", headers=[("h", b"1")])
    assert producer.flush(WAIT) == 0
    assert seen == [(topic, MessageField.VALUE, [("h", b"1")])]
    producer.close()
    consumer = DeserializingConsumer(
        {**CONSUMER, "key.deserializer": IntegerDeserializer(), "value.deserializer": StringDeserializer()}
    )
    consumer.subscribe([topic])
    message = consumer.poll(WAIT)
    assert message is not None
    assert (message.key(), message.value(), message.headers()) == (5, "ü", [("h", b"1")])
    with pytest.raises(error.ConsumeError) as ended:
        consumer.poll(WAIT)
    assert ended.value.code == error.KafkaError._PARTITION_EOF
    with pytest.raises(NotImplementedError):
        consumer.consume(1)
    consumer.close()


def test_what_cannot_be_serialized_is_not_sent(topic: str) -> None:
    with SerializingProducer(
        {"key.serializer": IntegerSerializer(), "value.serializer": StringSerializer("ascii")}
    ) as producer:
        with pytest.raises(error.KeySerializationError):
            producer.produce(topic, key="no number", value="v")
        with pytest.raises(error.ValueSerializationError) as refused:
            producer.produce(topic, key=1, value="ü")
        assert refused.value.code == error.KafkaError._VALUE_SERIALIZATION
        assert len(producer) == 0


def test_what_cannot_be_deserialized_comes_with_its_message(make_producer: Callable[..., Producer], topic: str) -> None:
    producer = make_producer()
    producer.produce(topic, key=b"\1", value=b"first")
    producer.produce(topic, value=b"\xff")
    producer.flush(WAIT)
    consumer = DeserializingConsumer(
        {**CONSUMER, "key.deserializer": IntegerDeserializer(), "value.deserializer": StringDeserializer()}
    )
    consumer.subscribe([topic])
    with pytest.raises(error.KeyDeserializationError) as key:
        consumer.poll(WAIT)
    assert key.value.kafka_message is not None
    assert key.value.kafka_message.value() == b"first"
    with pytest.raises(error.ValueDeserializationError):
        consumer.poll(WAIT)
    consumer.close()


class Builder:
    """Makes a serializer, and takes the setting that is its own."""

    def __init__(self) -> None:
        self.closed = 0
        self.cluster_id: Callable[[], Any] | None = None

    def set_cluster_id_resolver(self, resolver: Callable[[], Any]) -> None:
        self.cluster_id = resolver

    def build(self, conf: dict[str, Any], is_key: bool) -> tuple[Any, dict[str, Any]]:
        self.codec = conf.pop("codec")
        return self, conf

    def __call__(self, value: str, context: SerializationContext) -> bytes:
        return value.encode(self.codec)

    def close(self) -> None:
        self.closed += 1


def test_a_builder_takes_its_settings_and_its_serializer_is_closed(topic: str) -> None:
    both = Builder()
    config = {"key.serializer.builder": both, "value.serializer.builder": both, "codec": "latin-1"}
    with SerializingProducer(config) as producer:
        told: list[Any] = []
        producer.produce(topic, key="ö", value="ü", on_delivery=lambda _, message: told.append(message))
        producer.flush(WAIT)
        assert both.cluster_id is not None
        assert both.cluster_id() == producer.cluster_id()
    assert (told[0].key(), told[0].value()) == (b"\xf6", b"\xfc")
    assert both.closed == 2
    with pytest.raises(ValueError, match="exclude each other"):
        SerializingProducer({**config, "key.serializer": StringSerializer()})


class AsyncSerde:
    """A serializer, or a deserializer, that is awaited."""

    cluster_id: Callable[[], Any]

    def set_async_cluster_id_resolver(self, resolver: Callable[[], Any]) -> None:
        self.cluster_id = resolver

    async def __call__(self, value: Any, context: SerializationContext) -> Any:
        await asyncio.sleep(0)
        return value.decode("utf-16") if isinstance(value, bytes) else value.encode("utf-16")


def test_serializers_of_asyncio_are_awaited(topic: str) -> None:
    built, serde = Builder(), AsyncSerde()

    async def main() -> None:
        config = {"key.serializer.builder": built, "codec": "latin-1", "value.serializer": serde}
        async with await AsyncSerializingProducer(config, max_workers=2) as producer:
            assert isinstance(producer, AIOProducer)
            stored = await producer.produce(topic, key="ö", value="ü", headers={"h": b"1"})
            assert (await asyncio.wait_for(stored, WAIT)).key() == b"\xf6"
            assert await serde.cluster_id() == await producer.cluster_id()
            with pytest.raises(error.ValueSerializationError):
                await producer.produce(topic, key="k", value=5)
        assert built.closed == 1
        await producer.close()
        with pytest.raises(RuntimeError, match="closed"):
            await producer.produce(topic, key="k", value="x")
        async with await AsyncDeserializingConsumer({**CONSUMER, "value.deserializer": serde}) as consumer:
            assert isinstance(consumer, AIOConsumer)
            await consumer.subscribe([topic])
            message = await consumer.poll(WAIT)
            assert (message.key(), message.value(), message.headers()) == (b"\xf6", "ü", [("h", b"1")])
            with pytest.raises(error.ConsumeError) as ended:
                await consumer.poll(WAIT)
            assert ended.value.code == error.KafkaError._PARTITION_EOF

    asyncio.run(main())


def test_a_value_that_fails_to_be_deserialized_comes_with_its_message_to_asyncio(topic: str) -> None:
    async def main() -> None:
        async with AIOProducer({}) as producer:
            await (await producer.produce(topic, value=b"\xff"))
        consumer = await AsyncDeserializingConsumer({**CONSUMER, "value.deserializer": StringDeserializer()})
        await consumer.subscribe([topic])
        with pytest.raises(error.ValueDeserializationError) as failed:
            await consumer.consume(1, WAIT)
        assert failed.value.kafka_message.value() == b"\xff"
        await consumer.close()

    asyncio.run(main())
