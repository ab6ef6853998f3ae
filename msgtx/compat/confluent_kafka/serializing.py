"""Producers and consumers with serializers. The serializers themselves are those of confluent-kafka."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from confluent_kafka import Message
from confluent_kafka.error import (
    ConsumeError,
    KeyDeserializationError,
    KeySerializationError,
    ValueDeserializationError,
    ValueSerializationError,
)
from confluent_kafka.serialization import MessageField, SerializationContext

from msgtx.compat.confluent_kafka.consumer import Consumer
from msgtx.compat.confluent_kafka.producer import Producer

Serde = Callable[[Any, SerializationContext], Any]


class Serdes:
    """The serializers, or deserializers, of a client's keys and values.

    Those that a builder has made belong to the client, which closes them.
    """

    def __init__(self, kind: str, conf: Mapping[str, Any]) -> None:
        """`kind`: `serializer` or `deserializer`. Raise `ValueError` if a serializer and its builder are both given."""
        given = dict(conf)
        found = [(given.pop(name, None), given.pop(f"{name}.builder", None)) for name in (f"key.{kind}", f"value.{kind}")]
        self.made: list[Serde] = []
        self.left = given  # the settings that no builder has taken
        for index, (serde, builder) in enumerate(found):
            if serde is not None and builder is not None:
                raise ValueError(f"{('key', 'value')[index]}.{kind} and its builder exclude each other")
            if builder is not None:
                made, left = builder.build(dict(given), index == 0)
                self.made.append(made)
                self.left = {name: value for name, value in left.items() if name in self.left}
                found[index] = (made, None)
        self.key, self.value = found[0][0], found[1][0]

    def offer(self, cluster_id: Callable[[], str]) -> None:
        """Give the call for the id of the cluster to those that ask for it, as those of the schema registry do."""
        for each in (self.key, self.value):
            take = getattr(each, "set_cluster_id_resolver", None)
            if take is not None:
                take(cluster_id)

    def close(self) -> None:
        """Close what builders have made."""
        while self.made:
            close = getattr(self.made.pop(), "close", None)
            if close is not None:
                close()


class SerializingProducer(Producer):
    """A producer that serializes keys and values: settings `key.serializer`, `value.serializer`."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._serdes = Serdes("serializer", conf)
        super().__init__(self._serdes.left)
        self._serdes.offer(self.cluster_id)

    def produce(  # type: ignore[override]  # the original, too, takes the key before the value
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: Callable[..., object] | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Serialize and send a message. Raise `KeySerializationError`, `ValueSerializationError`; see `Producer.produce`."""
        context = SerializationContext(topic, MessageField.KEY, headers)
        if self._serdes.key is not None:
            try:
                key = self._serdes.key(key, context)
            except Exception as error:
                raise KeySerializationError(error) from error
        context.field = MessageField.VALUE
        if self._serdes.value is not None:
            try:
                value = self._serdes.value(value, context)
            except Exception as error:
                raise ValueSerializationError(error) from error
        super().produce(
            topic, value, key, partition=partition, on_delivery=on_delivery, timestamp=timestamp, headers=headers
        )

    def close(self) -> bool:
        """Close the producer, then the serializers that builders have made."""
        closed = super().close()
        self._serdes.close()
        return closed


class DeserializingConsumer(Consumer):
    """A consumer that deserializes keys and values: settings `key.deserializer`, `value.deserializer`."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._serdes = Serdes("deserializer", conf)
        super().__init__(self._serdes.left)
        self._serdes.offer(self.cluster_id)

    def poll(self, timeout: float | None = -1) -> Message | None:
        """Return the next message. Raise `KeyDeserializationError`, `ValueDeserializationError`, `ConsumeError`."""
        message = super().poll(timeout)
        return None if message is None else deserialized(message, self._serdes)

    def consume(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `NotImplementedError`, as the original does: use `poll`."""
        raise NotImplementedError("a DeserializingConsumer has no consume: use poll")

    def close(self) -> None:
        """Close the consumer, then the deserializers that builders have made."""
        super().close()
        self._serdes.close()


def deserialized(message: Message, serdes: Serdes) -> Message:
    """Deserialize a message in place and return it.

    Raise `KeyDeserializationError`, `ValueDeserializationError`; `ConsumeError` for a message that is an error.
    """
    error = message.error()
    if error is not None:
        raise ConsumeError(error, kafka_message=message)
    context = SerializationContext(message.topic() or "", MessageField.KEY, message.headers())
    if serdes.key is not None:
        try:
            message.set_key(serdes.key(message.key(), context))
        except Exception as cause:
            raise KeyDeserializationError(cause, message) from cause
    context.field = MessageField.VALUE
    if serdes.value is not None:
        try:
            message.set_value(serdes.value(message.value(), context))
        except Exception as cause:
            raise ValueDeserializationError(cause, message) from cause
    return message
